//! What a run found, said once: as text for people, or as one JSON object for programs.
//!
//! It goes to the standard output in one piece. Where that cannot be written the run has failed, whatever it found: a
//! report that nobody got is none.

use std::fmt::Display;
use std::io::{self, Write};

use serde::Serialize;

use crate::Fault;

/// Whether everything was as it should be; the exit code is made of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Everything that was asked for was done, and nothing was missing.
    Good,
    /// Something was refused, lost, doubled or damaged; the report says what.
    Bad,
}

impl Verdict {
    /// `Good` if `sound`.
    pub(crate) fn of(sound: bool) -> Verdict {
        if sound { Verdict::Good } else { Verdict::Bad }
    }
}

/// Writes a report to the standard output.
pub(crate) fn print(report: &(impl Display + Serialize), json: bool) -> Result<(), Fault> {
    let text = if json {
        let object = serde_json::to_string_pretty(report);
        object.map_err(io::Error::from).map_err(Fault::system("writing the report as JSON"))? + "\n"
    } else {
        report.to_string()
    };
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Fault::system("writing the report"))
}
