//! The in-memory index of a copy: the values of each entry for each of its keys.
//!
//! The index has 256 shards, each with its own lock. Readers see a key before or after a change,
//! and wait only while its shard is being changed. With half a million keys a shard holds 2,000 of
//! them; growing or compacting it takes about 0.1 ms.
//!
//! A shard is an [arena](lookup::arena) of records with hash slots. A record has these fields:
//!
//! | octets | field                                                                                                   |
//! |--------|---------------------------------------------------------------------------------------------------------|
//! | 4      | number of the entry                                                                                     |
//! | 4      | length of the key (9 bits), whether another entry has the key (1 bit), length of the values (22 bits)   |
//! | 0 or 4 | offset of the record of another entry with this key                                                     |
//! |        | the key, then the values, packed                                                                        |
//!
//! A user with a key and values of 20 octets each takes about 65 octets. The hash is keyed with a
//! secret of this process, so colliding keys cannot be constructed.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use super::batch::{NOT_COPYABLE, unpack};
use crate::schema::is_printable_ascii;
use lookup::arena::{Arena, NO_RECORD, Slots, Tag};

/// The longest key, in octets; a mail address has up to 320.
pub(super) const KEY_OCTETS_MAX: usize = 480;

/// A power of two.
const SHARDS: usize = 256;
/// The longest values of a record, in octets. Beyond that the LDAP server has to be asked.
const VALUES_OCTETS_MAX: usize = (1 << 22) - 1;
const KEY_BITS: u32 = 9;
/// Set in the head of a record that has a link to another one.
const LINKED: u32 = 1 << KEY_BITS;
/// Octets of a record before its link, if any, key and values.
const HEAD_OCTETS: usize = 8;

/// The answer of a copy for a key.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CopyAnswer {
    Found(Vec<String>),
    NotFound,
    /// The key has more values than allowed.
    TooMany,
    /// The copy cannot hold this key, or its values; the LDAP server has to be asked.
    AskServer,
}

/// The index.
#[derive(Debug)]
pub(super) struct AnswerIndex {
    shards: Box<[RwLock<Shard>]>,
    hasher: RandomState,
    records: AtomicU64,
}

/// A change of the values of one entry for one key.
#[derive(Debug)]
pub(super) enum IndexEdit<'a> {
    /// Adds a key to the entry, with packed values.
    Add { key: &'a str, number: u32, values: &'a [u8] },
    /// Changes the values of the entry for the key.
    Replace { key: &'a str, number: u32, values: &'a [u8] },
    /// Removes the key from the entry.
    Remove { key: Box<str>, number: u32 },
}

impl IndexEdit<'_> {
    fn key(&self) -> &str {
        match self {
            IndexEdit::Add { key, .. } | IndexEdit::Replace { key, .. } => key,
            IndexEdit::Remove { key, .. } => key,
        }
    }
}

impl Default for AnswerIndex {
    fn default() -> Self {
        let shards = (0..SHARDS).map(|_| RwLock::default()).collect();
        AnswerIndex { shards, hasher: RandomState::new(), records: AtomicU64::new(0) }
    }
}

impl AnswerIndex {
    /// The values of all entries with this folded key, in the order of their numbers, without
    /// duplicates.
    pub(super) fn find(&self, key: &str, values_max: usize) -> CopyAnswer {
        if !is_indexable(key) {
            return CopyAnswer::AskServer;
        }
        let (shard, tag) = self.locate(key);
        let shard = self.shards[shard].read();
        let Some(slot) = shard.find(tag, key) else { return CopyAnswer::NotFound };
        let first = shard.record(shard.first_record(slot));
        if first.next == NO_RECORD {
            return merge_values([first.values], values_max);
        }
        let mut records: Vec<(u32, &[u8])> =
            shard.records_of(slot).map(|(_, record)| (record.number, record.values)).collect();
        records.sort_unstable_by_key(|&(number, _)| number);
        merge_values(records.into_iter().map(|(_, values)| values), values_max)
    }

