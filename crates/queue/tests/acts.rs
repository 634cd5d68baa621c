//! The operator's actions, one property per test: hold, release, retry, remove, bounce, pause,
//! stop, list.

mod harness;

use harness::*;
use mail::{EnhancedCode, Outcome, Reply};
use queue::{
    ActCounts, AttemptPurpose, BlockReason, OperatorAction, PauseTarget, PendingRecipient, PickCount,
    RecipientProgress, RecipientVerdict, TrackedAction,
};

/// Picks recipients, then records and reports the action; returns how many were picked.
fn act(harness: &mut Harness, act: OperatorAction, filter: impl Fn(u64) -> bool) -> usize {
    let picked = harness
        .queues
        .pick_recipients_for_action(act, harness.now, 0..u32::MAX, &mut |entry| filter(entry.id.sequence()))
        .picked;
    let mut reported = 0;
    while reported < picked {
        let attempt = harness.take();
        assert_eq!((&attempt.purpose, attempt.next_hop, attempt.route), (&AttemptPurpose::Action(act), None, None));
        reported += attempt.recipients.len();
        finish(harness, attempt);
    }
    picked
}

fn finish(harness: &mut Harness, attempt: queue::Attempt<u32>) {
    let outcome = Outcome::Failed(Reply::new(550, EnhancedCode(5, 7, 0), "bounced by the operator"));
    let verdict = harness.queues.compute_verdict(harness.now, &attempt, outcome);
    let verdicts = vec![verdict; attempt.recipients.len()];
    harness.queues.report_verdicts(harness.now, attempt, &verdicts);
}

/// Message 1 waits, 2 is ready, 3 is in flight, 4 is held; all at one next hop with one attempt at
/// a time.
fn in_all_states() -> (Harness, queue::Attempt<u32>) {
    let mut harness = harness();
    harness.limits.concurrency.max = 1;
    for (sequence, delay, held) in [(1, 100, false), (4, 0, true), (3, 0, false), (2, 0, false)] {
        let pending = PendingRecipient { due: NOW + seconds(delay), held, ..harness.pending(STANDARD, "a.example", 0) };
        let admission = harness.admission(sequence, 5, vec![pending]);
        harness.queues.admit(NOW, &admission);
    }
    let flying = harness.take();
    assert_eq!(flying.id, id(3));
    (harness, flying)
}

#[test]
fn each_act_chooses_among_the_states_that_it_makes_sense_for() {
    for (chosen_act, expected) in [
        (OperatorAction::Hold, vec![1, 2]),
        (OperatorAction::Release, vec![4]),
        (OperatorAction::Retry, vec![1]),
        (OperatorAction::Remove, vec![1, 2, 4]),
        (OperatorAction::Bounce, vec![1, 2, 4]),
    ] {
        let (mut harness, _flying) = in_all_states();
        assert_eq!(
            harness.queues.pick_recipients_for_action(chosen_act, NOW, 0..u32::MAX, &mut |_| true).picked,
            expected.len(),
            "{chosen_act:?}"
        );
        let mut acts: Vec<u64> = harness.take_all().iter().map(|attempt| attempt.id.sequence()).collect();
        acts.sort_unstable();
        assert_eq!(acts, expected, "{chosen_act:?}");
    }
}

#[test]
fn an_act_on_one_message_does_what_the_same_act_on_all_does_to_it() {
    let acts = [OperatorAction::Hold, OperatorAction::Release, OperatorAction::Retry, OperatorAction::Remove];
    for (act, sequence) in acts.into_iter().flat_map(|act| (1..=5).map(move |sequence| (act, sequence))) {
        let ((mut by_id, _flying), (mut by_pass, _also_flying)) = (in_all_states(), in_all_states());
        let twice = [id(sequence), id(sequence)];
        let picked = by_id.queues.pick_message_recipients_for_action(act, NOW, &twice, &mut |_| true);
        let expected =
            by_pass.queues.pick_recipients_for_action(act, NOW, 0..u32::MAX, &mut |entry| entry.id == id(sequence));
        assert_eq!(picked, expected, "{act:?} {sequence}");
        let acted = |harness: &mut Harness| harness.take_all().iter().map(|attempt| attempt.id).collect::<Vec<_>>();
        assert_eq!(acted(&mut by_id), acted(&mut by_pass), "{act:?} {sequence}");
        assert_eq!(by_id.queue(STANDARD).waiting, by_pass.queue(STANDARD).waiting, "{act:?} {sequence}");
    }
}

