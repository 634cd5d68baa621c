//! The resolver: queries the DNS with limits on time, concurrent queries and cache size.
//!
//! There is at most one query for each name and type at a time; concurrent lookups share its
//! answer, and if the one that sent it is cancelled, another sends it again. Answers are cached for
//! their TTL, within limits. Failures are cached for a short time, so that a thousand recipients do
//! not wait one after another for the same dead server.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use moka::Expiry;
use moka::sync::Cache;
use parking_lot::Mutex;
use tokio::sync::{OnceCell, Semaphore};

use crate::config::{AddressFamilies, ResolverConfig};
use crate::name_servers::{NameServerAnswer, NameServers, NameServersError};
use crate::records::{DnsAnswer, QueryType};

/// The name servers and the cache.
pub struct Resolver {
    servers: NameServers,
    config: ResolverConfig,
    cache: Cache<DnsQuery, CachedAnswer>,
    pending: Mutex<HashMap<DnsQuery, PendingQuery>>,
    query_permits: Semaphore,
}

/// An answer, and when it expires.
#[derive(Clone, Debug)]
pub struct CachedAnswer {
    /// The answer.
    pub answer: DnsAnswer,
    /// When it leaves the cache.
    pub expires_at: Instant,
    /// Whether the name servers validated it with DNSSEC, with all its aliases; only with
    /// [`QueryConfig::validating`](crate::QueryConfig::validating). Never true for names and records
    /// that do not exist.
    pub authenticated: bool,
}

/// The addresses of a host.
pub struct HostAddresses {
    /// The answer.
    pub answer: DnsAnswer,
    /// When the first of the answers expires.
    pub first_expiry: Instant,
    /// When the last of them expires.
    pub last_expiry: Instant,
    /// Whether all of these addresses are authenticated, as in [`CachedAnswer`].
    pub authenticated: bool,
}

