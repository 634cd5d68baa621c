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
pub(crate) struct PoolShape {
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
pub(crate) struct PoolFile {
    /// Its name; also selects its content (see [`super::content::FileContent`]).
    pub(crate) number: u64,
    /// The index of its subfolder.
    pub(crate) subfolder: usize,
    pub(crate) size: u64,
}

/// An operation on a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileOperation {
    /// Create a file of this size.
    Create(PoolFile),
    /// Read the whole file.
    Read(PoolFile),
    /// Append this number of bytes.
    Append(PoolFile, u64),
    /// Delete the file.
    Delete(PoolFile),
}

/// The pool as it is after all operations so far.
#[derive(Debug)]
pub(crate) struct OperationPlan {
    shape: PoolShape,
    rng: Rng,
    live: Vec<PoolFile>,
    numbers: u64,
}

impl OperationPlan {
    pub(crate) fn new(shape: PoolShape, rng: Rng) -> OperationPlan {
        OperationPlan { shape, rng, live: Vec::new(), numbers: 0 }
    }

    /// Creates the next of the initial files.
    pub(crate) fn create(&mut self) -> FileOperation {
        self.numbers += 1;
        let subfolder = self.rng.usize(0..self.shape.subfolders.max(1));
        let file = PoolFile { number: self.numbers, subfolder, size: self.rng.u64(self.shape.size.clone()) };
        self.live.push(file);
        FileOperation::Create(file)
    }

    /// The two operations of a transaction, in order.
    pub(crate) fn transaction(&mut self) -> [FileOperation; 2] {
        [self.read_or_append(), self.create_or_delete()]
    }

    /// Deletes one of the remaining files; `None` when there are none.
    pub(crate) fn delete_next(&mut self) -> Option<FileOperation> {
        self.live.pop().map(FileOperation::Delete)
    }

    fn read_or_append(&mut self) -> FileOperation {
        let chosen = self.rng.usize(0..self.live.len());
        let before = self.live[chosen];
        let growth_left = self.shape.size.end() - before.size;
        if self.chance(self.shape.read_bias) || growth_left == 0 {
            return FileOperation::Read(before);
        }
        let added = self.rng.u64(1..=growth_left);
        self.live[chosen].size += added;
        FileOperation::Append(before, added)
    }

    fn create_or_delete(&mut self) -> FileOperation {
        let may_grow = self.live.len() < self.shape.files * POOL_GROWTH_MAX;
        let may_shrink = self.live.len() > 1;
        if may_grow && (self.chance(self.shape.create_bias) || !may_shrink) {
            return self.create();
        }
        let chosen = self.rng.usize(0..self.live.len());
        FileOperation::Delete(self.live.swap_remove(chosen))
    }

    fn chance(&mut self, bias: u8) -> bool {
        self.rng.u8(0..BIAS_MAX) < bias
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn shape() -> PoolShape {
        PoolShape { files: 20, size: 500..=10_000, subfolders: 3, read_bias: 5, create_bias: 5 }
    }

    fn operations(shape: PoolShape, transactions: usize, seed: u64) -> Vec<FileOperation> {
        let mut plan = OperationPlan::new(shape.clone(), Rng::with_seed(seed));
        let mut acts: Vec<FileOperation> = (0..shape.files).map(|_| plan.create()).collect();
        acts.extend((0..transactions).flat_map(|_| plan.transaction()));
        acts.extend(std::iter::from_fn(|| plan.delete_next()));
        acts
    }

    #[test]
    fn the_same_seed_plans_the_same() {
        assert_eq!(operations(shape(), 500, 1), operations(shape(), 500, 1));
        assert_ne!(operations(shape(), 500, 1), operations(shape(), 500, 2));
    }

    /// A model replays the operations: each must find the file in the state that the plan expects.
    #[test]
    fn every_operation_finds_its_file_and_all_files_are_deleted() {
        for create_bias in [0, 5, 10] {
            let mut sizes = HashMap::new();
            for act in operations(PoolShape { create_bias, ..shape() }, 5000, 3) {
                match act {
                    FileOperation::Create(new) => assert_eq!(sizes.insert(new.number, new.size), None),
                    FileOperation::Read(file) => assert_eq!(sizes.get(&file.number), Some(&file.size)),
                    FileOperation::Append(file, added) => {
                        assert!(added > 0 && file.size + added <= 10_000);
                        assert_eq!(sizes.insert(file.number, file.size + added), Some(file.size));
                    }
                    FileOperation::Delete(file) => assert_eq!(sizes.remove(&file.number), Some(file.size)),
                }
                assert!(sizes.len() <= 40, "the pool grew too large");
            }
            assert!(sizes.is_empty());
        }
    }

    #[test]
    fn biases_set_the_ratio_of_operations() {
        let count =
            |shape, of: fn(&FileOperation) -> bool| operations(shape, 1000, 4).iter().filter(|act| of(act)).count();
        let reads = |read_bias| count(PoolShape { read_bias, ..shape() }, |act| matches!(act, FileOperation::Read(_)));
        assert_eq!(reads(10), 1000);
        assert!((400..600).contains(&reads(5)));
        assert!(reads(0) < 100, "only full files are read");
    }
}
