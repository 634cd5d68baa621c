//! Recipients, one property per test: order, groups, delays, routes.

mod harness;

use harness::*;
use mail::{Outcome, Reply, Timestamp};
use queue::{
    AttemptPurpose, BlockReason, PendingRecipient, QueueConfig, RecipientProgress, RecipientVerdict, SchedulerConfig,
};

#[test]
fn a_first_attempt_is_due_immediately_and_a_delivered_message_is_removed() {
    let mut harness = harness();
    harness.admit(1, 5, "a.example", 2);
    assert_eq!(
        (harness.queues.recipient_count(), harness.queues.message_count(), harness.queues.destination_count()),
        (2, 1, 1)
    );
    let attempt = harness.take();
    assert_eq!((attempt.id, attempt.number, attempt.recovered), (id(1), 1, false));
    assert_eq!(
        (&*attempt.recipients, harness.queues.destination_name(attempt.destination)),
        (&[0, 1][..], "a.example")
    );
    assert_eq!(harness.queues.next_hop_name(attempt.next_hop.unwrap()), "a.example");
    assert_eq!(harness.queues.find_next_hop("a.example"), attempt.next_hop);
    assert_eq!(harness.queues.find_next_hop("b.example"), None);
    assert_eq!((harness.queues.recipients_in_flight(), harness.next().is_none()), (2, true));
    harness.deliver(attempt);
    assert_eq!(
        (harness.queues.recipient_count(), harness.queues.message_count(), harness.queues.destination_count()),
        (0, 0, 0)
    );
    assert_eq!((harness.queues.recipients_in_flight(), harness.queues.unrecorded_attempts()), (0, 0));
    assert!(harness.queues.is_empty() && harness.queues.next_deadline().is_none());
}

#[test]
fn recipients_of_one_message_leave_together_by_destination_and_in_portions() {
    let mut harness = harness();
    ["a.example", "b.example"].into_iter().for_each(|domain| harness.prove(domain));
    let domain = |ordinal| if ordinal % 2 == 0 { "a.example" } else { "b.example" };
    let recipients = (0..300).map(|ordinal| harness.pending(STANDARD, domain(ordinal), ordinal)).collect();
    let admission = harness.admission(1, 5, recipients);
    harness.queues.admit(NOW, &admission);
    let attempts = harness.take_all();
    let sizes: Vec<_> = attempts.iter().map(|attempt| (attempt.recipients.len(), attempt.recipients[0])).collect();
    assert_eq!(sizes, [(100, 0), (100, 1), (50, 200), (50, 201)]);
}

#[test]
fn a_next_hop_and_a_message_whose_recipients_go_alone_make_attempts_smaller() {
    let mut harness = harness();
    harness.limits.recipients_per_attempt_max = Some(3);
    harness.prove("a.example");
    harness.admit(1, 5, "a.example", 4);
    let recipients = (0..2).map(|ordinal| harness.pending(STANDARD, "a.example", ordinal)).collect();
    let mut admission = harness.admission(2, 6, recipients);
    admission.separate_attempts = true;
    harness.queues.admit(NOW, &admission);
    let sizes: Vec<_> = harness.take_all().iter().map(|a| (a.id.sequence(), a.recipients.len())).collect();
    assert_eq!(sizes, [(1, 3), (2, 1), (1, 1), (2, 1)]);
}

#[test]
fn a_deferred_recipient_waits_until_it_is_due_and_not_a_millisecond_longer() {
    let mut harness = harness();
    harness.admit(1, 5, "a.example", 3);
    let attempt = harness.take();
    let until = harness.defer(attempt, quick());
    assert_eq!(until, NOW + seconds(60));
    assert_eq!(harness.queues.next_deadline(), Some(until));
    assert_eq!(harness.entry(1).error.as_deref(), Some("451 4.3.0 busy"));
    harness.now = Timestamp(until.millis() - 1);
    assert!(harness.next().is_none());
    harness.now = until;
    let again = harness.take();
    assert_eq!((again.number, again.recipients.len()), (2, 3));
    assert_eq!(harness.defer(again, quick()), until + seconds(120));
}

