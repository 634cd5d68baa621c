//! A table that gives every key the same answer, for example for a domain whose addresses all go to
//! one recipient.

use crate::{Answer, Answers, Table, answer_now};

/// A table in which every key has the same values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fixed {
    name: String,
    values: Vec<String>,
}

impl Fixed {
    /// Creates the table `name` with these values.
    pub fn new(name: &str, values: Vec<String>) -> Self {
        Fixed { name: name.to_owned(), values }
    }
}

impl Table for Fixed {
    fn name(&self) -> &str {
        &self.name
    }

    fn lookup<'a>(&'a self, keys: &'a [&'a str]) -> Answers<'a> {
        answer_now(keys, |_| Answer::Found(self.values.clone()))
    }
}
