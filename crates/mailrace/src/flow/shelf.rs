//! Messages in delivery. A message with many recipients is attempted at many destinations at once:
//! the first attempt reads it from the spool, and all attempts that start before the last one ends
//! share it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use mail::{Body, Envelope, QueueId};
use spool::{ReadError, Spool, Stored};

/// Messages with fewer recipients are read for each attempt, which is cheaper than the lookup here.
const SHARED_RECIPIENTS_MIN: usize = 16;

/// A message in delivery.
#[derive(Debug)]
pub(crate) struct Message {
    /// The envelope.
    pub(crate) envelope: Arc<Envelope>,
    /// Its bytes, leased from the spool.
    pub(crate) body: Body,
}

/// Reads messages, and shares those with many recipients.
#[derive(Clone)]
pub(crate) struct Shelf {
    spool: Arc<Spool>,
    shared: Arc<Mutex<HashMap<QueueId, Weak<Message>>>>,
}

impl Shelf {
    pub(crate) fn new(spool: Arc<Spool>) -> Self {
        Shelf { spool, shared: Arc::default() }
    }

    /// The message; may wait for the disk.
    pub(crate) fn message(&self, id: QueueId) -> Result<Arc<Message>, ReadError> {
        match self.shared_one(id) {
            Some(message) => Ok(message),
            None => self.spool.message(id).map(|stored| self.put(id, stored)),
        }
    }

    /// The message, or None if it has to be read from the disk.
    pub(crate) fn message_at_once(&self, id: QueueId) -> Result<Option<Arc<Message>>, ReadError> {
        match self.shared_one(id) {
            Some(message) => Ok(Some(message)),
            None => Ok(self.spool.message_at_once(id)?.map(|stored| self.put(id, stored))),
        }
    }

    /// The message with the state of each recipient; may wait for the disk.
    pub(crate) fn stored(&self, id: QueueId) -> Result<Stored, ReadError> {
        self.spool.message(id)
    }

    fn shared_one(&self, id: QueueId) -> Option<Arc<Message>> {
        self.shared().get(&id).and_then(Weak::upgrade)
    }

    fn put(&self, id: QueueId, stored: Stored) -> Arc<Message> {
        let is_shared = stored.envelope.recipients.len() >= SHARED_RECIPIENTS_MIN;
        let message = Arc::new(Message { envelope: Arc::new(stored.envelope), body: stored.body });
        if is_shared {
            let mut shared = self.shared();
            shared.retain(|_, message| message.strong_count() > 0);
            shared.insert(id, Arc::downgrade(&message));
        }
        message
    }

    fn shared(&self) -> MutexGuard<'_, HashMap<QueueId, Weak<Message>>> {
        // A panic with the lock held has already aborted the process.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
