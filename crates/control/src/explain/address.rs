//! How mail for an address would be routed: what the directory says, which queue it would enter and
//! by which rule, which hosts would take it, and what holds their mail now. It uses a router of its
//! own with an empty cache, so the answer is what the DNS says now.

use std::io::{self, Write};
use std::sync::Arc;

use intake::DomainMatcher;
use lookup::Table;
use lookup::directory::{AddressResolution, MailboxLocation, RecipientDirectory};
use mail::{Address, HostTls, ReturnRefusal, Timestamp};
use queue::{BlockReason, NextHopLimits, NextHopView, QueueNumber, Queues};
use route::{Endpoint, Host, NextHopHosts, Route, RouteAnswer, Router};
use serde::{Deserialize, Serialize};

use super::super::text::{plural, short_duration};
use super::{next_hop_load, obstacle_lines};
use dispatch::{ClassifierRules, RedirectTable, RouteChoice, RoutedRecipient, TransportMethod, Transports};
use mailbox::quota::MailboxQuotaChecker;

/// How many of the addresses that an alias resolves to are traced.
const RECIPIENTS_MAX: usize = 20;

/// Knows the directory, the rules and the routes of one configuration.
pub struct AddressExplainer {
    /// The recipient directory.
    pub directory: Arc<RecipientDirectory>,
    /// The rules that choose queues.
    pub rules: ClassifierRules,
    /// The tables that routes use.
    pub tables: Vec<Arc<dyn Table>>,
    /// The routing.
    pub router_config: route::Config,
    /// The transports.
    pub transports: Transports,
    /// The quotas of mailboxes, if any has one.
    pub quotas: Option<Arc<MailboxQuotaChecker>>,
    /// The domains of strangers whose senders are rewritten; None: none.
    pub rewritten_senders: Option<DomainMatcher>,
}

/// The result, before the queues are asked.
pub(in super::super) struct AddressTrace {
    /// What the directory says.
    resolution: String,
    /// Set if the directory alone decides.
    verdict: Option<Deliverability>,
    pub(in super::super) recipients: Vec<RecipientRoute>,
    /// Addresses that are not traced.
    omitted: usize,
    /// What the sender becomes, if a stranger's message is forwarded.
    forwarded_sender: Option<String>,
}

/// Whether mail for an address would be delivered, as far as this can be told without sending any.
/// The last is the worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Deliverability {
    /// It would be.
    Deliverable,
    /// The directory or the DNS does not answer now.
    Unknown,
    /// It would bounce.
    Undeliverable,
}

/// The route to one address.
#[derive(Clone)]
pub(in super::super) struct RecipientRoute {
    address: Address,
    /// The destination's name in the queue.
    destination: String,
    /// What says so, if it is not the domain.
    origin: &'static str,
    queue: QueueNumber,
    rule: String,
    route: Result<Route, String>,
    /// The mailbox's quota, if it is local and has one.
    quota: Option<String>,
}

/// Where mail for an address goes.
struct Place {
    /// The destination's name in the queue; Err: unknown, and why.
    destination: Result<String, String>,
    /// What says so, if it is not the domain.
    origin: &'static str,
    /// The mailbox is on this host.
    is_here: bool,
}

/// What the queues know of a route.
pub(in super::super) struct QueueState {
    queue: Box<str>,
    obstacles: Vec<BlockReason>,
    next_hop_load: Option<String>,
    queue_names: Vec<Box<str>>,
}

impl AddressExplainer {
    /// Whether there is such a transport, and it delivers to other hosts.
    pub(in super::super) fn is_remote_transport(&self, name: &str) -> bool {
        let found = self.transports.by_name.get(name);
        found.is_some_and(|transport| matches!(transport.method, TransportMethod::Remote(_)))
    }

    /// Resolves the routes to an address that the directory has resolved, by tables and the DNS.
    /// This may take long.
    pub(in super::super) async fn trace(
        &self,
        resolution: AddressResolution,
        sender: Option<&Address>,
        redirects: &RedirectTable,
    ) -> AddressTrace {
        let forwarded_sender = match &resolution {
            AddressResolution::Local(found) if found.iter().any(|one| !one.local) => {
                self.forwarded_sender(sender).await
            }
            _ => None,
        };
        let DirectoryAnswer { resolution, verdict, addresses } = directory_answer(resolution);
        let router = Router::new(self.router_config.clone()).map_err(|error| error.to_string());
        let router = router.map(|router| router.with_tables(self.tables.iter().cloned()));
        let mut recipients = Vec::new();
        for address in addresses.iter().take(RECIPIENTS_MAX) {
            recipients.push(self.recipient_route(address, sender, (&router, redirects)).await);
        }
        let omitted = addresses.len().saturating_sub(RECIPIENTS_MAX);
        AddressTrace { resolution, verdict, recipients, omitted, forwarded_sender }
    }

