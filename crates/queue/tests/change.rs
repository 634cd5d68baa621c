//! New settings and new routes while mail is queued, one property per test.

mod harness;

use harness::*;
use mail::{Outcome, QueueId};
use queue::{
    AttemptPurpose, PauseTarget, PendingRecipient, QueueConfig, QueueNumber, RecipientProgress, RecipientVerdict,
    SchedulerConfig,
};

/// The default settings with a change in one queue.
fn with(queue: usize, change: impl FnOnce(&mut QueueConfig)) -> SchedulerConfig {
    let mut config = config();
    change(&mut config.queues[queue]);
    config
}

fn ids(attempts: &[queue::Attempt<u32>]) -> Vec<QueueId> {
    let mut ids: Vec<_> = attempts.iter().map(|attempt| attempt.id).collect();
    ids.sort_unstable();
    ids
}

#[test]
fn another_concurrency_holds_for_the_next_turn_and_takes_no_slot_away() {
    let mut harness = Harness::new(with(0, |queue| queue.concurrency = 2));
    (1..=6).for_each(|number| _ = harness.admit(number, number, &format!("{number}.example"), 1));
    let first = harness.take_all();
    assert_eq!(first.len(), 2);
    harness.queues.reconfigure(NOW, with(0, |queue| queue.concurrency = 5));
    let second = harness.take_all();
    assert_eq!(second.len(), 3);
    harness.queues.reconfigure(NOW, with(0, |queue| queue.concurrency = 1));
    assert!(harness.take_all().is_empty(), "five are in flight");
    assert_eq!(harness.queues.recipients_in_flight(), 5);
}

#[test]
fn a_new_queue_takes_mail_immediately() {
    let mut harness = harness();
    let mut more = config();
    more.queues.push(QueueConfig { name: "more".into(), ..config().queues[2].clone() });
    harness.queues.reconfigure(NOW, more);
    harness.admit_to(QueueNumber(3), 1, 1, "a.example", 1);
    assert_eq!(ids(&harness.take_all()), [id(1)]);
}

#[test]
fn waiting_recipients_of_a_retired_queue_are_reclassified_and_attempts_in_flight_end() {
    let mut harness = harness();
    harness.limits.concurrency.max = 1;
    for (sequence, delay, held) in [(1, 100, false), (4, 0, true), (3, 0, false), (2, 0, false)] {
        let pending = PendingRecipient { due: NOW + seconds(delay), held, ..harness.pending(LISTS, "a.example", 0) };
        let admission = harness.admission(sequence, 5, vec![pending]);
        harness.queues.admit(NOW, &admission);
    }
    harness.admit(9, 9, "b.example", 1);
    let (flying, others): (Vec<_>, Vec<_>) = harness
        .take_all()
        .into_iter()
        .partition(|attempt| harness.queues.destination_queue(attempt.destination) == LISTS);
    assert_eq!((ids(&flying), ids(&others)), (vec![id(3)], vec![id(9)]));
    assert!(!harness.queues.has_retired_recipients());
    harness.queues.reconfigure(NOW, with(2, |queue| queue.retired = true));
    assert!(harness.queues.has_retired_recipients() && harness.take_all().is_empty());
    assert_eq!(harness.queues.pick_retired_recipients(), 3);
    let sorted = harness.take_all();
    assert!(sorted.iter().all(|attempt| attempt.purpose == AttemptPurpose::Reclassify && attempt.route.is_none()));
    assert_eq!(ids(&sorted), [id(1), id(2), id(4)]);
    sorted.into_iter().for_each(|attempt| harness.queues.report_verdicts(NOW, attempt, &[RecipientVerdict::Removed]));
    assert_eq!((harness.queues.has_retired_recipients(), harness.queues.unrecorded_attempts()), (false, 0));
    for attempt in flying {
        let verdict = harness.queues.compute_verdict(NOW, &attempt, Outcome::Deferred(busy()));
        harness.queues.report_verdicts(NOW, attempt, &[verdict]);
    }
    assert!(harness.queues.has_retired_recipients(), "it has recipients again");
    assert_eq!(harness.queues.pick_retired_recipients(), 1);
}

#[test]
fn a_queue_that_returns_delivers_again() {
    let mut harness = harness();
    harness.queues.reconfigure(NOW, with(2, |queue| queue.retired = true));
    harness.admit_to(LISTS, 1, 1, "a.example", 1);
    assert!(harness.take_all().is_empty());
    harness.queues.reconfigure(NOW, config());
    assert_eq!(ids(&harness.take_all()), [id(1)]);
}

/// A queue that was retired while paused used to stay paused when it returned under its name.
#[test]
fn a_queue_that_comes_back_is_not_paused() {
    let mut harness = harness();
    harness.pause(PauseTarget::Queue(LISTS));
    harness.queues.reconfigure(NOW, with(2, |queue| queue.retired = true));
    harness.queues.reconfigure(NOW, config());
    assert_eq!((harness.queue(LISTS).pause, harness.queues.pause_views().count()), (None, 0));
    harness.admit_to(LISTS, 1, 1, "a.example", 1);
    assert_eq!(ids(&harness.take_all()), [id(1)]);
}

