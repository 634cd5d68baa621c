//! What a queue promises, one promise a test.

use std::time::Duration;

use mail::{Enhanced, Outcome, QueueId, Reply, SpoolId, Timestamp};
use queue::{Admission, Attempt, Config, Entry, Pending, Progress, Queue, Retry, Verdict};

const NOW: Timestamp = Timestamp(1_700_000_000_000);

fn queue(concurrency: usize) -> Queue {
    let retry = Retry { jitter: 0.0, ..Retry::default() };
    Queue::new(Config { name: "standard".into(), concurrency, retry, recipients_per_attempt_max: 100 }, 7)
}

fn id(sequence: u64) -> QueueId {
    QueueId::new(SpoolId::new(1), 0, sequence)
}

/// Admits a message of `count` recipients who are all due now.
fn admit(queue: &mut Queue, sequence: u64, sender: u64, domain: &str, count: u32) {
    let destination = queue.destination(domain);
    let recipients = (0..count).map(|ordinal| Pending { ordinal, destination, attempts: 0, due: NOW }).collect();
    queue.admit(NOW, &Admission { id: id(sequence), sender, accepted_at: NOW, recovered: false, recipients });
}

fn take(queue: &mut Queue, now: Timestamp) -> Attempt {
    queue.next(now).expect("something is due")
}

fn deliver(queue: &mut Queue, now: Timestamp, attempt: Attempt) {
    let verdicts = vec![Verdict::Delivered; attempt.recipients.len()];
    queue.report(now, attempt, &verdicts);
}

fn busy() -> Reply {
    Reply::new(451, Enhanced(4, 3, 0), "busy")
}

/// Defers all recipients of an attempt under the rules; returns when they are due again.
fn defer(queue: &mut Queue, now: Timestamp, attempt: Attempt) -> Timestamp {
    let verdict = queue.judge(now, &attempt, Outcome::Deferred(busy()));
    let Verdict::Deferred { until, .. } = verdict else { panic!("{verdict:?}") };
    let verdicts = vec![verdict; attempt.recipients.len()];
    queue.report(now, attempt, &verdicts);
    until
}

/// Delivers everything; returns the messages in the order in which they left.
fn drain(queue: &mut Queue) -> Vec<u64> {
    let mut order = Vec::new();
    while let Some(attempt) = queue.next(NOW) {
        order.push(attempt.id.sequence());
        deliver(queue, NOW, attempt);
    }
    order
}

#[test]
fn a_first_attempt_is_due_at_once_and_a_delivered_message_is_gone() {
    let mut queue = queue(10);
    admit(&mut queue, 1, 5, "a.example", 2);
    assert_eq!((queue.len(), queue.messages(), queue.destinations(), queue.in_flight()), (2, 1, 1, 0));
    let attempt = take(&mut queue, NOW);
    assert_eq!((attempt.id, attempt.number, attempt.recovered), (id(1), 1, false));
    assert_eq!((&*attempt.recipients, queue.domain(attempt.destination)), (&[0, 1][..], "a.example"));
    assert_eq!((queue.in_flight(), queue.next(NOW).is_none()), (2, true));
    deliver(&mut queue, NOW, attempt);
    assert_eq!((queue.len(), queue.messages(), queue.destinations(), queue.in_flight()), (0, 0, 0, 0));
    assert!(queue.is_empty() && queue.next_deadline().is_none());
}

#[test]
fn recipients_of_one_message_leave_together_by_destination_and_in_portions() {
    let mut queue = queue(1000);
    let (a, b) = (queue.destination("a.example"), queue.destination("b.example"));
    let destination = |ordinal| if ordinal % 2 == 0 { a } else { b };
    let pending = |ordinal| Pending { ordinal, destination: destination(ordinal), attempts: 0, due: NOW };
    let recipients = (0..300).map(pending).collect();
    queue.admit(NOW, &Admission { id: id(1), sender: 5, accepted_at: NOW, recovered: true, recipients });
    let sizes: Vec<_> = std::iter::from_fn(|| queue.next(NOW))
        .map(|attempt| (attempt.destination, attempt.recipients.len(), attempt.recipients[0], attempt.recovered))
        .collect();
    assert_eq!(sizes, [(a, 100, 0, true), (b, 100, 1, true), (a, 50, 200, true), (b, 50, 201, true)]);
}