    /// What becomes of this sender in other domains. None: it stays. The code of the address is left out:
    /// with it, anybody could send notices to this sender by this host.
    async fn forwarded_sender(&self, sender: Option<&Address>) -> Option<String> {
        let (is_rewritten, rewriter) = self.rewritten_senders.as_ref().zip(self.rules.sender_rewriter.as_ref())?;
        let sender = sender.filter(|sender| is_rewritten(sender.domain()))?;
        match self.directory.domain(sender.domain()).await {
            Ok(None) => Some(match rewriter.forward(sender) {
                Some(rewritten) => format!("an SRS address in {}, if a stranger sends it", rewritten.domain()),
                None => format!("{sender}, which is too long for SRS"),
            }),
            Ok(Some(_)) => None,
            Err(why) => Some(format!("unknown: {why}")),
        }
    }

    async fn recipient_route(
        &self,
        address: &Address,
        sender: Option<&Address>,
        (router, redirects): (&Result<Router, String>, &RedirectTable),
    ) -> RecipientRoute {
        let domain = address.domain();
        let Place { destination, origin, is_here } = self.place(address, sender).await;
        let (queue, rule) = self.queue(sender, domain, is_here).await;
        let (destination, route) = match (destination, router) {
            (Ok(destination), Ok(router)) => {
                let route = redirects.route(router, &destination).await;
                (destination, Ok(route))
            }
            (Ok(destination), Err(why)) => (destination, Err(why.clone())),
            (Err(why), _) => (domain.to_owned(), Err(why)),
        };
        let quota = match &self.quotas {
            Some(quotas) => quotas.describe(address).await,
            None => None,
        };
        RecipientRoute { address: address.clone(), destination, origin, queue, rule, route, quota }
    }

    /// The destination by the routes of addresses and senders, the directory, and the domain.
    async fn place(&self, address: &Address, sender: Option<&Address>) -> Place {
        let domain = address.domain();
        let recipient = RoutedRecipient { sender, address };
        let choice = self.rules.routes.choose(&[recipient], &self.directory).await.pop();
        let by_route = |destination, is_here| Place { destination, origin: "by a route", is_here };
        match choice {
            Some(RouteChoice::Route { key, is_maildir }) => return by_route(Ok(key.destination(domain)), is_maildir),
            Some(RouteChoice::Unavailable(why)) => return by_route(Err(format!("route unknown: {why}")), false),
            Some(RouteChoice::ByDomain) | None => {}
        }
        let store = match self.rules.needs_directory(domain) {
            true => self.directory.mailbox_locations(std::slice::from_ref(address)).await.pop(),
            false => None,
        };
        let is_here = match &store {
            Some(store) => *store == MailboxLocation::ThisHost,
            None => self.rules.local.0.contains(domain),
        };
        let destination = match store {
            Some(MailboxLocation::OtherHost(host)) => Ok(format!("{host}!{domain}")),
            Some(MailboxLocation::Unavailable(why)) => Err(format!("mailbox host unknown: {why}")),
            Some(MailboxLocation::ThisHost | MailboxLocation::NextHop) | None => Ok(domain.to_owned()),
        };
        Place { destination, origin: "from the directory", is_here }
    }

    /// The queue and the rule that chooses it, with the classifier's precedence.
    async fn queue(&self, sender: Option<&Address>, domain: &str, is_here: bool) -> (QueueNumber, String) {
        if is_here {
            return (self.rules.local.1, "because the mailbox is local".into());
        }
        let clients = self.rules.clients.len();
        let unless_client = |rule: String| match clients {
            0 => rule,
            _ => format!("{rule}; unless a client rule matches ({})", plural(clients, "rule")),
        };
        let (queue, rule) = match self.by_sender(sender).await {
            Some(named) => named,
            None => match self.rules.domains.iter().find(|(pattern, _)| pattern.matches(domain)) {
                Some((pattern, queue)) => (*queue, unless_client(format!("by domain {pattern}"))),
                None => (self.rules.default_queue, unless_client("because no rule matches".into())),
            },
        };
        match self.rules.headers.len() {
            0 => (queue, rule),
            headers => (queue, format!("{rule}; unless a header rule matches ({})", plural(headers, "rule"))),
        }
    }

