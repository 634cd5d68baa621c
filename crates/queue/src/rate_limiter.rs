//! A rate limiter: the generic cell rate algorithm (ITU-T I.371) in whole nanoseconds.
//!
//! `full_at` is the time at which the bucket would be full again without further attempts. An
//! attempt may leave while that is no further ahead than the burst minus one; each attempt moves it
//! by one interval. So any time span has at most the burst plus its share, whenever the clock is
//! read.

use mail::{Rate, Timestamp};

const NANOS_PER_MILLI: u64 = 1_000_000;
const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// A rate and its current use.
#[derive(Clone, Debug)]
pub(crate) struct RateLimiter {
    /// Nanoseconds between two attempts.
    interval: u64,
    /// How far ahead `full_at` may be when an attempt leaves: the burst minus one.
    burst_slack: u64,
    full_at: u64,
}

impl RateLimiter {
    pub(crate) fn new(rate: Rate) -> Self {
        let per = u64::try_from(rate.per.as_nanos()).unwrap_or(u64::MAX);
        let interval = (per / u64::from(rate.count.max(1))).max(1);
        let burst = (NANOS_PER_SECOND / interval).max(1);
        RateLimiter { interval, burst_slack: (burst - 1) * interval, full_at: 0 }
    }

    /// The same use with another rate.
    pub(crate) fn with_rate(&self, rate: Rate) -> Self {
        RateLimiter { full_at: self.full_at, ..RateLimiter::new(rate) }
    }

    /// When the next attempt may leave.
    pub(crate) fn free_at(&self) -> Timestamp {
        Timestamp(self.full_at.saturating_sub(self.burst_slack).div_ceil(NANOS_PER_MILLI))
    }

    /// Counts one attempt.
    pub(crate) fn consume(&mut self, now: Timestamp) {
        self.full_at = self.full_at.max(nanos(now)).saturating_add(self.interval);
    }

    /// Corrects the state after the clock was set back: at worst the bucket is empty.
    pub(crate) fn clamp_to_clock(&mut self, now: Timestamp) {
        let empty = nanos(now).saturating_add(self.burst_slack).saturating_add(self.interval);
        self.full_at = self.full_at.min(empty);
    }
}

fn nanos(now: Timestamp) -> u64 {
    now.millis().saturating_mul(NANOS_PER_MILLI)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// The times at which attempts leave if they are requested as early as possible.
    fn departures(rate: Rate, count: usize) -> Vec<u64> {
        let (mut pace, mut now) = (RateLimiter::new(rate), Timestamp(1_700_000_000_000));
        let start = now;
        (0..count)
            .map(|_| {
                now = now.max(pace.free_at());
                pace.consume(now);
                now.since(start).as_millis() as u64
            })
            .collect()
    }

    #[test]
    fn one_second_s_share_leaves_immediately_and_the_rest_evenly() {
        let rate = Rate { count: 4, per: Duration::from_secs(1) };
        assert_eq!(departures(rate, 8), [0, 0, 0, 0, 250, 500, 750, 1000]);
    }

    #[test]
    fn a_slow_rate_has_no_burst() {
        let rate = Rate { count: 3, per: Duration::from_secs(60) };
        assert_eq!(departures(rate, 4), [0, 20_000, 40_000, 60_000]);
    }

    #[test]
    fn thirds_of_a_second_add_up() {
        let times = departures(Rate { count: 3, per: Duration::from_secs(1) }, 3003);
        assert!((999_990..=1_000_001).contains(&times[3002]), "{}", times[3002]);
    }

    #[test]
    fn a_clock_set_back_costs_one_interval_at_most() {
        let mut pace = RateLimiter::new(Rate { count: 4, per: Duration::from_secs(1) });
        let (now, earlier) = (Timestamp(1_700_000_000_000), Timestamp(1_699_900_000_000));
        pace.consume(now);
        pace.clamp_to_clock(now);
        assert!(pace.free_at() < now);
        pace.clamp_to_clock(earlier);
        assert_eq!(pace.free_at(), earlier + Duration::from_millis(250));
    }

    #[test]
    fn settings_that_make_no_sense_still_make_a_pace() {
        for (count, per) in [(0, Duration::ZERO), (7, Duration::ZERO), (0, Duration::MAX)] {
            let mut pace = RateLimiter::new(Rate { count, per });
            pace.consume(Timestamp(5));
            pace.consume(Timestamp(u64::MAX));
            pace.free_at();
        }
    }
}
