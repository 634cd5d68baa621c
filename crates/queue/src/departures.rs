//! The rate of a next hop that others share: attempts begin at departures, which are granted from outside
//! when this server has asked for them.
//!
//! | state | an attempt |
//! |---|---|
//! | there are departures | begins at the first one, or at most [`LATE_MAX`] after it |
//! | none is left, or all are over | waits; departures are requested |
//! | they are requested | waits, and after [`REQUEST_TIME_MAX`] they are requested again |
//!
//! More are requested each time while all are used, up to those of [`BATCH_TIME`], so that a next hop
//! with little mail takes none from others.

use std::time::Duration;

use mail::{Rate, Timestamp};

/// A departure may be used so much later. It is the burst that a rate allows.
const LATE_MAX: Duration = Duration::from_secs(1);
/// A request is repeated after this time.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(10);
/// The most departures of a request are those of this time, and at least one.
const BATCH_TIME: Duration = Duration::from_millis(500);

const NANOS_PER_MILLI: u64 = 1_000_000;

/// What is wanted of those who share a rate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DepartureRequest {
    /// The name of the next hop.
    pub next_hop: Box<str>,
    /// The time between two departures, of all who share it.
    pub interval: Duration,
    /// How many are wanted.
    pub count: u32,
}

/// Departures that were granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantedDepartures {
    /// The first one.
    pub first: Timestamp,
    /// The time between two of them.
    pub interval: Duration,
    /// Their number.
    pub count: u32,
}

/// The departures of a next hop.
#[derive(Clone, Debug)]
pub(crate) struct Departures {
    /// Nanoseconds between two attempts, of all who share the rate.
    interval: u64,
    /// The next departure, and the time between it and the following one, in nanoseconds.
    next: u64,
    step: u64,
    left: u32,
    /// How many are requested the next time.
    batch: u32,
    requested_at: Option<Timestamp>,
}

impl Departures {
    pub(crate) fn new(rate: Rate) -> Self {
        let per = u64::try_from(rate.per.as_nanos()).unwrap_or(u64::MAX);
        let interval = (per / u64::from(rate.count.max(1))).max(1);
        Departures { interval, next: 0, step: interval, left: 0, batch: 1, requested_at: None }
    }

    /// When the next attempt may begin. Without departures it is later than now: when to look again.
    pub(crate) fn free_at(&self, now: Timestamp) -> Timestamp {
        match self.usable(now) {
            Some((next, _)) => Timestamp(next.div_ceil(NANOS_PER_MILLI)),
            None => self.pending_since(now).unwrap_or(now) + REQUEST_TIME_MAX,
        }
    }

    /// Uses a departure.
    pub(crate) fn consume(&mut self, now: Timestamp) {
        if let Some((next, left)) = self.usable(now) {
            (self.next, self.left) = (next.saturating_add(self.step), left - 1);
        }
    }

    /// How many departures are to be requested now; None: there are some, or they are requested.
    pub(crate) fn request(&mut self, now: Timestamp) -> Option<(Duration, u32)> {
        if self.pending_since(now).is_some() || self.usable(now).is_some() {
            return None;
        }
        let batch_max = (nanos_of(BATCH_TIME) / self.interval).clamp(1, u32::MAX.into()) as u32;
        let used_all = self.left == 0;
        self.batch = if used_all { self.batch.saturating_mul(2).min(batch_max) } else { 1 };
        self.requested_at = Some(now);
        Some((Duration::from_nanos(self.interval), self.batch))
    }

    /// Takes what was granted.
    pub(crate) fn grant(&mut self, granted: GrantedDepartures) {
        let GrantedDepartures { first, interval, count } = granted;
        (self.next, self.step, self.left) = (nanos(first), nanos_of(interval).max(1), count);
        self.requested_at = None;
    }

    /// After the clock was set back, nobody knows when the departures are.
    pub(crate) fn forget(&mut self) {
        (self.left, self.requested_at) = (0, None);
    }

    /// When the request was made that may still be answered.
    fn pending_since(&self, now: Timestamp) -> Option<Timestamp> {
        self.requested_at.filter(|at| now < *at + REQUEST_TIME_MAX)
    }

    /// The first departure that may still be used, and how many there are from it on.
    fn usable(&self, now: Timestamp) -> Option<(u64, u32)> {
        let oldest = nanos(now).saturating_sub(nanos_of(LATE_MAX));
        let over = oldest.saturating_sub(self.next).div_ceil(self.step);
        let left = u64::from(self.left).checked_sub(over).filter(|left| *left > 0)?;
        Some((self.next + over * self.step, left as u32))
    }
}

fn nanos(time: Timestamp) -> u64 {
    time.millis().saturating_mul(NANOS_PER_MILLI)
}

fn nanos_of(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp(1_700_000_000_000);
    const SECOND: Duration = Duration::from_secs(1);

    fn departures(count: u32) -> Departures {
        Departures::new(Rate { count, per: SECOND })
    }

    fn grant(first: Timestamp, count: u32) -> GrantedDepartures {
        GrantedDepartures { first, interval: Duration::from_millis(100), count }
    }

    #[test]
    fn attempts_begin_at_departures_and_not_without_one() {
        let mut hop = departures(10);
        assert!(hop.free_at(NOW) > NOW);
        assert_eq!(hop.request(NOW), Some((Duration::from_millis(100), 2)));
        assert_eq!(hop.request(NOW), None, "it is requested");
        hop.grant(grant(NOW + SECOND, 2));
        assert_eq!(hop.free_at(NOW), NOW + SECOND);
        hop.consume(NOW + SECOND);
        assert_eq!(hop.free_at(NOW + SECOND), NOW + Duration::from_millis(1100));
        hop.consume(NOW + Duration::from_millis(1100));
        assert!(hop.free_at(NOW + SECOND * 2) > NOW + SECOND * 2);
    }

    #[test]
    fn departures_that_nobody_used_are_over() {
        let mut hop = departures(10);
        hop.grant(grant(NOW, 30));
        let later = NOW + Duration::from_millis(2550);
        assert_eq!(hop.free_at(later), NOW + Duration::from_millis(1600), "the burst of one second");
        (0..13).for_each(|_| hop.consume(later));
        assert_eq!(hop.request(later), None, "one is left");
        assert!(hop.free_at(NOW + SECOND * 5) > NOW + SECOND * 5);
        assert_eq!(hop.request(NOW + SECOND * 9).map(|(_, count)| count), Some(1), "some were not needed");
    }

    #[test]
    fn requests_grow_while_all_are_used_and_are_repeated_if_nobody_answers() {
        let mut hop = departures(100);
        let mut counts = Vec::new();
        for round in 0..8 {
            let now = NOW + SECOND * round;
            counts.push(hop.request(now).unwrap().1);
            hop.grant(grant(now, 1));
            hop.consume(now);
        }
        assert_eq!(counts, [2, 4, 8, 16, 32, 50, 50, 50]);
        let last = NOW + SECOND * 60;
        assert!(hop.request(last).is_some() && hop.request(last + SECOND * 9).is_none());
        assert!(hop.free_at(last + SECOND * 10) > last + SECOND * 10, "without departures nothing leaves");
        assert!(hop.request(last + SECOND * 10).is_some());
    }

    #[test]
    fn a_clock_that_is_set_back_costs_the_departures() {
        let mut hop = departures(10);
        hop.grant(grant(NOW, 10));
        hop.forget();
        assert!(hop.request(Timestamp(5)).is_some());
    }
}