#[test]
fn the_cap_counts_recipients_and_cuts_an_attempt_short() {
    let mut queue = queue(70);
    admit(&mut queue, 1, 5, "a.example", 100);
    let first = take(&mut queue, NOW);
    assert_eq!((first.recipients.len(), queue.in_flight()), (70, 70));
    assert!(queue.next(NOW).is_none() && queue.next_deadline().is_none());
    deliver(&mut queue, NOW, first);
    assert_eq!(take(&mut queue, NOW).recipients, (70..100).collect::<Vec<_>>());
}

#[test]
fn a_held_queue_keeps_everything_until_it_is_released() {
    let mut queue = queue(0);
    admit(&mut queue, 1, 5, "a.example", 1);
    assert!(queue.next(NOW).is_none() && queue.next_deadline().is_none());
    queue.set_concurrency(1);
    assert_eq!(queue.next_deadline(), Some(Timestamp(0)));
    let attempt = take(&mut queue, NOW);
    queue.set_concurrency(0);
    deliver(&mut queue, NOW, attempt);
    assert!(queue.is_empty());
}

#[test]
fn a_deferred_recipient_waits_until_it_is_due_and_not_a_millisecond_longer() {
    let mut queue = queue(10);
    admit(&mut queue, 1, 5, "a.example", 3);
    let attempt = take(&mut queue, NOW);
    let until = defer(&mut queue, NOW, attempt);
    assert_eq!(until, NOW + Duration::from_secs(60));
    assert_eq!(queue.next_deadline(), Some(until));
    assert!(queue.next(Timestamp(until.millis() - 1)).is_none());
    let again = take(&mut queue, until);
    assert_eq!((again.number, again.recipients.len()), (2, 3));
    assert_eq!(defer(&mut queue, until, again), until + Duration::from_secs(120));
}

#[test]
fn each_recipient_of_an_attempt_goes_its_own_way() {
    let mut queue = queue(10);
    admit(&mut queue, 1, 5, "a.example", 3);
    let attempt = take(&mut queue, NOW);
    let outcomes = [Outcome::Delivered, Outcome::Deferred(busy()), Outcome::Failed(Reply::plain(550, "no"))];
    let verdicts = outcomes.map(|outcome| queue.judge(NOW, &attempt, outcome));
    queue.report(NOW, attempt, &verdicts);
    let until = NOW + Duration::from_secs(60);
    let entry = |progress| Entry {
        id: id(1),
        ordinal: 1,
        destination: queue.entries().next().unwrap().destination,
        attempts: 1,
        accepted_at: NOW,
        progress,
    };
    assert!(queue.entries().eq([entry(Progress::Waiting(until))]));
    assert_eq!(take(&mut queue, until).recipients, [1]);
}

#[test]
fn judging_changes_nothing_and_says_the_same_again() {
    let mut queue = Queue::new(
        Config { name: "standard".into(), concurrency: 9, retry: Retry::default(), recipients_per_attempt_max: 9 },
        3,
    );
    admit(&mut queue, 1, 5, "a.example", 2);
    let attempt = take(&mut queue, NOW);
    let verdict = queue.judge(NOW, &attempt, Outcome::Deferred(busy()));
    assert_eq!(verdict, queue.judge(NOW, &attempt, Outcome::Deferred(busy())));
    assert_eq!((queue.len(), queue.in_flight(), queue.next_deadline()), (2, 2, None));
}

#[test]
fn messages_of_one_sender_leave_in_the_order_of_admission() {
    let mut queue = queue(10);
    (1..=50).for_each(|sequence| admit(&mut queue, sequence, 5, "a.example", 1));
    assert!(drain(&mut queue).into_iter().eq(1..=50));
}

