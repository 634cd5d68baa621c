//! Reads a segment: by its index if it was sealed, otherwise record by record.
//!
//! Without an index, every body is verified too. Only the last batch may be torn, because each
//! batch is synced before the next one begins (except with relaxed durability): its intact records
//! are kept, since a duplicate is better than a loss. A gap anywhere else is damage, and so is a
//! body with a wrong checksum.

use std::io;
use std::ops::Range;

use crate::codec::{ByteReader, put_u32};
use crate::disk::{DiskFile, read_lossy};
use crate::entries::{OutcomeHead, sequence_of};
use crate::record::{BLOCK, CommitRecord, FRAME_BYTES, RECORD_ALIGN, RecordFrame, RecordKind, SegmentUse};
use crate::segment::{DATA_OFFSET, find_record, look_for_record};

/// The records of a segment, in the form of its index.
#[derive(Default)]
pub(crate) struct SegmentContents {
    entries: Vec<u8>,
    /// Ranges that held data and cannot be read.
    pub(crate) damage: Vec<Range<u64>>,
    /// Whether it was read by its index.
    pub(crate) indexed: bool,
}

/// A record of a segment, without its body.
pub(crate) struct ListedRecord<'a> {
    pub(crate) offset: u64,
    pub(crate) frame: RecordFrame,
    pub(crate) head: &'a [u8],
}

impl SegmentContents {
    /// Reads the index of a sealed segment for one use; None if there is no readable one.
    pub(crate) fn by_index(file: &dyn DiskFile, segment: SegmentUse) -> io::Result<Option<SegmentContents>> {
        let entries = by_index(file, segment, file.len()?);
        Ok(entries.map(|entries| SegmentContents { entries, damage: Vec::new(), indexed: true }))
    }

    /// Reads all records of one use.
    pub(crate) fn by_record(file: &dyn DiskFile, segment: SegmentUse) -> io::Result<SegmentContents> {
        Ok(SegmentScan { file, segment, end: file.len()?, contents: SegmentContents::default() }.run())
    }

    pub(crate) fn records(&self) -> impl Iterator<Item = ListedRecord<'_>> {
        let mut reader = ByteReader::new(&self.entries);
        std::iter::from_fn(move || {
            let offset = u64::from(reader.u32()?) * RECORD_ALIGN;
            let frame = RecordFrame::read(reader.bytes(FRAME_BYTES)?)?;
            Some(ListedRecord { offset, frame, head: reader.bytes(frame.head_len as usize)? })
        })
    }

    fn list(&mut self, offset: u64, record: &[u8]) {
        put_u32(&mut self.entries, (offset / RECORD_ALIGN) as u32);
        self.entries.extend_from_slice(record);
    }
}

fn by_index(file: &dyn DiskFile, segment: SegmentUse, end: u64) -> Option<Vec<u8>> {
    let of_use = |(frame, _): &(RecordFrame, Vec<u8>), kind| frame.kind == kind && frame.segment == segment;
    let place = end.checked_sub(BLOCK).filter(|place| *place >= DATA_OFFSET)?;
    let (_, footer) = look_for_record(file, place, end).filter(|found| of_use(found, RecordKind::Footer))?;
    let place = ByteReader::new(&footer[FRAME_BYTES..]).u64()?;
    let (frame, _) = look_for_record(file, place, end).filter(|found| of_use(found, RecordKind::Index))?;
    let mut entries = vec![0; frame.body_len as usize];
    read_lossy(file, &mut entries, place + frame.body_offset());
    (crc32c::crc32c(&entries) == frame.body_crc).then_some(entries)
}

struct SegmentScan<'a> {
    file: &'a dyn DiskFile,
    segment: SegmentUse,
    end: u64,
    contents: SegmentContents,
}

/// The records found of one batch.
#[derive(Default)]
struct ScannedBatch {
    number: u32,
    records: Vec<(u64, RecordFrame, Vec<u8>)>,
    running: CommitRecord,
    /// Set when the commit record was found: whether it matches the records before it.
    closed: Option<bool>,
    gaps: Vec<Range<u64>>,
}

