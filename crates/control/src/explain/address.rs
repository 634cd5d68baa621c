//! How mail for an address would be routed: what the directory says, which queue it would enter and
//! by which rule, which hosts would take it, and what holds their mail now. It uses a router of its
//! own with an empty cache, so the answer is what the DNS says now.

use std::sync::Arc;

use intake::DomainMatcher;
use lookup::Table;
use lookup::directory::{AddressResolution, MailboxLocation, RecipientDirectory};
use mail::{Address, HostTls, Rate, ReturnRefusal, Timestamp};
use queue::{BlockReason, QueueNumber, Queues};
use route::{Endpoint, Host, NextHopHosts, Route, RouteAnswer, Router};

use super::{next_hop_load, obstacle};
use crate::explanation::{
    AccessExplanation, AddressExplanation, AddressVerification, Deliverability, DestinationSource, DirectoryFinding,
    ForwardedSender, LocalTarget, MailboxQuota, NextHopLimitsExplanation, NextHopLoad, Obstacle, QueueChoice,
    QueueRule, RateLimit, RecipientRouteExplanation, RouteExplanation, RouteHost, TransportLimits,
};
use crate::explanation_text::directory_sentence;
use dispatch::{ClassifierRules, RedirectTable, RouteChoice, RoutedRecipient, TransportMethod, Transports};
use mailbox::quota::{MailboxQuotaChecker, QuotaLimits, Usage};

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
    directory: DirectoryFinding,
    /// Set if the directory alone decides.
    verdict: Option<Deliverability>,
    pub(in super::super) recipients: Vec<RecipientRoute>,
    /// Addresses that are not traced.
    omitted: usize,
    /// What the sender becomes, if a stranger's message is forwarded.
    forwarded_sender: Option<ForwardedSender>,
}

/// The route to one address.
#[derive(Clone)]
pub(in super::super) struct RecipientRoute {
    address: Address,
    /// The destination's name in the queue.
    destination: String,
    source: DestinationSource,
    queue: QueueNumber,
    /// Without the name, which the queues know.
    choice: QueueChoice,
    route: Result<Route, String>,
    /// The mailbox's quota, if it is local and has one.
    quota: Option<MailboxQuota>,
}

/// Where mail for an address goes.
struct Place {
    /// The destination's name in the queue; Err: unknown, and why.
    destination: Result<String, String>,
    source: DestinationSource,
    /// The mailbox is on this host.
    is_here: bool,
}

