//! New settings and new routes while mail is queued, one property per test.

mod post;

use mail::{Outcome, QueueId};
use post::*;
use queue::{Config, Pending, Progress, Purpose, QueueConfig, QueueNumber, Verdict};

/// The default settings with a change in one queue.
fn with(queue: usize, change: impl FnOnce(&mut QueueConfig)) -> Config {
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
    let mut post = Post::new(with(0, |queue| queue.concurrency = 2));
    (1..=6).for_each(|number| _ = post.admit(number, number, &format!("{number}.example"), 1));
    let first = post.take_all();
    assert_eq!(first.len(), 2);
    post.queues.change(NOW, with(0, |queue| queue.concurrency = 5));
    let second = post.take_all();
    assert_eq!(second.len(), 3);
    post.queues.change(NOW, with(0, |queue| queue.concurrency = 1));
    assert!(post.take_all().is_empty(), "five are in flight");
    assert_eq!(post.queues.in_flight(), 5);
}

#[test]
fn a_queue_more_takes_mail_at_once() {
    let mut post = post();
    let mut more = config();
    more.queues.push(QueueConfig { name: "more".into(), ..config().queues[2].clone() });
    post.queues.change(NOW, more);
    post.admit_to(QueueNumber(3), 1, 1, "a.example", 1);
    assert_eq!(ids(&post.take_all()), [id(1)]);
}

#[test]
fn all_who_wait_in_a_retired_queue_leave_it_to_be_sorted_and_what_is_under_way_ends() {
    let mut post = post();
    post.limits.concurrency.most = 1;
    for (sequence, delay, held) in [(1, 100, false), (4, 0, true), (3, 0, false), (2, 0, false)] {
        let pending = Pending { due: NOW + seconds(delay), held, ..post.pending(LISTS, "a.example", 0) };
        let admission = post.admission(sequence, 5, vec![pending]);
        post.queues.admit(NOW, &admission);
    }
    post.admit(9, 9, "b.example", 1);
    let (flying, others): (Vec<_>, Vec<_>) =
        post.take_all().into_iter().partition(|attempt| post.queues.destination_queue(attempt.destination) == LISTS);
    assert_eq!((ids(&flying), ids(&others)), (vec![id(3)], vec![id(9)]));
    assert!(!post.queues.has_retired());
    post.queues.change(NOW, with(2, |queue| queue.retired = true));
    assert!(post.queues.has_retired() && post.take_all().is_empty());
    assert_eq!(post.queues.pick_retired(), 3);
    let sorted = post.take_all();
    assert!(sorted.iter().all(|attempt| attempt.purpose == Purpose::Sort && attempt.route.is_none()));
    assert_eq!(ids(&sorted), [id(1), id(2), id(4)]);
    sorted.into_iter().for_each(|attempt| post.queues.report(NOW, attempt, &[Verdict::Removed]));
    assert_eq!((post.queues.has_retired(), post.queues.unrecorded()), (false, 0));
    for attempt in flying {
        let verdict = post.queues.judge(NOW, &attempt, Outcome::Deferred(busy()));
        post.queues.report(NOW, attempt, &[verdict]);
    }
    assert!(post.queues.has_retired(), "it has recipients again");
    assert_eq!(post.queues.pick_retired(), 1);
}

#[test]
fn a_queue_that_comes_back_goes_on() {
    let mut post = post();
    post.queues.change(NOW, with(2, |queue| queue.retired = true));
    post.admit_to(LISTS, 1, 1, "a.example", 1);
    assert!(post.take_all().is_empty());
    post.queues.change(NOW, config());
    assert_eq!(ids(&post.take_all()), [id(1)]);
}

/// A queue that was retired while paused used to stay paused when it returned under its name.
#[test]
fn a_queue_that_comes_back_is_not_paused() {
    let mut post = post();
    post.queues.pause(LISTS, true);
    post.queues.change(NOW, with(2, |queue| queue.retired = true));
    post.queues.change(NOW, config());
    assert!(!post.queue(LISTS).paused);
    post.admit_to(LISTS, 1, 1, "a.example", 1);
    assert_eq!(ids(&post.take_all()), [id(1)]);
}

