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

use super::Settings;
use super::breaker::{Breaker, Outage};
use super::ticket::{Ticket, Waiter};
use super::troubles::Troubles;

/// A folded key.
pub(super) type Key = Arc<str>;

pub(super) struct Gather {
    batch_max: usize,
    concurrency: usize,
    waiting_max: usize,
    questions: HashMap<Key, Question>,
    /// Queued keys by sequence number.
    line: BTreeMap<u64, Key>,
    /// The next sequence number.
    turn: u64,
    /// Requests under way.
    requests: usize,
    /// Whether the table's thread was woken and has not run yet.
    is_called: bool,
    has_ended: bool,
    breaker: Breaker,
    /// Failures on the callers' side, to be reported by the table's thread.
    troubles: Option<Troubles>,
}

struct Question {
    /// Its sequence number; None while under way.
    turn: Option<u64>,
    waiters: Vec<Waiter>,
    /// Whether it is a prefetch, which needs no caller.
    is_ahead: bool,
}

/// The result of adding a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Enlisted {
    New,
    /// The key was already here.
    Joined,
}

/// Why a key cannot be added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The breaker is open because of this failure.
    Down(Box<str>),
    /// The queue is full.
    Full,
    /// The table has shut down.
    Ended,
}

/// Keys removed without being sent to the backend.
pub(super) type Dismissed = Vec<(Key, Vec<Waiter>)>;

impl Gather {
    pub(super) fn new(settings: &Settings) -> Self {
        Gather {
            batch_max: settings.batch_max.max(1),
            concurrency: settings.concurrency.max(1),
            waiting_max: settings.waiting_max,
            questions: HashMap::new(),
            line: BTreeMap::new(),
            turn: 0,
            requests: 0,
            is_called: false,
            has_ended: false,
            breaker: Breaker::new(settings.failures_max),
            troubles: None,
        }
    }

    /// Adds a key with a waiting caller, or as a prefetch without one.
    pub(super) fn enlist(&mut self, key: &Key, waiter: Option<Waiter>) -> Result<Enlisted, Refusal> {
        if self.has_ended {
            return Err(Refusal::Ended);
        }
        if let Some(outage) = self.breaker.outage() {
            return Err(Refusal::Down(outage.error.clone()));
        }
        if let Some(question) = self.questions.get_mut(key) {
            question.is_ahead |= waiter.is_none();
            question.waiters.extend(waiter);
            return Ok(Enlisted::Joined);
        }
        if self.questions.len() >= self.waiting_max {
            return Err(Refusal::Full);
        }
        let turn = self.turn;
        self.turn += 1;
        self.line.insert(turn, key.clone());
        let question = Question { turn: Some(turn), is_ahead: waiter.is_none(), waiters: waiter.into_iter().collect() };
        self.questions.insert(key.clone(), question);
        Ok(Enlisted::New)
    }

    /// Removes a caller. A queued key without callers is removed unless it is a prefetch.
    pub(super) fn leave(&mut self, key: &Key, ticket: &Arc<Ticket>) {
        let Some(question) = self.questions.get_mut(key) else { return };
        question.waiters.retain(|waiter| !Arc::ptr_eq(&waiter.ticket, ticket));
        if let Some(turn) = question.turn
            && question.waiters.is_empty()
            && !question.is_ahead
        {
            self.line.remove(&turn);
            self.questions.remove(key);
        }
    }

    /// Records failures for the table's thread to report.
    pub(super) fn report(&mut self, error: impl FnOnce() -> Box<str>, count: u64) {
        Troubles::add(&mut self.troubles, error, count);
    }

    /// Whether to wake the table's thread: there is work, and it has not been woken yet.
    pub(super) fn poll_call(&mut self) -> bool {
        let can_ask = !self.line.is_empty() && self.requests < self.concurrency;
        let calls = !self.is_called && (can_ask || self.troubles.is_some() || self.has_ended);
        self.is_called |= calls;
        calls
    }

    /// Takes the failures to report, on the table's thread.
    pub(super) fn poll_troubles(&mut self) -> Option<Troubles> {
        self.is_called = false;
        self.troubles.take()
    }

    /// Whether a request can be sent that has space for more keys.
    pub(super) fn has_room(&self) -> bool {
        !self.line.is_empty() && self.requests < self.concurrency && self.line.len() < self.batch_max
    }

    /// The keys of the next request, if one can be sent.
    pub(super) fn poll_batch(&mut self) -> Option<Vec<Box<str>>> {
        if self.line.is_empty() || self.requests == self.concurrency {
            return None;
        }
        self.requests += 1;
        let mut batch = Vec::with_capacity(self.line.len().min(self.batch_max));
        while batch.len() < self.batch_max
            && let Some((_, key)) = self.line.pop_first()
        {
            self.questions.get_mut(&key).expect("a queued key is pending").turn = None;
            batch.push(Box::from(&*key));
        }
        Some(batch)
    }

    /// Records a successful request. Returns the callers waiting for each of its keys.
    pub(super) fn handle_success(&mut self, keys: &[Box<str>]) -> Vec<Vec<Waiter>> {
        self.breaker.handle_success();
        self.close(keys)
    }

    /// Records a failed request. Returns the callers waiting for each of its keys, and the whole
    /// queue if the breaker opened.
    pub(super) fn handle_failure(
        &mut self,
        keys: &[Box<str>],
        error: &str,
        now: Instant,
    ) -> (Vec<Vec<Waiter>>, Option<Dismissed>) {
        let waiters = self.close(keys);
        let opens = self.breaker.handle_failure(error, now);
        (waiters, opens.then(|| self.clear_line()))
    }

    /// Records that the backend works again. Returns the outage that ended.
    pub(super) fn handle_recovery(&mut self) -> Option<Outage> {
        self.breaker.handle_recovery()
    }

    /// Shuts down. Returns all keys with their callers.
    pub(super) fn end(&mut self) -> Dismissed {
        self.has_ended = true;
        self.line.clear();
        self.questions.drain().map(|(key, question)| (key, question.waiters)).collect()
    }

    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    pub(super) fn outage(&self) -> Option<&Outage> {
        self.breaker.outage()
    }

    /// Keys queued or under way.
    pub(super) fn waiting(&self) -> usize {
        self.questions.len()
    }

    fn close(&mut self, keys: &[Box<str>]) -> Vec<Vec<Waiter>> {
        self.requests -= 1;
        let mut waiters = |key: &str| self.questions.remove(key).map(|question| question.waiters).unwrap_or_default();
        keys.iter().map(|key| waiters(key)).collect()
    }

    fn clear_line(&mut self) -> Dismissed {
        let line = std::mem::take(&mut self.line);
        let question = |key: Key| self.questions.remove(&key).map(|question| (key, question.waiters));
        line.into_values().filter_map(question).collect()
    }
}
