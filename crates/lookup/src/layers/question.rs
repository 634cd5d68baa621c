//! A lookup on the caller's side, which can be awaited, time out, or be dropped at any time.

use std::sync::Arc;
use std::time::Instant;

use super::gather::Key;
use super::shared::Shared;
use super::ticket::Ticket;
use crate::{Layer, Trace};

/// A lookup with missing answers. Dropping it removes it from the queue.
pub(super) struct Question<'a> {
    shared: &'a Shared,
    ticket: Arc<Ticket>,
    /// The missing keys and their indexes.
    missing: Vec<(usize, Key)>,
}

impl<'a> Question<'a> {
    /// Starts a lookup.
    pub(super) fn new(shared: &'a Shared, keys: &[&str]) -> Self {
        let (ticket, missing) = shared.ask(keys);
        Question { shared, ticket, missing }
    }

    /// All answers, in the order of the keys. Needs a tokio runtime unless all are ready.
    pub(super) async fn traces(self) -> Vec<Trace> {
        if !self.ticket.is_complete() {
            let answered = std::future::poll_fn(|context| self.ticket.poll(context));
            if tokio::time::timeout(self.shared.wait_max, answered).await.is_err() {
                self.leave();
            }
        }
        let mut answers = self.ticket.take();
        self.fill(&mut answers);
        let traces: Vec<Trace> = answers.into_iter().flatten().collect();
        traces.iter().for_each(|trace| self.shared.counters.count(trace));
        traces
    }

    fn leave(&self) {
        let mut gather = self.shared.gather();
        self.missing.iter().for_each(|(_, key)| gather.leave(key, &self.ticket));
    }

    /// Fills in the answers that did not arrive in time.
    fn fill(&self, answers: &mut [Option<Trace>]) {
        let late = self.missing.iter().filter(|(place, _)| answers[*place].is_none()).collect::<Vec<_>>();
        if late.is_empty() {
            return;
        }
        let why = format!("no answer within {:?}", self.shared.wait_max);
        self.shared.report(&why, late.len() as u64);
        let now = Instant::now();
        for (place, key) in late {
            answers[*place] = Some(self.shared.without_backend(key, &why, Layer::Backend, now));
        }
    }
}

impl Drop for Question<'_> {
    fn drop(&mut self) {
        if !self.ticket.is_complete() {
            self.leave();
        }
    }
}
