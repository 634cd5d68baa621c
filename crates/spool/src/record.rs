//! Records, the elements of the log. The bytes are specified in `docs/spool-format.md`.
//!
//! A record is a frame of 48 bytes, a *head* (decoded at start) and a *body* (only stored), padded
//! to 8 bytes. Its checksum covers frame and head; the body has its own. The frame contains the
//! segment's use and the batch, so that records of earlier uses are not taken for mail; its own
//! position, so that a copy of a record (an index contains such) is not taken for one; and the
//! secret salt of the use, so that a message body cannot contain valid records.

use std::ops::Deref;
use std::sync::Arc;

use crate::codec::{ByteReader, put_u32, put_u64};

/// The size of a frame in bytes.
pub(crate) const FRAME_BYTES: usize = 48;
/// Every record begins at a multiple of this.
pub(crate) const RECORD_ALIGN: u64 = 8;
/// Every batch begins at a multiple of this and is padded to it, so that no write touches a block
/// with acknowledged mail.
pub(crate) const BLOCK: u64 = 4096;
pub(crate) const MAGIC: [u8; 4] = *b"MRec";
/// A reader that does not know the kind may skip the record.
pub(crate) const FLAG_SKIPPABLE: u8 = 1;

/// The kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordKind {
    /// An envelope and its body. (Kind 1 was a message of version 1, whose head was different.)
    Message,
    /// New states of recipients.
    Outcome,
    /// The end of a batch.
    Commit,
    /// A copy of the records of a sealed segment, without their bodies.
    Index,
    /// In the last block of a sealed segment: the position of its index.
    Footer,
    /// Written by another version.
    Unknown(u8),
}

impl RecordKind {
    fn from_byte(byte: u8) -> Self {
        match byte {
            6 => RecordKind::Message,
            2 => RecordKind::Outcome,
            3 => RecordKind::Commit,
            4 => RecordKind::Index,
            5 => RecordKind::Footer,
            other => RecordKind::Unknown(other),
        }
    }

    fn byte(self) -> u8 {
        match self {
            RecordKind::Message => 6,
            RecordKind::Outcome => 2,
            RecordKind::Commit => 3,
            RecordKind::Index => 4,
            RecordKind::Footer => 5,
            RecordKind::Unknown(byte) => byte,
        }
    }
}

/// One use of a segment file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SegmentUse {
    /// Increases with every use within the lane; 0 means none.
    pub(crate) number: u64,
    /// Random, and known only to the spool.
    pub(crate) salt: u64,
}

/// The fixed-size start of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordFrame {
    pub(crate) kind: RecordKind,
    pub(crate) flags: u8,
    /// The current use of the segment.
    pub(crate) segment: SegmentUse,
    /// The batch, counted from 1 in each use.
    pub(crate) batch: u32,
    /// The offset of the record.
    pub(crate) place: u64,
    pub(crate) head_len: u32,
    pub(crate) body_len: u32,
    pub(crate) body_crc: u32,
}

impl RecordFrame {
    /// The distance to the next record.
    pub(crate) fn span(&self) -> u64 {
        (FRAME_BYTES as u64 + u64::from(self.head_len) + u64::from(self.body_len)).next_multiple_of(RECORD_ALIGN)
    }

    /// The number of bytes before the body.
    pub(crate) fn body_offset(&self) -> u64 {
        FRAME_BYTES as u64 + u64::from(self.head_len)
    }

    /// Writes the frame over the first bytes of `record`, whose rest is the head; returns the
    /// checksum.
    pub(crate) fn seal(&self, record: &mut [u8]) -> u32 {
        let mut front = Vec::with_capacity(FRAME_BYTES);
        front.extend_from_slice(&MAGIC);
        front.extend_from_slice(&[self.kind.byte(), self.flags, 0, 0]);
        put_u64(&mut front, self.segment.number);
        put_u32(&mut front, self.batch);
        put_u32(&mut front, (self.place / RECORD_ALIGN) as u32);
        put_u32(&mut front, self.head_len);
        put_u32(&mut front, self.body_len);
        put_u32(&mut front, self.body_crc);
        put_u64(&mut front, self.segment.salt);
        let crc = crc32c::crc32c_append(crc32c::crc32c(&front), &record[FRAME_BYTES..]);
        put_u32(&mut front, crc);
        record[..FRAME_BYTES].copy_from_slice(&front);
        crc
    }

    /// Decodes a frame without verifying its checksum. None if it does not start with the magic
    /// number.
    pub(crate) fn read(bytes: &[u8]) -> Option<RecordFrame> {
        let mut reader = ByteReader::new(bytes.get(..FRAME_BYTES)?);
        if reader.bytes(4)? != MAGIC {
            return None;
        }
        let (kind, flags) = (RecordKind::from_byte(reader.u8()?), reader.u8()?);
        reader.u16()?;
        let (number, batch) = (reader.u64()?, reader.u32()?);
        let place = u64::from(reader.u32()?) * RECORD_ALIGN;
        let (head_len, body_len, body_crc) = (reader.u32()?, reader.u32()?, reader.u32()?);
        let segment = SegmentUse { number, salt: reader.u64()? };
        Some(RecordFrame { kind, flags, segment, batch, place, head_len, body_len, body_crc })
    }

    /// The head of `record` (frame and head), if the checksum is right.
    pub(crate) fn verified_head<'a>(&self, record: &'a [u8]) -> Option<&'a [u8]> {
        let (front, head) = record.get(..FRAME_BYTES + self.head_len as usize)?.split_at(FRAME_BYTES);
        let (covered, crc) = front.split_at(FRAME_BYTES - 4);
        let found = crc32c::crc32c_append(crc32c::crc32c(covered), head);
        (found.to_le_bytes() == crc).then_some(head)
    }

    /// The checksum stored in a frame.
    pub(crate) fn claimed_crc(record: &[u8]) -> Option<u32> {
        ByteReader::new(record.get(FRAME_BYTES - 4..FRAME_BYTES)?).u32()
    }
}

