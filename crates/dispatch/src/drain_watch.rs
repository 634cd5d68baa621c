//! Finds out when a server that takes no mail in has nothing left to deliver, or nothing that can be
//! delivered before it is to stop.
//!
//! The queues alone cannot tell: a message whose queue depends on the directory or on its header is
//! with the classifier first, and a notice is committed a moment before the scheduler learns of it.
//! The spool has both, so the queue is drained when the spool has no other messages than the queues,
//! and these are held.

use mail::Timestamp;

use super::Queues;
use super::message_cache::MessageCache;

/// Waits until only held messages are left, or nothing can be delivered any more.
pub(super) struct DrainWatch {
    messages: MessageCache,
    /// What is due later is not waited for.
    until: Option<Timestamp>,
    report: Box<dyn FnOnce(usize) + Send>,
}

impl DrainWatch {
    pub(super) fn new(
        messages: MessageCache,
        until: Option<Timestamp>,
        report: impl FnOnce(usize) + Send + 'static,
    ) -> Self {
        DrainWatch { messages, until, report: Box::new(report) }
    }

    /// Reports the number of messages that are left if it is over; otherwise returns itself.
    pub(super) fn check(self, queues: &Queues) -> Option<Self> {
        let is_over = queues.recipients_held() == queues.recipient_count()
            || self.until.is_some_and(|until| rests_until(queues, until));
        if !is_over || self.messages.count_in_spool() != queues.message_count() as u64 {
            return Some(self);
        }
        (self.report)(queues.message_count());
        None
    }
}

/// Whether nothing is in progress, and nothing becomes due before that time.
fn rests_until(queues: &Queues, until: Timestamp) -> bool {
    let is_idle = queues.queue_views().all(|view| view.ready + view.in_flight + view.attempts == 0);
    is_idle && queues.unrecorded_attempts() == 0 && queues.next_deadline().is_none_or(|at| at > until)
}
