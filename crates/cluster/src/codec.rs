//! The encoded form of a batch: what the parts of a batch carry, one after the other. Entries follow
//! one another without a count.
//!
//! | bytes | field |
//! |---|---|
//! | 1 | kind: 1 message, 2 outcome |
//! | 4 | length of the head |
//! | | head |
//! | | of a message: prefix and body |
//!
//! The head of a message has its id (spool 8, lane 2, sequence 8), flags (1: dot lines, 2: eight bit,
//! 4: ends in CRLF), CRC-32C (4) and length (8) of prefix and body, the length of the prefix (8), states
//! and the envelope. The head of an outcome has the id, 0 or 1 and the id of a bounce, and states.
//! States and envelopes are encoded as in the log of the spool. Numbers are little-endian.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use mail::{Body, BodyFlags, Envelope, QueueId};
use spool::{DraftBody, EntryDraft, RecipientState, encode_envelope, encode_states};

use crate::record::Payload;

/// The length of most heads, at the most.
const HEAD_BYTES_ABOUT: usize = 512;

/// The maximum length of a head: an envelope of 100,000 recipients has about 10 MB.
pub(crate) const HEAD_BYTES_MAX: usize = 256 << 20;

pub(crate) const KIND_MESSAGE: u8 = 1;
pub(crate) const KIND_OUTCOME: u8 = 2;

pub(crate) const FLAG_DOT_LINES: u8 = 1;
pub(crate) const FLAG_EIGHT_BIT: u8 = 2;
pub(crate) const FLAG_ENDS_IN_CRLF: u8 = 4;

/// An entry to encode.
#[derive(Debug)]
pub enum CopiedEntry {
    /// A message, new or published again.
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

/// Encodes a batch part by part. Bodies in files are never in memory as a whole.
pub struct BatchEncoder {
    part_bytes: usize,
    entries: VecDeque<CopiedEntry>,
    /// What is left of the entry that was begun.
    pieces: VecDeque<Piece>,
    is_finished: bool,
}

/// Consecutive bytes of an encoded batch.
enum Piece {
    Memory { bytes: Arc<Vec<u8>>, position: usize },
    File { body: Body, position: u64, digest: u32 },
}

impl From<EntryDraft> for CopiedEntry {
    fn from(draft: EntryDraft) -> Self {
        match draft {
            EntryDraft::Message { id, envelope, content, flags, digest } => {
                CopiedEntry::Message { id, envelope, states: Vec::new(), content, flags, digest }
            }
            EntryDraft::Outcome { id, recipients, bounce } => CopiedEntry::Outcome { id, recipients, bounce },
        }
    }
}

impl CopiedEntry {
    /// Its encoded length, approximately.
    fn bytes_about(&self) -> usize {
        let content = match self {
            CopiedEntry::Message { content, .. } => lengths(content).1,
            CopiedEntry::Outcome { .. } => 0,
        };
        usize::try_from(content).unwrap_or(usize::MAX).saturating_add(HEAD_BYTES_ABOUT)
    }
}

impl BatchEncoder {
    /// All parts but the last one will have `part_bytes` bytes.
    pub fn new(entries: Vec<CopiedEntry>, part_bytes: usize) -> BatchEncoder {
        let part_bytes = part_bytes.max(1);
        BatchEncoder { part_bytes, entries: entries.into(), pieces: VecDeque::new(), is_finished: false }
    }

    /// The next part, and whether it is the last one; None after the last one. Blocks if bodies are
    /// in files.
    ///
    /// # Errors
    ///
    /// A body cannot be read, or is not what was stored. The batch cannot be completed.
    pub fn next_part(&mut self) -> io::Result<Option<(Payload, bool)>> {
        if self.is_finished {
            return Ok(None);
        }
        let part_bytes = self.part_bytes;
        let mut part = Payload::with_capacity(self.bytes_left().min(part_bytes));
        while part.len() < part_bytes
            && let Some(piece) = self.next_piece()
        {
            let room = part_bytes - part.len();
            if piece.append_to(&mut part, room)? {
                self.pieces.pop_front();
            }
        }
        self.is_finished = self.next_piece().is_none();
        Ok(Some((part, self.is_finished)))
    }

    /// At most so many bytes are left, approximately: then a part is not moved while it grows.
    fn bytes_left(&self) -> usize {
        let entries = self.entries.iter().map(CopiedEntry::bytes_about);
        entries.chain(self.pieces.iter().map(Piece::bytes_left)).fold(0, usize::saturating_add)
    }

