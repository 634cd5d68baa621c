//! The spool on a simulated disk: its promises hold under every failure of the disk.

mod adopt;
mod batching;
mod commit_step;
mod corrupted;
mod crash;
mod faults;
mod golden;
mod harness;
mod inspection;
mod promises;
mod reclaim;
mod recovery;
mod restore;
mod spill;
