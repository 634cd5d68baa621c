//! The answers of a copy, in memory: what each entry has for each of its keys.
//!
//! A table of 256 shards, each behind a lock of its own. Readers of a key see it as it was before a change or after it, and
//! wait for a shard that is being changed, never for the others: a shard of half a million keys in all holds 2,000, and
//! growing or compacting it takes some 0.1 ms at most.
//!
//! A shard is an arena of records, and slots that lead to them. The slot of a key is its tag (32 bits of its hash) and the
//! place of its record; it stands at or behind the slot that its tag stands for (linear probing), and only a slot with the
//! tag of a key makes a reader look into the arena. A record is
//!
//! | octets | what                                                                                                    |
//! |--------|---------------------------------------------------------------------------------------------------------|
//! | 4      | number of the entry                                                                                     |
//! | 4      | length of the key (9 bits), whether another entry has the key (1 bit), length of the values (22 bits)   |
//! | 0 or 4 | place of the record of another entry with this key                                                      |
//! |        | the key, then the values, packed                                                                        |
//!
//! so that a user whose key and values have 20 octets each takes some 65 octets. The hash has a key of this process's own:
//! nobody outside can make keys that meet in one place.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

use super::batch::{NO_TEXT, unpack};
use crate::ldap::schema::is_plain;

/// Octets of a key at most; a mail address has 320.
pub(super) const KEY_OCTETS_MAX: usize = 480;

/// A power of two.
const SHARDS: usize = 256;
/// Octets of values that a record can have; where there are more, the directory must be asked itself.
const VALUES_OCTETS_MAX: usize = (1 << 22) - 1;
const KEY_BITS: u32 = 9;
/// In the head of a record: there is a place behind it.
const LINKED: u32 = 1 << KEY_BITS;
/// Octets of a record before its place, if there is one, and its texts.
const HEAD: usize = 8;
/// In place of a place: there is none.
const NOWHERE: u32 = u32::MAX;
/// A slot that leads nowhere.
const FREE: u64 = u64::MAX;
const SLOTS_MIN: usize = 8;
/// Octets that no record uses any more, below which they are left alone.
const GARBAGE_MIN: usize = 1024;

/// What a copy says of a key.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Said {
    Found(Vec<String>),
    NotFound,
    /// More values than an answer may have.
    TooMany,
    /// Not a key that could be in a copy, or one of an entry whose values could not: the directory must be asked itself.
    Elsewhere,
}

/// The table.
#[derive(Debug)]
pub(super) struct Answers {
    shards: Box<[RwLock<Shard>]>,
    hasher: RandomState,
    records: AtomicU64,
}

/// One change of the table, of what one entry has for one key.
#[derive(Debug)]
pub(super) enum Edit<'a> {
    /// The entry had no such key, and has it now with these values, packed.
    Add { key: &'a str, number: u32, values: &'a [u8] },
    /// The entry has other values for it.
    Replace { key: &'a str, number: u32, values: &'a [u8] },
    /// The entry has it no more.
    Remove { key: Box<str>, number: u32 },
}

impl Edit<'_> {
    fn key(&self) -> &str {
        match self {
            Edit::Add { key, .. } | Edit::Replace { key, .. } => key,
            Edit::Remove { key, .. } => key,
        }
    }
}

impl Default for Answers {
    fn default() -> Self {
        let shards = (0..SHARDS).map(|_| RwLock::default()).collect();
        Answers { shards, hasher: RandomState::new(), records: AtomicU64::new(0) }
    }
}

