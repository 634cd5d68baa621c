//! The content of the files: bytes that follow from a file's number and the offset, so that
//! whatever is read can be checked with one comparison.
//!
//! All content is a slice of one repeating cycle of random bytes. Each file begins at an offset
//! given by its number; numbers that are equal modulo the cycle's length have equal content.

/// A prime, so that no block size divides it: a block at the wrong offset differs.
const CYCLE_BYTES: usize = 16_381;

/// The cycle, followed by the first bytes of its repetition, as many as one call moves.
#[derive(Debug)]
pub(crate) struct FileContent {
    bytes: Vec<u8>,
}

impl FileContent {
    /// Generates content. Slices may have up to `slice_bytes_max` bytes.
    pub(crate) fn new(slice_bytes_max: usize, rng: &mut fastrand::Rng) -> FileContent {
        let mut cycle = vec![0; CYCLE_BYTES];
        rng.fill(&mut cycle);
        FileContent { bytes: cycle.iter().copied().cycle().take(CYCLE_BYTES + slice_bytes_max).collect() }
    }

    /// The bytes at `place` in the file with this number.
    pub(crate) fn slice(&self, number: u64, place: u64, length: usize) -> &[u8] {
        let cycle = CYCLE_BYTES as u64;
        let start = ((number % cycle + place % cycle) % cycle) as usize;
        &self.bytes[start..start + length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_of_any_length_agree_on_every_byte() {
        let content = FileContent::new(512, &mut fastrand::Rng::with_seed(1));
        for place in (0..40_000).step_by(97) {
            let slice = content.slice(7, place, 512);
            let single: Vec<u8> = (0..512).map(|at| content.slice(7, place + at, 1)[0]).collect();
            assert_eq!(slice, single, "at {place}");
        }
    }

    #[test]
    fn other_files_and_other_places_differ() {
        let content = FileContent::new(512, &mut fastrand::Rng::with_seed(1));
        assert_ne!(content.slice(7, 0, 64), content.slice(8, 0, 64));
        assert_ne!(content.slice(7, 0, 64), content.slice(7, 4096, 64));
    }
}
