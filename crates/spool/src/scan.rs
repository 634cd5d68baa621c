//! Reading a segment back: by its index if it was sealed, else record by record.
//!
//! Only the last batch of a segment may be torn, since each batch is synced before the next is begun: it is
//! verified whole, bodies too, and what is intact of it is kept (a duplicate is allowed, a loss is not). A gap
//! anywhere else is damage.

use std::io;
use std::ops::Range;

use mail::ByteSource;

use crate::codec::{Reader, put_u32};
use crate::disk::{DiskFile, read_exact_at};
use crate::entry::{MessageHead, OutcomeHead};
use crate::record::{BLOCK, Commit, FRAME_BYTES, Frame, Kind, RECORD_ALIGN};
use crate::segment::{DATA_OFFSET, find_record, read_record};

/// What a segment holds, as its index would list it.
#[derive(Default)]
pub(crate) struct Contents {
    entries: Vec<u8>,
    /// Places that held something and cannot be read.
    pub(crate) damage: Vec<Range<u64>>,
    /// It was read by its index.
    pub(crate) indexed: bool,
}

/// A record of a segment, its body left where it is.
pub(crate) struct Listed<'a> {
    pub(crate) offset: u64,
    pub(crate) frame: Frame,
    pub(crate) head: &'a [u8],
}

impl Contents {
    /// Reads use `number` of a segment file.
    pub(crate) fn read(file: &dyn DiskFile, number: u64) -> io::Result<Contents> {
        let end = file.len()?;
        match by_index(file, number, end) {
            Ok(Some(entries)) => Ok(Contents { entries, damage: Vec::new(), indexed: true }),
            // An index that cannot be read is no loss: the records are there.
            Ok(None) | Err(_) => Scan { file, number, end, contents: Contents::default() }.run(),
        }
    }

    pub(crate) fn records(&self) -> impl Iterator<Item = Listed<'_>> {
        let mut reader = Reader::new(&self.entries);
        std::iter::from_fn(move || {
            let offset = u64::from(reader.u32()?) * RECORD_ALIGN;
            let frame = Frame::read(reader.bytes(FRAME_BYTES)?)?;
            Some(Listed { offset, frame, head: reader.bytes(frame.head_len as usize)? })
        })
    }

    fn list(&mut self, offset: u64, record: &[u8]) {
        put_u32(&mut self.entries, (offset / RECORD_ALIGN) as u32);
        self.entries.extend_from_slice(record);
    }
}

fn by_index(file: &dyn DiskFile, number: u64, end: u64) -> io::Result<Option<Vec<u8>>> {
    let of_use = |(frame, _): &(Frame, Vec<u8>), kind| frame.kind == kind && frame.segment == number;
    let Some(place) = end.checked_sub(BLOCK).filter(|place| *place >= DATA_OFFSET) else { return Ok(None) };
    let Some(footer) = read_record(file, place, end)?.filter(|found| of_use(found, Kind::Footer)) else {
        return Ok(None);
    };
    let Some(place) = Reader::new(&footer.1[FRAME_BYTES..]).u64() else { return Ok(None) };
    let Some((frame, _)) = read_record(file, place, end)?.filter(|found| of_use(found, Kind::Index)) else {
        return Ok(None);
    };
    let mut entries = vec![0; frame.body_len as usize];
    read_exact_at(file, &mut entries, place + frame.body_offset())?;
    Ok((crc32c::crc32c(&entries) == frame.body_crc).then_some(entries))
}

struct Scan<'a> {
    file: &'a dyn DiskFile,
    number: u64,
    end: u64,
    contents: Contents,
}

/// The records of one batch, as they are found.
#[derive(Default)]
struct Batch {
    number: u64,
    records: Vec<(u64, Frame, Vec<u8>)>,
    running: Commit,
    /// A commit record was there; whether it matched what was found before it.
    closed: Option<bool>,
    gaps: Vec<Range<u64>>,
}

