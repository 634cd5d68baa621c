//! Routing: from a recipient's domain to the transport, the next hop and its hosts.
//!
//! A [`Router`] resolves a destination to one of four answers: local, these hosts, deferred,
//! failed. It queries the DNS and the configured tables, connects to no mail server, and keeps only
//! a cache. If a lookup fails, mail is deferred; it fails only on a definite negative answer. Hosts
//! of equal preference are returned in no particular order: the caller shuffles them.
//!
//! | destination           | route                                                               |
//! |-----------------------|---------------------------------------------------------------------|
//! | `host:24!example.org` | the host that stores the mailbox, by its addresses                  |
//! | a local domain        | [`Answer::Local`], or its configured next hop                       |
//! | matched by a rule     | the next hop of the rule or its table, or the MX over its transport |
//! | next hop is a reply   | none: the mail fails or is deferred with this reply                 |
//! | `[192.0.2.1]`         | this address (RFC 5321 section 4.1.3)                               |
//! | anything else         | its MX hosts, or else its own addresses (RFC 5321 section 5.1)      |

mod absences;
mod config;
mod destination;
mod dns;
mod exchange;
mod hop;
mod identity;
mod records;
mod replies;
mod rule;
mod servers;
mod tables;
mod way;

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lookup::Table;
use mail::Reply;

pub use config::{Config, Dns, DomainTable, Families, Home, Reach};
pub use hop::{FixedHop, FixedHopError};
pub use rule::{Pattern, PatternError, Rule};

use absences::Absences;
use dns::Resolver;
use exchange::{Finding, Leg, is_no_address};
use identity::Names;
use replies::Obstacle;
use tables::Tables;
use way::Leads;

/// Resolves destinations. Can be shared; must be used on a single tokio runtime, on which its
/// queries run.
pub struct Router {
    config: Config,
    dns: Resolver,
    names: Names,
    tables: Tables,
    absences: Absences,
}

/// The system's name servers cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the system's name servers: {0}")]
pub struct NoServers(String);

/// The result for a destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Where its mail goes.
    pub answer: Answer,
    /// How long the result may be cached.
    pub valid_for: Duration,
    /// A lookup failed, or hosts have no addresses at the moment: the result does not say where the
    /// mail goes.
    pub transient: bool,
}

/// Where the mail of a destination goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// To mailboxes on this host.
    Local {
        /// The name of the transport.
        transport: Box<str>,
    },
    /// To one of these hosts.
    Hosts(Hosts),
    /// Unknown at the moment: 4xx.
    Defer(Reply),
    /// Nowhere, definitely: 5xx.
    Fail(Reply),
}

/// The hosts that accept the mail of a destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts {
    /// The name of the transport.
    pub transport: Box<str>,
    /// The name of the next hop: the transport and the sorted names of all hosts with their ports,
    /// in at most 200 bytes. Domains with the same hosts share a next hop, whatever the order of
    /// preference.
    pub next_hop: Box<str>,
    /// The hosts that have addresses, best first; those in one tier are equal, in no particular
    /// order. There is at least one tier, and no tier is empty.
    pub tiers: Vec<Vec<Host>>,
}

/// A host that accepts mail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// The host name with A-labels, or the address, or the path of a unix socket.
    pub name: Box<str>,
    /// Where it listens; at least one.
    pub endpoints: Vec<Endpoint>,
}

/// Where a host listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// An address and a port.
    Tcp(SocketAddr),
    /// The path of a unix socket.
    Unix(PathBuf),
}

impl Router {
    /// Creates a router with an empty cache. Reads `/etc/resolv.conf` if no name servers are
    /// configured.
    pub fn new(config: Config) -> Result<Self, NoServers> {
        let dns = Resolver::new(&config.dns)?;
        let absences = Absences::new(config.dns.no_address_lookups, config.dns.no_address_time);
        Ok(Router { config: config.into_ascii(), dns, names: Names::default(), tables: Tables::default(), absences })
    }

    /// Adds the tables that the configuration names. A missing table counts as empty.
    pub fn with_tables(self, tables: impl IntoIterator<Item = Arc<dyn Table>>) -> Self {
        Router { tables: Tables::new(tables), ..self }
    }

    /// Resolves `destination`: a domain, an address literal in brackets, or `host!domain` if
    /// another host stores the mailbox.
    ///
    /// Takes two queries in sequence, and one more for each 32 MX hosts after the first 32. Each
    /// takes at most [`Dns::patience`], plus the wait for other queries.
    pub async fn route(&self, destination: &str) -> Route {
        let way = self.way(destination).await;
        let mut route = self.follow(&way.leads, destination).await;
        if way.tabled {
            route.valid_for = route.valid_for.min(self.config.table_ttl);
        }
        route
    }

