//! What of a lane is alive, and where: the index of messages and the table of segments.
//!
//! | segment is | it becomes | when |
//! |---|---|---|
//! | free | ready | the keeper has written and synced a header with the next number |
//! | ready | open | the writer needs room |
//! | open | sealed | the next batch does not fit |
//! | open | broken | a write or a sync of it failed; it is never written again |
//! | sealed | free | nothing in it is alive or leased, no use that it refers to is still there, and a header that says so is synced |
//! | broken | gone | the same, but its file is removed, since it is not written any more |
//!
//! A segment *refers* to each earlier one that holds a message whose outcome, or whose later copy, is here.
//! Numbers only grow and references only go back. What lives long in an old segment may hold up the dead ones
//! behind it; when they are many, it is copied forward out of their way.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use crate::disk::DiskFile;
use crate::entry::MessageHead;
use crate::record::RECORD_ALIGN;
use crate::segment::Lease;
use crate::states::{State, States};

/// A segment's place in the table: the ordinal of its file. It stays the same through all its uses.
pub(crate) type Slot = u32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Free,
    Ready,
    Open,
    Sealed,
    Broken,
}

pub(crate) struct Segment {
    pub(crate) stage: Stage,
    /// The number of the present use; 0 while free.
    pub(crate) number: u64,
    pub(crate) salt: u64,
    pub(crate) last_number: u64,
    pub(crate) generation: u64,
    pub(crate) size: u64,
    pub(crate) lease: Arc<Lease>,
    /// Messages in it that are alive, and the bytes of their records.
    pub(crate) live: u32,
    pub(crate) live_bytes: u64,
    /// Numbers of earlier segments whose dead messages would come back if this one went first.
    pub(crate) refers: BTreeSet<u64>,
    /// Some of it could not be read: it stays for the operator.
    pub(crate) pinned: bool,
}

impl Segment {
    pub(crate) fn file(&self) -> &Arc<dyn DiskFile> {
        &self.lease.0
    }
}

/// Where a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) slot: Slot,
    pub(crate) offset: u64,
    pub(crate) span: u64,
}

/// 16 bytes a message; offset and span are counted in units of [`RECORD_ALIGN`].
#[derive(Clone, Copy, Default)]
struct Cell {
    slot: Slot,
    offset: u32,
    span: u32,
    /// Recipients that are not final; 0 is an empty cell.
    waiting: u32,
}

impl Cell {
    fn place(self) -> Place {
        let units = |n: u32| u64::from(n) * RECORD_ALIGN;
        Place { slot: self.slot, offset: units(self.offset), span: units(self.span) }
    }
}

/// Few, so that lone survivors cost little.
const PAGE_CELLS: usize = 16;

struct Page {
    cells: [Cell; PAGE_CELLS],
    used: u16,
}

/// See the table above.
#[derive(Default)]
pub(crate) struct Ledger {
    pub(crate) segments: BTreeMap<Slot, Segment>,
    /// Cells by sequence number / [`PAGE_CELLS`].
    pages: HashMap<u64, Box<Page>>,
    messages: usize,
    /// States of messages of which an outcome is known and which are alive all the same.
    partial: HashMap<u64, States>,
    /// Live messages whose bodies have files of their own.
    spilled: HashSet<u64>,
    /// Numbers of broken segments that may hold a copy of a live message, from a batch that failed.
    ghosts: HashMap<u64, Vec<u64>>,
    /// The next segment file that is made gets this slot, if no file has a higher one.
    next_slot: Slot,
    /// Dead messages whose bodies' files are to be taken away.
    pub(crate) litter: Vec<u64>,
}

impl Ledger {
    pub(crate) fn messages(&self) -> usize {
        self.messages
    }

    /// A slot that no file has, and none had since the start.
    pub(crate) fn new_slot(&mut self) -> Slot {
        let above = self.segments.keys().max().map_or(0, |slot| slot + 1);
        let slot = above.max(self.next_slot);
        self.next_slot = slot + 1;
        slot
    }

    /// Notes that a batch failed which held a copy of the message: outcomes of it speak of that use too.
    pub(crate) fn haunt(&mut self, sequence: u64, number: u64) {
        self.ghosts.entry(sequence).or_default().push(number);
    }

