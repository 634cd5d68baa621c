//! A disk that does the worst a real one may do, for tests.
//!
//! A [`Disk`] lives in memory and keeps two truths: what a reader sees now, and what would be there after the
//! power failed. [`Disk::crash`] makes the second one up from a seed: it loses any subset of the sectors and of
//! the names that no sync has covered. Faults (errors, a full device, short writes, death at the n-th step) are
//! planned by the test beforehand. Nothing asks the clock or the system for randomness: one seed and one order
//! of calls give one disk. [`Disk::log`] tells what happened, for the message of a failing test.

mod content;
mod disk;
mod folder;
mod plan;
mod random;

pub use content::SECTOR;
pub use disk::{Disk, Hold};
pub use plan::{EIO, ENOSPC, Kind};
pub use random::Random;
