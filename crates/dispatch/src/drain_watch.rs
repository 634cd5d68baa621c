//! Finds out when a server that takes no mail in has nothing left to deliver.
//!
//! The queues alone cannot tell: a message whose queue depends on the directory or on its header is
//! with the classifier first, and a notice is committed a moment before the scheduler learns of it.
//! The spool has both, so the queue is drained when the spool has no other messages than the queues,
//! and these are held.

use super::Queues;
use super::message_cache::MessageCache;

/// Waits until only held messages are left.
pub(super) struct DrainWatch {
    messages: MessageCache,
    report: Box<dyn FnOnce(usize) + Send>,
}

impl DrainWatch {
    pub(super) fn new(messages: MessageCache, report: impl FnOnce(usize) + Send + 'static) -> Self {
        DrainWatch { messages, report: Box::new(report) }
    }

    /// Reports the number of held messages if no others are left; otherwise returns itself.
    pub(super) fn check(self, queues: &Queues) -> Option<Self> {
        let is_drained = queues.recipients_held() == queues.recipient_count()
            && self.messages.count_in_spool() == queues.message_count() as u64;
        if !is_drained {
            return Some(self);
        }
        (self.report)(queues.message_count());
        None
    }
}
