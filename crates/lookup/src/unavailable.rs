//! A table that always answers Unavailable, for a reason given in the configuration. It stands in
//! for a table that is not written yet: mail that depends on it is deferred, not lost or rejected.
//! It covers all keys or those of a text table.

use crate::text::Text;
use crate::{Answer, Answers, Table, answer_now};

/// A table whose answers are all Unavailable.
#[derive(Debug)]
pub struct Unavailable {
    name: String,
    reason: String,
    /// The keys it covers; None: all.
    keys: Option<Text>,
}

impl Unavailable {
    /// Creates the table `name` for these keys, or for all keys if None. `reason` is for the log.
    pub fn new(name: &str, reason: &str, keys: Option<Text>) -> Self {
        Unavailable { name: name.to_owned(), reason: reason.to_owned(), keys }
    }

    fn answer(&self, key: &str) -> Answer {
        match &self.keys {
            Some(keys) if !keys.has(key) => Answer::NotFound,
            _ => Answer::Unavailable(format!("table '{}': {}", self.name, self.reason)),
        }
    }
}

impl Table for Unavailable {
    fn name(&self) -> &str {
        &self.name
    }

    fn lookup<'a>(&'a self, keys: &'a [&'a str]) -> Answers<'a> {
        answer_now(keys, |key| self.answer(key))
    }
}
