//! Gauges of the machine: load average, processors, pressure, memory, disks; sampled, never asked per message. And what
//! follows from them: the [`Monitor`] samples on a timer and the [`policy`] says what may still be done.
//!
//! A source is opened once and sampled as often as is wanted: its handle stays open and is read by `pread`, which costs
//! a fraction of opening the file again (`mailrace bench load` says which). What the kernel writes is read by pure
//! functions, which give `None` where it is not of the form they know. Nothing here is fatal: a machine that lacks a
//! gauge says so when the source is opened, and a file that does not read as expected is an error of the kind
//! `InvalidData` that names it.

mod average;
mod disk;
mod machine;
mod memory;
mod monitor;
pub mod policy;
mod pressure;
mod process;
mod processors;
mod record;
mod space;

pub use average::{LoadAverage, LoadAverageSource, PROC_LOADAVG};
pub use disk::{Disk, DiskSource};
pub use machine::Machine;
pub use memory::{Memory, MemorySource};
pub use monitor::{Monitor, Report, Running, SAMPLE_EVERY, Sources, Watch};
pub use policy::{Delivery, Intake, Limits, Measures, Shortage};
pub use pressure::{Pressure, PressureSource, Resource};
pub use process::ProcessTime;
pub use processors::{ProcessorSource, Processors};
pub use space::{Space, SpaceSource};
