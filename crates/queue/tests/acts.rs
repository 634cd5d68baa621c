//! The operator's actions, one property per test: hold, release, retry, remove, bounce, pause,
//! stop, list.

mod post;

use mail::{Enhanced, Outcome, Reply};
use post::*;
use queue::{Act, Obstacle, Pending, Progress, Purpose, Verdict};

/// Picks recipients, then records and reports the action; returns how many were picked.
fn act(post: &mut Post, act: Act, filter: impl Fn(u64) -> bool) -> usize {
    let picked = post.queues.pick(act, post.now, &mut |entry| filter(entry.id.sequence()));
    let mut reported = 0;
    while reported < picked {
        let attempt = post.take();
        assert_eq!((&attempt.purpose, attempt.next_hop, attempt.route), (&Purpose::Act(act), None, None));
        reported += attempt.recipients.len();
        finish(post, attempt);
    }
    picked
}

fn finish(post: &mut Post, attempt: queue::Attempt<u32>) {
    let outcome = Outcome::Failed(Reply::new(550, Enhanced(5, 7, 0), "bounced by the operator"));
    let verdict = post.queues.judge(post.now, &attempt, outcome);
    let verdicts = vec![verdict; attempt.recipients.len()];
    post.queues.report(post.now, attempt, &verdicts);
}

/// Message 1 waits, 2 is ready, 3 is in flight, 4 is held; all at one next hop with one attempt at
/// a time.
fn in_all_states() -> (Post, queue::Attempt<u32>) {
    let mut post = post();
    post.limits.concurrency.most = 1;
    for (sequence, delay, held) in [(1, 100, false), (4, 0, true), (3, 0, false), (2, 0, false)] {
        let pending = Pending { due: NOW + seconds(delay), held, ..post.pending(STANDARD, "a.example", 0) };
        let admission = post.admission(sequence, 5, vec![pending]);
        post.queues.admit(NOW, &admission);
    }
    let flying = post.take();
    assert_eq!(flying.id, id(3));
    (post, flying)
}

#[test]
fn each_act_chooses_among_the_states_that_it_makes_sense_for() {
    for (chosen_act, expected) in [
        (Act::Hold, vec![1, 2]),
        (Act::Release, vec![4]),
        (Act::Retry, vec![1]),
        (Act::Remove, vec![1, 2, 4]),
        (Act::Bounce, vec![1, 2, 4]),
    ] {
        let (mut post, _flying) = in_all_states();
        assert_eq!(post.queues.pick(chosen_act, NOW, &mut |_| true), expected.len(), "{chosen_act:?}");
        let mut acts: Vec<u64> = post.take_all().iter().map(|attempt| attempt.id.sequence()).collect();
        acts.sort_unstable();
        assert_eq!(acts, expected, "{chosen_act:?}");
    }
}

#[test]
fn what_is_held_stays_until_it_is_released_and_keeps_its_count_and_error() {
    let mut post = post();
    post.admit_each(1..=2, "a.example");
    let attempt = post.take();
    post.defer(attempt, quick());
    assert_eq!(act(&mut post, Act::Hold, |_| true), 2);
    assert_eq!((post.progress(1), post.queue(STANDARD).held), (Progress::Held, 2));
    post.now = NOW + seconds(100_000);
    assert!(post.next().is_none() && post.queues.next_deadline().is_none());
    assert_eq!(act(&mut post, Act::Release, |sequence| sequence == 1), 1);
    assert_eq!((post.progress(1), post.entry(1).attempts), (Progress::Ready, 1));
    assert_eq!(post.entry(1).error.as_deref(), Some("451 4.3.0 busy"));
    assert_eq!((post.take().number, post.progress(2)), (2, Progress::Held));
}

#[test]
fn what_is_retried_is_due_now() {
    let mut post = post();
    post.admit_each(1..=3, "a.example");
    (0..3).for_each(|_| {
        let attempt = post.take();
        post.defer(attempt, quick());
    });
    assert_eq!(act(&mut post, Act::Retry, |sequence| sequence != 2), 2);
    assert_eq!(post.drain(), [1, 3]);
    assert_eq!(post.queues.next_deadline(), Some(NOW + seconds(60)));
}

#[test]
fn what_is_removed_is_gone_and_what_bounces_fails() {
    let (mut post, flying) = in_all_states();
    assert_eq!(act(&mut post, Act::Remove, |sequence| sequence != 4), 2);
    assert_eq!(post.queues.pick(Act::Bounce, NOW, &mut |_| true), 1);
    let bounce = post.take();
    let reply = Reply::plain(554, "not wanted");
    let verdict = post.queues.judge(NOW, &bounce, Outcome::Failed(reply.clone()));
    assert_eq!(verdict, Verdict::Failed { reason: reply });
    post.queues.report(NOW, bounce, &[verdict]);
    post.deliver(flying);
    assert_eq!((post.queues.len(), post.queues.messages(), post.queues.next_deadline()), (0, 0, None));
    assert_eq!((post.queue(STANDARD).ready, post.queue(STANDARD).waiting, post.queue(STANDARD).held), (0, 0, 0));
}

#[test]
fn recipients_of_one_message_at_one_destination_are_one_act() {
    let mut post = post();
    let domain = |ordinal| ["a.example", "b.example"][ordinal as usize % 2];
    let recipients = (0..2002).map(|ordinal| post.pending(STANDARD, domain(ordinal), ordinal)).collect();
    let admission = post.admission(1, 5, recipients);
    post.queues.admit(NOW, &admission);
    post.queues.pick(Act::Hold, NOW, &mut |_| true);
    let sizes: Vec<_> = post.take_all().iter().map(|attempt| attempt.recipients.len()).collect();
    assert_eq!(sizes, [1000, 1, 1000, 1]);
}

