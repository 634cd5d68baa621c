//! A lookup on the caller's side, which can be awaited, time out, or be dropped at any time.

use std::sync::Arc;
use std::time::Instant;

use super::answer_slots::AnswerSlots;
use super::batch_queue::Key;
use super::shared::Shared;
use crate::{TableLayer, TracedAnswer};

/// A lookup with missing answers. Dropping it removes it from the queue.
pub(super) struct PendingLookup<'a> {
    shared: &'a Shared,
    slots: Arc<AnswerSlots>,
    /// The missing keys and their indexes.
    missing: Vec<(usize, Key)>,
}

impl<'a> PendingLookup<'a> {
    /// Starts a lookup.
    pub(super) fn new(shared: &'a Shared, keys: &[&str]) -> Self {
        let (ticket, missing) = shared.start_lookup(keys);
        PendingLookup { shared, slots: ticket, missing }
    }

    /// All answers, in the order of the keys. Needs a tokio runtime unless all are ready.
    pub(super) async fn traces(self) -> Vec<TracedAnswer> {
        if !self.slots.is_complete() {
            let answered = std::future::poll_fn(|context| self.slots.poll(context));
            if tokio::time::timeout(self.shared.wait_max, answered).await.is_err() {
                self.abandon();
            }
        }
        let mut answers = self.slots.take();
        self.fill_late(&mut answers);
        let traces: Vec<TracedAnswer> = answers.into_iter().flatten().collect();
        traces.iter().for_each(|trace| self.shared.counters.count(trace));
        traces
    }

    fn abandon(&self) {
        let mut gather = self.shared.queue.lock();
        self.missing.iter().for_each(|(_, key)| gather.remove_waiter(key, &self.slots));
    }

    /// Fills in the answers that did not arrive in time.
    fn fill_late(&self, answers: &mut [Option<TracedAnswer>]) {
        let late = self.missing.iter().filter(|(place, _)| answers[*place].is_none()).collect::<Vec<_>>();
        if late.is_empty() {
            return;
        }
        let why = format!("no answer within {:?}", self.shared.wait_max);
        self.shared.report_failure(&why, late.len() as u64);
        let now = Instant::now();
        for (place, key) in late {
            answers[*place] = Some(self.shared.fallback_answer(key, &why, TableLayer::Backend, now));
        }
    }
}

impl Drop for PendingLookup<'_> {
    fn drop(&mut self) {
        if !self.slots.is_complete() {
            self.abandon();
        }
    }
}
