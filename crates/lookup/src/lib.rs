//! Tables: things that can be looked up by a key, behind one batched trait, and the directory of recipients on top.
//!
//! A table answers each key with [`Found`](Answer::Found), [`NotFound`](Answer::NotFound) or
//! [`Unavailable`](Answer::Unavailable). The last means that it does not know; no layer ever turns it into NotFound,
//! so that an outage of a directory puts mail off and never bounces it. Keys are folded to lower case by the table.

pub mod cdb;
pub mod directory;
pub mod text;

use std::pin::Pin;

/// What a table says of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The key is there, with these values (there may be none: that it is there can be all there is to say).
    Found(Vec<String>),
    /// The key is not there, for certain.
    NotFound,
    /// The table cannot say; why, for the log.
    Unavailable(String),
}

/// Answers to come, one for each key, in the order of the keys.
pub type Answers<'a> = Pin<Box<dyn Future<Output = Vec<Answer>> + Send + 'a>>;

/// Something that can be looked up.
pub trait Table: Send + Sync {
    /// Its name in the configuration.
    fn name(&self) -> &str;

    /// Asks for all keys at once: a table behind a network sends them together.
    fn lookup<'a>(&'a self, keys: &'a [&'a str]) -> Answers<'a>;
}

/// The form in which keys are kept and asked for.
fn fold(key: &str) -> String {
    key.to_lowercase()
}

/// The answers of a table that is in memory: ready at once, nothing is awaited.
fn answer_now<'a>(keys: &[&str], answer: impl Fn(&str) -> Answer) -> Answers<'a> {
    Box::pin(std::future::ready(keys.iter().map(|key| answer(&fold(key))).collect()))
}