#[test]
fn senders_at_one_destination_take_turns() {
    let mut queue = queue(10);
    (1..=4).for_each(|sequence| admit(&mut queue, sequence, 5, "a.example", 1));
    admit(&mut queue, 10, 6, "a.example", 1);
    admit(&mut queue, 20, 7, "a.example", 1);
    assert_eq!(drain(&mut queue), [1, 10, 20, 2, 3, 4]);
}

#[test]
fn a_destination_pays_for_a_large_attempt_with_rounds() {
    let mut queue = queue(1000);
    (1..=2).for_each(|sequence| admit(&mut queue, sequence, 5, "large.example", 3));
    (11..=16).for_each(|sequence| admit(&mut queue, sequence, 6, "small.example", 1));
    assert_eq!(drain(&mut queue), [1, 11, 12, 13, 2, 14, 15, 16]);
}

#[test]
fn destinations_that_come_anew_again_and_again_do_not_starve_one_that_pays() {
    let mut queue = queue(1000);
    (1..=2).for_each(|sequence| admit(&mut queue, sequence, 5, "patient.example", 1));
    let mut order = Vec::new();
    for sequence in 100..110 {
        admit(&mut queue, sequence, sequence, &format!("{sequence}.example"), 1);
        let attempt = take(&mut queue, NOW);
        order.push(attempt.id.sequence());
        deliver(&mut queue, NOW, attempt);
    }
    assert_eq!(order[..4], [1, 100, 2, 101]);
}

#[test]
fn pending_recipients_of_a_restart_wait_for_their_time_and_keep_their_count() {
    let mut queue = queue(10);
    let destination = queue.destination("a.example");
    let until = NOW + Duration::from_secs(90);
    let recipients = vec![
        Pending { ordinal: 4, destination, attempts: 3, due: until },
        Pending { ordinal: 7, destination, attempts: 1, due: NOW - Duration::from_secs(5) },
        Pending { ordinal: 8, destination, attempts: 0, due: NOW },
    ];
    queue.admit(NOW, &Admission { id: id(1), sender: 5, accepted_at: NOW, recovered: true, recipients });
    let (overdue, first) = (take(&mut queue, NOW), take(&mut queue, NOW));
    assert_eq!((overdue.recipients[0], overdue.number, first.recipients[0], first.number), (7, 2, 8, 1));
    assert_eq!(queue.next_deadline(), Some(until));
    let last = take(&mut queue, until);
    assert_eq!((&*last.recipients, last.number), (&[4][..], 4));
}

#[test]
fn a_message_without_recipients_leaves_no_trace() {
    let mut queue = queue(10);
    admit(&mut queue, 1, 5, "a.example", 0);
    assert_eq!((queue.len(), queue.messages()), (0, 0));
}

#[test]
fn a_million_that_are_due_at_once_are_woken_in_portions() {
    let mut queue = queue(10);
    let destination = queue.destination("a.example");
    for ordinal in 0..5000 {
        let recipients = vec![Pending { ordinal, destination, attempts: 1, due: NOW + Duration::from_secs(1) }];
        let id = id(u64::from(ordinal));
        queue.admit(NOW, &Admission { id, sender: 5, accepted_at: NOW, recovered: true, recipients });
    }
    let _attempt = take(&mut queue, NOW + Duration::from_secs(2));
    let ready = queue.entries().filter(|entry| entry.progress == Progress::Ready).count();
    assert!((1..2000).contains(&ready), "{ready}");
}

#[test]
#[should_panic(expected = "a verdict for each recipient")]
fn a_report_with_a_verdict_missing_is_a_defect_of_the_caller() {
    let mut queue = queue(10);
    admit(&mut queue, 1, 5, "a.example", 2);
    let attempt = take(&mut queue, NOW);
    queue.report(NOW, attempt, &[Verdict::Delivered]);
}