#[test]
fn each_recipient_of_an_attempt_goes_its_own_way() {
    let mut harness = harness();
    harness.admit(1, 5, "a.example", 4);
    let attempt = harness.take();
    let reply = Reply::without_enhanced_code(250, "queued");
    let outcomes = [
        Outcome::Delivered,
        Outcome::Deferred(busy()),
        Outcome::Failed(Reply::without_enhanced_code(550, "no")),
        Outcome::Relayed { reply: reply.clone(), dsn: true },
    ];
    let verdicts = outcomes.map(|outcome| harness.queues.compute_verdict(NOW, &attempt, outcome));
    assert_eq!(verdicts[3], RecipientVerdict::Relayed { reply, dsn: true });
    harness.queues.report_verdicts(NOW, attempt, &verdicts);
    assert_eq!(harness.queues.recipient_count(), 1);
    let entry = harness.entry(1);
    assert_eq!((entry.ordinal, entry.attempts), (1, 1));
    assert_eq!(entry.progress, RecipientProgress::Waiting(NOW + seconds(60)));
}

#[test]
fn judging_changes_nothing_and_says_the_same_again() {
    let mut harness =
        Harness::new(SchedulerConfig { queues: vec![QueueConfig::default()], ..SchedulerConfig::default() });
    harness.admit(1, 5, "a.example", 2);
    let attempt = harness.take();
    let verdict = harness.queues.compute_verdict(NOW, &attempt, Outcome::Deferred(busy()));
    assert_eq!(verdict, harness.queues.compute_verdict(NOW, &attempt, Outcome::Deferred(busy())));
    assert_eq!(
        (harness.queues.recipient_count(), harness.queues.recipients_in_flight(), harness.queues.next_deadline()),
        (2, 2, None)
    );
}

#[test]
fn each_queue_has_its_own_retry_rules() {
    let mut config = config();
    config.queues[2].retry.first = seconds(7);
    let mut harness = Harness::new(config);
    harness.admit_to(LISTS, 1, 5, "a.example", 1);
    let attempt = harness.take();
    assert_eq!(harness.queues.destination_queue(attempt.destination), LISTS);
    assert_eq!(harness.defer(attempt, quick()), NOW + seconds(7));
}

#[test]
fn messages_of_one_sender_leave_in_the_order_of_admission() {
    let mut harness = harness();
    harness.admit_each(1..=50, "a.example");
    assert!(harness.drain().into_iter().eq(1..=50));
}

#[test]
fn a_sender_that_becomes_bulk_stays_in_order() {
    let mut config = config();
    config.policy.bulk_above = 10;
    let mut harness = Harness::new(config);
    harness.admit_each(1..=50, "a.example");
    assert!(harness.drain().into_iter().eq(1..=50));
}

#[test]
fn senders_at_one_destination_take_turns() {
    let mut harness = harness();
    harness.admit_each(1..=4, "a.example");
    harness.admit(10, 6, "a.example", 1);
    harness.admit(20, 7, "a.example", 1);
    assert_eq!(harness.drain(), [1, 10, 20, 2, 3, 4]);
}

#[test]
fn destinations_of_one_next_hop_share_its_turns() {
    let mut harness = harness();
    harness.route = host_of;
    harness.admit_each(1..=3, "a.large.example");
    harness.admit_each(11..=13, "b.large.example");
    harness.admit_each(21..=23, "c.small.example");
    assert_eq!(harness.drain(), [1, 21, 11, 22, 2, 23, 12, 3, 13]);
}

#[test]
fn a_destination_pays_for_a_large_attempt_with_rounds() {
    let mut harness = harness();
    (1..=2).for_each(|sequence| _ = harness.admit(sequence, 5, "large.example", 3));
    (11..=16).for_each(|sequence| _ = harness.admit(sequence, 6, "small.example", 1));
    assert_eq!(harness.drain(), [1, 11, 12, 13, 2, 14, 15, 16]);
}

