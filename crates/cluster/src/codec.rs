//! The encoded form of a batch: what the parts of a batch carry, one after the other.

use std::io;

use bytes::Bytes;
use mail::{BodyFlags, Envelope, QueueId};
use spool::{DraftBody, RecipientState};

/// An entry to encode.
#[derive(Debug)]
pub enum CopiedEntry {
    /// A message, new or copied.
    Message {
        /// Its id.
        id: QueueId,
        /// Its envelope.
        envelope: Envelope,
        /// States that are not new; empty for a new message.
        states: Vec<(u32, RecipientState)>,
        /// Prefix and body.
        content: DraftBody,
        /// Properties of prefix and body.
        flags: BodyFlags,
        /// CRC-32C of prefix and body.
        digest: u32,
    },
    /// New states of recipients.
    Outcome {
        /// The message.
        id: QueueId,
        /// Ordinals and states.
        recipients: Vec<(u32, RecipientState)>,
        /// The bounce in the same batch.
        bounce: Option<QueueId>,
    },
}

/// Encodes a batch part by part, without holding large bodies in memory.
pub struct BatchEncoder;

#[expect(clippy::unimplemented, unused_variables, reason = "signatures for those who build on them")]
#[allow(missing_docs)]
impl BatchEncoder {
    /// `CopiedEntry: From<spool::EntryDraft>`. `part_bytes`: the length of all parts but the last.
    pub fn new(entries: Vec<CopiedEntry>, part_bytes: usize) -> BatchEncoder {
        unimplemented!()
    }
    /// The next part, and whether it is the last one; None after the last. Reads files: blocks.
    pub fn next_part(&mut self) -> io::Result<Option<(Bytes, bool)>> {
        unimplemented!()
    }
}
