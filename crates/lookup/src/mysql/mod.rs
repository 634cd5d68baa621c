//! Tables in a MySQL or MariaDB database.
//!
//! The query looks up one key: `:key`, `:local`, `:domain` and `:label1` to `:label9` are the parts
//! of the key ([`KeyPart`](crate::key_part::KeyPart)), bound as parameters. All columns are values.
//!
//! ```sql
//! SELECT goto FROM alias WHERE address = :key AND active = 1
//! ```
//!
//! | rows                                         | answer                                            |
//! |----------------------------------------------|---------------------------------------------------|
//! | none                                         | NotFound                                          |
//! | one or more                                  | Found, with the values of all rows                |
//! | with NULL as a value                         | the value is skipped; numbers become text         |
//! | with a date, a time, or bytes that are not UTF-8 | the request fails, because the query is wrong |
//!
//! A key that lacks a part of the query is NotFound without a request. Several keys share a request:
//! the query is repeated for each in one `UNION ALL`, with the number of the key before its rows. If
//! the database cannot combine the query with itself (a `CALL`, two columns of the same name), the
//! keys are asked one after another on the same connection. Which texts are equal is decided by the
//! collation of the column.
//!
//! Every step has a timeout, after which the connection is closed and the query killed.

mod connection;
mod handshake;
mod packet;
mod query;
mod result;
mod stream;
mod url;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio_rustls::TlsConnector;

use crate::backend::{Backend, BackendFuture, ProbeFuture};
use crate::ca_certificates::{CaCertificatesError, tls_config_if_needed};
use crate::connection_pool::ConnectionPool;
use connection::{Connection, Connector};

pub use query::{MysqlQuery, MysqlQueryError};
pub use url::{MysqlUrl, MysqlUrlError, TlsMode};

/// Configuration of a MySQL table.
#[derive(Clone)]
pub struct MysqlConfig {
    /// The servers. The first that accepts a connection is used.
    pub url: MysqlUrl,
    /// Overrides the password in the URL.
    pub password: Option<Box<str>>,
    /// CA certificates in PEM; None: those of the system. With TLS the certificate is always
    /// verified.
    pub ca_file: Option<PathBuf>,
    /// The query for one key.
    pub query: MysqlQuery,
    /// Timeout of one request.
    pub timeout: Duration,
    /// Timeout for connecting and logging in, per address.
    pub connect_timeout: Duration,
    /// Maximum number of connections, at least 1.
    pub connections: usize,
}

/// Reads a packet in every way in which one is read. For fuzzing.
#[doc(hidden)]
pub fn read_packet(octets: &[u8]) {
    let _ = (handshake::Greeting::read(octets), handshake::next_step(octets, true));
    let _ = (result::Prepared::read(octets), result::ResultStart::read(octets), result::row_or_end(octets).is_ok());
    let Some((&kind, row)) = octets.split_last() else { return };
    let described = result::Column::read(row).ok();
    let columns: Vec<_> = described.into_iter().chain([result::Column::of_kind(kind)]).collect();
    for keys in [1, 2] {
        let _ = result::RowCollector::new(keys).add(&columns, row);
    }
}

/// The backend for a MySQL table.
pub struct Mysql {
    query: MysqlQuery,
    pool: ConnectionPool<Connector>,
}

impl Mysql {
    /// Creates the backend without connecting.
    pub fn new(config: MysqlConfig) -> Result<Self, CaCertificatesError> {
        let tls = match config.url.tls() {
            TlsMode::Disabled => None,
            TlsMode::Preferred | TlsMode::Required => Some(tls_config_if_needed(config.ca_file.as_deref())?),
        };
        let connector = Connector::new(&config, tls.map(|tls| TlsConnector::from(Arc::new(tls))));
        let pool = ConnectionPool::new(connector, config.url.to_string(), config.timeout, config.connections);
        Ok(Mysql { query: config.query, pool })
    }
}

impl Backend for Mysql {
    fn ask<'a>(&'a self, keys: &'a [Box<str>]) -> BackendFuture<'a> {
        Box::pin(async move {
            let can_exist = |key: &str| self.query.has_parts(key);
            let ask = async |connection: &mut Connection, keys: &[&str]| connection.ask(&self.query, keys).await;
            self.pool.answers(keys, can_exist, ask).await
        })
    }

    fn probe(&self) -> ProbeFuture<'_> {
        Box::pin(self.pool.probe())
    }
}
