//! A simulated disk with the worst behavior that a real one may have, for tests.
//!
//! A [`Disk`] is in memory and keeps two states: what a reader sees now, and what is durable.
//! [`Disk::crash`] derives the disk after a power failure from a seed: it loses any subset of the
//! unsynced sectors and names. The test plans faults in advance (errors, a full device, short
//! writes, a power failure at step n). Nothing reads the clock or system randomness: one seed and
//! one order of calls give one disk. [`Disk::log`] returns the history, for the message of a
//! failing test.

mod content;
mod disk;
mod fault_plan;
mod folder;
mod random;

pub use content::SECTOR;
pub use disk::{Disk, OperationHold};
pub use fault_plan::{EIO, ENOSPC, OperationKind};
pub use random::Random;