/// What the queues know of a route.
pub(in super::super) struct QueueState {
    queue: String,
    obstacles: Vec<Obstacle>,
    next_hop_load: Option<NextHopLoad>,
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
        let DirectoryAnswer { directory, verdict, addresses } = directory_answer(resolution);
        let router = Router::new(self.router_config.clone()).map_err(|error| error.to_string());
        let router = router.map(|router| router.with_tables(self.tables.iter().cloned()));
        let mut recipients = Vec::new();
        for address in addresses.iter().take(RECIPIENTS_MAX) {
            recipients.push(self.recipient_route(address, sender, (&router, redirects)).await);
        }
        let omitted = addresses.len().saturating_sub(RECIPIENTS_MAX);
        AddressTrace { directory, verdict, recipients, omitted, forwarded_sender }
    }

    /// What becomes of this sender in other domains. None: it stays. The code of the address is left out:
    /// with it, anybody could send notices to this sender by this host.
    async fn forwarded_sender(&self, sender: Option<&Address>) -> Option<ForwardedSender> {
        let (is_rewritten, rewriter) = self.rewritten_senders.as_ref().zip(self.rules.sender_rewriter.as_ref())?;
        let sender = sender.filter(|sender| is_rewritten(sender.domain()))?;
        match self.directory.domain(sender.domain()).await {
            Ok(None) => Some(match rewriter.forward(sender) {
                Some(rewritten) => ForwardedSender::Rewritten { domain: rewritten.domain().to_owned() },
                None => ForwardedSender::TooLong { sender: sender.to_string() },
            }),
            Ok(Some(_)) => None,
            Err(why) => Some(ForwardedSender::Unknown { reason: why.to_string() }),
        }
    }

    async fn recipient_route(
        &self,
        address: &Address,
        sender: Option<&Address>,
        (router, redirects): (&Result<Router, String>, &RedirectTable),
    ) -> RecipientRoute {
        let domain = address.domain();
        let Place { destination, source, is_here } = self.place(address, sender).await;
        let (queue, choice) = self.queue(sender, domain, is_here).await;
        let (destination, route) = match (destination, router) {
            (Ok(destination), Ok(router)) => {
                let route = redirects.route(router, &destination).await;
                (destination, Ok(route))
            }
            (Ok(destination), Err(why)) => (destination, Err(why.clone())),
            (Err(why), _) => (domain.to_owned(), Err(why)),
        };
        let quota = match &self.quotas {
            Some(quotas) => mailbox_quota(quotas.limits_and_usage(address).await),
            None => None,
        };
        let source = if destination == domain { DestinationSource::Domain } else { source };
        RecipientRoute { address: address.clone(), destination, source, queue, choice, route, quota }
    }

    /// The destination by the routes of addresses and senders, the directory, and the domain.
    async fn place(&self, address: &Address, sender: Option<&Address>) -> Place {
        let domain = address.domain();
        let recipient = RoutedRecipient { sender, address };
        let choice = self.rules.routes.choose(&[recipient], &self.directory).await.pop();
        let by_route = |destination, is_here| Place { destination, source: DestinationSource::Route, is_here };
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
        Place { destination, source: DestinationSource::Directory, is_here }
    }

    /// The queue and the rule that chooses it, with the classifier's precedence.
    async fn queue(&self, sender: Option<&Address>, domain: &str, is_here: bool) -> (QueueNumber, QueueChoice) {
        let choice =
            |rule, client_rules, header_rules| QueueChoice { name: String::new(), rule, client_rules, header_rules };
        if is_here {
            return (self.rules.local.1, choice(QueueRule::LocalMailbox, 0, 0));
        }
        let (clients, headers) = (self.rules.clients.len(), self.rules.headers.len());
        if let Some((queue, rule)) = self.by_sender(sender).await {
            return (queue, choice(rule, 0, headers));
        }
        let (queue, rule) = match self.rules.domains.iter().find(|(pattern, _)| pattern.matches(domain)) {
            Some((pattern, queue)) => (*queue, QueueRule::Domain { pattern: pattern.to_string() }),
            None => (self.rules.default_queue, QueueRule::Default),
        };
        (queue, choice(rule, clients, headers))
    }

    async fn by_sender(&self, sender: Option<&Address>) -> Option<(QueueNumber, QueueRule)> {
        let sender = sender?;
        if let Some((rule, queue)) = self.rules.by_sender(sender) {
            return Some((*queue, QueueRule::Sender { pattern: rule.to_string() }));
        }
        let (table, queue) = self.rules.by_sender_tables(&[sender]).await.pop()??;
        Some((*queue, QueueRule::SenderTable { table: table.name().to_owned() }))
    }

    /// The whole explanation; `normalized` is the normalized form of `address`.
    pub(in super::super) fn explanation(
        &self,
        [address, normalized]: [&Address; 2],
        access: Option<AccessExplanation>,
        trace: AddressTrace,
        queue_states: Vec<QueueState>,
    ) -> AddressExplanation {
        let recipients = trace.recipients.iter().zip(queue_states);
        AddressExplanation {
            address: address.to_string(),
            normalized: normalized.to_string(),
            access,
            directory: trace.directory,
            forwarded_sender: trace.forwarded_sender,
            recipients: recipients.map(|(recipient, queue_state)| self.recipient(recipient, queue_state)).collect(),
            omitted: trace.omitted,
        }
    }

    fn recipient(&self, recipient: &RecipientRoute, queue_state: QueueState) -> RecipientRouteExplanation {
        let (transport, hosts) = match recipient.route.as_ref().map(|route| &route.answer) {
            Ok(RouteAnswer::Local { transport }) => (Some(transport), None),
            Ok(RouteAnswer::Hosts(hosts)) => (Some(&hosts.transport), Some(hosts)),
            Ok(RouteAnswer::Defer(_) | RouteAnswer::Fail(_)) | Err(_) => (None, None),
        };
        RecipientRouteExplanation {
            address: recipient.address.to_string(),
            queue: QueueChoice { name: queue_state.queue, ..recipient.choice.clone() },
            destination: recipient.destination.clone(),
            destination_source: recipient.source,
            route: self.route(&recipient.route),
            limits: transport.and_then(|transport| self.transport_limits(transport)),
            next_hop_limits: hosts.and_then(|hosts| self.next_hop_limits(hosts)),
            quota: recipient.quota.clone(),
            next_hop_load: queue_state.next_hop_load,
            obstacles: queue_state.obstacles,
        }
    }

    fn route(&self, route: &Result<Route, String>) -> RouteExplanation {
        let route = match route {
            Ok(route) => route,
            Err(why) => return RouteExplanation::Unknown { reason: why.clone() },
        };
        match &route.answer {
            RouteAnswer::Local { transport } => {
                RouteExplanation::Local { transport: transport.to_string(), target: self.local_target(transport) }
            }
            RouteAnswer::Hosts(hosts) => RouteExplanation::Hosts {
                next_hop: hosts.next_hop.to_string(),
                transport: hosts.transport.to_string(),
                valid_for_seconds: route.valid_for.as_secs(),
                hosts: (1..)
                    .zip(&hosts.tiers)
                    .flat_map(|(rank, tier)| tier.iter().map(move |host| route_host(rank, host)))
                    .collect(),
                tls_notes: hosts.tls_notes.iter().map(ToString::to_string).collect(),
            },
            RouteAnswer::Defer(reply) => RouteExplanation::Deferred { reply: reply.to_string() },
            RouteAnswer::Fail(reply) => RouteExplanation::Failed { reply: reply.to_string() },
        }
    }

    /// What a transport that needs no host does.
    fn local_target(&self, transport: &str) -> LocalTarget {
        match self.transports.by_name.get(transport).map(|config| &config.method) {
            Some(TransportMethod::Program(_)) => LocalTarget::Program,
            Some(TransportMethod::Discard) => LocalTarget::Discard,
            Some(TransportMethod::Maildir | TransportMethod::Remote(_)) | None => LocalTarget::Mailbox,
        }
    }

    fn transport_limits(&self, transport: &str) -> Option<TransportLimits> {
        let limits = &self.transports.by_name.get(transport)?.limits;
        Some(TransportLimits {
            attempts: limits.concurrency.max,
            recipients_per_attempt: limits.recipients_per_attempt_max,
            rate: limits.rate.map(rate_limit),
        })
    }

    fn next_hop_limits(&self, hosts: &NextHopHosts) -> Option<NextHopLimitsExplanation> {
        let limits = self.transports.override_for(hosts)?;
        Some(NextHopLimitsExplanation {
            connections: limits.connections,
            rate: limits.rate.map(rate_limit),
            messages_per_connection: limits.messages_per_connection,
            recipients_per_message: limits.recipients_per_message,
        })
    }
}