    /// Every live message's sequence number, in no order.
    pub(crate) fn sequences(&self) -> Vec<u64> {
        let mut alive = Vec::with_capacity(self.messages);
        for (number, page) in &self.pages {
            let first = number * PAGE_CELLS as u64;
            let filled = page.cells.iter().zip(first..).filter(|(cell, _)| cell.waiting > 0);
            alive.extend(filled.map(|(_, sequence)| sequence));
        }
        alive
    }

    fn cell(&self, sequence: u64) -> Option<Cell> {
        let page = self.pages.get(&(sequence / PAGE_CELLS as u64))?;
        Some(page.cells[sequence as usize % PAGE_CELLS]).filter(|cell| cell.waiting > 0)
    }

    pub(crate) fn place(&self, sequence: u64) -> Option<Place> {
        self.cell(sequence).map(Cell::place)
    }

    /// What outcomes have said of a live message so far.
    pub(crate) fn states(&self, sequence: u64) -> Vec<(u32, State)> {
        self.partial.get(&sequence).map_or_else(Vec::new, States::listed)
    }

    /// The segment at a slot that a place or a task names.
    pub(crate) fn segment(&mut self, slot: Slot) -> &mut Segment {
        self.segments.get_mut(&slot).expect("a segment in use is not removed")
    }

    /// Enters a message that became durable at `place`, unless it is done with.
    pub(crate) fn insert(&mut self, head: &MessageHead, place: Place) {
        let (sequence, states) = (head.sequence, &head.states);
        let done = states.iter().filter(|(_, state)| state.is_final()).count();
        let waiting = head.envelope.recipients.len().saturating_sub(done) as u32;
        if waiting == 0 || states.iter().any(|(_, state)| *state == State::SetAside) {
            return;
        }
        if self.cell(sequence).is_some() {
            return self.relocate(sequence, place);
        }
        self.put(sequence, place, waiting);
        self.messages += 1;
        self.enter(place);
        if head.spilled.is_some() {
            self.spilled.insert(sequence);
        }
        if !states.is_empty() {
            self.partial.insert(sequence, States::from(states.clone()));
        }
    }

    /// A copy of a live message became durable at `place`: it is what counts from now on.
    pub(crate) fn relocate(&mut self, sequence: u64, place: Place) {
        let Some(cell) = self.cell(sequence) else { return };
        let old = self.leave(cell.place());
        self.refer(place.slot, old);
        for ghost in self.ghosts.get(&sequence).cloned().unwrap_or_default() {
            self.refer(place.slot, ghost);
        }
        self.put(sequence, place, cell.waiting);
        self.enter(place);
    }

    /// Takes in outcomes that became durable in the segment at `slot`. True if the message is dead now.
    pub(crate) fn settle(&mut self, sequence: u64, newer: &[(u32, State)], slot: Slot) -> bool {
        let Some(cell) = self.cell(sequence) else { return false };
        let holder = self.segment(cell.slot).number;
        self.refer(slot, holder);
        for ghost in self.ghosts.get(&sequence).cloned().unwrap_or_default() {
            self.refer(slot, ghost);
        }
        let finished = self.partial.entry(sequence).or_default().merge(newer.iter().copied());
        let set_aside = newer.iter().any(|(_, state)| *state == State::SetAside);
        if finished < cell.waiting && !set_aside {
            self.put(sequence, cell.place(), cell.waiting - finished);
            return false;
        }
        self.partial.remove(&sequence);
        self.clear(sequence);
        self.leave(cell.place());
        self.ghosts.remove(&sequence);
        if self.spilled.remove(&sequence) {
            self.litter.push(sequence);
        }
        true
    }

    fn put(&mut self, sequence: u64, place: Place, waiting: u32) {
        let units = |bytes: u64| u32::try_from(bytes / RECORD_ALIGN).expect("a segment is under 32 GiB");
        let cell = Cell { slot: place.slot, offset: units(place.offset), span: units(place.span), waiting };
        let fresh = || Box::new(Page { cells: [Cell::default(); PAGE_CELLS], used: 0 });
        let page = self.pages.entry(sequence / PAGE_CELLS as u64).or_insert_with(fresh);
        let old = std::mem::replace(&mut page.cells[sequence as usize % PAGE_CELLS], cell);
        page.used += u16::from(old.waiting == 0);
    }

