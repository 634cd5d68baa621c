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

use delivery::remote::{NextHop, Target};
use mail::{Enhanced, Outcome, Reply, Timestamp};
use queue::{Adapt, Concurrency, Destination, Limits, Probe, Routed};
use route::{Answer, Hosts, Router};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::task::{LocalSet, spawn_local};

use super::sorter::UNKNOWN_HOST;
use super::way::Way;
use super::{Mailbag, Note};
use crate::tables::Tables;

/// Concurrent attempts that contact no host.
const INSIDE_CONCURRENCY: usize = 100_000;
/// The next hop of destinations without a route.
const NOWHERE: &str = "nowhere";
/// The next hop of destinations whose mailbox host the directory does not tell.
const UNSORTED: &str = "unsorted";
/// How long that answer is valid. It costs nothing and does not change.
const UNSORTED_FOR: Duration = Duration::from_secs(3600);

/// A request to the thread.
pub(super) enum Request {
    /// Resolves a destination.
    Question(Question),
    /// Switches to this routing, with this edition.
    Change(Ways, u32),
}

/// A destination to resolve.
pub(super) struct Question {
    pub(super) destination: Destination,
    pub(super) name: Box<str>,
}

/// The router and the transports.
pub(super) struct Ways {
    router: Box<Router>,
    fleet: Fleet,
}

/// A handle to the thread.
#[derive(Clone)]
pub(super) struct Navigation {
    requests: UnboundedSender<Request>,
}

/// Creates routers on the thread's runtime.
pub(super) struct Shipyard(Handle);

/// The settings of a transport.
#[derive(Clone)]
pub struct Ship {
    /// How to reach other hosts; None for a local transport.
    pub remote: Option<Arc<delivery::remote::Config>>,
    /// Limits for each of its next hops.
    pub limits: Limits,
}

/// Settings for one next hop that override those of its transport.
#[derive(Clone)]
pub struct Exception {
    /// Whether the override applies to a host.
    pub is_for: Arc<dyn Fn(&str) -> bool + Send + Sync>,
    /// Concurrent connections.
    pub connections: Option<usize>,
    /// Messages per time.
    pub rate: Option<queue::Rate>,
    /// Messages per connection.
    pub messages_per_connection: Option<u32>,
    /// Recipients per message.
    pub recipients_per_message: Option<usize>,
}

/// All transports by name, and the overrides for single next hops.
#[derive(Clone)]
pub struct Fleet {
    /// By name of the transport.
    pub ships: HashMap<Box<str>, Ship>,
    /// The first override that applies to any host of a next hop counts.
    pub exceptions: Vec<Exception>,
}

/// The name of a next hop, the route to it, and its limits.
type Found = (Box<str>, Way, Limits);

struct Navigator {
    ways: Ways,
    edition: u32,
    mailbag: Mailbag,
}

/// Starts the thread. It ends when all handles are dropped; open queries are then not answered.
pub(super) fn start(
    config: route::Config,
    tables: &Tables,
    fleet: Fleet,
    mailbag: Mailbag,
    alive: Sender<()>,
) -> io::Result<(Navigation, Shipyard)> {
    let (sender, requests) = mpsc::unbounded_channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let shipyard = Shipyard(runtime.handle().clone());
    let ways = shipyard.ways(config, tables, fleet)?;
    thread::Builder::new().name("navigator".into()).spawn(move || {
        let navigator = Navigator { ways, edition: 0, mailbag };
        LocalSet::new().block_on(&runtime, run(navigator, requests));
        drop(alive);
    })?;
    Ok((Navigation { requests: sender }, shipyard))
}

async fn run(navigator: Navigator, mut requests: UnboundedReceiver<Request>) {
    let mut navigator = Rc::new(navigator);
    while let Some(request) = requests.recv().await {
        match request {
            Request::Question(question) => drop(spawn_local(navigator.clone().answer(question))),
            Request::Change(ways, edition) => {
                navigator = Rc::new(Navigator { ways, edition, mailbag: navigator.mailbag.clone() });
            }
        }
    }
}

impl Navigation {
    pub(super) fn tell(&self, request: Request) {
        // Only fails at shutdown.
        drop(self.requests.send(request));
    }
}

impl Shipyard {
    /// # Errors
    ///
    /// The router cannot be created: the system configures no DNS servers.
    pub(super) fn ways(&self, config: route::Config, tables: &Tables, fleet: Fleet) -> io::Result<Ways> {
        let _entered = self.0.enter();
        let router = Router::new(config).map_err(io::Error::other)?;
        let router = Box::new(router.with_tables(tables.iter().map(|(_, table)| table.clone())));
        Ok(Ways { router, fleet })
    }
}

