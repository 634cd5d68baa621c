//! Rate limit for failure reports: one outage fails many lookups, but is reported once a second.

use std::time::{Duration, Instant};

/// Minimum time between two reports.
const TOLD_EVERY: Duration = Duration::from_secs(1);

/// Failures reported as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Troubles {
    /// The first failure.
    pub(super) error: Box<str>,
    /// Failed keys or requests.
    pub(super) count: u64,
}

impl Troubles {
    /// Adds `count` failures; computes the text only for the first.
    pub(super) fn add(troubles: &mut Option<Troubles>, error: impl FnOnce() -> Box<str>, count: u64) {
        troubles.get_or_insert_with(|| Troubles { error: error(), count: 0 }).count += count;
    }
}

/// Decides when to report failures.
#[derive(Default)]
pub(super) struct Telling {
    told: Option<Instant>,
    left_out: u64,
}

impl Telling {
    /// Records `count` more failures. If they are to be reported now, returns how many the report
    /// suppresses.
    pub(super) fn handle(&mut self, count: u64, now: Instant) -> Option<u64> {
        if self.told.is_some_and(|told| now.saturating_duration_since(told) < TOLD_EVERY) {
            self.left_out += count;
            return None;
        }
        self.told = Some(now);
        Some(std::mem::take(&mut self.left_out) + count.saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_told_once_a_second_with_the_number_of_the_others() {
        let (mut telling, start) = (Telling::default(), Instant::now());
        let mut at = |millis, count| telling.handle(count, start + Duration::from_millis(millis));
        assert_eq!(at(0, 1), Some(0));
        assert_eq!(at(1, 1), None);
        assert_eq!(at(999, 5), None);
        assert_eq!(at(1000, 3), Some(8));
        assert_eq!(at(1999, 1), None);
        assert_eq!(at(9000, 1), Some(1));
        assert_eq!(at(10_000, 1), Some(0));
    }

    #[test]
    fn of_many_failures_the_first_is_told() {
        let mut troubles = None;
        Troubles::add(&mut troubles, || "one".into(), 2);
        Troubles::add(&mut troubles, || "two".into(), 3);
        assert_eq!(troubles, Some(Troubles { error: "one".into(), count: 5 }));
    }
}
