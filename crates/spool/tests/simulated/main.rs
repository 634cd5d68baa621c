//! The spool on a simulated disk: its promises hold under every failure of the disk.

mod corrupted;
mod crash;
mod faults;
mod golden;
mod harness;
mod promises;
mod reclaim;
mod recovery;
