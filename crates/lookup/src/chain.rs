//! Several tables searched in order; the first that has a key answers.
//!
//! | answer of a table | result                                                            |
//! |-------------------|-------------------------------------------------------------------|
//! | Found             | Found                                                             |
//! | NotFound          | the next table decides; NotFound after the last one               |
//! | Unavailable       | Unavailable: the table might have hidden the answers of later ones |
//! | Unconfirmed       | Unconfirmed from the last table, otherwise Unavailable            |
//!
//! Each table is asked once, for all keys that are still open.

use std::sync::Arc;

use crate::{LookupAnswer, LookupFuture, Table, TableLayer, TraceFuture, TracedAnswer};

/// A list of tables that acts as one.
#[derive(Clone)]
pub struct ChainedTable {
    name: String,
    tables: Vec<Arc<dyn Table>>,
}

impl ChainedTable {
    /// Creates the table `name` that searches `tables` in order.
    pub fn new(name: &str, tables: Vec<Arc<dyn Table>>) -> Self {
        ChainedTable { name: name.to_owned(), tables }
    }

    async fn answers(&self, keys: &[&str]) -> Vec<LookupAnswer> {
        let mut answers = vec![LookupAnswer::NotFound; keys.len()];
        let mut open: Vec<usize> = (0..keys.len()).collect();
        for (number, table) in (1..).zip(&self.tables) {
            if open.is_empty() {
                break;
            }
            let asked: Vec<&str> = open.iter().map(|&place| keys[place]).collect();
            let mut given = table.lookup(&asked).await.into_iter();
            for &place in &open {
                let answer = given.next().unwrap_or_else(|| missing_answer(&**table));
                answers[place] = self.answer_at_position(answer, number);
            }
            open.retain(|&place| answers[place] == LookupAnswer::NotFound);
        }
        answers
    }

    /// The chain's answer if table `number`, counted from 1, gives this answer. An unconfirmed
    /// NotFound says nothing about the tables after it.
    fn answer_at_position(&self, answer: LookupAnswer, number: usize) -> LookupAnswer {
        match answer {
            LookupAnswer::Unconfirmed(why) if number < self.tables.len() => LookupAnswer::Unavailable(why),
            answer => answer,
        }
    }
}

impl Table for ChainedTable {
    fn name(&self) -> &str {
        &self.name
    }

    fn lookup<'a>(&'a self, keys: &'a [&'a str]) -> LookupFuture<'a> {
        Box::pin(self.answers(keys))
    }

    /// False as soon as one of the tables takes parts of keys.
    fn whole_keys_only(&self) -> bool {
        self.tables.iter().all(|table| table.whole_keys_only())
    }

    /// Reports the layer of the deciding table; that is the last one if no table has the key.
    fn trace<'a>(&'a self, key: &'a str) -> TraceFuture<'a> {
        Box::pin(async move {
            let mut trace = TracedAnswer { answer: LookupAnswer::NotFound, layer: TableLayer::Memory };
            for (number, table) in (1..).zip(&self.tables) {
                let TracedAnswer { answer, layer } = table.trace(key).await;
                trace = TracedAnswer { answer: self.answer_at_position(answer, number), layer };
                if trace.answer != LookupAnswer::NotFound {
                    break;
                }
            }
            trace
        })
    }
}

fn missing_answer(table: &dyn Table) -> LookupAnswer {
    LookupAnswer::Unavailable(format!("table '{}' returned no answer for a key", table.name()))
}