    async fn follow(&self, leads: &Leads<'_>, destination: &str) -> Route {
        let (finding, fixed) = match leads {
            Leads::Local { transport } => return self.local(transport),
            Leads::Hop { hop, transport } => match self.by_hop(hop, transport).await {
                Ok(finding) => (finding, Some(hop)),
                Err(reply) => return self.nowhere(reply),
            },
            Leads::Exchangers { domain, transport } => {
                (self.by_exchangers(domain, &self.leg(transport, None)).await, None)
            }
            Leads::Literal { address, transport } => (self.by_literal(*address, transport), None),
            Leads::Nowhere(obstacle @ Obstacle::Table(_)) => (self.failed(obstacle.clone()), None),
            Leads::Nowhere(obstacle) => (self.settled(Err(obstacle.clone())), None),
        };
        let transient = matches!(&finding.result, Err(obstacle) if obstacle.is_transient());
        let answer = match (finding.result, fixed) {
            (Ok(hosts), _) => Answer::Hosts(hosts),
            // The operator can correct a wrong next hop, so mail does not fail because of it.
            (Err(obstacle), Some(hop)) => Answer::Defer(obstacle.deferral(&hop.to_string())),
            (Err(obstacle), None) if obstacle.is_permanent() => Answer::Fail(obstacle.failure(destination)),
            (Err(obstacle), None) => Answer::Defer(obstacle.deferral(destination)),
        };
        Route { answer, valid_for: finding.until.saturating_duration_since(Instant::now()), transient }
    }

    fn local(&self, transport: &str) -> Route {
        let answer = Answer::Local { transport: transport.into() };
        Route { answer, valid_for: self.config.dns.ttl_max, transient: false }
    }

    /// The configured reply.
    fn nowhere(&self, reply: Reply) -> Route {
        let answer = if reply.is_permanent() { Answer::Fail(reply) } else { Answer::Defer(reply) };
        Route { answer, valid_for: self.config.dns.ttl_max, transient: false }
    }

    /// Resolves a configured next hop. MX hosts come from a zone and may lead back to this host,
    /// but a configured host is trusted: another service may listen there on another port or behind
    /// the same address. Err: the next hop is a reply.
    async fn by_hop(&self, hop: &FixedHop, transport: &str) -> Result<Finding, Reply> {
        Ok(match hop {
            FixedHop::Host { name, port } => {
                let leg = Leg { may_loop: false, ..self.leg(transport, *port) };
                self.by_name(name, &leg, self.ttl_end()).await
            }
            FixedHop::Address { address, port } => {
                let port = port.unwrap_or(self.config.reach(transport).port);
                self.settled(Ok(self.by_address(SocketAddr::new(*address, port), transport)))
            }
            FixedHop::Exchangers(domain) => self.by_exchangers(domain, &self.leg(transport, None)).await,
            FixedHop::Unix(path) => self.settled(Ok(self.by_socket(path, transport))),
            FixedHop::Nowhere(reply) => return Err(reply.clone()),
        })
    }

    /// Address literals come from senders: it may be our own address, or one we cannot reach.
    fn by_literal(&self, address: IpAddr, transport: &str) -> Finding {
        let reach = self.config.reach(transport);
        self.settled(match address {
            own if self.is_own_address(own, reach.port) => Err(Obstacle::Loop),
            none if is_no_address(none) => Err(Obstacle::Family(none)),
            other if !reach.families.contain(other) => Err(Obstacle::Family(other)),
            other => Ok(self.by_address(SocketAddr::new(other, reach.port), transport)),
        })
    }

    fn by_address(&self, address: SocketAddr, transport: &str) -> Hosts {
        let next_hop = self.names.next_hop(transport, vec![address.to_string()]);
        one_host(transport, next_hop, address.ip().to_string(), Endpoint::Tcp(address))
    }

    fn by_socket(&self, path: &Path, transport: &str) -> Hosts {
        let name = path.display().to_string();
        let next_hop = self.names.next_hop(transport, vec![format!("unix:{name}")]);
        one_host(transport, next_hop, name, Endpoint::Unix(path.into()))
    }

    fn leg<'a>(&self, transport: &'a str, port: Option<u16>) -> Leg<'a> {
        let reach = self.config.reach(transport);
        Leg { transport, reach: Reach { port: port.unwrap_or(reach.port), ..reach }, may_loop: true }
    }

    /// Results from the configuration are valid as long as possible.
    fn settled(&self, result: Result<Hosts, Obstacle>) -> Finding {
        Finding { result, until: self.ttl_end() }
    }

    /// A table that is unavailable is queried again as soon as the DNS would be.
    fn failed(&self, obstacle: Obstacle) -> Finding {
        Finding { result: Err(obstacle), until: Instant::now() + self.config.dns.failure_ttl }
    }

    fn ttl_end(&self) -> Instant {
        Instant::now() + self.config.dns.ttl_max
    }
}

fn one_host(transport: &str, next_hop: Box<str>, name: String, endpoint: Endpoint) -> Hosts {
    let host = Host { name: name.into(), endpoints: vec![endpoint] };
    Hosts { transport: transport.into(), next_hop, tiers: vec![vec![host]] }
}
