//! A table that always answers Unavailable, for a reason given in the configuration. It stands in
//! for a table that is not written yet: mail that depends on it is deferred, not lost or rejected.
//! It covers all keys or those of a text table.

use crate::text::TextTable;
use crate::{LookupAnswer, LookupFuture, Table, ready_answers};

/// A table whose answers are all Unavailable.
#[derive(Debug)]
pub struct UnavailableTable {
    name: String,
    reason: String,
    /// The keys it covers; None: all.
    keys: Option<TextTable>,
}

impl UnavailableTable {
    /// Creates the table `name` for these keys, or for all keys if None. `reason` is for the log.
    pub fn new(name: &str, reason: &str, keys: Option<TextTable>) -> Self {
        UnavailableTable { name: name.to_owned(), reason: reason.to_owned(), keys }
    }

    fn answer(&self, key: &str) -> LookupAnswer {
        match &self.keys {
            Some(keys) if !keys.has(key) => LookupAnswer::NotFound,
            _ => LookupAnswer::Unavailable(format!("table '{}': {}", self.name, self.reason)),
        }
    }
}

impl Table for UnavailableTable {
    fn name(&self) -> &str {
        &self.name
    }

    fn lookup<'a>(&'a self, keys: &'a [&'a str]) -> LookupFuture<'a> {
        ready_answers(keys, |key| self.answer(key))
    }
}
