//! Where the cache keeps its entries: hash tables, each behind a lock of its own, in which a question costs as few reads of
//! memory as can be: the slot, and one piece that holds all that there is about a key.
//!
//! | octets of a piece | what                                                                              |
//! |-------------------|-----------------------------------------------------------------------------------|
//! | 8                 | when the backend said so: nanoseconds since the store was made, signed            |
//! | 4                 | length of the key                                                                 |
//! | 4                 | number of values; or that the key is known not to be there                        |
//! | 4 for each value  | where it ends in the text; nothing for one value alone, which ends with the text  |
//! |                   | the text: the key, then the values                                                |
//!
//! A full table makes room by the clock: a hand takes what is of no use any more, or was not asked for since it came by the
//! last time. It takes an eighth at once, so that its way through the table is paid by many; then it comes down elsewhere,
//! since a place in such a table means nothing once others have come and gone.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};

use hashbrown::HashTable;

use crate::Answer;

/// Tables of a store that is not small; a power of two.
const TABLES: usize = 16;
/// Where chance would make the tables uneven, there is only one.
const SMALL: usize = 1024;
/// A full table makes room for this part of what is in it.
const SWEPT_PART: usize = 8;
/// The golden section of 2^32: in such steps around, the hand leaves out no part of the table for long.
const HAND_STEP: u32 = 0x9e37_79b9;
/// In place of the number of values: the key is known not to be there.
const NOT_FOUND: u32 = u32::MAX;

pub(super) struct Store {
    tables: Box<[RwLock<Entries>]>,
    hasher: RandomState,
    made: Instant,
}

struct Entries {
    table: HashTable<Entry>,
    entries_max: usize,
    /// Where the hand of the clock came down last, in 1/2^32 of the table.
    hand: u32,
}

struct Entry {
    piece: Box<[u8]>,
    /// Whether it was asked for since the hand came by.
    is_asked_for: AtomicBool,
}

/// An entry as it is seen while its table is locked.
pub(super) struct Kept<'a> {
    made: Instant,
    piece: Piece<'a>,
}

/// A piece as it is read.
struct Piece<'a> {
    said: i64,
    key_octets: usize,
    /// Of values; or [`NOT_FOUND`].
    count: u32,
    ends: &'a [[u8; 4]],
    text: &'a [u8],
}

impl Store {
    /// A store for so many entries.
    pub(super) fn new(entries_max: u64) -> Self {
        let entries_max = usize::try_from(entries_max).unwrap_or(usize::MAX);
        let tables = if entries_max < SMALL { 1 } else { TABLES };
        let entries_max = entries_max.div_ceil(tables).max(1);
        let table = || RwLock::new(Entries { table: HashTable::new(), entries_max, hand: 0 });
        Store { tables: (0..tables).map(|_| table()).collect(), hasher: RandomState::new(), made: Instant::now() }
    }

