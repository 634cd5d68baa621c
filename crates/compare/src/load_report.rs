//! What a load of `mailrace bench ... --json` reports.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::error::CompareError;
use crate::file::{Counted, LoadOutput};
use crate::measure::LoadOutcome;
use crate::process::CommandResult;

/// The fields that are read; there are more.
#[derive(Debug, Deserialize)]
struct LoadReport {
    done: u64,
    /// Loads without parts have none.
    parts: Option<u64>,
    seconds: f64,
    #[serde(default)]
    failed: u64,
    #[serde(default)]
    missed: u64,
    #[serde(default)]
    unfinished: u64,
    #[serde(default)]
    errors: BTreeMap<String, u64>,
    latency: Option<Latency>,
}

/// In microseconds.
#[derive(Debug, Deserialize)]
struct Latency {
    p50_us: f64,
    p90_us: f64,
    p99_us: f64,
    p999_us: f64,
    max_us: f64,
}

/// What a load did, and the parts of its units that succeeded, such as recipients. `name` is for errors; `count` is
/// what it was asked for, for loads that print nothing.
///
/// # Errors
///
/// Its output is not the report of a load, or a part of the load failed.
pub(crate) fn outcome(
    name: &str,
    ended: &CommandResult,
    output: LoadOutput,
    counted: Counted,
    count: Option<u64>,
    threads: u32,
) -> Result<(LoadOutcome, u64), CompareError> {
    let whole = LoadOutcome { seconds: ended.seconds, cpu_seconds: ended.cpu_seconds, threads, ..Default::default() };
    match output {
        LoadOutput::None => {
            let count = count.unwrap_or(0);
            Ok((LoadOutcome { count, ..whole }, count))
        }
        LoadOutput::Json => {
            let report = parse(name, &ended.output)?;
            let parts = report.parts.unwrap_or(report.done);
            let count = if counted == Counted::Parts { parts } else { report.done };
            let latency_seconds = report.latency.map(|latency| latency.seconds()).unwrap_or_default();
            Ok((LoadOutcome { count, seconds: report.seconds, latency_seconds, ..whole }, parts))
        }
    }
}

fn parse(name: &str, output: &str) -> Result<LoadReport, CompareError> {
    // Lines of progress may come first.
    let begin = output.find('{').unwrap_or(0);
    let report: LoadReport = serde_json::from_str(&output[begin..]).map_err(|error| {
        let text = format!("the output of `{name}` is not the JSON of a load: {error}; add --json to it");
        CompareError::Failed(text)
    })?;
    let bad = report.failed + report.missed + report.unfinished;
    match bad {
        0 => Ok(report),
        _ => Err(CompareError::Failed(format!("{bad} of `{name}` failed: {:?}", report.errors))),
    }
}

impl Latency {
    fn seconds(&self) -> BTreeMap<String, f64> {
        let percentiles = [
            ("50", self.p50_us),
            ("90", self.p90_us),
            ("99", self.p99_us),
            ("99.9", self.p999_us),
            ("100", self.max_us),
        ];
        percentiles.into_iter().map(|(percent, us)| (percent.to_owned(), us / 1e6)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"12:00,5,1,0,1,0
{"title": "x", "done": 100, "parts": 300, "seconds": 2.5, "failed": 0, "missed": 0, "unfinished": 0, "errors": {},
 "latency": {"name": "latency", "p50_us": 1000, "p90_us": 2000, "p99_us": 3000, "p999_us": 4000, "max_us": 5000}}"#;

    fn read(output: &str, kind: LoadOutput, counted: Counted) -> Result<(LoadOutcome, u64), CompareError> {
        let ended = CommandResult { output: output.to_owned(), seconds: 3.0, cpu_seconds: 1.5 };
        outcome("load", &ended, kind, counted, Some(70), 1)
    }

    #[test]
    fn units_or_parts_are_counted_with_the_time_of_the_report() {
        let (found, parts) = read(REPORT, LoadOutput::Json, Counted::Done).unwrap();
        assert_eq!((found.count, parts, found.seconds, found.cpu_seconds), (100, 300, 2.5, 1.5));
        assert_eq!(found.latency_seconds["99.9"], 0.004);
        assert_eq!(read(REPORT, LoadOutput::Json, Counted::Parts).unwrap().0.count, 300);
    }

    #[test]
    fn a_load_that_prints_nothing_did_what_it_was_asked_for() {
        let (found, parts) = read("", LoadOutput::None, Counted::Done).unwrap();
        assert_eq!((found.count, parts, found.seconds), (70, 70, 3.0));
    }

    #[test]
    fn a_load_that_failed_in_part_or_printed_something_else_is_an_error() {
        let failed = REPORT.replace("\"failed\": 0", "\"failed\": 2");
        assert!(read(&failed, LoadOutput::Json, Counted::Done).unwrap_err().to_string().contains("2 of `load`"));
        assert!(read("100 messages", LoadOutput::Json, Counted::Done).is_err());
    }
}
