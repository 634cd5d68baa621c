//! The name servers: which of them is asked, and when another one.
//!
//! A question goes to two of them at once, first to the one that answered last. Whichever says something ends it; one
//! that is silent, refuses or talks nonsense passes the question on to the next, so that one good server is enough.
//! When all have had it, they are asked again, as often as the configuration says, from then on without EDNS: one that was
//! silent may drop what has it. The caller bounds the whole in time.

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

/// The name servers, in the order in which the configuration has them.
pub(crate) struct Servers {
    /// A pool of its own for each: a pool of several ends a question with the first error code that comes.
    each: Vec<Server>,
    attempts: usize,
    /// The place of the one that answered last. It is only advice: any value will do.
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

    /// What they say of a name; where none says anything, why the first that gave up did.
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

    /// One try of each until one says something; else the first failure. None: there are no servers.
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
    // A connection takes as many questions as there are; it is we who bound them.
    options.max_active_requests = config.questions_max.max(1);
    options
}

/// Nothing that we send is worth hiding from the name server next door.
fn no_tls() -> Result<TlsConfig, NoServers> {
    TlsConfig::new().map_err(|error| NoServers(error.to_string()))
}

/// Why there is no answer, in words that a sender can be told.
fn reason(error: &NetError) -> String {
    match error {
        NetError::Timeout => "no name server answered in time".into(),
        NetError::NoConnections | NetError::Io(_) => "no name server can be reached".into(),
        NetError::Dns(DnsError::ResponseCode(code)) => format!("a name server answered '{code}'"),
        other => other.to_string(),
    }
}

/// Two, so that one that is silent costs no time where the other is not.
const SERVERS_AT_ONCE: usize = 2;
