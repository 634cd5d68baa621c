//! Counters and histograms of the spool, written by its threads without locks.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use mail::{Histogram, HistogramRecorder};

use crate::LaneId;

/// A snapshot of a spool's counters, the sum of all lanes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Messages with pending recipients.
    pub messages_live: u64,
    /// Messages accepted since the start.
    pub messages_committed: u64,
    /// Records per batch.
    pub batch_records: Histogram,
    /// The duration of each sync in microseconds.
    pub sync_micros: Histogram,
    /// The bytes that a batch may have now, in the lane that allows the least; it adapts to the disk.
    pub batch_bytes_max: u64,
    /// Batches that could not be written or synced.
    pub batches_failed: u64,
    /// Segment files, used and free.
    pub segments: u64,
    /// Those that are free.
    pub segments_free: u64,
    /// Messages copied forward out of mostly dead segments.
    pub messages_copied: u64,
    /// Damaged ranges and messages that were set aside.
    pub set_aside: u64,
}

impl Stats {
    pub(crate) fn add(&mut self, other: &Stats) {
        self.messages_live += other.messages_live;
        self.messages_committed += other.messages_committed;
        self.batch_records.merge(&other.batch_records);
        self.sync_micros.merge(&other.sync_micros);
        let sizes = [self.batch_bytes_max, other.batch_bytes_max];
        self.batch_bytes_max = sizes.into_iter().filter(|bytes| *bytes > 0).min().unwrap_or(0);
        self.batches_failed += other.batches_failed;
        self.segments += other.segments;
        self.segments_free += other.segments_free;
        self.messages_copied += other.messages_copied;
        self.set_aside += other.set_aside;
    }
}

/// How a lane forms its batches now. It adapts both numbers by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneBatching {
    /// The lane.
    pub lane: LaneId,
    /// The bytes that a batch may have now. It starts with the highest number.
    pub batch_bytes: u64,
    /// The lowest and the highest number of bytes.
    pub batch_bytes_bounds: (u64, u64),
    /// Batches become smaller while one takes longer than this.
    pub batch_time_target: Duration,
    /// The last batch that took longer, if there was one: its bytes, and its time.
    pub slow_batch: Option<(u64, Duration)>,
    /// A batch waits for this many submissions, for [`gather_time_max`](LaneBatching::gather_time_max) at most; 0: it does
    /// not wait. It starts with 0.
    pub gather_count: u64,
    /// How long a batch waits for them.
    pub gather_time_max: Duration,
}

/// The counters of one lane.
#[derive(Debug, Default)]
pub(crate) struct LaneCounters {
    pub(crate) messages_committed: AtomicU64,
    /// 0 until the writer has started.
    pub(crate) batch_bytes_max: AtomicU64,
    /// The last batch that was too slow; no time: there was none.
    slow_batch_bytes: AtomicU64,
    slow_batch_micros: AtomicU64,
    pub(crate) gather_count: AtomicU64,
    pub(crate) batches_failed: AtomicU64,
    pub(crate) messages_copied: AtomicU64,
    pub(crate) set_aside: AtomicU64,
    batch_records: HistogramRecorder,
    sync_micros: HistogramRecorder,
}

impl LaneCounters {
    pub(crate) fn batch(&self, records: u64, sync: Duration) {
        self.batch_records.record(records);
        self.sync_micros.record(u64::try_from(sync.as_micros()).unwrap_or(u64::MAX));
    }

    pub(crate) fn slow_batch(&self, bytes: u64, took: Duration) {
        self.slow_batch_bytes.store(bytes, Relaxed);
        self.slow_batch_micros.store(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Relaxed);
    }

    pub(crate) fn last_slow_batch(&self) -> Option<(u64, Duration)> {
        let micros = self.slow_batch_micros.load(Relaxed);
        (micros > 0).then(|| (self.slow_batch_bytes.load(Relaxed), Duration::from_micros(micros)))
    }

    pub(crate) fn read(&self) -> Stats {
        Stats {
            messages_committed: self.messages_committed.load(Relaxed),
            batch_records: self.batch_records.read(),
            sync_micros: self.sync_micros.read(),
            batch_bytes_max: self.batch_bytes_max.load(Relaxed),
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
    fn the_lane_that_allows_the_least_decides() {
        let of = |bytes| Stats { batch_bytes_max: bytes, ..Stats::default() };
        let sum = [of(8), of(5), of(0)].iter().fold(Stats::default(), |mut sum, lane| {
            sum.add(lane);
            sum
        });
        assert_eq!(sum.batch_bytes_max, 5);
    }

    fn histogram(values: &[u64]) -> Histogram {
        let recorder = HistogramRecorder::default();
        values.iter().for_each(|value| recorder.record(*value));
        recorder.read()
    }

    #[test]
    fn a_spool_counts_what_all_its_lanes_did() {
        let of = |first: u64, values: &[u64]| Stats {
            messages_live: first,
            messages_committed: first + 1,
            batch_records: histogram(values),
            sync_micros: histogram(&[first]),
            batch_bytes_max: 4096,
            batches_failed: first + 2,
            segments: first + 3,
            segments_free: first + 4,
            messages_copied: first + 5,
            set_aside: first + 6,
        };
        let mut sum = Stats::default();
        [of(10, &[3, 900]), of(200, &[70])].iter().for_each(|lane| sum.add(lane));
        let expected = Stats {
            messages_live: 210,
            messages_committed: 212,
            batch_records: histogram(&[3, 900, 70]),
            sync_micros: histogram(&[10, 200]),
            batch_bytes_max: 4096,
            batches_failed: 214,
            segments: 216,
            segments_free: 218,
            messages_copied: 220,
            set_aside: 222,
        };
        assert_eq!(sum, expected);
    }

    #[test]
    fn what_a_lane_counts_is_what_its_statistics_show() {
        let counters = LaneCounters::default();
        let counted = [
            &counters.messages_committed,
            &counters.batch_bytes_max,
            &counters.batches_failed,
            &counters.messages_copied,
            &counters.set_aside,
        ];
        counted.iter().zip(1..).for_each(|(counter, value)| counter.store(value, Relaxed));
        counters.batch(3, Duration::from_millis(2));
        let expected = Stats {
            messages_committed: 1,
            batch_records: histogram(&[3]),
            sync_micros: histogram(&[2000]),
            batch_bytes_max: 2,
            batches_failed: 3,
            messages_copied: 4,
            set_aside: 5,
            ..Stats::default()
        };
        assert_eq!(counters.read(), expected);
    }

    #[test]
    fn the_last_slow_batch_is_shown() {
        let counters = LaneCounters::default();
        assert_eq!(counters.last_slow_batch(), None);
        for batch in [(700, Duration::from_millis(300)), (50, Duration::from_micros(1))] {
            counters.slow_batch(batch.0, batch.1);
            assert_eq!(counters.last_slow_batch(), Some(batch));
        }
    }
}