impl AddressTrace {
    /// The first of the worst of all addresses.
    pub(in super::super) fn verification(&self) -> AddressVerification {
        let by_directory = |verdict| AddressVerification { verdict, why: directory_sentence(&self.directory) };
        if let Some(verdict) = self.verdict {
            return by_directory(verdict);
        }
        let all = self.recipients.iter().map(RecipientRoute::verification);
        let worst = all.reduce(|worst, other| if other.verdict > worst.verdict { other } else { worst });
        worst.unwrap_or_else(|| by_directory(Deliverability::Undeliverable))
    }
}

impl RecipientRoute {
    fn verification(&self) -> AddressVerification {
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
        AddressVerification { verdict, why: format!("{}: {why}", self.address) }
    }

    /// The state in the queues. This creates the destination if needed; it is dropped again if no
    /// recipient waits there.
    pub(in super::super) fn queue_state<R: Clone>(&self, queues: &mut Queues<R>, now: Timestamp) -> QueueState {
        let destination = queues.intern_destination(self.queue, &self.destination);
        let mut reasons = queues.block_reasons(now, destination);
        let next_hop = self.next_hop();
        let view = queues.next_hop_views().find(|hop| Some(hop.name) == next_hop);
        if let Some(at) = reasons.iter().position(|reason| *reason == BlockReason::NoRoute) {
            // The route was not requested because no mail waits; what holds the next hop would hold
            // this mail too.
            let held = view.iter().flat_map(|hop| queues.next_hop_block_reasons(now, hop.number, self.queue));
            reasons.splice(at..=at, held);
        }
        let name = |number: QueueNumber| &*queues.config().queues[usize::from(number.0)].name;
        QueueState {
            queue: name(self.queue).to_owned(),
            obstacles: reasons.iter().map(|reason| obstacle(reason, now, name)).collect(),
            next_hop_load: view.as_ref().map(next_hop_load),
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

/// What the directory says, and the final recipients.
struct DirectoryAnswer {
    directory: DirectoryFinding,
    /// Set if no route is needed.
    verdict: Option<Deliverability>,
    addresses: Vec<Address>,
}

fn directory_answer(resolution: AddressResolution) -> DirectoryAnswer {
    let over = |verdict, directory| DirectoryAnswer { directory, verdict: Some(verdict), addresses: Vec::new() };
    let never = |directory| over(Deliverability::Undeliverable, directory);
    match resolution {
        AddressResolution::Unknown => never(DirectoryFinding::UnknownUser),
        AddressResolution::TooDeep => never(DirectoryFinding::TooManySteps),
        AddressResolution::TooMany => never(DirectoryFinding::TooManyAddresses),
        AddressResolution::Unavailable(why) => {
            over(Deliverability::Unknown, DirectoryFinding::Unavailable { reason: why.to_string() })
        }
        AddressResolution::NotReturned(ReturnRefusal::Forged) => never(DirectoryFinding::ForgedReturnPath),
        AddressResolution::NotReturned(ReturnRefusal::Expired) => never(DirectoryFinding::ExpiredReturnPath),
        AddressResolution::Remote(address) => {
            DirectoryAnswer { directory: DirectoryFinding::Remote, verdict: None, addresses: vec![address] }
        }
        AddressResolution::Returned(found) => DirectoryAnswer {
            directory: DirectoryFinding::ReturnPath,
            verdict: None,
            addresses: found.into_iter().map(|one| one.address).collect(),
        },
        AddressResolution::Local(finals) => {
            let is_alias = finals.iter().any(|found| found.original.is_some());
            let addresses: Vec<_> = finals.into_iter().map(|found| found.address).collect();
            let directory = match is_alias {
                false => DirectoryFinding::Mailbox,
                true => DirectoryFinding::Alias { addresses: addresses.iter().map(ToString::to_string).collect() },
            };
            DirectoryAnswer { directory, verdict: None, addresses }
        }
    }
}

fn mailbox_quota(found: Result<Option<(QuotaLimits, Usage)>, String>) -> Option<MailboxQuota> {
    match found {
        Ok(found) => found.map(|(limits, usage)| MailboxQuota::Known {
            bytes_max: limits.bytes,
            messages_max: limits.messages,
            bytes: usage.bytes,
            messages: usage.messages,
        }),
        Err(reason) => Some(MailboxQuota::Unknown { reason }),
    }
}

fn route_host(rank: usize, host: &Host) -> RouteHost {
    let endpoint = |endpoint: &Endpoint| match endpoint {
        Endpoint::Tcp(address) => address.to_string(),
        Endpoint::Unix(path) => format!("unix:{}", path.display()),
    };
    RouteHost {
        rank,
        name: host.name.to_string(),
        endpoints: host.endpoints.iter().map(endpoint).collect(),
        tls: match &host.tls {
            HostTls::Transport => None,
            tls => Some(tls.to_string()),
        },
    }
}

fn rate_limit(rate: Rate) -> RateLimit {
    RateLimit { messages: rate.count, per_seconds: rate.per.as_secs() }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use dispatch::{MessageRoutes, NextHopOverride, TransportConfig};
    use dns::{QueryConfig, ResolverConfig};
    use lookup::directory::{AliasLimits, LocalDomain};
    use mail::{EnhancedCode, QueueId, Rate, Reply, SenderRewriter, SpoolId};
    use queue::{
        AdmittedMessage, ConcurrencyPolicy, ContactResult, NextHopLimits, NextHopRoute, PendingRecipient,
        SharedConcurrency,
    };
    use route::{DomainRoute, RouteRule};

    use super::super::super::sample::{self, NOW};
    use super::super::super::wait::unless_stopping;
    use super::*;
    use crate::explanation_text::{address_text, queue_rule};

    /// One domain of ours, a queue for lists, and a route to a next hop with limits of its own.
    fn explainer(resolver: ResolverConfig) -> AddressExplainer {
        let domain = LocalDomain {
            name: "here.example".into(),
            mailboxes: None,
            aliases: None,
            catch_all: None,
            wildcard_mailbox: false,
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
        let explanation = guide.explanation([&address; 2], None, trace, queue_states);
        let written = serde_json::to_string(&explanation).unwrap();
        assert_eq!(serde_json::from_str::<AddressExplanation>(&written).unwrap(), explanation);
        address_text(&explanation)
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
        assert_eq!(told, Some(ForwardedSender::Rewritten { domain: "srs.example".to_owned() }));
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
            let (queue, choice) = runtime.block_on(guide.queue(sender.as_ref(), domain, is_here));
            (queue, queue_rule(&choice))
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

    /// An address of a domain that has no mail, and whose mail would go to this next hop.
    fn recipient_to(next_hop: &str) -> RecipientRoute {
        let hosts = NextHopHosts {
            transport: "smtp".into(),
            next_hop: next_hop.into(),
            is_configured: false,
            tiers: Vec::new(),
            tls_notes: Vec::new(),
        };
        RecipientRoute {
            address: "joe@new.example".parse().unwrap(),
            destination: "new.example".into(),
            source: DestinationSource::Domain,
            queue: QueueNumber(0),
            choice: QueueChoice { name: String::new(), rule: QueueRule::Default, client_rules: 0, header_rules: 0 },
            route: Ok(Route {
                answer: RouteAnswer::Hosts(hosts),
                valid_for: Duration::ZERO,
                transient: false,
                tls_failures: Vec::new(),
            }),
            quota: None,
        }
    }

    /// The next hop has no more mail, but is remembered.
    #[test]
    fn an_idle_next_hop_still_shows_its_obstacles() {
        let mut sample = sample::queues();
        let refused = Reply::new(451, EnhancedCode(4, 4, 1), "connection refused");
        sample.queues.finish_contact(NOW, &mut sample.attempt, ContactResult::Failed(refused));
        sample.queues.pause(NOW, queue::PauseTarget::NextHop("smtp:mx.here!d.example".into()), None).unwrap();
        let queue_state = recipient_to("smtp:mx.here!d.example").queue_state(&mut sample.queues, NOW);
        assert_eq!(queue_state.obstacles, [Obstacle::NextHopPaused { until: None }]);
        assert_eq!(queue_state.next_hop_load, Some(NextHopLoad { attempts: 0, attempts_max: 1, failures: 1 }));
    }

    /// The mail of another domain waits for a connection that other nodes hold.
    #[test]
    fn mail_would_wait_for_connections_that_other_nodes_hold() {
        let mut queues = queues();
        let destination = queues.intern_destination(QueueNumber(1), "d.example");
        let recipients = vec![PendingRecipient { ordinal: 0, destination, attempts: 0, due: NOW, held: false }];
        let id = QueueId::new(SpoolId::new(7), 0, 1);
        let (sender, recovered, separate_attempts) = (1, false, false);
        let message = AdmittedMessage { id, sender, accepted_at: NOW, recovered, separate_attempts, recipients };
        queues.admit(NOW, &message);
        let limits = NextHopLimits {
            concurrency: ConcurrencyPolicy { max: 5, ..ConcurrencyPolicy::default() },
            shared_concurrency: Some(SharedConcurrency { idle: sample::HOUR }),
            ..NextHopLimits::default()
        };
        let next_hop = "smtp:mx.d.example";
        let until = NOW + sample::HOUR;
        let route = NextHopRoute { next_hop: next_hop.into(), route: (), limits, until, transient: false };
        queues.set_route(NOW, destination, route);
        assert!(queues.next_attempt(NOW).is_none());
        let queue_state = recipient_to(next_hop).queue_state(&mut queues, NOW);
        let elsewhere = Obstacle::SlotsElsewhere { attempts: 0, attempts_max: 0, cluster_max: 5 };
        assert_eq!(queue_state.obstacles, [elsewhere]);
    }
}
