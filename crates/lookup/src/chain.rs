//! Tables one behind the other: the first that has a key speaks for it.
//!
//! | a table says | the chain                                                          |
//! |--------------|--------------------------------------------------------------------|
//! | Found        | answers so                                                         |
//! | NotFound     | asks the next table; NotFound behind the last one                  |
//! | Unavailable  | answers so: what the table would have said may be hidden otherwise |
//! | Unconfirmed  | the same, where it is the last one; Unavailable where others follow |
//!
//! Each table is asked once, for all keys that are still open.

use std::sync::Arc;

use crate::{Answer, Answers, Layer, Table, Trace, Tracing};

/// Several tables as one.
#[derive(Clone)]
pub struct Chain {
    name: String,
    tables: Vec<Arc<dyn Table>>,
}

impl Chain {
    /// The table `name`, in which these stand one behind the other.
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

    /// What the table of this number, from 1, says: that it has not the key says nothing of those behind.
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

    /// Parts are asked for as soon as one of the tables has them as keys.
    fn is_asked_whole(&self) -> bool {
        self.tables.iter().all(|table| table.is_asked_whole())
    }

    /// The layer is that of the table that decided: the last one, where none has the key.
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
    Answer::Unavailable(format!("table '{}' left a question without an answer", table.name()))
}
