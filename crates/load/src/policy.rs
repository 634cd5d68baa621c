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

pub use limits::{Bound, Gauge, Limit, Limits, Measure, Reading, Sample};

/// An active limit, and why it is active.
#[derive(Clone, Debug, PartialEq)]
pub struct Reason {
    /// The limit.
    pub limit: Limit,
    /// The latest reading of its gauge.
    pub value: f64,
    /// When it became active.
    pub since: Timestamp,
}

/// The active limits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// The active limits with their reasons; empty under normal load.
    pub reasons: Vec<Reason>,
}

/// Which deliveries may start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Delivery {
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
pub enum Intake {
    /// All clients.
    #[default]
    Open,
    /// Clients in reserved networks only.
    ReservedOnly,
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
pub struct Measures {
    /// Which deliveries may start.
    pub delivery: Delivery,
    /// Which clients may connect.
    pub intake: Intake,
    /// Why mail is refused, if it is.
    pub shortage: Option<Shortage>,
}

impl State {
    /// The state that follows this one after `sample`.
    #[must_use]
    pub fn after(&self, sample: &Sample, limits: &Limits) -> State {
        let reason = |reading: &Reading, limit: Limit| {
            let value = reading.value?;
            let before = self.reason(&limit);
            let holds = match before {
                Some(_) => !limit.bound.is_cleared(value, limits.margin),
                None => limit.bound.is_passed(value),
            };
            let since = before.map_or(sample.at, |before| before.since);
            holds.then_some(Reason { limit, value, since })
        };
        let reasons = sample.readings.iter().flat_map(|reading| {
            let limits = limits.of(&reading.gauge).into_iter();
            limits.filter_map(move |limit| reason(reading, limit))
        });
        State { reasons: reasons.collect() }
    }

    /// The restrictions in this state.
    pub fn measures(&self) -> Measures {
        self.reasons.iter().fold(Measures::default(), |measures, reason| measures.with(reason.limit.measure))
    }

    /// The limits that are active now and were not in `earlier`.
    pub fn entered<'a>(&'a self, earlier: &'a State) -> impl Iterator<Item = &'a Reason> {
        self.reasons.iter().filter(|reason| earlier.reason(&reason.limit).is_none())
    }

    /// The limits that were active in `earlier` and are not now, with their last values.
    pub fn left<'a>(&'a self, earlier: &'a State) -> impl Iterator<Item = &'a Reason> {
        earlier.entered(self)
    }

    fn reason(&self, limit: &Limit) -> Option<&Reason> {
        self.reasons.iter().find(|reason| reason.limit == *limit)
    }
}

impl Measures {
    fn with(self, measure: Measure) -> Measures {
        let Measures { delivery, intake, shortage } = self;
        match measure {
            Measure::QueueOnly => Measures { delivery: delivery.max(Delivery::QueueOnly), ..self },
            Measure::NoDelivery => Measures { delivery: Delivery::None, ..self },
            Measure::ReservedOnly => Measures { intake: intake.max(Intake::ReservedOnly), ..self },
            Measure::NoMail(of) => Measures { shortage: Some(shortage.map_or(of, |other| other.min(of))), ..self },
        }
    }

    /// Packs the restrictions into a number for an atomic.
    pub(crate) fn bits(self) -> u8 {
        let delivery = match self.delivery {
            Delivery::All => 0,
            Delivery::QueueOnly => 1,
            Delivery::None => 2,
        };
        let intake = match self.intake {
            Intake::Open => 0,
            Intake::ReservedOnly => 1 << 2,
        };
        let shortage = match self.shortage {
            None => 0,
            Some(Shortage::Disk) => 1 << 3,
            Some(Shortage::Memory) => 2 << 3,
        };
        delivery | intake | shortage
    }

    /// Reverses [`Measures::bits`].
    pub(crate) fn from_bits(bits: u8) -> Measures {
        Measures {
            delivery: match bits & 3 {
                0 => Delivery::All,
                1 => Delivery::QueueOnly,
                _ => Delivery::None,
            },
            intake: if bits & 1 << 2 == 0 { Intake::Open } else { Intake::ReservedOnly },
            shortage: match bits >> 3 {
                0 => None,
                1 => Some(Shortage::Disk),
                _ => Some(Shortage::Memory),
            },
        }
    }
}

/// For the operator: `load average 21.3 (limit: above 20): only the reserved networks are let in`.
impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Limit { gauge, bound, measure } = &self.limit;
        write!(f, "{gauge} {} (limit: {bound}): {measure}", self.value)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::Resource;

    fn sample(at: u64, readings: &[(Gauge, Option<f64>)]) -> Sample {
        let reading =
            |(gauge, value): &(Gauge, Option<f64>)| Reading { gauge: gauge.clone(), source: "told", value: *value };
        Sample { at: Timestamp(at), readings: readings.iter().map(reading).collect() }
    }

    fn load(at: u64, value: f64) -> Sample {
        sample(at, &[(Gauge::LoadAverage, Some(value))])
    }

    fn limits() -> Limits {
        Limits {
            queue_only_above: Some(8.0),
            no_delivery_above: Some(12.0),
            refuse_above: Some(20.0),
            io_pressure_max: Some(50.0),
            memory_min: Some(1000),
            space_min: 500,
            inodes_min: 100,
            ..Limits::default()
        }
    }

