//! Recipients, one property per test: order, groups, delays, routes.

mod post;

use mail::{Outcome, Reply, Timestamp};
use post::*;
use queue::{Config, Obstacle, Pending, Progress, Purpose, QueueConfig, Verdict};

#[test]
fn a_first_attempt_is_due_at_once_and_a_delivered_message_is_gone() {
    let mut post = post();
    post.admit(1, 5, "a.example", 2);
    assert_eq!((post.queues.len(), post.queues.messages(), post.queues.destinations()), (2, 1, 1));
    let attempt = post.take();
    assert_eq!((attempt.id, attempt.number, attempt.recovered), (id(1), 1, false));
    assert_eq!((&*attempt.recipients, post.queues.destination_name(attempt.destination)), (&[0, 1][..], "a.example"));
    assert_eq!(post.queues.next_hop_name(attempt.next_hop.unwrap()), "a.example");
    assert_eq!((post.queues.in_flight(), post.next().is_none()), (2, true));
    post.deliver(attempt);
    assert_eq!((post.queues.len(), post.queues.messages(), post.queues.destinations()), (0, 0, 0));
    assert_eq!((post.queues.in_flight(), post.queues.unrecorded()), (0, 0));
    assert!(post.queues.is_empty() && post.queues.next_deadline().is_none());
}

#[test]
fn recipients_of_one_message_leave_together_by_destination_and_in_portions() {
    let mut post = post();
    ["a.example", "b.example"].into_iter().for_each(|domain| post.prove(domain));
    let domain = |ordinal| if ordinal % 2 == 0 { "a.example" } else { "b.example" };
    let recipients = (0..300).map(|ordinal| post.pending(STANDARD, domain(ordinal), ordinal)).collect();
    let admission = post.admission(1, 5, recipients);
    post.queues.admit(NOW, &admission);
    let attempts = post.take_all();
    let sizes: Vec<_> = attempts.iter().map(|attempt| (attempt.recipients.len(), attempt.recipients[0])).collect();
    assert_eq!(sizes, [(100, 0), (100, 1), (50, 200), (50, 201)]);
}

#[test]
fn a_next_hop_and_a_message_whose_recipients_go_alone_make_attempts_smaller() {
    let mut post = post();
    post.limits.recipients_per_attempt_max = Some(3);
    post.prove("a.example");
    post.admit(1, 5, "a.example", 4);
    let recipients = (0..2).map(|ordinal| post.pending(STANDARD, "a.example", ordinal)).collect();
    let mut admission = post.admission(2, 6, recipients);
    admission.alone = true;
    post.queues.admit(NOW, &admission);
    let sizes: Vec<_> = post.take_all().iter().map(|a| (a.id.sequence(), a.recipients.len())).collect();
    assert_eq!(sizes, [(1, 3), (2, 1), (1, 1), (2, 1)]);
}

#[test]
fn a_deferred_recipient_waits_until_it_is_due_and_not_a_millisecond_longer() {
    let mut post = post();
    post.admit(1, 5, "a.example", 3);
    let attempt = post.take();
    let until = post.defer(attempt, quick());
    assert_eq!(until, NOW + seconds(60));
    assert_eq!(post.queues.next_deadline(), Some(until));
    assert_eq!(post.entry(1).error.as_deref(), Some("451 4.3.0 busy"));
    post.now = Timestamp(until.millis() - 1);
    assert!(post.next().is_none());
    post.now = until;
    let again = post.take();
    assert_eq!((again.number, again.recipients.len()), (2, 3));
    assert_eq!(post.defer(again, quick()), until + seconds(120));
}

#[test]
fn each_recipient_of_an_attempt_goes_its_own_way() {
    let mut post = post();
    post.admit(1, 5, "a.example", 4);
    let attempt = post.take();
    let reply = Reply::plain(250, "queued");
    let outcomes = [
        Outcome::Delivered,
        Outcome::Deferred(busy()),
        Outcome::Failed(Reply::plain(550, "no")),
        Outcome::Relayed { reply: reply.clone(), dsn: true },
    ];
    let verdicts = outcomes.map(|outcome| post.queues.judge(NOW, &attempt, outcome));
    assert_eq!(verdicts[3], Verdict::Relayed { reply, dsn: true });
    post.queues.report(NOW, attempt, &verdicts);
    assert_eq!(post.queues.len(), 1);
    let entry = post.entry(1);
    assert_eq!((entry.ordinal, entry.attempts), (1, 1));
    assert_eq!(entry.progress, Progress::Waiting(NOW + seconds(60)));
}

