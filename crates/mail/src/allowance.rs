//! Allowances: `200/1h`, `1GiB/1d`. An amount that refills evenly over a time span (a token bucket),
//! whose state is a single point in time (generic cell rate algorithm).
//!
//! After a quiet span the whole amount may be used at once, and from then on what has refilled. So
//! no span has more than twice the amount, as with counters of fixed or sliding windows, but the state
//! is smaller, and the time to wait is exact.

use std::fmt;
use std::time::{Duration, Instant};

use crate::{Rate, units};

/// The longest time span.
const SPAN_MAX: Duration = Duration::from_secs(31 * 86_400);

/// An amount per time span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// Messages, recipients or bytes; at least 1 if it was parsed.
    pub amount: u64,
    /// The time in which all of it refills; from a second to 31 days if it was parsed.
    pub per: Duration,
}

/// Why an amount is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortfall {
    /// It will have refilled after this time.
    Wait(Duration),
    /// It is more than the whole allowance.
    Never,
}

impl Allowance {
    /// Parses a count per time span, such as `200/1h` or `200/h`.
    pub fn parse_count(text: &str) -> Option<Allowance> {
        let is_plain = |amount: &&str| amount.bytes().all(|b| b.is_ascii_digit());
        Allowance::parse(text, |amount| Some(amount).filter(is_plain)?.parse().ok())
    }

    /// Parses a size per time span, such as `500MB/1d`.
    pub fn parse_size(text: &str) -> Option<Allowance> {
        Allowance::parse(text, units::parse_size)
    }

    fn parse(text: &str, parse_amount: impl Fn(&str) -> Option<u64>) -> Option<Allowance> {
        let (amount, span) = text.split_once('/')?;
        let per = match span.starts_with(|c: char| c.is_ascii_digit()) {
            true => units::parse_duration(span)?,
            false => units::parse_duration(&format!("1{span}"))?,
        };
        let amount = parse_amount(amount).filter(|amount| *amount > 0)?;
        (Duration::from_secs(1)..=SPAN_MAX).contains(&per).then_some(Allowance { amount, per })
    }

    /// Uses `cost` of the bucket that is full again at `full_at`, or full if that is past. Returns when
    /// it is full again from then on.
    ///
    /// # Errors
    ///
    /// There is not so much left.
    pub fn spend(self, full_at: Instant, cost: u64, now: Instant) -> Result<Instant, Shortfall> {
        let missing = full_at.saturating_duration_since(now).min(self.per) + self.refill_time(cost);
        match missing.checked_sub(self.per) {
            None | Some(Duration::ZERO) => Ok(now + missing),
            Some(_) if cost > self.amount => Err(Shortfall::Never),
            Some(wait) => Err(Shortfall::Wait(wait)),
        }
    }

    /// The time in which this much refills; at most a little more than the whole span.
    fn refill_time(self, cost: u64) -> Duration {
        if cost > self.amount {
            return self.per + Duration::from_nanos(1);
        }
        let nanos = self.per.as_nanos() * u128::from(cost) / u128::from(self.amount.max(1));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

impl From<Rate> for Allowance {
    fn from(rate: Rate) -> Allowance {
        Allowance { amount: rate.count.into(), per: rate.per }
    }
}

impl fmt::Display for Allowance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {:?}", self.amount, self.per)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allowance_is_an_amount_and_a_time_span() {
        let allowance = |amount, secs| Some(Allowance { amount, per: Duration::from_secs(secs) });
        assert_eq!(Allowance::parse_count("200/1h"), allowance(200, 3600));
        assert_eq!(Allowance::parse_count("5/m"), allowance(5, 60));
        assert_eq!(Allowance::parse_size("1GiB/7d"), allowance(1 << 30, 7 * 86_400));
        for text in ["", "5", "/h", "0/h", "-1/h", "1.5/h", "5/", "5/0s", "5/10ms", "5/32d", "5/1y", "5 /h", "5/1h/2"] {
            assert_eq!(Allowance::parse_count(text), None, "{text}");
        }
        assert_eq!((Allowance::parse_count("1GiB/d"), Allowance::parse_size("5/d")), (None, None));
    }

    #[test]
    fn all_may_be_used_at_once_and_then_what_refills() {
        let (allowance, start) = (Allowance { amount: 10, per: Duration::from_secs(100) }, Instant::now());
        let empty = allowance.spend(start, 10, start).unwrap();
        assert_eq!(allowance.spend(empty, 1, start), Err(Shortfall::Wait(Duration::from_secs(10))));
        assert_eq!(allowance.spend(empty, 3, start), Err(Shortfall::Wait(Duration::from_secs(30))));
        assert_eq!(allowance.spend(empty, 11, start), Err(Shortfall::Never));
        let later = start + Duration::from_secs(30);
        assert_eq!(allowance.spend(empty, 3, later), Ok(later + Duration::from_secs(100)));
    }

    #[test]
    fn no_bucket_is_emptier_than_empty() {
        let (allowance, now) = (Allowance { amount: 10, per: Duration::from_secs(100) }, Instant::now());
        let of_a_longer_span = now + Duration::from_secs(100_000);
        assert_eq!(allowance.spend(of_a_longer_span, 1, now), Err(Shortfall::Wait(Duration::from_secs(10))));
    }

    #[test]
    fn large_amounts_do_not_overflow() {
        let (allowance, now) = (Allowance { amount: u64::MAX, per: SPAN_MAX }, Instant::now());
        assert!(allowance.spend(now, u64::MAX, now).is_ok());
        let none = Allowance { amount: 0, per: SPAN_MAX };
        assert_eq!(none.spend(now, 1, now), Err(Shortfall::Never));
    }
}
