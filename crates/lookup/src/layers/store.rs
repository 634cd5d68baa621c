//! The storage of the cache: shards, each with its own lock. A shard is an [arena](crate::arena) of
//! records with hash slots. A record has these fields:
//!
//! | octets           | field                                                                             |
//! |------------------|-----------------------------------------------------------------------------------|
//! | 8                | time of the answer in nanoseconds since the store was created, signed             |
//! | 4                | length of the key                                                                 |
//! | 4                | number of values, or the mark for NotFound                                        |
//! | 4 for each value | its end in the text                                                               |
//! |                  | the text: the key, then the values                                                |
//!
//! A full shard evicts by the clock algorithm: a hand passes over the slots and evicts entries that
//! are expired or not marked as used since its last pass. It evicts an eighth at a time, so that
//! many insertions share the cost of rebuilding the arena.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::{Duration, Instant};

use parking_lot::RwLock;

use crate::LookupAnswer;
use crate::arena::{Arena, Slots, Tag};

/// Maximum number of shards, a power of two.
const SHARDS_MAX: u64 = 256;
/// Small caches have fewer shards, so that chance does not make them uneven.
const SHARD_ENTRIES_MIN: u64 = 1024;
/// A full shard evicts this part of its entries.
const EVICTED_PART: usize = 8;
/// In place of the number of values: the key was not found.
const NOT_FOUND: u32 = u32::MAX;

pub(super) struct CacheStore {
    shards: Box<[RwLock<Shard>]>,
    shard_entries_max: usize,
    hasher: RandomState,
    created: Instant,
}

#[derive(Default)]
struct Shard {
    slots: Slots,
    arena: Arena,
    /// The next slot of the clock hand.
    hand: usize,
}

/// An entry, valid while its shard is locked.
pub(super) struct CachedEntry<'a> {
    created: Instant,
    record: Record<'a>,
}

/// A parsed record.
struct Record<'a> {
    answered_nanos: i64,
    key_octets: usize,
    /// The number of values, or [`NOT_FOUND`].
    count: u32,
    ends: &'a [[u8; 4]],
    text: &'a [u8],
}

/// A record to write.
struct NewRecord<'a> {
    answered_nanos: i64,
    key: &'a [u8],
    values: Option<&'a [String]>,
}

impl CacheStore {
    /// A store for this number of entries.
    pub(super) fn new(entries_max: u64) -> Self {
        let shards = (entries_max / SHARD_ENTRIES_MIN + 1).next_power_of_two().min(SHARDS_MAX);
        let shard_entries_max = usize::try_from(entries_max.div_ceil(shards)).unwrap_or(usize::MAX).max(1);
        let shards = (0..shards).map(|_| RwLock::default()).collect();
        CacheStore { shards, shard_entries_max, hasher: RandomState::new(), created: Instant::now() }
    }

