//! Idle connections and the choice of the server.
//!
//! Each request has its own connection, so a slow one does not delay others, and servers that
//! process the operations of a connection in sequence still work on several requests. Servers are
//! tried in order. A server that failed comes last for a while. Connections to other servers than
//! the first are renewed after a time, which leads back to the first.

use std::cell::RefCell;
use std::time::Duration;

use tokio::time::Instant;

use super::connection::{Connector, LdapResponse, LdapSession, SearchRequest};
use super::message::SearchEntry;
use super::schema::Schema;
use super::{LdapConfigError, LdapConnectionConfig, SearchScope, search_filter};
use lookup::backend::BackendFailure;

/// How long a failed server comes last.
const DOWN_TIME: Duration = Duration::from_secs(30);
/// How long a busy server comes last.
const BUSY_TIME: Duration = Duration::from_secs(1);
/// How long to keep a connection to a server other than the first.
const FALLBACK_CONNECTION_TIME: Duration = Duration::from_secs(300);

/// The connections of one table.
pub(super) struct ConnectionPool {
    pub(super) connector: Connector,
    /// The attributes whose schema is read.
    names: Vec<Box<str>>,
    idle_max: usize,
    idle: RefCell<Vec<PooledConnection>>,
    /// Until when each server comes last.
    down: RefCell<Vec<Option<Instant>>>,
}

/// A connection and its server's schema.
pub(super) struct PooledConnection {
    pub(super) session: LdapSession,
    pub(super) schema: Schema,
    server: usize,
    since: Instant,
}

impl ConnectionPool {
    pub(super) fn new(
        servers: LdapConnectionConfig,
        names: Vec<Box<str>>,
        idle_max: usize,
    ) -> Result<ConnectionPool, LdapConfigError> {
        let down = RefCell::new(vec![None; servers.urls.len()]);
        Ok(ConnectionPool { connector: Connector::new(servers)?, names, idle_max, idle: RefCell::default(), down })
    }

    /// The operation timeout.
    pub(super) fn timeout(&self) -> Duration {
        self.connector.servers().timeout
    }

    /// An idle connection, or a new one.
    pub(super) async fn take(&self) -> Result<PooledConnection, BackendFailure> {
        let idle = self.take_idle();
        match idle {
            Some(pooled) => Ok(pooled),
            None => self.open().await,
        }
    }

    /// An idle connection. Those to servers that come last are used only if all servers do.
    fn take_idle(&self) -> Option<PooledConnection> {
        let is_all_down = self.is_all_down();
        let mut idle = self.idle.borrow_mut();
        let is_away =
            |pooled: &PooledConnection| pooled.server > 0 && pooled.since.elapsed() > FALLBACK_CONNECTION_TIME;
        idle.retain(|pooled| !pooled.session.is_closed() && !is_away(pooled));
        let place = idle.iter().rposition(|pooled| is_all_down || !self.is_down(pooled.server))?;
        Some(idle.remove(place))
    }

    fn is_down(&self, server: usize) -> bool {
        self.down.borrow()[server].is_some_and(|until| until > Instant::now())
    }

    /// Whether all servers have failed or are busy.
    pub(super) fn is_all_down(&self) -> bool {
        (0..self.connector.servers().urls.len()).all(|server| self.is_down(server))
    }

    /// A new connection to the first server that answers. Fails with the error of the last one
    /// tried.
    pub(super) async fn open(&self) -> Result<PooledConnection, BackendFailure> {
        let mut failure = None;
        for server in self.servers_in_order() {
            match self.open_to(server).await {
                Ok(pooled) => {
                    self.down.borrow_mut()[server] = None;
                    return Ok(pooled);
                }
                Err(why) => {
                    self.mark_down(server);
                    failure = Some(why);
                }
            }
        }
        Err(failure.expect("a connector has at least one server"))
    }

