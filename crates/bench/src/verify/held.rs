//! What came of holding copies against a ledger, for people and for programs.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::{RunId, Verdict};

/// The outcome. Copies are counted by place: one for each recipient, or for each mailbox.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Held {
    /// Messages that were answered 250.
    pub(crate) messages: u64,
    /// Their recipients, of each message.
    pub(crate) recipients: u64,
    /// Copies with a stamp of these runs.
    pub(crate) copies: u64,
    /// Recipients who have what was acknowledged for them.
    pub(crate) found: u64,
    /// Recipients who do not.
    pub(crate) lost: u64,
    /// Copies beyond the first at one place.
    pub(crate) doubled: u64,
    /// Copies that are not what was sent.
    pub(crate) damaged: u64,
    /// Copies that came without having been answered 250, which once is no fault.
    pub(crate) unacknowledged: u64,
    /// Stamped, but of runs that the ledger does not know.
    pub(crate) other_runs: u64,
    /// Messages without a stamp.
    pub(crate) foreign: u64,
    /// The first ones of each kind.
    pub(crate) examples: Examples,
}

/// The first ones of each kind.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Examples {
    pub(crate) lost: Vec<Example>,
    pub(crate) doubled: Vec<Example>,
    pub(crate) damaged: Vec<Example>,
    pub(crate) unacknowledged: Vec<Example>,
}

/// One copy that is missing or should not be.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Example {
    #[serde(serialize_with = "as_text")]
    pub(crate) run: RunId,
    pub(crate) sequence: u64,
    /// Whose it is, as the ledger has it; several where it cannot be told, empty where it is not in the ledger.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) recipient: String,
    /// Where it was found, where that is known.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) at: String,
}

fn as_text<S: Serializer>(run: &RunId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(run)
}

impl Held {
    /// Good if nothing is lost, doubled or damaged.
    pub(crate) fn verdict(&self) -> Verdict {
        Verdict::of(self.lost == 0 && self.doubled == 0 && self.damaged == 0)
    }
}

impl fmt::Display for Held {
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

fn write_examples(f: &mut fmt::Formatter<'_>, kind: &str, examples: &[Example], count: u64) -> fmt::Result {
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

impl fmt::Display for Example {
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
