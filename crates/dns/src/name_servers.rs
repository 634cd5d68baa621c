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
use crate::edns::{self, NameServer, QueryFlags};
use crate::name::query_name;
use crate::records::{DnsAnswer, QueryType};
use crate::response::{ALIAS_LOOP, ALIASES_MAX, ParsedResponse, ResponseContent, parse_answer, parse_denial};

/// The name servers, in configured order.
pub struct NameServers {
    /// One pool for each server: a pool of several ends a query at the first error code.
    servers: Vec<NameServer>,
    config: QueryConfig,
    /// The index of the server that answered last. Only a hint: any value is valid.
    last_answered: AtomicUsize,
}

/// What a lookup found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameServerAnswer {
    /// The answer.
    pub answer: DnsAnswer,
    /// Its TTL in seconds.
    pub ttl: Option<u32>,
    /// Whether the name servers validated it, with all its aliases; only with
    /// [`QueryConfig::validating`]. Never true for names and records that do not exist.
    pub authenticated: bool,
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

    /// Looks up a name, which has A-labels, and follows its aliases (RFC 5321 section 5.1), within
    /// [`QueryConfig::total_timeout`].
    pub async fn lookup(&self, name: &str, kind: QueryType) -> NameServerAnswer {
        let asking = tokio::time::timeout(self.config.total_timeout(), self.lookup_untimed(name, kind));
        asking.await.unwrap_or_else(|_| NameServerAnswer::own(DnsAnswer::unanswered("the lookup took too long")))
    }

    async fn lookup_untimed(&self, name: &str, kind: QueryType) -> NameServerAnswer {
        let Some(mut name) = query_name(name) else { return NameServerAnswer::own(DnsAnswer::NoSuchName) };
        let (mut least, mut authenticated) = (None, self.config.validating);
        for _ in 0..=ALIASES_MAX {
            let response = self.query(&name, kind).await;
            least = response.ttl.into_iter().chain(least).min();
            authenticated &= response.authenticated;
            match response.content {
                ResponseContent::Answer(answer) => return NameServerAnswer { answer, ttl: least, authenticated },
                ResponseContent::Alias(target) => name = target,
            }
        }
        NameServerAnswer::own(DnsAnswer::unanswered(ALIAS_LOOP))
    }

    /// Queries the servers for a name. If none has an answer, returns the first failure.
    async fn query(&self, name: &Name, kind: QueryType) -> ParsedResponse {
        let mut first_failure = None;
        for attempt in 0..self.config.attempts.max(1) {
            let flags = QueryFlags { edns: attempt == 0, authentic_data: self.config.validating };
            match self.query_all_once(name, kind, flags).await {
                Some(response) if response.is_unanswered() => first_failure = first_failure.or(Some(response)),
                Some(response) => return response,
                None => break,
            }
        }
        first_failure.unwrap_or_else(|| ParsedResponse::unanswered("no name servers are configured"))
    }

    /// Queries each server once until one answers; otherwise returns the first failure. None: there
    /// are no servers.
    async fn query_all_once(&self, name: &Name, kind: QueryType, flags: QueryFlags) -> Option<ParsedResponse> {
        let first = self.last_answered.load(Ordering::Relaxed);
        let places = (first..self.servers.len()).chain(0..first);
        let tries =
            places.map(|place| async move { (place, query_server(&self.servers[place], name, kind, flags).await) });
        let mut tries = stream::iter(tries).buffer_unordered(CONCURRENT_SERVERS_MAX);
        let mut first_failure = None;
        while let Some((place, response)) = tries.next().await {
            if !response.is_unanswered() {
                self.last_answered.store(place, Ordering::Relaxed);
                return Some(response);
            }
            first_failure = first_failure.or(Some(response));
        }
        first_failure
    }
}

impl NameServerAnswer {
    /// What the servers did not say.
    fn own(answer: DnsAnswer) -> Self {
        NameServerAnswer { answer, ttl: None, authenticated: false }
    }
}

async fn query_server(server: &NameServer, name: &Name, kind: QueryType, flags: QueryFlags) -> ParsedResponse {
    match edns::query(server, Query::query(name.clone(), kind.record_type()), flags).await {
        Some(Ok(answer)) => parse_answer(&answer, name, kind),
        Some(Err(NetError::Dns(DnsError::NoRecordsFound(denial)))) => parse_denial(&denial),
        Some(Err(error)) => ParsedResponse::unanswered(&reason(&error)),
        None => ParsedResponse::unanswered("no name server answered"),
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
