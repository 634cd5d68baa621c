//! The circuit breaker. It opens after a number of consecutive failed requests, and only a
//! successful probe closes it. Requests already under way when it opens change nothing.

use std::time::Instant;

pub(super) struct Breaker {
    failures_max: usize,
    /// Consecutive failed requests.
    failures: usize,
    open: Option<Outage>,
}

/// An outage: the backend gets no requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Outage {
    pub(super) since: Instant,
    /// The failure that opened the breaker.
    pub(super) error: Box<str>,
}

impl Breaker {
    pub(super) fn new(failures_max: usize) -> Self {
        Breaker { failures_max, failures: 0, open: None }
    }

    /// The outage, while the breaker is open.
    pub(super) fn outage(&self) -> Option<&Outage> {
        self.open.as_ref()
    }

    /// Records a successful request.
    pub(super) fn handle_success(&mut self) {
        self.failures = 0;
    }

    /// Records a failed request. Returns whether it opens the breaker.
    pub(super) fn handle_failure(&mut self, error: &str, now: Instant) -> bool {
        self.failures += 1;
        let opens = self.open.is_none() && self.failures >= self.failures_max;
        if opens {
            self.open = Some(Outage { since: now, error: error.into() });
        }
        opens
    }

    /// Closes the breaker after a successful probe. Returns the outage that ended.
    pub(super) fn handle_recovery(&mut self) -> Option<Outage> {
        self.failures = 0;
        self.open.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_opens_after_as_many_failures_in_a_row_and_once() {
        let now = Instant::now();
        let mut breaker = Breaker::new(3);
        assert!(!breaker.handle_failure("one", now));
        assert!(!breaker.handle_failure("two", now));
        breaker.handle_success();
        assert!(!breaker.handle_failure("three", now));
        assert!(!breaker.handle_failure("four", now));
        assert_eq!(breaker.outage(), None);
        assert!(breaker.handle_failure("five", now));
        assert!(!breaker.handle_failure("six", now));
        assert_eq!(breaker.outage(), Some(&Outage { since: now, error: "five".into() }));
    }

    #[test]
    fn only_a_probe_closes_it_and_failures_are_counted_anew() {
        let now = Instant::now();
        let mut breaker = Breaker::new(2);
        breaker.handle_failure("one", now);
        breaker.handle_failure("two", now);
        breaker.handle_success();
        assert!(breaker.outage().is_some());
        breaker.handle_failure("three", now);
        assert_eq!(breaker.handle_recovery().map(|outage| outage.error), Some("two".into()));
        assert_eq!(breaker.handle_recovery(), None);
        assert!(!breaker.handle_failure("four", now));
        assert!(breaker.handle_failure("five", now));
    }
}
