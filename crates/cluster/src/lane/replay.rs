//! Reads a stream: records in their order become batches.
//!
//! Only complete batches of the lane's owners count. What follows the Epoch record of a new owner, and
//! is of an earlier one, is void. If servers have lost that Epoch record, the first record of a later epoch
//! stands for it. A batch without its last part is dropped. Content passes through, so memory is bounded by one
//! record and one head, however large a message is.

mod decoder;

use std::collections::VecDeque;

use bytes::Bytes;
use mail::{BodyFlags, Envelope, QueueId};
use spool::RecipientState;

use self::decoder::BatchDecoder;
use super::owner::StoredRange;
use crate::record::{EpochRecord, HEADER_BYTES, RecordError, RecordHeader, RecordKind};

/// What the stream says, in its order.
#[derive(Clone, Debug, PartialEq)]
pub enum ReplayEvent {
    /// An owner has claimed the lane, or repeated its claim.
    Epoch {
        /// The sequence of the record.
        sequence: u64,
        /// Counts the owners.
        epoch: u64,
        /// The owner.
        record: EpochRecord,
    },
    /// A message begins; `content_len` bytes of [`ReplayEvent::Content`] follow.
    Message(ReplayedMessage),
    /// Bytes of the message that began last; never empty.
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
    /// The batch is complete: the messages and outcomes since the batch before count.
    BatchComplete(StoredRange),
    /// The batch is not complete: the messages and outcomes since the batch before do not count.
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
    /// Properties of prefix and body.
    pub flags: BodyFlags,
    /// CRC-32C of prefix and body, which is verified before [`ReplayEvent::BatchComplete`].
    pub digest: u32,
    /// The length of the prefix in bytes; at most `content_len`.
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
    #[error("records {first} to {last} of the stream are missing")]
    Gap {
        /// The first missing one.
        first: u64,
        /// The last missing one.
        last: u64,
    },
    /// The batch is not what this version writes.
    #[error("record {sequence}: {what}")]
    Batch {
        /// The sequence of the record.
        sequence: u64,
        /// What is wrong.
        what: &'static str,
    },
}

/// Reads a stream from its first record.
pub struct BatchReader {
    next_sequence: u64,
    /// The owner; None before the first record.
    owner: Option<Owner>,
    batch: Option<OpenBatch>,
    events: VecDeque<ReplayEvent>,
}

/// Who has written the records that count.
#[derive(Clone, Copy)]
struct Owner {
    token: u64,
    epoch: u64,
    /// Its Epoch record was read.
    is_known: bool,
}

/// A batch whose last part was not read.
struct OpenBatch {
    number: u64,
    next_part: u32,
    first: u64,
    bytes: u64,
    decoder: BatchDecoder,
}

impl BatchReader {
    /// `first_sequence` is the first one that was not purged.
    pub fn new(first_sequence: u64) -> BatchReader {
        BatchReader { next_sequence: first_sequence, owner: None, batch: None, events: VecDeque::new() }
    }

    /// Takes the next record. Poll all events before the one after it: that bounds the memory.
    pub fn handle_record(&mut self, sequence: u64, record: &Bytes) -> Result<(), ReplayError> {
        if sequence != self.next_sequence {
            return Err(ReplayError::Gap { first: self.next_sequence, last: sequence.saturating_sub(1) });
        }
        self.next_sequence += 1;
        let header = RecordHeader::read(record).map_err(|error| ReplayError::Record { sequence, error })?;
        if header.kind == RecordKind::Epoch {
            return self.take_epoch(sequence, &header, record);
        }
        if !self.is_of_owner(&header) {
            return Ok(());
        }
        match header.kind {
            RecordKind::Part => self.take_part(sequence, &header, record)?,
            RecordKind::Release => self.events.push_back(ReplayEvent::Released),
            RecordKind::Renew | RecordKind::Epoch => {}
        }
        Ok(())
    }

    /// The stream ends here: a batch that is not complete is dropped.
    pub fn finish(&mut self) {
        self.drop_batch();
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<ReplayEvent> {
        self.events.pop_front()
    }

    /// The Epoch record of the first owner may be purged. If servers have lost it, void records may come first.
    fn is_of_owner(&mut self, header: &RecordHeader) -> bool {
        let (token, epoch) = (header.token, header.epoch);
        if self.owner.is_none_or(|owner| !owner.is_known && owner.epoch < epoch) {
            self.drop_batch();
            self.owner = Some(Owner { token, epoch, is_known: false });
        }
        self.owner.is_some_and(|owner| owner.token == token)
    }

    fn take_epoch(&mut self, sequence: u64, header: &RecordHeader, record: &[u8]) -> Result<(), ReplayError> {
        let (_, record) = EpochRecord::read_record(record).map_err(|error| ReplayError::Record { sequence, error })?;
        let owner = Owner { token: header.token, epoch: header.epoch, is_known: true };
        if self.owner.replace(owner).is_none_or(|before| before.token != owner.token) {
            self.drop_batch();
        }
        self.events.push_back(ReplayEvent::Epoch { sequence, epoch: header.epoch, record });
        Ok(())
    }

    fn take_part(&mut self, sequence: u64, header: &RecordHeader, record: &Bytes) -> Result<(), ReplayError> {
        let damage = |what| ReplayError::Batch { sequence, what };
        if header.part == 0 {
            self.drop_batch();
            self.batch = Some(OpenBatch::new(header.batch, sequence));
        }
        // Without its first part, which was purged, a batch cannot matter any more.
        let Some(batch) = &mut self.batch else { return Ok(()) };
        if (batch.number, batch.next_part) != (header.batch, header.part) {
            return Err(damage("a part of a batch is missing"));
        }
        batch.next_part += 1;
        batch.bytes += record.len() as u64;
        batch.decoder.decode(record.slice(HEADER_BYTES..), &mut self.events).map_err(damage)?;
        if !header.last {
            return Ok(());
        }
        if !batch.decoder.is_between_entries() {
            return Err(damage("the batch ends within an entry"));
        }
        let range = StoredRange { first: batch.first, last: sequence, bytes: batch.bytes };
        self.batch = None;
        self.events.push_back(ReplayEvent::BatchComplete(range));
        Ok(())
    }

    fn drop_batch(&mut self) {
        if self.batch.take().is_some() {
            self.events.push_back(ReplayEvent::BatchDropped);
        }
    }
}

impl OpenBatch {
    fn new(number: u64, first: u64) -> Self {
        OpenBatch { number, next_part: 0, first, bytes: 0, decoder: BatchDecoder::default() }
    }
}