    /// What is made of the entry of a key, if there is one.
    pub(super) fn read<T>(&self, key: &str, make: impl FnOnce(Kept<'_>) -> Option<T>) -> Option<T> {
        let hash = self.hash(key.as_bytes());
        let entries = self.entries(hash).read().unwrap_or_else(PoisonError::into_inner);
        let entry = entries.table.find(hash, |entry| entry.key() == key.as_bytes())?;
        if !entry.is_asked_for.load(Relaxed) {
            entry.is_asked_for.store(true, Relaxed);
        }
        make(entry.kept(self.made))
    }

    /// Puts an entry in the place of the one that the key has: values, or None where it is known not to be there.
    pub(super) fn insert(
        &self,
        key: &str,
        values: Option<&[String]>,
        said: Instant,
        is_useful: impl Fn(Kept<'_>) -> bool,
    ) {
        let Some(entry) = Entry::new(key, values, nanoseconds(self.made, said)) else { return };
        let hash = self.hash(key.as_bytes());
        let mut entries = self.entries(hash).write().unwrap_or_else(PoisonError::into_inner);
        if let Some(old) = entries.table.find_mut(hash, |entry| entry.key() == key.as_bytes()) {
            *old = entry;
            return;
        }
        while entries.table.len() >= entries.entries_max {
            entries.make_room(|entry| is_useful(entry.kept(self.made)));
        }
        entries.table.insert_unique(hash, entry, |entry| self.hash(entry.key()));
    }

    /// How many entries there are.
    pub(super) fn count(&self) -> usize {
        let count = |entries: &RwLock<Entries>| entries.read().unwrap_or_else(PoisonError::into_inner).table.len();
        self.tables.iter().map(count).sum()
    }

    fn hash(&self, key: &[u8]) -> u64 {
        self.hasher.hash_one(key)
    }

    /// The lower bits are for the slot, and the uppermost ones for its tag.
    fn entries(&self, hash: u64) -> &RwLock<Entries> {
        &self.tables[(hash >> 40) as usize % self.tables.len()]
    }
}

impl Entries {
    /// Lets the hand come down and go on until enough is gone, or it has been everywhere.
    fn make_room(&mut self, is_useful: impl Fn(&Entry) -> bool) {
        let excess = self.table.len() / SWEPT_PART + 1;
        self.hand = self.hand.wrapping_add(HAND_STEP);
        let first = (u64::from(self.hand) * self.table.len() as u64) >> u32::BITS;
        let gone = self.sweep(first as usize, excess, &is_useful);
        if gone < excess {
            self.sweep(0, excess - gone, &is_useful);
        }
    }

    /// Goes from an entry on, until so many are gone or to the end; returns how many are gone.
    fn sweep(&mut self, first: usize, excess: usize, is_useful: impl Fn(&Entry) -> bool) -> usize {
        let (mut place, mut gone) = (0, 0);
        self.table.retain(|entry| {
            place += 1;
            if place <= first || gone == excess {
                return true;
            }
            let was_asked_for = std::mem::take(entry.is_asked_for.get_mut());
            let stays = was_asked_for && is_useful(entry);
            gone += usize::from(!stays);
            stays
        });
        gone
    }
}

impl Entry {
    /// None where a piece would be larger than its numbers can say.
    fn new(key: &str, values: Option<&[String]>, said: i64) -> Option<Self> {
        let texts = values.unwrap_or_default();
        let octets = key.len() + texts.iter().map(String::len).sum::<usize>();
        u32::try_from(octets).ok()?;
        let ends = if texts.len() == 1 { 0 } else { texts.len() };
        let mut piece = Vec::with_capacity(8 + 4 + 4 + 4 * ends + octets);
        piece.extend_from_slice(&said.to_le_bytes());
        piece.extend_from_slice(&(key.len() as u32).to_le_bytes());
        piece.extend_from_slice(&values.map_or(NOT_FOUND, |values| values.len() as u32).to_le_bytes());
        let mut end = key.len();
        for text in texts.iter().take(ends) {
            end += text.len();
            piece.extend_from_slice(&(end as u32).to_le_bytes());
        }
        piece.extend_from_slice(key.as_bytes());
        texts.iter().for_each(|text| piece.extend_from_slice(text.as_bytes()));
        Some(Entry { piece: piece.into(), is_asked_for: AtomicBool::new(false) })
    }

    fn piece(&self) -> Piece<'_> {
        Piece::read(&self.piece).expect("a piece is as it was made")
    }

    fn key(&self) -> &[u8] {
        self.piece().key()
    }

    fn kept(&self, made: Instant) -> Kept<'_> {
        Kept { made, piece: self.piece() }
    }
}

impl<'a> Piece<'a> {
    fn read(octets: &'a [u8]) -> Option<Self> {
        let (said, octets) = octets.split_first_chunk()?;
        let (key_octets, octets) = octets.split_first_chunk()?;
        let (count, octets) = octets.split_first_chunk()?;
        let (key_octets, count) = (u32::from_le_bytes(*key_octets) as usize, u32::from_le_bytes(*count));
        let ends = if matches!(count, 1 | NOT_FOUND) { 0 } else { count as usize };
        let (ends, text) = octets.split_at_checked(4 * ends)?;
        text.split_at_checked(key_octets)?;
        Some(Piece { said: i64::from_le_bytes(*said), key_octets, count, ends: ends.as_chunks().0, text })
    }

