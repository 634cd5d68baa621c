//! Load policy: a pure function of the previous state, a sample and the limits.
//!
//! | gauge | limit | while it is active |
//! |---|---|---|
//! | load average over one minute | `queue_only_above` | mail is accepted, and new mail waits in the queue |
//! | | `no_delivery_above` | no delivery starts |
//! | | `refuse_above` | 421 4.3.2 on connect, except for reserved networks |
//! | pressure of processors, memory, disks | `cpu_`, `memory_`, `io_pressure_max` | the same 421 4.3.2 |
//! | available memory | `memory_min` | 452 4.3.1 to MAIL |
//! | free space and inodes of each disk | `space_min`, `inodes_min` | 452 4.3.1 to MAIL |
//!
//! A limit becomes active when its gauge crosses it, and inactive only when the gauge is back by a
//! margin, so that it does not flap. The limits of a gauge that cannot be read are inactive. A
//! message whose client got a 354 is never affected.

mod limits;

use std::fmt;

use mail::Timestamp;

pub use limits::{Gauge, GaugeReading, LoadLimit, LoadLimits, LoadRestriction, LoadSample, Threshold};

/// An active limit, and why it is active.
#[derive(Clone, Debug, PartialEq)]
pub struct ActiveLimit {
    /// The limit.
    pub limit: LoadLimit,
    /// The latest reading of its gauge.
    pub value: f64,
    /// When it became active.
    pub since: Timestamp,
}

/// The active limits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ActiveLimits {
    /// The active limits with their reasons; empty under normal load.
    pub active: Vec<ActiveLimit>,
}

/// Which deliveries may start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum AllowedDeliveries {
    /// All deliveries.
    #[default]
    All,
    /// Deliveries of mail that was accepted before; new mail waits.
    QueueOnly,
    /// No deliveries.
    None,
}

/// Which clients may connect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum AllowedClients {
    /// All clients.
    #[default]
    Open,
    /// Clients in reserved networks only.
    ReservedOnly,
    /// No clients: the server is draining its queue.
    None,
}

/// The resource whose shortage stops the server from accepting mail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shortage {
    /// Space or inodes on a disk.
    Disk,
    /// Memory.
    Memory,
}

/// All current restrictions: the strictest of those that the active limits require.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadRestrictions {
    /// Which deliveries may start.
    pub delivery: AllowedDeliveries,
    /// Which clients may connect.
    pub intake: AllowedClients,
    /// Why mail is refused, if it is.
    pub shortage: Option<Shortage>,
}

impl ActiveLimits {
    /// The state that follows this one after `sample`.
    #[must_use]
    pub fn after_sample(&self, sample: &LoadSample, limits: &LoadLimits) -> ActiveLimits {
        let reason = |reading: &GaugeReading, limit: LoadLimit| {
            let value = reading.value?;
            let before = self.active_limit(&limit);
            let holds = match before {
                Some(_) => !limit.threshold.is_cleared(value, limits.margin),
                None => limit.threshold.is_exceeded(value),
            };
            let since = before.map_or(sample.at, |before| before.since);
            holds.then_some(ActiveLimit { limit, value, since })
        };
        let reasons = sample.readings.iter().flat_map(|reading| {
            let limits = limits.for_gauge(&reading.gauge).into_iter();
            limits.filter_map(move |limit| reason(reading, limit))
        });
        ActiveLimits { active: reasons.collect() }
    }

    /// The restrictions in this state.
    pub fn restrictions(&self) -> LoadRestrictions {
        self.active.iter().fold(LoadRestrictions::default(), |measures, reason| measures.with(reason.limit.restriction))
    }

    /// The limits that are active now and were not in `earlier`.
    pub fn activated_since<'a>(&'a self, earlier: &'a ActiveLimits) -> impl Iterator<Item = &'a ActiveLimit> {
        self.active.iter().filter(|reason| earlier.active_limit(&reason.limit).is_none())
    }

    /// The limits that were active in `earlier` and are not now, with their last values.
    pub fn cleared_since<'a>(&'a self, earlier: &'a ActiveLimits) -> impl Iterator<Item = &'a ActiveLimit> {
        earlier.activated_since(self)
    }

    fn active_limit(&self, limit: &LoadLimit) -> Option<&ActiveLimit> {
        self.active.iter().find(|reason| reason.limit == *limit)
    }
}

