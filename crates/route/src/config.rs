//! The configuration of a router. Values are parsed before they get here; every limit has a
//! default.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use dns::{AddressFamilies, ResolverConfig, to_ascii};
use mta_sts::PolicyCache;

use crate::{FixedHop, RouteRule, TlsOptions};

/// The TLS options of a transport without any.
static NO_DEMANDS: TlsOptions = TlsOptions::NONE;

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
    /// When mail fails for a domain whose MX hosts have no address.
    pub missing_addresses: MissingAddressPolicy,
    /// Local domains, and where their mail goes.
    pub domains: HashMap<Box<str>, DomainRoute>,
    /// Tables of local domains; the first one that contains the domain applies.
    pub domain_tables: Vec<DomainTableRoute>,
    /// How long a route that depends on a table may be cached.
    pub table_ttl: Duration,
    /// Routes other than the MX; the first matching rule applies.
    pub rules: Vec<RouteRule>,
    /// The transport if no rule matches.
    pub transport: Box<str>,
    /// The transport to the host that stores a mailbox.
    pub mail_host_transport: Box<str>,
    /// The transports that need no host: of Maildirs, of programs, and those that discard.
    pub hostless_transports: HashSet<Box<str>>,
    /// The next hops of transports, for mail that is routed to a transport by name.
    pub transport_next_hops: HashMap<Box<str>, FixedHop>,
    /// How each transport connects, by name; a missing one has the defaults.
    pub endpoint_options: HashMap<Box<str>, EndpointOptions>,
    /// What each transport demands of hosts by TLS, by name; a missing one demands nothing.
    pub tls_options: HashMap<Box<str>, TlsOptions>,
    /// The MTA-STS policies of other domains. None: they are not asked for.
    pub sts_policies: Option<Arc<PolicyCache>>,
}

impl Config {
    /// Routes everything by MX over the transport `smtp`; `hostname` is our name.
    pub fn new(hostname: &str) -> Self {
        Config {
            hostname: hostname.into(),
            own_addresses: Vec::new(),
            own_ports: Vec::new(),
            resolver: ResolverConfig::default(),
            missing_addresses: MissingAddressPolicy::default(),
            domains: HashMap::new(),
            domain_tables: Vec::new(),
            table_ttl: Duration::from_secs(60),
            rules: Vec::new(),
            transport: "smtp".into(),
            mail_host_transport: "smtp".into(),
            hostless_transports: HashSet::new(),
            transport_next_hops: HashMap::new(),
            endpoint_options: HashMap::new(),
            tls_options: HashMap::new(),
            sts_policies: None,
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

    /// What a transport demands of hosts by TLS.
    pub(crate) fn tls_options_for(&self, transport: &str) -> &TlsOptions {
        self.tls_options.get(transport).unwrap_or(&NO_DEMANDS)
    }

    /// The name of a transport as this configuration has it, if it has the transport.
    pub(crate) fn transport_named(&self, name: &str) -> Option<&str> {
        let hostless = || self.hostless_transports.get(name);
        self.endpoint_options.get_key_value(name).map(|(name, _)| name).or_else(hostless).map(|name| &**name)
    }

    /// How a transport connects.
    pub(crate) fn endpoint_options_for(&self, transport: &str) -> EndpointOptions {
        self.endpoint_options.get(transport).copied().unwrap_or_default()
    }
}

/// When mail fails because no MX host of its domain has an address (RFC 5321 section 5.1); until
/// then it is deferred, since the zone may be in the middle of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissingAddressPolicy {
    /// After this many consecutive lookups without an address. A lookup counts once all answers of
    /// the one before have expired. 0: mail is deferred until it expires.
    pub lookups: u32,
    /// The minimum time between the first and the last of these lookups. Negative answers may be
    /// valid for seconds only, but moving a host to another address takes minutes.
    pub time: Duration,
}

impl Default for MissingAddressPolicy {
    fn default() -> Self {
        MissingAddressPolicy { lookups: 3, time: Duration::from_secs(30 * 60) }
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
pub struct DomainTableRoute {
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
