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
//! | `lists>hop!a.example` | the transport `lists` and its next hop `hop`, if not empty          |
//! | a local domain        | [`RouteAnswer::Local`], or its configured next hop                  |
//! | matched by a rule     | the next hop of the rule or its table, or the MX over its transport |
//! | next hop is a reply   | none: the mail fails or is deferred with this reply                 |
//! | `[192.0.2.1]`         | this address (RFC 5321 section 4.1.3)                               |
//! | anything else         | its MX hosts, or else its own addresses (RFC 5321 section 5.1)      |

mod candidate_host;
mod config;
mod configured_route;
mod destination;
mod error;
mod fixed_hop;
mod host_tls;
mod hosts;
mod missing_addresses;
mod next_hop_name;
mod route_key;
mod rule;
mod tables;
mod tls_options;

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dns::{NameServersError, Resolver};
use lookup::Table;
use mail::{HostTls, Reply, StsRule, TlsPolicyFailure};

pub use config::{Config, DomainRoute, DomainTableRoute, EndpointOptions, MissingAddressPolicy};
pub use fixed_hop::{FixedHop, FixedHopError};
pub use route_key::RouteKey;
pub use rule::{DomainPattern, DomainPatternError, RouteRule};
pub use tls_options::{TlsDemand, TlsOptions};

use candidate_host::{HostOrigin, HostParams};
use configured_route::RouteTarget;
use error::RouteError;
use hosts::{HostLookup, is_unspecified};
use missing_addresses::MissingAddressTracker;
use next_hop_name::NextHopNames;
use tables::RouteTables;

/// Resolves destinations. Can be shared; must be used on a single tokio runtime, on which its
/// queries run.
pub struct Router {
    config: Config,
    resolver: Arc<Resolver>,
    next_hop_names: NextHopNames,
    tables: RouteTables,
    missing_addresses: MissingAddressTracker,
}

/// The result for a destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Where its mail goes.
    pub answer: RouteAnswer,
    /// How long the result may be cached.
    pub valid_for: Duration,
    /// A lookup failed, or hosts have no addresses at the moment: the result does not say where the
    /// mail goes.
    pub transient: bool,
    /// Why policies about TLS of the domain cannot be met, for reports to its owner. Empty if the operator
    /// has chosen the next hop.
    pub tls_failures: Vec<TlsPolicyFailure>,
}

/// Where the mail of a destination goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteAnswer {
    /// To a transport that needs no host: to mailboxes here, to a program, or nowhere.
    Local {
        /// The name of the transport.
        transport: Box<str>,
    },
    /// To one of these hosts.
    Hosts(NextHopHosts),
    /// Unknown at the moment: 4xx.
    Defer(Reply),
    /// Nowhere, definitely: 5xx.
    Fail(Reply),
}

/// The hosts that accept the mail of a destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextHopHosts {
    /// The name of the transport.
    pub transport: Box<str>,
    /// The name of the next hop: the transport and the sorted names of all hosts with their ports,
    /// in at most 200 bytes. Domains with the same hosts share a next hop, whatever the order of
    /// preference.
    pub next_hop: Box<str>,
    /// Whether the configuration or one of its tables names the next hop. Otherwise the address of
    /// the recipient does, or the directory as the host of a mailbox: whoever chose that may choose
    /// the hosts, too.
    pub is_configured: bool,
    /// The hosts that have addresses, best first; those in one tier are equal, in no particular
    /// order. There is at least one tier, and no tier is empty.
    pub tiers: Vec<Vec<Host>>,
    /// What people should know of the TLS policies of these hosts: the MTA-STS policy, and hosts
    /// that were left out.
    pub tls_notes: Vec<Box<str>>,
}