/// The head of a [`RecordKind::Commit`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CommitRecord {
    /// The number of records in the batch, without this one.
    pub(crate) count: u32,
    /// CRC-32C over the checksums of frame and body of each record of the batch, in order.
    pub(crate) digest: u32,
}

impl CommitRecord {
    /// Adds a record to the digest.
    pub(crate) fn add(&mut self, frame_crc: u32, body_crc: u32) {
        self.count += 1;
        self.digest = crc32c::crc32c_append(self.digest, &frame_crc.to_le_bytes());
        self.digest = crc32c::crc32c_append(self.digest, &body_crc.to_le_bytes());
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        put_u32(out, self.count);
        put_u32(out, self.digest);
    }

    pub(crate) fn read(head: &[u8]) -> Option<CommitRecord> {
        let mut reader = ByteReader::new(head);
        Some(CommitRecord { count: reader.u32()?, digest: reader.u32()? })
    }
}

/// A record without the segment and batch, which the writer adds.
#[derive(Debug)]
pub(crate) struct RecordDraft {
    pub(crate) kind: RecordKind,
    pub(crate) flags: u8,
    /// Space for the frame, then the head.
    pub(crate) record: Vec<u8>,
    /// Written before the rest of the body, and part of it for every reader.
    pub(crate) prefix: RecordBytes,
    pub(crate) body: RecordBytes,
    /// The checksum of prefix and body.
    pub(crate) body_crc: u32,
}

/// Bytes to write, which a commit step may share.
#[derive(Debug)]
pub(crate) enum RecordBytes {
    Owned(Vec<u8>),
    Shared(Arc<Vec<u8>>),
}

impl RecordBytes {
    /// Another reference to the bytes, without a copy.
    pub(crate) fn share(&mut self) -> Arc<Vec<u8>> {
        match self {
            RecordBytes::Shared(bytes) => bytes.clone(),
            RecordBytes::Owned(bytes) => {
                let bytes = Arc::new(std::mem::take(bytes));
                *self = RecordBytes::Shared(bytes.clone());
                bytes
            }
        }
    }
}

impl Default for RecordBytes {
    fn default() -> Self {
        RecordBytes::Owned(Vec::new())
    }
}

impl Deref for RecordBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            RecordBytes::Owned(bytes) => bytes,
            RecordBytes::Shared(bytes) => bytes,
        }
    }
}

impl RecordDraft {
    /// A record without a body; `head` appends the head after the space for the frame.
    pub(crate) fn new(kind: RecordKind, head: impl FnOnce(&mut Vec<u8>)) -> Self {
        let mut record = Vec::with_capacity(FRAME_BYTES + 208);
        record.resize(FRAME_BYTES, 0);
        head(&mut record);
        RecordDraft {
            kind,
            flags: 0,
            record,
            prefix: RecordBytes::default(),
            body: RecordBytes::default(),
            body_crc: 0,
        }
    }

    pub(crate) fn with_body(self, body: Vec<u8>) -> Self {
        self.with_content(Vec::new(), body)
    }

    /// With a body that begins with `prefix`.
    pub(crate) fn with_content(mut self, prefix: Vec<u8>, body: Vec<u8>) -> Self {
        self.body_crc = crc32c::crc32c_append(crc32c::crc32c(&prefix), &body);
        (self.prefix, self.body) = (RecordBytes::Owned(prefix), RecordBytes::Owned(body));
        self
    }

    /// Replaces the head; the body stays.
    pub(crate) fn set_head(&mut self, head: impl FnOnce(&mut Vec<u8>)) {
        self.record.truncate(FRAME_BYTES);
        head(&mut self.record);
    }

    /// The size of the record in the log; None if a length does not fit the frame.
    pub(crate) fn span(&self) -> Option<u64> {
        u32::try_from(self.record.len()).ok()?;
        u32::try_from(self.body_len()).ok()?;
        Some((self.record.len() as u64 + self.body_len() as u64).next_multiple_of(RECORD_ALIGN))
    }

    /// The number of bytes after the head, without the padding.
    pub(crate) fn body_len(&self) -> usize {
        self.prefix.len() + self.body.len()
    }

    /// Completes the frame; returns its checksum.
    pub(crate) fn seal(&mut self, segment: SegmentUse, batch: u32, place: u64) -> u32 {
        let frame = RecordFrame {
            kind: self.kind,
            flags: self.flags,
            segment,
            batch,
            place,
            head_len: (self.record.len() - FRAME_BYTES) as u32,
            body_len: self.body_len() as u32,
            body_crc: self.body_crc,
        };
        frame.seal(&mut self.record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_record_reads_back_and_any_flipped_bit_of_it_shows() {
        let mut draft =
            RecordDraft::new(RecordKind::Message, |head| head.extend_from_slice(b"head")).with_body(b"body".to_vec());
        let segment = SegmentUse { number: 7, salt: 1 << 63 };
        draft.seal(segment, 9, 4096);
        let frame = RecordFrame::read(&draft.record).unwrap();
        assert_eq!((frame.kind, frame.segment, frame.batch, frame.place), (RecordKind::Message, segment, 9, 4096));
        assert_eq!(frame.verified_head(&draft.record), Some(&b"head"[..]));
        for bit in 0..draft.record.len() * 8 {
            let mut flipped = draft.record.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let whole = RecordFrame::read(&flipped).and_then(|frame| frame.verified_head(&flipped).map(<[u8]>::to_vec));
            assert_eq!(whole, None, "bit {bit}");
        }
    }
}
