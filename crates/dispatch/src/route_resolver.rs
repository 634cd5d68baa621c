//! The thread that resolves the route of a destination, with its limits.
//!
//! Many queries run concurrently; the router limits how many use the DNS. The answer is a next hop
//! with its hosts, or the outcome of each attempt if there is no route. It carries the edition of
//! the routing that produced it: when the routing changes, running queries finish with the old one,
//! and the scheduler asks again.

use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread;
use std::time::{Duration, SystemTime};

use delivery::pipe::PipeConfig;
use delivery::remote::{NextHop, NextHopAddress, RemoteDeliveryConfig};
use lookup::Table;
use mail::{EnhancedCode, Outcome, Rate, Reply, Timestamp, TlsPolicyFailure};
use queue::{ConcurrencyFeedback, ConcurrencyPolicy, DestinationId, NextHopLimits, NextHopRoute, SharedConcurrency};
use route::{DomainPattern, NextHopHosts, Route, RouteAnswer, Router};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::interval;

use super::classifier::UNKNOWN_HOST;
use super::delivery_route::DeliveryRoute;
use super::redirects::Redirects;
use super::{SchedulerHandle, SchedulerMsg};

/// Concurrent attempts that contact no host.
const INTERNAL_CONCURRENCY: usize = 100_000;
/// The next hop of destinations without a route.
const NO_ROUTE_HOP: &str = "nowhere";
/// The next hop of destinations whose mailbox host the directory does not tell.
const HOST_UNKNOWN_HOP: &str = "unsorted";
/// How long that answer is valid. It costs nothing and does not change.
const HOST_UNKNOWN_VALID_FOR: Duration = Duration::from_secs(3600);

/// How often policies are looked for that were not fetched for long.
const POLICY_REFRESH_INTERVAL: Duration = Duration::from_secs(3600);

/// A request to the thread.
pub(super) enum RouteRequest {
    /// Resolves a destination.
    Resolve(RouteQuery),
    /// Switches to this routing, with this edition.
    Reconfigure(Routing, u32),
}

/// A destination to resolve.
pub(super) struct RouteQuery {
    pub(super) destination: DestinationId,
    pub(super) name: Box<str>,
}

/// The router and the transports.
pub(super) struct Routing {
    router: Box<Router>,
    transports: Transports,
}

/// A handle to the thread.
#[derive(Clone)]
pub(super) struct RouteResolverHandle {
    requests: UnboundedSender<RouteRequest>,
}

/// Creates routers on the thread's runtime.
pub(super) struct RouterFactory(Handle);

/// The settings of a transport.
#[derive(Clone)]
pub struct TransportConfig {
    /// How it delivers.
    pub method: TransportMethod,
    /// Limits for each of its next hops.
    pub limits: NextHopLimits,
}

/// How a transport delivers.
#[derive(Clone)]
pub enum TransportMethod {
    /// To Maildirs, by the local deliverer with the name of the transport.
    Maildir,
    /// To other hosts.
    Remote(Arc<RemoteDeliveryConfig>),
    /// To a program.
    Program(Arc<PipeConfig>),
    /// Not at all: mail is discarded.
    Discard,
}

/// Settings for one next hop that override those of its transport.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextHopOverride {
    /// The hosts that it applies to.
    pub host: DomainPattern,
    /// Concurrent connections; at least 1.
    pub connections: Option<usize>,
    /// Messages per time.
    pub rate: Option<Rate>,
    /// Messages per connection.
    pub messages_per_connection: Option<u32>,
    /// Recipients per message.
    pub recipients_per_message: Option<usize>,
}

/// All transports by name, and the overrides for single next hops.
#[derive(Clone)]
pub struct Transports {
    /// By name of the transport.
    pub by_name: HashMap<Box<str>, TransportConfig>,
    /// The first override that applies to any host of a next hop counts.
    pub overrides: Vec<NextHopOverride>,
}

impl Transports {
    /// The override that applies to this next hop, if any.
    pub fn override_for(&self, hosts: &NextHopHosts) -> Option<&NextHopOverride> {
        let names = || hosts.tiers.iter().flatten().map(|host| &*host.name);
        self.overrides.iter().find(|peer_override| names().any(|name| peer_override.host.matches(name)))
    }
}

/// The name of a next hop, the route to it, and its limits.
type ResolvedRoute = (Box<str>, DeliveryRoute, NextHopLimits);

struct RouteResolver {
    routing: Routing,
    edition: u32,
    redirects: Redirects,
    scheduler: SchedulerHandle,
}