impl Scan<'_> {
    fn run(mut self) -> io::Result<Contents> {
        let mut batch = Batch { number: 1, ..Batch::default() };
        let mut position = DATA_OFFSET;
        loop {
            let found = match read_record(self.file, position.min(self.end), self.end) {
                Ok(Some((frame, _))) if frame.segment == self.number => Some((position, frame)),
                Ok(_) => find_record(self.file, position, self.end, Some(self.number)).unwrap_or_else(|_| {
                    // The device gives no more: whatever was there stays for the operator.
                    self.contents.damage.push(position..self.end);
                    None
                }),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => None,
                Err(_) => {
                    self.contents.damage.push(position..self.end);
                    None
                }
            };
            let Some((place, frame)) = found else { break };
            if frame.batch != batch.number {
                let before = std::mem::replace(&mut batch, Batch { number: frame.batch, ..Batch::default() });
                self.accept(before);
            }
            if place != position {
                batch.gaps.push(position..place);
            }
            position = self.step(&mut batch, place, frame)?;
        }
        self.accept_last(batch)?;
        Ok(self.contents)
    }

    /// Takes the record at `place` into the batch; gives the place where the next one is to be.
    fn step(&self, batch: &mut Batch, place: u64, frame: Frame) -> io::Result<u64> {
        let Some((_, record)) = read_record(self.file, place, self.end)? else { return Ok(place + RECORD_ALIGN) };
        match frame.kind {
            Kind::Commit => {
                batch.closed = Some(Commit::read(&record[FRAME_BYTES..]) == Some(batch.running));
                return Ok((place + frame.span()).next_multiple_of(BLOCK));
            }
            Kind::Index | Kind::Footer => return Ok((place + frame.span()).next_multiple_of(BLOCK)),
            Kind::Message | Kind::Outcome | Kind::Unknown(_) => {
                batch.running.add(Frame::claimed_crc(&record).unwrap_or(0), frame.body_crc);
                batch.records.push((place, frame, record));
            }
        }
        Ok(place + frame.span())
    }

    /// A batch behind which another one was begun: it was synced.
    fn accept(&mut self, batch: Batch) {
        self.contents.damage.extend(batch.gaps);
        batch.records.iter().for_each(|(place, _, record)| self.contents.list(*place, record));
    }

    /// The batch at the end: what of it is whole.
    fn accept_last(&mut self, batch: Batch) -> io::Result<()> {
        let mut intact = Vec::with_capacity(batch.records.len());
        let mut whole = batch.closed == Some(true);
        for (place, frame, record) in batch.records {
            if self.body_is_intact(place, &frame)? {
                intact.push((place, record));
                continue;
            }
            whole = false;
            if batch.closed.is_some() {
                // The commit record may have been synced, and then this was acknowledged.
                self.contents.damage.push(place..place + frame.span());
            }
        }
        if batch.closed == Some(false) {
            self.contents.damage.extend(batch.gaps);
        }
        let messages: Vec<u64> = intact.iter().filter_map(|(_, record)| sequence_of(record)).collect();
        for (place, record) in intact {
            if whole || !lacks_its_bounce(&record, &messages) {
                self.contents.list(place, &record);
            }
        }
        Ok(())
    }

    fn body_is_intact(&self, place: u64, frame: &Frame) -> io::Result<bool> {
        body_crc(self.file, place + frame.body_offset(), frame.body_len).map(|crc| crc == frame.body_crc)
    }
}

/// The checksum of `len` bytes from `offset`.
pub(crate) fn body_crc(file: &(impl ByteSource + ?Sized), offset: u64, len: u32) -> io::Result<u32> {
    let mut body = vec![0; len as usize];
    read_exact_at(file, &mut body, offset)?;
    Ok(crc32c::crc32c(&body))
}

fn sequence_of(record: &[u8]) -> Option<u64> {
    let frame = Frame::read(record).filter(|frame| frame.kind == Kind::Message)?;
    debug_assert_eq!(record.len(), frame.body_offset() as usize);
    MessageHead::read(&record[FRAME_BYTES..]).map(|head| head.sequence)
}

/// An outcome whose bounce is not among the messages of its torn batch does not count.
fn lacks_its_bounce(record: &[u8], messages: &[u64]) -> bool {
    let outcome = Frame::read(record).filter(|frame| frame.kind == Kind::Outcome);
    let head = outcome.and_then(|_| OutcomeHead::read(&record[FRAME_BYTES..]));
    head.is_some_and(|head| head.bounce != 0 && !messages.contains(&head.bounce))
}
