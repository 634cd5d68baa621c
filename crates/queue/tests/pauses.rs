//! Pauses, one property per test: queues, next hops and destinations, with and without an end.

mod harness;

use harness::*;
use queue::{BlockReason, PauseTarget};

fn hop(name: &str) -> PauseTarget {
    PauseTarget::NextHop(name.into())
}

fn destination(name: &str) -> PauseTarget {
    PauseTarget::Destination(name.into())
}

fn block_reasons(harness: &mut Harness, name: &str) -> Vec<BlockReason> {
    let destination = harness.queues.intern_destination(STANDARD, name);
    harness.queues.block_reasons(harness.now, destination)
}

#[test]
fn a_paused_next_hop_keeps_its_mail_and_the_others_continue() {
    let mut harness = harness();
    harness.route = host_of;
    harness.admit_each([1, 2], "a.host");
    let flying = harness.take();
    harness.pause(hop("host"));
    harness.deliver(flying);
    harness.admit_each([3], "b.host");
    harness.admit_each([4], "c.other");
    assert_eq!(harness.drain(), [4]);
    assert_eq!(harness.hop("host").pause, Some(None));
    assert_eq!(block_reasons(&mut harness, "a.host"), [BlockReason::NextHopPaused { until: None }]);
    assert!(harness.queues.resume(NOW, &hop("host")) && !harness.queues.resume(NOW, &hop("host")));
    assert_eq!(harness.drain(), [2, 3]);
}

#[test]
fn a_dead_next_hop_that_is_paused_refuses_nothing() {
    let mut harness = harness();
    harness.admit_each(1..=4, "a.example");
    for _ in 0..3 {
        let attempt = harness.take();
        harness.defer(attempt, unreachable());
    }
    harness.pause(hop("a.example"));
    assert!(harness.next().is_none());
    assert!(harness.queues.resume(NOW, &hop("a.example")));
    assert_eq!(harness.take().id, id(4));
}

#[test]
fn what_is_not_known_yet_is_paused_by_its_name() {
    let mut harness = harness();
    harness.route = host_of;
    harness.pause(hop("host"));
    harness.pause(destination("b.other"));
    harness.admit_each([1], "a.host");
    harness.admit_each([2], "b.other");
    assert!(harness.next().is_none() && harness.queues.next_deadline().is_none());
    assert_eq!(block_reasons(&mut harness, "b.other"), [BlockReason::DestinationPaused { until: None }]);
    assert!(harness.queues.resume(NOW, &hop("host")) && harness.queues.resume(NOW, &destination("b.other")));
    assert_eq!(harness.drain(), [1, 2]);
}

#[test]
fn a_paused_destination_keeps_its_mail_in_all_queues_and_its_next_hop_continues() {
    let mut harness = harness();
    harness.route = host_of;
    // Its route is known, and nothing waits for it.
    harness.admit_each([1], "a.host");
    assert_eq!(harness.drain(), [1]);
    harness.pause(destination("a.host"));
    harness.admit_each([2], "a.host");
    harness.admit_to(LISTS, 3, 5, "a.host", 1);
    harness.admit_each([4], "b.host");
    assert_eq!(harness.drain(), [4]);
    let [view] = &harness.queues.destination_views().filter(|view| view.queue == LISTS).collect::<Vec<_>>()[..] else {
        panic!("the queue has one destination")
    };
    assert_eq!((view.pause, view.next_hop), (Some(None), None));
    assert!(harness.queues.resume(NOW, &destination("a.host")));
    let mut order = harness.drain();
    order.sort_unstable();
    assert_eq!(order, [2, 3]);
}

#[test]
fn a_route_that_expires_during_a_pause_is_requested_again() {
    let mut harness = harness();
    harness.route_time = seconds(10);
    harness.admit_each([1], "a.example");
    harness.pause(destination("a.example"));
    assert!(harness.next().is_none());
    harness.now = NOW + seconds(20);
    harness.admit_each([2], "a.example");
    assert!(harness.next().is_none());
    harness.now = NOW + seconds(40);
    assert!(harness.queues.resume(harness.now, &destination("a.example")));
    assert_eq!(harness.drain(), [1, 2]);
}

#[test]
fn a_pause_ends_by_its_time() {
    for target in [PauseTarget::Queue(STANDARD), hop("a.example"), destination("a.example")] {
        let mut harness = harness();
        harness.admit_each([1], "a.example");
        let end = NOW + seconds(3600);
        harness.queues.pause(NOW, target.clone(), Some(end)).unwrap();
        assert!(harness.next().is_none());
        assert_eq!(harness.queues.next_deadline(), Some(end), "{target:?}");
        harness.now = end - std::time::Duration::from_millis(1);
        assert!(harness.next().is_none());
        harness.now = end;
        assert_eq!(harness.drain(), [1], "{target:?}");
        assert_eq!(harness.queues.pause_views().count(), 0);
    }
}

#[test]
fn a_pause_that_is_in_force_gets_another_end() {
    let mut harness = harness();
    harness.admit_each([1], "a.example");
    for until in [Some(NOW + seconds(10)), None] {
        harness.queues.pause(NOW, hop("a.example"), until).unwrap();
    }
    harness.now = NOW + seconds(20);
    assert!(harness.next().is_none());
}

#[test]
fn pauses_are_limited() {
    let mut harness = harness();
    (0..1000).for_each(|number| harness.pause(hop(&format!("host-{number}"))));
    assert!(harness.queues.pause(NOW, hop("another"), None).is_err());
    harness.pause(hop("host-7"));
    assert!(harness.queues.resume(NOW, &hop("host-7")));
    harness.pause(hop("another"));
}

#[test]
fn a_message_is_found_by_its_id() {
    let mut harness = harness();
    harness.admit_each([1, 3], "a.example");
    harness.admit(2, 5, "b.example", 3);
    let ordinals = |harness: &Harness, sequence| {
        let views = harness.queues.message_recipients(id(sequence));
        assert!(views.iter().all(|view| view.id == id(sequence)));
        views.into_iter().map(|view| view.ordinal).collect::<Vec<_>>()
    };
    assert_eq!((ordinals(&harness, 2), ordinals(&harness, 4)), (vec![0, 1, 2], vec![]));
    assert_eq!(harness.drain().len(), 3);
    assert_eq!(ordinals(&harness, 2), []);
}
