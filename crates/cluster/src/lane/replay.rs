//! Reads a stream: records in their order become batches.

use bytes::Bytes;
use mail::{BodyFlags, Envelope, QueueId};
use spool::RecipientState;

use super::owner::StoredRange;
use crate::record::{EpochRecord, RecordError};

/// What the stream says, in its order.
#[derive(Clone, Debug, PartialEq)]
pub enum ReplayEvent {
    /// Another node became the owner.
    Epoch {
        /// The sequence.
        sequence: u64,
        /// Counts the owners.
        epoch: u64,
        /// Who.
        record: EpochRecord,
    },
    /// A message begins; `content_len` bytes of `Content` follow.
    Message(ReplayedMessage),
    /// Bytes of the message that began last.
    Content(Bytes),
    /// New states of recipients.
    Outcome {
        /// The message.
        id: QueueId,
        /// Ordinals and states.
        recipients: Vec<(u32, RecipientState)>,
        /// The bounce in the same batch.
        bounce: Option<QueueId>,
    },
    /// The batch is complete: everything since the last `BatchComplete` or `BatchDropped` counts.
    BatchComplete(StoredRange),
    /// The batch is not complete: nothing since the last `BatchComplete` or `BatchDropped` counts.
    BatchDropped,
    /// The owner gave the lane away.
    Released,
}

/// A message of a stream.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplayedMessage {
    /// Its id.
    pub id: QueueId,
    /// Its envelope.
    pub envelope: Envelope,
    /// States that are not new; only in copies.
    pub states: Vec<(u32, RecipientState)>,
    /// Properties of the content.
    pub flags: BodyFlags,
    /// CRC-32C of the content; it is verified before `BatchComplete`.
    pub digest: u32,
    /// The length of the prefix in bytes.
    pub prefix_len: u64,
    /// The length of prefix and body in bytes.
    pub content_len: u64,
}

/// Why a stream cannot be read on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// A record is not understood.
    #[error("record {sequence}: {error}")]
    Record {
        /// Its sequence.
        sequence: u64,
        /// Why.
        error: RecordError,
    },
    /// Records are missing. If they were purged meanwhile, read again from the start.
    #[error("records {after} to {before} of the stream are missing", after = .after + 1, before = .before - 1)]
    Gap {
        /// The last one before.
        after: u64,
        /// The first one after.
        before: u64,
    },
    /// The encoded batch is not what this version writes.
    #[error("record {sequence}: the batch is damaged: {what}")]
    Batch {
        /// The sequence of the record.
        sequence: u64,
        /// What is wrong.
        what: &'static str,
    },
}

/// Reads a stream from its first record.
pub struct BatchReader;

#[expect(clippy::unimplemented, unused_variables, reason = "signatures for those who build on them")]
#[allow(missing_docs)]
impl BatchReader {
    pub fn new(first_sequence: u64) -> BatchReader {
        unimplemented!()
    }
    /// Records must come in order. Poll all events before the next one: that bounds the memory.
    pub fn handle_record(&mut self, sequence: u64, record: &Bytes) -> Result<(), ReplayError> {
        unimplemented!()
    }
    pub fn poll_event(&mut self) -> Option<ReplayEvent> {
        unimplemented!()
    }
}