/// A host that accepts mail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// The host name with A-labels, or the address, or the path of a unix socket.
    pub name: Box<str>,
    /// Where it listens; at least one.
    pub endpoints: Vec<Endpoint>,
    /// What it must prove before mail goes to it.
    pub tls: HostTls,
    /// What the MTA-STS policy of the domain says of it, if that is the policy that counts.
    pub sts: Option<StsRule>,
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
    pub fn new(config: Config) -> Result<Self, NameServersError> {
        let dns = Resolver::new(&config.resolver)?;
        let absences = MissingAddressTracker::new(config.missing_addresses);
        Ok(Router {
            config: config.with_ascii_names(),
            resolver: Arc::new(dns),
            next_hop_names: NextHopNames::default(),
            tables: RouteTables::default(),
            missing_addresses: absences,
        })
    }

    /// Adds the tables that the configuration names. A missing table counts as empty.
    pub fn with_tables(self, tables: impl IntoIterator<Item = Arc<dyn Table>>) -> Self {
        Router { tables: RouteTables::new(tables), ..self }
    }

    /// Resolves `destination`: a domain, an address literal in brackets, `host!domain` if another host
    /// stores the mailbox, or a [`RouteKey`] and its domain.
    ///
    /// Takes two queries in sequence, and one more for each 32 MX hosts after the first 32; with DANE
    /// two or three more for the TLSA records of each 32. An MTA-STS policy that is not known yet is fetched
    /// within [`mta_sts::FETCH_TIME_MAX`]. Each query takes at most [`dns::QueryConfig::total_timeout`], plus the wait for other queries.
    pub async fn route(&self, destination: &str) -> Route {
        let configured = self.configured_route(destination).await;
        let mut route = self.resolve_target(&configured.target, destination).await;
        if configured.uses_table {
            route.valid_for = route.valid_for.min(self.config.table_ttl);
        }
        route
    }

    /// Fetches MTA-STS policies again that would expire while no mail is sent. Takes long.
    pub async fn refresh_policies(&self) {
        if let Some(policies) = &self.config.sts_policies {
            policies.refresh_due(&self.resolver).await;
        }
    }

    async fn resolve_target(&self, target: &RouteTarget<'_>, destination: &str) -> Route {
        let (lookup, named_hop) = match target {
            RouteTarget::Local { transport } => return self.local_route(transport),
            RouteTarget::NextHop { hop, transport } => match self.lookup_next_hop(hop, transport).await {
                Ok(lookup) => (lookup.configured(), Some(hop)),
                Err(reply) => return self.reply_route(reply),
            },
            RouteTarget::MailHost { hop, transport } => match self.lookup_next_hop(hop, transport).await {
                Ok(lookup) => (lookup, Some(hop)),
                Err(reply) => return self.reply_route(reply),
            },
            RouteTarget::MxHosts { domain, transport } => {
                (self.lookup_mx(domain, &self.host_params(transport, None)).await, None)
            }
            RouteTarget::Address { address, transport } => (self.lookup_literal(*address, transport), None),
            RouteTarget::Unroutable(error @ RouteError::TableUnavailable(_)) => {
                (self.with_failure_ttl(error.clone()), None)
            }
            RouteTarget::Unroutable(error) => (self.with_max_ttl(Err(error.clone())), None),
        };
        let transient = matches!(&lookup.result, Err(obstacle) if obstacle.is_transient());
        let answer = match (lookup.result, named_hop) {
            (Ok(hosts), _) => RouteAnswer::Hosts(hosts),
            // The operator can correct a wrong next hop, so mail does not fail because of it.
            (Err(error), Some(hop)) => RouteAnswer::Defer(error.deferral_reply(&hop.to_string())),
            (Err(error), None) if error.is_permanent() => RouteAnswer::Fail(error.failure_reply(destination)),
            (Err(error), None) => RouteAnswer::Defer(error.deferral_reply(destination)),
        };
        let valid_for = lookup.expires_at.saturating_duration_since(Instant::now());
        Route { answer, valid_for, transient, tls_failures: lookup.tls_failures }
    }

    fn local_route(&self, transport: &str) -> Route {
        let answer = RouteAnswer::Local { transport: transport.into() };
        Route { answer, valid_for: self.config.resolver.ttl_max, transient: false, tls_failures: Vec::new() }
    }

    /// The configured reply.
    fn reply_route(&self, reply: Reply) -> Route {
        let answer = if reply.is_permanent() { RouteAnswer::Fail(reply) } else { RouteAnswer::Defer(reply) };
        Route { answer, valid_for: self.config.resolver.ttl_max, transient: false, tls_failures: Vec::new() }
    }

    /// Resolves a configured next hop. MX hosts come from a zone and may lead back to this host,
    /// but a configured host is trusted: another service may listen there on another port or behind
    /// the same address. Err: the next hop is a reply.
    async fn lookup_next_hop(&self, hop: &FixedHop, transport: &str) -> Result<HostLookup, Reply> {
        Ok(match hop {
            FixedHop::Host { name, port } => {
                let params = HostParams { may_loop: false, ..self.host_params(transport, *port) };
                let origin = HostOrigin { domain: None, authenticated: true };
                self.lookup_host(name, &params, origin, self.max_ttl_end()).await
            }
            FixedHop::Address { address, port } => {
                let port = port.unwrap_or(self.config.endpoint_options_for(transport).port);
                self.with_max_ttl(Ok(self.address_hosts(SocketAddr::new(*address, port), transport)))
            }
            FixedHop::Mx { domain, port } => self.lookup_mx(domain, &self.host_params(transport, *port)).await,
            FixedHop::Unix(path) => self.with_max_ttl(Ok(self.socket_hosts(path, transport))),
            FixedHop::Reply(reply) => return Err(reply.clone()),
        })
    }

    /// Address literals come from senders: it may be our own address, or one we cannot reach.
    fn lookup_literal(&self, address: IpAddr, transport: &str) -> HostLookup {
        let options = self.config.endpoint_options_for(transport);
        self.with_max_ttl(match address {
            own if self.is_own_address(own, options.port) => Err(RouteError::Loop),
            none if is_unspecified(none) => Err(RouteError::UnreachableAddress(none)),
            other if !options.families.contains(other) => Err(RouteError::UnreachableAddress(other)),
            other => Ok(self.address_hosts(SocketAddr::new(other, options.port), transport)),
        })
    }

    fn address_hosts(&self, address: SocketAddr, transport: &str) -> NextHopHosts {
        let next_hop = self.next_hop_names.name_for(transport, vec![address.to_string()]);
        let (name, tls) = (address.ip().to_string(), self.config.tls_options_for(transport));
        let tls = tls.for_address(&name);
        let endpoints = vec![Endpoint::Tcp(address)];
        one_host(transport, next_hop, Host { name: name.into(), endpoints, tls, sts: None })
    }

    fn socket_hosts(&self, path: &Path, transport: &str) -> NextHopHosts {
        let name = path.display().to_string();
        let next_hop = self.next_hop_names.name_for(transport, vec![format!("unix:{name}")]);
        let endpoints = vec![Endpoint::Unix(path.into())];
        one_host(transport, next_hop, Host { name: name.into(), endpoints, tls: HostTls::Transport, sts: None })
    }

    fn host_params<'a>(&'a self, transport: &'a str, port: Option<u16>) -> HostParams<'a> {
        let options = self.config.endpoint_options_for(transport);
        HostParams {
            transport,
            options: EndpointOptions { port: port.unwrap_or(options.port), ..options },
            tls: self.config.tls_options_for(transport),
            may_loop: true,
        }
    }

    /// Results from the configuration are valid as long as possible.
    fn with_max_ttl(&self, result: Result<NextHopHosts, RouteError>) -> HostLookup {
        HostLookup::new(result, self.max_ttl_end())
    }

    /// A table that is unavailable is queried again as soon as the DNS would be.
    fn with_failure_ttl(&self, error: RouteError) -> HostLookup {
        HostLookup::new(Err(error), Instant::now() + self.config.resolver.failure_ttl)
    }

    fn max_ttl_end(&self) -> Instant {
        Instant::now() + self.config.resolver.ttl_max
    }
}

fn one_host(transport: &str, next_hop: Box<str>, host: Host) -> NextHopHosts {
    NextHopHosts {
        transport: transport.into(),
        next_hop,
        is_configured: false,
        tiers: vec![vec![host]],
        tls_notes: Vec::new(),
    }
}