#[test]
fn selected_recipients_leave_to_be_reclassified_and_those_in_flight_stay() {
    let mut harness = harness();
    harness.limits.concurrency.max = 1;
    (1..=3).for_each(|number| _ = harness.admit(number, number, "a.example", 1));
    harness.admit_to(LISTS, 4, 4, "a.example", 1);
    harness.admit(5, 5, "b.example", 1);
    let flying = harness.take();
    assert_eq!((flying.id, harness.queues.destination_name(flying.destination)), (id(1), "a.example"));
    let mut in_flight = Vec::new();
    let picked = harness.queues.pick_recipients_to_reclassify(&mut |entry, destination| {
        let is_meant = destination == "a.example";
        if is_meant && entry.progress == queue::RecipientProgress::InFlight {
            in_flight.push(entry.id);
        }
        is_meant
    });
    assert_eq!((picked, in_flight), (3, vec![id(1)]));
    let (sorted, others): (Vec<_>, Vec<_>) =
        harness.take_all().into_iter().partition(|attempt| attempt.purpose == AttemptPurpose::Reclassify);
    assert_eq!((ids(&sorted), ids(&others)), (vec![id(2), id(3), id(4)], vec![id(5)]));
}

#[test]
#[should_panic(expected = "is missing or has moved")]
fn queues_that_change_places_are_a_fault_of_the_caller() {
    let mut config = config();
    config.queues.swap(0, 2);
    harness().queues.reconfigure(NOW, config);
}

/// Slots of attempts in flight move with their next hop; otherwise they are lost or counted twice.
#[test]
fn another_queue_adopts_and_slots_go_home_first() {
    let mut harness = harness();
    harness.prove("a.example");
    (1..=3).for_each(|number| _ = harness.admit(number, number, "a.example", 1));
    let flying = harness.take_all();
    let hop = flying[0].next_hop.expect("a delivery has a next hop");
    harness.queues.report_slow(harness.now, hop);
    let slots = |harness: &Harness| [STANDARD, LAME].map(|queue| harness.queue(queue).attempts);
    assert_eq!((slots(&harness), harness.hop("a.example").adopted_by), ([0, flying.len()], Some(LAME)));
    let lists = SchedulerConfig {
        queues: vec![
            config().queues[0].clone(),
            QueueConfig { adopts: None, ..config().queues[1].clone() },
            QueueConfig { adopts: config().queues[1].adopts.clone(), ..config().queues[2].clone() },
        ],
        ..config()
    };
    harness.queues.reconfigure(harness.now, lists);
    assert_eq!((slots(&harness), harness.hop("a.example").adopted_by), ([flying.len(), 0], None));
    flying.into_iter().for_each(|attempt| harness.deliver(attempt));
    assert_eq!(slots(&harness), [0, 0]);
}

#[test]
fn ready_recipients_use_the_new_route_though_the_old_one_had_not_expired() {
    let mut harness = harness();
    harness.admit(1, 1, "a.example", 1);
    harness.admit(2, 2, "a.example", 1);
    harness.limits.concurrency.max = 1;
    let first = harness.take();
    let old = first.next_hop;
    harness.route = |_| "new".to_owned();
    harness.queues.invalidate_routes(NOW);
    let second = harness.take();
    assert_ne!(second.next_hop, old);
    assert_eq!(second.next_hop.map(|hop| harness.queues.next_hop_name(hop).to_owned()), Some("new".into()));
    assert_eq!(first.next_hop.map(|hop| harness.queues.next_hop_name(hop).to_owned()), Some("a.example".into()));
}

/// Waiting recipients used to wait for the retry time of the old next hop, and listings showed the
/// old error.
#[test]
fn waiting_recipients_are_due_a_second_after_a_reload_moves_them_and_their_error_is_cleared() {
    let mut harness = harness();
    for (sequence, domain) in [(1, "moves.example"), (2, "stays.example"), (3, "moves.example")] {
        harness.admit(sequence, 1, domain, 1);
        let attempt = harness.take();
        harness.defer(attempt, quick());
    }
    let held = PendingRecipient { held: true, ..harness.pending(STANDARD, "moves.example", 0) };
    let admission = harness.admission(4, 1, vec![held]);
    harness.queues.admit(NOW, &admission);
    harness.route = |domain| if domain.starts_with("moves") { "new".into() } else { domain.into() };
    harness.queues.invalidate_routes(NOW);
    assert!(harness.next().is_none(), "changed routes are collected first");
    assert_eq!(harness.queues.next_deadline(), Some(NOW + seconds(1)));
    harness.now = NOW + seconds(1);
    let moved = harness.take_all();
    assert_eq!(ids(&moved), [id(1)], "the new next hop is unproven");
    assert_eq!(harness.queues.next_hop_name(moved[0].next_hop.unwrap()), "new");
    assert_eq!((moved[0].number, harness.entry(1).error, harness.entry(3).error), (2, None, None));
    assert_eq!((harness.progress(3), harness.progress(4)), (RecipientProgress::Ready, RecipientProgress::Held));
    assert_eq!(harness.progress(2), RecipientProgress::Waiting(NOW + seconds(60)));
    assert_eq!(harness.entry(2).error.as_deref(), Some("451 4.3.0 busy"));
    // Only once: a deferral at the new next hop waits as usual.
    let due = harness.defer(moved.into_iter().next().unwrap(), quick());
    let third = harness.take();
    harness.deliver(third);
    assert_eq!((harness.progress(1), due), (RecipientProgress::Waiting(due), NOW + seconds(1 + 120)));
    assert!(harness.next().is_none());
    assert_eq!(harness.queues.next_deadline(), Some(NOW + seconds(60)), "the due time of the one that stays");
    // Another reload, which moves the other domain, does not concern these.
    harness.route = |domain| if domain.starts_with("moves") { "new".into() } else { "newer".into() };
    harness.queues.invalidate_routes(harness.now);
    harness.answer();
    harness.now = harness.now + seconds(1);
    assert_eq!(ids(&harness.take_all()), [id(2)]);
    assert_eq!(harness.progress(1), RecipientProgress::Waiting(due));
}

