//! Limits on DNS queries: for a message, and for all messages of a client. Answers from the cache
//! cost nothing, so they are not counted. Beyond a limit there is no answer, which is a temporary
//! error, and counted.
//!
//! A query is counted before it begins. Of those at the same time, a message and a client have few, so
//! that nobody can occupy the resolver with names whose servers do not answer; further ones wait,
//! within the time for their message.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Instant;

use dns::{CachedAnswer, QueryType};
use mail::Rate;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::counters::{ReachedLimit, VerdictCounters};
use crate::dns_lookup::{DnsFuture, DnsLookup, unanswered};

/// The most clients whose queries are counted at a time; further ones share a count.
const CLIENTS_MAX: usize = 65_536;

/// The most queries for one message at the same time; as many for SPF and for the policy.
const MESSAGE_QUERIES_AT_ONCE: usize = 8;
/// The most queries for all messages of a client at the same time.
const CLIENT_QUERIES_AT_ONCE: usize = 16;
/// The most queries of all clients at the same time, most of which wait for the resolver. Further
/// ones have no answer.
const QUERIES_AT_ONCE: usize = 4096;

/// The queries of clients in the current span of time, and those that run.
#[derive(Debug)]
pub(crate) struct ClientQueries {
    rate: Option<Rate>,
    window: Mutex<QueryWindow>,
    /// One permit for each query at the same time.
    running: Semaphore,
    running_of_clients: Mutex<HashMap<IpAddr, Weak<Semaphore>>>,
}

#[derive(Debug)]
struct QueryWindow {
    began_at: Option<Instant>,
    counts: HashMap<IpAddr, u32>,
}

impl ClientQueries {
    /// Without a rate there is no limit.
    pub(crate) fn new(rate: Option<Rate>) -> ClientQueries {
        ClientQueries {
            rate,
            window: Mutex::new(QueryWindow { began_at: None, counts: HashMap::new() }),
            running: Semaphore::new(QUERIES_AT_ONCE),
            running_of_clients: Mutex::default(),
        }
    }

    /// The permits of a client, which all its messages share.
    fn running_of(&self, client: IpAddr) -> Arc<Semaphore> {
        let mut clients = self.running_of_clients.lock();
        if clients.len() >= CLIENTS_MAX {
            clients.retain(|_, running| running.strong_count() > 0);
        }
        let client = counted_client(client);
        let is_known = clients.contains_key(&client) || clients.len() < CLIENTS_MAX;
        let running = clients.entry(if is_known { client } else { OTHERS }).or_default();
        running.upgrade().unwrap_or_else(|| {
            let permits = Arc::new(Semaphore::new(CLIENT_QUERIES_AT_ONCE));
            *running = Arc::downgrade(&permits);
            permits
        })
    }

    /// Counts a query; false: the client has had all of its own.
    fn charge(&self, client: IpAddr, now: Instant) -> bool {
        let Some(rate) = self.rate else { return true };
        let mut window = self.window.lock();
        if window.began_at.is_none_or(|began_at| now.saturating_duration_since(began_at) >= rate.per) {
            *window = QueryWindow { began_at: Some(now), counts: HashMap::new() };
        }
        let client = counted_client(client);
        let is_known = window.counts.contains_key(&client) || window.counts.len() < CLIENTS_MAX;
        let count = window.counts.entry(if is_known { client } else { OTHERS }).or_default();
        *count = count.saturating_add(1);
        *count <= rate.count
    }
}

/// The clients beyond [`CLIENTS_MAX`].
const OTHERS: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);

/// An IPv6 client is its /64.
fn counted_client(client: IpAddr) -> IpAddr {
    match client {
        IpAddr::V4(_) => client,
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from(u128::from(address) >> 64 << 64)),
    }
}

