//! A table that answers every key alike: for a domain whose addresses all lead to one place.

use crate::{Answer, Answers, Table, answer_now};

/// A table in which every key is, with the same values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fixed {
    name: String,
    values: Vec<String>,
}

impl Fixed {
    /// The table `name`.
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
