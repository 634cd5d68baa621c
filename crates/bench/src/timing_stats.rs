//! Statistics of a histogram (HDR) of times.
//!
//! All reports use this form: JSON in fractional microseconds, and a table row in the unit that
//! suits the operation. Histograms keep three digits, so a figure may be off by a thousandth.
//! Without operations all figures are zero.

use comfy_table::{CellAlignment, Table, presets};
use hdrhistogram::Histogram;
use serde::Serialize;

/// Statistics of times, in microseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TimingStats {
    /// What was timed.
    pub name: &'static str,
    /// The number of operations.
    pub count: u64,
    /// The shortest time.
    pub min_us: f64,
    /// The mean.
    pub mean_us: f64,
    /// The median.
    pub p50_us: f64,
    /// 90 % took no longer.
    pub p90_us: f64,
    /// 99 % took no longer.
    pub p99_us: f64,
    /// 99.9 % took no longer.
    pub p999_us: f64,
    /// The longest time.
    pub max_us: f64,
}

/// The unit of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TimeUnit {
    /// For network dialogues: two decimals.
    Milliseconds,
    /// For system calls: one decimal.
    Microseconds,
}

impl TimingStats {
    /// The statistics of a histogram with this many counts per microsecond.
    pub(crate) fn from_histogram(name: &'static str, histogram: &Histogram<u64>, counts_per_us: f64) -> TimingStats {
        let us = |counts: u64| counts as f64 / counts_per_us;
        let at = |quantile| us(histogram.value_at_quantile(quantile));
        TimingStats {
            name,
            count: histogram.len(),
            min_us: us(histogram.min()),
            mean_us: histogram.mean() / counts_per_us,
            p50_us: at(0.5),
            p90_us: at(0.9),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: us(histogram.max()),
        }
    }

    fn row(&self, unit: TimeUnit) -> Vec<String> {
        let times = [self.min_us, self.p50_us, self.p90_us, self.p99_us, self.p999_us, self.max_us];
        let figures = times.iter().map(|&us| unit.format(us));
        [self.name.to_owned(), self.count.to_string()].into_iter().chain(figures).collect()
    }
}

impl TimeUnit {
    /// Formats a time in this unit.
    pub(crate) fn format(self, us: f64) -> String {
        match self {
            TimeUnit::Milliseconds => format!("{:.2}", us / 1e3),
            TimeUnit::Microseconds => format!("{us:.1}"),
        }
    }

    fn name(self) -> &'static str {
        match self {
            TimeUnit::Milliseconds => "milliseconds",
            TimeUnit::Microseconds => "microseconds",
        }
    }
}

/// A table with a row for each, under a header with the unit.
pub(crate) fn table<'a>(unit: TimeUnit, times: impl IntoIterator<Item = &'a TimingStats>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([unit.name(), "count", "min", "p50", "p90", "p99", "p99.9", "max"]);
    table.add_rows(times.into_iter().map(|times| times.row(unit)));
    table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In nanoseconds: 99 times 10 us, and once 5 ms.
    fn one_slow_in_a_hundred() -> Histogram<u64> {
        let mut histogram = Histogram::new(3).unwrap();
        histogram.record_n(10_000, 99).unwrap();
        histogram.record(5_000_000).unwrap();
        histogram
    }

    #[test]
    fn one_slow_operation_in_a_hundred_shows_at_the_end_only() {
        let times = TimingStats::from_histogram("write", &one_slow_in_a_hundred(), 1e3);
        assert_eq!(times.count, 100);
        assert!((9.99..10.02).contains(&times.p50_us) && (9.99..10.02).contains(&times.p99_us), "{times:?}");
        assert!((4990.0..5010.0).contains(&times.max_us) && times.p999_us > 4990.0, "{times:?}");
        assert!((59.8..60.0).contains(&times.mean_us), "{times:?}");
    }

    #[test]
    fn the_table_uses_the_requested_unit() {
        let times = [TimingStats::from_histogram("write", &one_slow_in_a_hundred(), 1e3)];
        assert_eq!(
            table(TimeUnit::Microseconds, &times).trim_fmt(),
            " microseconds  count   min   p50   p90   p99   p99.9     max\n \
             write           100  10.0  10.0  10.0  10.0  5001.2  5001.2"
        );
        assert_eq!(times[0].row(TimeUnit::Milliseconds)[3..], ["0.01", "0.01", "0.01", "5.00", "5.00"]);
    }

    #[test]
    fn without_any_operation_all_is_zero() {
        let times = TimingStats::from_histogram("sync", &Histogram::new(3).unwrap(), 1e3);
        assert_eq!(times.row(TimeUnit::Microseconds), ["sync", "0", "0.0", "0.0", "0.0", "0.0", "0.0", "0.0"]);
    }
}