    fn clear(&mut self, sequence: u64) {
        let number = sequence / PAGE_CELLS as u64;
        let page = self.pages.get_mut(&number).expect("the cell was found in this page");
        page.cells[sequence as usize % PAGE_CELLS] = Cell::default();
        page.used -= 1;
        self.messages -= 1;
        if page.used == 0 {
            self.pages.remove(&number);
        }
    }

    fn enter(&mut self, place: Place) {
        let segment = self.segment(place.slot);
        segment.live += 1;
        segment.live_bytes += place.span;
    }

    /// Gives the number of the segment that was left.
    fn leave(&mut self, place: Place) -> u64 {
        let segment = self.segment(place.slot);
        segment.live -= 1;
        segment.live_bytes -= place.span;
        segment.number
    }

    /// Notes that the segment at `slot` must not go before the use `number` of another has gone.
    pub(crate) fn refer(&mut self, slot: Slot, number: u64) {
        let segment = self.segment(slot);
        if segment.number != number {
            segment.refers.insert(number);
        }
    }

    /// The first segment that may become free now.
    pub(crate) fn retirable(&self) -> Option<Slot> {
        let used: BTreeSet<u64> = self.segments.values().map(|segment| segment.number).collect();
        let may_go = |(_, segment): &(&Slot, &Segment)| {
            matches!(segment.stage, Stage::Sealed | Stage::Broken)
                && segment.live == 0
                && !segment.pinned
                && Arc::strong_count(&segment.lease) == 1
                && segment.refers.intersection(&used).next().is_none()
        };
        self.segments.iter().filter(may_go).min_by_key(|(_, segment)| segment.number).map(|(slot, _)| *slot)
    }

    /// The sealed segments whose living share is at most a quarter and not nothing, the smallest share first. The
    /// latest ones are let be: what lives in them is likely on its way out.
    pub(crate) fn mostly_dead(&self) -> Vec<Slot> {
        const LATEST: u64 = 4;
        let newest = self.segments.values().map(|segment| segment.number).max().unwrap_or(0);
        let candidate = |(_, segment): &(&Slot, &Segment)| {
            segment.stage == Stage::Sealed
                && segment.live > 0
                && !segment.pinned
                && segment.number + LATEST <= newest
                && segment.live_bytes <= segment.size / 4
        };
        let mut found: Vec<_> = self.segments.iter().filter(candidate).collect();
        found.sort_unstable_by_key(|(_, segment)| segment.live_bytes);
        found.into_iter().map(|(slot, _)| *slot).collect()
    }

    /// The oldest segment with survivors, if a crowd of dead ones cannot go before it.
    pub(crate) fn in_the_way(&self) -> Option<Slot> {
        const CROWD: usize = 8;
        let is_settled = |segment: &&Segment| matches!(segment.stage, Stage::Sealed | Stage::Broken) && !segment.pinned;
        let dead = self.segments.values().filter(is_settled).filter(|segment| segment.live == 0).count();
        let alive = self.segments.iter().filter(|(_, segment)| is_settled(segment) && segment.live > 0);
        alive.min_by_key(|(_, segment)| segment.number).map(|(slot, _)| *slot).filter(|_| dead >= CROWD)
    }

    /// Whether the keeper may have work with the segment at a slot since something in it died.
    pub(crate) fn is_waning(&self, slot: Slot) -> bool {
        let waning = |segment: &Segment| match segment.stage {
            Stage::Sealed => segment.live_bytes <= segment.size / 4,
            Stage::Broken => segment.live == 0,
            _ => false,
        };
        self.segments.get(&slot).is_some_and(waning)
    }

    /// Live messages in a segment.
    pub(crate) fn survivors(&self, slot: Slot) -> Vec<(u64, Place)> {
        let mut found = Vec::new();
        for (number, page) in &self.pages {
            let first = number * PAGE_CELLS as u64;
            let here = page.cells.iter().zip(first..).filter(|(cell, _)| cell.waiting > 0 && cell.slot == slot);
            found.extend(here.map(|(cell, sequence)| (sequence, cell.place())));
        }
        found.sort_unstable_by_key(|(_, place)| place.offset);
        found
    }

    pub(crate) fn count(&self, stage: Stage) -> usize {
        self.segments.values().filter(|segment| segment.stage == stage).count()
    }
}

#[cfg(test)]
mod tests;
