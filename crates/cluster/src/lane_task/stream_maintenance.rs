//! What a lane's stream still needs: drives [`LaneRetention`] with what the lane's task queues and
//! what is stored.
//!
//! The retention of a lane that had an owner before comes later than the first batches: the stream
//! has to be read first. Until then, what happens is kept, and nothing is purged or copied.

use std::sync::Arc;

use mail::QueueId;
use spool::{RecipientState, SpooledMessage};

use crate::codec::CopiedEntry;
use crate::lane::owner::{BatchId, StoredRange};
use crate::lane::retention::{LaneRetention, RetainedEntry, RetentionAction, StateChange};

/// Reads a message from the spool; None: it is not there, or cannot be read now. It may block.
pub type ReadMessage = Arc<dyn Fn(QueueId) -> Option<SpooledMessage> + Send + Sync>;

/// The retention of a lane's stream, as soon as it is known.
pub(super) enum StreamMaintenance {
    /// What happened before the retention came.
    Early(Vec<StreamMaintenanceEvent>),
    /// The retention, and what reads the messages to copy.
    Known(Box<LaneRetention>, ReadMessage),
}

/// Something that changes what is needed.
pub(super) enum StreamMaintenanceEvent {
    /// A batch is queued.
    Queued(BatchId, Vec<RetainedEntry>),
    /// It is stored.
    Confirmed(BatchId, StoredRange),
    /// It will never be complete.
    Abandoned(BatchId),
    /// An Epoch record is stored.
    Epoch(u64),
    /// The first record that the servers have.
    FirstRecord(u64),
}

impl StreamMaintenance {
    pub(super) fn handle(&mut self, event: StreamMaintenanceEvent) {
        match self {
            StreamMaintenance::Early(events) => events.push(event),
            StreamMaintenance::Known(retention, _) => apply(retention, event),
        }
    }

    /// The stream was read up to the Epoch record of this node.
    pub(super) fn seed(&mut self, mut retention: Box<LaneRetention>, read: ReadMessage) {
        if let StreamMaintenance::Early(events) = std::mem::replace(self, StreamMaintenance::Early(Vec::new())) {
            events.into_iter().for_each(|event| apply(&mut retention, event));
        }
        *self = StreamMaintenance::Known(retention, read);
    }

    /// Whether it is known what the stream has to have.
    pub(super) fn is_known(&self) -> bool {
        matches!(self, StreamMaintenance::Known(..))
    }

    pub(super) fn poll_action(&mut self) -> Option<RetentionAction> {
        match self {
            StreamMaintenance::Early(_) => None,
            StreamMaintenance::Known(retention, _) => retention.poll_action(),
        }
    }

    pub(super) fn reader(&self) -> Option<ReadMessage> {
        match self {
            StreamMaintenance::Early(_) => None,
            StreamMaintenance::Known(_, read) => Some(read.clone()),
        }
    }

    pub(super) fn handle_copy_failed(&mut self, id: QueueId) {
        if let StreamMaintenance::Known(retention, _) = self {
            retention.handle_copy_failed(id);
        }
    }

    /// See [`LaneRetention::states`].
    pub(super) fn states(&self, id: QueueId) -> Option<Vec<(u32, RecipientState)>> {
        match self {
            StreamMaintenance::Early(_) => None,
            StreamMaintenance::Known(retention, _) => retention.states(id),
        }
    }

    /// See [`LaneRetention::unchanged`].
    pub(super) fn unchanged(&self, id: QueueId, changes: Vec<StateChange>) -> Vec<(u32, RecipientState)> {
        match self {
            StreamMaintenance::Early(_) => Vec::new(),
            StreamMaintenance::Known(retention, _) => retention.unchanged(id, changes),
        }
    }

    /// Whether the stream has a message, or it is queued. False before the stream was read.
    pub(super) fn is_live(&self, id: QueueId) -> bool {
        match self {
            StreamMaintenance::Early(_) => false,
            StreamMaintenance::Known(retention, _) => retention.is_live(id),
        }
    }

    /// Whether the stream is known to have a message that is not settled.
    pub(super) fn is_stored(&self, id: QueueId) -> bool {
        match self {
            StreamMaintenance::Early(_) => false,
            StreamMaintenance::Known(retention, _) => retention.is_stored(id),
        }
    }

    /// See [`LaneRetention::has_room_for`]. Before the stream was read, nobody knows: it is tried.
    pub(super) fn has_room_for(&self, bytes: u64) -> bool {
        match self {
            StreamMaintenance::Early(_) => true,
            StreamMaintenance::Known(retention, _) => retention.has_room_for(bytes),
        }
    }

    /// Whether the stream was read, and nothing of it is needed any more.
    pub(super) fn is_finished(&self) -> bool {
        match self {
            StreamMaintenance::Early(_) => false,
            StreamMaintenance::Known(retention, _) => retention.is_finished(),
        }
    }

    /// The bytes and the live messages of the stream, as far as they are known.
    pub(super) fn stored(&self) -> (u64, u64) {
        match self {
            StreamMaintenance::Early(_) => (0, 0),
            StreamMaintenance::Known(retention, _) => (retention.stored_bytes(), retention.live_messages()),
        }
    }
}

fn apply(retention: &mut LaneRetention, event: StreamMaintenanceEvent) {
    match event {
        StreamMaintenanceEvent::Queued(batch, entries) => retention.handle_queued(batch, entries),
        StreamMaintenanceEvent::Confirmed(batch, range) => retention.handle_confirmed(batch, range),
        StreamMaintenanceEvent::Abandoned(batch) => retention.handle_abandoned(batch),
        StreamMaintenanceEvent::Epoch(sequence) => retention.handle_epoch(sequence),
        StreamMaintenanceEvent::FirstRecord(sequence) => retention.handle_first_record(sequence),
    }
}

/// What retention has to know of an entry.
pub(super) fn retained(entry: &CopiedEntry) -> RetainedEntry {
    match entry {
        CopiedEntry::Message { id, envelope, states, .. } => RetainedEntry::Message {
            id: *id,
            recipients: u32::try_from(envelope.recipients.len()).unwrap_or(u32::MAX),
            states: states.clone(),
        },
        CopiedEntry::Outcome { id, recipients, .. } => {
            RetainedEntry::Outcome { id: *id, recipients: recipients.clone() }
        }
    }
}
