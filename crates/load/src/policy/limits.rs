//! The terms of the policy: gauges and readings, limits and restrictions.
//!
//! Readings and thresholds are numbers in the unit of their gauge: tasks, percent, bytes, files.
//! Bytes are exact up to 8 PiB, which is precise enough for any limit.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use mail::Timestamp;

use super::Shortage;
use crate::PressureResource;

/// The limits. `None` means no limit.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadLimits {
    /// Load average over one minute above which new mail waits in the queue. Default: none.
    pub queue_only_above: Option<f64>,
    /// Load average over one minute above which no delivery starts. Default: none.
    pub no_delivery_above: Option<f64>,
    /// Load average over one minute above which only reserved networks may connect. Default: none.
    pub refuse_above: Option<f64>,
    /// Percentage of the last ten seconds in which tasks waited for a processor, above which only
    /// reserved networks may connect. Default: none.
    pub cpu_pressure_max: Option<f64>,
    /// The same for memory. Default: none.
    pub memory_pressure_max: Option<f64>,
    /// The same for disks. Default: none.
    pub io_pressure_max: Option<f64>,
    /// Bytes of memory that must be available, or mail is refused. Default: none.
    pub memory_min: Option<u64>,
    /// Bytes that must be free on each disk, or mail is refused. Default: 256 MiB.
    pub space_min: u64,
    /// Free inodes that each disk must have, or mail is refused. Default: 1000.
    pub inodes_min: u64,
    /// The fraction of a limit by which the gauge must be back before the limit becomes inactive.
    /// Default: 0.1.
    pub margin: f64,
}

impl Default for LoadLimits {
    fn default() -> Self {
        LoadLimits {
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

/// A quantity that is sampled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gauge {
    /// The load average over one minute, in tasks.
    LoadAverage,
    /// The percentage of the last ten seconds in which at least one task waited.
    Pressure(PressureResource),
    /// The memory that programs can still allocate, in bytes.
    MemoryAvailable,
    /// The free space of the disk that contains this path, in bytes.
    FreeSpace(Arc<Path>),
    /// The free inodes of the disk that contains this path.
    FreeInodes(Arc<Path>),
}

/// The reading of one gauge.
#[derive(Clone, Debug, PartialEq)]
pub struct GaugeReading {
    /// The gauge.
    pub gauge: Gauge,
    /// The source: a file of /proc, or a system call.
    pub source: &'static str,
    /// The value in the unit of the gauge; `None` if the machine lacks the gauge, or it could not
    /// be read this time.
    pub value: Option<f64>,
}

/// The readings of all gauges.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadSample {
    /// When it was taken.
    pub at: Timestamp,
    /// Each gauge once, always in the same order.
    pub readings: Vec<GaugeReading>,
}

/// What is restricted while a limit is active.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadRestriction {
    /// New mail waits in the queue.
    QueueOnly,
    /// No delivery starts.
    NoDelivery,
    /// Only reserved networks may connect.
    ReservedOnly,
    /// Mail is refused.
    NoMail(Shortage),
}

/// The boundary of the acceptable values of a gauge.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Threshold {
    /// Higher values are too high.
    Above(f64),
    /// Lower values are too low.
    Below(f64),
}

/// One limit of one gauge.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadLimit {
    /// The gauge.
    pub gauge: Gauge,
    /// The threshold.
    pub threshold: Threshold,
    /// The restriction while the limit is active.
    pub restriction: LoadRestriction,
}

impl LoadLimits {
    /// The limits of a gauge, the mildest first.
    pub fn for_gauge(&self, gauge: &Gauge) -> Vec<LoadLimit> {
        use Threshold::{Above, Below};
        let refuse = |most: Option<f64>| vec![(most.map(Above), LoadRestriction::ReservedOnly)];
        let disk_limit = |least: u64| vec![(Some(Below(least as f64)), LoadRestriction::NoMail(Shortage::Disk))];
        let bounds = match gauge {
            Gauge::LoadAverage => vec![
                (self.queue_only_above.map(Above), LoadRestriction::QueueOnly),
                (self.no_delivery_above.map(Above), LoadRestriction::NoDelivery),
                (self.refuse_above.map(Above), LoadRestriction::ReservedOnly),
            ],
            Gauge::Pressure(PressureResource::Cpu) => refuse(self.cpu_pressure_max),
            Gauge::Pressure(PressureResource::Memory) => refuse(self.memory_pressure_max),
            Gauge::Pressure(PressureResource::Io) => refuse(self.io_pressure_max),
            Gauge::MemoryAvailable => {
                vec![(self.memory_min.map(|least| Below(least as f64)), LoadRestriction::NoMail(Shortage::Memory))]
            }
            Gauge::FreeSpace(_) => disk_limit(self.space_min),
            Gauge::FreeInodes(_) => disk_limit(self.inodes_min),
        };
        let limit = |(bound, measure): (Option<Threshold>, _)| {
            Some(LoadLimit { gauge: gauge.clone(), threshold: bound?, restriction: measure })
        };
        bounds.into_iter().filter_map(limit).collect()
    }
}

impl Threshold {
    /// Whether a value is beyond the threshold.
    pub(super) fn is_exceeded(self, value: f64) -> bool {
        match self {
            Threshold::Above(most) => value > most,
            Threshold::Below(least) => value < least,
        }
    }

    /// Whether a value is back by the margin, a fraction of the threshold.
    pub(super) fn is_cleared(self, value: f64, margin: f64) -> bool {
        match self {
            Threshold::Above(most) => value <= most * (1.0 - margin),
            Threshold::Below(least) => value >= least * (1.0 + margin),
        }
    }
}

impl fmt::Display for Gauge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Gauge::LoadAverage => f.write_str("load average"),
            Gauge::Pressure(PressureResource::Cpu) => f.write_str("cpu pressure"),
            Gauge::Pressure(PressureResource::Memory) => f.write_str("memory pressure"),
            Gauge::Pressure(PressureResource::Io) => f.write_str("io pressure"),
            Gauge::MemoryAvailable => f.write_str("available memory"),
            Gauge::FreeSpace(path) => write!(f, "free space of {}", path.display()),
            Gauge::FreeInodes(path) => write!(f, "free inodes of {}", path.display()),
        }
    }
}

impl fmt::Display for LoadRestriction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LoadRestriction::QueueOnly => "new mail waits in its queue",
            LoadRestriction::NoDelivery => "no delivery starts",
            LoadRestriction::ReservedOnly => "only the reserved networks are let in",
            LoadRestriction::NoMail(_) => "no mail is taken",
        })
    }
}

impl fmt::Display for Threshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Threshold::Above(most) => write!(f, "above {most}"),
            Threshold::Below(least) => write!(f, "below {least}"),
        }
    }
}
