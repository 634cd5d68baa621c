//! What servers share that deliver to the same next hops.

mod harness;

use harness::{LAME, NOW, harness, seconds};
use mail::Rate;
use queue::GrantedDepartures;

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
