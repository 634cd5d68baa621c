//! When the machine is busy, or short of room: from where on less is done, or nothing.

use std::time::Duration;

use super::{Network, loopback};

/// How the server spares its machine. A limit that is None is not in force.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// Load average of a minute above which mail is taken in, and what is new is not delivered at once.
    pub queue_only_above: Option<f64>,
    /// Load average above which nothing is delivered.
    pub no_delivery_above: Option<f64>,
    /// Load average above which only the reserved networks are let in (421).
    pub refuse_above: Option<f64>,
    /// The same by the share of time, in percent, in which some task waited for a processor.
    pub cpu_pressure_max: Option<f64>,
    /// The same for a disk.
    pub io_pressure_max: Option<f64>,
    /// The same for memory.
    pub memory_pressure_max: Option<f64>,
    /// Bytes available to programs below which new mail is told 452.
    pub memory_min: Option<u64>,
    /// The share by which a value has to come back from its limit before that is left, so that it does not flap.
    pub margin: f64,
    /// The time between looks.
    pub every: Duration,
    /// Who is let in when others are not.
    pub reserve: Vec<Network>,
}

impl Default for Load {
    fn default() -> Self {
        Load {
            queue_only_above: None,
            no_delivery_above: None,
            refuse_above: None,
            cpu_pressure_max: None,
            io_pressure_max: None,
            memory_pressure_max: None,
            memory_min: None,
            margin: 0.1,
            every: Duration::from_secs(1),
            reserve: loopback(),
        }
    }
}
