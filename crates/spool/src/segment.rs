//! A segment: a file of fixed size that is used, emptied and used again.
//!
//! Its first two blocks are two *slots* for its header, written in turn: the one with the higher generation
//! counts, so that a slot torn by a power loss leaves the other. A slot says either *free* or *used, number N*.
//!
//! | slot says | on the disk below it | a crash while it is written |
//! |---|---|---|
//! | free | nothing that counts | the other slot says used N: its mail is dead, its outcomes still stand |
//! | used N | records that bear N count, all others do not | the other slot says free: no record bears N yet |
//!
//! A slot that rotted later is told from a torn one by looking for records with a number above the good
//! slot's: there are some exactly if the rotted slot was in force.

use std::io::{self, IoSlice};
use std::sync::Arc;

use mail::{ByteSource, SpoolId};

use crate::codec::{Reader, put_u16, put_u32, put_u64};
use crate::disk::{DiskFile, read_exact_at, read_lossy, write_all_at};
use crate::record::{BLOCK, FRAME_BYTES, Frame, MAGIC, RECORD_ALIGN, Use};

/// Where records begin: behind the two slots.
pub(crate) const DATA_OFFSET: u64 = 2 * BLOCK;
/// The version of the format, in every slot. A spool of another version is refused.
pub(crate) const FORMAT_VERSION: u32 = 1;
const SLOT_MAGIC: &[u8; 8] = b"MAILRACE";
const SLOT_BYTES: usize = 64;

/// What a slot says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// The higher one of the two slots counts.
    pub(crate) generation: u64,
    /// The present use; None is free.
    pub(crate) segment: Option<Use>,
    /// The highest number that any use of this file has had.
    pub(crate) last_number: u64,
    /// Counts the starts of the server; the upper bits of sequence numbers.
    pub(crate) epoch: u32,
    pub(crate) spool: SpoolId,
    pub(crate) lane: u16,
}

/// What the two slots of a file say together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Never used, or its creation was cut short.
    Blank,
    /// A good header; `damaged` if the other slot could not be read though it had been written.
    Good { header: Header, damaged: bool },
    /// The header in force rotted; the first record tells of its use, and the other slot of the rest.
    Outlived { header: Header, found: Use },
    /// Written by another version of the format.
    Version(u32),
    /// Both slots had been written and neither can be read.
    Unreadable,
}

impl Header {
    fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(BLOCK as usize);
        out.extend_from_slice(SLOT_MAGIC);
        put_u32(&mut out, FORMAT_VERSION);
        put_u32(&mut out, self.epoch);
        put_u64(&mut out, self.generation);
        let Use { number, salt } = self.segment.unwrap_or_default();
        put_u64(&mut out, number);
        put_u64(&mut out, salt);
        put_u64(&mut out, self.last_number);
        put_u64(&mut out, self.spool.bits());
        put_u16(&mut out, self.lane);
        put_u16(&mut out, 0);
        let crc = crc32c::crc32c(&out);
        put_u32(&mut out, crc);
        out.resize(BLOCK as usize, 0);
        out
    }

    fn read(bytes: &[u8]) -> Option<Result<Header, u32>> {
        let (covered, crc) = bytes.get(..SLOT_BYTES)?.split_at(SLOT_BYTES - 4);
        let mut reader = Reader::new(covered);
        if reader.bytes(8)? != SLOT_MAGIC || crc32c::crc32c(covered).to_le_bytes() != crc {
            return None;
        }
        let version = reader.u32()?;
        if version != FORMAT_VERSION {
            return Some(Err(version));
        }
        let (epoch, generation) = (reader.u32()?, reader.u64()?);
        let segment = Use { number: reader.u64()?, salt: reader.u64()? };
        let (last_number, spool, lane) = (reader.u64()?, SpoolId::new(reader.u64()?), reader.u16()?);
        let segment = (segment.number != 0).then_some(segment);
        Some(Ok(Header { generation, segment, last_number, epoch, spool, lane }))
    }

    /// Writes the slot that this generation takes, and syncs it.
    pub(crate) fn store(&self, file: &dyn DiskFile) -> io::Result<()> {
        let block = self.bytes();
        write_all_at(file, &mut [IoSlice::new(&block)], self.generation % 2 * BLOCK)?;
        file.sync()
    }

    /// Reads both slots.
    pub(crate) fn load(file: &dyn DiskFile) -> io::Result<Standing> {
        if file.len()? < DATA_OFFSET {
            return Ok(Standing::Blank);
        }
        let mut blocks = vec![0; DATA_OFFSET as usize];
        let mut damaged = read_lossy(file, &mut blocks, 0);
        let mut best: Option<Header> = None;
        for slot in blocks.chunks(BLOCK as usize) {
            match Header::read(slot) {
                Some(Err(version)) => return Ok(Standing::Version(version)),
                Some(Ok(header)) if best.is_none_or(|b| b.generation < header.generation) => best = Some(header),
                Some(Ok(_)) => {}
                None => damaged |= slot.iter().any(|&byte| byte != 0),
            }
        }
        Ok(match best {
            Some(header) => match first_use(file)?.filter(|found| found.number > header.last_number) {
                Some(found) => Standing::Outlived { header, found },
                None => Standing::Good { header, damaged },
            },
            // Zeros may be what is left of a header too.
            None if damaged || first_use(file)?.is_some() => Standing::Unreadable,
            None => Standing::Blank,
        })
    }
}

