//! From batches that wait to parts that the owner has: in their order, and only a few ahead of what
//! the stream takes.

use std::io;

use bytes::Bytes;
use futures_util::FutureExt;
use mail::QueueId;
use spool::{BatchDraft, DraftBody, RecipientState, SpooledMessage, StepAnswer};

use super::upkeep::{UpkeepEvent, retained};
use super::{Event, LaneEnd, LaneTask};
use crate::clock::boot_time;
use crate::codec::{BatchEncoder, CopiedEntry};
use crate::lane::owner::BatchId;
use crate::record::HEADER_BYTES;

/// Encoded parts that wait to be sent, or for their answers. The last one may exceed it.
const ENCODED_BYTES_MAX: u64 = 16 << 20;

/// The longest record. Servers with a smaller `max_payload` get shorter ones.
const RECORD_BYTES_MAX: usize = 512 << 10;

/// What a message has beside its record: the header with the expected sequence, which counts towards
/// `max_payload`.
const MESSAGE_HEAD_BYTES: usize = 256;

/// A part and whether it is the last one; None: the last one was before.
pub(super) type EncodedPart = Option<(Bytes, bool)>;

/// A batch that is not queued yet.
pub(super) enum WaitingBatch {
    Draft(BatchDraft, StepAnswer),
    /// A message is published again.
    Copy(QueueId, SpooledMessage),
}

/// The batch whose parts are passed to the owner.
pub(super) enum Encoding {
    Nothing,
    Batch {
        batch: BatchId,
        encoder: Box<BatchEncoder>,
        reads_files: bool,
    },
    /// A part is being read on another thread.
    Reading(BatchId),
}

impl LaneTask {
    /// Passes the next part to the owner, if there is one and room for it. False: there is not.
    pub(super) fn queue_next(&mut self) -> bool {
        if self.owner.waiting_bytes() >= ENCODED_BYTES_MAX {
            return false;
        }
        match std::mem::replace(&mut self.encoding, Encoding::Nothing) {
            Encoding::Nothing => self.start_next(),
            Encoding::Batch { batch, mut encoder, reads_files: false } => {
                let part = encoder.next_part();
                self.queue_part(batch, part.map(|part| (encoder, part)), false);
                true
            }
            Encoding::Batch { batch, encoder, reads_files: true } => {
                self.read_part(encoder);
                self.encoding = Encoding::Reading(batch);
                false
            }
            reading @ Encoding::Reading(_) => {
                self.encoding = reading;
                false
            }
        }
    }

    /// A part was read on another thread.
    pub(super) fn handle_read_part(&mut self, read: io::Result<(Box<BatchEncoder>, EncodedPart)>) {
        if let Encoding::Reading(batch) = std::mem::replace(&mut self.encoding, Encoding::Nothing) {
            self.queue_part(batch, read, true);
        }
    }

    /// Begins the next batch, or hands the lane over. False: nothing waits.
    fn start_next(&mut self) -> bool {
        match self.waiting.pop_front() {
            Some(WaitingBatch::Draft(batch, answer)) => {
                let batch = self.start_batch(batch.entries.into_iter().map(CopiedEntry::from).collect());
                self.answers.insert(batch, answer);
            }
            Some(WaitingBatch::Copy(id, message)) => {
                // Without states, it was settled meanwhile.
                if let Some(states) = self.upkeep.states(id) {
                    self.start_batch(vec![copied(id, states, message)]);
                }
            }
            None if self.is_releasing => {
                self.is_releasing = false;
                self.owner.release(boot_time());
            }
            None => return false,
        }
        true
    }

    fn start_batch(&mut self, entries: Vec<CopiedEntry>) -> BatchId {
        let batch = self.owner.start_batch(boot_time());
        self.upkeep.handle(UpkeepEvent::Queued(batch, entries.iter().map(retained).collect()));
        let reads_files = entries.iter().any(is_in_file);
        let encoder = Box::new(BatchEncoder::new(entries, self.part_bytes()));
        self.encoding = Encoding::Batch { batch, encoder, reads_files };
        batch
    }

    fn part_bytes(&self) -> usize {
        let record_bytes = self.stream.payload_bytes_max().saturating_sub(MESSAGE_HEAD_BYTES).min(RECORD_BYTES_MAX);
        record_bytes.saturating_sub(HEADER_BYTES).max(1)
    }

    fn read_part(&self, mut encoder: Box<BatchEncoder>) {
        let read = tokio::task::spawn_blocking(move || encoder.next_part().map(|part| (encoder, part)));
        let read = async move { Event::Part(read.await.unwrap_or_else(|error| Err(io::Error::other(error)))) };
        self.requests.push(read.boxed());
    }

    fn queue_part(&mut self, batch: BatchId, read: io::Result<(Box<BatchEncoder>, EncodedPart)>, reads_files: bool) {
        match read {
            Ok((encoder, Some((payload, is_last)))) => {
                self.owner.handle_part(batch, &payload, is_last, boot_time());
                if !is_last {
                    self.encoding = Encoding::Batch { batch, encoder, reads_files };
                }
            }
            Ok((_, None)) => {}
            Err(error) => self.shared.set_ended(LaneEnd::Lost(format!("a body cannot be read for its copy: {error}"))),
        }
    }
}

/// A message of the spool, to be published again with these states.
fn copied(id: QueueId, states: Vec<(u32, RecipientState)>, message: SpooledMessage) -> CopiedEntry {
    let SpooledMessage { envelope, body, prefix_len, .. } = message;
    let (flags, digest) = (body.flags(), body.digest());
    CopiedEntry::Message {
        id,
        envelope,
        states,
        content: DraftBody::Spilled { content: body, prefix_len },
        flags,
        digest,
    }
}

fn is_in_file(entry: &CopiedEntry) -> bool {
    matches!(entry, CopiedEntry::Message { content: DraftBody::Spilled { .. }, .. })
}