impl Navigator {
    async fn answer(self: Rc<Self>, question: Question) {
        if question.name.split_once('!').is_some_and(|(host, _)| host == UNKNOWN_HOST) {
            return self.tell(question.destination, unsorted(), UNSORTED_FOR, false);
        }
        let answered = self.ways.router.route(&question.name).await;
        let way = match answered.answer {
            Answer::Local { transport } => self.mailboxes(transport),
            Answer::Hosts(hosts) => self.hosts(hosts),
            Answer::Defer(reply) => nowhere(Outcome::Deferred(reply)),
            Answer::Fail(reply) => nowhere(Outcome::Failed(reply)),
        };
        self.tell(question.destination, way, answered.valid_for, answered.transient);
    }

    fn tell(&self, destination: Destination, (next_hop, way, limits): Found, valid_for: Duration, transient: bool) {
        let until = Timestamp::from(SystemTime::now()) + valid_for;
        let routed = Routed { next_hop, route: Arc::new(way), limits, until, transient };
        self.mailbag.tell(Note::Routed(self.edition, destination, routed));
    }

    fn mailboxes(&self, transport: Box<str>) -> Found {
        match self.ways.fleet.ships.get(&transport) {
            Some(ship) => (transport.clone(), Way::Mailboxes { transport }, ship.limits.clone()),
            None => nowhere(Outcome::Deferred(no_transport())),
        }
    }

    fn hosts(&self, hosts: Hosts) -> Found {
        let Some(Ship { remote: Some(config), limits }) = self.ways.fleet.ships.get(&hosts.transport).cloned() else {
            return nowhere(Outcome::Deferred(no_transport()));
        };
        let (config, limits) = self.exception(&hosts, config, limits);
        let tier = |tier: Vec<route::Host>| tier.into_iter().flat_map(targets).collect();
        let tiers = hosts.tiers.into_iter().map(tier).collect();
        let hop = NextHop { name: hosts.next_hop.clone().into(), edition: self.edition, tiers, config };
        (hosts.next_hop, Way::Remote { transport: hosts.transport, hop: Arc::new(hop) }, limits)
    }

    fn exception(
        &self,
        hosts: &Hosts,
        mut config: Arc<delivery::remote::Config>,
        mut limits: Limits,
    ) -> (Arc<delivery::remote::Config>, Limits) {
        let names = || hosts.tiers.iter().flatten().map(|host| &*host.name);
        let Some(exception) =
            self.ways.fleet.exceptions.iter().find(|exception| names().any(|name| (exception.is_for)(name)))
        else {
            return (config, limits);
        };
        if let Some(connections) = exception.connections {
            limits.concurrency.most = connections;
        }
        limits.rate = exception.rate.or(limits.rate);
        limits.recipients_per_attempt_max = exception.recipients_per_message.or(limits.recipients_per_attempt_max);
        if let Some(messages) = exception.messages_per_connection {
            Arc::make_mut(&mut config).messages_per_connection_max = messages;
        }
        (config, limits)
    }
}

/// Each address of a host is a target of its own, in the order to try.
fn targets(host: route::Host) -> impl Iterator<Item = Target> {
    let endpoint = |endpoint| match endpoint {
        route::Endpoint::Tcp(address) => net::Endpoint::Tcp(address),
        route::Endpoint::Unix(path) => net::Endpoint::Unix(path),
    };
    let name = host.name;
    host.endpoints.into_iter().map(move |found| Target { host: name.clone(), endpoint: endpoint(found) })
}

fn nowhere(outcome: Outcome) -> Found {
    (NOWHERE.into(), Way::Nowhere { outcome }, inside())
}

fn unsorted() -> Found {
    (UNSORTED.into(), Way::Unsorted, inside())
}

/// For attempts that contact no host: only the limit on unrecorded attempts applies.
fn inside() -> Limits {
    let concurrency = Concurrency {
        start: INSIDE_CONCURRENCY,
        most: INSIDE_CONCURRENCY,
        grow: 0.0,
        shrink: 1.0,
        adapt: Adapt::ByAnswers,
    };
    Limits { concurrency, rate: None, probe: Probe::default(), recipients_per_attempt_max: None }
}

fn no_transport() -> Reply {
    Reply::new(451, Enhanced(4, 3, 5), "no transport for this destination")
}