/// The file name of the segment file with this ordinal.
pub(crate) fn file_name(ordinal: u32) -> String {
    format!("segment-{ordinal:06}")
}

/// The ordinal in a segment's file name.
pub(crate) fn file_ordinal(name: &str) -> Option<u32> {
    name.strip_prefix("segment-")?.parse().ok()
}

/// What a [`mail::Body`] holds: as long as one is alive, its segment is not used again.
pub(crate) struct Lease(pub(crate) Arc<dyn DiskFile>);

impl ByteSource for Lease {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buffer, offset)
    }

    fn file(&self) -> Option<&std::fs::File> {
        self.0.file()
    }
}

/// Frame and head of the record at `offset`, if they are what was written.
pub(crate) fn read_record(
    file: &(impl ByteSource + ?Sized),
    offset: u64,
    end: u64,
) -> io::Result<Option<(Frame, Vec<u8>)>> {
    const GUESS: u64 = 512;
    let mut record = vec![0; GUESS.min(end.saturating_sub(offset)) as usize];
    read_exact_at(file, &mut record, offset)?;
    let Some(frame) = Frame::read(&record) else { return Ok(None) };
    if offset + frame.span() > end {
        return Ok(None);
    }
    let wanted = frame.body_offset() as usize;
    let have = record.len();
    record.resize(wanted, 0);
    if wanted > have {
        read_exact_at(file, &mut record[have..], offset + have as u64)?;
    }
    Ok((frame.place == offset && frame.verified_head(&record).is_some()).then_some((frame, record)))
}

/// The record at `offset`; what the device does not give, even when it is asked twice, is no record.
pub(crate) fn look_for_record(file: &dyn DiskFile, offset: u64, end: u64) -> Option<(Frame, Vec<u8>)> {
    let again = |_| read_record(file, offset, end);
    read_record(file, offset, end).or_else(again).ok().flatten()
}

/// The use that the first record names; it tells where a header cannot.
pub(crate) fn first_use(file: &dyn DiskFile) -> io::Result<Option<Use>> {
    Ok(look_for_record(file, DATA_OFFSET, file.len()?).map(|(frame, _)| frame.segment))
}

/// The next place from `offset` on where a record of the use begins whole.
pub(crate) fn find_record(file: &dyn DiskFile, offset: u64, end: u64, segment: Use) -> Option<(u64, Frame)> {
    const WINDOW: u64 = 1 << 20;
    let mut window = Vec::new();
    let mut start = offset.next_multiple_of(RECORD_ALIGN);
    while start + FRAME_BYTES as u64 <= end {
        window.resize(WINDOW.min(end - start) as usize, 0);
        read_lossy(file, &mut window, start);
        let last = window.len() - FRAME_BYTES;
        for at in (0..=last).step_by(RECORD_ALIGN as usize) {
            let place = start + at as u64;
            // Old mail may be full of frames that claim much: nothing is read for them.
            if window[at..].starts_with(&MAGIC)
                && Frame::read(&window[at..]).is_some_and(|frame| frame.segment == segment && frame.place == place)
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

    #[test]
    fn a_header_reads_back_and_a_torn_one_does_not() {
        let header = Header {
            generation: 3,
            segment: Some(Use { number: 8, salt: 77 }),
            last_number: 8,
            epoch: 2,
            spool: SpoolId::new(99),
            lane: 1,
        };
        let bytes = header.bytes();
        assert_eq!(bytes.len() as u64, BLOCK);
        assert_eq!(Header::read(&bytes), Some(Ok(header)));
        for place in 0..SLOT_BYTES {
            let mut torn = bytes.clone();
            torn[place] ^= 1;
            assert_eq!(Header::read(&torn), None, "byte {place}");
        }
    }
}
