//! Gauges of the machine: load average, processors, pressure, memory, disks. They are sampled on a
//! timer, never read per message. The [`LoadMonitor`] takes the samples, and the [`policy`] decides
//! what to restrict.
//!
//! A source is opened once; its handle stays open and each sample is a `pread`, which costs a
//! fraction of opening the file again (`mailrace bench load` measures it). Pure functions parse
//! what the kernel writes, and return `None` for an unknown format. No error here is fatal: if the
//! machine lacks a gauge, opening its source fails, and a file with an unexpected format gives an
//! error of kind `InvalidData` that names the file.

mod average;
mod disk;
mod machine;
mod memory;
mod monitor;
pub mod policy;
mod pressure;
mod proc_file;
mod process;
mod processors;
mod space;

pub use average::{LoadAverage, LoadAverageReader, PROC_LOADAVG};
pub use disk::{DiskStats, DiskStatsReader};
pub use machine::MachineGaugeReader;
pub use memory::{AvailableMemory, AvailableMemoryReader};
pub use monitor::{GaugeReader, LoadMonitor, LoadMonitorHandle, LoadMonitorThread, LoadReport, SAMPLE_EVERY};
pub use policy::{AllowedClients, AllowedDeliveries, LoadLimits, LoadRestrictions, Shortage};
pub use pressure::{PressureReader, PressureResource, PressureTotals};
pub use process::ProcessCpuTime;
pub use processors::{CpuTimes, CpuTimesReader};
pub use space::{FreeSpace, FreeSpaceReader};
