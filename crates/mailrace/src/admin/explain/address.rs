//! How mail for an address would be routed: what the directory says, which queue it would enter and
//! by which rule, which hosts would take it, and what holds their mail now. It uses a router of its
//! own with an empty cache, so the answer is what the DNS says now.

use std::io::{self, Write};
use std::sync::Arc;

use lookup::directory::{Directory, Resolution, Store};
use mail::{Address, Timestamp};
use queue::{Limits, NextHopView, Obstacle, QueueNumber, Queues};
use route::{Answer, Endpoint, Host, Hosts, Route, Router};
use serde::{Deserialize, Serialize};

use super::super::text::{brief, counted};
use super::{busy, obstacle_lines};
use crate::config::Config;
use crate::flow::{Fleet, Rules};
use crate::plan;
use crate::quota::Rooms;
use crate::tables::Tables;

/// How many of the addresses that an alias resolves to are traced.
const LEGS_MAX: usize = 20;

/// Knows the flow's directory, rules and routes.
pub struct Guide {
    directory: Arc<Directory>,
    rules: Rules,
    tables: Tables,
    routes: route::Config,
    fleet: Fleet,
    rooms: Option<Arc<Rooms>>,
}

/// The result, before the queues are asked.
pub(in super::super) struct Journey {
    /// What the directory says.
    resolution: String,
    /// Set if the directory alone decides.
    verdict: Option<Verdict>,
    pub(in super::super) legs: Vec<Leg>,
    /// Addresses that are not traced.
    more: usize,
}

/// Whether mail for an address would be delivered, as far as this can be told without sending any.
/// The last is the worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(in super::super) enum Verdict {
    Deliverable,
    /// The directory or the DNS does not answer now.
    Unknown,
    Undeliverable,
}

/// The route to one address.
#[derive(Clone)]
pub(in super::super) struct Leg {
    address: Address,
    /// The destination's name in the queue.
    destination: String,
    queue: QueueNumber,
    rule: String,
    route: Result<Route, String>,
    /// The mailbox's quota, if it is local and has one.
    quota: Option<String>,
}

/// What the queues know of a route.
pub(in super::super) struct Situation {
    queue: Box<str>,
    obstacles: Vec<Obstacle>,
    busy: Option<String>,
    names: Vec<Box<str>>,
}

impl Guide {
    /// For this configuration; `queues` have their numbers, and `rooms` belong to the same
    /// configuration.
    ///
    /// # Errors
    ///
    /// A setting cannot be used.
    pub fn new(
        config: &Config,
        tables: &Tables,
        directory: Arc<Directory>,
        queues: &queue::Config,
        rooms: Option<Arc<Rooms>>,
    ) -> anyhow::Result<Guide> {
        let (rules, routes) = (plan::rules(config, tables, queues), plan::routes(config));
        Ok(Guide { directory, rules, tables: tables.clone(), routes, fleet: plan::fleet(config)?, rooms })
    }

    /// Resolves the routes to an address that the directory has resolved, by tables and the DNS.
    /// This may take long.
    pub(in super::super) async fn follow(&self, resolution: Resolution, sender: Option<&Address>) -> Journey {
        let Told { resolution, verdict, finals } = told(resolution);
        let router = Router::new(self.routes.clone()).map_err(|error| error.to_string());
        let router = router.map(|router| router.with_tables(self.tables.iter().map(|(_, table)| table.clone())));
        let mut legs = Vec::new();
        for address in finals.iter().take(LEGS_MAX) {
            legs.push(self.leg(address, sender, &router).await);
        }
        Journey { resolution, verdict, legs, more: finals.len().saturating_sub(LEGS_MAX) }
    }

    async fn leg(&self, address: &Address, sender: Option<&Address>, router: &Result<Router, String>) -> Leg {
        let domain = address.domain();
        let store = match self.rules.is_open(domain) {
            true => self.directory.stores(std::slice::from_ref(address)).await.pop(),
            false => None,
        };
        let destination = match &store {
            Some(Store::At(host)) => format!("{host}!{domain}"),
            Some(Store::Here | Store::Onward | Store::Unavailable(_)) | None => domain.to_owned(),
        };
        let is_here = match &store {
            Some(store) => *store == Store::Here,
            None => self.rules.local.0.contains(domain),
        };
        let (queue, rule) = self.queue(sender, domain, is_here).await;
        let route = match (store, router) {
            (Some(Store::Unavailable(why)), _) => Err(format!("mailbox host unknown: {why}")),
            (_, Ok(router)) => Ok(router.route(&destination).await),
            (_, Err(why)) => Err(why.clone()),
        };
        let quota = match &self.rooms {
            Some(rooms) => rooms.account(address).await,
            None => None,
        };
        Leg { address: address.clone(), destination, queue, rule, route, quota }
    }

