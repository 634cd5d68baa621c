//! The result of comparing copies with a ledger, as text and as JSON.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::{RunId, RunVerdict};

/// The result. Copies are counted for each recipient, or for each mailbox.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Comparison {
    /// Acknowledged messages.
    pub(crate) messages: u64,
    /// Recipients of these messages, counted for each message.
    pub(crate) recipients: u64,
    /// Copies with a stamp of these runs.
    pub(crate) copies: u64,
    /// Recipients with their copy.
    pub(crate) found: u64,
    /// Recipients without their copy.
    pub(crate) lost: u64,
    /// Copies beyond the first in one place.
    pub(crate) doubled: u64,
    /// Copies that differ from what was sent.
    pub(crate) damaged: u64,
    /// Copies that were not acknowledged. One of each is no fault.
    pub(crate) unacknowledged: u64,
    /// Copies with a stamp of runs that are not in the ledger.
    pub(crate) other_runs: u64,
    /// Messages without a stamp.
    pub(crate) foreign: u64,
    /// The first examples of each kind.
    pub(crate) examples: CopyExamples,
}

/// The first examples of each kind.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct CopyExamples {
    pub(crate) lost: Vec<CopyExample>,
    pub(crate) doubled: Vec<CopyExample>,
    pub(crate) damaged: Vec<CopyExample>,
    pub(crate) unacknowledged: Vec<CopyExample>,
}

/// A copy that is missing or wrong.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CopyExample {
    #[serde(serialize_with = "as_text")]
    pub(crate) run: RunId,
    pub(crate) sequence: u64,
    /// Its recipient in the ledger. Several if it could be any of them; empty if it is not in the
    /// ledger.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) recipient: String,
    /// Where it was found, if known.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) at: String,
}

fn as_text<S: Serializer>(run: &RunId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(run)
}

impl Comparison {
    /// Good if no copy is lost, doubled or damaged.
    pub(crate) fn verdict(&self) -> RunVerdict {
        RunVerdict::from_soundness(self.lost == 0 && self.doubled == 0 && self.damaged == 0)
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "acknowledged    {:>10} messages, {} recipients", self.messages, self.recipients)?;
        for (name, count) in [
            ("found", self.found),
            ("lost", self.lost),
            ("doubled", self.doubled),
            ("damaged", self.damaged),
            ("unacknowledged", self.unacknowledged),
            ("of other runs", self.other_runs),
            ("foreign", self.foreign),
        ] {
            writeln!(f, "{name:<15} {count:>10}")?;
        }
        for (kind, examples, count) in [
            ("lost", &self.examples.lost, self.lost),
            ("doubled", &self.examples.doubled, self.doubled),
            ("damaged", &self.examples.damaged, self.damaged),
        ] {
            write_examples(f, kind, examples, count)?;
        }
        Ok(())
    }
}

fn write_examples(f: &mut fmt::Formatter<'_>, kind: &str, examples: &[CopyExample], count: u64) -> fmt::Result {
    if examples.is_empty() {
        return Ok(());
    }
    writeln!(f, "\n{kind}:")?;
    examples.iter().try_for_each(|example| writeln!(f, "  {example}"))?;
    match count - examples.len() as u64 {
        0 => Ok(()),
        more => writeln!(f, "  and {more} more"),
    }
}

impl fmt::Display for CopyExample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "run {} message {}", self.run, self.sequence)?;
        if !self.recipient.is_empty() {
            write!(f, " for {}", self.recipient)?;
        }
        if !self.at.is_empty() {
            write!(f, " at {}", self.at)?;
        }
        Ok(())
    }
}
