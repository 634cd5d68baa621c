//! Messages read from the spool for one request. A message that is there and cannot be read is left out of the
//! answer, which says how many these are; the log names the first one.

use std::collections::HashSet;

use mail::{Envelope, LogLevel, QueueId, ServerLog};
use spool::{ReadError, Spool};

/// A message: its envelope and its size in bytes.
pub(super) type StoredMessage = (Envelope, u64);

/// Reads messages, and keeps the last one.
pub(super) struct StoredMessageReader<'a> {
    spool: &'a Spool,
    last: Option<(QueueId, Option<StoredMessage>)>,
    unreadable: UnreadableMessages,
}

/// The messages that could not be read.
#[derive(Default)]
struct UnreadableMessages {
    /// Each counts once, however often it was tried.
    ids: HashSet<QueueId>,
    first: Option<(QueueId, ReadError)>,
}

impl<'a> StoredMessageReader<'a> {
    pub(super) fn new(spool: &'a Spool) -> Self {
        StoredMessageReader { spool, last: None, unreadable: UnreadableMessages::default() }
    }

    /// None if the message is gone or cannot be read.
    pub(super) fn read(&mut self, id: QueueId) -> Option<&StoredMessage> {
        if self.last.as_ref().is_none_or(|(last, _)| *last != id) {
            let stored = match self.spool.message(id) {
                Ok(stored) => Some((stored.envelope, stored.body.len())),
                Err(ReadError::Unknown) => None,
                Err(error) => {
                    self.unreadable.add(id, error);
                    None
                }
            };
            self.last = Some((id, stored));
        }
        self.last.as_ref()?.1.as_ref()
    }

    /// Returns how many messages could not be read. If there are any, the log says so.
    pub(super) fn log_unreadable(&self, log: &dyn ServerLog) -> usize {
        let UnreadableMessages { ids, first } = &self.unreadable;
        if let Some((id, error)) = first {
            let unreadable = ids.len();
            log.event(
                LogLevel::Warning,
                "messages were left out of an answer to an operator: they cannot be read",
                &[("unreadable", &unreadable), ("id", id), ("error", error)],
            );
        }
        ids.len()
    }
}

impl UnreadableMessages {
    fn add(&mut self, id: QueueId, error: ReadError) {
        self.ids.insert(id);
        self.first.get_or_insert((id, error));
    }
}
