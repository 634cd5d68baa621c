//! Times of operations, in an HDR histogram of fixed size. A system call may take less than a
//! microsecond, so times are kept in nanoseconds.
//!
//! An operation is recorded when it has ended, also when it failed.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::timing_stats::TimingStats;

/// Longer times count as this.
const SPAN_MAX: Duration = Duration::from_secs(600);
/// Significant digits of a time.
const DIGITS: u8 = 3;
/// Times are in nanoseconds.
const COUNTS_PER_US: f64 = 1e3;

/// The times recorded so far.
#[derive(Clone, Debug)]
pub(crate) struct Stopwatch {
    ns: Histogram<u64>,
}

impl Stopwatch {
    pub(crate) fn new() -> Stopwatch {
        let ns = Histogram::new_with_max(SPAN_MAX.as_nanos() as u64, DIGITS);
        Stopwatch { ns: ns.expect("the bounds are constants that a histogram can have") }
    }

    pub(crate) fn record(&mut self, took: Duration) {
        self.ns.saturating_record(took.as_nanos() as u64);
    }

    pub(crate) fn count(&self) -> u64 {
        self.ns.len()
    }

    /// The statistics under this name.
    pub(crate) fn times(&self, name: &'static str) -> TimingStats {
        TimingStats::from_histogram(name, &self.ns, COUNTS_PER_US)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nanoseconds_are_reported_in_microseconds() {
        let mut watch = Stopwatch::new();
        watch.record(Duration::from_nanos(1500));
        watch.record(SPAN_MAX * 2);
        let times = watch.times("read");
        assert_eq!((times.name, times.count, times.min_us), ("read", 2, 1.5));
        assert!((times.max_us / SPAN_MAX.as_micros() as f64 - 1.0).abs() < 0.001, "{times:?}");
    }
}
