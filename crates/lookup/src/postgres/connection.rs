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

use super::error::{Trouble, words};
use super::rows::Rows;
use super::url::{Place, Target};
use crate::Answer;
use crate::backend::Failure;

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
pub(super) struct Opener {
    /// All settings except the hosts.
    pub(super) settings: tokio_postgres::Config,
    /// The hosts in the order to try them.
    pub(super) targets: Vec<Target>,
    /// The TLS configuration.
    pub(super) tls: MakeRustlsConnect,
    /// Timeout for connecting and logging in, per address.
    pub(super) timeout: Duration,
}

impl Opener {
    /// Connects to the first host that accepts us. Otherwise returns the errors of all hosts.
    pub(super) async fn open(&self) -> Result<Connection, String> {
        let mut errors = Vec::new();
        for target in &self.targets {
            match self.open_target(target).await {
                Ok(connection) => return Ok(connection),
                Err(error) if self.targets.len() == 1 => return Err(error),
                Err(error) => errors.push(format!("{target}: {error}")),
            }
        }
        Err(errors.join("; "))
    }

    async fn open_target(&self, target: &Target) -> Result<Connection, String> {
        let mut settings = self.settings.clone();
        settings.port(target.port);
        match &target.place {
            Place::Name(name) => {
                settings.host(name);
                let mut last_error = "the name has no address".to_owned();
                for address in self.addresses(name, target.port).await? {
                    match self.open_one(settings.clone().hostaddr(address), target).await {
                        Ok(connection) => return Ok(connection),
                        Err(error) => last_error = error,
                    }
                }
                return Err(last_error);
            }
            Place::Address { name, address } => {
                if let Some(name) = name {
                    settings.host(name);
                }
                settings.hostaddr(*address);
            }
            Place::Unix(folder) => {
                settings.host_path(folder);
            }
        }
        self.open_one(&settings, target).await
    }

    async fn addresses(&self, name: &str, port: u16) -> Result<Vec<IpAddr>, String> {
        let found = timeout(self.timeout, lookup_host((name, port)));
        let found = found.await.map_err(|_| format!("the name was not resolved within {:?}", self.timeout))?;
        Ok(found.map_err(|error| error.to_string())?.map(|address: SocketAddr| address.ip()).collect())
    }

    async fn open_one(&self, settings: &tokio_postgres::Config, target: &Target) -> Result<Connection, String> {
        let opened = timeout(self.timeout, settings.connect(self.tls.clone())).await;
        let opened = opened.map_err(|_| format!("no connection within {:?}", self.timeout))?;
        let (client, connection) = opened.map_err(|error| words(&error))?;
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
    pub(super) async fn ask(&self, query: &str, keys: &[&str]) -> Result<Vec<Answer>, Trouble> {
        let statement = self.prepare(query).await?;
        let rows = self.client.query_raw(statement, [&keys as &(dyn ToSql + Sync)]).await;
        let mut rows = pin!(rows.map_err(|error| Trouble::of(&self.at, &error))?);
        let (mut answers, mut left) = (Rows::new(keys), ROWS_MAX);
        while let Some(row) = rows.try_next().await.map_err(|error| Trouble::of(&self.at, &error))? {
            left = left.checked_sub(1).ok_or_else(|| self.wrong(format!("more than {ROWS_MAX} rows in one answer")))?;
            let columns = 1..row.len();
            let values = columns.map(|column| text(&row, column)).collect::<Result<Vec<_>, _>>();
            let (key, values) = (text(&row, 0), values);
            let (key, values) = (key.map_err(|e| self.wrong(e))?, values.map_err(|e| self.wrong(e))?);
            answers.add(key, values.into_iter()).map_err(|stray| self.wrong(stray))?;
        }
        Ok(answers.answers())
    }

    /// Runs a trivial query.
    pub(super) async fn probe(&self) -> Result<(), Trouble> {
        self.client.simple_query("SELECT 1").await.map(drop).map_err(|error| Trouble::of(&self.at, &error))
    }

    /// Drops the connection and cancels its query, which would otherwise continue on the server.
    pub(super) fn cancel(self, tls: MakeRustlsConnect, time: Duration) {
        let token = self.client.cancel_token();
        tokio::spawn(async move { drop(timeout(time, token.cancel_query(tls)).await) });
    }

    async fn prepare(&self, query: &str) -> Result<&Statement, Trouble> {
        if let Some(statement) = self.statement.get() {
            return Ok(statement);
        }
        let statement = self.client.prepare_typed(query, &[Type::TEXT_ARRAY]).await;
        let statement = statement.map_err(|error| Trouble::of(&self.at, &error))?;
        match mistake(&statement) {
            Some(mistake) => Err(Trouble::Refused(Failure::new(self.at.clone(), mistake))),
            None => Ok(self.statement.get_or_init(|| statement)),
        }
    }

    fn wrong(&self, what: impl ToString) -> Trouble {
        Trouble::wrong(&self.at, what)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Why a valid query cannot be used for a table.
fn mistake(statement: &Statement) -> Option<String> {
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
    row.try_get(column).map_err(|error| words(&error))
}
