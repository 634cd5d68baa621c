//! Limits on system load and free memory, above which the server does less or nothing.

use std::time::Duration;

use mail::Networks;

/// Limits on system load. None: no limit.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadSettings {
    /// Load average of one minute above which new mail is accepted but not delivered immediately.
    pub queue_only_above: Option<f64>,
    /// Load average above which nothing is delivered.
    pub no_delivery_above: Option<f64>,
    /// Load average above which only the reserved networks may connect (421).
    pub refuse_above: Option<f64>,
    /// The same for the share of time, in percent, in which some task waited for a processor.
    pub cpu_pressure_max: Option<f64>,
    /// The same for disks.
    pub io_pressure_max: Option<f64>,
    /// The same for memory.
    pub memory_pressure_max: Option<f64>,
    /// Bytes of available memory below which new mail gets 452.
    pub memory_min: Option<u64>,
    /// The fraction by which a value must improve beyond its limit before the limit stops applying,
    /// so that it does not flap.
    pub margin: f64,
    /// The time between checks.
    pub every: Duration,
    /// Networks that may always connect.
    pub reserve: Networks,
}

impl Default for LoadSettings {
    fn default() -> Self {
        LoadSettings {
            queue_only_above: None,
            no_delivery_above: None,
            refuse_above: None,
            cpu_pressure_max: None,
            io_pressure_max: None,
            memory_pressure_max: None,
            memory_min: None,
            margin: 0.1,
            every: Duration::from_secs(1),
            reserve: Networks::loopback(),
        }
    }
}
