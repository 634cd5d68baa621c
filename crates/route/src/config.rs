//! The configuration of a router. Values are parsed before they get here; every limit has a
//! default.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::destination::to_ascii;
use crate::{FixedHop, RouteRule};

/// The configuration of a [`Router`](crate::Router).
#[derive(Clone, Debug)]
pub struct Config {
    /// Our host name: an MX host with this name is this host.
    pub hostname: Box<str>,
    /// Our addresses: an MX host with one of them is this host.
    pub own_addresses: Vec<IpAddr>,
    /// The ports of our listeners: an MX host with a loopback address is this host if mail would go
    /// to one of them.
    pub own_ports: Vec<u16>,
    /// How DNS queries are made.
    pub resolver: ResolverConfig,
    /// Local domains, and where their mail goes.
    pub domains: HashMap<Box<str>, DomainRoute>,
    /// Tables of local domains; the first one that contains the domain applies.
    pub domain_tables: Vec<DomainTable>,
    /// How long a route that depends on a table may be cached.
    pub table_ttl: Duration,
    /// Routes other than the MX; the first matching rule applies.
    pub rules: Vec<RouteRule>,
    /// The transport if no rule matches.
    pub transport: Box<str>,
    /// The transport to the host that stores a mailbox.
    pub mail_host_transport: Box<str>,
    /// How each transport connects, by name; a missing one has the defaults.
    pub endpoint_options: HashMap<Box<str>, EndpointOptions>,
}

impl Config {
    /// Routes everything by MX over the transport `smtp`; `hostname` is our name.
    pub fn new(hostname: &str) -> Self {
        Config {
            hostname: hostname.into(),
            own_addresses: Vec::new(),
            own_ports: Vec::new(),
            resolver: ResolverConfig::default(),
            domains: HashMap::new(),
            domain_tables: Vec::new(),
            table_ttl: Duration::from_secs(60),
            rules: Vec::new(),
            transport: "smtp".into(),
            mail_host_transport: "smtp".into(),
            endpoint_options: HashMap::new(),
        }
    }

    /// Converts all names to the form used in the DNS, so that they can be compared. A local name
    /// that is not valid there stays unchanged.
    pub(crate) fn with_ascii_names(mut self) -> Self {
        let ascii = |name: Box<str>| to_ascii(&name).unwrap_or(name);
        self.hostname = ascii(self.hostname);
        self.domains = self.domains.into_iter().map(|(name, home)| (ascii(name), home)).collect();
        self
    }

    /// How a transport connects.
    pub(crate) fn endpoint_options_for(&self, transport: &str) -> EndpointOptions {
        self.endpoint_options.get(transport).copied().unwrap_or_default()
    }
}

/// Where mail for a local domain goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainRoute {
    /// The transport.
    pub transport: Box<str>,
    /// The next hop; None: mailboxes on this host.
    pub next_hop: Option<FixedHop>,
}

/// A table of local domains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainTable {
    /// The table that contains their names.
    pub table: Box<str>,
    /// Where their mail goes.
    pub route: DomainRoute,
}

/// How a transport connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointOptions {
    /// The port, unless the next hop has one.
    pub port: u16,
    /// The address families to use.
    pub families: AddressFamilies,
    /// The maximum number of addresses of one next hop. An attempt tries a few of them, and the
    /// next attempt others.
    pub addresses_max: usize,
}

impl Default for EndpointOptions {
    fn default() -> Self {
        EndpointOptions { port: 25, families: AddressFamilies::Both, addresses_max: 256 }
    }
}

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
    pub(crate) fn contains(self, address: IpAddr) -> bool {
        match self {
            AddressFamilies::V4 => address.is_ipv4(),
            AddressFamilies::V6 => address.is_ipv6(),
            AddressFamilies::Both => true,
        }
    }
}

/// How DNS queries are made.
#[derive(Clone, Debug)]
pub struct ResolverConfig {
    /// The name servers; empty: those in `/etc/resolv.conf`.
    pub servers: Vec<SocketAddr>,
    /// How long one attempt waits for an answer. A datagram is sent up to three times within it.
    pub timeout: Duration,
    /// How many times each server is queried before a query fails.
    pub attempts: usize,
    /// The maximum number of cached answers.
    pub cache_entries: u64,
    /// The minimum caching time. Without it, a route from records with a TTL of zero is never
    /// reused.
    pub ttl_min: Duration,
    /// The maximum caching time.
    pub ttl_max: Duration,
    /// The maximum caching time of negative answers (RFC 2308 section 5).
    pub negative_ttl_max: Duration,
    /// The caching time of failures (RFC 2308 section 7 allows five minutes).
    pub failure_ttl: Duration,
    /// The maximum number of concurrent queries; others wait. A query without an answer uses up to
    /// three sockets for each of two servers.
    pub questions_max: usize,
    /// After this many consecutive lookups without an address for any MX host of a domain, its mail
    /// fails (RFC 5321 section 5.1); until then it is deferred, since the zone may be in the middle
    /// of a change. A lookup counts once all answers of the one before have expired. 0: mail is
    /// deferred until it expires.
    pub no_address_lookups: u32,
    /// The minimum time between the first and the last of these lookups.
    pub no_address_time: Duration,
}

impl ResolverConfig {
    /// The time limit of one query with all its attempts and aliases, not including the wait for
    /// other queries.
    pub fn total_timeout(&self) -> Duration {
        let tries = u32::try_from(self.attempts.max(1)).unwrap_or(u32::MAX);
        self.timeout.saturating_mul(tries).saturating_mul(ALIAS_TIMEOUT_FACTOR)
    }
}

impl Default for ResolverConfig {
    fn default() -> Self {
        ResolverConfig {
            servers: Vec::new(),
            timeout: Duration::from_secs(5),
            attempts: 2,
            cache_entries: 100_000,
            ttl_min: Duration::from_secs(5),
            ttl_max: Duration::from_secs(3600),
            negative_ttl_max: Duration::from_secs(300),
            failure_ttl: Duration::from_secs(30),
            questions_max: 256,
            no_address_lookups: 3,
            no_address_time: NO_ADDRESS_TIME,
        }
    }
}

/// Negative answers may be valid for seconds only, but moving a host to another address takes
/// minutes.
const NO_ADDRESS_TIME: Duration = Duration::from_secs(30 * 60);

/// An alias into another zone doubles the queries; further aliases must fit in the same time.
const ALIAS_TIMEOUT_FACTOR: u32 = 2;
