//! The most frequent names of a stream, in bounded memory.
//!
//! Up to twice [`NAMES_MAX`] names are tracked. At that limit, the rarer half is dropped. A name
//! that appears later may be one of those, so its `error` is the highest dropped count. A count is
//! never too high, and too low by at most `error`; names that are more frequent than that are never
//! missing (Metwally et al., "Space Saving", in batches, and as a lower bound).

use std::cmp::Reverse;
use std::collections::HashMap;

/// Names that remain when rarer ones are dropped.
pub(super) const NAMES_MAX: usize = 10_000;
/// Longer names are truncated.
const NAME_OCTETS_MAX: usize = 256;

/// Names with their counts.
#[derive(Default)]
pub(super) struct TopCounter<T> {
    names: HashMap<Box<str>, TopEntry<T>>,
    /// The highest count that was dropped.
    evicted_count_max: u64,
}

/// The counts of a name.
#[derive(Default)]
pub(super) struct TopEntry<T> {
    /// Its number of occurrences while it was tracked.
    pub(super) count: u64,
    /// The highest possible number of occurrences before that.
    pub(super) error: u64,
    /// Other counters of the name.
    pub(super) detail: T,
}

impl<T: Default> TopCounter<T> {
    /// Counts a name once, and returns its other counters.
    pub(super) fn count(&mut self, name: &str) -> &mut T {
        let name = &name[..name.floor_char_boundary(NAME_OCTETS_MAX)];
        if self.names.len() >= 2 * NAMES_MAX && !self.names.contains_key(name) {
            self.evict();
        }
        if !self.names.contains_key(name) {
            let row = TopEntry { count: 0, error: self.evicted_count_max, detail: T::default() };
            self.names.insert(name.into(), row);
        }
        let row = self.names.get_mut(name).expect("the name was inserted above");
        row.count += 1;
        &mut row.detail
    }

    /// The most frequent names, in descending order; equal counts are sorted by name.
    pub(super) fn top(&self, count: usize) -> Vec<(&str, &TopEntry<T>)> {
        let mut rows: Vec<_> = self.names.iter().map(|(name, row)| (&**name, row)).collect();
        rows.sort_unstable_by_key(|(name, row)| (Reverse(row.count), *name));
        rows.truncate(count);
        rows
    }

    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    fn evict(&mut self) {
        let mut counts: Vec<u64> = self.names.values().map(|row| row.count + row.error).collect();
        let (_, limit, _) = counts.select_nth_unstable(NAMES_MAX);
        self.evicted_count_max = *limit;
        self.names.retain(|_, row| row.count + row.error > self.evicted_count_max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_frequent_is_found_among_many_names_that_are_not() {
        let mut top = TopCounter::<u64>::default();
        for n in 0..10 * NAMES_MAX as u64 {
            *top.count(&format!("rare{n}")) += 1;
            if n % 100 == 0 {
                *top.count("frequent") += 7;
            }
            assert!(top.names.len() <= 2 * NAMES_MAX);
        }
        let (name, row) = top.top(1)[0];
        assert_eq!((name, row.count, row.error), ("frequent", NAMES_MAX as u64 / 10, 0));
        assert_eq!(row.detail, 7 * row.count);
    }

    #[test]
    fn a_count_is_never_too_high_and_too_low_by_its_error_at_most() {
        let (mut top, mut counts) = (TopCounter::<()>::default(), HashMap::new());
        // The same pseudo-random sequence of names each time.
        let mut n = 1_u64;
        for _ in 0..300_000 {
            n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let name = ((n >> 33) % 30_000 * ((n >> 20) % 7)).to_string();
            top.count(&name);
            *counts.entry(name).or_insert(0_u64) += 1;
        }
        for (name, row) in top.top(usize::MAX) {
            let real = counts[name];
            assert!(row.count <= real && real <= row.count + row.error, "{name}: {real}, {}+{}", row.count, row.error);
        }
    }

    #[test]
    fn a_long_name_is_cut_between_characters() {
        let mut top = TopCounter::<()>::default();
        top.count(&"\u{20ac}".repeat(NAME_OCTETS_MAX));
        assert_eq!(top.top(1)[0].0.len(), NAME_OCTETS_MAX / 3 * 3);
    }
}
