//! Chooses the name server for a query.
//!
//! A query goes to two servers concurrently, first to the one that answered last. The first valid
//! answer ends it. If a server is silent, refuses or sends an invalid answer, the next one is
//! queried, so one good server is enough. After all servers were tried, they are tried again, up to
//! the configured number of attempts, now without EDNS, since a silent server may drop queries with
//! EDNS. The caller limits the total time.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::{StreamExt, stream};
use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolverOpts};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::Query;
use hickory_resolver::proto::rr::Name;
use hickory_resolver::system_conf::read_system_conf;
use hickory_resolver::{PoolContext, TlsConfig};
use lookup::dns::{self, Server};

use crate::NoServers;
use crate::config::Dns;
use crate::records::{Kind, Reading, read, read_denial};

/// The name servers, in configured order.
pub(crate) struct Servers {
    /// One pool for each server: a pool of several ends a query at the first error code.
    each: Vec<Server>,
    attempts: usize,
    /// The index of the server that answered last. Only a hint: any value is valid.
    answered_last: AtomicUsize,
}

impl Servers {
    pub(crate) fn new(config: &Dns) -> Result<Self, NoServers> {
        let context = Arc::new(PoolContext::new(options(config), no_tls()?));
        let alone = |server| Server::from_config([server], context.clone(), TokioRuntimeProvider::default());
        Ok(Servers {
            each: name_servers(&config.servers)?.into_iter().map(alone).collect(),
            attempts: config.attempts.max(1),
            answered_last: AtomicUsize::default(),
        })
    }

    /// Queries the servers for a name. If none has an answer, returns the first failure.
    pub(crate) async fn ask(&self, name: &Name, kind: Kind) -> Reading {
        let mut nothing = None;
        for attempt in 0..self.attempts {
            match self.ask_each(name, kind, attempt == 0).await {
                Some(reading) if reading.is_unanswered() => nothing = nothing.or(Some(reading)),
                Some(reading) => return reading,
                None => break,
            }
        }
        nothing.unwrap_or_else(|| Reading::unanswered("no name servers are configured"))
    }

    /// Queries each server once until one answers; otherwise returns the first failure. None: there
    /// are no servers.
    async fn ask_each(&self, name: &Name, kind: Kind, with_edns: bool) -> Option<Reading> {
        let first = self.answered_last.load(Ordering::Relaxed);
        let places = (first..self.each.len()).chain(0..first);
        let tries = places.map(|place| async move { (place, ask(&self.each[place], name, kind, with_edns).await) });
        let mut tries = stream::iter(tries).buffer_unordered(SERVERS_AT_ONCE);
        let mut nothing = None;
        while let Some((place, reading)) = tries.next().await {
            if !reading.is_unanswered() {
                self.answered_last.store(place, Ordering::Relaxed);
                return Some(reading);
            }
            nothing = nothing.or(Some(reading));
        }
        nothing
    }
}

async fn ask(server: &Server, name: &Name, kind: Kind, with_edns: bool) -> Reading {
    match dns::ask(server, Query::query(name.clone(), kind.record_type()), with_edns).await {
        Some(Ok(answer)) => read(&answer, name, kind),
        Some(Err(NetError::Dns(DnsError::NoRecordsFound(denial)))) => read_denial(&denial),
        Some(Err(error)) => Reading::unanswered(&reason(&error)),
        None => Reading::unanswered("no name server answered"),
    }
}

fn name_servers(addresses: &[SocketAddr]) -> Result<Vec<NameServerConfig>, NoServers> {
    if addresses.is_empty() {
        let (system, _) = read_system_conf().map_err(|error| NoServers(error.to_string()))?;
        return Ok(system.name_servers);
    }
    let at = |address: &SocketAddr| {
        let connection = |mut connection: ConnectionConfig| {
            connection.port = address.port();
            connection
        };
        let connections = vec![connection(ConnectionConfig::udp()), connection(ConnectionConfig::tcp())];
        NameServerConfig::new(address.ip(), true, connections)
    };
    Ok(addresses.iter().map(at).collect())
}

fn options(config: &Dns) -> ResolverOpts {
    let mut options = ResolverOpts::default();
    options.timeout = config.timeout;
    // Connections have no limit of their own; the resolver limits concurrent queries.
    options.max_active_requests = config.questions_max.max(1);
    options
}

/// Queries to a local name server need no encryption.
fn no_tls() -> Result<TlsConfig, NoServers> {
    TlsConfig::new().map_err(|error| NoServers(error.to_string()))
}

/// Why there is no answer, in words suitable for a reply.
fn reason(error: &NetError) -> String {
    match error {
        NetError::Timeout => "no name server answered in time".into(),
        NetError::NoConnections | NetError::Io(_) => "no name server can be reached".into(),
        NetError::Dns(DnsError::ResponseCode(code)) => format!("a name server answered '{code}'"),
        other => other.to_string(),
    }
}

/// Two, so that a silent server costs no time if the other one answers.
const SERVERS_AT_ONCE: usize = 2;