impl LoadRestrictions {
    fn with(self, restriction: LoadRestriction) -> LoadRestrictions {
        let LoadRestrictions { delivery, intake, shortage } = self;
        match restriction {
            LoadRestriction::QueueOnly => {
                LoadRestrictions { delivery: delivery.max(AllowedDeliveries::QueueOnly), ..self }
            }
            LoadRestriction::NoDelivery => LoadRestrictions { delivery: AllowedDeliveries::None, ..self },
            LoadRestriction::ReservedOnly => {
                LoadRestrictions { intake: intake.max(AllowedClients::ReservedOnly), ..self }
            }
            LoadRestriction::NoMail(of) => {
                LoadRestrictions { shortage: Some(shortage.map_or(of, |other| other.min(of))), ..self }
            }
        }
    }

    /// Packs the restrictions into a number for an atomic.
    pub(crate) fn bits(self) -> u8 {
        let delivery = match self.delivery {
            AllowedDeliveries::All => 0,
            AllowedDeliveries::QueueOnly => 1,
            AllowedDeliveries::None => 2,
        };
        let intake = match self.intake {
            AllowedClients::Open => 0,
            AllowedClients::ReservedOnly => 1 << 2,
            AllowedClients::None => 2 << 2,
        };
        let shortage = match self.shortage {
            None => 0,
            Some(Shortage::Disk) => 1 << 4,
            Some(Shortage::Memory) => 2 << 4,
        };
        delivery | intake | shortage
    }

    /// Reverses [`LoadRestrictions::bits`].
    pub(crate) fn from_bits(bits: u8) -> LoadRestrictions {
        LoadRestrictions {
            delivery: match bits & 3 {
                0 => AllowedDeliveries::All,
                1 => AllowedDeliveries::QueueOnly,
                _ => AllowedDeliveries::None,
            },
            intake: match bits >> 2 & 3 {
                0 => AllowedClients::Open,
                1 => AllowedClients::ReservedOnly,
                _ => AllowedClients::None,
            },
            shortage: match bits >> 4 {
                0 => None,
                1 => Some(Shortage::Disk),
                _ => Some(Shortage::Memory),
            },
        }
    }
}

