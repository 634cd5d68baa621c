//! The words of the policy: gauges and what they say, limits and what follows from them.
//!
//! Readings and bounds are numbers in the unit of their gauge: tasks, percent, bytes, files. Bytes stay exact up to 8 PiB,
//! and beyond that no limit is about a single one.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use mail::Timestamp;

use super::Shortage;
use crate::Resource;

/// The limits. One that is `None` is never in force.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Load average over a minute, above which new mail waits in its queue. Default: none.
    pub queue_only_above: Option<f64>,
    /// Load average over a minute, above which no delivery starts. Default: none.
    pub no_delivery_above: Option<f64>,
    /// Load average over a minute, above which only the reserved networks are let in. Default: none.
    pub refuse_above: Option<f64>,
    /// Percent of ten seconds in which tasks waited for a processor; above it as `refuse_above`. Default: none.
    pub cpu_pressure_max: Option<f64>,
    /// The same of memory. Default: none.
    pub memory_pressure_max: Option<f64>,
    /// The same of disks. Default: none.
    pub io_pressure_max: Option<f64>,
    /// Bytes that programs must still be able to have, or no mail is taken. Default: none.
    pub memory_min: Option<u64>,
    /// Bytes that must be free on each disk, or no mail is taken. Default: 256 MiB.
    pub space_min: u64,
    /// Files that each disk must still be able to take, or no mail is taken. Default: 1000.
    pub inodes_min: u64,
    /// By what share of itself a limit must be cleared before it is left. Default: 0.1.
    pub margin: f64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            queue_only_above: None,
            no_delivery_above: None,
            refuse_above: None,
            cpu_pressure_max: None,
            memory_pressure_max: None,
            io_pressure_max: None,
            memory_min: None,
            space_min: 256 << 20,
            inodes_min: 1000,
            margin: 0.1,
        }
    }
}

/// Something that is sampled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gauge {
    /// Over the last minute, in tasks.
    LoadAverage,
    /// The share of the last ten seconds in which at least one task waited, in percent.
    Pressure(Resource),
    /// What programs can still have, in bytes.
    MemoryAvailable,
    /// What can still be written to the disk that holds this path, in bytes.
    FreeSpace(Arc<Path>),
    /// Files that can still be made on the disk that holds this path.
    FreeInodes(Arc<Path>),
}

/// What one gauge said.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// Which.
    pub gauge: Gauge,
    /// Where it is read: a file of /proc, or a system call.
    pub source: &'static str,
    /// In the unit of the gauge; `None` where the machine does not have it, or it could not be read this time.
    pub value: Option<f64>,
}

/// What all gauges said.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// When.
    pub at: Timestamp,
    /// Each gauge once, always in the same order.
    pub readings: Vec<Reading>,
}

/// What is done while a limit is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// New mail waits in its queue.
    QueueOnly,
    /// No delivery starts.
    NoDelivery,
    /// Only the reserved networks are let in.
    ReservedOnly,
    /// No mail is taken.
    NoMail(Shortage),
}

/// Where the good values of a gauge end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// Higher ones are too high.
    Above(f64),
    /// Lower ones are too low.
    Below(f64),
}

/// One limit of one gauge.
#[derive(Clone, Debug, PartialEq)]
pub struct Limit {
    /// The gauge.
    pub gauge: Gauge,
    /// Its bound.
    pub bound: Bound,
    /// What follows.
    pub measure: Measure,
}

impl Limits {
    /// Those of a gauge, the mildest first.
    pub fn of(&self, gauge: &Gauge) -> Vec<Limit> {
        use Bound::{Above, Below};
        let refuse = |most: Option<f64>| vec![(most.map(Above), Measure::ReservedOnly)];
        let room = |least: u64| vec![(Some(Below(least as f64)), Measure::NoMail(Shortage::Disk))];
        let bounds = match gauge {
            Gauge::LoadAverage => vec![
                (self.queue_only_above.map(Above), Measure::QueueOnly),
                (self.no_delivery_above.map(Above), Measure::NoDelivery),
                (self.refuse_above.map(Above), Measure::ReservedOnly),
            ],
            Gauge::Pressure(Resource::Cpu) => refuse(self.cpu_pressure_max),
            Gauge::Pressure(Resource::Memory) => refuse(self.memory_pressure_max),
            Gauge::Pressure(Resource::Io) => refuse(self.io_pressure_max),
            Gauge::MemoryAvailable => {
                vec![(self.memory_min.map(|least| Below(least as f64)), Measure::NoMail(Shortage::Memory))]
            }
            Gauge::FreeSpace(_) => room(self.space_min),
            Gauge::FreeInodes(_) => room(self.inodes_min),
        };
        let limit = |(bound, measure): (Option<Bound>, _)| Some(Limit { gauge: gauge.clone(), bound: bound?, measure });
        bounds.into_iter().filter_map(limit).collect()
    }
}

impl Bound {
    /// Whether a value is beyond it.
    pub(super) fn is_passed(self, value: f64) -> bool {
        match self {
            Bound::Above(most) => value > most,
            Bound::Below(least) => value < least,
        }
    }

    /// Whether a value is back from it by the margin, a share of the bound.
    pub(super) fn is_cleared(self, value: f64, margin: f64) -> bool {
        match self {
            Bound::Above(most) => value <= most * (1.0 - margin),
            Bound::Below(least) => value >= least * (1.0 + margin),
        }
    }
}

impl fmt::Display for Gauge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Gauge::LoadAverage => f.write_str("load average"),
            Gauge::Pressure(Resource::Cpu) => f.write_str("cpu pressure"),
            Gauge::Pressure(Resource::Memory) => f.write_str("memory pressure"),
            Gauge::Pressure(Resource::Io) => f.write_str("io pressure"),
            Gauge::MemoryAvailable => f.write_str("available memory"),
            Gauge::FreeSpace(path) => write!(f, "free space of {}", path.display()),
            Gauge::FreeInodes(path) => write!(f, "free inodes of {}", path.display()),
        }
    }
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Measure::QueueOnly => "new mail waits in its queue",
            Measure::NoDelivery => "no delivery starts",
            Measure::ReservedOnly => "only the reserved networks are let in",
            Measure::NoMail(_) => "no mail is taken",
        })
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bound::Above(most) => write!(f, "above {most}"),
            Bound::Below(least) => write!(f, "below {least}"),
        }
    }
}
