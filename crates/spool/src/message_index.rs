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
use crate::entries::MessageHead;
use crate::recipient_states::{RecipientState, RecipientStates};
use crate::record::RECORD_ALIGN;
use crate::segment::FileLease;

/// The ordinal of a segment's file. It stays the same through all its uses.
pub(crate) type SegmentSlot = u32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SegmentStage {
    Free,
    Ready,
    Open,
    Sealed,
    Broken,
}

pub(crate) struct Segment {
    pub(crate) stage: SegmentStage,
    /// The number of the current use; 0 while free.
    pub(crate) number: u64,
    pub(crate) salt: u64,
    pub(crate) last_number: u64,
    pub(crate) generation: u64,
    pub(crate) size: u64,
    pub(crate) lease: Arc<FileLease>,
    /// The number of live messages in it, and the size of their records.
    pub(crate) live: u32,
    pub(crate) live_bytes: u64,
    /// Numbers of earlier segments whose dead messages would reappear if this segment were freed
    /// first.
    pub(crate) references: BTreeSet<u64>,
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
pub(crate) struct RecordPlace {
    pub(crate) slot: SegmentSlot,
    pub(crate) offset: u64,
    pub(crate) span: u64,
}

/// 16 bytes per message; offset and span are in units of [`RECORD_ALIGN`].
#[derive(Clone, Copy, Default)]
struct MessageCell {
    slot: SegmentSlot,
    offset: u32,
    span: u32,
    /// Recipients without a final state; 0 means the cell is empty.
    waiting: u32,
}

impl MessageCell {
    fn place(self) -> RecordPlace {
        let units = |n: u32| u64::from(n) * RECORD_ALIGN;
        RecordPlace { slot: self.slot, offset: units(self.offset), span: units(self.span) }
    }
}

/// Small, so that the last live messages of an epoch use little memory.
const PAGE_CELLS: usize = 16;

struct CellPage {
    cells: [MessageCell; PAGE_CELLS],
    used: u16,
}

/// See the table above.
#[derive(Default)]
pub(crate) struct MessageIndex {
    pub(crate) segments: BTreeMap<SegmentSlot, Segment>,
    /// Pages by sequence number / [`PAGE_CELLS`].
    pages: HashMap<u64, Box<CellPage>>,
    messages: usize,
    /// The states of live messages that have outcomes.
    partial: HashMap<u64, RecipientStates>,
    /// Live messages whose bodies are in files of their own.
    spilled: HashSet<u64>,
    /// Numbers of broken segments that may hold a copy of a live message, from a failed batch.
    failed_copies: HashMap<u64, Vec<u64>>,
    /// The slot of the next new segment file, if no file has a higher one.
    next_slot: SegmentSlot,
    /// Dead messages whose body files are to be removed.
    pub(crate) dead_bodies: Vec<u64>,
}

impl MessageIndex {
    pub(crate) fn messages(&self) -> usize {
        self.messages
    }

    /// A slot that no file has, or had since the start.
    pub(crate) fn new_slot(&mut self) -> SegmentSlot {
        let above = self.segments.keys().max().map_or(0, |slot| slot + 1);
        let slot = above.max(self.next_slot);
        self.next_slot = slot + 1;
        slot
    }

    /// Records that a failed batch held a copy of the message: its outcomes must refer to that use
    /// too.
    pub(crate) fn note_failed_copy(&mut self, sequence: u64, number: u64) {
        self.failed_copies.entry(sequence).or_default().push(number);
    }

