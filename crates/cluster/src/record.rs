//! The records of a lane's stream: one JetStream message each, a header and a payload.
//!
//! | bytes | field |
//! |---|---|
//! | 3 | `MRL` |
//! | 1 | version: 2; records of version 1 do not say how long the lease is |
//! | 1 | kind: 1 Epoch, 2 Part, 3 Renew, 4 Release |
//! | 1 | flags: 1 = last part of its batch |
//! | 8 | epoch |
//! | 8 | token |
//! | 8 | batch |
//! | 4 | part |
//! | 4 | CRC-32C of all other bytes, header and payload |
//!
//! Numbers are little-endian. The **epoch** counts the owners of the lane, and the **token** is a
//! random number that each owner chooses: two nodes that claim a lane at the same time may use the
//! same epoch, but never the same token. A record of an unknown version or kind is an error, because
//! it may change the meaning of others.
//!
//! The owner of the lane is the one of the last Epoch record in the order of the stream. Records of
//! another token that follow it are **void**: they were on their way when their owner lost the lane.

use std::ops::Deref;
use std::time::Duration;

use bytes::Bytes;

use crate::NodeName;

/// The length of a header in bytes.
pub const HEADER_BYTES: usize = CRC_AT + 4;

const MAGIC: [u8; 3] = *b"MRL";
const VERSION: u8 = 2;
const FLAG_LAST: u8 = 1;
const CRC_AT: usize = 34;

/// The kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// The owner's claim of the lane; the payload is an [`EpochRecord`]. It is repeated now and then,
    /// so that the first one can be purged.
    Epoch,
    /// A part of a batch; the payload is a slice of the encoded batch.
    Part,
    /// The owner is alive; the payload is its [`EpochRecord`] again: servers have lost records that they
    /// were to keep, and then the owner is still known.
    Renew,
    /// The owner gives the lane away: if this is the last record, another node may claim it at once.
    /// No payload.
    Release,
}

/// What is known of a record without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// The kind.
    pub kind: RecordKind,
    /// Counts the owners of the lane.
    pub epoch: u64,
    /// The random number of the owner's claim.
    pub token: u64,
    /// Counts the batches of this owner from 1; 0 in records that are no part of one.
    pub batch: u64,
    /// Counts the parts of the batch from 0.
    pub part: u32,
    /// It is the last part of its batch.
    pub last: bool,
}

/// The payload of an Epoch record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochRecord {
    /// The owner.
    pub node: NodeName,
    /// The epoch of the owner's spool, higher than that of every earlier owner: it is the upper part
    /// of the ids of messages that this owner creates in the lane.
    pub spool_epoch: u32,
    /// How long the owner may deliver after it sent a record that was stored. Others wait that long, whatever
    /// their own settings say.
    pub lease: Duration,
}

/// Why bytes are not a record that this version understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Something else has written to the stream.
    #[error("not a record of Mailrace")]
    Foreign,
    /// Another version of Mailrace has written it.
    #[error("record version {0} is unknown: use the version of Mailrace that wrote it")]
    UnknownVersion(u8),
    /// Another version of Mailrace has written it.
    #[error("record kind {0} is unknown: use the version of Mailrace that wrote it")]
    UnknownKind(u8),
    /// The checksum is wrong, or the payload is not what the kind says.
    #[error("the record is damaged")]
    Damaged,
}

/// The payload of a record, behind the space for its header: the two become one message without a copy.
#[derive(Debug, PartialEq, Eq)]
pub struct Payload(Vec<u8>);

impl Payload {
    /// An empty one with space for so many bytes.
    pub fn with_capacity(bytes: usize) -> Payload {
        let mut record = Vec::with_capacity(HEADER_BYTES + bytes);
        record.resize(HEADER_BYTES, 0);
        Payload(record)
    }

    /// Appends bytes.
    pub fn extend(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Appends so many zeros, and returns them.
    pub fn extend_zeroed(&mut self, count: usize) -> &mut [u8] {
        let start = self.0.len();
        self.0.resize(start + count, 0);
        &mut self.0[start..]
    }
}

impl Deref for Payload {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0[HEADER_BYTES..]
    }
}

impl From<&[u8]> for Payload {
    fn from(bytes: &[u8]) -> Payload {
        let mut payload = Payload::with_capacity(bytes.len());
        payload.extend(bytes);
        payload
    }
}

impl RecordHeader {
    /// Header and payload as one message.
    pub fn encode(&self, payload: &[u8]) -> Bytes {
        self.seal(payload.into())
    }

    /// The same, without a copy of the payload.
    pub fn seal(&self, Payload(mut record): Payload) -> Bytes {
        let (header, payload) = record.split_at_mut(HEADER_BYTES);
        header[..CRC_AT].copy_from_slice(&self.fields());
        let checksum = checksum(&header[..CRC_AT], payload);
        header[CRC_AT..].copy_from_slice(&checksum.to_le_bytes());
        record.into()
    }

    /// The bytes before the checksum.
    fn fields(&self) -> [u8; CRC_AT] {
        let flags = if self.last { FLAG_LAST } else { 0 };
        let [epoch, token, batch] = [self.epoch, self.token, self.batch].map(u64::to_le_bytes);
        let (start, part) = ([VERSION, self.kind.code(), flags], self.part.to_le_bytes());
        let parts = [&MAGIC[..], &start, &epoch, &token, &batch, &part];
        let mut fields = [0; CRC_AT];
        fields.iter_mut().zip(parts.into_iter().flatten()).for_each(|(field, byte)| *field = *byte);
        fields
    }