#[test]
fn destinations_that_come_anew_again_and_again_do_not_starve_one_that_pays() {
    let mut harness = harness();
    harness.admit_each(1..=2, "patient.example");
    let mut order = Vec::new();
    for sequence in 100..110 {
        harness.admit(sequence, sequence, &format!("{sequence}.example"), 1);
        let attempt = harness.take();
        order.push(attempt.id.sequence());
        harness.deliver(attempt);
    }
    assert_eq!(order[..4], [1, 100, 2, 101]);
}

#[test]
fn single_messages_have_three_turns_for_each_of_bulk_mail() {
    let mut config = config();
    config.policy.bulk_above = 4;
    let mut harness = Harness::new(config);
    (1..=3).for_each(|sequence| _ = harness.admit(sequence, 5, "a.example", 5));
    // Single messages of the same sender are not affected.
    (11..=14).for_each(|sequence| _ = harness.admit(sequence, 5, "a.example", 1));
    (15..=18).for_each(|sequence| _ = harness.admit(sequence, sequence, "b.example", 1));
    assert_eq!(harness.drain(), [11, 15, 12, 1, 16, 13, 17, 2, 14, 18, 3]);
}

#[test]
fn many_single_messages_one_after_the_other_are_not_bulk() {
    let mut config = config();
    config.policy.bulk_above = 10;
    let mut harness = Harness::new(config);
    harness.prove("b.example");
    for sequence in 1..=30 {
        harness.admit(sequence, 5, "a.example", 1);
        assert_eq!(harness.drain(), [sequence]);
    }
    harness.admit(40, 6, "b.example", 11);
    harness.admit(41, 5, "c.example", 1);
    assert_eq!(harness.drain(), [41, 40]);
}

#[test]
fn a_message_is_bulk_above_the_limit_and_not_at_it() {
    for (recipients, order) in [(10, [40, 41]), (11, [41, 40])] {
        let mut config = config();
        config.policy.bulk_above = 10;
        let mut harness = Harness::new(config);
        harness.prove("b.example");
        harness.admit(40, 6, "b.example", recipients);
        harness.admit(41, 5, "c.example", 1);
        assert_eq!(harness.drain(), order, "{recipients} recipients");
    }
}

#[test]
fn pending_recipients_of_a_restart_wait_for_their_time_and_keep_their_count() {
    let mut harness = harness();
    harness.prove("a.example");
    let destination = harness.queues.intern_destination(STANDARD, "a.example");
    let until = NOW + seconds(90);
    let recipients = vec![
        PendingRecipient { ordinal: 4, destination, attempts: 3, due: until, held: false },
        PendingRecipient { ordinal: 7, destination, attempts: 1, due: NOW - seconds(5), held: false },
        PendingRecipient { ordinal: 8, destination, attempts: 0, due: NOW, held: false },
        PendingRecipient { ordinal: 9, destination, attempts: 0, due: NOW, held: true },
    ];
    let mut admission = harness.admission(1, 5, recipients);
    admission.recovered = true;
    harness.queues.admit(NOW, &admission);
    let (overdue, first) = (harness.take(), harness.take());
    assert_eq!((overdue.recipients[0], overdue.number, overdue.recovered), (7, 2, true));
    assert_eq!((first.recipients[0], first.number), (8, 1));
    assert_eq!(harness.queues.next_deadline(), Some(until));
    harness.now = until;
    let last = harness.take();
    assert_eq!((&*last.recipients, last.number), (&[4][..], 4));
    assert_eq!(harness.queue(STANDARD).held, 1);
}

#[test]
fn a_message_without_recipients_leaves_no_trace() {
    let mut harness = harness();
    harness.admit(1, 5, "a.example", 0);
    assert_eq!((harness.queues.recipient_count(), harness.queues.message_count()), (0, 0));
}

