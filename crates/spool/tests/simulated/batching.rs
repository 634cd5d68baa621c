//! What a lane reports of its batches, which it adapts to the disk and to what comes in.

use std::time::Duration;

use sim::OperationKind;
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
    // The message fills whole blocks, and its frame needs another one.
    assert!(bytes == 704 << 10 && took > Duration::ZERO, "{lane:?}");
    assert_eq!((lane.batch_bytes, lane.batch_bytes_bounds), (BATCH_BYTES / 2, (256 << 10, BATCH_BYTES)));
}

#[test]
fn on_a_fast_disk_a_batch_may_have_the_configured_size() {
    let mut harness = harness(Duration::from_secs(3600));
    harness.accept(700 << 10, 1).unwrap();
    let [lane] = &harness.spool.batching()[..] else { panic!("one lane") };
    assert_eq!((lane.batch_bytes, lane.slow_batch, lane.gather_count), (BATCH_BYTES, None, 0));
}

/// Submits messages of these sizes while the disk is busy with another one, and waits for all. Returns the
/// number of batches that they needed.
fn submit_together(harness: &mut SpoolHarness, sizes: &[usize]) -> u64 {
    harness.accept(100, 1).expect("the disk has no faults");
    harness.wait_until("no spare segment is created", |harness| harness.spool.stats().segments == 2);
    let hold = harness.disk.hold(OperationKind::Sync);
    let (_, first) = harness.start_accept(100, 1);
    hold.wait_for(1);
    let before = harness.spool.stats().batch_records.count();
    let tickets: Vec<_> = sizes.iter().map(|size| harness.start_accept(*size, 1).1).collect();
    drop(hold);
    harness.wait(first).expect("the disk has no faults");
    tickets.into_iter().for_each(|ticket| harness.wait(ticket).expect("the disk has no faults"));
    harness.spool.stats().batch_records.count() - before - 1
}

#[test]
fn after_a_batch_of_four_submissions_the_next_one_waits_for_twice_as_many() {
    for (count, expected) in [(3, 0), (4, 8), (5, 10)] {
        let mut harness = harness(Duration::from_secs(3600));
        assert_eq!(submit_together(&mut harness, &vec![100; count]), 1);
        assert_eq!(harness.spool.batching()[0].gather_count, expected, "after {count} submissions");
    }
}

#[test]
fn a_batch_has_its_maximum_of_bytes_or_one_larger_submission() {
    let settings = Config { batch_bytes_max: 10_000, ..config(SEGMENT_BYTES) };
    let mut harness = SpoolHarness::open(&sim::Disk::new(SEED), settings).unwrap();
    // Two, then one that the next would make too large, then that one, which is too large for any, then the rest.
    assert_eq!(submit_together(&mut harness, &[4000, 4000, 4000, 12_000, 100, 100]), 4);
}
