//! The report of a crash trial, as text and as JSON.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use super::CrashOptions;
use crate::verify::Comparison;
use crate::{LoadSummary, RunVerdict};

/// The result of all rounds.
#[derive(Debug, Serialize)]
pub(super) struct TrialReport {
    server: String,
    seed: u64,
    rounds: Vec<TrialRound>,
    ledger: PathBuf,
    no_doubles: bool,
    held: Comparison,
}

/// One load and its kill.
#[derive(Clone, Debug, Serialize)]
pub(super) struct TrialRound {
    /// From the first message sent to the kill.
    load_ms: u64,
    acknowledged: u64,
    /// Messages that were begun and not acknowledged, most of them because of the kill.
    failed: u64,
    /// Error texts and their counts.
    errors: BTreeMap<String, u64>,
}

impl TrialRound {
    pub(super) fn new(load: Duration, summary: &LoadSummary) -> TrialRound {
        TrialRound {
            load_ms: u64::try_from(load.as_millis()).unwrap_or(u64::MAX),
            acknowledged: summary.done,
            failed: summary.failed,
            errors: summary.errors.clone(),
        }
    }

    /// Without a 250 there is nothing to check.
    pub(super) fn proves_nothing(&self) -> bool {
        self.acknowledged == 0
    }
}

impl TrialReport {
    pub(super) fn new(options: &CrashOptions, rounds: Vec<TrialRound>, held: Comparison, ledger: &Path) -> TrialReport {
        TrialReport {
            server: options.start.clone(),
            seed: options.send_options.load.seed,
            rounds,
            ledger: ledger.to_owned(),
            no_doubles: options.no_doubles,
            held,
        }
    }

    /// Good if no copy is lost or damaged, and none is doubled where that is not allowed.
    pub(super) fn verdict(&self) -> RunVerdict {
        let doubled = if self.no_doubles { self.held.doubled } else { 0 };
        RunVerdict::from_soundness(self.held.lost == 0 && self.held.damaged == 0 && doubled == 0)
    }
}

impl fmt::Display for TrialRound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.load_ms as f64 / 1e3;
        write!(f, "killed after {seconds:.2} s, {} acknowledged, {} failed", self.acknowledged, self.failed)
    }
}

impl fmt::Display for TrialReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\nkilled {} times under load (seed {})\n", self.server, self.rounds.len(), self.seed)?;
        write!(f, "{}", self.held)?;
        match self.verdict() {
            RunVerdict::Good => Ok(()),
            RunVerdict::Bad => writeln!(f, "\nthe ledger is kept in {}", self.ledger.display()),
        }
    }
}
