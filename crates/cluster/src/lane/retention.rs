//! Which records of a stream are still needed.

use mail::QueueId;
use spool::RecipientState;

use super::owner::{BatchId, StoredRange};

/// An entry of a batch, as far as retention is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RetainedEntry {
    /// A message, new or copied.
    Message {
        /// Its id.
        id: QueueId,
        /// The number of its recipients.
        recipients: u32,
        /// States that are not new; only in copies.
        states: Vec<(u32, RecipientState)>,
    },
    /// New states of recipients.
    Outcome {
        /// The message.
        id: QueueId,
        /// Ordinals and states.
        recipients: Vec<(u32, RecipientState)>,
    },
}

/// What the caller has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetentionAction {
    /// Purge all records up to this sequence.
    PurgeUpTo(u64),
    /// Publish the message again: read it, then ask for its `states` when its batch is queued.
    Copy(QueueId),
}

/// The live messages of a stream.
pub struct LaneRetention;

#[expect(clippy::unimplemented, unused_variables, reason = "signatures for those who build on them")]
#[allow(missing_docs)]
impl LaneRetention {
    /// `slack_bytes`: so many bytes of finished records are left before the head is copied.
    pub fn new(slack_bytes: u64) -> LaneRetention {
        unimplemented!()
    }
    /// A batch that was read from the stream.
    pub fn handle_stored(&mut self, range: StoredRange, entries: Vec<RetainedEntry>) {}
    /// An Epoch record (also repeated) is stored here.
    pub fn handle_epoch(&mut self, sequence: u64) {}
    /// A batch is queued at the owner, in the order of the batches.
    pub fn handle_queued(&mut self, batch: BatchId, entries: Vec<RetainedEntry>) {}
    /// A queued batch is stored.
    pub fn handle_confirmed(&mut self, batch: BatchId, range: StoredRange) {}
    /// The message cannot be copied now (it is not in the spool).
    pub fn handle_copy_failed(&mut self, id: QueueId) {}
    /// The states of a live message, with all outcomes that are queued; None: no such message, or finished.
    pub fn states(&self, id: QueueId) -> Option<Vec<(u32, RecipientState)>> {
        unimplemented!()
    }
    /// All live messages.
    pub fn live(&self) -> impl Iterator<Item = QueueId> + '_ {
        std::iter::empty()
    }
    pub fn poll_action(&mut self) -> Option<RetentionAction> {
        unimplemented!()
    }
    /// The bytes of the records that were not purged.
    pub fn stored_bytes(&self) -> u64 {
        unimplemented!()
    }
    pub fn live_messages(&self) -> u64 {
        unimplemented!()
    }
}