#[test]
fn judging_changes_nothing_and_says_the_same_again() {
    let mut post = Post::new(Config { queues: vec![QueueConfig::default()], ..Config::default() });
    post.admit(1, 5, "a.example", 2);
    let attempt = post.take();
    let verdict = post.queues.judge(NOW, &attempt, Outcome::Deferred(busy()));
    assert_eq!(verdict, post.queues.judge(NOW, &attempt, Outcome::Deferred(busy())));
    assert_eq!((post.queues.len(), post.queues.in_flight(), post.queues.next_deadline()), (2, 2, None));
}

#[test]
fn each_queue_has_its_own_retry_rules() {
    let mut config = config();
    config.queues[2].retry.first = seconds(7);
    let mut post = Post::new(config);
    post.admit_to(LISTS, 1, 5, "a.example", 1);
    let attempt = post.take();
    assert_eq!(post.queues.destination_queue(attempt.destination), LISTS);
    assert_eq!(post.defer(attempt, quick()), NOW + seconds(7));
}

#[test]
fn messages_of_one_sender_leave_in_the_order_of_admission() {
    let mut post = post();
    post.admit_each(1..=50, "a.example");
    assert!(post.drain().into_iter().eq(1..=50));
}

#[test]
fn a_sender_who_comes_to_send_a_mailing_stays_in_order() {
    let mut config = config();
    config.mailing_above = 10;
    let mut post = Post::new(config);
    post.admit_each(1..=50, "a.example");
    assert!(post.drain().into_iter().eq(1..=50));
}

#[test]
fn senders_at_one_destination_take_turns() {
    let mut post = post();
    post.admit_each(1..=4, "a.example");
    post.admit(10, 6, "a.example", 1);
    post.admit(20, 7, "a.example", 1);
    assert_eq!(post.drain(), [1, 10, 20, 2, 3, 4]);
}

#[test]
fn destinations_of_one_next_hop_share_its_turns() {
    let mut post = post();
    post.route = host_of;
    post.admit_each(1..=3, "a.large.example");
    post.admit_each(11..=13, "b.large.example");
    post.admit_each(21..=23, "c.small.example");
    assert_eq!(post.drain(), [1, 21, 11, 22, 2, 23, 12, 3, 13]);
}

#[test]
fn a_destination_pays_for_a_large_attempt_with_rounds() {
    let mut post = post();
    (1..=2).for_each(|sequence| _ = post.admit(sequence, 5, "large.example", 3));
    (11..=16).for_each(|sequence| _ = post.admit(sequence, 6, "small.example", 1));
    assert_eq!(post.drain(), [1, 11, 12, 13, 2, 14, 15, 16]);
}

#[test]
fn destinations_that_come_anew_again_and_again_do_not_starve_one_that_pays() {
    let mut post = post();
    post.admit_each(1..=2, "patient.example");
    let mut order = Vec::new();
    for sequence in 100..110 {
        post.admit(sequence, sequence, &format!("{sequence}.example"), 1);
        let attempt = post.take();
        order.push(attempt.id.sequence());
        post.deliver(attempt);
    }
    assert_eq!(order[..4], [1, 100, 2, 101]);
}

#[test]
fn letters_have_three_turns_for_each_of_a_mailing() {
    let mut config = config();
    config.mailing_above = 4;
    let mut post = Post::new(config);
    (1..=3).for_each(|sequence| _ = post.admit(sequence, 5, "a.example", 5));
    // Single messages of the same sender are not affected.
    (11..=14).for_each(|sequence| _ = post.admit(sequence, 5, "a.example", 1));
    (15..=18).for_each(|sequence| _ = post.admit(sequence, sequence, "b.example", 1));
    assert_eq!(post.drain(), [11, 15, 12, 1, 16, 13, 17, 2, 14, 18, 3]);
}

#[test]
fn many_letters_one_after_the_other_are_no_mailing() {
    let mut config = config();
    config.mailing_above = 10;
    let mut post = Post::new(config);
    post.prove("b.example");
    for sequence in 1..=30 {
        post.admit(sequence, 5, "a.example", 1);
        assert_eq!(post.drain(), [sequence]);
    }
    post.admit(40, 6, "b.example", 11);
    post.admit(41, 5, "c.example", 1);
    assert_eq!(post.drain(), [41, 40]);
}

