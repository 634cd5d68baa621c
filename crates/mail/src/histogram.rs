//! A histogram of values in power-of-two buckets, for metrics.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counts per power of two: bucket `i` counts values up to `2^i` and above `2^(i-1)`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Counts per bucket, not cumulative.
    pub buckets: [u64; Histogram::BUCKETS],
    /// The sum of all values.
    pub sum: u64,
}

impl Histogram {
    /// Buckets for values up to 2^23, and one for larger values.
    pub const BUCKETS: usize = 25;

    /// The number of values counted.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The values that were counted since `earlier`, a snapshot of the same histogram.
    pub fn since(&self, earlier: &Histogram) -> Histogram {
        let buckets = std::array::from_fn(|i| self.buckets[i].saturating_sub(earlier.buckets[i]));
        Histogram { buckets, sum: self.sum.saturating_sub(earlier.sum) }
    }

    /// The value that this share of all values does not exceed, 0.99 for the 99th percentile. Within a
    /// bucket, values are taken to be spread evenly. None if nothing was counted.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let rank = share * self.count() as f64;
        let mut below = 0.0;
        for (power, count) in self.buckets.iter().enumerate().filter(|(_, count)| **count > 0) {
            let count = *count as f64;
            if below + count >= rank {
                let (lower, upper) =
                    if power == 0 { (0.0, 1.0) } else { ((1u64 << (power - 1)) as f64, (1u64 << power) as f64) };
                return Some(lower + (upper - lower) * ((rank - below) / count).clamp(0.0, 1.0));
            }
            below += count;
        }
        None
    }

    /// Adds the counts of `other`.
    pub fn merge(&mut self, other: &Histogram) {
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(mine, theirs)| *mine += theirs);
        self.sum += other.sum;
    }
}

/// A histogram that many threads update without locks.
#[derive(Debug, Default)]
pub struct HistogramRecorder {
    buckets: [AtomicU64; Histogram::BUCKETS],
    sum: AtomicU64,
}

impl HistogramRecorder {
    /// Counts a value.
    pub fn record(&self, value: u64) {
        let bucket = (64 - value.saturating_sub(1).leading_zeros() as usize).min(Histogram::BUCKETS - 1);
        self.buckets[bucket].fetch_add(1, Relaxed);
        self.sum.fetch_add(value, Relaxed);
    }

    /// A snapshot of the counts.
    pub fn read(&self) -> Histogram {
        let buckets = std::array::from_fn(|i| self.buckets[i].load(Relaxed));
        Histogram { buckets, sum: self.sum.load(Relaxed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_found_in_its_bucket() {
        let recorder = HistogramRecorder::default();
        assert_eq!(recorder.read().quantile(0.5), None);
        (0..99).for_each(|_| recorder.record(3));
        let before = recorder.read();
        recorder.record(1000);
        let all = recorder.read();
        assert!((2.0..=4.0).contains(&all.quantile(0.5).unwrap()));
        assert!((512.0..=1024.0).contains(&all.quantile(1.0).unwrap()));
        let later = all.since(&before);
        assert_eq!((later.count(), later.sum), (1, 1000));
        assert!((512.0..=1024.0).contains(&later.quantile(0.01).unwrap()));
    }

    #[test]
    fn a_value_falls_into_the_first_bucket_that_holds_it() {
        let recorder = HistogramRecorder::default();
        [0, 1, 2, 3, 4, 5, u64::MAX >> 8].iter().for_each(|&value| recorder.record(value));
        let buckets = recorder.read().buckets;
        assert_eq!(buckets[..4], [2, 1, 2, 1]);
        assert_eq!(buckets[Histogram::BUCKETS - 1], 1);
    }
}
