//! The resolver: queries the DNS with limits on time, concurrent queries and cache size.
//!
//! There is at most one query for each name and type at a time; concurrent lookups share its
//! answer, and if the one that sent it is cancelled, another sends it again. Answers are cached for
//! their TTL, within limits. Failures are cached for a short time, so that a thousand recipients do
//! not wait one after another for the same dead server.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hickory_resolver::proto::rr::Name;
use moka::Expiry;
use moka::sync::Cache;
use tokio::sync::{OnceCell, Semaphore};

use crate::NoServers;
use crate::config::{Dns, Families};
use crate::records::{ALIASES_MAX, CIRCLE, Kind, Reading, Said};
use crate::servers::Servers;

/// The name servers and the cache.
pub(crate) struct Resolver {
    servers: Servers,
    config: Dns,
    cache: Cache<Question, Known>,
    under_way: Mutex<HashMap<Question, Arrival>>,
    turns: Semaphore,
}

/// An answer, and when it expires.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) said: Said,
    pub(crate) until: Instant,
}

/// The addresses of a host.
pub(crate) struct KnownHost {
    pub(crate) said: Said,
    /// When the first of the answers expires.
    pub(crate) until: Instant,
    /// When the last of them expires.
    pub(crate) last: Instant,
}

impl From<Known> for KnownHost {
    fn from(Known { said, until }: Known) -> Self {
        KnownHost { said, until, last: until }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Question {
    /// In lower case and with A-labels, so that equal names share a query.
    name: Box<str>,
    kind: Kind,
}

/// A running query, and how many lookups wait for it.
#[derive(Default)]
struct Arrival {
    answer: Arc<OnceCell<Known>>,
    waiting: usize,
}

impl Resolver {
    pub(crate) fn new(config: &Dns) -> Result<Self, NoServers> {
        let cache = Cache::builder().max_capacity(config.cache_entries).expire_after(UntilThen).build();
        Ok(Resolver {
            servers: Servers::new(config)?,
            config: config.clone(),
            cache,
            under_way: Mutex::default(),
            turns: Semaphore::new(config.questions_max.clamp(1, Semaphore::MAX_PERMITS)),
        })
    }

    /// Looks up a name, which is in lower case and has A-labels.
    pub(crate) async fn ask(&self, name: &str, kind: Kind) -> Known {
        let question = Question { name: name.into(), kind };
        if let Some(known) = self.cache.get(&question) {
            return known;
        }
        let place = Place::take(self, &question);
        place.answer.get_or_init(|| self.find_out(&question)).await.clone()
    }

    /// The addresses of a host. If one family has addresses, a failure of the other does not
    /// matter.
    pub(crate) async fn addresses(&self, name: &str, families: Families) -> KnownHost {
        let (v4, v6) = match families {
            Families::V4 => return self.ask(name, Kind::A).await.into(),
            Families::V6 => return self.ask(name, Kind::Aaaa).await.into(),
            Families::Both => tokio::join!(self.ask(name, Kind::A), self.ask(name, Kind::Aaaa)),
        };
        let (until, last) = (v4.until.min(v6.until), v4.until.max(v6.until));
        let said = match (v4.said, v6.said) {
            (Said::Addresses(v4), Said::Addresses(v6)) => Said::Addresses(take_turns(&v6, &v4)),
            (Said::Addresses(some), _) | (_, Said::Addresses(some)) => Said::Addresses(some),
            (Said::Unanswered(why), _) | (_, Said::Unanswered(why)) => Said::Unanswered(why),
            (said, _) => said,
        };
        KnownHost { said, until, last }
    }

    async fn find_out(&self, question: &Question) -> Known {
        let _turn = self.turns.acquire().await;
        let asking = tokio::time::timeout(self.config.patience(), self.follow(question));
        let (said, ttl) = asking.await.unwrap_or_else(|_| (unanswered("the lookup took too long"), None));
        let known = Known { until: Instant::now() + self.lifetime(&said, ttl), said };
        self.cache.insert(question.clone(), known.clone());
        known
    }

    /// Sends the query, and repeats it for the target of an alias (RFC 5321 section 5.1).
    async fn follow(&self, question: &Question) -> (Said, Option<u32>) {
        // The trailing dot prevents search lists from being applied.
        let Ok(mut name) = Name::from_ascii(format!("{}.", question.name)) else { return (Said::NoSuchName, None) };
        let mut least = None;
        for _ in 0..=ALIASES_MAX {
            let (said, ttl) = match self.servers.ask(&name, question.kind).await {
                Reading::Final(said, ttl) => (Some(said), ttl),
                Reading::Alias(target, ttl) => {
                    name = target;
                    (None, ttl)
                }
            };
            least = ttl.into_iter().chain(least).min();
            if let Some(said) = said {
                return (said, least);
            }
        }
        (unanswered(CIRCLE), None)
    }

    /// How long to cache an answer, within the limits.
    fn lifetime(&self, said: &Said, ttl: Option<u32>) -> Duration {
        let Dns { ttl_min, ttl_max, negative_ttl_max, failure_ttl, .. } = self.config;
        let ttl = |most: Duration| ttl.map_or(most, |ttl| Duration::from_secs(ttl.into())).max(ttl_min).min(most);
        match said {
            Said::Exchangers(_) | Said::NullMx | Said::Addresses(_) => ttl(ttl_max),
            Said::Nothing | Said::NoSuchName => ttl(negative_ttl_max),
            Said::Unanswered(_) => failure_ttl,
        }
    }

    fn under_way(&self) -> MutexGuard<'_, HashMap<Question, Arrival>> {
        // A thread that panicked held the lock only for one complete step.
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A lookup that waits for a query. The last one removes the query from the map.
struct Place<'a> {
    resolver: &'a Resolver,
    question: &'a Question,
    answer: Arc<OnceCell<Known>>,
}

impl<'a> Place<'a> {
    fn take(resolver: &'a Resolver, question: &'a Question) -> Self {
        let mut under_way = resolver.under_way();
        let arrival = under_way.entry(question.clone()).or_default();
        arrival.waiting += 1;
        Place { resolver, question, answer: arrival.answer.clone() }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut under_way = self.resolver.under_way();
        let Some(arrival) = under_way.get_mut(self.question) else { return };
        arrival.waiting -= 1;
        if arrival.waiting == 0 {
            under_way.remove(self.question);
        }
    }
}

/// Expires cache entries with their answers.
struct UntilThen;

impl Expiry<Question, Known> for UntilThen {
    fn expire_after_create(&self, _: &Question, known: &Known, now: Instant) -> Option<Duration> {
        Some(known.until.saturating_duration_since(now))
    }

    fn expire_after_update(&self, _: &Question, known: &Known, now: Instant, _: Option<Duration>) -> Option<Duration> {
        Some(known.until.saturating_duration_since(now))
    }
}

/// Alternates between the families, so that an unreachable family does not use up all tries.
fn take_turns(first: &[IpAddr], second: &[IpAddr]) -> Arc<[IpAddr]> {
    let longest = first.len().max(second.len());
    (0..longest).flat_map(|place| first.get(place).into_iter().chain(second.get(place))).copied().collect()
}

fn unanswered(why: &str) -> Said {
    Said::Unanswered(why.into())
}
