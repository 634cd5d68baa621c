//! One connection to PostgreSQL: it is opened at the first host that lets us in, prepares the query once, and asks.
//!
//! A driver task of its own moves its bytes; it ends with the connection, also where the server has fallen silent.

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

/// Rows in the answer to one request.
const ROWS_MAX: usize = 100_000;

/// A connection.
pub(super) struct Connection {
    client: Client,
    statement: OnceCell<Statement>,
    driver: AbortHandle,
    /// Where it leads.
    pub(super) at: Box<str>,
}

/// How connections are opened.
pub(super) struct Opener {
    /// Everything but the hosts.
    pub(super) settings: tokio_postgres::Config,
    /// The hosts, in the order in which they are tried.
    pub(super) targets: Vec<Target>,
    /// What secures them.
    pub(super) tls: MakeRustlsConnect,
    /// For one address of one host, until we are logged on.
    pub(super) timeout: Duration,
}

impl Opener {
    /// A connection to the first host that lets us in; else what each of them said.
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
                let mut last_error = "its name leads to no address".to_owned();
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
        let found = found.await.map_err(|_| format!("its name was not resolved within {:?}", self.timeout))?;
        Ok(found.map_err(|error| error.to_string())?.map(|address: SocketAddr| address.ip()).collect())
    }

    async fn open_one(&self, settings: &tokio_postgres::Config, target: &Target) -> Result<Connection, String> {
        let opened = timeout(self.timeout, settings.connect(self.tls.clone())).await;
        let opened = opened.map_err(|_| format!("no connection within {:?}", self.timeout))?;
        let (client, connection) = opened.map_err(|error| words(&error))?;
        // What ends it shows in the next question.
        let driver = tokio::spawn(async move { drop(connection.await) }).abort_handle();
        Ok(Connection { client, statement: OnceCell::new(), driver, at: target.to_string().into() })
    }
}

impl Connection {
    /// Whether it is known to be of no more use.
    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Asks the query for these keys, which are folded.
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

    /// Asks nothing.
    pub(super) async fn probe(&self) -> Result<(), Trouble> {
        self.client.simple_query("SELECT 1").await.map(drop).map_err(|error| Trouble::of(&self.at, &error))
    }

    /// Gives it up and tells the server that nobody waits for its answer any more: else it would go on, and each request
    /// that takes too long would leave one more at work.
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

/// Why a query is none for a table, though the server takes it.
fn mistake(statement: &Statement) -> Option<String> {
    let columns = statement.columns();
    if columns.is_empty() {
        return Some("the query has no columns; the first must be the key".into());
    }
    if statement.params().len() != 1 {
        return Some("the query has parameters beside $1".into());
    }
    let column = columns.iter().find(|column| !<&str as FromSql>::accepts(column.type_()))?;
    let (name, kind) = (column.name(), column.type_());
    Some(format!("the column '{name}' of the query is {kind}, not text; write {name}::text"))
}

fn text(row: &Row, column: usize) -> Result<Option<&str>, String> {
    row.try_get(column).map_err(|error| words(&error))
}