#[test]
fn what_is_held_stays_until_it_is_released_and_keeps_its_count_and_error() {
    let mut harness = harness();
    harness.admit_each(1..=2, "a.example");
    let attempt = harness.take();
    harness.defer(attempt, quick());
    assert_eq!(act(&mut harness, OperatorAction::Hold, |_| true), 2);
    assert_eq!((harness.progress(1), harness.queue(STANDARD).held), (RecipientProgress::Held, 2));
    harness.now = NOW + seconds(100_000);
    assert!(harness.next().is_none() && harness.queues.next_deadline().is_none());
    assert_eq!(act(&mut harness, OperatorAction::Release, |sequence| sequence == 1), 1);
    assert_eq!((harness.progress(1), harness.entry(1).attempts), (RecipientProgress::Ready, 1));
    assert_eq!(harness.entry(1).error.as_deref(), Some("451 4.3.0 busy"));
    assert_eq!((harness.take().number, harness.progress(2)), (2, RecipientProgress::Held));
}

#[test]
fn what_is_retried_is_due_now() {
    let mut harness = harness();
    harness.admit_each(1..=3, "a.example");
    (0..3).for_each(|_| {
        let attempt = harness.take();
        harness.defer(attempt, quick());
    });
    assert_eq!(act(&mut harness, OperatorAction::Retry, |sequence| sequence != 2), 2);
    assert_eq!(harness.drain(), [1, 3]);
    assert_eq!(harness.queues.next_deadline(), Some(NOW + seconds(60)));
}

#[test]
fn removed_recipients_disappear_and_bounced_ones_fail() {
    let (mut harness, flying) = in_all_states();
    assert_eq!(act(&mut harness, OperatorAction::Remove, |sequence| sequence != 4), 2);
    assert_eq!(
        harness.queues.pick_recipients_for_action(OperatorAction::Bounce, NOW, 0..u32::MAX, &mut |_| true).picked,
        1
    );
    let bounce = harness.take();
    let reply = Reply::without_enhanced_code(554, "not wanted");
    let verdict = harness.queues.compute_verdict(NOW, &bounce, Outcome::Failed(reply.clone()));
    assert_eq!(verdict, RecipientVerdict::Failed { reason: reply });
    harness.queues.report_verdicts(NOW, bounce, &[verdict]);
    harness.deliver(flying);
    assert_eq!(
        (harness.queues.recipient_count(), harness.queues.message_count(), harness.queues.next_deadline()),
        (0, 0, None)
    );
    assert_eq!(
        (harness.queue(STANDARD).ready, harness.queue(STANDARD).waiting, harness.queue(STANDARD).held),
        (0, 0, 0)
    );
}

#[test]
fn recipients_of_one_message_at_one_destination_are_one_act() {
    let mut harness = harness();
    let domain = |ordinal| ["a.example", "b.example"][ordinal as usize % 2];
    let recipients = (0..2002).map(|ordinal| harness.pending(STANDARD, domain(ordinal), ordinal)).collect();
    let admission = harness.admission(1, 5, recipients);
    harness.queues.admit(NOW, &admission);
    harness.queues.pick_recipients_for_action(OperatorAction::Hold, NOW, 0..u32::MAX, &mut |_| true);
    let sizes: Vec<_> = harness.take_all().iter().map(|attempt| attempt.recipients.len()).collect();
    assert_eq!(sizes, [1000, 1, 1000, 1]);
}

#[test]
fn a_pick_leaves_the_others_in_their_order() {
    let mut harness = harness();
    for sequence in 0..300 {
        harness.admit(sequence, sequence % 3, ["a.example", "b.example"][sequence as usize % 2], 1);
    }
    harness.answer();
    assert_eq!(act(&mut harness, OperatorAction::Remove, |sequence| sequence % 5 == 0), 60);
    let order = harness.drain();
    assert_eq!(order.len(), 240);
    for group in 0..6 {
        assert!(order.iter().filter(|&sequence| sequence % 6 == group).is_sorted());
    }
}

#[test]
fn picked_recipients_are_not_picked_again_and_actions_need_neither_slot_nor_route() {
    let mut harness = harness();
    harness.answers = false;
    harness.queues.set_stopped(true);
    harness.pause(PauseTarget::Queue(STANDARD));
    harness.admit_each(1..=3, "a.example");
    assert_eq!(
        harness.queues.pick_recipients_for_action(OperatorAction::Hold, NOW, 0..u32::MAX, &mut |_| true).picked,
        3
    );
    assert_eq!(
        harness.queues.pick_recipients_for_action(OperatorAction::Remove, NOW, 0..u32::MAX, &mut |_| true).picked,
        0
    );
    assert_eq!((harness.queues.recipients_in_flight(), harness.progress(1)), (0, RecipientProgress::InFlight));
    assert_eq!((harness.take_all().len(), harness.queues.unrecorded_attempts()), (3, 3));
}

