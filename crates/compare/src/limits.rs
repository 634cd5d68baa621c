//! What limited a run, from how busy the parts of the machine were.
//!
//! Shares are from 0 to 1, each of what the part can do in the time. The first part that was as good as
//! fully busy counts: all processors before the load, since a load on a full machine competes with the
//! server for them.

use crate::result::Limit;

/// A part that is busier than this is full. Gauges and the time of the run do not begin in the same
/// instant, and no run is busy from its first to its last moment.
pub const FULL: f64 = 0.9;

/// How busy the parts of the machine were in a run; None where it is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shares {
    /// All processors together.
    pub processors: Option<f64>,
    /// The busiest thread of the system, of one processor: a server with one thread is at its end on
    /// a machine with many processors.
    pub busiest_thread: Option<f64>,
    /// The load, of as many processors as it has threads.
    pub load: Option<f64>,
    /// The disk with the system's files.
    pub disk: Option<f64>,
    /// The busiest direction of the busiest interface, without loopback.
    pub network: Option<f64>,
}

/// What limited the run; None if the processors are not known and nothing else was full.
#[must_use]
pub fn limit(shares: &Shares) -> Option<Limit> {
    let is_full = |share: Option<f64>| share.is_some_and(|share| share >= FULL);
    let parts = [
        (shares.processors, Limit::Processor),
        (shares.load, Limit::Load),
        (shares.busiest_thread, Limit::Thread),
        (shares.disk, Limit::Disk),
        (shares.network, Limit::Network),
    ];
    let full = parts.into_iter().find(|(share, _)| is_full(*share)).map(|(_, limit)| limit);
    full.or(shares.processors.map(|_| Limit::Waiting))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_machine_comes_before_a_full_load_and_waiting_comes_last() {
        let idle = Shares {
            processors: Some(0.3),
            busiest_thread: Some(0.2),
            load: Some(0.1),
            disk: Some(0.5),
            network: None,
        };
        let busy = Some(0.95);
        for (shares, expected) in [
            (Shares { processors: busy, load: busy, disk: busy, ..idle }, Some(Limit::Processor)),
            (Shares { load: busy, busiest_thread: busy, disk: busy, ..idle }, Some(Limit::Load)),
            (Shares { busiest_thread: busy, disk: busy, ..idle }, Some(Limit::Thread)),
            (Shares { disk: busy, network: busy, ..idle }, Some(Limit::Disk)),
            (Shares { network: busy, ..idle }, Some(Limit::Network)),
            (idle, Some(Limit::Waiting)),
            (Shares::default(), None),
            (Shares { disk: busy, ..Shares::default() }, Some(Limit::Disk)),
        ] {
            assert_eq!(limit(&shares), expected, "{shares:?}");
        }
    }
}
