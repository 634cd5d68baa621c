//! Lookup tables behind one batched trait, and the recipient directory built on them.
//!
//! A table answers each key with [`Found`](LookupAnswer::Found),
//! [`NotFound`](LookupAnswer::NotFound) or [`Unavailable`](LookupAnswer::Unavailable). No layer
//! turns Unavailable into NotFound, so an outage defers mail and never bounces it.
//! [`Unconfirmed`](LookupAnswer::Unconfirmed) is an Unavailable whose key was not found before the
//! outage. Tables fold keys to lower case and NFC.

pub mod arena;
pub mod backend;
mod byte_stream;
mod ca_certificates;
pub mod cdb;
pub mod chain;
mod connection_pool;
pub mod conversion;
pub mod directory;
pub mod dnsbl;
mod event;
pub mod fixed;
pub mod key_part;
pub mod layers;
pub mod mysql;
pub mod postgres;
pub mod redis;
pub mod regexp;
mod request_error;
mod server_url;
pub mod sqlite;
mod stats;
mod template;
pub mod text;
pub mod unavailable;

use std::pin::Pin;
use std::time::Duration;

pub use byte_stream::ByteStream;
pub use ca_certificates::{CaCertificatesError, tls_config};
pub use event::{TableEvent, TableEventHandler};
pub use server_url::{ServerAddress, ServerUrlError};
pub use stats::{BackendDown, LookupStats, ReplicaStats};
pub use template::{KeyTemplate, TemplateError};
use unicode_normalization::UnicodeNormalization;

/// The answer of a table for one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LookupAnswer {
    /// The key exists and has these values. There may be none.
    Found(Vec<String>),
    /// The key does not exist.
    NotFound,
    /// The table has no answer now. Holds the reason, for the log.
    Unavailable(String),
    /// The table has no answer now, but did not find the key when it last had one. Holds the
    /// reason, for the log. Treat it as [`Unavailable`](LookupAnswer::Unavailable), never as
    /// NotFound, unless the difference matters.
    Unconfirmed(String),
}

/// Resolves to one answer per key, in the order of the keys.
pub type LookupFuture<'a> = Pin<Box<dyn Future<Output = Vec<LookupAnswer>> + Send + 'a>>;

/// Resolves to the answer for one key and its source.
pub type TraceFuture<'a> = Pin<Box<dyn Future<Output = TracedAnswer> + Send + 'a>>;

/// A lookup table.
pub trait Table: Send + Sync {
    /// The table's name in the configuration.
    fn name(&self) -> &str;

    /// Looks up all keys together; a remote table sends them in one request.
    fn lookup<'a>(&'a self, keys: &'a [&'a str]) -> LookupFuture<'a>;

    /// Looks up one key and reports which layer answered.
    fn trace<'a>(&'a self, key: &'a str) -> TraceFuture<'a> {
        Box::pin(async move {
            let answer = self.lookup(&[key]).await.pop();
            let answer =
                answer.unwrap_or_else(|| LookupAnswer::Unavailable(format!("table '{}': no answer", self.name())));
            TracedAnswer { answer, layer: TableLayer::Memory }
        })
    }

    /// Whether the table takes complete keys only, and not parts such as the parent domain of an
    /// address. True for pattern tables: a pattern meant for one whole address may match a part of
    /// another.
    fn whole_keys_only(&self) -> bool {
        false
    }

    /// Tells a replica to carry out the removals that it holds back. Returns false if it holds back
    /// none.
    fn accept_removals(&self) -> bool {
        false
    }

    /// The table's counters, if it keeps any.
    fn stats(&self) -> Option<LookupStats> {
        None
    }
}

/// An answer and its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracedAnswer {
    /// The answer.
    pub answer: LookupAnswer,
    /// The layer that gave it.
    pub layer: TableLayer,
}

/// A layer of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableLayer {
    /// A table held in memory.
    Memory,
    /// The cache.
    Cache {
        /// Time since the backend gave the answer.
        age: Duration,
    },
    /// An expired cache entry, used because the backend failed.
    Stale {
        /// Time since the backend gave the answer.
        age: Duration,
    },
    /// The backend.
    Backend,
    /// The circuit breaker: the backend is down and was not asked.
    Breaker,
    /// The local copy of an LDAP directory.
    Replica {
        /// Time since the copy was last known to match the server; zero while it receives changes
        /// as they happen.
        age: Duration,
    },
}

/// Folds a key to lower case and NFC, which makes different encodings of the same text equal (RFC
/// 6532 section 3.1).
pub fn fold_key(key: &str) -> String {
    if key.is_ascii() {
        return key.to_ascii_lowercase();
    }
    let composed: String = key.nfc().collect();
    composed.to_lowercase().nfc().collect()
}

/// The answers of an in-memory table, ready without waiting.
fn ready_answers<'a>(keys: &[&str], answer: impl Fn(&str) -> LookupAnswer) -> LookupFuture<'a> {
    Box::pin(std::future::ready(keys.iter().map(|key| answer(&fold_key(key))).collect()))
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
            // Combining marks in either order, and a character that only decomposes.
            ("s\u{307}\u{323}@x.org", "\u{1e69}@x.org"),
            ("s\u{323}\u{307}@x.org", "\u{1e69}@x.org"),
            ("\u{212b}@x.org", "\u{e5}@x.org"),
        ];
        for (key, expected) in folded {
            assert_eq!(fold_key(key), expected, "{key}");
            assert_eq!(fold_key(expected), expected, "{key}");
        }
    }
}
