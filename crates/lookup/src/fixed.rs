//! A table that gives every key the same answer, for example for a domain whose addresses all go to
//! one recipient.

use crate::{LookupAnswer, LookupFuture, Table, ready_answers};

/// A table in which every key has the same values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaticTable {
    name: String,
    values: Vec<String>,
}

impl StaticTable {
    /// Creates the table `name` with these values.
    pub fn new(name: &str, values: Vec<String>) -> Self {
        StaticTable { name: name.to_owned(), values }
    }
}

impl Table for StaticTable {
    fn name(&self) -> &str {
        &self.name
    }

    fn lookup<'a>(&'a self, keys: &'a [&'a str]) -> LookupFuture<'a> {
        ready_answers(keys, |_| LookupAnswer::Found(self.values.clone()))
    }
}
