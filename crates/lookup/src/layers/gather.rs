//! Where questions gather: each key once, whoever asks for it, until the backend has answered.
//!
//! | a question is | from                                        | to                                                      |
//! |---------------|---------------------------------------------|---------------------------------------------------------|
//! | in line       | somebody asks for a key that is not here    | a batch takes it; or all who asked left                 |
//! | under way     | a batch took it                             | the batch is answered                                   |
//!
//! While the breaker is open nothing new comes in, and the line is empty. After the end nothing is in here.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant;

use super::Settings;
use super::breaker::{Breaker, Outage};
use super::ticket::{Ticket, Waiter};
use super::troubles::Troubles;

/// A key on its way, folded.
pub(super) type Key = Arc<str>;

pub(super) struct Gather {
    batch_max: usize,
    concurrency: usize,
    waiting_max: usize,
    questions: HashMap<Key, Question>,
    /// The keys that wait to be asked, by the number of their turn.
    line: BTreeMap<u64, Key>,
    /// The number of the next one.
    turn: u64,
    /// Requests under way.
    requests: usize,
    /// Whether the table's thread was called and has not looked yet.
    is_called: bool,
    has_ended: bool,
    breaker: Breaker,
    /// What went wrong for those who asked, to be told by the table's thread.
    troubles: Option<Troubles>,
}

struct Question {
    /// Its number in the line; None: under way.
    turn: Option<u64>,
    waiters: Vec<Waiter>,
    /// Whether it is asked though nobody waits.
    is_ahead: bool,
}

/// What became of a key that somebody asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Enlisted {
    New,
    /// It was here already.
    Joined,
}

/// Why a question cannot wait here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The backend is not asked, since it failed like this.
    Down(Box<str>),
    /// As many keys wait as may.
    Full,
    /// The table's thread is gone.
    Ended,
}

/// Questions that leave without having been asked.
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

    /// Somebody waits for the answer to a key, or wants to have it asked without waiting.
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

    /// A waiter goes away; a question in line for which nobody waits any more goes too.
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

    /// Something went wrong that the table's thread does not know of.
    pub(super) fn report(&mut self, error: impl FnOnce() -> Box<str>, count: u64) {
        Troubles::add(&mut self.troubles, error, count);
    }

    /// Whether the table's thread is to be called now: there is something for it to do, and nobody has called it.
    pub(super) fn poll_call(&mut self) -> bool {
        let can_ask = !self.line.is_empty() && self.requests < self.concurrency;
        let calls = !self.is_called && (can_ask || self.troubles.is_some() || self.has_ended);
        self.is_called |= calls;
        calls
    }

    /// The table's thread looks whether there is something to tell.
    pub(super) fn poll_troubles(&mut self) -> Option<Troubles> {
        self.is_called = false;
        self.troubles.take()
    }

    /// Whether a request could be made that more keys would fit into.
    pub(super) fn has_room(&self) -> bool {
        !self.line.is_empty() && self.requests < self.concurrency && self.line.len() < self.batch_max
    }

    /// The keys of the next request, if there is one to make.
    pub(super) fn poll_batch(&mut self) -> Option<Vec<Box<str>>> {
        if self.line.is_empty() || self.requests == self.concurrency {
            return None;
        }
        self.requests += 1;
        let mut batch = Vec::with_capacity(self.line.len().min(self.batch_max));
        while batch.len() < self.batch_max
            && let Some((_, key)) = self.line.pop_first()
        {
            self.questions.get_mut(&key).expect("what is in line is a question").turn = None;
            batch.push(Box::from(&*key));
        }
        Some(batch)
    }

    /// A request succeeded; returns who waits for its keys, in their order.
    pub(super) fn handle_success(&mut self, keys: &[Box<str>]) -> Vec<Vec<Waiter>> {
        self.breaker.handle_success();
        self.close(keys)
    }

    /// A request failed; returns who waits for its keys, in their order, and, if this opened the breaker, the whole line.
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

    /// The backend works again; returns the outage that this ends.
    pub(super) fn handle_recovery(&mut self) -> Option<Outage> {
        self.breaker.handle_recovery()
    }

    /// The table ends: nothing comes in from now on. All who wait are returned.
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

    /// Keys in line and under way.
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