    async fn by_sender(&self, sender: Option<&Address>) -> Option<(QueueNumber, String)> {
        let sender = sender?;
        if let Some((rule, queue)) = self.rules.by_sender(sender) {
            return Some((*queue, format!("by sender {rule}")));
        }
        let (table, queue) = self.rules.by_sender_tables(&[sender]).await.pop()??;
        Some((*queue, format!("by sender table '{}'", table.name())))
    }

    /// Writes everything; `normalized` is the normalized form of `address`.
    pub(in super::super) fn write(
        &self,
        [address, meant]: [&Address; 2],
        trace: &AddressTrace,
        queue_states: &[QueueState],
        now: Timestamp,
        out: &mut impl Write,
    ) -> io::Result<()> {
        if address != meant {
            writeln!(out, "{address}: the postmaster of this host, {meant}")?;
        }
        writeln!(out, "{meant}: {}", trace.resolution)?;
        if let Some(sender) = &trace.forwarded_sender {
            writeln!(out, "  sender in other domains: {sender}")?;
        }
        for (recipient, queue_state) in trace.recipients.iter().zip(queue_states) {
            writeln!(out, "{}", recipient.address)?;
            writeln!(out, "  queue: {}, {}", queue_state.queue, recipient.rule)?;
            if recipient.destination != recipient.address.domain() {
                writeln!(out, "  destination: {}, {}", recipient.destination, recipient.origin)?;
            }
            match &recipient.route {
                Ok(route) => self.write_route(route, out)?,
                Err(why) => writeln!(out, "  route: unknown: {why}")?,
            }
            if let Some(quota) = &recipient.quota {
                writeln!(out, "  quota: {quota}")?;
            }
            if let Some(busy) = &queue_state.next_hop_load {
                writeln!(out, "  next hop now: {busy}")?;
            }
            if recipient.next_hop().is_none() && queue_state.obstacles.is_empty() {
                continue;
            }
            let name = |number: QueueNumber| &*queue_state.queue_names[usize::from(number.0)];
            obstacle_lines(&queue_state.obstacles, now, name).iter().try_for_each(|line| writeln!(out, "  {line}"))?;
        }
        if trace.omitted > 0 {
            writeln!(out, "and {} more addresses", trace.omitted)?;
        }
        Ok(())
    }

    fn write_route(&self, route: &Route, out: &mut impl Write) -> io::Result<()> {
        match &route.answer {
            RouteAnswer::Local { transport } => {
                writeln!(out, "  route: {}", self.local_target(transport))?;
                self.write_limits(transport, None, out)
            }
            RouteAnswer::Hosts(hosts) => {
                let good_for = short_duration(route.valid_for);
                writeln!(out, "  route: to {}, transport {}; valid for {good_for}", hosts.next_hop, hosts.transport)?;
                for (place, tier) in (1..).zip(&hosts.tiers) {
                    tier.iter().try_for_each(|host| writeln!(out, "    {place}. {}", host_line(host)))?;
                }
                hosts.tls_notes.iter().try_for_each(|note| writeln!(out, "  tls: {note}"))?;
                self.write_limits(&hosts.transport, Some(hosts), out)
            }
            RouteAnswer::Defer(reply) => writeln!(out, "  route: unknown now, mail waits: {reply}"),
            RouteAnswer::Fail(reply) => writeln!(out, "  route: none, mail fails: {reply}"),
        }
    }

    /// What a transport that needs no host does.
    fn local_target(&self, transport: &str) -> String {
        let target = match self.transports.by_name.get(transport).map(|config| &config.method) {
            Some(TransportMethod::Program(_)) => "a program",
            Some(TransportMethod::Discard) => "none, mail is discarded",
            Some(TransportMethod::Maildir | TransportMethod::Remote(_)) | None => "local mailbox",
        };
        format!("{target}, transport {transport}")
    }

