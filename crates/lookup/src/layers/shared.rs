//! State shared by callers and the table's thread: cache, queue and counters, and the steps of a
//! lookup through them.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::Settings;
use super::bell;
use super::cache::Cache;
use super::counters::Counters;
use super::gather::{Dismissed, Enlisted, Gather, Key, Refusal};
use super::ticket::{Ticket, Waiter};
use crate::{Answer, Down, Layer, Stats, Trace};

pub(super) struct Shared {
    pub(super) name: Box<str>,
    pub(super) counters: Counters,
    cache: Option<Cache>,
    gather: Mutex<Gather>,
    /// Notified when the table's thread has work.
    call: Notify,
    pub(super) wait_max: Duration,
}

impl Shared {
    pub(super) fn new(name: &str, settings: &Settings) -> Self {
        Shared {
            name: name.into(),
            counters: Counters::default(),
            cache: settings.cache.map(Cache::new),
            gather: Mutex::new(Gather::new(settings)),
            call: Notify::new(),
            wait_max: settings.wait_max,
        }
    }

    /// The answers, if all keys are cached.
    pub(super) fn hits(&self, keys: &[&str]) -> Option<Vec<Answer>> {
        let cache = self.cache.as_ref()?;
        let now = Instant::now();
        let mut answers = Vec::with_capacity(keys.len());
        for key in keys {
            let key = folded(key);
            let hit = cache.fresh(&key, now)?;
            if hit.is_due {
                self.ask_ahead(&key);
            }
            answers.push(hit.answer);
        }
        self.counters.count_hits(&answers);
        Some(answers)
    }

    /// Starts a lookup: takes cached answers and queues the other keys, which are returned with
    /// their indexes.
    pub(super) fn ask(&self, keys: &[&str]) -> (Arc<Ticket>, Vec<(usize, Key)>) {
        let now = Instant::now();
        let ticket = Arc::new(Ticket::new(keys.len()));
        let mut missing = Vec::new();
        for (place, key) in keys.iter().enumerate() {
            let key = folded(key);
            match self.cache.as_ref().and_then(|cache| cache.fresh(&key, now)) {
                // No task is waiting yet.
                Some(hit) => {
                    drop(ticket.give(place, Trace { answer: hit.answer, layer: Layer::Cache { age: hit.age } }))
                }
                None => missing.push((place, Key::from(key))),
            }
        }
        self.enlist(&ticket, &missing, now);
        (ticket, missing)
    }

    fn enlist(&self, ticket: &Arc<Ticket>, missing: &[(usize, Key)], now: Instant) {
        let mut refused = Vec::new();
        let mut joined = 0;
        let mut gather = self.gather();
        for (place, key) in missing {
            match gather.enlist(key, Some(Waiter { ticket: ticket.clone(), place: *place })) {
                Ok(Enlisted::New) => {}
                Ok(Enlisted::Joined) => joined += 1,
                Err(refusal) => refused.push((*place, key, refusal)),
            }
        }
        self.call_after(gather);
        self.counters.count_joined(joined);
        for (place, key, refusal) in refused {
            let trace = self.refuse(key, refusal, now);
            drop(ticket.give(place, trace));
        }
    }

    fn ask_ahead(&self, key: &str) {
        let mut gather = self.gather();
        // If the key cannot be queued, the cached answer is still valid.
        let _ = gather.enlist(&Key::from(key), None);
        self.call_after(gather);
    }

    fn refuse(&self, key: &str, refusal: Refusal, now: Instant) -> Trace {
        match refusal {
            Refusal::Down(error) => self.without_backend(key, &error, Layer::Breaker, now),
            Refusal::Full => {
                self.report(TOO_MANY, 1);
                self.without_backend(key, TOO_MANY, Layer::Backend, now)
            }
            Refusal::Ended => self.without_backend(key, ENDED, Layer::Backend, now),
        }
    }

    /// The answer without the backend: a cache entry, even if stale, otherwise Unavailable.
    pub(super) fn without_backend(&self, key: &str, why: &str, layer: Layer, now: Instant) -> Trace {
        let why = format!("table '{}': {why}", self.name);
        let spare = self.cache.as_ref().and_then(|cache| cache.spare(key, &why, now));
        spare.unwrap_or(Trace { answer: Answer::Unavailable(why), layer })
    }