impl From<CachedAnswer> for HostAddresses {
    fn from(CachedAnswer { answer, expires_at, authenticated }: CachedAnswer) -> Self {
        HostAddresses { answer, first_expiry: expires_at, last_expiry: expires_at, authenticated }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct DnsQuery {
    /// In lower case and with A-labels, so that equal names share a query.
    name: Box<str>,
    kind: QueryType,
}

/// A running query, and how many lookups wait for it.
#[derive(Default)]
struct PendingQuery {
    answer: Arc<OnceCell<CachedAnswer>>,
    waiters: usize,
}

impl Resolver {
    /// Creates a resolver with an empty cache. Reads `/etc/resolv.conf` if no name servers are
    /// configured.
    pub fn new(config: &ResolverConfig) -> Result<Self, NameServersError> {
        let cache = Cache::builder()
            .max_capacity(config.cache_entries)
            .weigher(|query: &DnsQuery, cached: &CachedAnswer| entry_count(query, &cached.answer))
            .expire_after(AnswerExpiry)
            .build();
        Ok(Resolver {
            servers: NameServers::new(&config.query)?,
            config: config.clone(),
            cache,
            pending: Mutex::default(),
            query_permits: Semaphore::new(config.query.concurrency_max.clamp(1, Semaphore::MAX_PERMITS)),
        })
    }

    /// Looks up a name, which is in lower case and has A-labels.
    pub async fn lookup(&self, name: &str, kind: QueryType) -> CachedAnswer {
        let query = DnsQuery { name: name.into(), kind };
        if let Some(cached) = self.cache.get(&query) {
            return cached;
        }
        let waiter = QueryWaiter::join(self, &query);
        waiter.answer.get_or_init(|| self.query_uncached(&query)).await.clone()
    }

    /// The answer in the cache, if there is one. Needs no runtime.
    pub fn cached(&self, name: &str, kind: QueryType) -> Option<CachedAnswer> {
        self.cache.get(&DnsQuery { name: name.into(), kind })
    }

    /// The addresses of a host. If one family has addresses, a failure of the other does not
    /// matter.
    pub async fn addresses(&self, name: &str, families: AddressFamilies) -> HostAddresses {
        let (v4, v6) = match families {
            AddressFamilies::V4 => return self.lookup(name, QueryType::A).await.into(),
            AddressFamilies::V6 => return self.lookup(name, QueryType::Aaaa).await.into(),
            AddressFamilies::Both => tokio::join!(self.lookup(name, QueryType::A), self.lookup(name, QueryType::Aaaa)),
        };
        let (first_expiry, last_expiry) = (v4.expires_at.min(v6.expires_at), v4.expires_at.max(v6.expires_at));
        let (answer, authenticated) = match ((v4.answer, v4.authenticated), (v6.answer, v6.authenticated)) {
            ((DnsAnswer::Addresses(v4), v4_authenticated), (DnsAnswer::Addresses(v6), v6_authenticated)) => {
                (DnsAnswer::Addresses(interleave(&v6, &v4)), v4_authenticated && v6_authenticated)
            }
            (some @ (DnsAnswer::Addresses(_), _), _) | (_, some @ (DnsAnswer::Addresses(_), _)) => some,
            (none @ (DnsAnswer::Unanswered(_), _), _) | (_, none @ (DnsAnswer::Unanswered(_), _)) => none,
            (answer, _) => answer,
        };
        HostAddresses { answer, first_expiry, last_expiry, authenticated }
    }

    async fn query_uncached(&self, query: &DnsQuery) -> CachedAnswer {
        let _permit = self.query_permits.acquire().await;
        let NameServerAnswer { answer, ttl, authenticated } = self.servers.lookup(&query.name, query.kind).await;
        let expires_at = Instant::now() + self.lifetime(&answer, ttl);
        let cached = CachedAnswer { answer, expires_at, authenticated };
        self.cache.insert(query.clone(), cached.clone());
        cached
    }

    /// How long to cache an answer, within the limits.
    fn lifetime(&self, answer: &DnsAnswer, ttl: Option<u32>) -> Duration {
        let ResolverConfig { ttl_min, ttl_max, negative_ttl_max, failure_ttl, .. } = self.config;
        let ttl = |most: Duration| ttl.map_or(most, |ttl| Duration::from_secs(ttl.into())).max(ttl_min).min(most);
        match answer {
            DnsAnswer::NoRecords | DnsAnswer::NoSuchName => ttl(negative_ttl_max),
            DnsAnswer::Unanswered(_) => failure_ttl,
            DnsAnswer::MxHosts(_)
            | DnsAnswer::NullMx
            | DnsAnswer::Addresses(_)
            | DnsAnswer::Texts(_)
            | DnsAnswer::Names(_)
            | DnsAnswer::Tlsa(_) => ttl(ttl_max),
        }
    }
}

/// As how many entries of the cache an answer counts, so that their number limits the memory too.
fn entry_count(query: &DnsQuery, answer: &DnsAnswer) -> u32 {
    let octets = query.name.len() + answer.octets();
    u32::try_from(octets.div_ceil(ENTRY_OCTETS_MAX)).unwrap_or(u32::MAX).max(1)
}

/// A lookup that waits for a query. The last one removes the query from the map.
struct QueryWaiter<'a> {
    resolver: &'a Resolver,
    question: &'a DnsQuery,
    answer: Arc<OnceCell<CachedAnswer>>,
}

impl<'a> QueryWaiter<'a> {
    fn join(resolver: &'a Resolver, query: &'a DnsQuery) -> Self {
        let mut pending = resolver.pending.lock();
        let pending_query = pending.entry(query.clone()).or_default();
        pending_query.waiters += 1;
        QueryWaiter { resolver, question: query, answer: pending_query.answer.clone() }
    }
}

impl Drop for QueryWaiter<'_> {
    fn drop(&mut self) {
        let mut pending = self.resolver.pending.lock();
        let Some(pending_query) = pending.get_mut(self.question) else { return };
        pending_query.waiters -= 1;
        if pending_query.waiters == 0 {
            pending.remove(self.question);
        }
    }
}

/// Expires cache entries with their answers.
struct AnswerExpiry;

impl Expiry<DnsQuery, CachedAnswer> for AnswerExpiry {
    fn expire_after_create(&self, _: &DnsQuery, cached: &CachedAnswer, now: Instant) -> Option<Duration> {
        Some(cached.expires_at.saturating_duration_since(now))
    }

    fn expire_after_update(
        &self,
        _: &DnsQuery,
        cached: &CachedAnswer,
        now: Instant,
        _: Option<Duration>,
    ) -> Option<Duration> {
        Some(cached.expires_at.saturating_duration_since(now))
    }
}

/// Alternates between the families, so that an unreachable family does not use up all tries.
fn interleave(first: &[IpAddr], second: &[IpAddr]) -> Arc<[IpAddr]> {
    let longest = first.len().max(second.len());
    (0..longest).flat_map(|place| first.get(place).into_iter().chain(second.get(place))).copied().collect()
}

/// The memory of a cached answer that counts as one.
const ENTRY_OCTETS_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_answer_counts_as_several_entries() {
        let count = |octets: usize| {
            let query = DnsQuery { name: "example.org".into(), kind: QueryType::Txt };
            entry_count(&query, &DnsAnswer::Texts([vec![b'x'; octets].into()].into()))
        };
        assert_eq!([count(0), count(900), count(1000), count(60_000)], [1, 1, 2, 59]);
    }
}
