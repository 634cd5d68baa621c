//! What a load, or a sink, prints with `--json`.

use std::collections::BTreeMap;

use compare::measure::LoadOutcome;
use serde::Deserialize;

/// Texts of errors that are shown; a server that refuses has one for all messages.
const ERRORS_SHOWN: usize = 3;

/// The parts of the report of `bench smtp` and `bench http` that a measurement uses.
#[derive(Debug, Deserialize)]
pub(super) struct LoadReport {
    pub(super) done: u64,
    failed: u64,
    unfinished: u64,
    pub(super) seconds: f64,
    errors: BTreeMap<String, u64>,
    latency: Latency,
}

#[derive(Debug, Deserialize)]
struct Latency {
    p50_us: f64,
    p90_us: f64,
    p99_us: f64,
    max_us: f64,
}

/// The part of the report of `bench sink` that a measurement uses.
#[derive(Debug, Deserialize)]
struct SinkReport {
    messages: u64,
}

impl LoadReport {
    /// Reads the report; the text says what is wrong with it.
    pub(super) fn parse(output: &str) -> Result<LoadReport, String> {
        serde_json::from_str(output).map_err(|error| format!("the report of the load is not as expected: {error}"))
    }

    /// What went wrong, if anything did.
    pub(super) fn fault(&self) -> Option<String> {
        if self.failed == 0 && self.unfinished == 0 && self.errors.is_empty() {
            return None;
        }
        let texts = self.errors.iter().take(ERRORS_SHOWN).map(|(text, count)| format!("{count} times {text:?}"));
        let texts = texts.collect::<Vec<_>>().join(", ");
        let all = self.done + self.failed + self.unfinished;
        Some(format!("{} of {all} failed: {texts}", self.failed + self.unfinished))
    }

    /// The figures, with what the load cost.
    pub(super) fn outcome(&self, cpu_seconds: f64) -> LoadOutcome {
        let Latency { p50_us, p90_us, p99_us, max_us } = self.latency;
        let percentiles = [("50", p50_us), ("90", p90_us), ("99", p99_us), ("100", max_us)];
        LoadOutcome {
            count: self.done,
            seconds: self.seconds,
            cpu_seconds,
            threads: 1,
            latency_seconds: percentiles.map(|(name, us)| (name.to_owned(), us / 1e6)).into(),
        }
    }
}

/// The messages that a sink received, from its log: lines with its addresses, then its report.
pub(super) fn sink_messages(log: &str) -> Result<u64, String> {
    let report = log.find('{').map_or("", |at| &log[at..]);
    let report: SinkReport =
        serde_json::from_str(report).map_err(|error| format!("the report of the sink is not as expected: {error}"))?;
    Ok(report.messages)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"{"done": 5, "failed": 2, "unfinished": 0, "seconds": 0.5, "rate": 10.0,
        "errors": {"421 too many sessions": 2},
        "latency": {"name": "latency", "p50_us": 1000.0, "p90_us": 2000.0, "p99_us": 3000.0, "max_us": 4000.0}}"#;

    #[test]
    fn a_report_becomes_figures_and_its_errors_a_sentence() {
        let report = LoadReport::parse(REPORT).unwrap();
        assert_eq!(report.fault().unwrap(), "2 of 7 failed: 2 times \"421 too many sessions\"");
        let outcome = report.outcome(0.25);
        assert_eq!((outcome.count, outcome.seconds, outcome.latency_seconds["99"]), (5, 0.5, 0.003));
        assert!(LoadReport::parse("").unwrap_err().contains("not as expected"));
    }

    #[test]
    fn a_sink_says_how_many_messages_it_got() {
        assert_eq!(sink_messages("listening on 127.0.0.1:25\n{\"messages\": 7, \"recipients\": 8}\n"), Ok(7));
        assert!(sink_messages("listening on 127.0.0.1:25\n").is_err());
    }
}
