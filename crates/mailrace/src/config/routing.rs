//! Settings of single next hops, and of the DNS client.

use std::net::SocketAddr;
use std::time::Duration;

use route::DomainPattern;

use super::Rate;

/// Settings of a next hop that replace those of its transport. None: keep the transport's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextHopSettings {
    /// A pattern for the name of any of its hosts.
    pub host: DomainPattern,
    /// Concurrent connections; at least 1.
    pub connections_max: Option<usize>,
    /// Messages per time.
    pub rate: Option<Rate>,
    /// Messages over one connection.
    pub messages_per_connection_max: Option<u32>,
    /// Recipients of one transaction.
    pub recipients_per_message_max: Option<usize>,
}

/// DNS settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dns {
    /// The name servers; none: those of the system.
    pub servers: Vec<SocketAddr>,
    /// The time limit for one server.
    pub timeout: Duration,
    /// The number of attempts for each query.
    pub attempts: usize,
    /// Answers in the cache.
    pub cache_entries: usize,
    /// How long to cache an answer at most.
    pub ttl_max: Duration,
    /// How long to cache at most that a name does not exist.
    pub negative_ttl_max: Duration,
    /// Mail for a domain bounces after this many lookups without an address for any of its MX
    /// hosts; 0: never.
    pub no_address_lookups: u32,
    /// The minimum time between the first and the last of these lookups.
    pub no_address_time: Duration,
}

impl Default for Dns {
    fn default() -> Self {
        Dns {
            servers: Vec::new(),
            timeout: Duration::from_secs(5),
            attempts: 2,
            cache_entries: 100_000,
            ttl_max: Duration::from_secs(3600),
            negative_ttl_max: Duration::from_secs(300),
            no_address_lookups: 3,
            no_address_time: Duration::from_secs(30 * 60),
        }
    }
}
