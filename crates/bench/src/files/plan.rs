//! Chooses the next file and operation. The choices follow from the seed alone.
//!
//! ```text
//! transaction = one of { read a file, append to a file }, then one of { create a file, delete a file }
//! ```
//!
//! The pool size is a random walk within limits: the last file is never deleted, and at most
//! [`POOL_GROWTH_MAX`] times the initial number of files exist; at a limit the opposite operation
//! is chosen. A file that has its full size is read instead of appended to.

use std::ops::RangeInclusive;

use fastrand::Rng;

/// How many times its initial size the pool may grow to, as in postmark.
const POOL_GROWTH_MAX: usize = 2;
/// Biases are out of ten.
pub(crate) const BIAS_MAX: u8 = 10;

/// The settings of the pool.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    /// Initial number of files.
    pub(crate) files: usize,
    /// Size of a new file, and the most that a file grows to.
    pub(crate) size: RangeInclusive<u64>,
    /// Subfolders that the files are spread over; 0 is the folder itself.
    pub(crate) subfolders: usize,
    /// How many of ten files are read rather than appended to.
    pub(crate) read_bias: u8,
    /// How many of ten files are created rather than deleted.
    pub(crate) create_bias: u8,
}

/// A file before the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Its name; also selects its content (see [`super::content::Content`]).
    pub(crate) number: u64,
    /// The index of its subfolder.
    pub(crate) subfolder: usize,
    pub(crate) size: u64,
}

/// An operation on a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Create a file of this size.
    Create(Entry),
    /// Read the whole file.
    Read(Entry),
    /// Append this number of bytes.
    Append(Entry, u64),
    /// Delete the file.
    Delete(Entry),
}

/// The pool as it is after all operations so far.
#[derive(Debug)]
pub(crate) struct Plan {
    shape: Shape,
    rng: Rng,
    live: Vec<Entry>,
    numbers: u64,
}

impl Plan {
    pub(crate) fn new(shape: Shape, rng: Rng) -> Plan {
        Plan { shape, rng, live: Vec::new(), numbers: 0 }
    }

    /// Creates the next of the initial files.
    pub(crate) fn create(&mut self) -> Act {
        self.numbers += 1;
        let subfolder = self.rng.usize(0..self.shape.subfolders.max(1));
        let entry = Entry { number: self.numbers, subfolder, size: self.rng.u64(self.shape.size.clone()) };
        self.live.push(entry);
        Act::Create(entry)
    }

    /// The two operations of a transaction, in order.
    pub(crate) fn transaction(&mut self) -> [Act; 2] {
        [self.use_one(), self.make_or_delete_one()]
    }

    /// Deletes one of the remaining files; `None` when there are none.
    pub(crate) fn clear(&mut self) -> Option<Act> {
        self.live.pop().map(Act::Delete)
    }

    fn use_one(&mut self) -> Act {
        let chosen = self.rng.usize(0..self.live.len());
        let before = self.live[chosen];
        let room = self.shape.size.end() - before.size;
        if self.chance(self.shape.read_bias) || room == 0 {
            return Act::Read(before);
        }
        let added = self.rng.u64(1..=room);
        self.live[chosen].size += added;
        Act::Append(before, added)
    }

    fn make_or_delete_one(&mut self) -> Act {
        let may_grow = self.live.len() < self.shape.files * POOL_GROWTH_MAX;
        let may_shrink = self.live.len() > 1;
        if may_grow && (self.chance(self.shape.create_bias) || !may_shrink) {
            return self.create();
        }
        let chosen = self.rng.usize(0..self.live.len());
        Act::Delete(self.live.swap_remove(chosen))
    }

    fn chance(&mut self, bias: u8) -> bool {
        self.rng.u8(0..BIAS_MAX) < bias
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn shape() -> Shape {
        Shape { files: 20, size: 500..=10_000, subfolders: 3, read_bias: 5, create_bias: 5 }
    }

    fn acts(shape: Shape, transactions: usize, seed: u64) -> Vec<Act> {
        let mut plan = Plan::new(shape.clone(), Rng::with_seed(seed));
        let mut acts: Vec<Act> = (0..shape.files).map(|_| plan.create()).collect();
        acts.extend((0..transactions).flat_map(|_| plan.transaction()));
        acts.extend(std::iter::from_fn(|| plan.clear()));
        acts
    }

    #[test]
    fn the_same_seed_plans_the_same() {
        assert_eq!(acts(shape(), 500, 1), acts(shape(), 500, 1));
        assert_ne!(acts(shape(), 500, 1), acts(shape(), 500, 2));
    }

    /// A model replays the operations: each must find the file in the state that the plan expects.
    #[test]
    fn every_act_meets_a_file_that_is_there_and_in_the_end_none_is() {
        for create_bias in [0, 5, 10] {
            let mut sizes = HashMap::new();
            for act in acts(Shape { create_bias, ..shape() }, 5000, 3) {
                match act {
                    Act::Create(new) => assert_eq!(sizes.insert(new.number, new.size), None),
                    Act::Read(file) => assert_eq!(sizes.get(&file.number), Some(&file.size)),
                    Act::Append(file, added) => {
                        assert!(added > 0 && file.size + added <= 10_000);
                        assert_eq!(sizes.insert(file.number, file.size + added), Some(file.size));
                    }
                    Act::Delete(file) => assert_eq!(sizes.remove(&file.number), Some(file.size)),
                }
                assert!(sizes.len() <= 40, "the pool grew too large");
            }
            assert!(sizes.is_empty());
        }
    }

    #[test]
    fn biases_decide() {
        let count = |shape, of: fn(&Act) -> bool| acts(shape, 1000, 4).iter().filter(|act| of(act)).count();
        let reads = |read_bias| count(Shape { read_bias, ..shape() }, |act| matches!(act, Act::Read(_)));
        assert_eq!(reads(10), 1000);
        assert!((400..600).contains(&reads(5)));
        assert!(reads(0) < 100, "only full files are read");
    }
}