    /// Whether any entries have this key and `test` is true for all their numbers.
    pub(super) fn exists_and_all(&self, key: &str, test: impl Fn(u32) -> bool) -> bool {
        let (shard, tag) = self.locate(key);
        let shard = self.shards[shard].read();
        shard.find(tag, key).is_some_and(|slot| shard.records_of(slot).all(|(_, record)| test(record.number)))
    }

    /// The number of pairs of an entry and a key.
    pub(super) fn len(&self) -> u64 {
        self.records.load(Ordering::Relaxed)
    }

    /// Applies the changes in any order. There must be at most one per entry and key. Readers see
    /// the changes of a key together.
    pub(super) fn apply(&self, edits: &[IndexEdit]) {
        let mut order: Vec<(usize, Tag, &IndexEdit)> = Vec::with_capacity(edits.len());
        order.extend(edits.iter().map(|edit| {
            let (shard, tag) = self.locate(edit.key());
            (shard, tag, edit)
        }));
        order.sort_unstable_by_key(|&(shard, ..)| shard);
        for run in order.chunk_by(|a, b| a.0 == b.0) {
            let mut shard = self.shards[run[0].0].write();
            let before = shard.records;
            run.iter().for_each(|&(_, tag, edit)| shard.apply(tag, edit));
            shard.compact();
            self.records.fetch_add((shard.records as u64).wrapping_sub(before as u64), Ordering::Relaxed);
        }
    }

    /// Adds a new key of an entry.
    pub(super) fn add(&self, key: &str, number: u32, values: &[u8]) {
        let (shard, tag) = self.locate(key);
        self.shards[shard].write().add(tag, key, number, values);
        self.records.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes everything.
    pub(super) fn clear(&self) {
        for shard in &self.shards {
            *shard.write() = Shard::default();
        }
        self.records.store(0, Ordering::Relaxed);
    }

    /// The shard and tag of a key.
    fn locate(&self, key: &str) -> (usize, Tag) {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(key.as_bytes());
        let hash = hasher.finish();
        ((hash >> 32) as usize % SHARDS, Tag::of(hash))
    }
}

/// Whether a copy can hold the key: limited in length, and of characters whose equality we know.
pub(super) fn is_indexable(key: &str) -> bool {
    !key.is_empty() && key.len() <= KEY_OCTETS_MAX && is_printable_ascii(key.as_bytes())
}

/// Merges the values of several entries.
fn merge_values<'a>(entries: impl IntoIterator<Item = &'a [u8]>, values_max: usize) -> CopyAnswer {
    let mut values: Vec<String> = Vec::new();
    for packed in entries {
        if packed == NOT_COPYABLE {
            return CopyAnswer::AskServer;
        }
        for value in unpack(packed) {
            if !values.iter().any(|other| other == value) {
                values.push(value.to_owned());
            }
            if values.len() > values_max {
                return CopyAnswer::TooMany;
            }
        }
    }
    CopyAnswer::Found(values)
}

#[derive(Debug, Default)]
struct Shard {
    slots: Slots,
    arena: Arena,
    records: usize,
}

/// A parsed record.
struct Record<'a> {
    number: u32,
    next: u32,
    key: &'a [u8],
    values: &'a [u8],
    /// The length of the record.
    octets: usize,
}

impl Shard {
    /// Finds the slot of a key.
    fn find(&self, tag: Tag, key: &str) -> Option<usize> {
        self.slots.find(tag, |place| self.record(place).key == key.as_bytes())
    }

    /// The offset of the first record of a slot.
    fn first_record(&self, slot: usize) -> u32 {
        self.slots.at(slot).map_or(NO_RECORD, |(_, place)| place)
    }