/// For the operator: `load average 21.3 (limit: above 20): only the reserved networks are let in`.
impl fmt::Display for ActiveLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LoadLimit { gauge, threshold: bound, restriction: measure } = &self.limit;
        write!(f, "{gauge} {} (limit: {bound}): {measure}", self.value)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::PressureResource;

    fn sample(at: u64, readings: &[(Gauge, Option<f64>)]) -> LoadSample {
        let reading = |(gauge, value): &(Gauge, Option<f64>)| GaugeReading {
            gauge: gauge.clone(),
            source: "fake",
            value: *value,
        };
        LoadSample { at: Timestamp(at), readings: readings.iter().map(reading).collect() }
    }

    fn load(at: u64, value: f64) -> LoadSample {
        sample(at, &[(Gauge::LoadAverage, Some(value))])
    }

    fn limits() -> LoadLimits {
        LoadLimits {
            queue_only_above: Some(8.0),
            no_delivery_above: Some(12.0),
            refuse_above: Some(20.0),
            io_pressure_max: Some(50.0),
            memory_min: Some(1000),
            space_min: 500,
            inodes_min: 100,
            ..LoadLimits::default()
        }
    }

    fn measures(state: &ActiveLimits) -> (AllowedDeliveries, AllowedClients, Option<Shortage>) {
        let LoadRestrictions { delivery, intake, shortage } = state.restrictions();
        (delivery, intake, shortage)
    }

    #[test]
    fn a_rising_load_is_restricted_step_by_step() {
        let mut state = ActiveLimits::default();
        let expected = [
            (8.0, (AllowedDeliveries::All, AllowedClients::Open, None)),
            (8.1, (AllowedDeliveries::QueueOnly, AllowedClients::Open, None)),
            (12.1, (AllowedDeliveries::None, AllowedClients::Open, None)),
            (20.1, (AllowedDeliveries::None, AllowedClients::ReservedOnly, None)),
        ];
        for (value, expected) in expected {
            state = state.after_sample(&load(1, value), &limits());
            assert_eq!(measures(&state), expected, "{value}");
        }
    }

    #[test]
    fn a_limit_is_left_with_a_margin() {
        let mut state = ActiveLimits::default().after_sample(&load(1, 20.1), &limits());
        let expected = [
            (18.1, (AllowedDeliveries::None, AllowedClients::ReservedOnly, None)),
            (18.0, (AllowedDeliveries::None, AllowedClients::Open, None)),
            (19.9, (AllowedDeliveries::None, AllowedClients::Open, None)),
            (10.7, (AllowedDeliveries::QueueOnly, AllowedClients::Open, None)),
            (7.3, (AllowedDeliveries::QueueOnly, AllowedClients::Open, None)),
            (7.2, (AllowedDeliveries::All, AllowedClients::Open, None)),
            (7.9, (AllowedDeliveries::All, AllowedClients::Open, None)),
        ];
        for (value, expected) in expected {
            state = state.after_sample(&load(2, value), &limits());
            assert_eq!(measures(&state), expected, "{value}");
        }
    }

    #[test]
    fn each_gauge_has_its_restriction() {
        let path: Arc<Path> = Path::new("/lane").into();
        let cases = [
            (Gauge::Pressure(PressureResource::Io), 50.1, (AllowedDeliveries::All, AllowedClients::ReservedOnly, None)),
            (Gauge::Pressure(PressureResource::Cpu), 100.0, (AllowedDeliveries::All, AllowedClients::Open, None)),
            (Gauge::MemoryAvailable, 999.0, (AllowedDeliveries::All, AllowedClients::Open, Some(Shortage::Memory))),
            (
                Gauge::FreeSpace(path.clone()),
                499.0,
                (AllowedDeliveries::All, AllowedClients::Open, Some(Shortage::Disk)),
            ),
            (Gauge::FreeInodes(path), 99.0, (AllowedDeliveries::All, AllowedClients::Open, Some(Shortage::Disk))),
        ];
        for (gauge, value, expected) in cases {
            let state = ActiveLimits::default().after_sample(&sample(1, &[(gauge.clone(), Some(value))]), &limits());
            assert_eq!(measures(&state), expected, "{gauge}");
        }
    }

    #[test]
    fn each_disk_has_its_own_limit_and_margin() {
        let (a, b) = (Gauge::FreeSpace(Path::new("/a").into()), Gauge::FreeSpace(Path::new("/b").into()));
        let both = |a_free, b_free| sample(1, &[(a.clone(), Some(a_free)), (b.clone(), Some(b_free))]);
        let short = ActiveLimits::default().after_sample(&both(9000.0, 499.0), &limits());
        assert_eq!(short.active[0].limit.gauge, b);
        let crossed = short.after_sample(&both(499.0, 549.0), &limits());
        assert_eq!(crossed.active.len(), 2, "{crossed:?}");
        let back = crossed.after_sample(&both(499.0, 550.0), &limits());
        assert_eq!(back.active.iter().map(|reason| &reason.limit.gauge).collect::<Vec<_>>(), [&a]);
    }

    #[test]
    fn an_active_limit_keeps_its_start_and_shows_its_latest_value() {
        let state = ActiveLimits::default()
            .after_sample(&load(1000, 21.5), &limits())
            .after_sample(&load(2000, 20.75), &limits());
        let refused = state.active.last().unwrap();
        assert_eq!((refused.since, refused.value), (Timestamp(1000), 20.75));
        assert_eq!(refused.to_string(), "load average 20.75 (limit: above 20): only the reserved networks are let in");
    }

    #[test]
    fn a_change_lists_activated_and_cleared_limits() {
        let before = ActiveLimits::default().after_sample(&load(1, 13.0), &limits());
        let after = before.after_sample(&load(2, 9.0), &limits());
        assert_eq!(after.activated_since(&before).count(), 0);
        let left: Vec<_> = after.cleared_since(&before).map(|reason| reason.limit.restriction).collect();
        assert_eq!(left, [LoadRestriction::NoDelivery]);
    }

    #[test]
    fn a_missing_gauge_restricts_nothing() {
        let state = ActiveLimits::default().after_sample(&load(1, 30.0), &limits());
        assert_ne!(state.restrictions(), LoadRestrictions::default());
        let blind = state.after_sample(&sample(2, &[(Gauge::LoadAverage, None)]), &limits());
        assert_eq!(blind, ActiveLimits::default());
    }

    #[test]
    fn a_short_disk_is_named_before_short_memory() {
        let readings = [(Gauge::MemoryAvailable, Some(1.0)), (Gauge::FreeSpace(Path::new("/a").into()), Some(1.0))];
        let state = ActiveLimits::default().after_sample(&sample(1, &readings), &limits());
        assert_eq!(state.restrictions().shortage, Some(Shortage::Disk));
    }

    #[test]
    fn restrictions_survive_the_atomic() {
        for delivery in [AllowedDeliveries::All, AllowedDeliveries::QueueOnly, AllowedDeliveries::None] {
            for intake in [AllowedClients::Open, AllowedClients::ReservedOnly, AllowedClients::None] {
                for shortage in [None, Some(Shortage::Disk), Some(Shortage::Memory)] {
                    let restrictions = LoadRestrictions { delivery, intake, shortage };
                    assert_eq!(LoadRestrictions::from_bits(restrictions.bits()), restrictions);
                }
            }
        }
    }
}
