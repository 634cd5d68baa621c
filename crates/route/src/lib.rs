//! Where mail goes: from a recipient's domain to the transport, the next hop and the set of its hosts.
//!
//! A [`Router`] is asked for a destination and answers with one of four things: it is ours, these hosts take it, not
//! now, never. It asks the DNS, and the tables that its configuration names; it opens no connection to a mail server, and keeps nothing but answers.
//! What they cannot say puts mail off; only what the DNS denies for certain fails. Equal hosts come in no particular
//! order: to shuffle them is the caller's.
//!
//! | destination            | way                                                                                   |
//! |------------------------|---------------------------------------------------------------------------------------|
//! | `host:24!example.org`  | the machine that stores the mailbox, by its addresses                                 |
//! | a domain of ours       | [`Answer::Local`], or where it is passed on                                           |
//! | one that a rule takes  | the rule's next hop, or that which its table names, or the MX by the rule's transport |
//! | one whose next hop is a reply | none: the mail fails or waits with this reply                                 |
//! | `[192.0.2.1]`          | this address (RFC 5321 section 4.1.3)                                                 |
//! | anything else          | its MX hosts, or where it has none its own addresses (RFC 5321 section 5.1)           |

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

/// Knows the way. Shared by all who ask; it is to be used on one tokio runtime, on which its questions run.
pub struct Router {
    config: Config,
    dns: Resolver,
    names: Names,
    tables: Tables,
    absences: Absences,
}

/// The name servers of the system are not to be had.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the system's name servers: {0}")]
pub struct NoServers(String);

/// What is known of a destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Where its mail goes.
    pub answer: Answer,
    /// How long this may be relied on; ask again then.
    pub valid_for: Duration,
    /// The DNS or a table could not say, or hosts have no addresses at the moment: this is no word on where the mail goes.
    pub transient: bool,
}

/// Where the mail of a destination goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Into mailboxes here.
    Local {
        /// The name of the transport.
        transport: Box<str>,
    },
    /// To one of these hosts.
    Hosts(Hosts),
    /// Nobody can say now: 4xx.
    Defer(Reply),
    /// Nowhere, for certain: 5xx.
    Fail(Reply),
}

/// Who takes the mail of a destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts {
    /// The name of the transport.
    pub transport: Box<str>,
    /// Who they are: the transport and the sorted names of all hosts of the set with their ports, in 200 bytes at
    /// most. Domains with the same hosts are one next hop, whatever order each of them prefers.
    pub next_hop: Box<str>,
    /// Those that have addresses, the best first; those of one tier are equal, in no particular order. Never empty,
    /// and no tier is.
    pub tiers: Vec<Vec<Host>>,
}

/// A host that takes mail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Its name in the DNS, in A-labels; the address where it has none; the path of a socket.
    pub name: Box<str>,
    /// Where it listens. Never empty.
    pub endpoints: Vec<Endpoint>,
}

/// Where a host listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// An address and a port.
    Tcp(SocketAddr),
    /// The path of a socket on this machine.
    Unix(PathBuf),
}

impl Router {
    /// A router with an empty cache. Reads `/etc/resolv.conf` where no name servers are configured.
    pub fn new(config: Config) -> Result<Self, NoServers> {
        let dns = Resolver::new(&config.dns)?;
        let absences = Absences::new(config.dns.no_address_lookups, config.dns.no_address_time);
        Ok(Router { config: config.into_ascii(), dns, names: Names::default(), tables: Tables::default(), absences })
    }

    /// The same with the tables that the configuration names. One that it names and that is not among them has nothing.
    pub fn with_tables(self, tables: impl IntoIterator<Item = Arc<dyn Table>>) -> Self {
        Router { tables: Tables::new(tables), ..self }
    }

    /// Where the mail of `destination` goes: a domain, an address literal in brackets, or `host!domain` where another
    /// machine stores the mailbox.
    ///
    /// Two questions follow on one another, and one more for each 32 mail hosts after the first; each takes no longer than
    /// [`Dns::patience`], once it is its turn.
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
            // What an operator named wrongly he can put right: nobody's mail fails for it.
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

    /// The operator says what becomes of the mail.
    fn nowhere(&self, reply: Reply) -> Route {
        let answer = if reply.is_permanent() { Answer::Fail(reply) } else { Answer::Defer(reply) };
        Route { answer, valid_for: self.config.dns.ttl_max, transient: false }
    }

    /// A next hop that is named. Mail may come back from the mail hosts of a domain, which its zone names, but a host
    /// is taken at the operator's word: what listens there at another port, or behind the same address, is his. Err: it is
    /// no host but a reply.
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

    /// An address literal is somebody else's word: it may be our own address, or one that we cannot reach.
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

    /// What the configuration says holds as long as anything does.
    fn settled(&self, result: Result<Hosts, Obstacle>) -> Finding {
        Finding { result, until: self.ttl_end() }
    }

    /// A table that cannot say is asked again as soon as the DNS would be.
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