    /// The queue and the rule that chooses it, with the classifier's precedence.
    async fn queue(&self, sender: Option<&Address>, domain: &str, is_here: bool) -> (QueueNumber, String) {
        if is_here {
            return (self.rules.local.1, "because the mailbox is local".into());
        }
        let clients = self.rules.clients.len();
        let unless_client = |rule: String| match clients {
            0 => rule,
            _ => format!("{rule}; unless a client rule matches ({})", counted(clients, "rule")),
        };
        let (queue, rule) = match self.by_sender(sender).await {
            Some(named) => named,
            None => match self.rules.domains.iter().find(|(pattern, _)| pattern.fits(domain)) {
                Some((pattern, queue)) => (*queue, unless_client(format!("by domain {pattern}"))),
                None => (self.rules.standard, unless_client("because no rule matches".into())),
            },
        };
        match self.rules.headers.len() {
            0 => (queue, rule),
            headers => (queue, format!("{rule}; unless a header rule matches ({})", counted(headers, "rule"))),
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

    /// Writes everything; `meant` is the normalized form of `address`.
    pub(in super::super) fn tell(
        &self,
        [address, meant]: [&Address; 2],
        journey: &Journey,
        situations: &[Situation],
        now: Timestamp,
        out: &mut impl Write,
    ) -> io::Result<()> {
        if address != meant {
            writeln!(out, "{address}: the postmaster of this host, {meant}")?;
        }
        writeln!(out, "{meant}: {}", journey.resolution)?;
        for (leg, situation) in journey.legs.iter().zip(situations) {
            writeln!(out, "{}", leg.address)?;
            writeln!(out, "  queue: {}, {}", situation.queue, leg.rule)?;
            if leg.destination != leg.address.domain() {
                writeln!(out, "  destination: {}, from the directory", leg.destination)?;
            }
            match &leg.route {
                Ok(route) => self.tell_route(route, out)?,
                Err(why) => writeln!(out, "  route: unknown: {why}")?,
            }
            if let Some(quota) = &leg.quota {
                writeln!(out, "  quota: {quota}")?;
            }
            if let Some(busy) = &situation.busy {
                writeln!(out, "  next hop now: {busy}")?;
            }
            if leg.next_hop().is_none() && situation.obstacles.is_empty() {
                continue;
            }
            let name = |number: QueueNumber| &*situation.names[usize::from(number.0)];
            obstacle_lines(&situation.obstacles, now, name).iter().try_for_each(|line| writeln!(out, "  {line}"))?;
        }
        if journey.more > 0 {
            writeln!(out, "and {} more addresses", journey.more)?;
        }
        Ok(())
    }

    fn tell_route(&self, route: &Route, out: &mut impl Write) -> io::Result<()> {
        match &route.answer {
            Answer::Local { transport } => {
                writeln!(out, "  route: local mailbox, transport {transport}")?;
                self.tell_limits(transport, None, out)
            }
            Answer::Hosts(hosts) => {
                let good_for = brief(route.valid_for);
                writeln!(out, "  route: to {}, transport {}; valid for {good_for}", hosts.next_hop, hosts.transport)?;
                for (place, tier) in (1..).zip(&hosts.tiers) {
                    tier.iter().try_for_each(|host| writeln!(out, "    {place}. {}", listening(host)))?;
                }
                self.tell_limits(&hosts.transport, Some(hosts), out)
            }
            Answer::Defer(reply) => writeln!(out, "  route: unknown now, mail waits: {reply}"),
            Answer::Fail(reply) => writeln!(out, "  route: none, mail fails: {reply}"),
        }
    }

    fn tell_limits(&self, transport: &str, hosts: Option<&Hosts>, out: &mut impl Write) -> io::Result<()> {
        if let Some(ship) = self.fleet.ships.get(transport) {
            writeln!(out, "  limits: {}", limits(&ship.limits))?;
        }
        let names = || hosts.into_iter().flat_map(|hosts| hosts.tiers.iter().flatten()).map(|host| &*host.name);
        let exception = self.fleet.exceptions.iter().find(|exception| names().any(|name| (exception.is_for)(name)));
        let Some(exception) = exception else { return Ok(()) };
        let told = [
            exception.connections.map(|most| counted(most, "connection")),
            exception.rate.map(|rate| format!("{} every {:?}", counted(rate.messages as usize, "message"), rate.per)),
            exception.messages_per_connection.map(|most| counted(most as usize, "message") + " a connection"),
            exception.recipients_per_message.map(|most| counted(most, "recipient") + " a message"),
        ];
        writeln!(out, "  limits for this next hop: {}", told.into_iter().flatten().collect::<Vec<_>>().join(", "))
    }
}

impl Verdict {
    pub(in super::super) fn word(self) -> &'static str {
        match self {
            Verdict::Deliverable => "deliverable",
            Verdict::Unknown => "unknown now",
            Verdict::Undeliverable => "undeliverable",
        }
    }
}

impl Journey {
    /// The verdict and the reason: the first of the worst of all addresses.
    pub(in super::super) fn verdict(&self) -> (Verdict, String) {
        if let Some(verdict) = self.verdict {
            return (verdict, self.resolution.clone());
        }
        let verdicts = self.legs.iter().map(Leg::verdict);
        let worst = verdicts.reduce(|worst, other| if other.0 > worst.0 { other } else { worst });
        worst.unwrap_or((Verdict::Undeliverable, self.resolution.clone()))
    }
}

impl Leg {
    fn verdict(&self) -> (Verdict, String) {
        let (verdict, why) = match &self.route {
            Err(why) => (Verdict::Unknown, why.clone()),
            Ok(route) => match &route.answer {
                Answer::Local { transport } => (Verdict::Deliverable, format!("local mailbox, transport {transport}")),
                Answer::Hosts(hosts) => {
                    (Verdict::Deliverable, format!("to {}, transport {}", hosts.next_hop, hosts.transport))
                }
                Answer::Defer(reply) => (Verdict::Unknown, reply.to_string()),
                Answer::Fail(reply) => (Verdict::Undeliverable, reply.to_string()),
            },
        };
        (verdict, format!("{}: {why}", self.address))
    }

