//! Limits on DNS queries: for a message, and for all messages of a client. Answers from the cache
//! cost nothing, so they are not counted. Beyond a limit there is no answer, which is a temporary
//! error, and counted.

use std::collections::HashMap;
use std::future::poll_fn;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::task::Poll;
use std::time::Instant;

use dns::{CachedAnswer, QueryType};
use mail::Rate;
use parking_lot::Mutex;

use crate::counters::{ReachedLimit, VerdictCounters};
use crate::dns_lookup::{DnsFuture, DnsLookup, unanswered};

/// The most clients whose queries are counted at a time; further ones share a count.
const CLIENTS_MAX: usize = 65_536;

/// The queries of clients in the current span of time.
#[derive(Debug)]
pub(crate) struct ClientQueries {
    rate: Option<Rate>,
    window: Mutex<QueryWindow>,
}

#[derive(Debug)]
struct QueryWindow {
    began_at: Option<Instant>,
    counts: HashMap<IpAddr, u32>,
}

impl ClientQueries {
    /// Without a rate there is no limit.
    pub(crate) fn new(rate: Option<Rate>) -> ClientQueries {
        ClientQueries { rate, window: Mutex::new(QueryWindow { began_at: None, counts: HashMap::new() }) }
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
    pub(crate) dns: Arc<dyn DnsLookup>,
    pub(crate) left: AtomicU32,
    pub(crate) client: IpAddr,
    pub(crate) clients: Arc<ClientQueries>,
    pub(crate) counters: Arc<VerdictCounters>,
}

impl MessageDns {
    /// Counts a query; false: it is one too many.
    fn charge(&self) -> bool {
        let left = self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
        let reached = match left {
            Err(_) => ReachedLimit::MessageQueries,
            Ok(_) if !self.clients.charge(self.client, Instant::now()) => ReachedLimit::ClientQueries,
            Ok(_) => return true,
        };
        self.counters.count_limit(reached);
        false
    }

    async fn limited_lookup(&self, name: &str, kind: QueryType) -> CachedAnswer {
        if self.left.load(Relaxed) == 0 {
            self.counters.count_limit(ReachedLimit::MessageQueries);
            return unanswered("too many queries for this message");
        }
        let mut answer = self.dns.lookup(name, kind);
        let cached = poll_fn(|context| match answer.as_mut().poll(context) {
            Poll::Ready(cached) => Poll::Ready(Some(cached)),
            Poll::Pending => Poll::Ready(None),
        });
        match cached.await {
            Some(cached) => cached,
            None if self.charge() => answer.await,
            None => unanswered("too many queries"),
        }
    }
}

impl DnsLookup for MessageDns {
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
}