    fn write_limits(&self, transport: &str, hosts: Option<&NextHopHosts>, out: &mut impl Write) -> io::Result<()> {
        if let Some(transport_config) = self.transports.by_name.get(transport) {
            writeln!(out, "  limits: {}", limits_text(&transport_config.limits))?;
        }
        let peer_override = hosts.and_then(|hosts| self.transports.override_for(hosts));
        let Some(peer_override) = peer_override else { return Ok(()) };
        let told = [
            peer_override.connections.map(|most| plural(most, "connection")),
            peer_override.rate.map(|rate| format!("{} every {:?}", plural(rate.count as usize, "message"), rate.per)),
            peer_override.messages_per_connection.map(|most| plural(most as usize, "message") + " a connection"),
            peer_override.recipients_per_message.map(|most| plural(most, "recipient") + " a message"),
        ];
        writeln!(out, "  limits for this next hop: {}", told.into_iter().flatten().collect::<Vec<_>>().join(", "))
    }
}

impl Deliverability {
    /// The word in the output.
    pub fn word(self) -> &'static str {
        match self {
            Deliverability::Deliverable => "deliverable",
            Deliverability::Unknown => "unknown now",
            Deliverability::Undeliverable => "undeliverable",
        }
    }
}

impl AddressTrace {
    /// The verdict and the reason: the first of the worst of all addresses.
    pub(in super::super) fn deliverability(&self) -> (Deliverability, String) {
        if let Some(verdict) = self.verdict {
            return (verdict, self.resolution.clone());
        }
        let verdicts = self.recipients.iter().map(RecipientRoute::deliverability);
        let worst = verdicts.reduce(|worst, other| if other.0 > worst.0 { other } else { worst });
        worst.unwrap_or((Deliverability::Undeliverable, self.resolution.clone()))
    }
}

impl RecipientRoute {
    fn deliverability(&self) -> (Deliverability, String) {
        let (verdict, why) = match &self.route {
            Err(why) => (Deliverability::Unknown, why.clone()),
            Ok(route) => match &route.answer {
                RouteAnswer::Local { transport } => {
                    (Deliverability::Deliverable, format!("on this host, transport {transport}"))
                }
                RouteAnswer::Hosts(hosts) => {
                    (Deliverability::Deliverable, format!("to {}, transport {}", hosts.next_hop, hosts.transport))
                }
                RouteAnswer::Defer(reply) => (Deliverability::Unknown, reply.to_string()),
                RouteAnswer::Fail(reply) => (Deliverability::Undeliverable, reply.to_string()),
            },
        };
        (verdict, format!("{}: {why}", self.address))
    }

    /// The state in the queues. This creates the destination if needed; it is dropped again if no
    /// recipient waits there.
    pub(in super::super) fn queue_state<R: Clone>(&self, queues: &mut Queues<R>, now: Timestamp) -> QueueState {
        let destination = queues.intern_destination(self.queue, &self.destination);
        let mut obstacles = queues.block_reasons(now, destination);
        let next_hop = self.next_hop();
        let view = queues.next_hop_views().find(|hop| Some(hop.name) == next_hop);
        if let Some(at) = obstacles.iter().position(|obstacle| *obstacle == BlockReason::NoRoute) {
            // The route was not requested because no mail waits; what holds the next hop would hold
            // this mail too.
            obstacles.splice(at..=at, view.iter().flat_map(|hop| next_hop_obstacles(hop, now)));
        }
        let names: Vec<_> = queues.config().queues.iter().map(|queue| queue.name.clone()).collect();
        let busy = view.as_ref().map(next_hop_load);
        QueueState {
            queue: names[usize::from(self.queue.0)].clone(),
            obstacles,
            next_hop_load: busy,
            queue_names: names,
        }
    }

    fn next_hop(&self) -> Option<&str> {
        match &self.route.as_ref().ok()?.answer {
            RouteAnswer::Local { transport } => Some(transport),
            RouteAnswer::Hosts(hosts) => Some(&hosts.next_hop),
            RouteAnswer::Defer(_) | RouteAnswer::Fail(_) => None,
        }
    }
}

/// What holds a next hop, whatever the destination.
fn next_hop_obstacles(hop: &NextHopView<'_>, now: Timestamp) -> Vec<BlockReason> {
    let paused = hop.pause.map(|until| BlockReason::NextHopPaused { until });
    let dead =
        hop.probe_at.zip(hop.error).map(|(probe_at, error)| BlockReason::Dead { probe_at, error: error.clone() });
    let rate = hop.rate_free_at.filter(|at| *at > now).map(|until| BlockReason::Rate { until });
    let (attempts, most) = (hop.attempts, hop.concurrency);
    let full = (attempts >= most).then_some(BlockReason::NextHopFull { attempts, max: most });
    [paused, dead, rate, full].into_iter().flatten().collect()
}