/// Starts the thread. It ends when all handles are dropped; open queries are then not answered.
pub(super) fn start(
    config: route::Config,
    tables: &[Arc<dyn Table>],
    (transports, redirects): (Transports, Redirects),
    scheduler: SchedulerHandle,
    alive: Sender<()>,
) -> io::Result<(RouteResolverHandle, RouterFactory)> {
    let (sender, requests) = mpsc::unbounded_channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let router_factory = RouterFactory(runtime.handle().clone());
    let routing = router_factory.routing(config, tables, transports)?;
    thread::Builder::new().name("route-resolver".into()).spawn(move || {
        let resolver = RouteResolver { routing, edition: 0, redirects, scheduler };
        LocalSet::new().block_on(&runtime, run(resolver, requests));
        drop(alive);
    })?;
    Ok((RouteResolverHandle { requests: sender }, router_factory))
}

async fn run(resolver: RouteResolver, mut requests: UnboundedReceiver<RouteRequest>) {
    let mut resolver = Rc::new(resolver);
    let mut refresh = interval(POLICY_REFRESH_INTERVAL);
    loop {
        let request = tokio::select! {
            request = requests.recv() => request,
            _ = refresh.tick() => {
                drop(spawn_local(resolver.clone().refresh_policies()));
                continue;
            }
        };
        match request {
            Some(RouteRequest::Resolve(question)) => drop(spawn_local(resolver.clone().resolve(question))),
            Some(RouteRequest::Reconfigure(ways, edition)) => {
                let (redirects, scheduler) = (resolver.redirects.clone(), resolver.scheduler.clone());
                resolver = Rc::new(RouteResolver { routing: ways, edition, redirects, scheduler });
            }
            None => return,
        }
    }
}

impl RouteResolverHandle {
    pub(super) fn send(&self, request: RouteRequest) {
        // Only fails at shutdown.
        drop(self.requests.send(request));
    }
}

impl RouterFactory {
    /// # Errors
    ///
    /// The router cannot be created: the system configures no DNS servers.
    pub(super) fn routing(
        &self,
        config: route::Config,
        tables: &[Arc<dyn Table>],
        transports: Transports,
    ) -> io::Result<Routing> {
        let _entered = self.0.enter();
        let router = Router::new(config).map_err(io::Error::other)?;
        let router = Box::new(router.with_tables(tables.iter().cloned()));
        Ok(Routing { router, transports })
    }
}

impl RouteResolver {
    async fn refresh_policies(self: Rc<Self>) {
        self.routing.router.refresh_policies().await;
    }

    async fn resolve(self: Rc<Self>, query: RouteQuery) {
        if query.name.split_once('!').is_some_and(|(host, _)| host == UNKNOWN_HOST) {
            return self.send_route(query.destination, host_unknown(), HOST_UNKNOWN_VALID_FOR, false);
        }
        loop {
            let redirects = self.redirects.current();
            let route = redirects.route(&self.routing.router, &query.name).await;
            if self.redirects.if_current(&redirects, || self.answer(query.destination, route)) {
                return;
            }
        }
    }

    fn answer(&self, destination: DestinationId, answered: Route) {
        let route = match answered.answer {
            RouteAnswer::Local { transport } => self.local_route(transport),
            RouteAnswer::Hosts(hosts) => self.remote_route(hosts, answered.tls_failures),
            RouteAnswer::Defer(reply) => no_route(Outcome::Deferred(reply), answered.tls_failures),
            RouteAnswer::Fail(reply) => no_route(Outcome::Failed(reply), answered.tls_failures),
        };
        self.send_route(destination, route, answered.valid_for, answered.transient);
    }

    fn send_route(
        &self,
        destination: DestinationId,
        (next_hop, way, limits): ResolvedRoute,
        valid_for: Duration,
        transient: bool,
    ) {
        let until = Timestamp::from(SystemTime::now()) + valid_for;
        let routed = NextHopRoute { next_hop, route: Arc::new(way), limits, until, transient };
        self.scheduler.send(SchedulerMsg::Routed(self.edition, destination, routed));
    }

