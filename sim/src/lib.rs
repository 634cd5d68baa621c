//! For tests: a simulated disk with the worst behavior that a real one may have, and free ports.
//!
//! A [`Disk`] is in memory and keeps two states: what a reader sees now, and what is durable.
//! [`Disk::crash`] derives the disk after a power failure from a seed: it loses any subset of the
//! unsynced sectors and names. The test plans faults in advance (errors, a full device, short
//! writes, a power failure at step n). The disk reads no clock and no system randomness: one seed and
//! one order of calls give one disk. [`Disk::log`] returns the history, for the message of a
//! failing test.

mod content;
mod disk;
mod fault_plan;
mod folder;
mod port;
mod random;

pub use content::SECTOR;
pub use disk::{Disk, OperationHold};
pub use fault_plan::{EIO, ENOSPC, OperationKind};
pub use port::free_port;
pub use random::Random;
