//! What servers share that deliver to the same next hops.

mod harness;

use harness::{LAME, NOW, STANDARD, harness, seconds};
use mail::Rate;
use queue::{GrantedDepartures, SharedConcurrency, SlotUsage};

/// Ten attempts in a second, of all servers.
fn shared() -> harness::Harness {
    let mut harness = harness();
    harness.limits.rate = Some(Rate { count: 10, per: seconds(1) });
    harness.limits.is_rate_shared = true;
    harness
}

#[test]
fn attempts_of_a_shared_rate_wait_for_departures() {
    let mut harness = shared();
    harness.admit_each(1..=5, "a.example");
    assert!(harness.next().is_none());
    let request = harness.queues.next_departure_request().unwrap();
    assert_eq!((&*request.next_hop, request.interval.as_millis(), request.count), ("a.example", 100, 2));
    assert_eq!(harness.queues.next_departure_request(), None);
    let granted = GrantedDepartures { first: NOW + seconds(1), interval: request.interval, count: 2 };
    harness.queues.grant_departures(NOW, "a.example", granted);
    assert!(harness.next().is_none(), "not before the first departure");
    assert_eq!(harness.queues.next_deadline(), Some(NOW + seconds(1)));
    harness.now = NOW + seconds(1);
    let first = harness.next().unwrap();
    harness.deliver(first);
    assert!(harness.next().is_none(), "one for each departure");
}

#[test]
fn a_request_that_nobody_answers_is_repeated() {
    let mut harness = shared();
    harness.admit_each(1..=1, "a.example");
    assert!(harness.next().is_none());
    assert!(harness.queues.next_departure_request().is_some());
    harness.now = harness.queues.next_deadline().unwrap();
    assert!(harness.next().is_none(), "without departures nothing leaves, however long it takes");
    assert!(harness.queues.next_departure_request().is_some());
}

#[test]
fn departures_of_a_next_hop_that_is_unknown_change_nothing() {
    let mut harness = shared();
    let granted = GrantedDepartures { first: NOW, interval: seconds(1), count: 1 };
    harness.queues.grant_departures(NOW, "b.example", granted);
    assert_eq!(harness.queues.next_departure_request(), None);
}

#[test]
fn a_next_hop_that_is_lame_elsewhere_is_adopted_and_not_announced_again() {
    let mut harness = harness();
    harness.prove("a.example");
    harness.prove("b.example");
    harness.queues.report_lame_elsewhere(NOW, "a.example");
    harness.queues.report_lame_elsewhere(NOW, "unknown.example");
    assert_eq!(harness.hop("a.example").adopted_by, Some(LAME));
    assert_eq!(harness.queues.next_newly_lame(), None);
    harness.queues.report_slow(NOW, harness.hop("b.example").number);
    assert_eq!(harness.queues.next_newly_lame().as_deref(), Some("b.example"));
    harness.queues.report_slow(NOW, harness.hop("b.example").number);
    assert_eq!(harness.queues.next_newly_lame(), None, "it is adopted once");
}

/// A concurrency of five, of all servers.
fn shared_slots() -> harness::Harness {
    let mut harness = harness();
    harness.limits.shared_concurrency = Some(SharedConcurrency { idle: seconds(5) });
    harness.limits.concurrency.max = 5;
    harness
}

/// The last report of the slots of a next hop.
fn usage(harness: &mut harness::Harness) -> Option<SlotUsage> {
    std::iter::from_fn(|| harness.queues.next_slot_report()).last().map(|report| report.usage)
}

#[test]
fn attempts_of_a_shared_concurrency_wait_for_slots() {
    let mut harness = shared_slots();
    harness.admit_each(1..=9, "a.example");
    assert!(harness.next().is_none());
    assert_eq!(usage(&mut harness), Some(SlotUsage { limit: 5, wanted: 1, held: 0, granted: 0 }), "it is unproven");
    harness.queues.grant_slots(NOW, "a.example", 5);
    let first = harness.next().unwrap();
    harness.deliver(first);
    harness.queues.grant_slots(NOW, "a.example", 2);
    let attempts: Vec<_> = std::iter::from_fn(|| harness.next()).collect();
    assert_eq!(attempts.len(), 2, "no more than granted");
    harness.now = NOW + seconds(1);
    harness.queues.grant_slots(harness.now, "a.example", 1);
    assert_eq!(usage(&mut harness), Some(SlotUsage { limit: 5, wanted: 4, held: 2, granted: 1 }));
    attempts.into_iter().for_each(|attempt| harness.deliver(attempt));
    assert!(harness.next().is_some() && harness.next().is_none(), "fewer from now on");
}

#[test]
fn slots_of_connections_that_are_closed_are_given_back() {
    let mut harness = shared_slots();
    harness.admit_each(1..=1, "a.example");
    assert!(harness.next().is_none());
    harness.queues.grant_slots(NOW, "a.example", 1);
    let attempt = harness.next().unwrap();
    harness.deliver(attempt);
    let mut last = None;
    while let Some(at) = harness.queues.next_deadline().filter(|at| *at < NOW + seconds(60)) {
        harness.now = at;
        assert!(harness.next().is_none());
        last = usage(&mut harness).map(|usage| (at, usage)).or(last);
    }
    let (at, usage) = last.unwrap();
    assert_eq!((usage.wanted, usage.held), (0, 0));
    assert!((seconds(5)..=seconds(12)).contains(&at.since(NOW)), "{at:?}");
    let hop = harness.hop("a.example").number;
    assert_eq!(harness.queues.next_hop_block_reasons(harness.now, hop, STANDARD), [], "nobody wants any");
}

#[test]
fn a_concurrency_that_is_shared_no_more_holds_no_slots() {
    let mut harness = shared_slots();
    harness.admit_each(1..=2, "a.example");
    assert!(harness.next().is_none() && usage(&mut harness).is_some());
    harness.limits.shared_concurrency = None;
    harness.queues.invalidate_routes(NOW);
    assert!(harness.next().is_some());
    assert_eq!(usage(&mut harness).map(|usage| usage.is_none()), Some(true));
}
