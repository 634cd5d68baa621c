//! A connection to PostgreSQL: connects to the first host that accepts us, prepares the query once,
//! and runs it.
//!
//! A separate task drives the connection. It ends with the connection, even if the server does not
//! respond.

use std::cell::OnceCell;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::time::Duration;

use futures_util::TryStreamExt;
use tokio::net::lookup_host;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_postgres::types::{FromSql, ToSql, Type};
use tokio_postgres::{Client, Row, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::error::{RequestError, error_text};
use super::rows::RowCollector;
use super::url::{HostAddress, TargetHost};
use crate::LookupAnswer;
use crate::backend::BackendFailure;

/// Maximum rows of one result.
const ROWS_MAX: usize = 100_000;

/// A connection.
pub(super) struct Connection {
    client: Client,
    statement: OnceCell<Statement>,
    driver: AbortHandle,
    /// The host it is connected to.
    pub(super) at: Box<str>,
}

/// Opens connections.
pub(super) struct Connector {
    /// All settings except the hosts.
    pub(super) settings: tokio_postgres::Config,
    /// The hosts in the order to try them.
    pub(super) targets: Vec<TargetHost>,
    /// The TLS configuration.
    pub(super) tls: MakeRustlsConnect,
    /// Timeout for connecting and logging in, per address.
    pub(super) timeout: Duration,
}

impl Connector {
    /// Connects to the first host that accepts us. Otherwise returns the errors of all hosts.
    pub(super) async fn connect(&self) -> Result<Connection, String> {
        let mut errors = Vec::new();
        for target in &self.targets {
            match self.connect_to_host(target).await {
                Ok(connection) => return Ok(connection),
                Err(error) if self.targets.len() == 1 => return Err(error),
                Err(error) => errors.push(format!("{target}: {error}")),
            }
        }
        Err(errors.join("; "))
    }

    async fn connect_to_host(&self, target: &TargetHost) -> Result<Connection, String> {
        let mut settings = self.settings.clone();
        settings.port(target.port);
        match &target.host {
            HostAddress::Name(name) => {
                settings.host(name);
                let mut last_error = "the name has no address".to_owned();
                for address in self.addresses(name, target.port).await? {
                    match self.connect_to_address(settings.clone().hostaddr(address), target).await {
                        Ok(connection) => return Ok(connection),
                        Err(error) => last_error = error,
                    }
                }
                return Err(last_error);
            }
            HostAddress::Address { name, address } => {
                if let Some(name) = name {
                    settings.host(name);
                }
                settings.hostaddr(*address);
            }
            HostAddress::Unix(folder) => {
                settings.host_path(folder);
            }
        }
        self.connect_to_address(&settings, target).await
    }

    async fn addresses(&self, name: &str, port: u16) -> Result<Vec<IpAddr>, String> {
        let found = timeout(self.timeout, lookup_host((name, port)));
        let found = found.await.map_err(|_| format!("the name was not resolved within {:?}", self.timeout))?;
        Ok(found.map_err(|error| error.to_string())?.map(|address: SocketAddr| address.ip()).collect())
    }

    async fn connect_to_address(
        &self,
        settings: &tokio_postgres::Config,
        target: &TargetHost,
    ) -> Result<Connection, String> {
        let opened = timeout(self.timeout, settings.connect(self.tls.clone())).await;
        let opened = opened.map_err(|_| format!("no connection within {:?}", self.timeout))?;
        let (client, connection) = opened.map_err(|error| error_text(&error))?;
        // Errors of the connection show up in the next query.
        let driver = tokio::spawn(async move { drop(connection.await) }).abort_handle();
        Ok(Connection { client, statement: OnceCell::new(), driver, at: target.to_string().into() })
    }
}

impl Connection {
    /// Whether the connection is known to be closed.
    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Runs the query for these folded keys.
    pub(super) async fn ask(&self, query: &str, keys: &[&str]) -> Result<Vec<LookupAnswer>, RequestError> {
        let statement = self.prepare(query).await?;
        let rows = self.client.query_raw(statement, [&keys as &(dyn ToSql + Sync)]).await;
        let mut rows = pin!(rows.map_err(|error| RequestError::from_error(&self.at, &error))?);
        let (mut answers, mut left) = (RowCollector::new(keys), ROWS_MAX);
        while let Some(row) = rows.try_next().await.map_err(|error| RequestError::from_error(&self.at, &error))? {
            left = left
                .checked_sub(1)
                .ok_or_else(|| self.invalid_answer(format!("more than {ROWS_MAX} rows in one answer")))?;
            let columns = 1..row.len();
            let values = columns.map(|column| text(&row, column)).collect::<Result<Vec<_>, _>>();
            let (key, values) = (text(&row, 0), values);
            let (key, values) = (key.map_err(|e| self.invalid_answer(e))?, values.map_err(|e| self.invalid_answer(e))?);
            answers.add(key, values.into_iter()).map_err(|stray| self.invalid_answer(stray))?;
        }
        Ok(answers.into_answers())
    }

    /// Runs a trivial query.
    pub(super) async fn probe(&self) -> Result<(), RequestError> {
        self.client.simple_query("SELECT 1").await.map(drop).map_err(|error| RequestError::from_error(&self.at, &error))
    }

    /// Drops the connection and cancels its query, which would otherwise continue on the server.
    pub(super) fn cancel(self, tls: MakeRustlsConnect, time: Duration) {
        let token = self.client.cancel_token();
        tokio::spawn(async move { drop(timeout(time, token.cancel_query(tls)).await) });
    }

    async fn prepare(&self, query: &str) -> Result<&Statement, RequestError> {
        if let Some(statement) = self.statement.get() {
            return Ok(statement);
        }
        let statement = self.client.prepare_typed(query, &[Type::TEXT_ARRAY]).await;
        let statement = statement.map_err(|error| RequestError::from_error(&self.at, &error))?;
        match query_mistake(&statement) {
            Some(mistake) => Err(RequestError::Refused(BackendFailure::new(self.at.clone(), mistake))),
            None => Ok(self.statement.get_or_init(|| statement)),
        }
    }

    fn invalid_answer(&self, what: impl ToString) -> RequestError {
        RequestError::invalid_answer(&self.at, what)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Why a valid query cannot be used for a table.
fn query_mistake(statement: &Statement) -> Option<String> {
    let columns = statement.columns();
    if columns.is_empty() {
        return Some("the query has no columns; the first must be the key".into());
    }
    if statement.params().len() != 1 {
        return Some("the query has parameters other than $1".into());
    }
    let column = columns.iter().find(|column| !<&str as FromSql>::accepts(column.type_()))?;
    let (name, kind) = (column.name(), column.type_());
    Some(format!("the column '{name}' of the query is {kind}, not text; write {name}::text"))
}

fn text(row: &Row, column: usize) -> Result<Option<&str>, String> {
    row.try_get(column).map_err(|error| error_text(&error))
}
