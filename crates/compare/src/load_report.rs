//! What a load of `mailrace bench ... --json` reports.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::error::CompareError;
use crate::file::{Counted, LoadOutput};
use crate::measure::LoadOutcome;
use crate::process::CommandResult;

/// Texts of errors that are shown; a server that refuses has one for all messages.
const ERRORS_SHOWN: usize = 3;

/// The fields that a measurement uses; there are more.
#[derive(Clone, Debug, Deserialize)]
pub struct LoadReport {
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
#[derive(Clone, Debug, Deserialize)]
struct Latency {
    p50_us: f64,
    p90_us: f64,
    p99_us: f64,
    p999_us: f64,
    max_us: f64,
}

impl LoadReport {
    /// Reads what a load printed. Lines of progress may come first.
    ///
    /// # Errors
    ///
    /// There is no report in it; the text says what is wrong.
    pub fn parse(output: &str) -> Result<LoadReport, String> {
        let begin = output.find('{').unwrap_or(0);
        serde_json::from_str(&output[begin..]).map_err(|error| format!("not the JSON of a load: {error}"))
    }

    /// What went wrong, as a sentence without an end; None if nothing did.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        let bad = self.failed + self.missed + self.unfinished;
        if bad == 0 && self.errors.is_empty() {
            return None;
        }
        let texts = self.errors.iter().take(ERRORS_SHOWN).map(|(text, count)| format!("{count} times {text:?}"));
        Some(format!("{bad} of {} failed: {}", self.done + bad, texts.collect::<Vec<_>>().join(", ")))
    }

    /// The figures, with what the load cost. `threads` are those of the load; 0 if they are not known.
    #[must_use]
    pub fn outcome(&self, cpu_seconds: f64, threads: u32) -> LoadOutcome {
        let latency_seconds = self.latency.as_ref().map(Latency::seconds).unwrap_or_default();
        LoadOutcome { count: self.done, seconds: self.seconds, cpu_seconds, threads, latency_seconds }
    }
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
    let CommandResult { output: printed, seconds, cpu_seconds } = ended;
    match output {
        LoadOutput::None => {
            let count = count.unwrap_or(0);
            let latency_seconds = BTreeMap::new();
            let outcome = LoadOutcome { count, seconds: *seconds, cpu_seconds: *cpu_seconds, threads, latency_seconds };
            Ok((outcome, count))
        }
        LoadOutput::Json => {
            let report = LoadReport::parse(printed).map_err(|text| {
                CompareError::Failed(format!("the output of `{name}` is {text}; add --json to the command"))
            })?;
            if let Some(text) = report.fault() {
                return Err(CompareError::Failed(format!("`{name}`: {text}")));
            }
            let outcome = report.outcome(*cpu_seconds, threads);
            let parts = report.parts.unwrap_or(report.done);
            let count = if counted == Counted::Parts { parts } else { outcome.count };
            Ok((LoadOutcome { count, ..outcome }, parts))
        }
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
        let failed = REPORT.replace("\"failed\": 0", "\"failed\": 2").replace("\"missed\": 0", "\"missed\": 1");
        let failed = failed.replace("\"errors\": {}", "\"errors\": {\"421 too many sessions\": 2}");
        let text = read(&failed, LoadOutput::Json, Counted::Done).unwrap_err().to_string();
        assert_eq!(text, "`load`: 3 of 103 failed: 2 times \"421 too many sessions\"");
        assert!(read("100 messages", LoadOutput::Json, Counted::Done).is_err());
    }
}
