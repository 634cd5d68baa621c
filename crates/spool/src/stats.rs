//! What the spool counts of itself. Written by its threads without locks, read by whoever wants to know.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Counts per power of two: bucket `i` counts values of at most `2^i` (and above `2^(i-1)`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Per bucket, not cumulated.
    pub buckets: [u64; Histogram::BUCKETS],
    /// Sum of all values.
    pub sum: u64,
}

impl Histogram {
    /// Buckets for values of up to 2^23 and one for what is above.
    pub const BUCKETS: usize = 25;

    /// How many values were counted.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    fn add(&mut self, other: &Histogram) {
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(mine, theirs)| *mine += theirs);
        self.sum += other.sum;
    }
}

/// A reading of a spool's counters, all lanes together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Messages with recipients left.
    pub messages_live: u64,
    /// Messages accepted since the start.
    pub messages_committed: u64,
    /// Records per batch.
    pub batch_records: Histogram,
    /// Microseconds of each sync.
    pub sync_micros: Histogram,
    /// Batches that could not be written or synced.
    pub batches_failed: u64,
    /// Segment files, used and free.
    pub segments: u64,
    /// Those of them that are free.
    pub segments_free: u64,
    /// Messages copied forward out of mostly dead segments.
    pub messages_copied: u64,
    /// Damaged places that were set aside.
    pub set_aside: u64,
}

impl Stats {
    pub(crate) fn add(&mut self, other: &Stats) {
        self.messages_live += other.messages_live;
        self.messages_committed += other.messages_committed;
        self.batch_records.add(&other.batch_records);
        self.sync_micros.add(&other.sync_micros);
        self.batches_failed += other.batches_failed;
        self.segments += other.segments;
        self.segments_free += other.segments_free;
        self.messages_copied += other.messages_copied;
        self.set_aside += other.set_aside;
    }
}

#[derive(Debug, Default)]
pub(crate) struct Recorder {
    buckets: [AtomicU64; Histogram::BUCKETS],
    sum: AtomicU64,
}

impl Recorder {
    fn record(&self, value: u64) {
        let bucket = (64 - value.saturating_sub(1).leading_zeros() as usize).min(Histogram::BUCKETS - 1);
        self.buckets[bucket].fetch_add(1, Relaxed);
        self.sum.fetch_add(value, Relaxed);
    }

    fn read(&self) -> Histogram {
        let buckets = std::array::from_fn(|i| self.buckets[i].load(Relaxed));
        Histogram { buckets, sum: self.sum.load(Relaxed) }
    }
}

/// The counters of one lane.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) messages_committed: AtomicU64,
    pub(crate) batches_failed: AtomicU64,
    pub(crate) messages_copied: AtomicU64,
    pub(crate) set_aside: AtomicU64,
    batch_records: Recorder,
    sync_micros: Recorder,
}

impl Counters {
    pub(crate) fn batch(&self, records: u64, sync: Duration) {
        self.batch_records.record(records);
        self.sync_micros.record(u64::try_from(sync.as_micros()).unwrap_or(u64::MAX));
    }

    pub(crate) fn read(&self) -> Stats {
        Stats {
            messages_committed: self.messages_committed.load(Relaxed),
            batch_records: self.batch_records.read(),
            sync_micros: self.sync_micros.read(),
            batches_failed: self.batches_failed.load(Relaxed),
            messages_copied: self.messages_copied.load(Relaxed),
            set_aside: self.set_aside.load(Relaxed),
            ..Stats::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_falls_into_the_first_bucket_that_holds_it() {
        let recorder = Recorder::default();
        [0, 1, 2, 3, 4, 5, u64::MAX >> 8].iter().for_each(|&value| recorder.record(value));
        let buckets = recorder.read().buckets;
        assert_eq!(buckets[..4], [2, 1, 2, 1]);
        assert_eq!(buckets[Histogram::BUCKETS - 1], 1);
    }
}
