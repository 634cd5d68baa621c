//! A hash table whose records lie one after another in a single buffer: a lookup touches two places
//! in memory, and no record needs an allocation of its own.
//!
//! A slot holds the tag of its key (31 bits of the hash), a mark, and the offset of its record in
//! the arena. Collisions use linear probing, and a reader looks into the arena only if the tags are
//! equal. The caller defines the format of records.
//!
//! Nothing here locks. A shard of a table is one [`Slots`] and one [`Arena`] behind the caller's
//! lock.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// An unused slot.
const FREE: u64 = u64::MAX;
/// The mark bit of a slot.
const MARK: u64 = 1 << 32;
const TAG_BITS: u32 = 31;
const SLOTS_MIN: usize = 8;
/// With fewer unused octets than this the arena is not compacted.
const GARBAGE_MIN: usize = 1024;

/// In place of an offset: no record.
pub const NO_RECORD: u32 = u32::MAX;

/// The slots of the hash table.
#[derive(Debug, Default)]
pub struct Slots {
    slots: Vec<AtomicU64>,
    /// Slots in use, one per key.
    used: usize,
}

/// The buffer of records.
#[derive(Debug, Default)]
pub struct Arena {
    octets: Vec<u8>,
    /// Octets of removed records.
    garbage: usize,
}

/// The upper bits of the low half of a key's hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag(u32);

impl Tag {
    /// The tag of a key with this hash.
    pub fn of(hash: u64) -> Self {
        Tag(hash as u32 >> (u32::BITS - TAG_BITS))
    }

    /// The slot where probing for this tag starts.
    fn home_slot(self, slots: usize) -> usize {
        ((u64::from(self.0) * slots as u64) >> TAG_BITS) as usize
    }
}

impl Slots {
    /// Slots for this number of keys.
    pub fn with_capacity(keys: usize) -> Self {
        Slots { slots: free_slots((keys * 3 / 2).max(SLOTS_MIN)), used: 0 }
    }

    /// The number of keys.
    pub fn key_count(&self) -> usize {
        self.used
    }

    /// The number of slots, free ones included.
    pub fn slot_count(&self) -> usize {
        self.slots.len()
    }

    /// Finds the slot that has this tag and for whose offset `is_at` is true.
    pub fn find(&self, tag: Tag, is_at: impl Fn(u32) -> bool) -> Option<usize> {
        if self.slots.is_empty() {
            return None;
        }
        let mut at = tag.home_slot(self.slots.len());
        loop {
            match self.slots[at].load(Relaxed) {
                FREE => return None,
                slot if tag_of(slot) == tag && is_at(place_of(slot)) => return Some(at),
                _ => at = next_slot(at, self.slots.len()),
            }
        }
    }

    /// The tag and offset in a slot, unless it is free.
    pub fn at(&self, slot: usize) -> Option<(Tag, u32)> {
        let slot = self.slots[slot].load(Relaxed);
        (slot != FREE).then(|| (tag_of(slot), place_of(slot)))
    }

    /// Marks a used slot. Safe while others read; does not write if the mark is already set.
    pub fn mark(&self, slot: usize) {
        if self.slots[slot].load(Relaxed) & MARK == 0 {
            self.slots[slot].fetch_or(MARK, Relaxed);
        }
    }

    /// Clears the mark of a used slot. Returns whether it was set.
    pub fn clear_mark(&mut self, slot: usize) -> bool {
        let slot = self.slots[slot].get_mut();
        let was_marked = *slot & MARK != 0;
        *slot &= !MARK;
        was_marked
    }

    /// Changes the offset in a used slot.
    pub fn set_place(&mut self, slot: usize, place: u32) {
        let slot = self.slots[slot].get_mut();
        *slot = *slot >> u32::BITS << u32::BITS | u64::from(place);
    }

    /// Adds a slot for a new key and returns its number.
    pub fn insert(&mut self, tag: Tag, place: u32) -> usize {
        if (self.used + 1) * 4 > self.slots.len() * 3 {
            let slots = (self.slots.len() * 3 / 2).max(SLOTS_MIN);
            let before = std::mem::replace(&mut self.slots, free_slots(slots));
            before.into_iter().map(AtomicU64::into_inner).filter(|&slot| slot != FREE).for_each(|slot| {
                self.set(slot);
            });
        }
        self.used += 1;
        self.set(u64::from(tag.0) << (u64::BITS - TAG_BITS) | u64::from(place))
    }

    fn set(&mut self, slot: u64) -> usize {
        let mut at = tag_of(slot).home_slot(self.slots.len());
        while *self.slots[at].get_mut() != FREE {
            at = next_slot(at, self.slots.len());
        }
        *self.slots[at].get_mut() = slot;
        at
    }

    /// Frees a slot and moves later slots of its probe sequence up, so that all stay reachable.
    pub fn free(&mut self, slot: usize) {
        let slots = self.slots.len();
        let distance = |from: usize, to: usize| (to + slots - from) % slots;
        let (mut hole, mut at) = (slot, next_slot(slot, slots));
        loop {
            let moving = *self.slots[at].get_mut();
            if moving == FREE {
                break;
            }
            if distance(tag_of(moving).home_slot(slots), at) >= distance(hole, at) {
                *self.slots[hole].get_mut() = moving;
                hole = at;
            }
            at = next_slot(at, slots);
        }
        *self.slots[hole].get_mut() = FREE;
        self.used -= 1;
    }

