//! Tables in a PostgreSQL database.
//!
//! The query asks for many keys at once: `$1` is their array, the first column of an answer is the key that it is for, in
//! any case, and the other columns are values.
//!
//! ```sql
//! SELECT lower(address), target, second_target FROM aliases WHERE lower(address) = ANY($1)
//! ```
//!
//! | rows                         | answer                                                    |
//! |------------------------------|-----------------------------------------------------------|
//! | none with the key            | NotFound                                                  |
//! | one or several with it       | Found, with the values of all, in the order of the rows   |
//! | with NULL for a value        | that value is left out                                    |
//! | without any further column   | Found, without values                                     |
//! | with a key that nobody asked | the request fails: the query is not what it was meant to be |
//!
//! All columns are text. A key that the database cannot take (one beyond its encoding, say) is Unavailable by itself.
//! Every step has its time: past it the connection is given up, and the server is told to stop.

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

use crate::Answer;
use crate::backend::{Asked, Backend, Failure, Probed};
use connection::{Connection, Opener};
use error::Trouble;

pub use url::{Url, UrlError};

/// A table, as it is configured.
#[derive(Clone)]
pub struct Config {
    /// Where the server is; of several hosts the first that can be connected to.
    pub url: Url,
    /// Stands above a password in the URL.
    pub password: Option<Box<str>>,
    /// Certificates in PEM of those who may vouch for the server. None: whom the system trusts. Wherever TLS is used the
    /// certificate is verified.
    pub ca_file: Option<PathBuf>,
    /// What is asked; `$1` is the array of keys, as `text[]`.
    pub query: Box<str>,
    /// How long the answer to one request may take.
    pub timeout: Duration,
    /// How long it may take to connect to and log on at one address of one host.
    pub connect_timeout: Duration,
    /// Connections at most; at least 1.
    pub connections: usize,
}

/// Why a table cannot be asked as it is configured.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Without the keys in it a query answers everything.
    #[error("the query has no $1, which stands for the array of keys: ... WHERE address = ANY($1)")]
    NoKeys,
    /// A certificate cannot be read.
    #[error("{}: {what}", path.display())]
    Certificates {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// TLS is not possible as configured.
    #[error("{0}")]
    Tls(#[from] rustls::Error),
}

/// A table in a PostgreSQL database.
pub struct Postgres {
    config: Config,
    opener: Opener,
    /// Connections that nobody uses now; the one used last is last.
    idle: RefCell<Vec<Connection>>,
    /// One for each connection that there may be.
    turns: Semaphore,
}

impl Postgres {
    /// The table as it is configured. Nothing is connected to before it is asked.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        if !config.query.contains("$1") {
            return Err(ConfigError::NoKeys);
        }
        let opener = Opener {
            settings: config.url.settings(config.password.as_deref(), config.connect_timeout),
            targets: config.url.targets(),
            tls: tls::connector(&config)?,
            timeout: config.connect_timeout,
        };
        let turns = Semaphore::new(config.connections.max(1));
        Ok(Postgres { config, opener, idle: RefCell::default(), turns })
    }

    /// Where a key spoils the request for others it is halved, until the key stands alone.
    async fn answers(&self, keys: &[&str]) -> Result<Vec<Answer>, Failure> {
        let deadline = Instant::now() + self.config.timeout;
        let mut answers = vec![Answer::NotFound; keys.len()];
        let mut open = Vec::from_iter((!keys.is_empty()).then_some(0..keys.len()));
        while let Some(range) = open.pop() {
            let asked = &keys[range.clone()];
            match self.with_connection(async |connection| connection.ask(&self.config.query, asked).await).await {
                Ok(found) => answers[range].clone_from_slice(&found),
                Err(Trouble::Keys(failure)) if range.len() == 1 => {
                    answers[range.start] = Answer::Unavailable(failure.to_string());
                }
                Err(Trouble::Keys(_)) if Instant::now() < deadline => {
                    let middle = range.start + range.len() / 2;
                    open.extend([range.start..middle, middle..range.end]);
                }
                Err(trouble) => return Err(trouble.failure()),
            }
        }
        Ok(answers)
    }

    /// Asks on a connection that was used before, if there is one; where it turns out to be dead, and else, on a fresh one.
    async fn with_connection<T>(&self, ask: impl AsyncFn(&Connection) -> Result<T, Trouble>) -> Result<T, Trouble> {
        let Ok(Ok(_turn)) = timeout(self.config.timeout, self.turns.acquire()).await else {
            return Err(Trouble::Refused(self.failure(format!("no connection free within {:?}", self.config.timeout))));
        };
        if let Some(connection) = self.used() {
            match self.ask_on(connection, &ask).await {
                Err(Trouble::Connection(_)) => {}
                other => return other,
            }
        }
        let connection = self.opener.open().await.map_err(|what| Trouble::Refused(self.failure(what)))?;
        self.ask_on(connection, &ask).await
    }

    /// A connection that was used before.
    fn used(&self) -> Option<Connection> {
        let mut idle = self.idle.borrow_mut();
        idle.retain(|connection| !connection.is_closed());
        idle.pop()
    }

    /// Asks on this connection, and keeps it if it is of use afterwards.
    async fn ask_on<T>(
        &self,
        connection: Connection,
        ask: &impl AsyncFn(&Connection) -> Result<T, Trouble>,
    ) -> Result<T, Trouble> {
        let time = self.config.timeout;
        let Ok(result) = timeout(time, ask(&connection)).await else {
            // A server that is gone is gone for the others too; one that is slow loses little.
            self.idle.borrow_mut().clear();
            let failure = Failure::new(connection.at.clone(), format!("no answer within {time:?}"));
            connection.cancel(self.opener.tls.clone(), self.config.connect_timeout);
            return Err(Trouble::Refused(failure));
        };
        match result {
            Err(Trouble::Connection(_)) => self.idle.borrow_mut().clear(),
            Err(Trouble::Wrong(_)) => {}
            Ok(_) | Err(Trouble::Keys(_) | Trouble::Refused(_)) => self.idle.borrow_mut().push(connection),
        }
        result
    }

    fn failure(&self, what: String) -> Failure {
        Failure::new(self.config.url.to_string(), what)
    }
}

impl Backend for Postgres {
    fn ask<'a>(&'a self, keys: &'a [Box<str>]) -> Asked<'a> {
        Box::pin(async move {
            // No text in PostgreSQL has a NUL: such a key is in no table, and must not spoil the request.
            let can_be_there = |key: &&str| !key.contains('\0');
            let keys = || keys.iter().map(|key| &**key);
            let asked: Vec<&str> = keys().filter(can_be_there).collect();
            let mut found = self.answers(&asked).await?.into_iter();
            let found = keys().map(|key| Some(key).filter(can_be_there).and_then(|_| found.next()));
            Ok(found.map(|answer| answer.unwrap_or(Answer::NotFound)).collect())
        })
    }

    fn probe(&self) -> Probed<'_> {
        Box::pin(async {
            self.with_connection(async |connection| connection.probe().await).await.map_err(Trouble::failure)
        })
    }
}