    /// Calls `make` with the entry of a key, if there is one.
    pub(super) fn read<T>(&self, key: &str, make: impl FnOnce(CachedEntry<'_>) -> Option<T>) -> Option<T> {
        let (shard, tag) = self.locate(key);
        let shard = shard.read();
        let slot = shard.find(tag, key.as_bytes())?;
        shard.slots.mark(slot);
        make(CachedEntry { created: self.created, record: shard.record(slot)? })
    }

    /// Stores or replaces the entry of a key: its values, or None if it was not found.
    pub(super) fn insert(
        &self,
        key: &str,
        values: Option<&[String]>,
        said: Instant,
        is_useful: impl Fn(CachedEntry<'_>) -> bool,
    ) {
        let draft = NewRecord { answered_nanos: nanoseconds(self.created, said), key: key.as_bytes(), values };
        let Some(octets) = draft.octets() else { return };
        let (shard, tag) = self.locate(key);
        let mut shard = shard.write();
        if let Some(slot) = shard.find(tag, draft.key) {
            shard.replace(slot, &draft, octets);
            return;
        }
        while shard.slots.key_count() >= self.shard_entries_max {
            shard.evict(|record| is_useful(CachedEntry { created: self.created, record }));
        }
        if let Some(place) = shard.arena.append(octets, |octets| draft.write(octets)) {
            shard.slots.insert(tag, place);
        }
    }

    /// The number of entries.
    pub(super) fn count(&self) -> usize {
        let count = |shard: &RwLock<Shard>| shard.read().slots.key_count();
        self.shards.iter().map(count).sum()
    }

    /// The shard and tag of a key.
    fn locate(&self, key: &str) -> (&RwLock<Shard>, Tag) {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(key.as_bytes());
        let hash = hasher.finish();
        (&self.shards[(hash >> 32) as usize % self.shards.len()], Tag::of(hash))
    }
}

impl Shard {
    fn find(&self, tag: Tag, key: &[u8]) -> Option<usize> {
        self.slots
            .find(tag, |place| Record::read(self.arena.octets_from(place)).is_some_and(|record| record.key() == key))
    }

    fn record(&self, slot: usize) -> Option<Record<'_>> {
        Record::read(self.arena.octets_from(self.slots.at(slot)?.1))
    }

    /// Replaces the record in a slot, in place if the length is the same.
    fn replace(&mut self, slot: usize, draft: &NewRecord, octets: usize) {
        let Some((_, place)) = self.slots.at(slot) else { return };
        let before = self.record(slot).map_or(0, |record| record.octets());
        if octets == before {
            let mut record = Vec::with_capacity(octets);
            draft.write(&mut record);
            self.arena.octets_from_mut(place)[..octets].copy_from_slice(&record);
        } else if let Some(place) = self.arena.append(octets, |octets| draft.write(octets)) {
            self.slots.set_place(slot, place);
            self.arena.add_garbage(before);
            if self.arena.needs_compaction() {
                self.rebuild(|_| true);
            }
        }
    }

    /// Advances the hand until enough entries are evicted; on its second pass no marks are left.
    fn evict(&mut self, is_useful: impl Fn(Record<'_>) -> bool) {
        let slots = self.slots.slot_count();
        let mut is_gone = vec![false; slots];
        let mut excess = self.slots.key_count() / EVICTED_PART + 1;
        let first = self.hand;
        for slot in (first..first + 2 * slots).map(|slot| slot % slots) {
            if excess == 0 {
                break;
            }
            self.hand = slot + 1;
            let Some(record) = self.record(slot).filter(|_| !is_gone[slot]) else { continue };
            let is_useful = is_useful(record);
            let stays = self.slots.clear_mark(slot) && is_useful;
            if !stays && !is_gone[slot] {
                is_gone[slot] = true;
                excess -= 1;
            }
        }
        self.rebuild(|slot| !is_gone[slot]);
    }

    /// Rebuilds slots and arena with the records of the remaining slots.
    fn rebuild(&mut self, stays: impl Fn(usize) -> bool) {
        // Keep the old capacity for new entries.
        let mut kept = Shard {
            slots: Slots::with_capacity(self.slots.key_count()),
            arena: Arena::with_capacity(self.arena.octet_count()),
            hand: self.hand,
        };
        for slot in (0..self.slots.slot_count()).filter(|&slot| stays(slot)) {
            let Some((tag, place)) = self.slots.at(slot) else { continue };
            let Some(record) = Record::read(self.arena.octets_from(place)) else { continue };
            let octets = record.octets();
            let copied =
                kept.arena.append(octets, |copy| copy.extend_from_slice(&self.arena.octets_from(place)[..octets]));
            let copy = kept.slots.insert(tag, copied.expect("the remaining records fit in the arena"));
            if self.slots.clear_mark(slot) {
                kept.slots.mark(copy);
            }
        }
        *self = kept;
    }
}

impl NewRecord<'_> {
    /// The length of the record, or None if it does not fit in 32 bits.
    fn octets(&self) -> Option<usize> {
        let values = self.values.unwrap_or_default();
        let octets = 8 + 4 + 4 + 4 * values.len() + self.key.len() + values.iter().map(String::len).sum::<usize>();
        u32::try_from(octets).is_ok().then_some(octets)
    }

    fn write(&self, octets: &mut Vec<u8>) {
        let values = self.values.unwrap_or_default();
        octets.extend_from_slice(&self.answered_nanos.to_le_bytes());
        octets.extend_from_slice(&(self.key.len() as u32).to_le_bytes());
        octets.extend_from_slice(&self.values.map_or(NOT_FOUND, |values| values.len() as u32).to_le_bytes());
        let mut end = self.key.len();
        for value in values {
            end += value.len();
            octets.extend_from_slice(&(end as u32).to_le_bytes());
        }
        octets.extend_from_slice(self.key);
        values.iter().for_each(|value| octets.extend_from_slice(value.as_bytes()));
    }
}

impl<'a> Record<'a> {
    /// Parses the record at the beginning of `octets`.
    fn read(octets: &'a [u8]) -> Option<Self> {
        let (said, octets) = octets.split_first_chunk()?;
        let (key_octets, octets) = octets.split_first_chunk()?;
        let (count, octets) = octets.split_first_chunk()?;
        let (key_octets, count) = (u32::from_le_bytes(*key_octets) as usize, u32::from_le_bytes(*count));
        let (ends, text) = octets.split_at_checked(if count == NOT_FOUND { 0 } else { 4 * count as usize })?;
        let ends = ends.as_chunks().0;
        let text_octets = ends.last().map_or(key_octets, |end| u32::from_le_bytes(*end) as usize);
        Some(Record {
            answered_nanos: i64::from_le_bytes(*said),
            key_octets,
            count,
            ends,
            text: text.get(..text_octets)?,
        })
    }