/// The DNS for one message.
pub(crate) struct MessageDns {
    dns: Arc<dyn DnsLookup>,
    left: AtomicU32,
    client: IpAddr,
    clients: Arc<ClientQueries>,
    counters: Arc<VerdictCounters>,
    running: Semaphore,
    running_of_client: Arc<Semaphore>,
    is_limited: AtomicBool,
}

/// Notes that a query was given up while it waited for others.
struct WaitForOthers<'a>(&'a AtomicBool);

impl WaitForOthers<'_> {
    fn end(self) {
        std::mem::forget(self);
    }
}

impl Drop for WaitForOthers<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

impl MessageDns {
    /// The DNS for a message of this client, which has so many queries.
    pub(crate) fn new(
        dns: Arc<dyn DnsLookup>,
        queries_max: u32,
        client: IpAddr,
        clients: Arc<ClientQueries>,
        counters: Arc<VerdictCounters>,
    ) -> MessageDns {
        let running_of_client = clients.running_of(client);
        let (left, running) = (AtomicU32::new(queries_max), Semaphore::new(MESSAGE_QUERIES_AT_ONCE));
        let is_limited = AtomicBool::new(false);
        MessageDns { dns, left, client, clients, counters, running, running_of_client, is_limited }
    }

    /// Whether a query has no answer because of a limit, which says nothing about those who were to be asked.
    pub(crate) fn is_limited(&self) -> bool {
        self.is_limited.load(Relaxed)
    }

    fn reach(&self, limit: ReachedLimit) {
        self.is_limited.store(true, Relaxed);
        self.counters.count_limit(limit);
    }

    /// Counts a query; false: it is one too many.
    fn charge(&self) -> bool {
        let left = self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
        let reached = match left {
            Err(_) => ReachedLimit::MessageQueries,
            Ok(_) if !self.clients.charge(self.client, Instant::now()) => ReachedLimit::ClientQueries,
            Ok(_) => return true,
        };
        self.reach(reached);
        false
    }

    async fn limited_lookup(&self, name: &str, kind: QueryType) -> CachedAnswer {
        if self.left.load(Relaxed) == 0 {
            self.reach(ReachedLimit::MessageQueries);
            return unanswered("too many queries for this message");
        }
        if let Some(cached) = self.dns.cached(name, kind) {
            return cached;
        }
        if !self.charge() {
            return unanswered("too many queries");
        }
        let wait = WaitForOthers(&self.is_limited);
        let (_message, _client) = (self.running.acquire().await, self.running_of_client.acquire().await);
        wait.end();
        let Ok(_all) = self.clients.running.try_acquire() else {
            self.reach(ReachedLimit::Concurrent);
            return unanswered("too many queries at the same time");
        };
        self.dns.lookup(name, kind).await
    }
}

impl DnsLookup for MessageDns {
    fn cached(&self, name: &str, kind: QueryType) -> Option<CachedAnswer> {
        self.dns.cached(name, kind)
    }

    fn lookup<'a>(&'a self, name: &'a str, kind: QueryType) -> DnsFuture<'a> {
        Box::pin(self.limited_lookup(name, kind))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_client_has_a_number_of_queries_in_each_span_of_time() {
        let minute = Duration::from_secs(60);
        let queries = ClientQueries::new(Some(Rate { count: 2, per: minute }));
        let (now, client) = (Instant::now(), |text: &str| text.parse().unwrap());
        assert!(queries.charge(client("192.0.2.1"), now) && queries.charge(client("192.0.2.1"), now));
        assert!(!queries.charge(client("192.0.2.1"), now));
        assert!(queries.charge(client("192.0.2.2"), now));
        assert!(queries.charge(client("2001:db8::1"), now) && queries.charge(client("2001:db8::2"), now));
        assert!(!queries.charge(client("2001:db8::3"), now));
        assert!(queries.charge(client("2001:db8:0:1::1"), now));
        assert!(queries.charge(client("192.0.2.1"), now + minute));
        assert!((0..100).all(|_| ClientQueries::new(None).charge(client("192.0.2.1"), now)));
    }

    /// Nothing is ever answered; counts the queries that were started and that run.
    #[derive(Default)]
    struct SilentDns {
        started: AtomicU32,
        running: AtomicU32,
    }

    struct RunningQuery<'a>(&'a SilentDns);