/// A DNS failure right after a reload made all mail of a domain due and cleared its errors, and the
/// new next hop did not make it due later.
#[test]
fn a_transient_route_after_a_reload_makes_no_recipient_due_and_the_next_lasting_one_does() {
    for (found, is_due) in [("a.example", false), ("new", true)] {
        let mut harness = harness();
        let destination = harness.admit(1, 1, "a.example", 1);
        let attempt = harness.take();
        let due = harness.defer(attempt, quick());
        harness.admit(2, 1, "a.example", 1);
        let flying = harness.take();
        harness.transient = true;
        harness.route = |_| "nowhere".to_owned();
        (0..2).for_each(|_| harness.queues.invalidate_routes(NOW));
        harness.answer();
        // An attempt in flight to the old next hop is deferred as usual.
        assert_eq!(harness.defer(flying, quick()), due);
        harness.now = NOW + seconds(10);
        assert!(harness.next().is_none());
        for sequence in [1, 2] {
            assert_eq!(
                (harness.progress(sequence), harness.entry(sequence).error.is_some()),
                (RecipientProgress::Waiting(due), true)
            );
        }
        harness.transient = false;
        harness.send_to(destination, found);
        harness.now = NOW + seconds(11);
        assert_eq!(ids(&harness.take_all()), if is_due { vec![id(1)] } else { vec![] });
        assert_eq!(harness.entry(2).error.is_none(), is_due);
    }
}

#[test]
fn a_route_that_changes_in_the_dns_makes_no_recipient_due() {
    let mut harness = harness();
    harness.route_time = seconds(30);
    harness.admit(1, 1, "a.example", 1);
    let attempt = harness.take();
    let due = harness.defer(attempt, quick());
    harness.route = |_| "new".to_owned();
    harness.now = NOW + seconds(31);
    harness.admit(2, 1, "a.example", 1);
    let second = harness.take();
    assert_eq!(harness.queues.next_hop_name(second.next_hop.unwrap()), "new");
    harness.now = NOW + seconds(40);
    assert!(harness.next().is_none());
    assert_eq!((harness.progress(1), harness.entry(1).error.is_some()), (RecipientProgress::Waiting(due), true));
    // Nor does an attempt that was in flight when the route arrived.
    harness.route = |_| "newer".to_owned();
    harness.send_to(second.destination, "newer");
    assert_eq!(harness.defer(second, quick()), NOW + seconds(40 + 60));
    assert_eq!(harness.progress(2), RecipientProgress::Waiting(NOW + seconds(40 + 60)));
}

#[test]
fn an_attempt_that_fails_at_the_old_next_hop_is_due_immediately() {
    for (answered_first, ends_after) in [(true, 0), (false, 0), (true, 5)] {
        let mut harness = harness();
        harness.admit(1, 1, "a.example", 1);
        let attempt = harness.take();
        harness.route = |_| "new".to_owned();
        harness.queues.invalidate_routes(NOW);
        if answered_first {
            harness.answer();
        }
        harness.now = NOW + seconds(ends_after);
        assert!(!answered_first || harness.next().is_none());
        harness.defer(attempt, quick());
        harness.answer();
        harness.now = harness.now + seconds(1 - ends_after.min(1));
        let again = harness.take();
        assert_eq!((again.number, harness.entry(1).error), (2, None));
        assert_eq!(harness.queues.next_hop_name(again.next_hop.unwrap()), "new");
    }
}

#[test]
fn a_clock_that_is_set_back_does_not_hold_up_what_has_moved() {
    let mut harness = harness();
    harness.admit(1, 1, "a.example", 1);
    let attempt = harness.take();
    harness.defer(attempt, quick());
    harness.route = |_| "new".to_owned();
    harness.queues.invalidate_routes(NOW);
    harness.answer();
    harness.now = NOW - seconds(3600);
    assert_eq!(harness.take().number, 2);
}
