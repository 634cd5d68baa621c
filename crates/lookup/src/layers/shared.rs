//! State shared by callers and the table's thread: cache, queue and counters, and the steps of a
//! lookup through them.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use super::BackendSettings;
use super::answer_slots::{AnswerSlots, Waiter};
use super::batch_queue::{BatchQueue, CancelledKeys, EnqueueError, Enqueued, Key};
use super::cache::Cache;
use super::counters::Counters;
use super::notifier;
use crate::{BackendDown, LookupAnswer, LookupStats, TableLayer, TracedAnswer};

pub(super) struct Shared {
    pub(super) name: Box<str>,
    pub(super) counters: Counters,
    cache: Option<Cache>,
    /// Keys that wait for a request.
    pub(super) queue: Mutex<BatchQueue>,
    /// Notified when the table's thread has work.
    wake: Notify,
    pub(super) wait_max: Duration,
}

impl Shared {
    pub(super) fn new(name: &str, settings: &BackendSettings) -> Self {
        Shared {
            name: name.into(),
            counters: Counters::default(),
            cache: settings.cache.map(Cache::new),
            queue: Mutex::new(BatchQueue::new(settings)),
            wake: Notify::new(),
            wait_max: settings.wait_max,
        }
    }

    /// The answers, if all keys are cached.
    pub(super) fn cached_answers(&self, keys: &[&str]) -> Option<Vec<LookupAnswer>> {
        let cache = self.cache.as_ref()?;
        let now = Instant::now();
        let mut answers = Vec::with_capacity(keys.len());
        for key in keys {
            let key = folded(key);
            let hit = cache.fresh(&key, now)?;
            if hit.is_due {
                self.prefetch(&key);
            }
            answers.push(hit.answer);
        }
        self.counters.count_hits(&answers);
        Some(answers)
    }

    /// Starts a lookup: takes cached answers and queues the other keys, which are returned with
    /// their indexes.
    pub(super) fn start_lookup(&self, keys: &[&str]) -> (Arc<AnswerSlots>, Vec<(usize, Key)>) {
        let now = Instant::now();
        let slots = Arc::new(AnswerSlots::new(keys.len()));
        let mut missing = Vec::new();
        for (place, key) in keys.iter().enumerate() {
            let key = folded(key);
            match self.cache.as_ref().and_then(|cache| cache.fresh(&key, now)) {
                // No task is waiting yet.
                Some(hit) => drop(
                    slots
                        .deliver(place, TracedAnswer { answer: hit.answer, layer: TableLayer::Cache { age: hit.age } }),
                ),
                None => missing.push((place, Key::from(key))),
            }
        }
        self.enqueue(&slots, &missing, now);
        (slots, missing)
    }

    fn enqueue(&self, slots: &Arc<AnswerSlots>, missing: &[(usize, Key)], now: Instant) {
        let mut refused = Vec::new();
        let mut joined = 0;
        let mut queue = self.queue.lock();
        for (place, key) in missing {
            match queue.enqueue(key, Some(Waiter { slots: slots.clone(), place: *place })) {
                Ok(Enqueued::New) => {}
                Ok(Enqueued::Joined) => joined += 1,
                Err(refusal) => refused.push((*place, key, refusal)),
            }
        }
        self.unlock_and_wake(queue);
        self.counters.count_joined(joined);
        for (place, key, refusal) in refused {
            let trace = self.refused_answer(key, refusal, now);
            drop(slots.deliver(place, trace));
        }
    }

    fn prefetch(&self, key: &str) {
        let mut queue = self.queue.lock();
        // If the key cannot be queued, the cached answer is still valid.
        let _ = queue.enqueue(&Key::from(key), None);
        self.unlock_and_wake(queue);
    }

    fn refused_answer(&self, key: &str, refusal: EnqueueError, now: Instant) -> TracedAnswer {
        match refusal {
            EnqueueError::Down(error) => self.fallback_answer(key, &error, TableLayer::Breaker, now),
            EnqueueError::Full => {
                self.report_failure(TOO_MANY, 1);
                self.fallback_answer(key, TOO_MANY, TableLayer::Backend, now)
            }
            EnqueueError::Ended => self.fallback_answer(key, SHUT_DOWN, TableLayer::Backend, now),
        }
    }

    /// The answer without the backend: a cache entry, even if stale, otherwise Unavailable.
    pub(super) fn fallback_answer(&self, key: &str, why: &str, layer: TableLayer, now: Instant) -> TracedAnswer {
        let why = format!("table '{}': {why}", self.name);
        let spare = self.cache.as_ref().and_then(|cache| cache.fallback(key, &why, now));
        spare.unwrap_or(TracedAnswer { answer: LookupAnswer::Unavailable(why), layer })
    }

