//! A segment: a file of fixed size that is used, freed and used again.
//!
//! Its first two blocks are two *slots* for its header, written alternately: the one with the
//! higher generation is in force, so that if a power failure tears one, the other is still valid. A
//! slot says either *free* or *used, number N*.
//!
//! | slot says | content of the file | a crash while it is written |
//! |---|---|---|
//! | free | invalid | the other slot says used N: its messages are dead, its outcomes still count |
//! | used N | records with N are valid, all others are not | the other slot says free: there is no record with N yet |
//!
//! A slot that was damaged later is distinguished from a torn one by looking for records with a
//! number above the good slot's: they exist exactly if the damaged slot was in force.

use std::io::{self, IoSlice};
use std::sync::Arc;

use mail::{ByteSource, SpoolId};

use crate::LaneId;
use crate::codec::{ByteReader, put_u16, put_u32, put_u64};
use crate::disk::{DiskFile, read_exact_at, read_lossy, write_all_at};
use crate::record::{BLOCK, FRAME_BYTES, MAGIC, RECORD_ALIGN, RecordFrame, SegmentUse};

/// Where records begin: after the two slots.
pub(crate) const DATA_OFFSET: u64 = 2 * BLOCK;
/// The format version in every slot. A spool of another version is refused.
pub(crate) const FORMAT_VERSION: u32 = 2;
const SLOT_MAGIC: &[u8; 8] = b"MAILRACE";
const SLOT_BYTES: usize = 64;

/// The content of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    /// The slot with the higher generation is in force.
    pub(crate) generation: u64,
    /// The current use, or None if the segment is free.
    pub(crate) segment: Option<SegmentUse>,
    /// The highest number of any use of this file.
    pub(crate) last_number: u64,
    /// Counts starts of the server; the upper bits of sequence numbers.
    pub(crate) epoch: u32,
    pub(crate) lane: LaneId,
}

/// The result of reading both slots of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderState {
    /// Never used, or its creation was interrupted.
    Blank,
    /// A valid header; `damaged` if the other slot was written but cannot be read.
    Good { header: SegmentHeader, damaged: bool },
    /// The header in force is damaged; its use comes from the first record, the rest from the other
    /// slot.
    NewestUnreadable { header: SegmentHeader, found: SegmentUse },
    /// Written by another version of the format.
    Version(u32),
    /// Both slots were written, and neither can be read.
    Unreadable,
}

impl SegmentHeader {
    fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(BLOCK as usize);
        out.extend_from_slice(SLOT_MAGIC);
        put_u32(&mut out, FORMAT_VERSION);
        put_u32(&mut out, self.epoch);
        put_u64(&mut out, self.generation);
        let SegmentUse { number, salt } = self.segment.unwrap_or_default();
        put_u64(&mut out, number);
        put_u64(&mut out, salt);
        put_u64(&mut out, self.last_number);
        put_u64(&mut out, self.lane.spool.bits());
        put_u16(&mut out, self.lane.number);
        put_u16(&mut out, 0);
        let crc = crc32c::crc32c(&out);
        put_u32(&mut out, crc);
        out.resize(BLOCK as usize, 0);
        out
    }

    fn read(bytes: &[u8]) -> Option<Result<SegmentHeader, u32>> {
        let (covered, crc) = bytes.get(..SLOT_BYTES)?.split_at(SLOT_BYTES - 4);
        let mut reader = ByteReader::new(covered);
        if reader.bytes(8)? != SLOT_MAGIC || crc32c::crc32c(covered).to_le_bytes() != crc {
            return None;
        }
        let version = reader.u32()?;
        if version != FORMAT_VERSION {
            return Some(Err(version));
        }
        let (epoch, generation) = (reader.u32()?, reader.u64()?);
        let segment = SegmentUse { number: reader.u64()?, salt: reader.u64()? };
        let last_number = reader.u64()?;
        let lane = LaneId { spool: SpoolId::new(reader.u64()?), number: reader.u16()? };
        let segment = (segment.number != 0).then_some(segment);
        Some(Ok(SegmentHeader { generation, segment, last_number, epoch, lane }))
    }

    /// Writes the slot for this generation and syncs the file.
    pub(crate) fn store(&self, file: &dyn DiskFile) -> io::Result<()> {
        let block = self.bytes();
        write_all_at(file, &mut [IoSlice::new(&block)], self.generation % 2 * BLOCK)?;
        file.sync()
    }

    /// Reads both slots.
    pub(crate) fn load(file: &dyn DiskFile) -> io::Result<HeaderState> {
        if file.len()? < DATA_OFFSET {
            return Ok(HeaderState::Blank);
        }
        let mut blocks = vec![0; DATA_OFFSET as usize];
        let mut damaged = read_lossy(file, &mut blocks, 0);
        let mut best: Option<SegmentHeader> = None;
        for slot in blocks.chunks(BLOCK as usize) {
            match SegmentHeader::read(slot) {
                Some(Err(version)) => return Ok(HeaderState::Version(version)),
                Some(Ok(header)) => best = best.into_iter().chain([header]).max_by_key(|header| header.generation),
                None => damaged |= slot.iter().any(|&byte| byte != 0),
            }
        }
        Ok(match best {
            Some(header) => match first_use(file)?.filter(|found| found.number > header.last_number) {
                Some(found) => HeaderState::NewestUnreadable { header, found },
                None => HeaderState::Good { header, damaged },
            },
            // A header may also be damaged to zeros.
            None if damaged || first_use(file)?.is_some() => HeaderState::Unreadable,
            None => HeaderState::Blank,
        })
    }
}

