//! Prints the report of a run once, as text or as one JSON object.
//!
//! The report is one write to standard output. If that fails, the run has failed.

use std::fmt::Display;
use std::io::{self, Write};

use serde::Serialize;

use crate::BenchError;

/// The result of a run; determines the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunVerdict {
    /// All work was done and nothing is wrong.
    Good,
    /// Something was refused, lost, doubled or damaged; see the report.
    Bad,
}

impl RunVerdict {
    /// `Good` if `sound`.
    pub(crate) fn from_soundness(sound: bool) -> RunVerdict {
        if sound { RunVerdict::Good } else { RunVerdict::Bad }
    }
}

/// Prints a report to standard output.
pub(crate) fn print(report: &(impl Display + Serialize), json: bool) -> Result<(), BenchError> {
    let text = if json {
        let object = serde_json::to_string_pretty(report);
        object.map_err(io::Error::from).map_err(BenchError::system("writing the report as JSON"))? + "\n"
    } else {
        report.to_string()
    };
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(BenchError::system("writing the report"))
}