    /// The lowest sequence number of a live message.
    pub(crate) fn first_sequence(&self) -> Option<u64> {
        let (number, page) = self.pages.iter().min_by_key(|(number, _)| **number)?;
        let cells = page.cells.iter().zip(number * PAGE_CELLS as u64..);
        cells.filter(|(cell, _)| cell.waiting > 0).map(|(_, sequence)| sequence).next()
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

    fn cell(&self, sequence: u64) -> Option<MessageCell> {
        let page = self.pages.get(&(sequence / PAGE_CELLS as u64))?;
        Some(page.cells[sequence as usize % PAGE_CELLS]).filter(|cell| cell.waiting > 0)
    }

    pub(crate) fn place(&self, sequence: u64) -> Option<RecordPlace> {
        self.cell(sequence).map(MessageCell::place)
    }

    /// The outcomes recorded so far for a live message.
    pub(crate) fn states(&self, sequence: u64) -> Vec<(u32, RecipientState)> {
        self.partial.get(&sequence).map_or_else(Vec::new, RecipientStates::listed)
    }

    /// The segment at a slot that is known to be in use.
    pub(crate) fn segment(&mut self, slot: SegmentSlot) -> &mut Segment {
        self.segments.get_mut(&slot).expect("a segment in use is in the table")
    }

    /// Adds a message that became durable at `place`, unless it has no pending recipients.
    pub(crate) fn insert(&mut self, head: &MessageHead, place: RecordPlace) {
        let (sequence, states) = (head.sequence, &head.states);
        let done = states.iter().filter(|(_, state)| state.is_final()).count();
        let waiting = head.envelope.recipients.len().saturating_sub(done) as u32;
        if waiting == 0 || states.iter().any(|(_, state)| *state == RecipientState::SetAside) {
            return;
        }
        if self.cell(sequence).is_some() {
            return self.relocate(sequence, place);
        }
        self.set_cell(sequence, place, waiting);
        self.messages += 1;
        self.add_live(place);
        if head.spilled.is_some() {
            self.spilled.insert(sequence);
        }
        if !states.is_empty() {
            self.partial.insert(sequence, RecipientStates::from(states.clone()));
        }
    }

    /// Replaces the position of a live message by that of a durable copy.
    pub(crate) fn relocate(&mut self, sequence: u64, place: RecordPlace) {
        let Some(cell) = self.cell(sequence) else { return };
        let old = self.remove_live(cell.place());
        self.add_reference(place.slot, old);
        for failed_copy in self.failed_copies.get(&sequence).cloned().unwrap_or_default() {
            self.add_reference(place.slot, failed_copy);
        }
        self.set_cell(sequence, place, cell.waiting);
        self.add_live(place);
    }

    /// Applies outcomes that became durable in the segment at `slot`. Returns whether the message
    /// is dead now.
    pub(crate) fn apply_outcome(&mut self, sequence: u64, newer: &[(u32, RecipientState)], slot: SegmentSlot) -> bool {
        let Some(cell) = self.cell(sequence) else { return false };
        let holder = self.segment(cell.slot).number;
        self.add_reference(slot, holder);
        for failed_copy in self.failed_copies.get(&sequence).cloned().unwrap_or_default() {
            self.add_reference(slot, failed_copy);
        }
        let finished = self.partial.entry(sequence).or_default().merge(newer.iter().copied());
        let set_aside = newer.iter().any(|(_, state)| *state == RecipientState::SetAside);
        if finished < cell.waiting && !set_aside {
            self.set_cell(sequence, cell.place(), cell.waiting - finished);
            return false;
        }
        self.partial.remove(&sequence);
        self.clear_cell(sequence);
        self.remove_live(cell.place());
        self.failed_copies.remove(&sequence);
        if self.spilled.remove(&sequence) {
            self.dead_bodies.push(sequence);
        }
        true
    }

    fn set_cell(&mut self, sequence: u64, place: RecordPlace, waiting: u32) {
        let units = |bytes: u64| u32::try_from(bytes / RECORD_ALIGN).expect("a segment is smaller than 32 GiB");
        let cell = MessageCell { slot: place.slot, offset: units(place.offset), span: units(place.span), waiting };
        let fresh = || Box::new(CellPage { cells: [MessageCell::default(); PAGE_CELLS], used: 0 });
        let page = self.pages.entry(sequence / PAGE_CELLS as u64).or_insert_with(fresh);
        let old = std::mem::replace(&mut page.cells[sequence as usize % PAGE_CELLS], cell);
        page.used += u16::from(old.waiting == 0);
    }

    fn clear_cell(&mut self, sequence: u64) {
        let number = sequence / PAGE_CELLS as u64;
        let page = self.pages.get_mut(&number).expect("the page of a live message exists");
        page.cells[sequence as usize % PAGE_CELLS] = MessageCell::default();
        page.used -= 1;
        self.messages -= 1;
        if page.used == 0 {
            self.pages.remove(&number);
        }
    }

    fn add_live(&mut self, place: RecordPlace) {
        let segment = self.segment(place.slot);
        segment.live += 1;
        segment.live_bytes += place.span;
    }

    /// Returns the number of the segment that held the record.
    fn remove_live(&mut self, place: RecordPlace) -> u64 {
        let segment = self.segment(place.slot);
        segment.live -= 1;
        segment.live_bytes -= place.span;
        segment.number
    }

    /// Records that the segment at `slot` must not be freed before the use `number` of another one.
    pub(crate) fn add_reference(&mut self, slot: SegmentSlot, number: u64) {
        let segment = self.segment(slot);
        if segment.number != number {
            segment.references.insert(number);
        }
    }

    /// The first segment that may be freed now.
    pub(crate) fn next_freeable(&self) -> Option<SegmentSlot> {
        let used: BTreeSet<u64> = self.segments.values().map(|segment| segment.number).collect();
        let may_go = |(_, segment): &(&SegmentSlot, &Segment)| {
            matches!(segment.stage, SegmentStage::Sealed | SegmentStage::Broken)
                && segment.live == 0
                && !segment.pinned
                && Arc::strong_count(&segment.lease) == 1
                && segment.references.intersection(&used).next().is_none()
        };
        self.segments.iter().filter(may_go).min_by_key(|(_, segment)| segment.number).map(|(slot, _)| *slot)
    }

    /// The sealed segments of which at most a quarter is live, the smallest live part first. The
    /// newest segments are skipped, because their messages are likely to be delivered soon.
    pub(crate) fn mostly_dead(&self) -> Vec<SegmentSlot> {
        const NEWEST_SKIPPED: u64 = 4;
        let newest = self.segments.values().map(|segment| segment.number).max().unwrap_or(0);
        let candidate = |(_, segment): &(&SegmentSlot, &Segment)| {
            segment.stage == SegmentStage::Sealed
                && segment.live > 0
                && !segment.pinned
                && segment.number + NEWEST_SKIPPED <= newest
                && segment.live_bytes <= segment.size / 4
        };
        let mut found: Vec<_> = self.segments.iter().filter(candidate).collect();
        found.sort_unstable_by_key(|(_, segment)| segment.live_bytes);
        found.into_iter().map(|(slot, _)| *slot).collect()
    }

    /// The oldest segment with live messages, if many dead segments wait for it to be freed.
    pub(crate) fn oldest_blocking(&self) -> Option<SegmentSlot> {
        const BLOCKED_SEGMENTS_MIN: usize = 8;
        let is_settled = |segment: &&Segment| {
            matches!(segment.stage, SegmentStage::Sealed | SegmentStage::Broken) && !segment.pinned
        };
        let dead = self.segments.values().filter(is_settled).filter(|segment| segment.live == 0).count();
        let alive = self.segments.iter().filter(|(_, segment)| is_settled(segment) && segment.live > 0);
        alive.min_by_key(|(_, segment)| segment.number).map(|(slot, _)| *slot).filter(|_| dead >= BLOCKED_SEGMENTS_MIN)
    }

    /// Whether the death of a message in this segment may have created work for maintenance.
    pub(crate) fn may_need_maintenance(&self, slot: SegmentSlot) -> bool {
        let waning = |segment: &Segment| match segment.stage {
            SegmentStage::Sealed => segment.live_bytes <= segment.size / 4,
            SegmentStage::Broken => segment.live == 0,
            _ => false,
        };
        self.segments.get(&slot).is_some_and(waning)
    }

    /// The live messages in a segment, by offset.
    pub(crate) fn live_in_segment(&self, slot: SegmentSlot) -> Vec<(u64, RecordPlace)> {
        let mut found = Vec::new();
        for (number, page) in &self.pages {
            let first = number * PAGE_CELLS as u64;
            let here = page.cells.iter().zip(first..).filter(|(cell, _)| cell.waiting > 0 && cell.slot == slot);
            found.extend(here.map(|(cell, sequence)| (sequence, cell.place())));
        }
        found.sort_unstable_by_key(|(_, place)| place.offset);
        found
    }

    pub(crate) fn count(&self, stage: SegmentStage) -> usize {
        self.segments.values().filter(|segment| segment.stage == stage).count()
    }
}

#[cfg(test)]
pub(crate) mod tests;
