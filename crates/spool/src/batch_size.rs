//! Adapts the size of batches to what the disk can write and sync within the target latency.
//!
//! | a batch at least half full | the next batches take |
//! |---|---|
//! | took longer than the target | proportionally less, but at least half of before |
//! | took less | an eighth more |
//!
//! Always between [`BATCH_BYTES_MIN`] and the configured maximum. A nearly empty batch is ignored:
//! its time is the price of a sync, and a smaller one is not faster.

use std::time::Duration;

/// Smaller batches are pointless: the sync costs more than the data.
pub(crate) const BATCH_BYTES_MIN: u64 = 256 << 10;

/// The current maximum size of a batch.
#[derive(Debug)]
pub(crate) struct BatchSizer {
    bytes: u64,
    max: u64,
    target: Duration,
}

impl BatchSizer {
    /// Starts with the maximum, because nothing waits on an idle disk.
    pub(crate) fn new(most: u64, target: Duration) -> Self {
        BatchSizer { bytes: most, max: most, target }
    }

    /// The smallest and the largest maximum.
    pub(crate) fn bounds(max: u64) -> (u64, u64) {
        (BATCH_BYTES_MIN.min(max), max)
    }

    /// A batch takes no further submission when it has this many bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Records that a batch of this size was written and synced in this time. Returns true if that was too slow.
    pub(crate) fn record_batch(&mut self, bytes: u64, took: Duration) -> bool {
        if bytes < self.bytes / 2 {
            return false;
        }
        let is_slow = took > self.target;
        let wanted = if is_slow {
            let share = self.target.as_secs_f64() / took.as_secs_f64();
            (self.bytes as f64 * share.max(0.5)) as u64
        } else {
            self.bytes + self.bytes / 8
        };
        self.bytes = wanted.max(BATCH_BYTES_MIN).min(self.max);
        is_slow
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: Duration = Duration::from_millis(100);

    /// A disk with this sync time and throughput.
    fn settle(sync: Duration, bytes_per_second: f64) -> u64 {
        let mut pace = BatchSizer::new(8 << 20, TARGET);
        for _ in 0..200 {
            let bytes = pace.bytes();
            pace.record_batch(bytes, sync + Duration::from_secs_f64(bytes as f64 / bytes_per_second));
        }
        pace.bytes()
    }

    #[test]
    fn batches_are_as_large_as_the_disk_writes_in_time() {
        assert_eq!(settle(Duration::from_millis(1), 1e9), 8 << 20);
        let slow = settle(Duration::from_millis(10), 20e6);
        assert!((1_300_000..2_100_000).contains(&slow), "{slow}");
        assert_eq!(settle(Duration::from_secs(1), 1e9), BATCH_BYTES_MIN);
    }

    #[test]
    fn a_nearly_empty_batch_is_ignored() {
        let mut pace = BatchSizer::new(8 << 20, TARGET);
        pace.record_batch(4096, Duration::from_secs(10));
        assert_eq!(pace.bytes(), 8 << 20);
    }

    #[test]
    fn a_batch_that_is_a_quarter_too_slow_makes_them_a_fifth_smaller() {
        let mut pace = BatchSizer::new(10 << 20, TARGET);
        pace.record_batch(10 << 20, TARGET * 5 / 4);
        assert_eq!(pace.bytes(), 8 << 20);
    }

    #[test]
    fn a_batch_in_time_to_the_nanosecond_makes_them_larger() {
        let mut pace = BatchSizer::new(16 << 20, TARGET);
        pace.record_batch(16 << 20, TARGET * 2);
        pace.record_batch(8 << 20, TARGET);
        assert_eq!(pace.bytes(), 9 << 20);
    }

    #[test]
    fn a_batch_that_is_half_full_counts() {
        let mut pace = BatchSizer::new(8 << 20, TARGET);
        pace.record_batch(4 << 20, Duration::from_secs(10));
        assert_eq!(pace.bytes(), 4 << 20);
    }

    #[test]
    fn a_maximum_under_the_least_holds() {
        let mut pace = BatchSizer::new(1000, TARGET);
        pace.record_batch(1000, Duration::from_secs(10));
        assert_eq!(pace.bytes(), 1000);
    }
}