    /// The length of the record.
    fn octets(&self) -> usize {
        8 + 4 + 4 + 4 * self.ends.len() + self.text.len()
    }

    fn key(&self) -> &'a [u8] {
        &self.text[..self.key_octets]
    }

    fn values(&self) -> Vec<String> {
        let mut start = self.key_octets;
        let mut value_until = |end: usize| &self.text[std::mem::replace(&mut start, end)..end];
        let values = self.ends.iter().map(|end| value_until(u32::from_le_bytes(*end) as usize));
        values.map(|value| String::from_utf8_lossy(value).into_owned()).collect()
    }
}

impl CachedEntry<'_> {
    /// The time of the backend's answer.
    pub(super) fn answered_at(&self) -> Instant {
        let apart = Duration::from_nanos(self.record.answered_nanos.unsigned_abs());
        let said = if self.record.answered_nanos < 0 {
            self.created.checked_sub(apart)
        } else {
            self.created.checked_add(apart)
        };
        said.unwrap_or(self.created)
    }

    pub(super) fn is_found(&self) -> bool {
        self.record.count != NOT_FOUND
    }

    pub(super) fn answer(&self) -> LookupAnswer {
        if self.is_found() { LookupAnswer::Found(self.record.values()) } else { LookupAnswer::NotFound }
    }
}

/// The difference in nanoseconds, negative if `to` is earlier.
fn nanoseconds(from: Instant, to: Instant) -> i64 {
    let within = |span: Duration| i64::try_from(span.as_nanos()).unwrap_or(i64::MAX);
    if to < from { -within(from - to) } else { within(to - from) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn insert(store: &CacheStore, key: &str, values: Option<&[String]>) {
        store.insert(key, values, Instant::now(), |_| true);
    }

    fn answer(store: &CacheStore, key: &str) -> Option<LookupAnswer> {
        store.read(key, |kept| Some(kept.answer()))
    }

    #[test]
    fn entries_are_bounded() {
        for entries_max in [0, 1, 100, 5000] {
            let store = CacheStore::new(entries_max);
            (0..3 * entries_max + 3).for_each(|number| insert(&store, &number.to_string(), None));
            let count = store.count() as u64;
            // The size is rounded up per shard.
            assert!(
                count <= entries_max.max(1).next_multiple_of(16) && count > entries_max / 2,
                "{entries_max}: {count}"
            );
        }
    }

    #[test]
    fn used_entries_stay() {
        let store = CacheStore::new(100);
        (0..20).for_each(|number| insert(&store, &format!("dear{number}"), None));
        for number in 0..10_000 {
            insert(&store, &number.to_string(), None);
            (0..20).for_each(|dear| assert!(answer(&store, &format!("dear{dear}")).is_some(), "{number}"));
        }
    }

    #[test]
    fn unused_entries_are_evicted() {
        let store = CacheStore::new(100);
        (0..100).for_each(|number| insert(&store, &format!("old{number}"), None));
        (0..1000).for_each(|number| insert(&store, &number.to_string(), None));
        assert_eq!((0..100).filter(|number| answer(&store, &format!("old{number}")).is_some()).count(), 0);
    }

    #[test]
    fn expired_entries_are_evicted_even_if_used() {
        let store = CacheStore::new(100);
        (0..100).for_each(|number| insert(&store, &format!("old{number}"), None));
        let soon = Instant::now();
        for number in 0..1000 {
            (0..100).for_each(|number| drop(answer(&store, &format!("old{number}"))));
            store.insert(&number.to_string(), None, soon, |kept| kept.answered_at() >= soon);
        }
        assert_eq!((0..100).filter(|number| answer(&store, &format!("old{number}")).is_some()).count(), 0);
    }

    proptest! {
        #[test]
        fn what_was_put_in_last_is_read(
            puts in proptest::collection::vec(
                ("[a-c]{0,3}", proptest::option::of(proptest::collection::vec("[a-cä\\x00]{0,3}", 0..4))),
                0..200,
            ),
        ) {
            let store = CacheStore::new(1000);
            let mut expected = BTreeMap::new();
            for (key, values) in puts {
                insert(&store, &key, values.as_deref());
                expected.insert(key, values.map_or(LookupAnswer::NotFound, LookupAnswer::Found));
            }
            prop_assert_eq!(store.count(), expected.len());
            for (key, expected) in expected {
                prop_assert_eq!(answer(&store, &key), Some(expected));
            }
            prop_assert_eq!(answer(&store, "d"), None);
        }
    }
}
