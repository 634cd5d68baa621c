//! The queue of keys waiting for the backend. A key is in it once, for all its callers.
//!
//! | state of a key | from                                     | to                                                        |
//! |----------------|------------------------------------------|-----------------------------------------------------------|
//! | queued         | a lookup needs a key that is not here    | a batch takes it, or all its callers have gone            |
//! | under way      | a batch took it                          | the batch is answered                                     |
//!
//! While the breaker is open the queue is empty and accepts nothing. After shutdown nothing is left
//! here.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant;

use super::BackendSettings;
use super::answer_slots::{AnswerSlots, Waiter};
use super::breaker::{Breaker, Outage};
use super::failures::FailureSummary;

/// A folded key.
pub(super) type Key = Arc<str>;

pub(super) struct BatchQueue {
    batch_max: usize,
    concurrency: usize,
    waiting_max: usize,
    pending: HashMap<Key, PendingKey>,
    /// Queued keys by sequence number.
    queued: BTreeMap<u64, Key>,
    /// The next sequence number.
    next_turn: u64,
    /// Requests under way.
    requests: usize,
    /// Whether the table's thread was woken and has not run yet.
    is_woken: bool,
    has_ended: bool,
    breaker: Breaker,
    /// Failures on the callers' side, to be reported by the table's thread.
    failures: Option<FailureSummary>,
}

struct PendingKey {
    /// Its sequence number; None while under way.
    turn: Option<u64>,
    waiters: Vec<Waiter>,
    /// Whether it is a prefetch, which needs no caller.
    is_prefetch: bool,
}

/// The result of adding a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Enqueued {
    New,
    /// The key was already here.
    Joined,
}

/// Why a key cannot be added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EnqueueError {
    /// The breaker is open because of this failure.
    Down(Box<str>),
    /// The queue is full.
    Full,
    /// The table has shut down.
    Ended,
}

/// Keys removed without being sent to the backend.
pub(super) type CancelledKeys = Vec<(Key, Vec<Waiter>)>;

impl BatchQueue {
    pub(super) fn new(settings: &BackendSettings) -> Self {
        BatchQueue {
            batch_max: settings.batch_max.max(1),
            concurrency: settings.concurrency.max(1),
            waiting_max: settings.waiting_max,
            pending: HashMap::new(),
            queued: BTreeMap::new(),
            next_turn: 0,
            requests: 0,
            is_woken: false,
            has_ended: false,
            breaker: Breaker::new(settings.failures_max),
            failures: None,
        }
    }

    /// Adds a key with a waiting caller, or as a prefetch without one.
    pub(super) fn enqueue(&mut self, key: &Key, waiter: Option<Waiter>) -> Result<Enqueued, EnqueueError> {
        if self.has_ended {
            return Err(EnqueueError::Ended);
        }
        if let Some(outage) = self.breaker.outage() {
            return Err(EnqueueError::Down(outage.error.clone()));
        }
        if let Some(pending_key) = self.pending.get_mut(key) {
            pending_key.is_prefetch |= waiter.is_none();
            pending_key.waiters.extend(waiter);
            return Ok(Enqueued::Joined);
        }
        if self.pending.len() >= self.waiting_max {
            return Err(EnqueueError::Full);
        }
        let turn = self.next_turn;
        self.next_turn += 1;
        self.queued.insert(turn, key.clone());
        let question =
            PendingKey { turn: Some(turn), is_prefetch: waiter.is_none(), waiters: waiter.into_iter().collect() };
        self.pending.insert(key.clone(), question);
        Ok(Enqueued::New)
    }

    /// Removes a caller. A queued key without callers is removed unless it is a prefetch.
    pub(super) fn remove_waiter(&mut self, key: &Key, ticket: &Arc<AnswerSlots>) {
        let Some(pending_key) = self.pending.get_mut(key) else { return };
        pending_key.waiters.retain(|waiter| !Arc::ptr_eq(&waiter.slots, ticket));
        if let Some(turn) = pending_key.turn
            && pending_key.waiters.is_empty()
            && !pending_key.is_prefetch
        {
            self.queued.remove(&turn);
            self.pending.remove(key);
        }
    }

