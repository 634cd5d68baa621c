//! Data that differs from what was written: a count and the first examples.
//!
//! Damage is a result, not an error: the run continues, and the verdict is bad. At most
//! [`EXAMPLES_MAX`] examples are kept, so that a file system that loses everything fills neither
//! memory nor report.

use std::fmt;

use serde::Serialize;

/// Examples that are kept.
const EXAMPLES_MAX: usize = 10;

/// The number of findings, and examples.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Damage {
    count: u64,
    examples: Vec<String>,
}

impl Damage {
    pub(crate) fn record(&mut self, what: String) {
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
