//! What was not found as it was written: how often, and the first examples.
//!
//! Damage is a finding and no error: the run goes on, so that its extent is known, and the verdict is bad in the end. A
//! file system that loses everything fills neither the memory nor the report: all is counted, [`EXAMPLES_MAX`] are named.

use std::fmt;

use serde::Serialize;

/// More examples would tell nobody more.
const EXAMPLES_MAX: usize = 10;

/// What is wrong.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Damage {
    count: u64,
    examples: Vec<String>,
}

impl Damage {
    pub(crate) fn found(&mut self, what: String) {
        self.count += 1;
        if self.examples.len() < EXAMPLES_MAX {
            self.examples.push(what);
        }
    }

    pub(crate) fn is_none(&self) -> bool {
        self.count == 0
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "damaged: {}", self.count)?;
        self.examples.iter().try_for_each(|example| writeln!(f, "  {example}"))
    }
}
