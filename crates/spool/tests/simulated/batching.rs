//! What a lane reports of its batches, which it adapts to the disk and to what comes in.

use std::time::Duration;

use spool::Config;

use crate::harness::{SEED, SpoolHarness, config};

const SEGMENT_BYTES: u64 = 8 << 20;
const BATCH_BYTES: u64 = 1 << 20;

fn harness(batch_time_target: Duration) -> SpoolHarness {
    let settings = Config { batch_bytes_max: BATCH_BYTES, batch_time_target, ..config(SEGMENT_BYTES) };
    SpoolHarness::open(&sim::Disk::new(SEED), settings).expect("an empty disk opens")
}

#[test]
fn a_batch_that_took_too_long_is_reported_with_the_smaller_batches_that_follow() {
    // Nothing is as fast as this.
    let mut harness = harness(Duration::ZERO);
    harness.accept(700 << 10, 1).unwrap();
    let [lane] = &harness.spool.batching()[..] else { panic!("one lane") };
    let (bytes, took) = lane.slow_batch.expect("the batch was slower than no time");
    assert!(bytes > 700 << 10 && took > Duration::ZERO, "{lane:?}");
    assert_eq!((lane.batch_bytes, lane.batch_bytes_bounds), (BATCH_BYTES / 2, (256 << 10, BATCH_BYTES)));
}

#[test]
fn on_a_fast_disk_a_batch_may_have_the_configured_size() {
    let mut harness = harness(Duration::from_secs(3600));
    harness.accept(700 << 10, 1).unwrap();
    let [lane] = &harness.spool.batching()[..] else { panic!("one lane") };
    assert_eq!((lane.batch_bytes, lane.slow_batch, lane.gather_count), (BATCH_BYTES, None, 0));
}
