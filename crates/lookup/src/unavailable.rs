//! A table that has no answer to its keys, for a reason that the configuration gives. It stands where something else is
//! still to be written: mail that depends on it is put off, as during an outage, and neither lost nor refused. Its keys are
//! those of a text table, or all.

use crate::text::Text;
use crate::{Answer, Answers, Table, answer_now};

/// A table that cannot answer.
#[derive(Debug)]
pub struct Unavailable {
    name: String,
    reason: String,
    /// None: no key has an answer.
    keys: Option<Text>,
}

impl Unavailable {
    /// The table `name`, which cannot answer these keys; without any, none at all. `reason` is for the log.
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
