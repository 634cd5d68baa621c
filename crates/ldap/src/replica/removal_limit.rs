//! Limits removals, so that a mistake on the server does not make all users unknown.
//!
//! Within an hour only a share of the entries (and always ten) may be removed, by refreshes and
//! single changes together. The removals of a refresh are allowed all or none; single ones until
//! the limit. A removed entry is not counted if other entries have all its keys. An entry that
//! loses all its keys, or all its values, counts as removed: this is what happens when the server
//! stops letting us read an attribute. An entry that keeps some keys is not counted.
//!
//! The count decays evenly, by the whole limit in an hour, and starts at zero with the process.

use std::time::Duration;

use tokio::time::Instant;

const HOUR: Duration = Duration::from_secs(3600);
const ALLOWED_ALWAYS: f64 = 10.0;

/// Recent removals.
#[derive(Debug)]
pub(super) struct RemovalLimit {
    share_max: f64,
    recent: f64,
    at: Instant,
}

impl RemovalLimit {
    /// Allows this share of the entries; 1 or more means no limit.
    pub(super) fn new(share_max: f64, now: Instant) -> Self {
        RemovalLimit { share_max, recent: 0.0, at: now }
    }

    /// Whether `count` of `entries` may be removed now. If so, counts them.
    pub(super) fn allow(&mut self, count: u64, entries: u64, now: Instant) -> bool {
        let allowance = (self.share_max * entries as f64).max(ALLOWED_ALWAYS);
        let passed = now.saturating_duration_since(self.at).as_secs_f64() / HOUR.as_secs_f64();
        self.recent = (self.recent - passed * allowance).max(0.0);
        self.at = now;
        let allowed = self.share_max >= 1.0 || self.recent + count as f64 <= allowance;
        if allowed {
            self.recent += count as f64;
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_may_go_within_an_hour_and_ten_in_any_case() {
        let start = Instant::now();
        let mut removals = RemovalLimit::new(0.1, start);
        assert!(!removals.allow(101, 1000, start));
        assert!(removals.allow(60, 1000, start));
        assert!(removals.allow(40, 1000, start));
        assert!(!removals.allow(1, 1000, start));
        let later = start + HOUR / 2;
        assert!(!removals.allow(51, 1000, later));
        assert!(removals.allow(50, 1000, later));
        assert!(removals.allow(100, 1000, later + HOUR * 2));

        let mut removals = RemovalLimit::new(0.1, start);
        assert!(removals.allow(10, 12, start));
        assert!(!removals.allow(1, 12, start));
    }

    #[test]
    fn all_may_go_where_the_operator_says_so() {
        let start = Instant::now();
        assert!(RemovalLimit::new(1.0, start).allow(1000, 10, start));
    }
}
