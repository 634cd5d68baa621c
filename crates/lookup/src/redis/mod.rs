//! Tables in Redis, and in servers that speak its protocol (Valkey, KeyDB).
//!
//! | command     | found if                         | values                          |
//! |-------------|----------------------------------|---------------------------------|
//! | `get`       | the key exists                   | its text                        |
//! | `hget`      | the hash has the field           | its text                        |
//! | `sismember` | the set has the member           | none                            |
//! | `smembers`  | the set exists                   | its members                     |
//!
//! Names of keys and fields are templates of the key that is looked up
//! ([`KeyTemplate`](crate::KeyTemplate)); a key that lacks a part is NotFound without a request.
//! Several keys share a request: their commands are sent together. MGET is not used, since it says
//! "not found" of keys of another type. Such a key, and one whose value is not UTF-8, is
//! Unavailable; any other error of the server fails the request.
//!
//! Every step has a timeout, after which the connection is closed.

mod connection;
mod reply;
mod url;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio_rustls::TlsConnector;

use crate::backend::{Backend, BackendFuture, ProbeFuture};
use crate::ca_certificates::{CaCertificatesError, tls_config_if_needed};
use crate::connection_pool::ConnectionPool;
use crate::request_error::RequestError;
use crate::{KeyTemplate, LookupAnswer};
use connection::{Connection, Connector};

pub use url::{RedisUrl, RedisUrlError};

/// Configuration of a Redis table.
#[derive(Clone)]
pub struct RedisConfig {
    /// The servers. The first that accepts a connection is used.
    pub url: RedisUrl,
    /// Overrides the password in the URL.
    pub password: Option<Box<str>>,
    /// CA certificates in PEM; None: those of the system.
    pub ca_file: Option<PathBuf>,
    /// The command for one key.
    pub command: RedisCommand,
    /// Timeout of one request.
    pub timeout: Duration,
    /// Timeout for connecting and logging in, per address.
    pub connect_timeout: Duration,
    /// Maximum number of connections, at least 1.
    pub connections: usize,
}

/// What is asked for a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisCommand {
    /// What is asked.
    pub kind: RedisCommandKind,
    /// The name of the key in Redis.
    pub key: KeyTemplate,
}

/// A command, and what it takes besides the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedisCommandKind {
    /// The text of a key.
    Get,
    /// The text of this field of a hash.
    Hget(KeyTemplate),
    /// Whether a set has this member.
    Sismember(KeyTemplate),
    /// All members of a set.
    Smembers,
}

impl RedisCommand {
    /// Whether it asks the same for all keys, which would make all of them exist or none.
    pub fn is_constant(&self) -> bool {
        self.key.is_constant()
            && match &self.kind {
                RedisCommandKind::Get | RedisCommandKind::Smembers => true,
                RedisCommandKind::Hget(field) | RedisCommandKind::Sismember(field) => field.is_constant(),
            }
    }

    /// The words of the command for a key; None if the key lacks a part.
    fn words(&self, key: &str) -> Option<Vec<String>> {
        let (name, field) = match &self.kind {
            RedisCommandKind::Get => ("GET", None),
            RedisCommandKind::Hget(field) => ("HGET", Some(field.fill(key)?)),
            RedisCommandKind::Sismember(member) => ("SISMEMBER", Some(member.fill(key)?)),
            RedisCommandKind::Smembers => ("SMEMBERS", None),
        };
        Some([name.to_owned(), self.key.fill(key)?].into_iter().chain(field).collect())
    }
}

/// Reads the line that begins a reply. For fuzzing.
#[doc(hidden)]
pub fn read_line(octets: &[u8]) {
    let _ = reply::ReplyLine::read(octets);
}

/// The backend for a Redis table.
pub struct Redis {
    command: RedisCommand,
    pool: ConnectionPool<Connector>,
}

impl Redis {
    /// Creates the backend without connecting.
    pub fn new(config: RedisConfig) -> Result<Self, CaCertificatesError> {
        let tls = config.url.has_tls().then(|| tls_config_if_needed(config.ca_file.as_deref())).transpose()?;
        let connector = Connector::new(&config, tls.map(|tls| TlsConnector::from(Arc::new(tls))));
        let pool = ConnectionPool::new(connector, config.url.to_string(), config.timeout, config.connections);
        Ok(Redis { command: config.command, pool })
    }
}

impl Backend for Redis {
    fn ask<'a>(&'a self, keys: &'a [Box<str>]) -> BackendFuture<'a> {
        Box::pin(async move {
            let commands: Vec<Option<Vec<String>>> = keys.iter().map(|key| self.command.words(key)).collect();
            let asked: Vec<&[String]> = commands.iter().flatten().map(Vec::as_slice).collect();
            if asked.is_empty() {
                return Ok(vec![LookupAnswer::NotFound; keys.len()]);
            }
            let ask = async |connection: &mut Connection| connection.ask(&asked).await;
            let answers = self.pool.with_connection(ask).await.map_err(RequestError::into_failure)?;
            let mut answers = answers.into_iter();
            let answer = |command: &Option<_>| command.as_ref().and_then(|_| answers.next());
            Ok(commands.iter().map(answer).map(|answer| answer.unwrap_or(LookupAnswer::NotFound)).collect())
        })
    }

    fn probe(&self) -> ProbeFuture<'_> {
        Box::pin(self.pool.probe())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_has_the_parts_of_the_key() {
        let template = |text: &str| text.parse::<KeyTemplate>().unwrap();
        let words = |kind, name: &str, key: &str| RedisCommand { kind, key: template(name) }.words(key);
        let all = |words: &[&str]| Some(words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        assert_eq!(words(RedisCommandKind::Get, "mail:{key}", "b c@x\r\n"), all(&["GET", "mail:b c@x\r\n"]));
        let field = RedisCommandKind::Hget(template("{local}"));
        assert_eq!(words(field.clone(), "{domain}", "bob@x"), all(&["HGET", "x", "bob"]));
        assert_eq!(words(field.clone(), "{domain}", "bob"), None);
        assert!(RedisCommand { kind: field, key: template("users") }.words("bob").is_some());
        assert!(RedisCommand { kind: RedisCommandKind::Smembers, key: template("users") }.is_constant());
        let member = RedisCommandKind::Sismember(template("{key}"));
        assert!(!RedisCommand { kind: member, key: template("users") }.is_constant());
    }
}
