//! What a router goes by. Parsed before it comes here; every limit has a default.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::destination::to_ascii;
use crate::{FixedHop, Rule};

/// What a [`Router`](crate::Router) goes by.
#[derive(Clone, Debug)]
pub struct Config {
    /// Our own name: an MX host of this name is ourselves.
    pub hostname: Box<str>,
    /// Our own addresses: an MX host with one of them is ourselves.
    pub own_addresses: Vec<IpAddr>,
    /// The ports at which we take mail: an MX host of a loopback address is ourselves if it is reached at one of them.
    pub own_ports: Vec<u16>,
    /// How the DNS is asked.
    pub dns: Dns,
    /// Domains of ours, and where mail for each goes.
    pub domains: HashMap<Box<str>, Home>,
    /// Domains of ours whose names are in a table; the first that has a name counts.
    pub domain_tables: Vec<DomainTable>,
    /// How long a way is good for that a table has shown.
    pub table_ttl: Duration,
    /// Other ways than the MX; the first that fits counts.
    pub rules: Vec<Rule>,
    /// The transport of what no rule takes.
    pub transport: Box<str>,
    /// The transport to the machine that stores a mailbox.
    pub mail_host_transport: Box<str>,
    /// What each transport reaches, by its name; one that is left out has the default.
    pub reaches: HashMap<Box<str>, Reach>,
}

impl Config {
    /// Everything by MX over the transport `smtp`, for the host of this name.
    pub fn new(hostname: &str) -> Self {
        Config {
            hostname: hostname.into(),
            own_addresses: Vec::new(),
            own_ports: Vec::new(),
            dns: Dns::default(),
            domains: HashMap::new(),
            domain_tables: Vec::new(),
            table_ttl: Duration::from_secs(60),
            rules: Vec::new(),
            transport: "smtp".into(),
            mail_host_transport: "smtp".into(),
            reaches: HashMap::new(),
        }
    }

    /// The same with all names as the DNS has them, so that they can be compared. A name of ours that the DNS cannot
    /// hold stays as it is.
    pub(crate) fn into_ascii(mut self) -> Self {
        let ascii = |name: Box<str>| to_ascii(&name).unwrap_or(name);
        self.hostname = ascii(self.hostname);
        self.domains = self.domains.into_iter().map(|(name, home)| (ascii(name), home)).collect();
        self
    }

    /// What a transport reaches.
    pub(crate) fn reach(&self, transport: &str) -> Reach {
        self.reaches.get(transport).copied().unwrap_or_default()
    }
}

/// Where mail for a domain of ours goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home {
    /// By which transport.
    pub transport: Box<str>,
    /// To which host; None: into mailboxes here.
    pub next_hop: Option<FixedHop>,
}

/// Domains of ours whose names are in a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainTable {
    /// The table that has their names.
    pub names: Box<str>,
    /// Where mail for them goes.
    pub home: Home,
}

/// What a transport reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    /// The port where no next hop names one.
    pub port: u16,
    /// The families of addresses it can connect to.
    pub families: Families,
    /// How many addresses of one next hop are known at most. An attempt tries a few of them, and the next one others.
    pub addresses_max: usize,
}

impl Default for Reach {
    fn default() -> Self {
        Reach { port: 25, families: Families::Both, addresses_max: 256 }
    }
}

/// Families of addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Families {
    /// IPv4 only.
    V4,
    /// IPv6 only.
    V6,
    /// Both; of a host that has both they take turns, IPv6 first.
    #[default]
    Both,
}

impl Families {
    /// Whether an address is of these.
    pub(crate) fn contain(self, address: IpAddr) -> bool {
        match self {
            Families::V4 => address.is_ipv4(),
            Families::V6 => address.is_ipv6(),
            Families::Both => true,
        }
    }
}

/// How the DNS is asked.
#[derive(Clone, Debug)]
pub struct Dns {
    /// The name servers; none: those of `/etc/resolv.conf`.
    pub servers: Vec<SocketAddr>,
    /// How long one try waits for an answer. Within it a datagram is sent again, up to twice.
    pub timeout: Duration,
    /// How many times each server is asked before a question counts as failed.
    pub attempts: usize,
    /// Answers that are kept.
    pub cache_entries: u64,
    /// Records that say less are kept this long. Without it a route of records that say nothing holds no time at all.
    pub ttl_min: Duration,
    /// Records that say more are kept this long.
    pub ttl_max: Duration,
    /// A denial is kept this long at most (RFC 2308 section 5).
    pub negative_ttl_max: Duration,
    /// A failure is remembered this long (RFC 2308 section 7 allows five minutes).
    pub failure_ttl: Duration,
    /// Questions under way at once; more wait their turn. One that stays without an answer holds up to three sockets for
    /// each of two servers.
    pub questions_max: usize,
    /// After so many lookups in a row that find no address for any of the MX hosts of a domain, its mail fails (RFC 5321
    /// section 5.1); until then it waits, as a zone may be in the middle of a change. A lookup counts once all answers of
    /// the one before have had their time. 0: it waits for its lifetime.
    pub no_address_lookups: u32,
    /// The first and the last of them are so far apart at least.
    pub no_address_time: Duration,
}

impl Dns {
    /// How long one question may take with all its tries, and with the aliases that it leads through. The wait for its
    /// turn is not in it.
    pub fn patience(&self) -> Duration {
        let tries = u32::try_from(self.attempts.max(1)).unwrap_or(u32::MAX);
        self.timeout.saturating_mul(tries).saturating_mul(ALIAS_PATIENCE)
    }
}

impl Default for Dns {
    fn default() -> Self {
        Dns {
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

/// Denials may hold for seconds; to move a host to another address takes minutes.
const NO_ADDRESS_TIME: Duration = Duration::from_secs(30 * 60);

/// An alias that leads to another zone doubles the questions; further ones are as quick as they can be.
const ALIAS_PATIENCE: u32 = 2;
