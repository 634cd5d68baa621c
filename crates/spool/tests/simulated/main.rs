//! The spool on a simulated disk: the promises of section 3 of the design, under everything that a disk does.

mod book;
mod crash;
mod faults;
mod hostile;
mod reclaim;
mod recovery;
mod rig;
