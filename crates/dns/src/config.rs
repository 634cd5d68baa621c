//! How the DNS is queried. Every limit has a default.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// IPv4, IPv6 or both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AddressFamilies {
    /// IPv4 only.
    V4,
    /// IPv6 only.
    V6,
    /// Both; alternating for hosts that have both, IPv6 first.
    #[default]
    Both,
}

impl AddressFamilies {
    /// Whether the address belongs to these families.
    pub fn contains(self, address: IpAddr) -> bool {
        match self {
            AddressFamilies::V4 => address.is_ipv4(),
            AddressFamilies::V6 => address.is_ipv6(),
            AddressFamilies::Both => true,
        }
    }
}

/// How name servers are queried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryConfig {
    /// The name servers; empty: those in `/etc/resolv.conf`.
    pub servers: Vec<SocketAddr>,
    /// How long one attempt waits for an answer. A datagram is sent up to three times within it.
    pub timeout: Duration,
    /// How many times each server is queried before a query fails.
    pub attempts: usize,
    /// The maximum number of concurrent queries; others wait. A query without an answer uses up to
    /// three sockets for each of two servers.
    pub concurrency_max: usize,
    /// Whether all these servers validate with DNSSEC and nobody can change what they answer on its
    /// way here. Only then their AD bit is believed (RFC 4035 section 4.9.3, RFC 6698 section A.3).
    pub validating: bool,
}

impl QueryConfig {
    /// The time limit of one query with all its attempts and aliases, not including the wait for
    /// other queries.
    pub fn total_timeout(&self) -> Duration {
        let tries = u32::try_from(self.attempts.max(1)).unwrap_or(u32::MAX);
        self.timeout.saturating_mul(tries).saturating_mul(ALIAS_TIMEOUT_FACTOR)
    }
}

impl Default for QueryConfig {
    fn default() -> Self {
        QueryConfig {
            servers: Vec::new(),
            timeout: Duration::from_secs(5),
            attempts: 2,
            concurrency_max: 256,
            validating: false,
        }
    }
}

/// How a [`Resolver`](crate::Resolver) queries and caches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolverConfig {
    /// How name servers are queried.
    pub query: QueryConfig,
    /// The maximum number of cached answers. A large one counts as several: one for each kilobyte.
    pub cache_entries: u64,
    /// The minimum caching time. Without it, records with a TTL of zero are never reused.
    pub ttl_min: Duration,
    /// The maximum caching time.
    pub ttl_max: Duration,
    /// The maximum caching time of negative answers (RFC 2308 section 5).
    pub negative_ttl_max: Duration,
    /// The caching time of failures (RFC 2308 section 7 allows five minutes).
    pub failure_ttl: Duration,
}

impl Default for ResolverConfig {
    fn default() -> Self {
        ResolverConfig {
            query: QueryConfig::default(),
            cache_entries: 100_000,
            ttl_min: Duration::from_secs(5),
            ttl_max: Duration::from_secs(3600),
            negative_ttl_max: Duration::from_secs(300),
            failure_ttl: Duration::from_secs(30),
        }
    }
}

/// An alias into another zone doubles the queries; further aliases must fit in the same time.
const ALIAS_TIMEOUT_FACTOR: u32 = 2;
