//! A connection to PostgreSQL: connects to the first host that accepts us, prepares the query once,
//! and runs it.
//!
//! A separate task drives the connection. It ends with the connection, even if the server does not
//! respond.

use std::cell::OnceCell;
use std::pin::pin;
use std::time::Duration;

use futures_util::TryStreamExt;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_postgres::types::{FromSql, ToSql, Type};
use tokio_postgres::{Client, Row, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::error::{error_text, request_error};
use super::rows::RowCollector;
use super::url::{HostAddress, TargetHost};
use crate::LookupAnswer;
use crate::backend::BackendFailure;
use crate::connection_pool::{self, ServerConnection, first_address_that_accepts, first_that_accepts};
use crate::request_error::RequestError;

/// Maximum rows of one result.
const ROWS_MAX: usize = 100_000;

/// A connection.
pub(super) struct Connection {
    client: Client,
    statement: OnceCell<Statement>,
    driver: AbortHandle,
    /// The host it is connected to.
    at: Box<str>,
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

impl connection_pool::Connector for Connector {
    type Connection = Connection;

    async fn connect(&self) -> Result<Connection, String> {
        first_that_accepts(&self.targets, async |target| self.connect_to_host(target).await).await
    }

    fn cancel(&self, connection: Connection) {
        let (token, tls, time) = (connection.client.cancel_token(), self.tls.clone(), self.timeout);
        tokio::spawn(async move { drop(timeout(time, token.cancel_query(tls)).await) });
    }
}

impl Connector {
    async fn connect_to_host(&self, target: &TargetHost) -> Result<Connection, String> {
        let mut settings = self.settings.clone();
        settings.port(target.port);
        match &target.host {
            HostAddress::Name(name) => {
                settings.host(name);
                let connect = async |address| self.connect_to_address(settings.clone().hostaddr(address), target).await;
                return first_address_that_accepts(name, target.port, self.timeout, connect).await;
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

impl ServerConnection for Connection {
    fn at(&self) -> &str {
        &self.at
    }

    fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Runs a trivial query.
    async fn probe(&mut self) -> Result<(), RequestError> {
        self.client.simple_query("SELECT 1").await.map(drop).map_err(|error| request_error(&self.at, &error))
    }
}

impl Connection {
    /// Runs the query for these folded keys.
    pub(super) async fn ask(&self, query: &str, keys: &[&str]) -> Result<Vec<LookupAnswer>, RequestError> {
        let statement = self.prepare(query).await?;
        let rows = self.client.query_raw(statement, [&keys as &(dyn ToSql + Sync)]).await;
        let mut rows = pin!(rows.map_err(|error| request_error(&self.at, &error))?);
        let (mut answers, mut left) = (RowCollector::new(keys), ROWS_MAX);
        while let Some(row) = rows.try_next().await.map_err(|error| request_error(&self.at, &error))? {
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

    async fn prepare(&self, query: &str) -> Result<&Statement, RequestError> {
        if let Some(statement) = self.statement.get() {
            return Ok(statement);
        }
        let statement = self.client.prepare_typed(query, &[Type::TEXT_ARRAY]).await;
        let statement = statement.map_err(|error| request_error(&self.at, &error))?;
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