/// What the directory says, and the final recipients.
struct DirectoryAnswer {
    resolution: String,
    /// Set if no route is needed.
    verdict: Option<Deliverability>,
    addresses: Vec<Address>,
}

fn directory_answer(resolution: AddressResolution) -> DirectoryAnswer {
    let over =
        |verdict, resolution: String| DirectoryAnswer { resolution, verdict: Some(verdict), addresses: Vec::new() };
    let never = |resolution: &str| over(Deliverability::Undeliverable, resolution.into());
    match resolution {
        AddressResolution::Unknown => never("unknown user in one of our domains"),
        AddressResolution::TooDeep => never("too many alias steps, possibly an alias loop"),
        AddressResolution::TooMany => never("it expands to too many addresses"),
        AddressResolution::Unavailable(why) => over(Deliverability::Unknown, format!("cannot be looked up now: {why}")),
        AddressResolution::Remote(address) => {
            let resolution = "remote: not one of our domains".into();
            DirectoryAnswer { resolution, verdict: None, addresses: vec![address] }
        }
        AddressResolution::NotReturned(ReturnRefusal::Forged) => never("not an SRS address of this host"),
        AddressResolution::NotReturned(ReturnRefusal::Expired) => never("an SRS address that has expired"),
        AddressResolution::Returned(found) => {
            let resolution = "the sender of forwarded mail (SRS), only for bounces".into();
            DirectoryAnswer { resolution, verdict: None, addresses: found.into_iter().map(|one| one.address).collect() }
        }
        AddressResolution::Local(finals) => {
            let addresses: Vec<_> = finals.iter().map(|found| found.address.clone()).collect();
            let is_alias = finals.iter().any(|found| found.original.is_some());
            let resolution = match is_alias {
                false => "a local mailbox".into(),
                true => {
                    format!(
                        "local; expands to {}",
                        addresses.iter().map(Address::as_str).collect::<Vec<_>>().join(", ")
                    )
                }
            };
            DirectoryAnswer { resolution, verdict: None, addresses }
        }
    }
}

fn host_line(host: &Host) -> String {
    let endpoint = |endpoint: &Endpoint| match endpoint {
        Endpoint::Tcp(address) => address.to_string(),
        Endpoint::Unix(path) => format!("unix:{}", path.display()),
    };
    let endpoints = host.endpoints.iter().map(endpoint).collect::<Vec<_>>().join(", ");
    match &host.tls {
        HostTls::Transport => format!("{}: {endpoints}", host.name),
        tls => format!("{}: {endpoints}; TLS: {tls}", host.name),
    }
}

