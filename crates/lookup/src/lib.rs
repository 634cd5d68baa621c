//! Tables: things that can be looked up by a key, behind one batched trait, and the directory of recipients on top.
//!
//! A table answers each key with [`Found`](Answer::Found), [`NotFound`](Answer::NotFound) or
//! [`Unavailable`](Answer::Unavailable). The last means that it does not know; no layer ever turns it into NotFound,
//! so that an outage of a directory puts mail off and never bounces it. One that was not there before the outage is
//! [`Unconfirmed`](Answer::Unconfirmed), which is Unavailable with something to go by. Keys are folded to lower
//! case and NFC by the table.

mod arena;
pub mod backend;
pub mod cdb;
pub mod chain;
pub mod credentials;
pub mod directory;
pub mod dns;
pub mod dnsbl;
mod event;
pub mod fixed;
pub mod layers;
pub mod ldap;
pub mod postgres;
pub mod regexp;
pub mod replica;
pub mod sqlite;
mod stats;
pub mod text;
pub mod unavailable;

use std::pin::Pin;
use std::time::Duration;

pub use event::{Event, Events};
pub use stats::{Down, ReplicaStats, Stats};
use unicode_normalization::UnicodeNormalization;

/// What a table says of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The key is there, with these values (there may be none: that it is there can be all there is to say).
    Found(Vec<String>),
    /// The key is not there, for certain.
    NotFound,
    /// The table cannot say; why, for the log.
    Unavailable(String),
    /// The table cannot say; but when it last could, the key was not there. Why, for the log. Whoever has no use for that
    /// takes it as [`Unavailable`](Answer::Unavailable): it never makes anything unknown.
    Unconfirmed(String),
}

/// Answers to come, one for each key, in the order of the keys.
pub type Answers<'a> = Pin<Box<dyn Future<Output = Vec<Answer>> + Send + 'a>>;

/// An answer to come, and where it came from.
pub type Tracing<'a> = Pin<Box<dyn Future<Output = Trace> + Send + 'a>>;

/// Something that can be looked up.
pub trait Table: Send + Sync {
    /// Its name in the configuration.
    fn name(&self) -> &str;

    /// Asks for all keys at once: a table behind a network sends them together.
    fn lookup<'a>(&'a self, keys: &'a [&'a str]) -> Answers<'a>;

    /// The same for one key, told with the layer that gave the answer.
    fn trace<'a>(&'a self, key: &'a str) -> Tracing<'a> {
        Box::pin(async move {
            let answer = self.lookup(&[key]).await.pop();
            let answer = answer.unwrap_or_else(|| Answer::Unavailable(format!("table '{}': no answer", self.name())));
            Trace { answer, layer: Layer::Memory }
        })
    }

    /// Whether it is asked for the whole of a subject alone, and not for parts of it such as a parent domain. Tables of
    /// patterns are: a pattern that fits a whole address may fit a part of another one.
    fn is_asked_whole(&self) -> bool {
        false
    }

    /// Lets the copy of a directory go through with a refresh that it held back, since it would remove too much. False if
    /// nothing is held back here.
    fn accept_removals(&self) -> bool {
        false
    }

    /// What it counts of itself; None for one that counts nothing.
    fn stats(&self) -> Option<Stats> {
        None
    }
}

/// An answer, and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// What the table says.
    pub answer: Answer,
    /// Which layer said it.
    pub layer: Layer,
}

/// A layer of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// A table that is in memory as a whole.
    Memory,
    /// The cache.
    Cache {
        /// How long ago the backend said so.
        age: Duration,
    },
    /// The cache, beyond its time, since the backend failed.
    Stale {
        /// How long ago the backend said so.
        age: Duration,
    },
    /// The backend was asked.
    Backend,
    /// The backend is down and was not asked.
    Breaker,
    /// The local copy of a directory.
    Replica {
        /// How long ago it was known to be as its master; zero while changes arrive as they are made.
        age: Duration,
    },
}

/// The form in which keys are kept and asked for: lower case, and NFC, in which two spellings of one letter are equal (RFC
/// 6532 section 3.1).
pub fn fold(key: &str) -> String {
    if key.is_ascii() {
        return key.to_ascii_lowercase();
    }
    let composed: String = key.nfc().collect();
    composed.to_lowercase().nfc().collect()
}

/// The answers of a table that is in memory: ready at once, nothing is awaited.
fn answer_now<'a>(keys: &[&str], answer: impl Fn(&str) -> Answer) -> Answers<'a> {
    Box::pin(std::future::ready(keys.iter().map(|key| answer(&fold(key))).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_look_the_same_are_the_same() {
        let folded = [
            ("Bob+A@Example.ORG", "bob+a@example.org"),
            ("Jos\u{c9}@x.org", "jos\u{e9}@x.org"),
            ("jose\u{301}@x.org", "jos\u{e9}@x.org"),
            ("JOSE\u{301}@x.org", "jos\u{e9}@x.org"),
            // Two marks in either order, and a letter that only decomposes.
            ("s\u{307}\u{323}@x.org", "\u{1e69}@x.org"),
            ("s\u{323}\u{307}@x.org", "\u{1e69}@x.org"),
            ("\u{212b}@x.org", "\u{e5}@x.org"),
        ];
        for (key, expected) in folded {
            assert_eq!(fold(key), expected, "{key}");
            assert_eq!(fold(expected), expected, "{key}");
        }
    }
}
