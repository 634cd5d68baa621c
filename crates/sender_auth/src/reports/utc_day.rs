//! Days of UTC, which are the periods of reports.

use std::fmt;
use std::time::Duration;

use mail::Timestamp;

const DAY_SECONDS: u64 = 86_400;

/// A day of UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UtcDay(u64);

impl UtcDay {
    /// The day of this time.
    pub fn of(time: Timestamp) -> UtcDay {
        UtcDay(time.seconds() / DAY_SECONDS)
    }

    /// Its first second, since 1970.
    pub fn begin(self) -> u64 {
        self.0 * DAY_SECONDS
    }

    /// Its last second, since 1970.
    pub fn end(self) -> u64 {
        self.begin() + DAY_SECONDS - 1
    }

    /// So many days before it.
    pub fn before(self, days: u64) -> UtcDay {
        UtcDay(self.0.saturating_sub(days))
    }
}

/// The date: `2026-11-23`.
impl fmt::Display for UtcDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let midnight = Timestamp::default() + Duration::from_secs(self.begin());
        f.write_str(midnight.to_rfc3339().get(..10).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_begins_at_midnight() {
        let at = |seconds: u64| UtcDay::of(Timestamp::default() + Duration::from_secs(seconds));
        let day = at(1_795_392_000);
        assert_eq!((day.begin(), day.end(), day.to_string()), (1_795_392_000, 1_795_478_399, "2026-11-23".into()));
        assert_eq!(at(1_795_478_399), day);
        assert_eq!(at(1_795_478_400).before(1), day);
    }
}