#[test]
fn whom_the_caller_means_leave_to_be_sorted_and_those_in_flight_are_named_and_stay() {
    let mut post = post();
    post.limits.concurrency.most = 1;
    (1..=3).for_each(|number| _ = post.admit(number, number, "a.example", 1));
    post.admit_to(LISTS, 4, 4, "a.example", 1);
    post.admit(5, 5, "b.example", 1);
    let flying = post.take();
    assert_eq!((flying.id, post.queues.destination_name(flying.destination)), (id(1), "a.example"));
    let mut in_flight = Vec::new();
    let picked = post.queues.pick_to_sort(&mut |entry, destination| {
        let is_meant = destination == "a.example";
        if is_meant && entry.progress == queue::Progress::InFlight {
            in_flight.push(entry.id);
        }
        is_meant
    });
    assert_eq!((picked, in_flight), (3, vec![id(1)]));
    let (sorted, others): (Vec<_>, Vec<_>) =
        post.take_all().into_iter().partition(|attempt| attempt.purpose == Purpose::Sort);
    assert_eq!((ids(&sorted), ids(&others)), (vec![id(2), id(3), id(4)], vec![id(5)]));
}

#[test]
#[should_panic(expected = "is missing or has moved")]
fn queues_that_change_places_are_a_fault_of_the_caller() {
    let mut config = config();
    config.queues.swap(0, 2);
    post().queues.change(NOW, config);
}

/// Slots of attempts in flight move with their next hop; otherwise they are lost or counted twice.
#[test]
fn another_queue_adopts_and_slots_go_home_first() {
    let mut post = post();
    post.prove("a.example");
    (1..=3).for_each(|number| _ = post.admit(number, number, "a.example", 1));
    let flying = post.take_all();
    let hop = flying[0].next_hop.expect("a delivery has a next hop");
    post.queues.slow(post.now, hop);
    let slots = |post: &Post| [STANDARD, LAME].map(|queue| post.queue(queue).attempts);
    assert_eq!((slots(&post), post.hop("a.example").adopted_by), ([0, flying.len()], Some(LAME)));
    let lists = Config {
        queues: vec![
            config().queues[0].clone(),
            QueueConfig { adopts: None, ..config().queues[1].clone() },
            QueueConfig { adopts: config().queues[1].adopts.clone(), ..config().queues[2].clone() },
        ],
        ..config()
    };
    post.queues.change(post.now, lists);
    assert_eq!((slots(&post), post.hop("a.example").adopted_by), ([flying.len(), 0], None));
    flying.into_iter().for_each(|attempt| post.deliver(attempt));
    assert_eq!(slots(&post), [0, 0]);
}

#[test]
fn who_is_ready_goes_by_the_new_way_though_the_old_one_was_good_for_long() {
    let mut post = post();
    post.admit(1, 1, "a.example", 1);
    post.admit(2, 2, "a.example", 1);
    post.limits.concurrency.most = 1;
    let first = post.take();
    let old = first.next_hop;
    post.route = |_| "new".to_owned();
    post.queues.reroute(NOW);
    let second = post.take();
    assert_ne!(second.next_hop, old);
    assert_eq!(second.next_hop.map(|hop| post.queues.next_hop_name(hop).to_owned()), Some("new".into()));
    assert_eq!(first.next_hop.map(|hop| post.queues.next_hop_name(hop).to_owned()), Some("a.example".into()));
}

/// Waiting recipients used to wait for the retry time of the old next hop, and listings showed the
/// old error.
#[test]
fn who_waits_is_due_a_second_after_a_reload_leads_elsewhere_and_the_old_error_is_gone() {
    let mut post = post();
    for (sequence, domain) in [(1, "moves.example"), (2, "stays.example"), (3, "moves.example")] {
        post.admit(sequence, 1, domain, 1);
        let attempt = post.take();
        post.defer(attempt, quick());
    }
    let held = Pending { held: true, ..post.pending(STANDARD, "moves.example", 0) };
    let admission = post.admission(4, 1, vec![held]);
    post.queues.admit(NOW, &admission);
    post.route = |domain| if domain.starts_with("moves") { "new".into() } else { domain.into() };
    post.queues.reroute(NOW);
    assert!(post.next().is_none(), "changed routes are collected first");
    assert_eq!(post.queues.next_deadline(), Some(NOW + seconds(1)));
    post.now = NOW + seconds(1);
    let moved = post.take_all();
    assert_eq!(ids(&moved), [id(1)], "the new next hop is unproven");
    assert_eq!(post.queues.next_hop_name(moved[0].next_hop.unwrap()), "new");
    assert_eq!((moved[0].number, post.entry(1).error, post.entry(3).error), (2, None, None));
    assert_eq!((post.progress(3), post.progress(4)), (Progress::Ready, Progress::Held));
    assert_eq!(post.progress(2), Progress::Waiting(NOW + seconds(60)));
    assert_eq!(post.entry(2).error.as_deref(), Some("451 4.3.0 busy"));
    // Only once: a deferral at the new next hop waits as usual.
    let due = post.defer(moved.into_iter().next().unwrap(), quick());
    let third = post.take();
    post.deliver(third);
    assert_eq!((post.progress(1), due), (Progress::Waiting(due), NOW + seconds(1 + 120)));
    assert!(post.next().is_none());
    assert_eq!(post.queues.next_deadline(), Some(NOW + seconds(60)), "the due time of the one that stays");
    // Another reload, which moves the other domain, does not concern these.
    post.route = |domain| if domain.starts_with("moves") { "new".into() } else { "newer".into() };
    post.queues.reroute(post.now);
    post.answer();
    post.now = post.now + seconds(1);
    assert_eq!(ids(&post.take_all()), [id(2)]);
    assert_eq!(post.progress(1), Progress::Waiting(due));
}