/// The file name of the segment with this ordinal.
pub(crate) fn file_name(ordinal: u32) -> String {
    format!("segment-{ordinal:06}")
}

/// The ordinal in a segment's file name.
pub(crate) fn file_ordinal(name: &str) -> Option<u32> {
    name.strip_prefix("segment-")?.parse().ok()
}

/// The source of a [`mail::Body`]: while one exists, its segment is not reused.
pub(crate) struct FileLease(pub(crate) Arc<dyn DiskFile>);

impl ByteSource for FileLease {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buffer, offset)
    }

    fn file(&self) -> Option<&std::fs::File> {
        self.0.file()
    }
}

/// Reads the frame and head of the record at `offset`; None if its checksum is wrong.
pub(crate) fn read_record(
    file: &(impl ByteSource + ?Sized),
    offset: u64,
    end: u64,
) -> io::Result<Option<(RecordFrame, Vec<u8>)>> {
    const GUESS: u64 = 512;
    let mut record = vec![0; GUESS.min(end.saturating_sub(offset)) as usize];
    read_exact_at(file, &mut record, offset)?;
    let Some(frame) = RecordFrame::read(&record) else { return Ok(None) };
    if offset + frame.span() > end {
        return Ok(None);
    }
    let wanted = frame.body_offset() as usize;
    let have = record.len().min(wanted);
    record.resize(wanted, 0);
    read_exact_at(file, &mut record[have..], offset + have as u64)?;
    Ok((frame.place == offset && frame.verified_head(&record).is_some()).then_some((frame, record)))
}

/// Reads the record at `offset`; None also if the device fails twice.
pub(crate) fn look_for_record(file: &dyn DiskFile, offset: u64, end: u64) -> Option<(RecordFrame, Vec<u8>)> {
    let again = |_| read_record(file, offset, end);
    read_record(file, offset, end).or_else(again).ok().flatten()
}

/// The use in the first record, for when the header cannot be read.
pub(crate) fn first_use(file: &dyn DiskFile) -> io::Result<Option<SegmentUse>> {
    Ok(look_for_record(file, DATA_OFFSET, file.len()?).map(|(frame, _)| frame.segment))
}

/// Finds the next valid record of a use from `offset` on.
pub(crate) fn find_record(
    file: &dyn DiskFile,
    offset: u64,
    end: u64,
    segment: SegmentUse,
) -> Option<(u64, RecordFrame)> {
    const WINDOW: u64 = 1 << 20;
    let mut window = Vec::new();
    let mut start = offset.next_multiple_of(RECORD_ALIGN);
    while start + FRAME_BYTES as u64 <= end {
        window.resize(WINDOW.min(end - start) as usize, 0);
        read_lossy(file, &mut window, start);
        let last = window.len() - FRAME_BYTES;
        for at in (0..=last).step_by(RECORD_ALIGN as usize) {
            let place = start + at as u64;
            // Old content may be full of forged frames with large lengths: do not read for those.
            if window[at..].starts_with(&MAGIC)
                && RecordFrame::read(&window[at..])
                    .is_some_and(|frame| frame.segment == segment && frame.place == place)
                && let Some((frame, _)) = look_for_record(file, place, end)
            {
                return Some((place, frame));
            }
        }
        start += (last as u64 + 1).next_multiple_of(RECORD_ALIGN);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{RecordDraft, RecordKind};

    #[test]
    fn a_header_reads_back_and_a_torn_one_does_not() {
        let header = SegmentHeader {
            generation: 3,
            segment: Some(SegmentUse { number: 8, salt: 77 }),
            last_number: 8,
            epoch: 2,
            lane: LaneId { spool: SpoolId::new(99), number: 1 },
        };
        let bytes = header.bytes();
        assert_eq!(bytes.len() as u64, BLOCK);
        assert_eq!(SegmentHeader::read(&bytes), Some(Ok(header)));
        for place in 0..SLOT_BYTES {
            let mut torn = bytes.clone();
            torn[place] ^= 1;
            assert_eq!(SegmentHeader::read(&torn), None, "byte {place}");
        }
    }

    const USE: SegmentUse = SegmentUse { number: 7, salt: 77 };

    /// A log with one record at `offset`, and the end of its span.
    fn log_with_a_record(offset: u64, head_len: usize) -> (Vec<u8>, u64) {
        let mut draft = RecordDraft::new(RecordKind::Outcome, |head| head.resize(FRAME_BYTES + head_len, 5));
        draft.seal(USE, 1, offset);
        let mut log = vec![0; offset as usize];
        log.extend_from_slice(&draft.record);
        let end = offset + draft.span().unwrap();
        log.resize(end as usize, 0);
        (log, end)
    }

    #[test]
    fn a_record_is_read_if_it_ends_with_the_segment_and_not_if_it_goes_on_behind_it() {
        // Smaller and larger than what is read at once.
        for head_len in [11, 464, 465, 5000] {
            let (mut log, end) = log_with_a_record(800, head_len);
            let (frame, record) = read_record(&log, 800, end).unwrap().unwrap();
            assert_eq!((frame.segment, record.len()), (USE, FRAME_BYTES + head_len));
            assert!(read_record(&log, 800, end - 1).is_ok_and(|found| found.is_none()));
            // A copy of it, as in an index, is no record.
            log.extend_from_within(800..);
            assert!(read_record(&log, 800, log.len() as u64).unwrap().is_some());
            assert!(read_record(&log, end, log.len() as u64).is_ok_and(|found| found.is_none()));
        }
    }
}