/// A release of a million takes a while to record. What it has picked was left out of the hold that corrects the
/// mistake, and was delivered.
#[test]
fn a_hold_takes_over_what_a_release_or_a_retry_or_new_rules_have_picked() {
    let mut harness = harness();
    for (sequence, delay, held) in [(1, 0, true), (2, 100, false), (3, 100, false)] {
        let pending = PendingRecipient { due: NOW + seconds(delay), held, ..harness.pending(STANDARD, "a.example", 0) };
        let admission = harness.admission(sequence, 5, vec![pending]);
        harness.queues.admit(NOW, &admission);
    }
    let release = TrackedAction::from(OperatorAction::Release);
    harness.queues.pick_recipients_for_action(release.clone(), NOW, 0..u32::MAX, &mut |_| true);
    harness.queues.pick_recipients_for_action(OperatorAction::Retry, NOW, 0..u32::MAX, &mut |entry| entry.id == id(2));
    assert_eq!(harness.queues.pick_recipients_to_reclassify(&mut |entry, _| entry.id == id(3)), 1);
    let hold = TrackedAction::from(OperatorAction::Hold);
    let count = harness.queues.pick_recipients_for_action(hold.clone(), NOW, 0..u32::MAX, &mut |_| true);
    assert_eq!(count, PickCount { picked: 3, in_attempt: 0 });
    assert_eq!(release.progress.counts(), ActCounts { recorded: 0, pending: 0, dropped: 1 });
    assert_eq!(harness.queues.take_unclassified(), [(id(3), 0)]);
    let attempts = harness.take_all();
    assert!(attempts.iter().all(|it| it.purpose == AttemptPurpose::Action(OperatorAction::Hold)), "{attempts:?}");
    for mut attempt in attempts {
        attempt.note_recorded();
        finish(&mut harness, attempt);
    }
    assert_eq!(hold.progress.counts(), ActCounts { recorded: 3, pending: 0, dropped: 0 });
    assert_eq!((harness.queue(STANDARD).held, harness.queues.has_unreported_actions()), (3, false));
}

#[test]
fn an_action_that_stops_mail_says_how_many_were_in_an_attempt() {
    for (act, in_attempt) in [
        (OperatorAction::Hold, 1),
        (OperatorAction::Remove, 1),
        (OperatorAction::Bounce, 1),
        (OperatorAction::Retry, 0),
        (OperatorAction::Release, 0),
    ] {
        let (mut harness, _flying) = in_all_states();
        let dry_run = TrackedAction { dry_run: true, ..act.into() };
        let expected = harness.queues.pick_recipients_for_action(dry_run, NOW, 0..u32::MAX, &mut |_| true);
        assert!(harness.next().is_none(), "a dry run picks none");
        let count = harness.queues.pick_recipients_for_action(act, NOW, 0..u32::MAX, &mut |_| true);
        assert_eq!((count, count.in_attempt), (expected, in_attempt), "{act:?}");
        let of_others = |entry: &queue::RecipientView| entry.id != id(3);
        let (mut others, _also_flying) = in_all_states();
        assert_eq!(others.queues.pick_recipients_for_action(act, NOW, 0..u32::MAX, &mut { of_others }).in_attempt, 0);
    }
}

#[test]
fn an_action_whose_attempt_ends_without_a_record_counts_as_not_done() {
    let mut harness = harness();
    harness.admit_each(1..=2, "a.example");
    let remove = TrackedAction::from(OperatorAction::Remove);
    harness.queues.pick_recipients_for_action(remove.clone(), NOW, 0..u32::MAX, &mut |_| true);
    assert_eq!(remove.progress.counts(), ActCounts { recorded: 0, pending: 2, dropped: 0 });
    let mut attempt = harness.take();
    attempt.note_recorded();
    finish(&mut harness, attempt);
    let attempt = harness.queues.next_action().expect("one is left");
    assert_eq!(remove.progress.counts(), ActCounts { recorded: 1, pending: 1, dropped: 0 });
    finish(&mut harness, attempt);
    assert_eq!(remove.progress.counts(), ActCounts { recorded: 1, pending: 0, dropped: 1 });
}

/// Each id was looked up on its own, with a pass over all that wait, and an id that was given twice counted twice.
#[test]
fn the_recipients_of_many_messages_come_once_each() {
    let (harness, _flying) = in_all_states();
    let views = harness.queues.recipients_of_messages(&[id(2), id(1), id(2), id(9)]);
    let mut found: Vec<_> = views.iter().map(|view| (view.id, view.progress)).collect();
    found.sort_unstable_by_key(|(id, _)| *id);
    let waiting = RecipientProgress::Waiting(NOW + seconds(100));
    assert_eq!(found, [(id(1), waiting), (id(2), RecipientProgress::Ready)]);
}