    /// Stores an answer of the backend in the cache.
    pub(super) fn keep(&self, key: &str, answer: &Answer, now: Instant) {
        if let Some(cache) = &self.cache {
            cache.keep(key, answer, now);
        }
    }

    /// Answers keys that were removed from the queue.
    pub(super) fn dismiss(&self, dismissed: Dismissed, why: &str, layer: Layer) {
        let now = Instant::now();
        hand_out(dismissed.into_iter().map(|(key, waiters)| (self.without_backend(&key, why, layer, now), waiters)));
    }

    /// Shuts down: answers all waiting lookups and tells the table's thread to end.
    pub(super) fn end(&self) {
        let dismissed = self.gather().end();
        self.dismiss(dismissed, ENDED, Layer::Backend);
        self.call.notify_one();
    }

    pub(super) fn poll_batch(&self) -> Option<Vec<Box<str>>> {
        self.gather().poll_batch()
    }

    /// Waits until the table's thread has work.
    pub(super) async fn called(&self) {
        self.call.notified().await;
    }

    pub(super) fn stats(&self) -> Stats {
        let (waiting, down) = {
            let gather = self.gather();
            let down =
                gather.outage().map(|outage| Down { since: outage.since.elapsed(), error: outage.error.clone() });
            (gather.waiting() as u64, down)
        };
        Stats { waiting, down, cached: self.cache.as_ref().map_or(0, Cache::count), ..self.counters.read() }
    }

    pub(super) fn gather(&self) -> MutexGuard<'_, Gather> {
        self.gather.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records failures for the table's thread to report.
    pub(super) fn report(&self, error: &str, count: u64) {
        let mut gather = self.gather();
        gather.report(|| error.into(), count);
        self.call_after(gather);
    }

    /// Unlocks the queue, then wakes the table's thread if it has work.
    fn call_after(&self, mut gather: MutexGuard<'_, Gather>) {
        let calls = gather.poll_call();
        drop(gather);
        if calls {
            self.call.notify_one();
        }
    }
}

/// The reason when the queue is full.
const TOO_MANY: &str = "too many keys are waiting";
/// The reason after shutdown.
const ENDED: &str = "the table has shut down";

/// Delivers answers to the waiting lookups, then wakes their tasks together.
pub(super) fn hand_out(answers: impl Iterator<Item = (Trace, Vec<Waiter>)>) {
    let mut sleepers = Vec::new();
    for (trace, waiters) in answers {
        sleepers.extend(waiters.iter().filter_map(|waiter| waiter.give(trace.clone())));
    }
    bell::wake(sleepers);
}

/// Like [`fold`](crate::fold), but borrows keys that are already folded.
fn folded(key: &str) -> Cow<'_, str> {
    let is_folded = key.bytes().all(|byte| byte.is_ascii() && !byte.is_ascii_uppercase());
    if is_folded { Cow::Borrowed(key) } else { Cow::Owned(crate::fold(key)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::CacheSettings;

    #[test]
    fn what_is_due_is_answered_and_asked_once_meanwhile() {
        let ttl = Duration::from_secs(100);
        let settings =
            Settings { cache: Some(CacheSettings { ttl, ..CacheSettings::default() }), ..Settings::default() };
        let shared = Shared::new("people", &settings);
        let now = Instant::now();
        let ago = |seconds| now.checked_sub(Duration::from_secs(seconds)).expect("the clock started earlier");
        let answer = Answer::Found(vec!["v".to_owned()]);
        shared.keep("young", &answer, ago(50));
        shared.keep("due", &answer, ago(90));
        for _ in 0..2 {
            assert_eq!(shared.hits(&["young", "due"]), Some(vec![answer.clone(), answer.clone()]));
        }
        assert_eq!(shared.poll_batch(), Some(vec!["due".into()]));
        assert_eq!(shared.hits(&["due"]), Some(vec![answer.clone()]));
        assert_eq!(shared.poll_batch(), None);
        // A prefetch has no waiting callers.
        assert!(shared.gather().handle_success(&["due".into()]).iter().all(Vec::is_empty));
    }

    #[test]
    fn keys_are_folded_as_tables_fold_them() {
        for key in ["bob@example.org", "Bob@Example.ORG", "ÄÖ@example.org", "äö", ""] {
            assert_eq!(folded(key), crate::fold(key));
        }
        assert!(matches!(folded("bob+x@example.org"), Cow::Borrowed(_)));
    }
}