#[test]
fn pending_recipients_of_a_restart_wait_for_their_time_and_keep_their_count() {
    let mut post = post();
    post.prove("a.example");
    let destination = post.queues.destination(STANDARD, "a.example");
    let until = NOW + seconds(90);
    let recipients = vec![
        Pending { ordinal: 4, destination, attempts: 3, due: until, held: false },
        Pending { ordinal: 7, destination, attempts: 1, due: NOW - seconds(5), held: false },
        Pending { ordinal: 8, destination, attempts: 0, due: NOW, held: false },
        Pending { ordinal: 9, destination, attempts: 0, due: NOW, held: true },
    ];
    let mut admission = post.admission(1, 5, recipients);
    admission.recovered = true;
    post.queues.admit(NOW, &admission);
    let (overdue, first) = (post.take(), post.take());
    assert_eq!((overdue.recipients[0], overdue.number, overdue.recovered), (7, 2, true));
    assert_eq!((first.recipients[0], first.number), (8, 1));
    assert_eq!(post.queues.next_deadline(), Some(until));
    post.now = until;
    let last = post.take();
    assert_eq!((&*last.recipients, last.number), (&[4][..], 4));
    assert_eq!(post.queue(STANDARD).held, 1);
}

#[test]
fn a_message_without_recipients_leaves_no_trace() {
    let mut post = post();
    post.admit(1, 5, "a.example", 0);
    assert_eq!((post.queues.len(), post.queues.messages()), (0, 0));
}

#[test]
fn a_million_that_are_due_at_once_are_woken_in_portions() {
    let mut post = post();
    post.admit(0, 5, "a.example", 1);
    let _proof = post.take();
    for sequence in 1..5000 {
        let pending = Pending { due: NOW + seconds(1), ..post.pending(STANDARD, "a.example", 0) };
        let admission = post.admission(sequence, 5, vec![pending]);
        post.queues.admit(NOW, &admission);
    }
    assert!(post.queues.next(NOW + seconds(2)).is_none());
    assert!((1..2000).contains(&post.queue(STANDARD).ready), "{}", post.queue(STANDARD).ready);
    assert!(post.queues.next_deadline().unwrap() <= NOW + seconds(2));
}

#[test]
#[should_panic(expected = "one verdict for each recipient")]
fn a_report_with_a_verdict_missing_is_a_defect_of_the_caller() {
    let mut post = post();
    post.admit(1, 5, "a.example", 2);
    let attempt = post.take();
    post.queues.report(NOW, attempt, &[Verdict::Delivered]);
}

#[test]
fn a_destination_is_asked_for_once_and_its_lines_gather_until_the_answer() {
    let mut post = post();
    post.answers = false;
    let destination = post.admit(1, 5, "a.example", 1);
    post.admit_each(2..=3, "a.example");
    assert_eq!((post.queues.next_question(), post.queues.next_question()), (Some(destination), None));
    assert_eq!((post.next().is_none(), post.queues.next_deadline()), (true, None));
    post.send_to(destination, "mx.example");
    assert_eq!(post.drain(), [1, 2, 3]);
}

#[test]
fn who_was_lined_up_in_time_goes_on_while_the_question_is_open() {
    let mut post = post();
    post.route_time = seconds(30);
    post.admit_each(1..=3, "a.example");
    let first = post.take();
    assert_eq!(first.route, Some(1));
    post.deliver(first);
    post.answers = false;
    post.now = NOW + seconds(30);
    let second = post.take();
    assert_eq!((second.route, post.queues.next_question()), (Some(1), Some(second.destination)));
    post.send_to(second.destination, "elsewhere.example");
    // The attempt in flight keeps its next hop and takes no slot at the new one.
    let third = post.take();
    assert_eq!((third.route, post.queues.next_hop_name(third.next_hop.unwrap())), (Some(2), "elsewhere.example"));
    assert_eq!((post.hop("a.example").attempts, post.hop("elsewhere.example").attempts), (1, 1));
    post.deliver(second);
    post.deliver(third);
    assert_eq!((post.hop("a.example").attempts, post.hop("elsewhere.example").attempts), (0, 0));
}

