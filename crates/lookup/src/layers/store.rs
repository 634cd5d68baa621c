//! Where the cache keeps its entries: hash tables, each behind a lock of its own, in which a question costs as few reads of
//! memory as can be: the slot, and one piece that holds the key and the values.
//!
//! A full table makes room by the clock: a hand takes what is of no use any more, or was not asked for since it came by the
//! last time. It takes an eighth at once, so that its way through the table is paid by many; then it comes down elsewhere,
//! since a place in such a table means nothing once others have come and gone.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{PoisonError, RwLock};
use std::time::Instant;

use crate::Answer;

/// Tables of a store that is not small.
const TABLES: usize = 16;
/// Where chance would make the tables uneven, there is only one.
const SMALL: usize = 1024;
/// A full table makes room for this part of what is in it.
const SWEPT_PART: usize = 8;
/// The golden section of 2^32: in such steps around, the hand leaves out no part of the table for long.
const HAND_STEP: u32 = 0x9e37_79b9;

pub(super) struct Store {
    tables: Box<[RwLock<Entries>]>,
    hasher: RandomState,
}

struct Entries {
    by_key: HashMap<Record, Entry>,
    entries_max: usize,
    /// Where the hand of the clock came down last, in 1/2^32 of the table.
    hand: u32,
}

/// A key, and the values behind it in the same piece of memory; equal to another one if the keys are.
struct Record {
    text: Box<str>,
    key_octets: usize,
}

struct Entry {
    said: Instant,
    values: Values,
    /// Whether it was asked for since the hand came by.
    is_asked_for: AtomicBool,
}

/// Where in the text the values are.
enum Values {
    /// The key is not there.
    NotFound,
    /// It has none.
    None,
    /// One, as long as the rest of the text.
    One,
    /// Each ends here.
    Many(Box<[usize]>),
}

/// An entry as it is seen while its table is locked.
pub(super) struct Kept<'a> {
    text: &'a str,
    key_octets: usize,
    entry: &'a Entry,
}

impl Store {
    /// A store for so many entries.
    pub(super) fn new(entries_max: u64) -> Self {
        let entries_max = usize::try_from(entries_max).unwrap_or(usize::MAX);
        let tables = if entries_max < SMALL { 1 } else { TABLES };
        let table = || Entries { by_key: HashMap::new(), entries_max: entries_max.div_ceil(tables).max(1), hand: 0 };
        Store { tables: (0..tables).map(|_| RwLock::new(table())).collect(), hasher: RandomState::new() }
    }

    /// What is made of the entry of a key, if there is one.
    pub(super) fn read<T>(&self, key: &str, make: impl FnOnce(Kept<'_>) -> Option<T>) -> Option<T> {
        let table = self.table(key).read().unwrap_or_else(PoisonError::into_inner);
        let (Record { text, key_octets }, entry) = table.by_key.get_key_value(key)?;
        if !entry.is_asked_for.load(Relaxed) {
            entry.is_asked_for.store(true, Relaxed);
        }
        make(Kept { text, key_octets: *key_octets, entry })
    }

    /// Puts an entry in the place of the one that the key has: values, or None where it is known not to be there.
    pub(super) fn insert(
        &self,
        key: &str,
        values: Option<&[String]>,
        said: Instant,
        is_useful: impl Fn(Kept<'_>) -> bool,
    ) {
        let record = Record::new(key, values);
        let entry = Entry { said, values: Values::new(key, values), is_asked_for: AtomicBool::new(false) };
        let mut table = self.table(key).write().unwrap_or_else(PoisonError::into_inner);
        // The old record has the old values in it.
        table.by_key.remove(key);
        while table.by_key.len() >= table.entries_max {
            table.make_room(&is_useful);
        }
        table.by_key.insert(record, entry);
    }

    /// How many entries there are.
    pub(super) fn count(&self) -> usize {
        let count = |table: &RwLock<Entries>| table.read().unwrap_or_else(PoisonError::into_inner).by_key.len();
        self.tables.iter().map(count).sum()
    }

    fn table(&self, key: &str) -> &RwLock<Entries> {
        &self.tables[self.hasher.hash_one(key) as usize % self.tables.len()]
    }
}

impl Entries {
    /// Lets the hand come down and go on until enough is gone, or it has been everywhere.
    fn make_room(&mut self, is_useful: impl Fn(Kept<'_>) -> bool) {
        let excess = self.by_key.len() / SWEPT_PART + 1;
        self.hand = self.hand.wrapping_add(HAND_STEP);
        let first = (u64::from(self.hand) * self.by_key.len() as u64) >> u32::BITS;
        let gone = self.sweep(first as usize, excess, &is_useful);
        if gone < excess {
            self.sweep(0, excess - gone, &is_useful);
        }
    }

    /// Goes from an entry on, until so many are gone or to the end; returns how many are gone.
    fn sweep(&mut self, first: usize, excess: usize, is_useful: impl Fn(Kept<'_>) -> bool) -> usize {
        let (mut place, mut gone) = (0, 0);
        self.by_key.retain(|Record { text, key_octets }, entry| {
            place += 1;
            if place <= first || gone == excess {
                return true;
            }
            let was_asked_for = std::mem::take(entry.is_asked_for.get_mut());
            let stays = was_asked_for && is_useful(Kept { text, key_octets: *key_octets, entry });
            gone += usize::from(!stays);
            stays
        });
        gone
    }
}

impl Record {
    fn new(key: &str, values: Option<&[String]>) -> Self {
        let values = values.unwrap_or_default();
        let mut text = String::with_capacity(key.len() + values.iter().map(String::len).sum::<usize>());
        text.push_str(key);
        values.iter().for_each(|value| text.push_str(value));
        Record { text: text.into(), key_octets: key.len() }
    }
}

impl Borrow<str> for Record {
    fn borrow(&self) -> &str {
        &self.text[..self.key_octets]
    }
}

impl Hash for Record {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Borrow::<str>::borrow(self).hash(state);
    }
}

impl PartialEq for Record {
    fn eq(&self, other: &Self) -> bool {
        Borrow::<str>::borrow(self) == Borrow::<str>::borrow(other)
    }
}

impl Eq for Record {}

impl Values {
    fn new(key: &str, values: Option<&[String]>) -> Self {
        let ends = |values: &[String]| {
            let end = |start: &mut usize, value: &String| {
                *start += value.len();
                Some(*start)
            };
            values.iter().scan(key.len(), end).collect()
        };
        match values {
            None => Values::NotFound,
            Some([]) => Values::None,
            Some([_]) => Values::One,
            Some(values) => Values::Many(ends(values)),
        }
    }
}

impl Kept<'_> {
    /// When the backend said so.
    pub(super) fn said(&self) -> Instant {
        self.entry.said
    }

    pub(super) fn is_found(&self) -> bool {
        !matches!(self.entry.values, Values::NotFound)
    }

    pub(super) fn answer(&self) -> Answer {
        let mut start = self.key_octets;
        let mut value_until = |end: usize| self.text[std::mem::replace(&mut start, end)..end].to_owned();
        match &self.entry.values {
            Values::NotFound => Answer::NotFound,
            Values::None => Answer::Found(Vec::new()),
            Values::One => Answer::Found(vec![value_until(self.text.len())]),
            Values::Many(ends) => Answer::Found(ends.iter().map(|&end| value_until(end)).collect()),
        }
    }
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
