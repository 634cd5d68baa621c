//! Rate limit for failure reports: one outage fails many lookups, but is reported once a second.

use std::time::{Duration, Instant};

/// Minimum time between two reports.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// Failures reported as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FailureSummary {
    /// The first failure.
    pub(super) error: Box<str>,
    /// Failed keys or requests.
    pub(super) count: u64,
}

impl FailureSummary {
    /// Adds `count` failures; computes the text only for the first.
    pub(super) fn add(troubles: &mut Option<FailureSummary>, error: impl FnOnce() -> Box<str>, count: u64) {
        troubles.get_or_insert_with(|| FailureSummary { error: error(), count: 0 }).count += count;
    }
}

/// Decides when to report failures.
#[derive(Default)]
pub(super) struct FailureThrottle {
    reported: Option<Instant>,
    left_out: u64,
}

impl FailureThrottle {
    /// Records `count` more failures. If they are to be reported now, returns how many the report
    /// suppresses.
    pub(super) fn should_report(&mut self, count: u64, now: Instant) -> Option<u64> {
        if self.reported.is_some_and(|told| now.saturating_duration_since(told) < REPORT_INTERVAL) {
            self.left_out += count;
            return None;
        }
        self.reported = Some(now);
        Some(std::mem::take(&mut self.left_out) + count.saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_reported_once_a_second_with_a_count() {
        let (mut telling, start) = (FailureThrottle::default(), Instant::now());
        let mut at = |millis, count| telling.should_report(count, start + Duration::from_millis(millis));
        assert_eq!(at(0, 1), Some(0));
        assert_eq!(at(1, 1), None);
        assert_eq!(at(999, 5), None);
        assert_eq!(at(1000, 3), Some(8));
        assert_eq!(at(1999, 1), None);
        assert_eq!(at(9000, 1), Some(1));
        assert_eq!(at(10_000, 1), Some(0));
    }

    #[test]
    fn the_first_failure_is_reported() {
        let mut troubles = None;
        FailureSummary::add(&mut troubles, || "one".into(), 2);
        FailureSummary::add(&mut troubles, || "two".into(), 3);
        assert_eq!(troubles, Some(FailureSummary { error: "one".into(), count: 5 }));
    }
}