#[test]
fn nobody_becomes_ready_by_a_route_whose_time_is_over() {
    let mut post = post();
    post.route_time = seconds(30);
    post.prove("a.example");
    let attempt = (post.admit(1, 5, "a.example", 1), post.take()).1;
    assert_eq!(post.defer(attempt, quick()), NOW + seconds(60));
    post.answers = false;
    post.now = NOW + seconds(30);
    // New mail requests a route, and a retry that becomes due meanwhile waits with it.
    let destination = post.admit(2, 5, "a.example", 1);
    post.now = NOW + seconds(60);
    assert_eq!((post.next().is_none(), post.queues.next_deadline()), (true, None));
    assert_eq!(post.queues.explain(post.now, destination), [Obstacle::NoRoute]);
    assert_eq!((post.queues.next_question(), post.queues.next_question()), (Some(destination), None));
    // The same next hop again.
    post.send_to(destination, "a.example");
    let again: Vec<_> = post.take_all().iter().map(|attempt| (attempt.id.sequence(), attempt.route)).collect();
    assert_eq!(again, [(2, Some(2)), (1, Some(2))]);
    assert_eq!(post.hop("a.example").destinations, 1);
}

#[test]
fn a_retry_asks_before_it_leaves_and_goes_by_the_answer() {
    let mut post = post();
    post.route_time = seconds(60);
    let destination = post.admit(1, 5, "a.example", 1);
    let first = post.take();
    post.now = post.defer(first, quick());
    post.route = |_| "elsewhere.example".to_owned();
    let second = post.take();
    assert_eq!((second.destination, second.route), (destination, Some(2)));
    assert_eq!(post.queues.next_hop_name(second.next_hop.unwrap()), "elsewhere.example");
    assert_eq!((post.hop("a.example").destinations, post.hop("elsewhere.example").destinations), (0, 1));
}

#[test]
fn who_was_lined_up_long_ago_waits_for_an_answer_too() {
    let mut post = post();
    post.route = host_of;
    post.route_time = seconds(30);
    post.admit_each(1..=2, "a.mx.example");
    post.admit_each(3..=4, "b.mx.example");
    let first = post.take();
    // Two destinations wait behind an attempt that took six minutes.
    post.now = NOW + seconds(360);
    post.answers = false;
    post.deliver(first);
    assert_eq!(post.queues.next_deadline(), Some(Timestamp(0)));
    assert_eq!((post.next().is_none(), post.queues.next_deadline()), (true, None));
    post.answers = true;
    assert_eq!(post.drain(), [3, 2, 4]);
}

#[test]
fn the_dead_refuse_nobody_whose_route_is_out_of_date() {
    let mut post = post();
    post.route_time = seconds(30);
    post.admit_each(1..=3, "a.example");
    for _ in 0..3 {
        let attempt = post.take();
        post.defer(attempt, unreachable());
    }
    post.now = NOW + seconds(45);
    post.answers = false;
    let destination = post.admit(4, 5, "a.example", 1);
    assert!(post.next().is_none());
    post.send_to(destination, "elsewhere.example");
    assert_eq!(post.take().purpose, Purpose::Deliver);
}

#[test]
fn an_answer_that_is_over_when_it_comes_still_serves() {
    let mut post = post();
    post.route_time = seconds(0);
    post.answers = false;
    let destination = post.admit(1, 5, "a.example", 1);
    post.send_to(destination, "a.example");
    // A steady flow of mail does not keep requesting routes.
    post.admit(2, 5, "a.example", 1);
    assert_eq!(post.drain(), [1, 2]);
}

#[test]
fn what_waits_goes_along_when_its_destination_is_routed_anew() {
    let mut post = post();
    post.route = host_of;
    post.admit_each(1..=3, "a.old.example");
    post.admit_each(11..=12, "b.old.example");
    let first = post.take();
    let destination = first.destination;
    post.deliver(first);
    post.send_to(destination, "new.example");
    let hops: Vec<_> = post.take_all().iter().map(|a| (a.id.sequence(), a.next_hop.unwrap())).collect();
    let (old, new) = (post.hop("old.example").number, post.hop("new.example").number);
    assert_eq!(hops, [(11, old), (2, new), (12, old)]);
}

#[test]
fn an_answer_that_comes_when_nobody_waits_any_more_does_no_harm() {
    let mut post = post();
    post.answers = false;
    let destination = post.admit(1, 5, "a.example", 1);
    assert_eq!(post.queues.next_question(), Some(destination));
    assert_eq!(post.queues.pick(queue::Act::Remove, NOW, &mut |_| true), 1);
    let removal = post.take();
    let verdict = post.queues.judge(NOW, &removal, Outcome::Delivered);
    post.queues.report(NOW, removal, &[verdict]);
    assert_eq!((post.queues.len(), post.queues.destinations()), (0, 0));
    post.send_to(destination, "mx.example");
    assert!(post.next().is_none());
}
