//! The spool on a simulated disk: its promises hold under every failure of the disk.

mod book;
mod crash;
mod faults;
mod hostile;
mod reclaim;
mod recovery;
mod rig;
