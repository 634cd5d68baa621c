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

use crate::config::QueryConfig;
use crate::edns::{self, NameServer};
use crate::records::{ALIAS_LOOP, ALIASES_MAX, DnsAnswer, ParsedAnswer, QueryType, parse_answer, parse_denial};

/// The name servers, in configured order.
pub struct NameServers {
    /// One pool for each server: a pool of several ends a query at the first error code.
    servers: Vec<NameServer>,
    config: QueryConfig,
    /// The index of the server that answered last. Only a hint: any value is valid.
    last_answered: AtomicUsize,
}

/// The system's name servers cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot read the system's name servers: {0}")]
pub struct NameServersError(String);

impl NameServers {
    /// Creates the connections' state without sending anything. Reads `/etc/resolv.conf` if no name
    /// servers are configured.
    pub fn new(config: &QueryConfig) -> Result<Self, NameServersError> {
        let context = Arc::new(PoolContext::new(options(config), no_tls()?));
        let single_server_pool =
            |server| NameServer::from_config([server], context.clone(), TokioRuntimeProvider::default());
        Ok(NameServers {
            servers: server_configs(&config.servers)?.into_iter().map(single_server_pool).collect(),
            config: config.clone(),
            last_answered: AtomicUsize::default(),
        })
    }

    /// Looks up a name, which has A-labels, and follows its aliases (RFC 5321 section 5.1). Returns
    /// the answer and its TTL in seconds, within [`QueryConfig::total_timeout`].
    pub async fn lookup(&self, name: &str, kind: QueryType) -> (DnsAnswer, Option<u32>) {
        let asking = tokio::time::timeout(self.config.total_timeout(), self.lookup_untimed(name, kind));
        asking.await.unwrap_or_else(|_| (DnsAnswer::unanswered("the lookup took too long"), None))
    }

    async fn lookup_untimed(&self, name: &str, kind: QueryType) -> (DnsAnswer, Option<u32>) {
        // The trailing dot prevents search lists from being applied.
        let Ok(mut name) = Name::from_ascii(format!("{name}.")) else { return (DnsAnswer::NoSuchName, None) };
        let mut least = None;
        for _ in 0..=ALIASES_MAX {
            let (answer, ttl) = match self.query(&name, kind).await {
                ParsedAnswer::Complete(answer, ttl) => (Some(answer), ttl),
                ParsedAnswer::Alias(target, ttl) => {
                    name = target;
                    (None, ttl)
                }
            };
            least = ttl.into_iter().chain(least).min();
            if let Some(answer) = answer {
                return (answer, least);
            }
        }
        (DnsAnswer::unanswered(ALIAS_LOOP), None)
    }

    /// Queries the servers for a name. If none has an answer, returns the first failure.
    async fn query(&self, name: &Name, kind: QueryType) -> ParsedAnswer {
        let mut first_failure = None;
        for attempt in 0..self.config.attempts.max(1) {
            match self.query_all_once(name, kind, attempt == 0).await {
                Some(reading) if reading.is_unanswered() => first_failure = first_failure.or(Some(reading)),
                Some(reading) => return reading,
                None => break,
            }
        }
        first_failure.unwrap_or_else(|| ParsedAnswer::unanswered("no name servers are configured"))
    }

    /// Queries each server once until one answers; otherwise returns the first failure. None: there
    /// are no servers.
    async fn query_all_once(&self, name: &Name, kind: QueryType, with_edns: bool) -> Option<ParsedAnswer> {
        let first = self.last_answered.load(Ordering::Relaxed);
        let places = (first..self.servers.len()).chain(0..first);
        let tries =
            places.map(|place| async move { (place, query_server(&self.servers[place], name, kind, with_edns).await) });
        let mut tries = stream::iter(tries).buffer_unordered(CONCURRENT_SERVERS_MAX);
        let mut first_failure = None;
        while let Some((place, reading)) = tries.next().await {
            if !reading.is_unanswered() {
                self.last_answered.store(place, Ordering::Relaxed);
                return Some(reading);
            }
            first_failure = first_failure.or(Some(reading));
        }
        first_failure
    }
}

async fn query_server(server: &NameServer, name: &Name, kind: QueryType, with_edns: bool) -> ParsedAnswer {
    match edns::query(server, Query::query(name.clone(), kind.record_type()), with_edns).await {
        Some(Ok(answer)) => parse_answer(&answer, name, kind),
        Some(Err(NetError::Dns(DnsError::NoRecordsFound(denial)))) => parse_denial(&denial),
        Some(Err(error)) => ParsedAnswer::unanswered(&reason(&error)),
        None => ParsedAnswer::unanswered("no name server answered"),
    }
}

fn server_configs(addresses: &[SocketAddr]) -> Result<Vec<NameServerConfig>, NameServersError> {
    if addresses.is_empty() {
        let (system, _) = read_system_conf().map_err(|error| NameServersError(error.to_string()))?;
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

fn options(config: &QueryConfig) -> ResolverOpts {
    let mut options = ResolverOpts::default();
    options.timeout = config.timeout;
    // Connections have no limit of their own.
    options.max_active_requests = config.concurrency_max.max(1);
    options
}

/// Queries to a local name server need no encryption.
fn no_tls() -> Result<TlsConfig, NameServersError> {
    TlsConfig::new().map_err(|error| NameServersError(error.to_string()))
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
const CONCURRENT_SERVERS_MAX: usize = 2;