fn limits_text(limits: &NextHopLimits) -> String {
    let most = plural(limits.concurrency.max, "attempt");
    let recipients = limits
        .recipients_per_attempt_max
        .map(|most| format!(", {} each", plural(most, "recipient")))
        .unwrap_or_default();
    let rate = match limits.rate {
        Some(rate) => format!("{} every {:?}", plural(rate.count as usize, "message"), rate.per),
        None => "no rate".into(),
    };
    format!("at most {most} concurrently{recipients}; {rate}")
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use dispatch::{MessageRoutes, NextHopOverride, TransportConfig};
    use dns::{QueryConfig, ResolverConfig};
    use lookup::directory::{AliasLimits, LocalDomain};
    use mail::{EnhancedCode, Rate, Reply, SenderRewriter};
    use queue::{ConcurrencyPolicy, ContactResult};
    use route::{DomainRoute, RouteRule};

    use super::super::super::sample::{self, NOW};
    use super::super::super::wait::unless_stopping;
    use super::*;

    /// One domain of ours, a queue for lists, and a route to a next hop with limits of its own.
    fn explainer(resolver: ResolverConfig) -> AddressExplainer {
        let domain = LocalDomain {
            name: "here.example".into(),
            mailboxes: None,
            aliases: None,
            catch_all: None,
            hosts: None,
            delimiter: None,
            transport: "maildir".into(),
            is_final: true,
        };
        AddressExplainer {
            directory: Arc::new(RecipientDirectory::new(vec![domain], AliasLimits::default())),
            rules: rules(),
            tables: Vec::new(),
            router_config: router_config(resolver),
            transports: transports(),
            quotas: None,
            rewritten_senders: None,
        }
    }

    fn rules() -> ClassifierRules {
        let lists = QueueNumber(3);
        ClassifierRules {
            chosen: Vec::new(),
            headers: vec![("Precedence: bulk".parse().unwrap(), lists)],
            senders: vec![("@lists.example".parse().unwrap(), lists)],
            sender_tables: Vec::new(),
            clients: Vec::new(),
            domains: vec![("*.slow.example".parse().unwrap(), lists)],
            local: (["here.example".into()].into(), QueueNumber(0)),
            default_queue: QueueNumber(1),
            configured_domains: ["here.example".into()].into(),
            has_domain_tables: false,
            shared_domains: Vec::new(),
            verp_senders: HashSet::new(),
            sender_rewriter: None,
            routes: MessageRoutes::default(),
            content_filter: None,
            has_chosen_filters: false,
        }
    }

    fn router_config(resolver: ResolverConfig) -> route::Config {
        let home = DomainRoute { transport: "maildir".into(), next_hop: None };
        let elsewhere = RouteRule {
            pattern: "d.example".parse().unwrap(),
            transport: "smtp".into(),
            next_hop: Some("[192.0.2.1]:2525".parse().unwrap()),
            next_hop_table: None,
        };
        let domains = [("here.example".into(), home)].into();
        route::Config { resolver, domains, rules: vec![elsewhere], ..route::Config::new("mx.here") }
    }

    fn transports() -> Transports {
        let limits = |most, recipients_per_attempt_max| NextHopLimits {
            concurrency: ConcurrencyPolicy { max: most, ..ConcurrencyPolicy::default() },
            recipients_per_attempt_max,
            ..NextHopLimits::default()
        };
        let transport = |limits| TransportConfig { method: TransportMethod::Maildir, limits };
        let limited = NextHopOverride {
            host: "192.0.2.1".parse().unwrap(),
            connections: Some(3),
            rate: Some(Rate { count: 5, per: Duration::from_secs(60) }),
            messages_per_connection: None,
            recipients_per_message: None,
        };
        let by_name = [("maildir", limits(2000, None)), ("smtp", limits(20, Some(100)))];
        let by_name = by_name.map(|(name, limits)| (name.into(), transport(limits))).into();
        Transports { by_name, overrides: vec![limited] }
    }

    fn traced(
        guide: &AddressExplainer,
        address: &Address,
        sender: Option<&Address>,
        stopping: &AtomicBool,
    ) -> Option<AddressTrace> {
        let work =
            async { guide.trace(guide.directory.resolve(address).await, sender, &RedirectTable::default()).await };
        unless_stopping(stopping, work).unwrap()
    }

    fn explain(address: &str, sender: Option<&str>, queues: &mut Queues<()>) -> String {
        let (guide, address): (_, Address) = (explainer(ResolverConfig::default()), address.parse().unwrap());
        let sender = sender.map(|sender| sender.parse().unwrap());
        let trace = traced(&guide, &address, sender.as_ref(), &AtomicBool::new(false)).unwrap();
        let queue_states: Vec<_> =
            trace.recipients.iter().map(|recipient| recipient.queue_state(queues, NOW)).collect();
        let mut out = Vec::new();
        guide.write([&address; 2], &trace, &queue_states, NOW, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    /// Queues with the names and the order of the configuration.
    fn queues() -> Queues<()> {
        let queue = |name: &str| queue::QueueConfig { name: name.into(), ..queue::QueueConfig::default() };
        let queues = ["local", "standard", "lame", "lists"].map(queue).into();
        Queues::new(queue::SchedulerConfig { queues, ..queue::SchedulerConfig::default() }, 0)
    }

    #[test]
    fn a_mailbox_here_and_a_host_that_a_route_names() {
        let mut queues = queues();
        let told = [
            explain("bob@here.example", None, &mut queues),
            explain("eve@d.example", None, &mut queues),
            explain("eve@d.example", Some("news@lists.example"), &mut queues),
        ];
        insta::assert_snapshot!("addresses", told.join("\n"));
    }

    struct Rewriter;

    impl SenderRewriter for Rewriter {
        fn forward(&self, _sender: &Address) -> Option<Address> {
            "SRS0=code=day=a.example=bob@srs.example".parse().ok()
        }

        fn reverse(&self, _recipient: &Address) -> Option<Result<Address, ReturnRefusal>> {
            None
        }
    }

    /// Readers by the HTTP API could otherwise make an address for anybody.
    #[test]
    fn the_code_of_a_rewritten_sender_is_not_shown() {
        let guide = AddressExplainer {
            rules: ClassifierRules { sender_rewriter: Some(Arc::new(Rewriter)), ..rules() },
            rewritten_senders: Some(Arc::new(|_| true)),
            ..explainer(ResolverConfig::default())
        };
        let sender = "bob@a.example".parse().unwrap();
        let told = unless_stopping(&AtomicBool::new(false), guide.forwarded_sender(Some(&sender))).unwrap().unwrap();
        assert_eq!(told.as_deref(), Some("an SRS address in srs.example, if a stranger sends it"));
    }

    /// The name server exists but does not answer.
    #[test]
    fn tracing_ends_when_the_server_stops() {
        let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let servers = vec![silent.local_addr().unwrap()];
        let query = QueryConfig { servers, timeout: Duration::from_secs(3600), ..QueryConfig::default() };
        let guide = explainer(ResolverConfig { query, ..ResolverConfig::default() });
        let address = "joe@elsewhere.example".parse().unwrap();
        assert!(traced(&guide, &address, None, &AtomicBool::new(true)).is_none());
    }

    #[test]
    fn a_rule_names_the_queue_by_its_precedence() {
        let guide = explainer(ResolverConfig::default());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let name = |sender: Option<&str>, domain, is_here| {
            let sender: Option<Address> = sender.map(|sender| sender.parse().unwrap());
            runtime.block_on(guide.queue(sender.as_ref(), domain, is_here))
        };
        let expected = [
            (Some("a@lists.example"), "here.example", true, 0, "because the mailbox is local"),
            (Some("a@lists.example"), "a.slow.example", false, 3, "by sender @lists.example"),
            (Some("a@b.example"), "a.slow.example", false, 3, "by domain *.slow.example"),
            (None, "here.example", false, 1, "because no rule matches"),
        ];
        for (sender, domain, is_here, queue, rule) in expected {
            let (number, told) = name(sender, domain, is_here);
            assert_eq!(number, QueueNumber(queue), "{told}");
            assert!(told.starts_with(rule), "{told}");
        }
        assert!(name(None, "b.example", false).1.ends_with("unless a header rule matches (1 rule)"));
    }

    /// The next hop has no more mail, but is remembered as dead.
    #[test]
    fn an_idle_next_hop_still_shows_its_obstacles() {
        let mut sample = sample::queues();
        let refused = Reply::new(451, EnhancedCode(4, 4, 1), "connection refused");
        sample.queues.finish_contact(NOW, &mut sample.attempt, ContactResult::Failed(refused.clone()));
        let hosts = NextHopHosts {
            transport: "smtp".into(),
            next_hop: "smtp:mx.here!d.example".into(),
            is_configured: false,
            tiers: Vec::new(),
            tls_notes: Vec::new(),
        };
        let recipient = RecipientRoute {
            address: "joe@new.example".parse().unwrap(),
            destination: "new.example".into(),
            origin: "from the directory",
            queue: QueueNumber(0),
            rule: String::new(),
            route: Ok(Route {
                answer: RouteAnswer::Hosts(hosts),
                valid_for: Duration::ZERO,
                transient: false,
                tls_failures: Vec::new(),
            }),
            quota: None,
        };
        let queue_state = recipient.queue_state(&mut sample.queues, NOW);
        assert!(!queue_state.obstacles.contains(&BlockReason::NoRoute));
        assert_eq!(
            queue_state.next_hop_load.as_deref(),
            Some("0 attempts in progress, limit 1 now, 1 failure since it last answered")
        );
        let view = sample.queues.next_hop_views().find(|hop| hop.name == "smtp:mx.here!d.example").unwrap();
        let dead = NextHopView { probe_at: Some(NOW + sample::HOUR), ..view };
        let probe_at = NOW + sample::HOUR;
        assert_eq!(next_hop_obstacles(&dead, NOW), [BlockReason::Dead { probe_at, error: refused }]);
    }
}
