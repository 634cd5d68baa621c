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

use std::path::PathBuf;
use std::time::Duration;

use crate::backend::{Backend, BackendFuture, ProbeFuture};
use crate::ca_certificates::CaCertificatesError;
use crate::connection_pool::ConnectionPool;
use connection::{Connection, Connector};

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
    /// The CA file cannot be used.
    #[error(transparent)]
    Certificates(#[from] CaCertificatesError),
}

/// The backend for a PostgreSQL table.
pub struct Postgres {
    query: Box<str>,
    pool: ConnectionPool<Connector>,
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
        let pool = ConnectionPool::new(connector, config.url.to_string(), config.timeout, config.connections);
        Ok(Postgres { query: config.query, pool })
    }
}

impl Backend for Postgres {
    fn ask<'a>(&'a self, keys: &'a [Box<str>]) -> BackendFuture<'a> {
        Box::pin(async move {
            // PostgreSQL text cannot contain NUL, so such a key does not exist and must not make
            // the request fail.
            let can_exist = |key: &str| !key.contains('\0');
            let ask = async |connection: &mut Connection, keys: &[&str]| connection.ask(&self.query, keys).await;
            self.pool.answers(keys, can_exist, ask).await
        })
    }

    fn probe(&self) -> ProbeFuture<'_> {
        Box::pin(self.pool.probe())
    }
}
