//! Tables in a PostgreSQL database.
//!
//! One query looks up many keys: `$1` is the array of keys, the first column is the key of a row,
//! in any case, and the other columns are values.
//!
//! ```sql
//! SELECT lower(address), target, second_target FROM aliases WHERE lower(address) = ANY($1)
//! ```
//!
//! | rows                         | answer                                                    |
//! |------------------------------|-----------------------------------------------------------|
//! | none with the key            | NotFound                                                  |
//! | one or more with the key     | Found, with the values of all rows in order               |
//! | with NULL as a value         | the value is skipped                                      |
//! | without further columns      | Found, without values                                     |
//! | with a key not in `$1`       | the request fails, because the query is wrong             |
//!
//! All columns must be text. Only the key itself is Unavailable if the database rejects it, for
//! example for its encoding. Every step has a timeout, after which the connection is closed and the
//! query cancelled.

mod connection;
mod error;
mod rows;
mod tls;
mod url;

use std::cell::RefCell;
use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use crate::LookupAnswer;
use crate::backend::{Backend, BackendFailure, BackendFuture, ProbeFuture};
use connection::{Connection, Connector};
use error::RequestError;

pub use url::{PostgresUrl, PostgresUrlError};

/// Configuration of a PostgreSQL table.
#[derive(Clone)]
pub struct PostgresConfig {
    /// The server. Of several hosts, the first that accepts a connection is used.
    pub url: PostgresUrl,
    /// Overrides the password in the URL.
    pub password: Option<Box<str>>,
    /// CA certificates in PEM; None: those of the system. With TLS the certificate is always
    /// verified.
    pub ca_file: Option<PathBuf>,
    /// The query; `$1` is the array of keys, as `text[]`.
    pub query: Box<str>,
    /// Timeout of one request.
    pub timeout: Duration,
    /// Timeout for connecting and logging in, per address.
    pub connect_timeout: Duration,
    /// Maximum number of connections, at least 1.
    pub connections: usize,
}

/// Why a table cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum PostgresConfigError {
    /// A query without keys would return the same for all requests.
    #[error("the query has no $1, the array of keys: ... WHERE address = ANY($1)")]
    NoKeys,
    /// The CA file cannot be read.
    #[error("{}: {what}", path.display())]
    Certificates {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The TLS configuration is not possible.
    #[error("{0}")]
    Tls(#[from] rustls::Error),
}

/// The backend for a PostgreSQL table.
pub struct Postgres {
    config: PostgresConfig,
    connector: Connector,
    /// Idle connections, the most recently used one last.
    idle: RefCell<Vec<Connection>>,
    /// One permit per connection.
    permits: Semaphore,
}

impl Postgres {
    /// Creates the backend without connecting.
    pub fn new(config: PostgresConfig) -> Result<Self, PostgresConfigError> {
        if !config.query.contains("$1") {
            return Err(PostgresConfigError::NoKeys);
        }
        let connector = Connector {
            settings: config.url.settings(config.password.as_deref(), config.connect_timeout),
            targets: config.url.targets(),
            tls: tls::connector(&config)?,
            timeout: config.connect_timeout,
        };
        let permits = Semaphore::new(config.connections.max(1));
        Ok(Postgres { config, connector, idle: RefCell::default(), permits })
    }

    /// If a key makes the request fail, splits the keys in halves until that key is alone.
    async fn answers(&self, keys: &[&str]) -> Result<Vec<LookupAnswer>, BackendFailure> {
        let deadline = Instant::now() + self.config.timeout;
        let mut answers = vec![LookupAnswer::NotFound; keys.len()];
        let mut open = Vec::from_iter((!keys.is_empty()).then_some(0..keys.len()));
        while let Some(range) = open.pop() {
            let asked = &keys[range.clone()];
            match self.with_connection(async |connection| connection.ask(&self.config.query, asked).await).await {
                Ok(found) => answers[range].clone_from_slice(&found),
                Err(RequestError::Keys(failure)) if range.len() == 1 => {
                    answers[range.start] = LookupAnswer::Unavailable(failure.to_string());
                }
                Err(RequestError::Keys(_)) if Instant::now() < deadline => {
                    let middle = range.start + range.len() / 2;
                    open.extend([range.start..middle, middle..range.end]);
                }
                Err(trouble) => return Err(trouble.into_failure()),
            }
        }
        Ok(answers)
    }

    /// Runs `ask` on an idle connection, or on a new one if there is none or it turns out to be
    /// closed.
    async fn with_connection<T>(
        &self,
        ask: impl AsyncFn(&Connection) -> Result<T, RequestError>,
    ) -> Result<T, RequestError> {
        let Ok(Ok(_turn)) = timeout(self.config.timeout, self.permits.acquire()).await else {
            return Err(RequestError::Refused(
                self.failure(format!("no connection free within {:?}", self.config.timeout)),
            ));
        };
        if let Some(connection) = self.take_idle() {
            match self.ask_on(connection, &ask).await {
                Err(RequestError::Connection(_)) => {}
                other => return other,
            }
        }
        let connection = self.connector.connect().await.map_err(|what| RequestError::Refused(self.failure(what)))?;
        self.ask_on(connection, &ask).await
    }

    /// Takes an idle connection.
    fn take_idle(&self) -> Option<Connection> {
        let mut idle = self.idle.borrow_mut();
        idle.retain(|connection| !connection.is_closed());
        idle.pop()
    }

    /// Runs `ask` on this connection and keeps the connection if it is still usable.
    async fn ask_on<T>(
        &self,
        connection: Connection,
        ask: &impl AsyncFn(&Connection) -> Result<T, RequestError>,
    ) -> Result<T, RequestError> {
        let time = self.config.timeout;
        let Ok(result) = timeout(time, ask(&connection)).await else {
            // If the server is gone the idle connections are too; if it is slow, losing them costs
            // little.
            self.idle.borrow_mut().clear();
            let failure = BackendFailure::new(connection.at.clone(), format!("no answer within {time:?}"));
            connection.cancel(self.connector.tls.clone(), self.config.connect_timeout);
            return Err(RequestError::Refused(failure));
        };
        match result {
            Err(RequestError::Connection(_)) => self.idle.borrow_mut().clear(),
            Err(RequestError::InvalidAnswer(_)) => {}
            Ok(_) | Err(RequestError::Keys(_) | RequestError::Refused(_)) => self.idle.borrow_mut().push(connection),
        }
        result
    }

    fn failure(&self, what: String) -> BackendFailure {
        BackendFailure::new(self.config.url.to_string(), what)
    }
}

impl Backend for Postgres {
    fn ask<'a>(&'a self, keys: &'a [Box<str>]) -> BackendFuture<'a> {
        Box::pin(async move {
            // PostgreSQL text cannot contain NUL, so such a key does not exist and must not make
            // the request fail.
            let can_be_there = |key: &&str| !key.contains('\0');
            let keys = || keys.iter().map(|key| &**key);
            let asked: Vec<&str> = keys().filter(can_be_there).collect();
            let mut found = self.answers(&asked).await?.into_iter();
            let found = keys().map(|key| Some(key).filter(can_be_there).and_then(|_| found.next()));
            Ok(found.map(|answer| answer.unwrap_or(LookupAnswer::NotFound)).collect())
        })
    }

    fn probe(&self) -> ProbeFuture<'_> {
        Box::pin(async {
            self.with_connection(async |connection| connection.probe().await).await.map_err(RequestError::into_failure)
        })
    }
}
