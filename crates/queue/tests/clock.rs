//! The clock is set back by a day: nothing waits a day because of it.

mod harness;

use std::time::Duration;

use harness::*;
use mail::Rate;
use queue::{AttemptPurpose, ContactResult};

const DAY: Duration = Duration::from_secs(86_400);

#[test]
fn a_rate_limit_continues() {
    let mut harness = harness();
    harness.limits.rate = Some(Rate { count: 1, per: seconds(10) });
    harness.admit_each(1..=3, "a.example");
    let first = harness.take();
    harness.deliver(first);
    harness.now = NOW - DAY;
    assert!(harness.next().is_none());
    assert_eq!(harness.queues.next_deadline(), Some(harness.now + seconds(10)));
    harness.now = harness.now + seconds(10);
    assert_eq!(harness.take().id, id(2));
}

#[test]
fn the_dead_are_probed_after_one_wait() {
    let mut harness = harness();
    harness.admit_each(1..=3, "a.example");
    for _ in 0..3 {
        let attempt = harness.take();
        harness.defer(attempt, unreachable());
    }
    harness.now = NOW - DAY;
    assert!(harness.next().is_none());
    let probe_at = harness.now + seconds(60);
    assert_eq!(harness.hop("a.example").probe_at, Some(probe_at));
    harness.now = probe_at;
    harness.admit(4, 5, "a.example", 1);
    assert_eq!(harness.take().purpose, AttemptPurpose::Deliver);
}

#[test]
fn the_lame_are_released_in_time() {
    let mut harness = harness();
    harness.admit_each(1..=2, "a.example");
    let slow = harness.take();
    harness.defer(slow, ContactResult::Answered { slowest: seconds(30) });
    let quick = harness.take();
    harness.deliver(quick);
    assert_eq!(harness.hop("a.example").adopted_by, Some(LAME));
    harness.now = NOW - DAY;
    assert!(harness.next().is_none());
    let release_after = config().queues[1].adopts.as_ref().map(|adopt| adopt.release_after).unwrap();
    assert_eq!(harness.queues.next_deadline(), Some(harness.now + release_after));
    harness.now = harness.now + release_after;
    assert!(harness.next().is_none());
    assert_eq!(harness.hop("a.example").adopted_by, None);
}