impl Answers {
    /// What all entries with this folded key have for it, in the order of their numbers, each value once.
    pub(super) fn say(&self, key: &str, values_max: usize) -> Said {
        if !indexable(key) {
            return Said::Elsewhere;
        }
        let (shard, tag) = self.place(key);
        let shard = self.shards[shard].read().unwrap_or_else(PoisonError::into_inner);
        let Some(slot) = shard.find(tag, key) else { return Said::NotFound };
        let first = shard.record(place_of(shard.slots[slot]));
        if first.next == NOWHERE {
            return said([first.values], values_max);
        }
        let mut records: Vec<(u32, &[u8])> =
            shard.chain(slot).map(|(_, record)| (record.number, record.values)).collect();
        records.sort_unstable_by_key(|&(number, _)| number);
        said(records.into_iter().map(|(_, values)| values), values_max)
    }

    /// Whether there are entries with this key, and `test` holds for the numbers of all of them.
    pub(super) fn is_there_and_all(&self, key: &str, test: impl Fn(u32) -> bool) -> bool {
        let (shard, tag) = self.place(key);
        let shard = self.shards[shard].read().unwrap_or_else(PoisonError::into_inner);
        shard.find(tag, key).is_some_and(|slot| shard.chain(slot).all(|(_, record)| test(record.number)))
    }

    /// Keys of all entries, counted once for each entry.
    pub(super) fn len(&self) -> u64 {
        self.records.load(Ordering::Relaxed)
    }

    /// Makes all changes, in any order: no two are to be of one key of one entry. Those of one key are seen together.
    pub(super) fn change(&self, edits: &[Edit]) {
        let mut order: Vec<(usize, u32, &Edit)> = Vec::with_capacity(edits.len());
        order.extend(edits.iter().map(|edit| {
            let (shard, tag) = self.place(edit.key());
            (shard, tag, edit)
        }));
        order.sort_unstable_by_key(|&(shard, ..)| shard);
        for run in order.chunk_by(|a, b| a.0 == b.0) {
            let mut shard = self.shards[run[0].0].write().unwrap_or_else(PoisonError::into_inner);
            let before = shard.records;
            run.iter().for_each(|&(_, tag, edit)| shard.change(tag, edit));
            shard.tidy();
            self.records.fetch_add((shard.records as u64).wrapping_sub(before as u64), Ordering::Relaxed);
        }
    }

    /// Adds what an entry has for a key that it did not have.
    pub(super) fn add(&self, key: &str, number: u32, values: &[u8]) {
        let (shard, tag) = self.place(key);
        self.shards[shard].write().unwrap_or_else(PoisonError::into_inner).add(tag, key, number, values);
        self.records.fetch_add(1, Ordering::Relaxed);
    }

    /// Forgets everything.
    pub(super) fn clear(&self) {
        for shard in &self.shards {
            *shard.write().unwrap_or_else(PoisonError::into_inner) = Shard::default();
        }
        self.records.store(0, Ordering::Relaxed);
    }

    /// The shard of a key, and its tag.
    fn place(&self, key: &str) -> (usize, u32) {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(key.as_bytes());
        let hash = hasher.finish();
        ((hash >> 32) as usize % SHARDS, hash as u32)
    }
}

/// Whether a key can be in a copy: its length is limited, and it must be of characters of which we know which are equal.
pub(super) fn indexable(key: &str) -> bool {
    !key.is_empty() && key.len() <= KEY_OCTETS_MAX && is_plain(key.as_bytes())
}

/// What comes of the values of entries.
fn said<'a>(entries: impl IntoIterator<Item = &'a [u8]>, values_max: usize) -> Said {
    let mut values: Vec<String> = Vec::new();
    for packed in entries {
        if packed == NO_TEXT {
            return Said::Elsewhere;
        }
        for value in unpack(packed) {
            if !values.iter().any(|other| other == value) {
                values.push(value.to_owned());
            }
            if values.len() > values_max {
                return Said::TooMany;
            }
        }
    }
    Said::Found(values)
}

#[derive(Debug, Default)]
struct Shard {
    slots: Vec<u64>,
    /// Slots that are not free: as many as there are keys.
    used: usize,
    records: usize,
    arena: Vec<u8>,
    /// Octets of the arena that no record uses any more.
    garbage: usize,
}