    fn key(&self) -> &'a [u8] {
        &self.text[..self.key_octets]
    }

    /// The text from `start` to `end`, which was a text by itself.
    fn value(&self, start: usize, end: usize) -> String {
        String::from_utf8_lossy(&self.text[start..end]).into_owned()
    }

    fn values(&self) -> Vec<String> {
        if self.count == 1 {
            return vec![self.value(self.key_octets, self.text.len())];
        }
        let mut start = self.key_octets;
        let mut value_until = |end: usize| self.value(std::mem::replace(&mut start, end), end);
        self.ends.iter().map(|end| value_until(u32::from_le_bytes(*end) as usize)).collect()
    }
}

impl Kept<'_> {
    /// When the backend said so.
    pub(super) fn said(&self) -> Instant {
        let apart = Duration::from_nanos(self.piece.said.unsigned_abs());
        let said = if self.piece.said < 0 { self.made.checked_sub(apart) } else { self.made.checked_add(apart) };
        said.unwrap_or(self.made)
    }

    pub(super) fn is_found(&self) -> bool {
        self.piece.count != NOT_FOUND
    }

    pub(super) fn answer(&self) -> Answer {
        if self.is_found() { Answer::Found(self.piece.values()) } else { Answer::NotFound }
    }
}

/// From one moment to another one, which may be the earlier one.
fn nanoseconds(from: Instant, to: Instant) -> i64 {
    let within = |span: Duration| i64::try_from(span.as_nanos()).unwrap_or(i64::MAX);
    if to < from { -within(from - to) } else { within(to - from) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn insert(store: &Store, key: &str, values: Option<&[String]>) {
        store.insert(key, values, Instant::now(), |_| true);
    }

    fn answer(store: &Store, key: &str) -> Option<Answer> {
        store.read(key, |kept| Some(kept.answer()))
    }

    #[test]
    fn there_are_no_more_entries_than_there_may_be() {
        for entries_max in [0, 1, 100, 5000] {
            let store = Store::new(entries_max);
            (0..3 * entries_max + 3).for_each(|number| insert(&store, &number.to_string(), None));
            let count = store.count() as u64;
            // Tables of a large store are rounded up.
            assert!(
                count <= entries_max.max(1).next_multiple_of(16) && count > entries_max / 2,
                "{entries_max}: {count}"
            );
        }
    }

    #[test]
    fn what_is_asked_for_stays() {
        let store = Store::new(100);
        (0..20).for_each(|number| insert(&store, &format!("dear{number}"), None));
        for number in 0..10_000 {
            insert(&store, &number.to_string(), None);
            (0..20).for_each(|dear| assert!(answer(&store, &format!("dear{dear}")).is_some(), "{number}"));
        }
    }

    #[test]
    fn the_hand_comes_by_everywhere() {
        let store = Store::new(100);
        (0..100).for_each(|number| insert(&store, &format!("old{number}"), None));
        (0..1000).for_each(|number| insert(&store, &number.to_string(), None));
        assert_eq!((0..100).filter(|number| answer(&store, &format!("old{number}")).is_some()).count(), 0);
    }

    #[test]
    fn what_is_of_no_use_goes_however_much_it_is_asked_for() {
        let store = Store::new(100);
        (0..100).for_each(|number| insert(&store, &format!("old{number}"), None));
        let soon = Instant::now();
        for number in 0..1000 {
            (0..100).for_each(|number| drop(answer(&store, &format!("old{number}"))));
            store.insert(&number.to_string(), None, soon, |kept| kept.said() >= soon);
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
            let store = Store::new(1000);
            let mut expected = BTreeMap::new();
            for (key, values) in puts {
                insert(&store, &key, values.as_deref());
                expected.insert(key, values.map_or(Answer::NotFound, Answer::Found));
            }
            prop_assert_eq!(store.count(), expected.len());
            for (key, expected) in expected {
                prop_assert_eq!(answer(&store, &key), Some(expected));
            }
            prop_assert_eq!(answer(&store, "d"), None);
        }
    }
}
