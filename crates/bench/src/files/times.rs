//! How long operations took: an HDR histogram of nanoseconds, told in microseconds.

use std::fmt;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// Times beyond this one count as it.
const SPAN_MAX: Duration = Duration::from_secs(600);
/// Decimal digits that are kept.
const DIGITS: u8 = 3;

/// What has been timed so far.
#[derive(Clone, Debug)]
pub(crate) struct Stopwatch {
    ns: Histogram<u64>,
}

/// What it comes to. Without any operation all is zero.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Times {
    pub(crate) count: u64,
    pub(crate) mean_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p90_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    pub(crate) max_us: f64,
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

    pub(crate) fn times(&self) -> Times {
        let us = |ns: u64| ns as f64 / 1e3;
        let quantile_us = |quantile| us(self.ns.value_at_quantile(quantile));
        Times {
            count: self.ns.len(),
            mean_us: self.ns.mean() / 1e3,
            p50_us: quantile_us(0.5),
            p90_us: quantile_us(0.9),
            p99_us: quantile_us(0.99),
            p999_us: quantile_us(0.999),
            max_us: us(self.ns.max()),
        }
    }
}

impl Times {
    /// What stands above the columns of [`Times`].
    pub(crate) const HEADER: &str = "     count    mean us     p50     p90     p99   p99.9        max";
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>10} {:>10.1} {:>7.1} {:>7.1} ", self.count, self.mean_us, self.p50_us, self.p90_us)?;
        write!(f, "{:>7.1} {:>7.1} {:>10.1}", self.p99_us, self.p999_us, self.max_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_slow_operation_in_a_hundred_shows_at_the_end_only() {
        let mut watch = Stopwatch::new();
        (0..99).for_each(|_| watch.record(Duration::from_micros(10)));
        watch.record(Duration::from_millis(5));
        let times = watch.times();
        assert_eq!(times.count, 100);
        assert!((9.9..10.1).contains(&times.p50_us) && (9.9..10.1).contains(&times.p99_us), "{times}");
        assert!((4990.0..5010.0).contains(&times.max_us) && times.p999_us > 4990.0, "{times}");
    }
}