/// A record as it is read.
struct Record<'a> {
    number: u32,
    next: u32,
    key: &'a [u8],
    values: &'a [u8],
    /// Octets of all of it.
    octets: usize,
}

impl Shard {
    /// The slot of a key.
    fn find(&self, tag: u32, key: &str) -> Option<usize> {
        if self.slots.is_empty() {
            return None;
        }
        let mut at = home(tag, self.slots.len());
        loop {
            match self.slots[at] {
                FREE => return None,
                slot if tag_of(slot) == tag && self.record(place_of(slot)).key == key.as_bytes() => return Some(at),
                _ => at = following(at, self.slots.len()),
            }
        }
    }

    fn record(&self, place: u32) -> Record<'_> {
        read(&self.arena[place as usize..]).expect("places are those of records")
    }

    /// All records of the key of a slot, with their places.
    fn chain(&self, slot: usize) -> impl Iterator<Item = (u32, Record<'_>)> {
        let mut place = place_of(self.slots[slot]);
        std::iter::from_fn(move || {
            let at = Some(place).filter(|&place| place != NOWHERE)?;
            let record = self.record(at);
            place = record.next;
            Some((at, record))
        })
    }

    fn change(&mut self, tag: u32, edit: &Edit) {
        match edit {
            Edit::Add { key, number, values } => self.add(tag, key, *number, values),
            Edit::Replace { key, number, values } => {
                self.remove(tag, key, *number);
                self.add(tag, key, *number, values);
            }
            Edit::Remove { key, number } => self.remove(tag, key, *number),
        }
    }

    fn add(&mut self, tag: u32, key: &str, number: u32, values: &[u8]) {
        self.records += 1;
        match self.find(tag, key) {
            Some(slot) => {
                let next = place_of(self.slots[slot]);
                self.slots[slot] = slot_of(tag, self.append(number, next, key.as_bytes(), values));
            }
            None => {
                let place = self.append(number, NOWHERE, key.as_bytes(), values);
                self.insert(slot_of(tag, place));
            }
        }
    }

    fn remove(&mut self, tag: u32, key: &str, number: u32) {
        let Some(slot) = self.find(tag, key) else { return };
        let mut before = None;
        let found = self.chain(slot).find_map(|(place, record)| match record.number == number {
            true => Some((record.next, record.octets)),
            false => {
                before = Some(place);
                None
            }
        });
        let Some((next, octets)) = found else { return };
        self.records -= 1;
        self.garbage += octets;
        match before {
            Some(before) => self.link(before, next),
            None if next == NOWHERE => self.free(slot),
            None => self.slots[slot] = slot_of(tag, next),
        }
    }

    /// Writes a record behind all others.
    fn append(&mut self, number: u32, next: u32, key: &[u8], values: &[u8]) -> u32 {
        let values = if values.len() > VALUES_OCTETS_MAX { NO_TEXT } else { values };
        let place = u32::try_from(self.arena.len()).ok().filter(|&place| place != NOWHERE);
        let octets = HEAD + 4 + key.len() + values.len();
        if self.arena.capacity() - self.arena.len() < octets {
            // Not twice as much, as a vector would by itself: half of that would lie idle.
            self.arena.reserve_exact(octets.max(self.arena.len() / 16));
        }
        let linked = if next == NOWHERE { 0 } else { LINKED };
        let head = key.len() as u32 | linked | (values.len() as u32) << (KEY_BITS + 1);
        self.arena.extend_from_slice(&number.to_le_bytes());
        self.arena.extend_from_slice(&head.to_le_bytes());
        if next != NOWHERE {
            self.arena.extend_from_slice(&next.to_le_bytes());
        }
        self.arena.extend_from_slice(key);
        self.arena.extend_from_slice(values);
        place.expect("a shard has less than 4 GiB")
    }

    /// Gives the record at `place`, which leads to another one, another one to lead to.
    fn link(&mut self, place: u32, next: u32) {
        let at = place as usize + HEAD;
        self.arena[at..at + 4].copy_from_slice(&next.to_le_bytes());
    }

    /// Adds the slot of a key that has none.
    fn insert(&mut self, slot: u64) {
        if (self.used + 1) * 4 > self.slots.len() * 3 {
            let slots = (self.slots.len() * 3 / 2).max(SLOTS_MIN);
            let before = std::mem::replace(&mut self.slots, vec![FREE; slots]);
            before.into_iter().filter(|&slot| slot != FREE).for_each(|slot| self.set(slot));
        }
        self.used += 1;
        self.set(slot);
    }

    fn set(&mut self, slot: u64) {
        let mut at = home(tag_of(slot), self.slots.len());
        while self.slots[at] != FREE {
            at = following(at, self.slots.len());
        }
        self.slots[at] = slot;
    }

    /// Frees a slot; those behind it that could not stand here before move up, so that each is found from its home.
    fn free(&mut self, slot: usize) {
        let slots = self.slots.len();
        let distance = |from: usize, to: usize| (to + slots - from) % slots;
        let (mut hole, mut at) = (slot, following(slot, slots));
        while self.slots[at] != FREE {
            if distance(home(tag_of(self.slots[at]), slots), at) >= distance(hole, at) {
                self.slots[hole] = self.slots[at];
                hole = at;
            }
            at = following(at, slots);
        }
        self.slots[hole] = FREE;
        self.used -= 1;
    }

    /// Writes the arena anew, where an eighth of it is of no use any more.
    fn tidy(&mut self) {
        if self.garbage < GARBAGE_MIN.max(self.arena.len() / 8) {
            return;
        }
        let mut tidied = Shard { slots: vec![FREE; (self.used * 3 / 2).max(SLOTS_MIN)], ..Shard::default() };
        tidied.arena.reserve_exact(self.arena.len() - self.garbage);
        let mut places = Vec::new();
        for slot in (0..self.slots.len()).filter(|&slot| self.slots[slot] != FREE) {
            places.extend(self.chain(slot).map(|(place, _)| place));
            let first = places.drain(..).rev().fold(NOWHERE, |next, place| {
                let record = self.record(place);
                tidied.append(record.number, next, record.key, record.values)
            });
            tidied.insert(slot_of(tag_of(self.slots[slot]), first));
        }
        tidied.records = self.records;
        *self = tidied;
    }
}

