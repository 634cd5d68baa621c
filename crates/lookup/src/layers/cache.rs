//! The cache of backend answers, and when an entry may be used.
//!
//! | entry    | up to this age                | use                                                              |
//! |----------|-------------------------------|------------------------------------------------------------------|
//! | Found    | 4/5 of `ttl`                  | fresh: the answer                                                |
//! | Found    | `ttl`                         | due: the answer, while the backend is asked again                |
//! | Found    | `ttl` + `stale_if_error`      | stale: the answer if the backend is down or fails                |
//! | NotFound | `negative_ttl`                | fresh: the answer                                                |
//! | NotFound | `negative_ttl` + `stale_if_error` | stale: Unconfirmed if the backend is down or fails           |
//! | any      | older                         | expired: not used                                                |
//!
//! The age counts from the backend's answer; use does not renew an entry.

use std::time::{Duration, Instant};

use super::store::{CacheStore, CachedEntry};
use crate::{LookupAnswer, TableLayer, TracedAnswer};

/// Lifetimes and size of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSettings {
    /// Lifetime of a Found. Default 5 minutes.
    pub ttl: Duration,
    /// Lifetime of a NotFound. Default 30 seconds.
    pub negative_ttl: Duration,
    /// How long after its lifetime a Found remains the answer, and a NotFound means Unconfirmed, if
    /// the backend fails. Default 1 hour.
    pub stale_if_error: Duration,
    /// Maximum number of entries; the least recently used are evicted. Default 200,000.
    pub entries: u64,
}

impl Default for CacheSettings {
    fn default() -> Self {
        CacheSettings {
            ttl: Duration::from_secs(5 * 60),
            negative_ttl: Duration::from_secs(30),
            stale_if_error: Duration::from_secs(60 * 60),
            entries: 200_000,
        }
    }
}

/// What an entry may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Freshness {
    Fresh,
    Due,
    Stale,
    Expired,
}

impl CacheSettings {
    fn freshness(&self, is_found: bool, age: Duration) -> Freshness {
        match is_found {
            true if age < self.ttl / 5 * 4 => Freshness::Fresh,
            true if age < self.ttl => Freshness::Due,
            true if age < self.ttl.saturating_add(self.stale_if_error) => Freshness::Stale,
            false if age < self.negative_ttl => Freshness::Fresh,
            false if age < self.negative_ttl.saturating_add(self.stale_if_error) => Freshness::Stale,
            _ => Freshness::Expired,
        }
    }
}

/// A fresh answer.
pub(super) struct CacheHit {
    pub(super) answer: LookupAnswer,
    pub(super) age: Duration,
    /// Whether the backend should be asked again in the background.
    pub(super) is_due: bool,
}

pub(super) struct Cache {
    store: CacheStore,
    settings: CacheSettings,
}

impl Cache {
    pub(super) fn new(settings: CacheSettings) -> Self {
        Cache { store: CacheStore::new(settings.entries), settings }
    }

    /// The answer, if the entry is fresh or due.
    pub(super) fn fresh(&self, key: &str, now: Instant) -> Option<CacheHit> {
        self.store.read(key, |kept| {
            let (how, age) = self.freshness(&kept, now);
            let is_due = match how {
                Freshness::Fresh => false,
                Freshness::Due => true,
                Freshness::Stale | Freshness::Expired => return None,
            };
            Some(CacheHit { answer: kept.answer(), age, is_due })
        })
    }

    /// The answer if the backend gives none, for the reason `why`.
    pub(super) fn fallback(&self, key: &str, why: &str, now: Instant) -> Option<TracedAnswer> {
        self.store.read(key, |kept| {
            let (how, age) = self.freshness(&kept, now);
            match how {
                Freshness::Fresh | Freshness::Due => {
                    Some(TracedAnswer { answer: kept.answer(), layer: TableLayer::Cache { age } })
                }
                Freshness::Stale if kept.is_found() => {
                    Some(TracedAnswer { answer: kept.answer(), layer: TableLayer::Stale { age } })
                }
                Freshness::Stale => Some(TracedAnswer {
                    answer: LookupAnswer::Unconfirmed(why.into()),
                    layer: TableLayer::Stale { age },
                }),
                Freshness::Expired => None,
            }
        })
    }

    /// Stores a new answer. Unavailable is not stored and replaces nothing.
    pub(super) fn insert(&self, key: &str, answer: &LookupAnswer, now: Instant) {
        let values = match answer {
            LookupAnswer::Found(values) => Some(values.as_slice()),
            LookupAnswer::NotFound => None,
            LookupAnswer::Unavailable(_) | LookupAnswer::Unconfirmed(_) => return,
        };
        self.store.insert(key, values, now, |kept| self.freshness(&kept, now).0 != Freshness::Expired);
    }

    /// The number of entries, including expired ones not yet evicted.
    pub(super) fn count(&self) -> u64 {
        self.store.count() as u64
    }

