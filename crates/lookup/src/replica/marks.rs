//! A set of entry numbers as a bitmap.

/// The bitmap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Marks(Vec<u64>);

impl Marks {
    pub(super) fn set(&mut self, number: u32) {
        let word = number as usize / 64;
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (number % 64);
    }

    pub(super) fn has(&self, number: u32) -> bool {
        self.0.get(number as usize / 64).is_some_and(|word| word & 1 << (number % 64) != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_in_it_once_it_was_set() {
        let mut marks = Marks::default();
        for number in [0, 63, 64, 1000] {
            assert!(!marks.has(number));
            marks.set(number);
            assert!(marks.has(number));
        }
        assert!(!marks.has(1) && !marks.has(999) && !marks.has(u32::MAX));
    }
}