    /// The state in the queues. This creates the destination if needed; it is dropped again if no
    /// recipient waits there.
    pub(in super::super) fn situation<R: Clone>(&self, queues: &mut Queues<R>, now: Timestamp) -> Situation {
        let destination = queues.destination(self.queue, &self.destination);
        let mut obstacles = queues.explain(now, destination);
        let next_hop = self.next_hop();
        let view = queues.next_hops().find(|hop| Some(hop.name) == next_hop);
        if let Some(at) = obstacles.iter().position(|obstacle| *obstacle == Obstacle::NoRoute) {
            // The route was not requested because no mail waits; what holds the next hop would hold
            // this mail too.
            obstacles.splice(at..=at, view.iter().flat_map(|hop| troubles(hop, now)));
        }
        let names: Vec<_> = queues.config().queues.iter().map(|queue| queue.name.clone()).collect();
        let busy = view.as_ref().map(busy);
        Situation { queue: names[usize::from(self.queue.0)].clone(), obstacles, busy, names }
    }

    fn next_hop(&self) -> Option<&str> {
        match &self.route.as_ref().ok()?.answer {
            Answer::Local { transport } => Some(transport),
            Answer::Hosts(hosts) => Some(&hosts.next_hop),
            Answer::Defer(_) | Answer::Fail(_) => None,
        }
    }
}

/// What holds a next hop, whatever the destination.
fn troubles(hop: &NextHopView<'_>, now: Timestamp) -> Vec<Obstacle> {
    let dead = hop.probe_at.zip(hop.error).map(|(probe_at, error)| Obstacle::Dead { probe_at, error: error.clone() });
    let rate = hop.rate_free_at.filter(|at| *at > now).map(|until| Obstacle::Rate { until });
    let (attempts, most) = (hop.attempts, hop.concurrency);
    let full = (attempts >= most).then_some(Obstacle::NextHopFull { attempts, most });
    [dead, rate, full].into_iter().flatten().collect()
}

/// What the directory says, and the final recipients.
struct Told {
    resolution: String,
    /// Set if no route is needed.
    verdict: Option<Verdict>,
    finals: Vec<Address>,
}

fn told(resolution: Resolution) -> Told {
    let over = |verdict, resolution: String| Told { resolution, verdict: Some(verdict), finals: Vec::new() };
    let never = |resolution: &str| over(Verdict::Undeliverable, resolution.into());
    match resolution {
        Resolution::Unknown => never("unknown user in one of our domains"),
        Resolution::TooDeep => never("too many alias steps, possibly an alias loop"),
        Resolution::TooMany => never("it expands to too many addresses"),
        Resolution::Unavailable(why) => over(Verdict::Unknown, format!("cannot be looked up now: {why}")),
        Resolution::Remote(address) => {
            let resolution = "remote: not one of our domains".into();
            Told { resolution, verdict: None, finals: vec![address] }
        }
        Resolution::Local(finals) => {
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
            Told { resolution, verdict: None, finals: addresses }
        }
    }
}

fn listening(host: &Host) -> String {
    let endpoint = |endpoint: &Endpoint| match endpoint {
        Endpoint::Tcp(address) => address.to_string(),
        Endpoint::Unix(path) => format!("unix:{}", path.display()),
    };
    format!("{}: {}", host.name, host.endpoints.iter().map(endpoint).collect::<Vec<_>>().join(", "))
}

fn limits(limits: &Limits) -> String {
    let most = counted(limits.concurrency.most, "attempt");
    let recipients = limits
        .recipients_per_attempt_max
        .map(|most| format!(", {} each", counted(most, "recipient")))
        .unwrap_or_default();
    let rate = match limits.rate {
        Some(rate) => format!("{} every {:?}", counted(rate.messages as usize, "message"), rate.per),
        None => "no rate".into(),
    };
    format!("at most {most} concurrently{recipients}; {rate}")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use mail::{Enhanced, Reply};
    use queue::Contact;

    use super::super::super::sample::{self, NOW};
    use super::super::super::wait::unless_stopping;
    use super::*;
    use crate::tables::Tables;

    const CONFIG: &str = r#"
        hostname = "mx.here"
        [[domain]]
        name = "here.example"
        [[queue]]
        name = "lists"
        senders = ["@lists.example"]
        domains = ["*.slow.example"]
        headers = ["Precedence: bulk"]
        [[route]]
        domain = "d.example"
        next_hop = "[192.0.2.1]:2525"
        [[next_hop]]
        host = "192.0.2.1"
        connections = 3
        rate = "5/m"
    "#;

    fn guide(text: &str) -> Guide {
        let config = Config::parse(text, "test", "mx.here").unwrap_or_else(|faults| panic!("{faults}"));
        let tables = Tables::open(&config, Arc::new(|_| {})).unwrap();
        let queues = plan::queues(&config);
        Guide::new(&config, &tables, Arc::new(plan::directory(&config, &tables)), &queues, None).unwrap()
    }

    fn followed(guide: &Guide, address: &Address, sender: Option<&Address>, stopping: &AtomicBool) -> Option<Journey> {
        let work = async { guide.follow(guide.directory.resolve(address).await, sender).await };
        unless_stopping(stopping, work).unwrap()
    }

    fn explain(address: &str, sender: Option<&str>, queues: &mut Queues<()>) -> String {
        let (guide, address): (_, Address) = (guide(CONFIG), address.parse().unwrap());
        let sender = sender.map(|sender| sender.parse().unwrap());
        let journey = followed(&guide, &address, sender.as_ref(), &AtomicBool::new(false)).unwrap();
        let situations: Vec<_> = journey.legs.iter().map(|leg| leg.situation(queues, NOW)).collect();
        let mut out = Vec::new();
        guide.tell([&address; 2], &journey, &situations, NOW, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    /// Queues with the names and the order of the configuration.
    fn queues() -> Queues<()> {
        let queue = |name: &str| queue::QueueConfig { name: name.into(), ..queue::QueueConfig::default() };
        let queues = ["local", "standard", "lame", "lists"].map(queue).into();
        Queues::new(queue::Config { queues, ..queue::Config::default() }, 0)
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

    /// The name server exists but does not answer.
    #[test]
    fn nobody_waits_for_the_dns_when_the_server_stops() {
        let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let servers = format!("{CONFIG}\n[dns]\nservers = [\"{}\"]\ntimeout = \"1h\"", silent.local_addr().unwrap());
        let guide = guide(&servers);
        let address = "joe@elsewhere.example".parse().unwrap();
        assert!(followed(&guide, &address, None, &AtomicBool::new(true)).is_none());
    }

    #[test]
    fn a_rule_names_the_queue_by_its_precedence() {
        let guide = guide(CONFIG);
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
    fn where_nobody_waits_the_troubles_of_the_next_hop_are_told() {
        let mut sample = sample::queues();
        let refused = Reply::new(451, Enhanced(4, 4, 1), "connection refused");
        sample.queues.ended(NOW, &mut sample.attempt, Contact::Failed(refused.clone()));
        let hosts = Hosts { transport: "smtp".into(), next_hop: "smtp:mx.here!d.example".into(), tiers: Vec::new() };
        let leg = Leg {
            address: "joe@new.example".parse().unwrap(),
            destination: "new.example".into(),
            queue: QueueNumber(0),
            rule: String::new(),
            route: Ok(Route { answer: Answer::Hosts(hosts), valid_for: Duration::ZERO, transient: false }),
            quota: None,
        };
        let situation = leg.situation(&mut sample.queues, NOW);
        assert!(!situation.obstacles.contains(&Obstacle::NoRoute));
        assert_eq!(
            situation.busy.as_deref(),
            Some("0 attempts in progress, limit 1 now, 1 failure since it last answered")
        );
        let view = sample.queues.next_hops().find(|hop| hop.name == "smtp:mx.here!d.example").unwrap();
        let dead = NextHopView { probe_at: Some(NOW + sample::HOUR), ..view };
        let probe_at = NOW + sample::HOUR;
        assert_eq!(troubles(&dead, NOW), [Obstacle::Dead { probe_at, error: refused }]);
    }
}