    /// Records failures for the table's thread to report.
    pub(super) fn report_failure(&mut self, error: impl FnOnce() -> Box<str>, count: u64) {
        FailureSummary::add(&mut self.failures, error, count);
    }

    /// Whether to wake the table's thread: there is work, and it has not been woken yet.
    pub(super) fn poll_wake(&mut self) -> bool {
        let can_ask = !self.queued.is_empty() && self.requests < self.concurrency;
        let calls = !self.is_woken && (can_ask || self.failures.is_some() || self.has_ended);
        self.is_woken |= calls;
        calls
    }

    /// Takes the failures to report, on the table's thread.
    pub(super) fn poll_failures(&mut self) -> Option<FailureSummary> {
        self.is_woken = false;
        self.failures.take()
    }

    /// The most keys in a request.
    pub(super) fn batch_max(&self) -> usize {
        self.batch_max
    }

    /// Whether a request can be sent that has space for more keys.
    pub(super) fn can_fill_batch(&self) -> bool {
        !self.queued.is_empty() && self.requests < self.concurrency && self.queued.len() < self.batch_max
    }

    /// The keys of the next request, if one can be sent.
    pub(super) fn poll_batch(&mut self) -> Option<Vec<Box<str>>> {
        if self.queued.is_empty() || self.requests == self.concurrency {
            return None;
        }
        self.requests += 1;
        let mut batch = Vec::with_capacity(self.queued.len().min(self.batch_max));
        while batch.len() < self.batch_max
            && let Some((_, key)) = self.queued.pop_first()
        {
            self.pending.get_mut(&key).expect("a queued key is pending").turn = None;
            batch.push(Box::from(&*key));
        }
        Some(batch)
    }

    /// Records a successful request. Returns the callers waiting for each of its keys.
    pub(super) fn handle_success(&mut self, keys: &[Box<str>]) -> Vec<Vec<Waiter>> {
        self.breaker.handle_success();
        self.take_waiters(keys)
    }

    /// Records a failed request. Returns the callers waiting for each of its keys, and the whole
    /// queue if the breaker opened.
    pub(super) fn handle_failure(
        &mut self,
        keys: &[Box<str>],
        error: &str,
        now: Instant,
    ) -> (Vec<Vec<Waiter>>, Option<CancelledKeys>) {
        let waiters = self.take_waiters(keys);
        let opens = self.breaker.handle_failure(error, now);
        (waiters, opens.then(|| self.cancel_queued()))
    }

    /// Records that the backend works again. Returns the outage that ended.
    pub(super) fn handle_recovery(&mut self) -> Option<Outage> {
        self.breaker.handle_recovery()
    }

    /// Shuts down. Returns all keys with their callers.
    pub(super) fn end(&mut self) -> CancelledKeys {
        self.has_ended = true;
        self.queued.clear();
        self.pending.drain().map(|(key, question)| (key, question.waiters)).collect()
    }

    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    pub(super) fn outage(&self) -> Option<&Outage> {
        self.breaker.outage()
    }

    /// Keys queued or under way.
    pub(super) fn waiting(&self) -> usize {
        self.pending.len()
    }

    fn take_waiters(&mut self, keys: &[Box<str>]) -> Vec<Vec<Waiter>> {
        self.requests -= 1;
        let mut waiters = |key: &str| self.pending.remove(key).map(|question| question.waiters).unwrap_or_default();
        keys.iter().map(|key| waiters(key)).collect()
    }

    fn cancel_queued(&mut self) -> CancelledKeys {
        let queued = std::mem::take(&mut self.queued);
        let question = |key: Key| self.pending.remove(&key).map(|question| (key, question.waiters));
        queued.into_values().filter_map(question).collect()
    }
}