impl SegmentScan<'_> {
    fn run(mut self) -> SegmentContents {
        let mut batch = ScannedBatch { number: 1, ..ScannedBatch::default() };
        let mut position = DATA_OFFSET;
        while let Some((place, frame, record)) = self.next(position) {
            let own_gap = batch.is_followed_by(&frame);
            if frame.batch != batch.number {
                let before =
                    std::mem::replace(&mut batch, ScannedBatch { number: frame.batch, ..ScannedBatch::default() });
                self.accept(before, false);
            }
            if place != position {
                // A gap before a batch that is not the next one was not part of this batch.
                let gaps = if own_gap { &mut batch.gaps } else { &mut self.contents.damage };
                gaps.push(position..place);
            }
            position = batch.add(place, frame, record);
        }
        self.accept(batch, true);
        self.contents
    }

    /// The record at `position`, or the next one after it.
    fn next(&self, position: u64) -> Option<(u64, RecordFrame, Vec<u8>)> {
        let here = look_for_record(self.file, position, self.end).filter(|(frame, _)| frame.segment == self.segment);
        if let Some((frame, record)) = here {
            return Some((position, frame, record));
        }
        let (place, _) = find_record(self.file, position, self.end, self.segment)?;
        look_for_record(self.file, place, self.end).map(|(frame, record)| (place, frame, record))
    }

    /// Lists the intact records of a batch; only the last one may be torn.
    fn accept(&mut self, batch: ScannedBatch, last: bool) {
        let mut intact = Vec::with_capacity(batch.records.len());
        let mut whole = batch.closed == Some(true);
        // Without its commit record the last batch was not synced, so it was not acknowledged.
        let was_acknowledged = !last || batch.closed.is_some();
        for (place, frame, record) in batch.records {
            let crc = body_crc(self.file, place + frame.body_offset(), frame.body_len);
            if crc == Some(frame.body_crc) {
                intact.push((place, record));
                continue;
            }
            whole = false;
            // A torn batch can be read; bytes that cannot be read are damage in any case.
            if was_acknowledged || crc.is_none() {
                self.contents.damage.push(place..place + frame.span());
            }
        }
        if was_acknowledged {
            self.contents.damage.extend(batch.gaps);
        }
        let messages: Vec<u64> = intact.iter().filter_map(|(_, record)| message_of(record)).collect();
        for (place, record) in intact {
            if whole || !lacks_its_bounce(&record, &messages) {
                self.contents.list(place, &record);
            }
        }
    }
}

impl ScannedBatch {
    /// Whether only a part of the frame's own batch can be missing before it: it continues this
    /// batch, or begins the next one.
    fn is_followed_by(&self, frame: &RecordFrame) -> bool {
        frame.batch == self.number || (self.closed.is_some() && frame.batch == self.number + 1)
    }

    /// Adds the record at `place`; returns the position of the next one.
    fn add(&mut self, place: u64, frame: RecordFrame, record: Vec<u8>) -> u64 {
        let end = place + frame.span();
        match frame.kind {
            RecordKind::Commit => {
                self.closed = Some(CommitRecord::read(&record[FRAME_BYTES..]) == Some(self.running));
                end.next_multiple_of(BLOCK)
            }
            RecordKind::Index | RecordKind::Footer => end.next_multiple_of(BLOCK),
            RecordKind::Message | RecordKind::Outcome | RecordKind::Unknown(_) => {
                self.running.add(RecordFrame::claimed_crc(&record).unwrap_or(0), frame.body_crc);
                self.records.push((place, frame, record));
                end
            }
        }
    }
}

/// The checksum of `len` bytes from `offset`; None if they cannot be read.
pub(crate) fn body_crc(file: &dyn DiskFile, offset: u64, len: u32) -> Option<u32> {
    let mut body = vec![0; len as usize];
    (!read_lossy(file, &mut body, offset)).then(|| crc32c::crc32c(&body))
}

fn message_of(record: &[u8]) -> Option<u64> {
    RecordFrame::read(record).filter(|frame| frame.kind == RecordKind::Message)?;
    sequence_of(&record[FRAME_BYTES..])
}

/// An outcome does not count if its bounce is not among the messages of its torn batch.
fn lacks_its_bounce(record: &[u8], messages: &[u64]) -> bool {
    let outcome = RecordFrame::read(record).filter(|frame| frame.kind == RecordKind::Outcome);
    let head = outcome.and_then(|_| OutcomeHead::read(&record[FRAME_BYTES..]));
    head.is_some_and(|head| head.bounce != 0 && !messages.contains(&head.bounce))
}
