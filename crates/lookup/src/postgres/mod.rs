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

mod error;
mod url;

use std::path::PathBuf;
use std::time::Duration;

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
}

impl Postgres {
    /// The table as it is configured. Nothing is connected to before it is asked.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        if !config.query.contains("$1") {
            return Err(ConfigError::NoKeys);
        }
        Ok(Postgres { config })
    }
}
