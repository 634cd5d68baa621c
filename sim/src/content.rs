//! The bytes of a file: what readers see, what is durable, and the writes in between.
//!
//! ```text
//! write ----> live, unsynced           sync -----------> durable
//!                     |                failed sync ----> each sector durable or lost, by the seed; then clean
//!                     '- crash ------> each sector as some prefix of its writes left it, by the seed
//! ```
//!
//! Sectors are independent: a write may be torn between two of them, and a later write may survive
//! where an earlier one is lost. Within one sector writes keep their order, like the page of a
//! cache.

use crate::Random;

/// The number of bytes that a device writes completely or not at all.
pub const SECTOR: u64 = 512;

/// How often a sector survives: all lost, all kept, and single exceptions are the cases that find
/// bugs.
const SURVIVAL_PERCENT: [u64; 5] = [0, 6, 50, 94, 100];

/// How often a sector that was being written holds noise after a harsh crash.
const GARBAGE_PERCENT: u64 = 15;

/// The bytes of a file.
#[derive(Clone, Debug, Default)]
pub(crate) struct SimulatedFile {
    live: Vec<u8>,
    durable: Vec<u8>,
    created_len: u64,
    /// The file begins with this many bytes that were never written, and take no space.
    hole: u64,
    unsynced: Vec<Write>,
    synced: u64,
}

#[derive(Clone, Debug)]
struct Write {
    offset: u64,
    bytes: Vec<u8>,
}

/// A position in the order of a file's writes: a sync covers the writes made before it began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SyncMark(u64);

impl SimulatedFile {
    /// `len` zeros that are not durable.
    pub(crate) fn new(len: u64) -> Self {
        SimulatedFile { live: vec![0; len as usize], created_len: len, ..SimulatedFile::default() }
    }

    /// A file whose bytes are all durable.
    pub(crate) fn durable(bytes: Vec<u8>) -> Self {
        SimulatedFile {
            live: bytes.clone(),
            created_len: bytes.len() as u64,
            durable: bytes,
            ..SimulatedFile::default()
        }
    }

    pub(crate) fn live(&self) -> &[u8] {
        &self.live
    }

    pub(crate) fn len(&self) -> u64 {
        self.live.len() as u64
    }

    /// The space that the file takes.
    pub(crate) fn used(&self) -> u64 {
        self.len() - self.hole
    }

    /// The additional space that a write takes.
    pub(crate) fn growth(&self, offset: u64, count: u64) -> u64 {
        let end = offset + count;
        end.saturating_sub(self.len().max(offset)) + self.hole.min(end).saturating_sub(offset)
    }

    pub(crate) fn write(&mut self, offset: u64, bytes: Vec<u8>) {
        // Only what is before the first write is a hole, and a write into it goes up to its end.
        self.hole = if self.len() == 0 { offset } else { self.hole.min(offset) };
        overlay(&mut self.live, offset, &bytes);
        self.unsynced.push(Write { offset, bytes });
    }

    pub(crate) fn mark(&self) -> SyncMark {
        SyncMark(self.synced + self.unsynced.len() as u64)
    }

    /// Makes everything before `mark` durable.
    pub(crate) fn sync(&mut self, mark: SyncMark) {
        grow(&mut self.durable, self.created_len);
        for write in self.take_until(mark) {
            overlay(&mut self.durable, write.offset, &write.bytes);
        }
    }

    /// Like Linux: the pages count as clean from now on, whether or not the device has them, and
    /// readers see the new bytes until the cache drops them (here immediately, or never).
    pub(crate) fn fail_sync(&mut self, mark: SyncMark, random: &mut Random) {
        let writes = self.take_until(mark);
        let durable = survivors(&self.durable, &writes, self.len(), random, false);
        self.durable = durable;
        if random.chance(50) {
            self.live.clone_from(&self.durable);
            for write in &self.unsynced {
                overlay(&mut self.live, write.offset, &write.bytes);
            }
        }
    }

    /// The file that may be found after a power failure.
    pub(crate) fn crash(&self, random: &mut Random, harsh: bool) -> SimulatedFile {
        SimulatedFile::durable(survivors(&self.durable, &self.unsynced, self.len(), random, harsh))
    }

    /// Flips one bit, for readers and on the device.
    pub(crate) fn flip_bit(&mut self, bit: u64) {
        for bytes in [&mut self.live, &mut self.durable] {
            if let Some(byte) = bytes.get_mut((bit / 8) as usize) {
                *byte ^= 1 << (bit % 8);
            }
        }
    }

    fn take_until(&mut self, mark: SyncMark) -> Vec<Write> {
        let count = mark.0.saturating_sub(self.synced);
        self.synced += count;
        self.unsynced.drain(..count as usize).collect()
    }
}

