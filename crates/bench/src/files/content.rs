//! What is in the files: bytes that follow from a file's number and the place in it, so that whatever is read can be
//! held against what was written, at the price of one comparison.
//!
//! All content is cut from one cycle of random bytes. Each number begins at a place of its own in the cycle, and a file
//! longer than the cycle runs through it again; numbers that are equal modulo the cycle's length have equal content.

/// A prime, so that no block size divides it: bytes at the wrong place differ.
const CYCLE_BYTES: usize = 16_381;

/// The cycle, and as much of its beginning behind it as one call moves.
#[derive(Debug)]
pub(crate) struct Content {
    bytes: Vec<u8>,
}

impl Content {
    /// Content of which up to `slice_bytes_max` are asked for at a time.
    pub(crate) fn new(slice_bytes_max: usize, rng: &mut fastrand::Rng) -> Content {
        let mut cycle = vec![0; CYCLE_BYTES];
        rng.fill(&mut cycle);
        Content { bytes: cycle.iter().copied().cycle().take(CYCLE_BYTES + slice_bytes_max).collect() }
    }

    /// What stands at `place` in the file of that number.
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
        let content = Content::new(512, &mut fastrand::Rng::with_seed(1));
        for place in (0..40_000).step_by(97) {
            let slice = content.slice(7, place, 512);
            let single: Vec<u8> = (0..512).map(|at| content.slice(7, place + at, 1)[0]).collect();
            assert_eq!(slice, single, "at {place}");
        }
    }

    #[test]
    fn other_files_and_other_places_differ() {
        let content = Content::new(512, &mut fastrand::Rng::with_seed(1));
        assert_ne!(content.slice(7, 0, 64), content.slice(8, 0, 64));
        assert_ne!(content.slice(7, 0, 64), content.slice(7, 4096, 64));
    }
}
