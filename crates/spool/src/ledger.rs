//! The index of live messages in a lane, and the table of its segments.
//!
//! | segment is | it becomes | when |
//! |---|---|---|
//! | free | ready | maintenance has written and synced a header with the next number |
//! | ready | open | the writer needs space |
//! | open | sealed | the next batch does not fit |
//! | open | broken | writing or syncing it failed; it is never written again |
//! | sealed | free | nothing in it is live or leased, no use that it refers to still exists, and a header that says so is synced |
//! | broken | removed | the same, but its file is deleted, because it is not written again |
//!
//! A segment *refers* to each earlier one that holds a message of which it has an outcome or a
//! later copy. Numbers only grow and references only go back. A long-lived message in an old
//! segment can therefore block later dead segments; if there are many, it is copied forward.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use crate::disk::DiskFile;
use crate::entry::MessageHead;
use crate::record::RECORD_ALIGN;
use crate::segment::Lease;
use crate::states::{State, States};

/// The ordinal of a segment's file. It stays the same through all its uses.
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
    /// The number of the current use; 0 while free.
    pub(crate) number: u64,
    pub(crate) salt: u64,
    pub(crate) last_number: u64,
    pub(crate) generation: u64,
    pub(crate) size: u64,
    pub(crate) lease: Arc<Lease>,
    /// The number of live messages in it, and the size of their records.
    pub(crate) live: u32,
    pub(crate) live_bytes: u64,
    /// Numbers of earlier segments whose dead messages would reappear if this segment were freed
    /// first.
    pub(crate) refers: BTreeSet<u64>,
    /// Part of it could not be read: it is kept for the operator.
    pub(crate) pinned: bool,
}

impl Segment {
    pub(crate) fn file(&self) -> &Arc<dyn DiskFile> {
        &self.lease.0
    }
}

/// The position of a message's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) slot: Slot,
    pub(crate) offset: u64,
    pub(crate) span: u64,
}

/// 16 bytes per message; offset and span are in units of [`RECORD_ALIGN`].
#[derive(Clone, Copy, Default)]
struct Cell {
    slot: Slot,
    offset: u32,
    span: u32,
    /// Recipients without a final state; 0 means the cell is empty.
    waiting: u32,
}

impl Cell {
    fn place(self) -> Place {
        let units = |n: u32| u64::from(n) * RECORD_ALIGN;
        Place { slot: self.slot, offset: units(self.offset), span: units(self.span) }
    }
}

/// Small, so that the last live messages of an epoch use little memory.
const PAGE_CELLS: usize = 16;

struct Page {
    cells: [Cell; PAGE_CELLS],
    used: u16,
}

/// See the table above.
#[derive(Default)]
pub(crate) struct Ledger {
    pub(crate) segments: BTreeMap<Slot, Segment>,
    /// Pages by sequence number / [`PAGE_CELLS`].
    pages: HashMap<u64, Box<Page>>,
    messages: usize,
    /// The states of live messages that have outcomes.
    partial: HashMap<u64, States>,
    /// Live messages whose bodies are in files of their own.
    spilled: HashSet<u64>,
    /// Numbers of broken segments that may hold a copy of a live message, from a failed batch.
    ghosts: HashMap<u64, Vec<u64>>,
    /// The slot of the next new segment file, if no file has a higher one.
    next_slot: Slot,
    /// Dead messages whose body files are to be removed.
    pub(crate) litter: Vec<u64>,
}

impl Ledger {
    pub(crate) fn messages(&self) -> usize {
        self.messages
    }

    /// A slot that no file has, or had since the start.
    pub(crate) fn new_slot(&mut self) -> Slot {
        let above = self.segments.keys().max().map_or(0, |slot| slot + 1);
        let slot = above.max(self.next_slot);
        self.next_slot = slot + 1;
        slot
    }

    /// Records that a failed batch held a copy of the message: its outcomes must refer to that use
    /// too.
    pub(crate) fn haunt(&mut self, sequence: u64, number: u64) {
        self.ghosts.entry(sequence).or_default().push(number);
    }

    /// The sequence numbers of all live messages, in no order.
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

    /// The outcomes recorded so far for a live message.
    pub(crate) fn states(&self, sequence: u64) -> Vec<(u32, State)> {
        self.partial.get(&sequence).map_or_else(Vec::new, States::listed)
    }

    /// The segment at a slot that is known to be in use.
    pub(crate) fn segment(&mut self, slot: Slot) -> &mut Segment {
        self.segments.get_mut(&slot).expect("a segment in use is in the table")
    }

    /// Adds a message that became durable at `place`, unless it has no pending recipients.
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

    /// Replaces the position of a live message by that of a durable copy.
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

    /// Applies outcomes that became durable in the segment at `slot`. Returns whether the message
    /// is dead now.
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
        let units = |bytes: u64| u32::try_from(bytes / RECORD_ALIGN).expect("a segment is smaller than 32 GiB");
        let cell = Cell { slot: place.slot, offset: units(place.offset), span: units(place.span), waiting };
        let fresh = || Box::new(Page { cells: [Cell::default(); PAGE_CELLS], used: 0 });
        let page = self.pages.entry(sequence / PAGE_CELLS as u64).or_insert_with(fresh);
        let old = std::mem::replace(&mut page.cells[sequence as usize % PAGE_CELLS], cell);
        page.used += u16::from(old.waiting == 0);
    }

    fn clear(&mut self, sequence: u64) {
        let number = sequence / PAGE_CELLS as u64;
        let page = self.pages.get_mut(&number).expect("the page of a live message exists");
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

    /// Returns the number of the segment that held the record.
    fn leave(&mut self, place: Place) -> u64 {
        let segment = self.segment(place.slot);
        segment.live -= 1;
        segment.live_bytes -= place.span;
        segment.number
    }

    /// Records that the segment at `slot` must not be freed before the use `number` of another one.
    pub(crate) fn refer(&mut self, slot: Slot, number: u64) {
        let segment = self.segment(slot);
        if segment.number != number {
            segment.refers.insert(number);
        }
    }

    /// The first segment that may be freed now.
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

    /// The sealed segments of which at most a quarter is live, the smallest live part first. The
    /// newest segments are skipped, because their messages are likely to be delivered soon.
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

    /// The oldest segment with live messages, if many dead segments wait for it to be freed.
    pub(crate) fn in_the_way(&self) -> Option<Slot> {
        const CROWD: usize = 8;
        let is_settled = |segment: &&Segment| matches!(segment.stage, Stage::Sealed | Stage::Broken) && !segment.pinned;
        let dead = self.segments.values().filter(is_settled).filter(|segment| segment.live == 0).count();
        let alive = self.segments.iter().filter(|(_, segment)| is_settled(segment) && segment.live > 0);
        alive.min_by_key(|(_, segment)| segment.number).map(|(slot, _)| *slot).filter(|_| dead >= CROWD)
    }

    /// Whether the death of a message in this segment may have created work for maintenance.
    pub(crate) fn is_waning(&self, slot: Slot) -> bool {
        let waning = |segment: &Segment| match segment.stage {
            Stage::Sealed => segment.live_bytes <= segment.size / 4,
            Stage::Broken => segment.live == 0,
            _ => false,
        };
        self.segments.get(&slot).is_some_and(waning)
    }

    /// The live messages in a segment, by offset.
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
