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

use crate::{Answer, Answers, Layer, Table, Trace, Tracing};

/// A list of tables that acts as one.
#[derive(Clone)]
pub struct Chain {
    name: String,
    tables: Vec<Arc<dyn Table>>,
}

impl Chain {
    /// Creates the table `name` that searches `tables` in order.
    pub fn new(name: &str, tables: Vec<Arc<dyn Table>>) -> Self {
        Chain { name: name.to_owned(), tables }
    }

    async fn answers(&self, keys: &[&str]) -> Vec<Answer> {
        let mut answers = vec![Answer::NotFound; keys.len()];
        let mut open: Vec<usize> = (0..keys.len()).collect();
        for (number, table) in (1..).zip(&self.tables) {
            if open.is_empty() {
                break;
            }
            let asked: Vec<&str> = open.iter().map(|&place| keys[place]).collect();
            let mut given = table.lookup(&asked).await.into_iter();
            for &place in &open {
                let answer = given.next().unwrap_or_else(|| unanswered(&**table));
                answers[place] = self.heard(answer, number);
            }
            open.retain(|&place| answers[place] == Answer::NotFound);
        }
        answers
    }

    /// The chain's answer if table `number`, counted from 1, gives this answer. An unconfirmed
    /// NotFound says nothing about the tables after it.
    fn heard(&self, answer: Answer, number: usize) -> Answer {
        match answer {
            Answer::Unconfirmed(why) if number < self.tables.len() => Answer::Unavailable(why),
            answer => answer,
        }
    }
}

impl Table for Chain {
    fn name(&self) -> &str {
        &self.name
    }

    fn lookup<'a>(&'a self, keys: &'a [&'a str]) -> Answers<'a> {
        Box::pin(self.answers(keys))
    }

    /// False as soon as one of the tables takes parts of keys.
    fn is_asked_whole(&self) -> bool {
        self.tables.iter().all(|table| table.is_asked_whole())
    }

    /// Reports the layer of the deciding table; that is the last one if no table has the key.
    fn trace<'a>(&'a self, key: &'a str) -> Tracing<'a> {
        Box::pin(async move {
            let mut trace = Trace { answer: Answer::NotFound, layer: Layer::Memory };
            for (number, table) in (1..).zip(&self.tables) {
                let Trace { answer, layer } = table.trace(key).await;
                trace = Trace { answer: self.heard(answer, number), layer };
                if trace.answer != Answer::NotFound {
                    break;
                }
            }
            trace
        })
    }
}

fn unanswered(table: &dyn Table) -> Answer {
    Answer::Unavailable(format!("table '{}' returned no answer for a key", table.name()))
}
