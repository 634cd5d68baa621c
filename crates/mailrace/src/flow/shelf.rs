//! Messages under way. One with many recipients is attempted at many destinations at once: it is read from the spool
//! by the first attempt and shared by all that begin before the last one of them has ended.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use mail::{Body, Envelope, QueueId};
use spool::{ReadError, Spool, Stored};

/// A message with fewer recipients is read anew for each attempt, which costs less than to look for it here.
const SHARED_RECIPIENTS_MIN: usize = 16;

/// A message of which an attempt is made.
#[derive(Debug)]
pub(crate) struct Message {
    /// To whom it goes.
    pub(crate) envelope: Arc<Envelope>,
    /// Its bytes, leased.
    pub(crate) body: Body,
}

/// Where attempts find their messages.
#[derive(Clone)]
pub(crate) struct Shelf {
    spool: Arc<Spool>,
    shared: Arc<Mutex<HashMap<QueueId, Weak<Message>>>>,
}

impl Shelf {
    pub(crate) fn new(spool: Arc<Spool>) -> Self {
        Shelf { spool, shared: Arc::default() }
    }

    /// The message; waits for the disk where it must.
    pub(crate) fn message(&self, id: QueueId) -> Result<Arc<Message>, ReadError> {
        match self.shared_one(id) {
            Some(message) => Ok(message),
            None => self.spool.message(id).map(|stored| self.put(id, stored)),
        }
    }

    /// The message, unless it would have to come from the disk.
    pub(crate) fn message_at_once(&self, id: QueueId) -> Result<Option<Arc<Message>>, ReadError> {
        match self.shared_one(id) {
            Some(message) => Ok(Some(message)),
            None => Ok(self.spool.message_at_once(id)?.map(|stored| self.put(id, stored))),
        }
    }

    /// The message, and how it stands with each recipient; waits for the disk where it must.
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
        // A map that somebody panicked over ended the process.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
