//! A bounded table whose entries are ordered by a value: when it is full, the entry with the lowest
//! value goes. About 100 octets an entry, and logarithmic time.

use std::collections::{BTreeSet, HashMap};

use crate::key_digest::KeyDigest;

/// Entries by key, and in the order of `rank`.
#[derive(Debug)]
pub(crate) struct OrderedTable<R, V> {
    entries: HashMap<KeyDigest, (R, V)>,
    order: BTreeSet<(R, KeyDigest)>,
}

impl<R: Copy + Ord, V> Default for OrderedTable<R, V> {
    fn default() -> Self {
        OrderedTable { entries: HashMap::new(), order: BTreeSet::new() }
    }
}

impl<R: Copy + Ord, V> OrderedTable<R, V> {
    /// The number of entries.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The rank and the value of a key.
    pub(crate) fn find(&self, key: KeyDigest) -> Option<&(R, V)> {
        self.entries.get(&key)
    }

    /// Adds an entry, or replaces it.
    pub(crate) fn insert(&mut self, key: KeyDigest, rank: R, value: V) {
        if let Some((before, _)) = self.entries.insert(key, (rank, value)) {
            self.order.remove(&(before, key));
        }
        self.order.insert((rank, key));
    }

    /// Removes an entry.
    pub(crate) fn remove(&mut self, key: KeyDigest) -> Option<(R, V)> {
        let removed = self.entries.remove(&key)?;
        self.order.remove(&(removed.0, key));
        Some(removed)
    }

    /// The entry with the lowest rank.
    pub(crate) fn first(&self) -> Option<(R, KeyDigest)> {
        self.order.first().copied()
    }

    /// Removes the entry with the lowest rank.
    pub(crate) fn pop_first(&mut self) -> Option<V> {
        let (_, key) = self.order.pop_first()?;
        self.entries.remove(&key).map(|(_, value)| value)
    }

    /// All entries, in the order of their ranks.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (KeyDigest, R, &V)> {
        self.order.iter().filter_map(|(rank, key)| Some((*key, *rank, &self.entries.get(key)?.1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_goes_first_and_each_key_is_there_once() {
        let (a, b) = (KeyDigest::of(&["a"]), KeyDigest::of(&["b"]));
        let mut table = OrderedTable::default();
        table.insert(a, 5, 'x');
        table.insert(b, 3, 'y');
        table.insert(b, 7, 'z');
        assert_eq!((table.len(), table.first(), table.find(b)), (2, Some((5, a)), Some(&(7, 'z'))));
        assert_eq!(table.iter().map(|(_, rank, _)| rank).collect::<Vec<_>>(), [5, 7]);
        assert_eq!((table.pop_first(), table.remove(b), table.remove(b)), (Some('x'), Some((7, 'z')), None));
        assert_eq!((table.len(), table.first()), (0, None));
    }
}