#[test]
fn a_million_due_recipients_are_woken_in_portions() {
    let mut harness = harness();
    harness.admit(0, 5, "a.example", 1);
    let _proof = harness.take();
    for sequence in 1..5000 {
        let pending = PendingRecipient { due: NOW + seconds(1), ..harness.pending(STANDARD, "a.example", 0) };
        let admission = harness.admission(sequence, 5, vec![pending]);
        harness.queues.admit(NOW, &admission);
    }
    assert!(harness.queues.next_attempt(NOW + seconds(2)).is_none());
    assert!((1..2000).contains(&harness.queue(STANDARD).ready), "{}", harness.queue(STANDARD).ready);
    assert!(harness.queues.next_deadline().unwrap() <= NOW + seconds(2));
}

#[test]
#[should_panic(expected = "one verdict for each recipient")]
fn a_report_with_a_verdict_missing_is_a_defect_of_the_caller() {
    let mut harness = harness();
    harness.admit(1, 5, "a.example", 2);
    let attempt = harness.take();
    harness.queues.report_verdicts(NOW, attempt, &[RecipientVerdict::Delivered]);
}

#[test]
fn a_route_is_requested_once_and_recipients_gather_until_it_is_set() {
    let mut harness = harness();
    harness.answers = false;
    let destination = harness.admit(1, 5, "a.example", 1);
    harness.admit_each(2..=3, "a.example");
    assert_eq!((harness.queues.next_unrouted(), harness.queues.next_unrouted()), (Some(destination), None));
    assert_eq!((harness.next().is_none(), harness.queues.next_deadline()), (true, None));
    harness.send_to(destination, "mx.example");
    assert_eq!(harness.drain(), [1, 2, 3]);
}

#[test]
fn recipients_queued_in_time_keep_leaving_while_a_route_is_requested() {
    let mut harness = harness();
    harness.route_time = seconds(30);
    harness.admit_each(1..=3, "a.example");
    let first = harness.take();
    assert_eq!(first.route, Some(1));
    harness.deliver(first);
    harness.answers = false;
    harness.now = NOW + seconds(30);
    let second = harness.take();
    assert_eq!((second.route, harness.queues.next_unrouted()), (Some(1), Some(second.destination)));
    harness.send_to(second.destination, "elsewhere.example");
    // The attempt in flight keeps its next hop and takes no slot at the new one.
    let third = harness.take();
    assert_eq!((third.route, harness.queues.next_hop_name(third.next_hop.unwrap())), (Some(2), "elsewhere.example"));
    assert_eq!((harness.hop("a.example").attempts, harness.hop("elsewhere.example").attempts), (1, 1));
    harness.deliver(second);
    harness.deliver(third);
    assert_eq!((harness.hop("a.example").attempts, harness.hop("elsewhere.example").attempts), (0, 0));
}

#[test]
fn an_expired_route_makes_no_recipient_ready() {
    let mut harness = harness();
    harness.route_time = seconds(30);
    harness.prove("a.example");
    let attempt = (harness.admit(1, 5, "a.example", 1), harness.take()).1;
    assert_eq!(harness.defer(attempt, quick()), NOW + seconds(60));
    harness.answers = false;
    harness.now = NOW + seconds(30);
    // New mail requests a route, and a retry that becomes due meanwhile waits with it.
    let destination = harness.admit(2, 5, "a.example", 1);
    harness.now = NOW + seconds(60);
    assert_eq!((harness.next().is_none(), harness.queues.next_deadline()), (true, None));
    assert_eq!(harness.queues.block_reasons(harness.now, destination), [BlockReason::NoRoute]);
    assert_eq!((harness.queues.next_unrouted(), harness.queues.next_unrouted()), (Some(destination), None));
    // The same next hop again.
    harness.send_to(destination, "a.example");
    let again: Vec<_> = harness.take_all().iter().map(|attempt| (attempt.id.sequence(), attempt.route)).collect();
    assert_eq!(again, [(2, Some(2)), (1, Some(2))]);
    assert_eq!(harness.hop("a.example").destinations, 1);
}