    fn freshness(&self, kept: &CachedEntry<'_>, now: Instant) -> (Freshness, Duration) {
        let age = now.saturating_duration_since(kept.answered_at());
        (self.settings.freshness(kept.is_found(), age), age)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SETTINGS: CacheSettings = CacheSettings {
        ttl: Duration::from_secs(100),
        negative_ttl: Duration::from_secs(10),
        stale_if_error: Duration::from_secs(1000),
        entries: 100,
    };

    fn found(values: &[&str]) -> LookupAnswer {
        LookupAnswer::Found(values.iter().map(|&value| value.to_owned()).collect())
    }

    fn at_age(answer: &LookupAnswer, age: Duration) -> (Option<bool>, Option<TableLayer>) {
        let (cache, now) = (Cache::new(SETTINGS), Instant::now());
        cache.insert("k", answer, now);
        let spare = cache.fallback("k", "why", now + age);
        let unconfirmed = LookupAnswer::Unconfirmed("why".into());
        let is_stale = |spare: &TracedAnswer| matches!(spare.layer, TableLayer::Stale { .. });
        let expected = |spare: &TracedAnswer| match is_stale(spare) && *answer == LookupAnswer::NotFound {
            true => unconfirmed.clone(),
            false => answer.clone(),
        };
        assert!(spare.iter().all(|spare| spare.answer == expected(spare)));
        let fresh = cache.fresh("k", now + age);
        assert!(fresh.iter().all(|hit| hit.answer == *answer && hit.age == age));
        (fresh.map(|hit| hit.is_due), spare.map(|spare| spare.layer))
    }

    #[test]
    fn what_was_found_is_fresh_then_due_then_stale_then_nothing() {
        let at = |seconds| {
            let age = Duration::from_secs(seconds);
            (at_age(&found(&["v", "w"]), age), age)
        };
        for (seconds, is_due) in [(0, false), (79, false), (80, true), (99, true)] {
            let (used, age) = at(seconds);
            assert_eq!(used, (Some(is_due), Some(TableLayer::Cache { age })), "{seconds}");
        }
        for seconds in [100, 1099] {
            let (used, age) = at(seconds);
            assert_eq!(used, (None, Some(TableLayer::Stale { age })), "{seconds}");
        }
        assert_eq!(at(1100).0, (None, None));
    }

    #[test]
    fn what_was_not_found_is_fresh_then_unconfirmed_then_nothing() {
        let age = Duration::from_secs(9);
        assert_eq!(at_age(&LookupAnswer::NotFound, age), (Some(false), Some(TableLayer::Cache { age })));
        for age in [10, 1009].map(Duration::from_secs) {
            assert_eq!(at_age(&LookupAnswer::NotFound, age), (None, Some(TableLayer::Stale { age })));
        }
        assert_eq!(at_age(&LookupAnswer::NotFound, Duration::from_secs(1010)), (None, None));
    }

    #[test]
    fn what_could_not_be_said_replaces_nothing() {
        let (cache, now) = (Cache::new(SETTINGS), Instant::now());
        cache.insert("k", &found(&["v"]), now);
        cache.insert("k", &LookupAnswer::Unavailable("why".into()), now + Duration::from_secs(50));
        assert_eq!(cache.fresh("k", now + Duration::from_secs(99)).map(|hit| hit.answer), Some(found(&["v"])));
        assert!(cache.fresh("k", now + Duration::from_secs(101)).is_none());
    }

    #[test]
    fn to_be_served_makes_nothing_younger() {
        let (cache, now) = (Cache::new(SETTINGS), Instant::now());
        cache.insert("k", &found(&["v"]), now);
        for seconds in 0..1100 {
            assert!(cache.fallback("k", "", now + Duration::from_secs(seconds)).is_some());
        }
        assert!(cache.fallback("k", "", now + Duration::from_secs(1100)).is_none());
    }

    #[test]
    fn a_life_without_end_is_no_fault() {
        let for_ever = CacheSettings { ttl: Duration::MAX, stale_if_error: Duration::MAX, ..SETTINGS };
        let (cache, now) = (Cache::new(for_ever), Instant::now());
        cache.insert("k", &found(&[]), now);
        assert!(cache.fresh("k", now).is_some());
    }

    proptest! {
        #[test]
        fn an_entry_only_ever_gets_worse(is_found: bool, younger in 0u64..2000, older in 0u64..2000) {
            let rank = |age: u64| match SETTINGS.freshness(is_found, Duration::from_secs(age)) {
                Freshness::Fresh => 0,
                Freshness::Due => 1,
                Freshness::Stale => 2,
                Freshness::Expired => 3,
            };
            let (younger, older) = (younger.min(older), younger.max(older));
            prop_assert!(rank(younger) <= rank(older));
            prop_assert!(is_found || rank(older) != 1);
        }
    }
}
