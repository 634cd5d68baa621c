//! How many entries may go before somebody has to look: a mistake at the master must not make everybody unknown.
//!
//! The rule: within an hour no more entries go than a share of all (and 10 in any case), by refreshes and by changes as
//! they are made, taken together. A refresh's removals go all or none; those that come one by one go until the rest would
//! be too many. It makes no difference to a postmaster whether half of his users went while the connection was there or
//! while it was not. What goes while other entries keep its keys is not counted, since nobody becomes unknown by it.
//! An entry from which all keys go, or all values that it answers with, is as one that goes: that is what a server shows of
//! an attribute that it does not let us read any more. An entry that loses some of its keys and keeps others is not counted.
//!
//! The count falls evenly, by the whole allowance in an hour, and begins at nothing with each start of the process.

use std::time::Duration;

use tokio::time::Instant;

const HOUR: Duration = Duration::from_secs(3600);
const ALLOWED_ALWAYS: f64 = 10.0;

/// What went lately.
#[derive(Debug)]
pub(super) struct Removals {
    share_max: f64,
    lately: f64,
    at: Instant,
}

impl Removals {
    /// At most this share of the entries may go; 1 and more: all of them.
    pub(super) fn new(share_max: f64, now: Instant) -> Self {
        Removals { share_max, lately: 0.0, at: now }
    }

    /// Whether `count` of `entries` may go now; they are counted if so.
    pub(super) fn allow(&mut self, count: u64, entries: u64, now: Instant) -> bool {
        let allowance = (self.share_max * entries as f64).max(ALLOWED_ALWAYS);
        let passed = now.saturating_duration_since(self.at).as_secs_f64() / HOUR.as_secs_f64();
        self.lately = (self.lately - passed * allowance).max(0.0);
        self.at = now;
        let allowed = self.share_max >= 1.0 || self.lately + count as f64 <= allowance;
        if allowed {
            self.lately += count as f64;
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
        let mut removals = Removals::new(0.1, start);
        assert!(!removals.allow(101, 1000, start));
        assert!(removals.allow(60, 1000, start));
        assert!(removals.allow(40, 1000, start));
        assert!(!removals.allow(1, 1000, start));
        let later = start + HOUR / 2;
        assert!(!removals.allow(51, 1000, later));
        assert!(removals.allow(50, 1000, later));
        assert!(removals.allow(100, 1000, later + HOUR * 2));

        let mut removals = Removals::new(0.1, start);
        assert!(removals.allow(10, 12, start));
        assert!(!removals.allow(1, 12, start));
    }

    #[test]
    fn all_may_go_where_the_operator_says_so() {
        let start = Instant::now();
        assert!(Removals::new(1.0, start).allow(1000, 10, start));
    }
}