    fn local_route(&self, transport: Box<str>) -> ResolvedRoute {
        let Some(TransportConfig { method, limits }) = self.routing.transports.by_name.get(&transport) else {
            return no_route(Outcome::Deferred(no_transport()), Vec::new());
        };
        let name = transport.clone();
        let route = match method {
            TransportMethod::Maildir => DeliveryRoute::Mailboxes { transport },
            TransportMethod::Program(pipe) => DeliveryRoute::Program { pipe: pipe.clone() },
            TransportMethod::Discard => return (name, DeliveryRoute::Discard { transport }, internal_limits()),
            TransportMethod::Remote(_) => return no_route(Outcome::Deferred(no_transport()), Vec::new()),
        };
        (name, route, limits.clone())
    }

    fn remote_route(&self, hosts: NextHopHosts, tls_failures: Vec<TlsPolicyFailure>) -> ResolvedRoute {
        let Some(TransportConfig { method: TransportMethod::Remote(config), limits }) =
            self.routing.transports.by_name.get(&hosts.transport).cloned()
        else {
            return no_route(Outcome::Deferred(no_transport()), Vec::new());
        };
        let (config, mut limits) = self.apply_override(&hosts, config, limits);
        if is_on_this_host(&hosts) {
            limits.shared_concurrency = None;
        }
        let tier = |tier: Vec<route::Host>| tier.into_iter().flat_map(targets).collect();
        let tiers = hosts.tiers.into_iter().map(tier).collect();
        let hop = NextHop {
            name: hosts.next_hop.clone().into(),
            config_version: self.edition,
            is_configured: hosts.is_configured,
            tiers,
            config,
            tls_failures,
        };
        (hosts.next_hop, DeliveryRoute::Remote { transport: hosts.transport, hop: Arc::new(hop) }, limits)
    }

    fn apply_override(
        &self,
        hosts: &NextHopHosts,
        mut config: Arc<RemoteDeliveryConfig>,
        mut limits: NextHopLimits,
    ) -> (Arc<RemoteDeliveryConfig>, NextHopLimits) {
        let Some(peer_override) = self.routing.transports.override_for(hosts) else { return (config, limits) };
        if let Some(connections) = peer_override.connections {
            limits.concurrency.max = connections;
            let idle = config.connections.idle_time_max;
            limits.shared_concurrency = limits.is_rate_shared.then_some(SharedConcurrency { idle });
        }
        limits.rate = peer_override.rate.or(limits.rate);
        limits.recipients_per_attempt_max = peer_override.recipients_per_message.or(limits.recipients_per_attempt_max);
        if let Some(messages) = peer_override.messages_per_connection {
            Arc::make_mut(&mut config).connections.messages_per_connection_max = messages;
        }
        (config, limits)
    }
}

/// Each server has its own next hop of this kind, such as a content filter: no limit of it is for others.
fn is_on_this_host(hosts: &NextHopHosts) -> bool {
    hosts.tiers.iter().flatten().flat_map(|host| &host.endpoints).all(|endpoint| match endpoint {
        route::Endpoint::Tcp(address) => address.ip().to_canonical().is_loopback(),
        route::Endpoint::Unix(_) => true,
    })
}

/// Each address of a host is a target of its own, in the order to try.
fn targets(host: route::Host) -> impl Iterator<Item = NextHopAddress> {
    let endpoint = |endpoint| match endpoint {
        route::Endpoint::Tcp(address) => net::Endpoint::Tcp(address),
        route::Endpoint::Unix(path) => net::Endpoint::Unix(path),
    };
    let route::Host { name, endpoints, tls, sts } = host;
    let target = move |found| NextHopAddress {
        host: name.clone(),
        endpoint: endpoint(found),
        tls: tls.clone(),
        sts: sts.clone(),
    };
    endpoints.into_iter().map(target)
}

fn no_route(outcome: Outcome, tls_failures: Vec<TlsPolicyFailure>) -> ResolvedRoute {
    (NO_ROUTE_HOP.into(), DeliveryRoute::NoRoute { outcome, tls_failures }, internal_limits())
}

fn host_unknown() -> ResolvedRoute {
    (HOST_UNKNOWN_HOP.into(), DeliveryRoute::HostUnknown, internal_limits())
}

/// For attempts that contact no host: only the limit on unrecorded attempts applies.
fn internal_limits() -> NextHopLimits {
    let concurrency = ConcurrencyPolicy {
        start: INTERNAL_CONCURRENCY,
        max: INTERNAL_CONCURRENCY,
        grow: 0.0,
        shrink: 1.0,
        adapt: ConcurrencyFeedback::ByAnswers,
    };
    NextHopLimits { concurrency, ..NextHopLimits::default() }
}

fn no_transport() -> Reply {
    Reply::new(451, EnhancedCode(4, 3, 5), "no transport for this destination")
}