    fn measures(state: &State) -> (Delivery, Intake, Option<Shortage>) {
        let Measures { delivery, intake, shortage } = state.measures();
        (delivery, intake, shortage)
    }

    #[test]
    fn a_rising_load_is_answered_step_by_step() {
        let mut state = State::default();
        let expected = [
            (8.0, (Delivery::All, Intake::Open, None)),
            (8.1, (Delivery::QueueOnly, Intake::Open, None)),
            (12.1, (Delivery::None, Intake::Open, None)),
            (20.1, (Delivery::None, Intake::ReservedOnly, None)),
        ];
        for (value, expected) in expected {
            state = state.after(&load(1, value), &limits());
            assert_eq!(measures(&state), expected, "{value}");
        }
    }

    #[test]
    fn a_limit_is_left_with_a_margin() {
        let mut state = State::default().after(&load(1, 20.1), &limits());
        let expected = [
            (18.1, (Delivery::None, Intake::ReservedOnly, None)),
            (18.0, (Delivery::None, Intake::Open, None)),
            (19.9, (Delivery::None, Intake::Open, None)),
            (10.7, (Delivery::QueueOnly, Intake::Open, None)),
            (7.3, (Delivery::QueueOnly, Intake::Open, None)),
            (7.2, (Delivery::All, Intake::Open, None)),
            (7.9, (Delivery::All, Intake::Open, None)),
        ];
        for (value, expected) in expected {
            state = state.after(&load(2, value), &limits());
            assert_eq!(measures(&state), expected, "{value}");
        }
    }

    #[test]
    fn each_gauge_has_its_measure() {
        let path: Arc<Path> = Path::new("/lane").into();
        let cases = [
            (Gauge::Pressure(Resource::Io), 50.1, (Delivery::All, Intake::ReservedOnly, None)),
            (Gauge::Pressure(Resource::Cpu), 100.0, (Delivery::All, Intake::Open, None)),
            (Gauge::MemoryAvailable, 999.0, (Delivery::All, Intake::Open, Some(Shortage::Memory))),
            (Gauge::FreeSpace(path.clone()), 499.0, (Delivery::All, Intake::Open, Some(Shortage::Disk))),
            (Gauge::FreeInodes(path), 99.0, (Delivery::All, Intake::Open, Some(Shortage::Disk))),
        ];
        for (gauge, value, expected) in cases {
            let state = State::default().after(&sample(1, &[(gauge.clone(), Some(value))]), &limits());
            assert_eq!(measures(&state), expected, "{gauge}");
        }
    }

    #[test]
    fn each_disk_stands_for_itself_and_comes_back_with_a_margin() {
        let (a, b) = (Gauge::FreeSpace(Path::new("/a").into()), Gauge::FreeSpace(Path::new("/b").into()));
        let both = |a_free, b_free| sample(1, &[(a.clone(), Some(a_free)), (b.clone(), Some(b_free))]);
        let short = State::default().after(&both(9000.0, 499.0), &limits());
        assert_eq!(short.reasons[0].limit.gauge, b);
        let crossed = short.after(&both(499.0, 549.0), &limits());
        assert_eq!(crossed.reasons.len(), 2, "{crossed:?}");
        let back = crossed.after(&both(499.0, 550.0), &limits());
        assert_eq!(back.reasons.iter().map(|reason| &reason.limit.gauge).collect::<Vec<_>>(), [&a]);
    }

    #[test]
    fn a_reason_keeps_its_beginning_and_tells_its_value() {
        let state = State::default().after(&load(1000, 21.5), &limits()).after(&load(2000, 20.75), &limits());
        let refused = state.reasons.last().unwrap();
        assert_eq!((refused.since, refused.value), (Timestamp(1000), 20.75));
        assert_eq!(refused.to_string(), "load average 20.75 (limit: above 20): only the reserved networks are let in");
    }

    #[test]
    fn a_change_is_told_by_what_came_and_what_went() {
        let before = State::default().after(&load(1, 13.0), &limits());
        let after = before.after(&load(2, 9.0), &limits());
        assert_eq!(after.entered(&before).count(), 0);
        let left: Vec<_> = after.left(&before).map(|reason| reason.limit.measure).collect();
        assert_eq!(left, [Measure::NoDelivery]);
    }

    #[test]
    fn a_gauge_that_is_gone_holds_nobody_up() {
        let state = State::default().after(&load(1, 30.0), &limits());
        assert_ne!(state.measures(), Measures::default());
        let blind = state.after(&sample(2, &[(Gauge::LoadAverage, None)]), &limits());
        assert_eq!(blind, State::default());
    }

    #[test]
    fn a_short_disk_is_named_before_short_memory() {
        let readings = [(Gauge::MemoryAvailable, Some(1.0)), (Gauge::FreeSpace(Path::new("/a").into()), Some(1.0))];
        let state = State::default().after(&sample(1, &readings), &limits());
        assert_eq!(state.measures().shortage, Some(Shortage::Disk));
    }

    #[test]
    fn measures_survive_the_atomic() {
        for delivery in [Delivery::All, Delivery::QueueOnly, Delivery::None] {
            for intake in [Intake::Open, Intake::ReservedOnly] {
                for shortage in [None, Some(Shortage::Disk), Some(Shortage::Memory)] {
                    let measures = Measures { delivery, intake, shortage };
                    assert_eq!(Measures::from_bits(measures.bits()), measures);
                }
            }
        }
    }
}