    /// The piece that is to be copied next. Pieces are never empty.
    fn next_piece(&mut self) -> Option<&mut Piece> {
        if self.pieces.is_empty() {
            let entry = self.entries.pop_front()?;
            self.pieces = pieces_of(entry);
        }
        self.pieces.front_mut()
    }
}

impl Piece {
    fn memory(bytes: Arc<Vec<u8>>) -> Option<Piece> {
        (!bytes.is_empty()).then_some(Piece::Memory { bytes, position: 0 })
    }

    fn file(body: Body) -> Option<Piece> {
        (!body.is_empty()).then_some(Piece::File { body, position: 0, digest: 0 })
    }

    fn bytes_left(&self) -> usize {
        match self {
            Piece::Memory { bytes, position } => bytes.len() - position,
            Piece::File { body, position, .. } => usize::try_from(body.len() - position).unwrap_or(usize::MAX),
        }
    }

    /// Appends up to `room` bytes; true if nothing is left.
    fn append_to(&mut self, part: &mut Payload, room: usize) -> io::Result<bool> {
        match self {
            Piece::Memory { bytes, position } => {
                let end = *position + room.min(bytes.len() - *position);
                part.extend(&bytes[*position..end]);
                *position = end;
                Ok(end == bytes.len())
            }
            Piece::File { body, position, digest } => {
                let left = usize::try_from(body.len() - *position).unwrap_or(usize::MAX);
                let bytes = part.extend_zeroed(room.min(left));
                let read = body.read_at(bytes, *position)?;
                *digest = crc32c::crc32c_append(*digest, bytes);
                *position += read as u64;
                let is_complete = *position == body.len();
                if is_complete && *digest != body.digest() {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "the body has another checksum"));
                }
                Ok(is_complete)
            }
        }
    }
}

fn pieces_of(entry: CopiedEntry) -> VecDeque<Piece> {
    match entry {
        CopiedEntry::Outcome { id, recipients, bounce } => {
            let head = encode_entry(KIND_OUTCOME, |head| {
                put_id(head, id);
                head.push(u8::from(bounce.is_some()));
                bounce.into_iter().for_each(|bounce| put_id(head, bounce));
                encode_states(head, &recipients);
            });
            Piece::memory(head).into_iter().collect()
        }
        CopiedEntry::Message { id, envelope, states, content, flags, digest } => {
            let (prefix_len, content_len) = lengths(&content);
            let head = encode_entry(KIND_MESSAGE, |head| {
                put_id(head, id);
                head.push(flag_bits(flags));
                head.extend_from_slice(&digest.to_le_bytes());
                head.extend_from_slice(&content_len.to_le_bytes());
                head.extend_from_slice(&prefix_len.to_le_bytes());
                encode_states(head, &states);
                encode_envelope(head, &envelope);
            });
            let content = match content {
                DraftBody::Memory { prefix, body } => [Piece::memory(prefix), Piece::memory(body)],
                DraftBody::Spilled { content, .. } => [Piece::file(content), None],
            };
            Piece::memory(head).into_iter().chain(content.into_iter().flatten()).collect()
        }
    }
}

/// The lengths of the prefix, and of prefix and body.
fn lengths(content: &DraftBody) -> (u64, u64) {
    match content {
        DraftBody::Memory { prefix, body } => (prefix.len() as u64, prefix.len() as u64 + body.len() as u64),
        DraftBody::Spilled { content, prefix_len } => (*prefix_len, content.len()),
    }
}

fn encode_entry(kind: u8, write_head: impl FnOnce(&mut Vec<u8>)) -> Arc<Vec<u8>> {
    let mut bytes = vec![kind, 0, 0, 0, 0];
    write_head(&mut bytes);
    let length = (bytes.len() - 5) as u32;
    bytes[1..5].copy_from_slice(&length.to_le_bytes());
    Arc::new(bytes)
}

fn put_id(out: &mut Vec<u8>, id: QueueId) {
    out.extend_from_slice(&id.spool().bits().to_le_bytes());
    out.extend_from_slice(&id.lane().to_le_bytes());
    out.extend_from_slice(&id.sequence().to_le_bytes());
}

fn flag_bits(flags: BodyFlags) -> u8 {
    let bits =
        [(flags.dot_lines, FLAG_DOT_LINES), (flags.eight_bit, FLAG_EIGHT_BIT), (flags.ends_in_crlf, FLAG_ENDS_IN_CRLF)];
    bits.iter().filter(|(is_set, _)| *is_set).map(|(_, bit)| bit).sum()
}