    /// The header of a record, whose checksum is verified.
    pub fn read(record: &[u8]) -> Result<RecordHeader, RecordError> {
        split(record).map(|(header, _)| header)
    }
}

/// Header and payload of a record, whose checksum is verified.
pub fn split(record: &[u8]) -> Result<(RecordHeader, &[u8]), RecordError> {
    if record.get(..MAGIC.len()) != Some(&MAGIC[..]) {
        return Err(RecordError::Foreign);
    }
    let version = *record.get(3).ok_or(RecordError::Foreign)?;
    if version != VERSION {
        return Err(RecordError::UnknownVersion(version));
    }
    let (header, payload) = record.split_at_checked(HEADER_BYTES).ok_or(RecordError::Damaged)?;
    let (covered, stored) = header.split_at(CRC_AT);
    if checksum(covered, payload).to_le_bytes() != *stored {
        return Err(RecordError::Damaged);
    }
    Ok((read_fields(covered)?, payload))
}

impl EpochRecord {
    /// The payload.
    pub fn encode(&self) -> Vec<u8> {
        let lease = u32::try_from(self.lease.as_millis()).unwrap_or(u32::MAX);
        let mut payload = [self.spool_epoch.to_le_bytes(), lease.to_le_bytes()].concat();
        payload.extend_from_slice(self.node.as_str().as_bytes());
        payload
    }

    /// Reads a payload.
    pub fn read(payload: &[u8]) -> Result<EpochRecord, RecordError> {
        let (spool_epoch, rest) = payload.split_first_chunk().ok_or(RecordError::Damaged)?;
        let (lease, node) = rest.split_first_chunk().ok_or(RecordError::Damaged)?;
        let node = std::str::from_utf8(node).ok().and_then(|node| node.parse().ok());
        let node = node.ok_or(RecordError::Damaged)?;
        let lease = Duration::from_millis(u32::from_le_bytes(*lease).into());
        Ok(EpochRecord { node, spool_epoch: u32::from_le_bytes(*spool_epoch), lease })
    }

    /// Header and content of a record that must be an Epoch record.
    pub fn read_record(record: &[u8]) -> Result<(RecordHeader, EpochRecord), RecordError> {
        EpochRecord::read_kind(record, RecordKind::Epoch)
    }

    /// Header and content of a Renew record.
    pub fn read_renewal(record: &[u8]) -> Result<(RecordHeader, EpochRecord), RecordError> {
        EpochRecord::read_kind(record, RecordKind::Renew)
    }

    fn read_kind(record: &[u8], kind: RecordKind) -> Result<(RecordHeader, EpochRecord), RecordError> {
        match split(record)? {
            (header, payload) if header.kind == kind => Ok((header, EpochRecord::read(payload)?)),
            _ => Err(RecordError::Damaged),
        }
    }
}

impl RecordKind {
    fn code(self) -> u8 {
        match self {
            RecordKind::Epoch => 1,
            RecordKind::Part => 2,
            RecordKind::Renew => 3,
            RecordKind::Release => 4,
        }
    }

    fn of(code: u8) -> Result<RecordKind, RecordError> {
        [RecordKind::Epoch, RecordKind::Part, RecordKind::Renew, RecordKind::Release]
            .into_iter()
            .find(|kind| kind.code() == code)
            .ok_or(RecordError::UnknownKind(code))
    }
}

fn checksum(header: &[u8], payload: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(header), payload)
}

/// Reads the bytes before the checksum.
fn read_fields(header: &[u8]) -> Result<RecordHeader, RecordError> {
    let kind = RecordKind::of(header[4])?;
    let number_at = |at: usize| header[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    Ok(RecordHeader {
        kind,
        last: header[5] & FLAG_LAST != 0,
        epoch: number_at(6),
        token: number_at(14),
        batch: number_at(22),
        part: header[30..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> RecordHeader {
        RecordHeader { kind: RecordKind::Part, epoch: 7, token: u64::MAX, batch: 2, part: 1, last: true }
    }

    #[test]
    fn a_record_reads_back() {
        let record = header().encode(b"payload");
        assert_eq!(split(&record), Ok((header(), &b"payload"[..])));
        assert_eq!(record.len(), HEADER_BYTES + 7);
    }

    #[test]
    fn a_change_of_any_bit_is_noticed_and_so_is_a_cut() {
        let record = header().encode(b"payload");
        for place in 0..record.len() * 8 {
            let mut changed = record.to_vec();
            changed[place / 8] ^= 1 << (place % 8);
            assert!(split(&changed).is_err(), "bit {place}");
        }
        assert!((0..record.len()).all(|end| split(&record[..end]).is_err()));
    }

    #[test]
    fn records_of_other_versions_are_refused_by_name() {
        let mut record = header().encode(b"").to_vec();
        for other in [VERSION - 1, VERSION + 1] {
            record[3] = other;
            assert_eq!(split(&record), Err(RecordError::UnknownVersion(other)));
        }
    }

    #[test]
    fn an_epoch_record_reads_back() {
        let epoch = EpochRecord { node: "mx-1".parse().unwrap(), spool_epoch: 9, lease: Duration::from_millis(1500) };
        let header = RecordHeader { kind: RecordKind::Epoch, ..header() };
        assert_eq!(EpochRecord::read_record(&header.encode(&epoch.encode())), Ok((header, epoch.clone())));
        let header = RecordHeader { kind: RecordKind::Renew, ..header };
        let renewal = header.encode(&epoch.encode());
        assert_eq!(EpochRecord::read_renewal(&renewal), Ok((header, epoch)));
        assert_eq!(EpochRecord::read_record(&renewal), Err(RecordError::Damaged));
    }
}