#[test]
fn an_action_that_selects_no_recipient_changes_nothing() {
    let (mut harness, flying) = in_all_states();
    let mut seen = 0;
    let mut look = |_: &queue::RecipientView| {
        seen += 1;
        false
    };
    assert_eq!(
        harness.queues.pick_recipients_for_action(OperatorAction::Remove, NOW, 0..u32::MAX, &mut look).picked,
        0
    );
    assert_eq!((seen, harness.queues.recipient_count()), (4, 4));
    assert!(harness.next().is_none(), "the next hop has its one attempt, and no action is pending");
    harness.deliver(flying);
    assert_eq!(harness.drain(), [2]);
}

#[test]
fn a_sender_whose_bulk_mail_was_removed_is_single_again() {
    let mut config = config();
    config.policy.bulk_above = 10;
    let mut harness = Harness::new(config);
    harness.admit_each(1..=20, "a.example");
    harness.prove("b.example");
    assert_eq!(act(&mut harness, OperatorAction::Remove, |_| true), 20);
    harness.admit(30, 6, "b.example", 20);
    harness.admit(31, 5, "c.example", 1);
    assert_eq!(harness.drain(), [31, 30]);
}

#[test]
fn a_million_acts_do_not_hold_up_attempts() {
    let mut config = config();
    config.policy.unrecorded_max = 10;
    let mut harness = Harness::new(config);
    for sequence in 0..100 {
        harness.admit(sequence, sequence, &format!("{sequence}.example"), 1);
    }
    harness
        .queues
        .pick_recipients_for_action(OperatorAction::Hold, NOW, 0..u32::MAX, &mut |entry| entry.id.sequence() >= 30);
    let attempts = harness.take_all();
    let acts =
        attempts.iter().filter(|attempt| attempt.purpose == AttemptPurpose::Action(OperatorAction::Hold)).count();
    assert_eq!((acts, attempts.len(), harness.queues.unrecorded_attempts()), (5, 35, 5));
    assert_eq!(harness.queues.next_deadline(), None);
}

#[test]
fn a_paused_queue_keeps_its_mail_and_the_others_continue() {
    let mut harness = harness();
    harness.admit_each(1..=2, "a.example");
    let flying = harness.take();
    harness.pause(PauseTarget::Queue(STANDARD));
    harness.deliver(flying);
    harness.admit_to(LISTS, 11, 5, "b.example", 1);
    assert_eq!(harness.drain(), [11]);
    assert!(harness.queue(STANDARD).pause.is_some() && harness.queues.next_deadline().is_none());
    let destination = harness.queues.intern_destination(STANDARD, "a.example");
    assert_eq!(harness.queues.block_reasons(NOW, destination), [BlockReason::Paused(STANDARD)]);
    assert!(harness.queues.resume(NOW, &PauseTarget::Queue(STANDARD)));
    assert_eq!(harness.drain(), [2]);
}

#[test]
fn stopped_queues_make_no_attempts_and_still_refuse() {
    let mut harness = harness();
    harness.admit_each(1..=4, "a.example");
    for _ in 0..3 {
        let attempt = harness.take();
        harness.defer(attempt, unreachable());
    }
    harness.admit_each(11..=12, "b.example");
    harness.queues.set_stopped(true);
    let attempts = harness.take_all();
    assert_eq!((attempts.len(), attempts[0].id), (1, id(4)));
    assert!(matches!(attempts[0].purpose, AttemptPurpose::Refuse(_)));
    let destination = harness.queues.intern_destination(STANDARD, "b.example");
    assert_eq!(harness.queues.block_reasons(NOW, destination), [BlockReason::Stopped]);
    harness.queues.set_stopped(false);
    assert_eq!(harness.take().id, id(11));
}

#[test]
fn views_count_by_state() {
    let (harness, flying) = in_all_states();
    let view = harness.queue(STANDARD);
    assert_eq!((view.waiting, view.ready, view.in_flight, view.held), (1, 1, 1, 1));
    assert_eq!((view.name, view.attempts, view.concurrency, view.pause), ("standard", 1, 100, None));
    let hop = harness.hop("a.example");
    assert_eq!((hop.destinations, hop.attempts, hop.concurrency), (1, 1, 1));
    assert_eq!(
        harness.queues.block_reasons(NOW, flying.destination),
        [BlockReason::NextHopFull { attempts: 1, max: 1 }]
    );
}

#[test]
fn a_destination_without_a_route_says_so() {
    let mut harness = harness();
    harness.answers = false;
    let destination = harness.admit(1, 5, "a.example", 1);
    assert_eq!(harness.queues.block_reasons(NOW, destination), [BlockReason::NoRoute]);
}
