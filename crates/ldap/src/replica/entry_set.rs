//! A set of entry numbers as a bitmap.

/// The bitmap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct EntrySet(Vec<u64>);

impl EntrySet {
    pub(super) fn insert(&mut self, number: u32) {
        let word = number as usize / 64;
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (number % 64);
    }

    pub(super) fn contains(&self, number: u32) -> bool {
        self.0.get(number as usize / 64).is_some_and(|word| word & 1 << (number % 64) != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_in_it_once_it_was_set() {
        let mut marks = EntrySet::default();
        for number in [0, 63, 64, 1000] {
            assert!(!marks.contains(number));
            marks.insert(number);
            assert!(marks.contains(number));
        }
        assert!(!marks.contains(1) && !marks.contains(999) && !marks.contains(u32::MAX));
    }
}