#[test]
fn a_pick_leaves_the_others_in_their_order() {
    let mut post = post();
    for sequence in 0..300 {
        post.admit(sequence, sequence % 3, ["a.example", "b.example"][sequence as usize % 2], 1);
    }
    post.answer();
    assert_eq!(act(&mut post, Act::Remove, |sequence| sequence % 5 == 0), 60);
    let order = post.drain();
    assert_eq!(order.len(), 240);
    for group in 0..6 {
        assert!(order.iter().filter(|&sequence| sequence % 6 == group).is_sorted());
    }
}

#[test]
fn what_is_picked_is_not_picked_again_and_acts_need_neither_slot_nor_route() {
    let mut post = post();
    post.answers = false;
    post.queues.set_stopped(true);
    post.queues.pause(STANDARD, true);
    post.admit_each(1..=3, "a.example");
    assert_eq!(post.queues.pick(Act::Hold, NOW, &mut |_| true), 3);
    assert_eq!(post.queues.pick(Act::Remove, NOW, &mut |_| true), 0);
    assert_eq!((post.queues.in_flight(), post.progress(1)), (0, Progress::InFlight));
    assert_eq!((post.take_all().len(), post.queues.unrecorded()), (3, 3));
}

#[test]
fn a_pick_of_nobody_is_no_act_and_moves_nobody() {
    let (mut post, flying) = in_all_states();
    let mut seen = 0;
    let mut look = |_: &queue::Entry| {
        seen += 1;
        false
    };
    assert_eq!(post.queues.pick(Act::Remove, NOW, &mut look), 0);
    assert_eq!((seen, post.queues.len()), (3, 4));
    assert!(post.next().is_none(), "the next hop has its one attempt, and no action is pending");
    post.deliver(flying);
    assert_eq!(post.drain(), [2]);
}

#[test]
fn a_sender_whose_mailing_was_taken_away_writes_letters_again() {
    let mut config = config();
    config.mailing_above = 10;
    let mut post = Post::new(config);
    post.admit_each(1..=20, "a.example");
    post.prove("b.example");
    assert_eq!(act(&mut post, Act::Remove, |_| true), 20);
    post.admit(30, 6, "b.example", 20);
    post.admit(31, 5, "c.example", 1);
    assert_eq!(post.drain(), [31, 30]);
}

#[test]
fn a_million_acts_do_not_hold_up_attempts() {
    let mut config = config();
    config.unrecorded_max = 10;
    let mut post = Post::new(config);
    for sequence in 0..100 {
        post.admit(sequence, sequence, &format!("{sequence}.example"), 1);
    }
    post.queues.pick(Act::Hold, NOW, &mut |entry| entry.id.sequence() >= 30);
    let attempts = post.take_all();
    let acts = attempts.iter().filter(|attempt| attempt.purpose == Purpose::Act(Act::Hold)).count();
    assert_eq!((acts, attempts.len(), post.queues.unrecorded()), (5, 35, 5));
    assert_eq!(post.queues.next_deadline(), None);
}

#[test]
fn a_paused_queue_keeps_what_it_has_and_the_others_go_on() {
    let mut post = post();
    post.admit_each(1..=2, "a.example");
    let flying = post.take();
    post.queues.pause(STANDARD, true);
    post.deliver(flying);
    post.admit_to(LISTS, 11, 5, "b.example", 1);
    assert_eq!(post.drain(), [11]);
    assert!(post.queue(STANDARD).paused && post.queues.next_deadline().is_none());
    let destination = post.queues.destination(STANDARD, "a.example");
    assert_eq!(post.queues.explain(NOW, destination), [Obstacle::Paused(STANDARD)]);
    post.queues.pause(STANDARD, false);
    assert_eq!(post.drain(), [2]);
}

#[test]
fn what_is_stopped_makes_no_attempts_and_still_refuses() {
    let mut post = post();
    post.admit_each(1..=4, "a.example");
    for _ in 0..3 {
        let attempt = post.take();
        post.defer(attempt, unreachable());
    }
    post.admit_each(11..=12, "b.example");
    post.queues.set_stopped(true);
    let attempts = post.take_all();
    assert_eq!((attempts.len(), attempts[0].id), (1, id(4)));
    assert!(matches!(attempts[0].purpose, Purpose::Refuse(_)));
    let destination = post.queues.destination(STANDARD, "b.example");
    assert_eq!(post.queues.explain(NOW, destination), [Obstacle::Stopped]);
    post.queues.set_stopped(false);
    assert_eq!(post.take().id, id(11));
}

#[test]
fn views_count_by_state() {
    let (post, flying) = in_all_states();
    let view = post.queue(STANDARD);
    assert_eq!((view.waiting, view.ready, view.in_flight, view.held), (1, 1, 1, 1));
    assert_eq!((view.name, view.attempts, view.concurrency, view.paused), ("standard", 1, 100, false));
    let hop = post.hop("a.example");
    assert_eq!((hop.destinations, hop.attempts, hop.concurrency), (1, 1, 1));
    assert_eq!(post.queues.explain(NOW, flying.destination), [Obstacle::NextHopFull { attempts: 1, most: 1 }]);
}

#[test]
fn a_destination_without_a_route_says_so() {
    let mut post = post();
    post.answers = false;
    let destination = post.admit(1, 5, "a.example", 1);
    assert_eq!(post.queues.explain(NOW, destination), [Obstacle::NoRoute]);
}