/// A DNS failure right after a reload made all mail of a domain due and cleared its errors, and the
/// new next hop did not make it due later.
#[test]
fn an_answer_that_nobody_can_say_now_after_a_reload_makes_nobody_due_and_the_next_one_may() {
    for (found, is_due) in [("a.example", false), ("new", true)] {
        let mut post = post();
        let destination = post.admit(1, 1, "a.example", 1);
        let attempt = post.take();
        let due = post.defer(attempt, quick());
        post.admit(2, 1, "a.example", 1);
        let flying = post.take();
        post.transient = true;
        post.route = |_| "nowhere".to_owned();
        (0..2).for_each(|_| post.queues.reroute(NOW));
        post.answer();
        // An attempt in flight to the old next hop is deferred as usual.
        assert_eq!(post.defer(flying, quick()), due);
        post.now = NOW + seconds(10);
        assert!(post.next().is_none());
        for sequence in [1, 2] {
            assert_eq!((post.progress(sequence), post.entry(sequence).error.is_some()), (Progress::Waiting(due), true));
        }
        post.transient = false;
        post.send_to(destination, found);
        post.now = NOW + seconds(11);
        assert_eq!(ids(&post.take_all()), if is_due { vec![id(1)] } else { vec![] });
        assert_eq!(post.entry(2).error.is_none(), is_due);
    }
}

#[test]
fn another_way_that_the_dns_finds_by_itself_makes_nobody_due() {
    let mut post = post();
    post.route_time = seconds(30);
    post.admit(1, 1, "a.example", 1);
    let attempt = post.take();
    let due = post.defer(attempt, quick());
    post.route = |_| "new".to_owned();
    post.now = NOW + seconds(31);
    post.admit(2, 1, "a.example", 1);
    let second = post.take();
    assert_eq!(post.queues.next_hop_name(second.next_hop.unwrap()), "new");
    post.now = NOW + seconds(40);
    assert!(post.next().is_none());
    assert_eq!((post.progress(1), post.entry(1).error.is_some()), (Progress::Waiting(due), true));
    // Nor does an attempt that was in flight when the route arrived.
    post.route = |_| "newer".to_owned();
    post.send_to(second.destination, "newer");
    assert_eq!(post.defer(second, quick()), NOW + seconds(40 + 60));
    assert_eq!(post.progress(2), Progress::Waiting(NOW + seconds(40 + 60)));
}

#[test]
fn what_was_under_way_to_the_old_next_hop_and_fails_there_is_due_at_once() {
    for (answered_first, ends_after) in [(true, 0), (false, 0), (true, 5)] {
        let mut post = post();
        post.admit(1, 1, "a.example", 1);
        let attempt = post.take();
        post.route = |_| "new".to_owned();
        post.queues.reroute(NOW);
        if answered_first {
            post.answer();
        }
        post.now = NOW + seconds(ends_after);
        assert!(!answered_first || post.next().is_none());
        post.defer(attempt, quick());
        post.answer();
        post.now = post.now + seconds(1 - ends_after.min(1));
        let again = post.take();
        assert_eq!((again.number, post.entry(1).error), (2, None));
        assert_eq!(post.queues.next_hop_name(again.next_hop.unwrap()), "new");
    }
}

#[test]
fn a_clock_that_is_set_back_does_not_hold_up_what_has_moved() {
    let mut post = post();
    post.admit(1, 1, "a.example", 1);
    let attempt = post.take();
    post.defer(attempt, quick());
    post.route = |_| "new".to_owned();
    post.queues.reroute(NOW);
    post.answer();
    post.now = NOW - seconds(3600);
    assert_eq!(post.take().number, 2);
}