#[test]
fn a_retry_requests_a_route_and_uses_the_new_one() {
    let mut harness = harness();
    harness.route_time = seconds(60);
    let destination = harness.admit(1, 5, "a.example", 1);
    let first = harness.take();
    harness.now = harness.defer(first, quick());
    harness.route = |_| "elsewhere.example".to_owned();
    let second = harness.take();
    assert_eq!((second.destination, second.route), (destination, Some(2)));
    assert_eq!(harness.queues.next_hop_name(second.next_hop.unwrap()), "elsewhere.example");
    assert_eq!((harness.hop("a.example").destinations, harness.hop("elsewhere.example").destinations), (0, 1));
}

#[test]
fn recipients_queued_long_ago_wait_for_a_route_too() {
    let mut harness = harness();
    harness.route = host_of;
    harness.route_time = seconds(30);
    harness.admit_each(1..=2, "a.mx.example");
    harness.admit_each(3..=4, "b.mx.example");
    let first = harness.take();
    // Two destinations wait behind an attempt that ends five minutes after their routes have expired.
    harness.now = NOW + seconds(330);
    harness.answers = false;
    harness.deliver(first);
    assert_eq!(harness.queues.next_deadline(), Some(Timestamp(0)));
    assert_eq!((harness.next().is_none(), harness.queues.next_deadline()), (true, None));
    harness.answers = true;
    assert_eq!(harness.drain(), [3, 2, 4]);
}

#[test]
fn a_dead_next_hop_refuses_no_recipient_with_an_expired_route() {
    let mut harness = harness();
    harness.route_time = seconds(30);
    harness.admit_each(1..=3, "a.example");
    for _ in 0..3 {
        let attempt = harness.take();
        harness.defer(attempt, unreachable());
    }
    harness.now = NOW + seconds(45);
    harness.answers = false;
    let destination = harness.admit(4, 5, "a.example", 1);
    assert!(harness.next().is_none());
    harness.send_to(destination, "elsewhere.example");
    assert_eq!(harness.take().purpose, AttemptPurpose::Deliver);
}

#[test]
fn a_route_that_has_expired_when_it_is_set_is_still_used() {
    let mut harness = harness();
    harness.route_time = seconds(0);
    harness.answers = false;
    let destination = harness.admit(1, 5, "a.example", 1);
    harness.send_to(destination, "a.example");
    // A steady flow of mail does not keep requesting routes.
    harness.admit(2, 5, "a.example", 1);
    assert_eq!(harness.drain(), [1, 2]);
}

#[test]
fn waiting_recipients_follow_a_new_route_of_their_destination() {
    let mut harness = harness();
    harness.route = host_of;
    harness.admit_each(1..=3, "a.old.example");
    harness.admit_each(11..=12, "b.old.example");
    let first = harness.take();
    let destination = first.destination;
    harness.deliver(first);
    harness.send_to(destination, "new.example");
    let hops: Vec<_> = harness.take_all().iter().map(|a| (a.id.sequence(), a.next_hop.unwrap())).collect();
    let (old, new) = (harness.hop("old.example").number, harness.hop("new.example").number);
    assert_eq!(hops, [(11, old), (2, new), (12, old)]);
}

#[test]
fn a_route_set_when_no_recipient_waits_does_no_harm() {
    let mut harness = harness();
    harness.answers = false;
    let destination = harness.admit(1, 5, "a.example", 1);
    assert_eq!(harness.queues.next_unrouted(), Some(destination));
    assert_eq!(
        harness
            .queues
            .pick_recipients_for_action(queue::OperatorAction::Remove, NOW, 0..u32::MAX, &mut |_| true)
            .picked,
        1
    );
    let removal = harness.take();
    let verdict = harness.queues.compute_verdict(NOW, &removal, Outcome::Delivered);
    harness.queues.report_verdicts(NOW, removal, &[verdict]);
    assert_eq!((harness.queues.recipient_count(), harness.queues.destination_count()), (0, 0));
    harness.send_to(destination, "mx.example");
    assert!(harness.next().is_none());
}