    /// Stores an answer of the backend in the cache.
    pub(super) fn cache_answer(&self, key: &str, answer: &LookupAnswer, now: Instant) {
        if let Some(cache) = &self.cache {
            cache.insert(key, answer, now);
        }
    }

    /// Answers keys that were removed from the queue.
    pub(super) fn answer_cancelled(&self, cancelled: CancelledKeys, why: &str, layer: TableLayer) {
        let now = Instant::now();
        deliver(cancelled.into_iter().map(|(key, waiters)| (self.fallback_answer(&key, why, layer, now), waiters)));
    }

    /// Shuts down: answers all waiting lookups and tells the table's thread to end.
    pub(super) fn end(&self) {
        let cancelled = self.queue.lock().end();
        self.answer_cancelled(cancelled, SHUT_DOWN, TableLayer::Backend);
        self.wake.notify_one();
    }

    pub(super) fn poll_batch(&self) -> Option<Vec<Box<str>>> {
        self.queue.lock().poll_batch()
    }

    /// Waits until the table's thread has work.
    pub(super) async fn woken(&self) {
        self.wake.notified().await;
    }

    pub(super) fn stats(&self) -> LookupStats {
        let (waiting, down, request_keys_max) = {
            let queue = self.queue.lock();
            let down =
                queue.outage().map(|outage| BackendDown { since: outage.since.elapsed(), error: outage.error.clone() });
            (queue.waiting() as u64, down, queue.batch_max() as u64)
        };
        LookupStats {
            waiting,
            down,
            request_keys_max,
            cached: self.cache.as_ref().map_or(0, Cache::count),
            ..self.counters.read()
        }
    }

    /// Records failures for the table's thread to report.
    pub(super) fn report_failure(&self, error: &str, count: u64) {
        let mut queue = self.queue.lock();
        queue.report_failure(|| error.into(), count);
        self.unlock_and_wake(queue);
    }

    /// Unlocks the queue, then wakes the table's thread if it has work.
    fn unlock_and_wake(&self, mut queue: MutexGuard<'_, BatchQueue>) {
        let calls = queue.poll_wake();
        drop(queue);
        if calls {
            self.wake.notify_one();
        }
    }
}

/// The reason when the queue is full.
const TOO_MANY: &str = "too many keys are waiting";
/// The reason after shutdown.
const SHUT_DOWN: &str = "the table has shut down";

/// Delivers answers to the waiting lookups, then wakes their tasks together.
pub(super) fn deliver(answers: impl Iterator<Item = (TracedAnswer, Vec<Waiter>)>) {
    let mut tasks = Vec::new();
    for (trace, waiters) in answers {
        tasks.extend(waiters.iter().filter_map(|waiter| waiter.deliver(trace.clone())));
    }
    notifier::wake(tasks);
}

/// Like [`fold`](crate::fold_key), but borrows keys that are already folded.
fn folded(key: &str) -> Cow<'_, str> {
    let is_folded = key.bytes().all(|byte| byte.is_ascii() && !byte.is_ascii_uppercase());
    if is_folded { Cow::Borrowed(key) } else { Cow::Owned(crate::fold_key(key)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::CacheSettings;

    #[test]
    fn what_is_due_is_answered_and_asked_once_meanwhile() {
        let ttl = Duration::from_secs(100);
        let settings = BackendSettings {
            cache: Some(CacheSettings { ttl, ..CacheSettings::default() }),
            ..BackendSettings::default()
        };
        let shared = Shared::new("people", &settings);
        let now = Instant::now();
        let ago = |seconds| now.checked_sub(Duration::from_secs(seconds)).expect("the clock started earlier");
        let answer = LookupAnswer::Found(vec!["v".to_owned()]);
        shared.cache_answer("young", &answer, ago(50));
        shared.cache_answer("due", &answer, ago(90));
        for _ in 0..2 {
            assert_eq!(shared.cached_answers(&["young", "due"]), Some(vec![answer.clone(), answer.clone()]));
        }
        assert_eq!(shared.poll_batch(), Some(vec!["due".into()]));
        assert_eq!(shared.cached_answers(&["due"]), Some(vec![answer.clone()]));
        assert_eq!(shared.poll_batch(), None);
        // A prefetch has no waiting callers.
        assert!(shared.queue.lock().handle_success(&["due".into()]).iter().all(Vec::is_empty));
    }

    #[test]
    fn keys_are_folded_as_tables_fold_them() {
        for key in ["bob@example.org", "Bob@Example.ORG", "ÄÖ@example.org", "äö", ""] {
            assert_eq!(folded(key), crate::fold_key(key));
        }
        assert!(matches!(folded("bob+x@example.org"), Cow::Borrowed(_)));
    }
}