    /// Allocated memory in octets.
    pub fn octets(&self) -> usize {
        self.slots.capacity() * size_of::<AtomicU64>()
    }
}

impl Arena {
    /// An arena with capacity for this number of octets.
    pub fn with_capacity(octets: usize) -> Self {
        Arena { octets: Vec::with_capacity(octets), garbage: 0 }
    }

    /// Octets in the buffer, including removed records.
    pub fn octet_count(&self) -> usize {
        self.octets.len()
    }

    /// Octets of live records.
    pub fn in_use(&self) -> usize {
        self.octets.len() - self.garbage
    }

    /// The buffer from this offset on.
    pub fn octets_from(&self, place: u32) -> &[u8] {
        &self.octets[place as usize..]
    }

    /// The buffer from this offset on, mutable.
    pub fn octets_from_mut(&mut self, place: u32) -> &mut [u8] {
        &mut self.octets[place as usize..]
    }

    /// Appends a record of this length and returns its offset. Returns None, and writes nothing, if
    /// the offset does not fit in 32 bits.
    pub fn append(&mut self, octets: usize, write: impl FnOnce(&mut Vec<u8>)) -> Option<u32> {
        let place = u32::try_from(self.octets.len()).ok().filter(|&place| place != NO_RECORD)?;
        if self.octets.capacity() - self.octets.len() < octets {
            // Grow by a sixteenth. Doubling, as a vector does, would leave half of the memory
            // unused.
            self.octets.reserve_exact(octets.max(self.octets.len() / 16));
        }
        write(&mut self.octets);
        Some(place)
    }

    /// Counts octets of a removed record.
    pub fn add_garbage(&mut self, octets: usize) {
        self.garbage += octets;
    }

    /// Whether at least an eighth of the buffer is unused, so that compaction pays.
    pub fn needs_compaction(&self) -> bool {
        self.garbage >= GARBAGE_MIN.max(self.octets.len() / 8)
    }

    /// Allocated memory in octets.
    pub fn capacity(&self) -> usize {
        self.octets.capacity()
    }
}

fn free_slots(count: usize) -> Vec<AtomicU64> {
    (0..count).map(|_| AtomicU64::new(FREE)).collect()
}

fn next_slot(slot: usize, slots: usize) -> usize {
    if slot + 1 == slots { 0 } else { slot + 1 }
}

fn tag_of(slot: u64) -> Tag {
    Tag((slot >> (u64::BITS - TAG_BITS)) as u32)
}

fn place_of(slot: u64) -> u32 {
    slot as u32
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Few tags, so that keys collide, some of them in the last slots, where probing wraps
        /// around.
        #[test]
        fn what_was_inserted_is_found_marked_or_not_until_it_is_freed(
            steps in proptest::collection::vec((0u32..40, prop_oneof![Just(0u32), Just(1), Just(u32::MAX >> 1)], 0..4), 0..300),
        ) {
            let mut slots = Slots::default();
            let mut expected: BTreeMap<u32, (Tag, bool)> = BTreeMap::new();
            for (place, tag, step) in steps {
                let slot = expected.get(&place).map(|&(tag, _)| slots.find(tag, |at| at == place).unwrap());
                match (slot, step) {
                    (None, _) => {
                        slots.insert(Tag(tag), place);
                        expected.insert(place, (Tag(tag), false));
                    }
                    (Some(slot), 0) => {
                        slots.free(slot);
                        expected.remove(&place);
                    }
                    (Some(slot), 1) => {
                        slots.mark(slot);
                        expected.get_mut(&place).unwrap().1 = true;
                    }
                    (Some(slot), 2) => {
                        let was_marked = std::mem::take(&mut expected.get_mut(&place).unwrap().1);
                        prop_assert_eq!(slots.clear_mark(slot), was_marked);
                    }
                    (Some(slot), _) => slots.set_place(slot, place),
                }
            }
            prop_assert_eq!(slots.key_count(), expected.len());
            prop_assert_eq!((0..slots.slot_count()).filter(|&slot| slots.at(slot).is_some()).count(), expected.len());
            for (place, (tag, is_marked)) in expected {
                let slot = slots.find(tag, |at| at == place).unwrap();
                prop_assert_eq!(slots.at(slot), Some((tag, place)));
                prop_assert_eq!(slots.clear_mark(slot), is_marked);
            }
        }
    }

    #[test]
    fn an_arena_needs_compaction_when_an_eighth_of_it_is_garbage() {
        let mut arena = Arena::with_capacity(16 * GARBAGE_MIN);
        assert_eq!(arena.append(16 * GARBAGE_MIN, |octets| octets.resize(16 * GARBAGE_MIN, 0)), Some(0));
        arena.add_garbage(2 * GARBAGE_MIN - 1);
        assert!(!arena.needs_compaction());
        arena.add_garbage(1);
        assert!(arena.needs_compaction());
        assert_eq!((arena.octet_count(), arena.in_use()), (16 * GARBAGE_MIN, 14 * GARBAGE_MIN));
    }
}
