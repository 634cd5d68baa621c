//! Messages in delivery. A message with many recipients is attempted at many destinations at once:
//! the first attempt reads it from the spool, and all attempts that start before the last one ends
//! share it.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use mail::{Body, Envelope, QueueId};
use parking_lot::Mutex;
use spool::{ReadError, Spool, SpooledMessage};

/// Messages with fewer recipients are read for each attempt, which is cheaper than the lookup here.
const SHARED_RECIPIENTS_MIN: usize = 16;

/// A message in delivery.
#[derive(Debug)]
pub(crate) struct CachedMessage {
    /// The envelope.
    pub(crate) envelope: Arc<Envelope>,
    /// Its bytes, leased from the spool.
    pub(crate) body: Body,
}

/// Reads messages, and shares those with many recipients.
#[derive(Clone)]
pub(crate) struct MessageCache {
    spool: Arc<Spool>,
    shared: Arc<Mutex<HashMap<QueueId, Weak<CachedMessage>>>>,
}

impl MessageCache {
    pub(crate) fn new(spool: Arc<Spool>) -> Self {
        MessageCache { spool, shared: Arc::default() }
    }

    /// The message; may wait for the disk.
    pub(crate) fn message(&self, id: QueueId) -> Result<Arc<CachedMessage>, ReadError> {
        match self.cached(id) {
            Some(message) => Ok(message),
            None => self.spool.message(id).map(|stored| self.insert(id, stored)),
        }
    }

    /// The message, or None if it has to be read from the disk.
    pub(crate) fn message_in_memory(&self, id: QueueId) -> Result<Option<Arc<CachedMessage>>, ReadError> {
        match self.cached(id) {
            Some(message) => Ok(Some(message)),
            None => Ok(self.spool.message_if_cached(id)?.map(|stored| self.insert(id, stored))),
        }
    }

    /// The message with the state of each recipient; may wait for the disk.
    pub(crate) fn stored(&self, id: QueueId) -> Result<SpooledMessage, ReadError> {
        self.spool.message(id)
    }

    /// The number of messages in the spool, whether cached or not.
    pub(crate) fn count_in_spool(&self) -> u64 {
        self.spool.stats().messages_live
    }

    fn cached(&self, id: QueueId) -> Option<Arc<CachedMessage>> {
        self.shared.lock().get(&id).and_then(Weak::upgrade)
    }

    fn insert(&self, id: QueueId, stored: SpooledMessage) -> Arc<CachedMessage> {
        let is_shared = stored.envelope.recipients.len() >= SHARED_RECIPIENTS_MIN;
        let message = Arc::new(CachedMessage { envelope: Arc::new(stored.envelope), body: stored.body });
        if is_shared {
            let mut shared = self.shared.lock();
            shared.retain(|_, message| message.strong_count() > 0);
            shared.insert(id, Arc::downgrade(&message));
        }
        message
    }
}