    /// Connects to each server.
    pub(super) fn connect_each(
        &self,
    ) -> impl Iterator<Item = impl Future<Output = Result<PooledConnection, BackendFailure>>> {
        (0..self.connector.servers().urls.len()).map(async |server| {
            let idle = {
                let mut idle = self.idle.borrow_mut();
                idle.retain(|pooled| !pooled.session.is_closed());
                idle.iter().position(|pooled| pooled.server == server).map(|place| idle.remove(place))
            };
            match idle {
                Some(pooled) => Ok(pooled),
                None => self.open_to(server).await,
            }
        })
    }

    /// Returns a connection that just worked and restores the server's place in the order.
    pub(super) fn put_back_as_working(&self, pooled: PooledConnection) {
        self.down.borrow_mut()[pooled.server] = None;
        self.put_back(pooled);
    }

    /// Returns a working connection.
    pub(super) fn put_back(&self, pooled: PooledConnection) {
        let mut idle = self.idle.borrow_mut();
        if idle.len() < self.idle_max && !pooled.session.is_closed() {
            idle.push(pooled);
        }
    }

    /// Returns a connection of a busy server.
    pub(super) fn put_back_as_busy(&self, pooled: PooledConnection) {
        self.down.borrow_mut()[pooled.server] = Some(Instant::now() + BUSY_TIME);
        self.put_back(pooled);
    }

    /// Drops a connection of a failed server.
    pub(super) fn drop_as_failed(&self, pooled: PooledConnection) {
        self.mark_down(pooled.server);
    }

    fn mark_down(&self, server: usize) {
        self.down.borrow_mut()[server] = Some(Instant::now() + DOWN_TIME);
        self.idle.borrow_mut().retain(|pooled| pooled.server != server);
    }

    /// The servers in the order to try them.
    fn servers_in_order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.connector.servers().urls.len()).collect();
        order.sort_by_key(|&server| self.is_down(server));
        order
    }

    async fn open_to(&self, server: usize) -> Result<PooledConnection, BackendFailure> {
        let session = self.connector.connect_to(&self.connector.servers().urls[server]).await?;
        let names: Vec<&str> = self.names.iter().map(|name| &**name).collect();
        let schema = read_schema(&session, &names, self.timeout()).await?;
        Ok(PooledConnection { session, schema, server, since: Instant::now() })
    }
}

/// Reads the schema of these attributes (RFC 4512 section 4.4). Empty if it is not readable.
async fn read_schema(session: &LdapSession, names: &[&str], within: Duration) -> Result<Schema, BackendFailure> {
    let reading = async {
        let root = read(session, "", &search_filter::present("objectClass"), "subschemaSubentry").await?;
        let Some(place) = texts(&root, "subschemaSubentry").next().map(str::to_owned) else {
            return Ok(Schema::default());
        };
        // Servers may hide subschema entries from other filters (RFC 4512 section 4.2).
        let subschema = read(session, &place, &search_filter::object_class("subschema"), "attributeTypes").await?;
        Ok(Schema::read(texts(&subschema, "attributeTypes"), names))
    };
    let timed_out = || BackendFailure::new(session.url().to_string(), "reading the schema: timed out");
    tokio::time::timeout(within, reading).await.unwrap_or_else(|_| Err(timed_out()))
}

/// Reads one attribute of one entry, if it is readable.
async fn read(
    session: &LdapSession,
    dn: &str,
    filter: &[u8],
    attribute: &str,
) -> Result<Option<SearchEntry>, BackendFailure> {
    let search = SearchRequest { base: dn, scope: SearchScope::Base, filter, attributes: &[attribute], controls: &[] };
    let mut stream = session.search(&search)?;
    let mut found = None;
    loop {
        match stream.next().await? {
            LdapResponse::Entry(entry) => found = Some(entry),
            LdapResponse::Done(_) => return Ok(found),
            LdapResponse::Reference(_) | LdapResponse::Intermediate { .. } => {}
        }
    }
}

fn texts<'a>(entry: &'a Option<SearchEntry>, attribute: &str) -> impl Iterator<Item = &'a str> {
    let values =
        entry.iter().flat_map(SearchEntry::attributes).filter(|(name, _)| name.eq_ignore_ascii_case(attribute));
    values.flat_map(|(_, values)| values).filter_map(|value| str::from_utf8(value).ok())
}