/// The record at the beginning of these octets.
fn read(all: &[u8]) -> Option<Record<'_>> {
    let (number, octets) = all.split_first_chunk()?;
    let (head, mut octets) = octets.split_first_chunk()?;
    let head = u32::from_le_bytes(*head);
    let mut next = NOWHERE;
    if head & LINKED != 0 {
        let (place, rest) = octets.split_first_chunk()?;
        (next, octets) = (u32::from_le_bytes(*place), rest);
    }
    let (key, octets) = octets.split_at_checked((head & (LINKED - 1)) as usize)?;
    let (values, behind) = octets.split_at_checked((head >> (KEY_BITS + 1)) as usize)?;
    let octets = all.len() - behind.len();
    Some(Record { number: u32::from_le_bytes(*number), next, key, values, octets })
}

/// The slot from which on one with this tag is sought.
fn home(tag: u32, slots: usize) -> usize {
    ((u64::from(tag) * slots as u64) >> 32) as usize
}

fn following(slot: usize, slots: usize) -> usize {
    if slot + 1 == slots { 0 } else { slot + 1 }
}

fn slot_of(tag: u32, place: u32) -> u64 {
    u64::from(tag) << 32 | u64::from(place)
}

fn tag_of(slot: u64) -> u32 {
    (slot >> 32) as u32
}

fn place_of(slot: u64) -> u32 {
    slot as u32
}

#[cfg(test)]
#[path = "answers_tests.rs"]
mod tests;