    impl Drop for RunningQuery<'_> {
        fn drop(&mut self) {
            self.0.running.fetch_sub(1, Relaxed);
        }
    }

    impl DnsLookup for SilentDns {
        fn cached(&self, _: &str, _: QueryType) -> Option<CachedAnswer> {
            None
        }

        fn lookup<'a>(&'a self, _: &'a str, _: QueryType) -> DnsFuture<'a> {
            self.started.fetch_add(1, Relaxed);
            self.running.fetch_add(1, Relaxed);
            let query = RunningQuery(self);
            Box::pin(async move {
                let _query = query;
                std::future::pending().await
            })
        }
    }

    /// Looks up a hundred names for each message, for a second.
    async fn look_up_hundreds(messages: &[MessageDns]) {
        let lookups = messages.iter().flat_map(|dns| (0..100).map(|_| dns.lookup("slow.example", QueryType::Txt)));
        let _ = tokio::time::timeout(Duration::from_secs(1), futures_util::future::join_all(lookups)).await;
    }

    fn message(dns: &Arc<SilentDns>, queries_max: u32, clients: &Arc<ClientQueries>, client: &str) -> MessageDns {
        MessageDns::new(dns.clone(), queries_max, client.parse().unwrap(), clients.clone(), Arc::default())
    }

    #[tokio::test(start_paused = true)]
    async fn a_query_beyond_a_limit_is_never_started() {
        let (dns, clients) = (Arc::<SilentDns>::default(), Arc::new(ClientQueries::new(None)));
        look_up_hundreds(&[message(&dns, 3, &clients, "192.0.2.1")]).await;
        assert_eq!(dns.started.load(Relaxed), 3);
        let rate = Rate { count: 2, per: Duration::from_secs(3600) };
        let clients = Arc::new(ClientQueries::new(Some(rate)));
        look_up_hundreds(&[message(&dns, 1000, &clients, "192.0.2.1")]).await;
        assert_eq!(dns.started.load(Relaxed), 3 + 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_and_a_client_have_few_queries_at_the_same_time() {
        let (dns, clients) = (Arc::<SilentDns>::default(), Arc::new(ClientQueries::new(None)));
        let of_client = || message(&dns, 1000, &clients, "192.0.2.1");
        let first = [of_client()];
        look_up_hundreds(&first).await;
        assert!(first[0].is_limited(), "the others have waited in vain");
        assert_eq!(dns.started.swap(0, Relaxed), MESSAGE_QUERIES_AT_ONCE as u32);
        assert_eq!(dns.running.load(Relaxed), 0, "they end with the message");
        look_up_hundreds(&[of_client(), of_client(), of_client()]).await;
        assert_eq!(dns.started.swap(0, Relaxed), CLIENT_QUERIES_AT_ONCE as u32);
        look_up_hundreds(&[of_client(), of_client(), of_client(), message(&dns, 1000, &clients, "192.0.2.2")]).await;
        assert_eq!(dns.started.load(Relaxed), (CLIENT_QUERIES_AT_ONCE + MESSAGE_QUERIES_AT_ONCE) as u32);
    }

    #[tokio::test(start_paused = true)]
    async fn the_line_of_all_clients_is_limited() {
        let (dns, clients) = (Arc::<SilentDns>::default(), Arc::new(ClientQueries::new(None)));
        let address = |number: usize| format!("192.0.{}.{}", number / 256, number % 256);
        let messages: Vec<MessageDns> =
            (0..QUERIES_AT_ONCE / 4).map(|number| message(&dns, 8, &clients, &address(number))).collect();
        look_up_hundreds(&messages).await;
        assert_eq!(dns.started.load(Relaxed), QUERIES_AT_ONCE as u32);
    }
}