    fn record(&self, place: u32) -> Record<'_> {
        read_record(self.arena.octets_from(place)).expect("the offset is that of a record")
    }

    /// The records of a slot's key, with their offsets.
    fn records_of(&self, slot: usize) -> impl Iterator<Item = (u32, Record<'_>)> {
        let mut place = self.first_record(slot);
        std::iter::from_fn(move || {
            let at = Some(place).filter(|&place| place != NO_RECORD)?;
            let record = self.record(at);
            place = record.next;
            Some((at, record))
        })
    }

    fn apply(&mut self, tag: Tag, edit: &IndexEdit) {
        match edit {
            IndexEdit::Add { key, number, values } => self.add(tag, key, *number, values),
            IndexEdit::Replace { key, number, values } => {
                self.remove(tag, key, *number);
                self.add(tag, key, *number, values);
            }
            IndexEdit::Remove { key, number } => self.remove(tag, key, *number),
        }
    }

    fn add(&mut self, tag: Tag, key: &str, number: u32, values: &[u8]) {
        self.records += 1;
        match self.find(tag, key) {
            Some(slot) => {
                let place = self.append(number, self.first_record(slot), key.as_bytes(), values);
                self.slots.set_place(slot, place);
            }
            None => {
                let place = self.append(number, NO_RECORD, key.as_bytes(), values);
                self.slots.insert(tag, place);
            }
        }
    }

    fn remove(&mut self, tag: Tag, key: &str, number: u32) {
        let Some(slot) = self.find(tag, key) else { return };
        let mut before = None;
        let found = self.records_of(slot).find_map(|(place, record)| match record.number == number {
            true => Some((record.next, record.octets)),
            false => {
                before = Some(place);
                None
            }
        });
        let Some((next, octets)) = found else { return };
        self.records -= 1;
        self.arena.add_garbage(octets);
        match before {
            Some(before) => self.set_next(before, next),
            None if next == NO_RECORD => self.slots.free(slot),
            None => self.slots.set_place(slot, next),
        }
    }

    /// Appends a record.
    fn append(&mut self, number: u32, next: u32, key: &[u8], values: &[u8]) -> u32 {
        let values = if values.len() > VALUES_OCTETS_MAX { NOT_COPYABLE } else { values };
        let linked = if next == NO_RECORD { 0 } else { LINKED };
        let head = key.len() as u32 | linked | (values.len() as u32) << (KEY_BITS + 1);
        let place = self.arena.append(HEAD_OCTETS + 4 + key.len() + values.len(), |octets| {
            octets.extend_from_slice(&number.to_le_bytes());
            octets.extend_from_slice(&head.to_le_bytes());
            if next != NO_RECORD {
                octets.extend_from_slice(&next.to_le_bytes());
            }
            octets.extend_from_slice(key);
            octets.extend_from_slice(values);
        });
        place.expect("a shard has less than 4 GiB")
    }

    /// Changes the link of the record at `place`, which must have one.
    fn set_next(&mut self, place: u32, next: u32) {
        self.arena.octets_from_mut(place)[HEAD_OCTETS..HEAD_OCTETS + 4].copy_from_slice(&next.to_le_bytes());
    }

    /// Compacts the arena if enough of it is unused.
    fn compact(&mut self) {
        if !self.arena.needs_compaction() {
            return;
        }
        let slots = Slots::with_capacity(self.slots.key_count());
        let mut tidied = Shard { slots, arena: Arena::with_capacity(self.arena.in_use()), records: self.records };
        let mut places = Vec::new();
        for slot in 0..self.slots.slot_count() {
            let Some((tag, _)) = self.slots.at(slot) else { continue };
            places.extend(self.records_of(slot).map(|(place, _)| place));
            let first = places.drain(..).rev().fold(NO_RECORD, |next, place| {
                let record = self.record(place);
                tidied.append(record.number, next, record.key, record.values)
            });
            tidied.slots.insert(tag, first);
        }
        *self = tidied;
    }
}

/// Parses the record at the beginning of `all`.
fn read_record(all: &[u8]) -> Option<Record<'_>> {
    let (number, octets) = all.split_first_chunk()?;
    let (head, mut octets) = octets.split_first_chunk()?;
    let head = u32::from_le_bytes(*head);
    let mut next = NO_RECORD;
    if head & LINKED != 0 {
        let (place, rest) = octets.split_first_chunk()?;
        (next, octets) = (u32::from_le_bytes(*place), rest);
    }
    let (key, octets) = octets.split_at_checked((head & (LINKED - 1)) as usize)?;
    let (values, behind) = octets.split_at_checked((head >> (KEY_BITS + 1)) as usize)?;
    let octets = all.len() - behind.len();
    Some(Record { number: u32::from_le_bytes(*number), next, key, values, octets })
}

#[cfg(test)]
#[path = "answer_index_tests.rs"]
mod tests;
