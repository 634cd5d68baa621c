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

use hickory_resolver::proto::rr::Name;
use moka::Expiry;
use moka::sync::Cache;
use parking_lot::Mutex;
use tokio::sync::{OnceCell, Semaphore};

use crate::NameServersError;
use crate::config::{AddressFamilies, ResolverConfig};
use crate::name_servers::NameServers;
use crate::records::{ALIAS_LOOP, ALIASES_MAX, DnsAnswer, ParsedAnswer, QueryType};

/// The name servers and the cache.
pub(crate) struct Resolver {
    servers: NameServers,
    config: ResolverConfig,
    cache: Cache<DnsQuery, CachedDnsAnswer>,
    pending: Mutex<HashMap<DnsQuery, PendingQuery>>,
    query_permits: Semaphore,
}

/// An answer, and when it expires.
#[derive(Clone, Debug)]
pub(crate) struct CachedDnsAnswer {
    pub(crate) answer: DnsAnswer,
    pub(crate) expires_at: Instant,
}

/// The addresses of a host.
pub(crate) struct HostAddresses {
    pub(crate) answer: DnsAnswer,
    /// When the first of the answers expires.
    pub(crate) first_expiry: Instant,
    /// When the last of them expires.
    pub(crate) last_expiry: Instant,
}

impl From<CachedDnsAnswer> for HostAddresses {
    fn from(CachedDnsAnswer { answer: said, expires_at: until }: CachedDnsAnswer) -> Self {
        HostAddresses { answer: said, first_expiry: until, last_expiry: until }
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
    answer: Arc<OnceCell<CachedDnsAnswer>>,
    waiters: usize,
}

impl Resolver {
    pub(crate) fn new(config: &ResolverConfig) -> Result<Self, NameServersError> {
        let cache = Cache::builder().max_capacity(config.cache_entries).expire_after(AnswerExpiry).build();
        Ok(Resolver {
            servers: NameServers::new(config)?,
            config: config.clone(),
            cache,
            pending: Mutex::default(),
            query_permits: Semaphore::new(config.questions_max.clamp(1, Semaphore::MAX_PERMITS)),
        })
    }

    /// Looks up a name, which is in lower case and has A-labels.
    pub(crate) async fn lookup(&self, name: &str, kind: QueryType) -> CachedDnsAnswer {
        let query = DnsQuery { name: name.into(), kind };
        if let Some(cached) = self.cache.get(&query) {
            return cached;
        }
        let waiter = QueryWaiter::join(self, &query);
        waiter.answer.get_or_init(|| self.query_uncached(&query)).await.clone()
    }

    /// The addresses of a host. If one family has addresses, a failure of the other does not
    /// matter.
    pub(crate) async fn addresses(&self, name: &str, families: AddressFamilies) -> HostAddresses {
        let (v4, v6) = match families {
            AddressFamilies::V4 => return self.lookup(name, QueryType::A).await.into(),
            AddressFamilies::V6 => return self.lookup(name, QueryType::Aaaa).await.into(),
            AddressFamilies::Both => tokio::join!(self.lookup(name, QueryType::A), self.lookup(name, QueryType::Aaaa)),
        };
        let (until, last) = (v4.expires_at.min(v6.expires_at), v4.expires_at.max(v6.expires_at));
        let said = match (v4.answer, v6.answer) {
            (DnsAnswer::Addresses(v4), DnsAnswer::Addresses(v6)) => DnsAnswer::Addresses(interleave(&v6, &v4)),
            (DnsAnswer::Addresses(some), _) | (_, DnsAnswer::Addresses(some)) => DnsAnswer::Addresses(some),
            (DnsAnswer::Unanswered(why), _) | (_, DnsAnswer::Unanswered(why)) => DnsAnswer::Unanswered(why),
            (said, _) => said,
        };
        HostAddresses { answer: said, first_expiry: until, last_expiry: last }
    }

    async fn query_uncached(&self, query: &DnsQuery) -> CachedDnsAnswer {
        let _turn = self.query_permits.acquire().await;
        let asking = tokio::time::timeout(self.config.total_timeout(), self.query_following_aliases(query));
        let (said, ttl) = asking.await.unwrap_or_else(|_| (unanswered("the lookup took too long"), None));
        let cached = CachedDnsAnswer { expires_at: Instant::now() + self.lifetime(&said, ttl), answer: said };
        self.cache.insert(query.clone(), cached.clone());
        cached
    }

    /// Sends the query, and repeats it for the target of an alias (RFC 5321 section 5.1).
    async fn query_following_aliases(&self, query: &DnsQuery) -> (DnsAnswer, Option<u32>) {
        // The trailing dot prevents search lists from being applied.
        let Ok(mut name) = Name::from_ascii(format!("{}.", query.name)) else { return (DnsAnswer::NoSuchName, None) };
        let mut least = None;
        for _ in 0..=ALIASES_MAX {
            let (said, ttl) = match self.servers.query(&name, query.kind).await {
                ParsedAnswer::Complete(said, ttl) => (Some(said), ttl),
                ParsedAnswer::Alias(target, ttl) => {
                    name = target;
                    (None, ttl)
                }
            };
            least = ttl.into_iter().chain(least).min();
            if let Some(said) = said {
                return (said, least);
            }
        }
        (unanswered(ALIAS_LOOP), None)
    }

    /// How long to cache an answer, within the limits.
    fn lifetime(&self, said: &DnsAnswer, ttl: Option<u32>) -> Duration {
        let ResolverConfig { ttl_min, ttl_max, negative_ttl_max, failure_ttl, .. } = self.config;
        let ttl = |most: Duration| ttl.map_or(most, |ttl| Duration::from_secs(ttl.into())).max(ttl_min).min(most);
        match said {
            DnsAnswer::MxHosts(_) | DnsAnswer::NullMx | DnsAnswer::Addresses(_) => ttl(ttl_max),
            DnsAnswer::NoRecords | DnsAnswer::NoSuchName => ttl(negative_ttl_max),
            DnsAnswer::Unanswered(_) => failure_ttl,
        }
    }
}

/// A lookup that waits for a query. The last one removes the query from the map.
struct QueryWaiter<'a> {
    resolver: &'a Resolver,
    question: &'a DnsQuery,
    answer: Arc<OnceCell<CachedDnsAnswer>>,
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

impl Expiry<DnsQuery, CachedDnsAnswer> for AnswerExpiry {
    fn expire_after_create(&self, _: &DnsQuery, cached: &CachedDnsAnswer, now: Instant) -> Option<Duration> {
        Some(cached.expires_at.saturating_duration_since(now))
    }

    fn expire_after_update(
        &self,
        _: &DnsQuery,
        cached: &CachedDnsAnswer,
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

fn unanswered(why: &str) -> DnsAnswer {
    DnsAnswer::Unanswered(why.into())
}