/// `durable` with any subset of the sectors of `writes`, and any length that is possible then.
fn survivors(durable: &[u8], writes: &[Write], live_len: u64, random: &mut Random, harsh: bool) -> Vec<u8> {
    let percent = random.pick(&SURVIVAL_PERCENT);
    let whole_writes = random.chance(25);
    let mut bytes = durable.to_vec();
    for write in writes {
        let written = random.chance(percent);
        for sector in sectors(write) {
            if if whole_writes { written } else { random.chance(percent) } {
                apply_sector(&mut bytes, writes, write, sector);
            } else if harsh && random.chance(GARBAGE_PERCENT) {
                fill_with_noise(&mut bytes, sector, live_len, random);
            }
        }
    }
    let missing = live_len.saturating_sub(bytes.len() as u64);
    let grown = random.pick(&[0, missing, random.clone().below(missing + 1)]);
    let len = bytes.len() as u64 + grown;
    grow(&mut bytes, len);
    bytes
}

/// Sets `sector` to its content after `last`, including all earlier writes to it.
fn apply_sector(bytes: &mut Vec<u8>, writes: &[Write], last: &Write, sector: u64) {
    let (start, end) = (sector * SECTOR, (sector + 1) * SECTOR);
    for write in writes {
        let from = start.max(write.offset);
        let to = end.min(write.offset + write.bytes.len() as u64);
        if from < to {
            let part = &write.bytes[(from - write.offset) as usize..(to - write.offset) as usize];
            overlay(bytes, from, part);
        }
        if std::ptr::eq(write, last) {
            return;
        }
    }
}

fn fill_with_noise(bytes: &mut Vec<u8>, sector: u64, live_len: u64, random: &mut Random) {
    let (start, end) = (sector * SECTOR, live_len.min((sector + 1) * SECTOR));
    grow(bytes, end);
    random.fill(&mut bytes[start as usize..end as usize]);
}

fn sectors(write: &Write) -> std::ops::Range<u64> {
    write.offset / SECTOR..(write.offset + write.bytes.len() as u64).div_ceil(SECTOR)
}

fn overlay(target: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    let end = offset + bytes.len() as u64;
    grow(target, end);
    target[offset as usize..end as usize].copy_from_slice(bytes);
}

fn grow(bytes: &mut Vec<u8>, len: u64) {
    if (bytes.len() as u64) < len {
        bytes.resize(len as usize, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Writes '.' to three sectors, then 'a' to all of them, then 'b' to the last two; returns what
    /// crashes leave.
    fn outcomes(harsh: bool) -> BTreeSet<String> {
        let mut content = SimulatedFile::durable(vec![b'.'; 3 * SECTOR as usize]);
        content.write(0, vec![b'a'; 3 * SECTOR as usize]);
        content.write(SECTOR, vec![b'b'; 2 * SECTOR as usize]);
        let mut found = BTreeSet::new();
        for seed in 0..2000 {
            let after = content.crash(&mut Random::new(seed), harsh);
            let letter = |sector: &[u8]| {
                if sector.iter().all(|byte| *byte == sector[0]) { char::from(sector[0]) } else { '?' }
            };
            found.insert(after.live().chunks(SECTOR as usize).map(letter).collect());
        }
        found
    }

    #[test]
    fn a_crash_leaves_every_mixture_of_sectors_and_nothing_else() {
        let mut possible = BTreeSet::new();
        for first in [".", "a"] {
            for second in [".", "a", "b"] {
                for third in [".", "a", "b"] {
                    possible.insert(format!("{first}{second}{third}"));
                }
            }
        }
        assert_eq!(outcomes(false), possible);
        assert!(outcomes(true).iter().any(|found| found.contains('?')), "a harsh crash may leave noise");
    }

    #[test]
    fn what_a_sync_covered_survives_and_what_came_after_its_mark_may_not() {
        let mut content = SimulatedFile::new(SECTOR);
        content.write(0, b"first".to_vec());
        let mark = content.mark();
        content.write(0, b"later".to_vec());
        content.sync(mark);
        let found: BTreeSet<Vec<u8>> =
            (0..200).map(|seed| content.crash(&mut Random::new(seed), false).live()[..5].to_vec()).collect();
        assert_eq!(found, BTreeSet::from([b"first".to_vec(), b"later".to_vec()]));
    }

    #[test]
    fn a_length_that_no_sync_covered_may_be_lost() {
        let lens = |content: &SimulatedFile| -> BTreeSet<u64> {
            (0..200).map(|seed| content.crash(&mut Random::new(seed), false).len()).collect()
        };
        let mut content = SimulatedFile::new(4 * SECTOR);
        assert!(lens(&content).contains(&0) && lens(&content).contains(&(4 * SECTOR)));
        content.sync(content.mark());
        assert_eq!(lens(&content), BTreeSet::from([4 * SECTOR]));
        content.write(4 * SECTOR, vec![1; 100]);
        assert!(lens(&content).contains(&(4 * SECTOR)) && lens(&content).contains(&(4 * SECTOR + 100)));
    }

    #[test]
    fn after_a_failed_sync_the_next_one_saves_nothing() {
        let lost = (0..100).any(|seed| {
            let mut content = SimulatedFile::durable(vec![0; SECTOR as usize]);
            content.write(0, vec![7; SECTOR as usize]);
            content.fail_sync(content.mark(), &mut Random::new(seed));
            content.sync(content.mark());
            let readable = content.live()[0] == 7;
            readable && content.crash(&mut Random::new(seed), false).live()[0] == 0
        });
        assert!(lost, "readers may see bytes that are not on the device");
    }
}
