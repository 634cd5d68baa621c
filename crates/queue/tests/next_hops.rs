//! Next hops, one property per test: concurrency, rates, death and probes, adoption.

mod harness;

use harness::*;
use mail::{Outcome, Rate, Reply, Timestamp};
use queue::{
    AttemptPurpose, BlockReason, ConcurrencyFeedback, ConcurrencyPolicy, ContactResult, NextHopLimits, PauseTarget,
    RecipientProgress, RecipientVerdict,
};

fn adaptive(start: usize, most: usize) -> NextHopLimits {
    NextHopLimits {
        concurrency: ConcurrencyPolicy { start, max: most, ..ConcurrencyPolicy::default() },
        ..NextHopLimits::default()
    }
}

/// Takes all attempts that may leave now and ends them with this contact; returns how many there
/// were.
fn round(harness: &mut Harness, contact: &ContactResult) -> usize {
    let attempts = harness.take_all();
    let count = attempts.len();
    for mut attempt in attempts {
        harness.queues.finish_contact(harness.now, &mut attempt, contact.clone());
        let verdicts = vec![RecipientVerdict::Delivered; attempt.recipients.len()];
        harness.queues.report_verdicts(harness.now, attempt, &verdicts);
    }
    count
}

/// Makes a next hop dead by three failures, of messages 1 to 3.
fn kill(harness: &mut Harness, domain: &str) {
    harness.admit_each(1..=3, domain);
    for _ in 0..3 {
        let attempt = harness.take();
        harness.defer(attempt, unreachable());
    }
}

#[test]
fn the_cap_of_a_queue_counts_attempts_and_an_ended_one_is_free_before_it_is_reported() {
    let mut config = config();
    config.queues[0].concurrency = 2;
    let mut harness = Harness::new(config);
    (1..=4).for_each(|sequence| _ = harness.admit(sequence, 5, &format!("{sequence}.example"), 70));
    let mut first = harness.take_all();
    assert_eq!((first.len(), harness.queues.recipients_in_flight(), harness.queue(STANDARD).attempts), (2, 140, 2));
    assert_eq!(harness.queues.next_deadline(), None);
    harness.queues.finish_contact(NOW, &mut first[0], quick());
    harness.queues.finish_contact(NOW, &mut first[0], quick());
    assert_eq!((harness.queues.unrecorded_attempts(), harness.queues.recipients_in_flight()), (1, 140));
    assert_eq!(harness.queues.next_deadline(), Some(Timestamp(0)));
    assert_eq!(harness.take_all().len(), 1);
}

#[test]
fn what_is_ended_and_not_reported_is_bounded() {
    let mut config = config();
    config.policy.unrecorded_max = 3;
    let mut harness = Harness::new(config);
    harness.prove("a.example");
    harness.admit_each(1..=50, "a.example");
    let mut ended = Vec::new();
    while let Some(mut attempt) = harness.next() {
        harness.queues.finish_contact(NOW, &mut attempt, quick());
        ended.push(attempt);
    }
    assert_eq!((ended.len(), harness.queues.unrecorded_attempts(), harness.queues.next_deadline()), (3, 3, None));
    let destination = ended[0].destination;
    assert_eq!(harness.queues.block_reasons(NOW, destination), [BlockReason::Unrecorded { attempts: 3, max: 3 }]);
    let attempt = ended.swap_remove(0);
    harness.deliver(attempt);
    assert_eq!(harness.take_all().len(), 47);
}

#[test]
fn a_queue_of_no_concurrency_holds_everything() {
    let mut config = config();
    config.queues[0].concurrency = 0;
    let mut harness = Harness::new(config);
    let destination = harness.admit(1, 5, "a.example", 1);
    assert!(harness.next().is_none() && harness.queues.next_deadline().is_none());
    assert_eq!(harness.queues.block_reasons(NOW, destination), [BlockReason::Paused(STANDARD)]);
}

#[test]
fn an_unproven_next_hop_gets_one_attempt_then_start_then_one_more_for_each_success() {
    let mut harness = harness();
    harness.limits = adaptive(2, 20);
    harness.admit_each(1..=200, "a.example");
    let rounds: Vec<usize> = (0..6).map(|_| round(&mut harness, &quick())).collect();
    assert_eq!(rounds, [1, 2, 4, 8, 16, 20]);
}

#[test]
fn a_refusal_halves_once_for_all_that_left_together_and_growth_is_slow_from_then_on() {
    let mut harness = harness();
    harness.limits = adaptive(8, 20);
    harness.admit_each(1..=300, "a.example");
    assert_eq!((round(&mut harness, &quick()), round(&mut harness, &quick())), (1, 8));
    let rounds: Vec<usize> = (0..2).map(|_| round(&mut harness, &ContactResult::Busy)).collect();
    assert_eq!(rounds, [16, 8]);
    let rounds: Vec<usize> = (0..4).map(|_| round(&mut harness, &quick())).collect();
    // Each good answer adds 1/n, and n grows with it, so a full round adds slightly less than one.
    assert_eq!(rounds, [4, 4, 5, 6]);
    assert_eq!(harness.hop("a.example").adopted_by, None);
}

#[test]
fn unused_concurrency_does_not_grow() {
    let mut harness = harness();
    harness.limits = adaptive(4, 20);
    for sequence in 1..=50 {
        harness.admit(sequence, 5, "a.example", 1);
        round(&mut harness, &quick());
    }
    assert_eq!(harness.hop("a.example").concurrency, 4);
}

#[test]
fn concurrency_by_latency_grows_within_the_target_and_shrinks_beyond_and_is_never_lame() {
    let mut harness = harness();
    harness.limits = adaptive(4, 100);
    harness.limits.concurrency.adapt = ConcurrencyFeedback::ByLatency { target: seconds(1) };
    harness.admit_each(1..=1000, "maildir");
    let rounds: Vec<usize> = (0..3).map(|_| round(&mut harness, &quick())).collect();
    assert_eq!(rounds, [1, 4, 8]);
    let slow = ContactResult::Answered { slowest: seconds(30) };
    let rounds: Vec<usize> = (0..3).map(|_| round(&mut harness, &slow)).collect();
    assert_eq!(rounds, [16, 8, 4]);
    harness.queues.report_slow(NOW, harness.hop("maildir").number);
    assert_eq!(harness.hop("maildir").adopted_by, None);
}

#[test]
fn a_rate_is_held_exactly_and_its_moments_are_deadlines() {
    let mut harness = harness();
    harness.limits.rate = Some(Rate { count: 4, per: seconds(1) });
    harness.prove("a.example");
    harness.admit_each(1..=20, "a.example");
    let mut times = Vec::new();
    while !harness.queues.is_empty() {
        while let Some(attempt) = harness.next() {
            times.push(harness.now.since(NOW).as_millis());
            harness.deliver(attempt);
        }
        if let Some(deadline) = harness.queues.next_deadline() {
            assert!(deadline > harness.now);
            harness.now = deadline;
        }
    }
    // The first answer used one of the four attempts of the first second.
    assert!(times.iter().copied().eq([0, 0, 0].into_iter().chain((1..=17).map(|n| n * 250))), "{times:?}");
}

#[test]
fn a_destination_is_blocked_by_the_rate_up_to_the_moment_when_an_attempt_may_leave() {
    let mut harness = harness();
    harness.limits.rate = Some(Rate { count: 1, per: seconds(1) });
    harness.prove("a.example");
    let destination = harness.admit_to(STANDARD, 1, 0, "a.example", 1);
    assert!(harness.next().is_none());
    let until = NOW + seconds(1);
    assert_eq!(harness.queues.block_reasons(harness.now, destination), [BlockReason::Rate { until }]);
    assert!(harness.queues.block_reasons(until, destination).is_empty());
}

#[test]
fn a_dead_next_hop_is_probed_and_other_attempts_are_refused_without_a_slot() {
    let mut harness = harness();
    kill(&mut harness, "a.example");
    let probe_at = NOW + seconds(60);
    assert_eq!(harness.hop("a.example").probe_at, Some(probe_at));
    let destination = harness.admit(4, 5, "a.example", 2);
    let BlockReason::Dead { probe_at: at, .. } = harness.queues.block_reasons(NOW, destination)[0].clone() else {
        panic!()
    };
    assert_eq!(at, probe_at);
    let refused = harness.take();
    assert_eq!((refused.id, refused.number, harness.queue(LAME).attempts), (id(4), 1, 0));
    let AttemptPurpose::Refuse(reply) = refused.purpose.clone() else { panic!("{:?}", refused.purpose) };
    assert_eq!((reply.to_string().as_str(), harness.queues.unrecorded_attempts()), ("451 4.4.1 no connection", 1));
    let verdict = harness.queues.compute_verdict(NOW, &refused, Outcome::Deferred(reply));
    harness.queues.report_verdicts(NOW, refused, &[verdict.clone(), verdict]);
    assert_eq!((harness.progress(4), harness.queues.unrecorded_attempts()), (RecipientProgress::Waiting(probe_at), 0));
}

#[test]
fn probes_come_one_at_a_time_and_further_and_further_apart() {
    let mut harness = harness();
    kill(&mut harness, "a.example");
    let mut waits = Vec::new();
    for _ in 0..6 {
        let probe_at = harness.hop("a.example").probe_at.unwrap();
        waits.push(probe_at.since(harness.now).as_secs());
        harness.now = probe_at;
        harness.admit_each(100..102, "b.example");
        harness.admit_each(102..104, "a.example");
        let attempts = harness.take_all();
        let probes =
            attempts.iter().filter(|attempt| harness.queues.destination_name(attempt.destination) == "a.example");
        let probes: Vec<_> = probes.map(|attempt| attempt.purpose.clone()).collect();
        assert_eq!(probes, [AttemptPurpose::Deliver]);
        for attempt in attempts {
            let is_probe = harness.queues.destination_name(attempt.destination) == "a.example";
            harness.defer(attempt, if is_probe { unreachable() } else { quick() });
        }
        // Recipients that waited for the probe are refused now.
        let mut refused = 0;
        while let Some(attempt) = harness.next() {
            if harness.queues.destination_name(attempt.destination) == "a.example" {
                assert!(matches!(attempt.purpose, AttemptPurpose::Refuse(_)));
                refused += 1;
            }
            harness.defer(attempt, ContactResult::Unknown);
        }
        assert!(refused > 0);
    }
    assert_eq!(waits, [60, 120, 240, 480, 600, 600]);
}

#[test]
fn an_answer_to_a_probe_brings_a_next_hop_back() {
    for answer in [quick(), ContactResult::Busy] {
        let mut harness = harness();
        harness.limits = adaptive(2, 20);
        kill(&mut harness, "a.example");
        harness.now = NOW + seconds(60);
        let probe = harness.take();
        assert_eq!(probe.purpose, AttemptPurpose::Deliver);
        assert!(harness.next().is_none());
        let is_busy = answer == ContactResult::Busy;
        harness.defer(probe, answer);
        let hop = harness.hop("a.example");
        assert_eq!((hop.probe_at, hop.failures), (None, 0));
        assert_eq!(harness.take_all().len(), if is_busy { 1 } else { 2 });
    }
}

#[test]
fn failures_of_attempts_from_before_the_death_do_not_put_off_the_probe() {
    let mut harness = harness();
    harness.prove("a.example");
    harness.admit_each(1..=20, "a.example");
    for attempt in harness.take_all() {
        harness.now = harness.now + seconds(1);
        harness.defer(attempt, unreachable());
    }
    assert_eq!(harness.hop("a.example").probe_at, Some(NOW + seconds(3 + 60)));
}

#[test]
fn adoption_moves_the_slots_in_flight_and_caps_what_follows() {
    let mut harness = harness();
    harness.prove("slow.example");
    harness.admit_each(1..=20, "slow.example");
    harness.admit_each(31..=32, "quick.example");
    let mut flying: Vec<_> = harness.take_all();
    assert_eq!((flying.len(), harness.queue(STANDARD).attempts), (21, 21));
    let hop = harness.hop("slow.example").number;
    harness.queues.report_slow(NOW, hop);
    harness.queues.report_slow(NOW, hop);
    assert_eq!((harness.queue(STANDARD).attempts, harness.queue(LAME).attempts), (1, 20));
    assert_eq!(harness.hop("slow.example").adopted_by, Some(LAME));
    let destination = harness.admit(41, 5, "slow.example", 1);
    harness.admit_each(42..=45, "slow.example");
    let obstacles = harness.queues.block_reasons(NOW, destination);
    assert!(matches!(
        obstacles[..],
        [
            BlockReason::NextHopFull { attempts: 20, max: 2 },
            BlockReason::QueueFull { queue: LAME, attempts: 20, max: 10 },
            BlockReason::Adopted { queue: LAME, .. }
        ]
    ));
    let slow = flying.iter().position(|attempt| attempt.next_hop == Some(hop)).unwrap();
    assert!((flying.swap_remove(slow).number, harness.next().is_none()) == (1, true));
    while let Some(place) = flying.iter().position(|attempt| attempt.next_hop == Some(hop)) {
        let attempt = flying.swap_remove(place);
        harness.deliver(attempt);
    }
    // One of the twenty was dropped above and stays in flight.
    assert_eq!((harness.take_all().len(), harness.queue(LAME).attempts), (1, 2));
}

#[test]
fn a_slow_answer_and_failures_in_a_row_adopt_and_a_refusal_does_not() {
    let slow = ContactResult::Answered { slowest: seconds(11) };
    for (contacts, adopted) in [
        (vec![slow], true),
        (vec![unreachable(), unreachable(), unreachable()], true),
        (vec![unreachable(), unreachable(), quick(), unreachable()], false),
        (vec![ContactResult::Busy; 9], false),
        (vec![ContactResult::Answered { slowest: seconds(10) }; 9], false),
    ] {
        let mut harness = harness();
        harness.admit_each(1..=20, "a.example");
        for contact in contacts {
            let attempt = harness.take();
            harness.defer(attempt, contact);
        }
        assert_eq!(harness.hop("a.example").adopted_by.is_some(), adopted);
    }
}

#[test]
fn a_paused_queue_adopts_no_next_hop() {
    let mut shut = config();
    shut.queues[usize::from(LAME.0)].concurrency = 0;
    let mut paused = harness();
    paused.pause(PauseTarget::Queue(LAME));
    for mut harness in [Harness::new(shut), paused] {
        kill(&mut harness, "a.example");
        harness.queues.report_slow(NOW, harness.hop("a.example").number);
        assert_eq!(harness.hop("a.example").adopted_by, None);
        harness.now = harness.hop("a.example").probe_at.unwrap();
        harness.admit_each(11..=11, "a.example");
        assert_eq!(harness.take().purpose, AttemptPurpose::Deliver, "the next hop is still probed");
    }
}

#[test]
fn a_queue_that_is_resumed_adopts_at_the_next_trouble() {
    let mut harness = harness();
    harness.pause(PauseTarget::Queue(LAME));
    kill(&mut harness, "a.example");
    assert!(harness.queues.resume(NOW, &PauseTarget::Queue(LAME)));
    harness.queues.report_slow(NOW, harness.hop("a.example").number);
    assert_eq!(harness.hop("a.example").adopted_by, Some(LAME));
}

#[test]
fn release_comes_by_time_when_the_last_answer_was_quick_and_moves_the_slots_back() {
    let mut harness = harness();
    harness.prove("a.example");
    harness.admit_each(1..=30, "a.example");
    let hop = harness.hop("a.example").number;
    harness.queues.report_slow(NOW, hop);
    let first = harness.take();
    harness.now = NOW + seconds(3000);
    harness.deliver(first);
    let _flying = harness.take_all();
    assert_eq!(harness.queue(LAME).attempts, 2);
    let release_at = NOW + seconds(3600);
    assert_eq!(harness.queues.next_deadline(), Some(release_at));
    harness.now = release_at;
    assert_eq!(harness.take_all().len(), 27);
    assert_eq!((harness.hop("a.example").adopted_by, harness.queue(LAME).attempts), (None, 0));
    assert_eq!(harness.queue(STANDARD).attempts, 29);
}

#[test]
fn without_a_quick_answer_there_is_no_release_however_long_it_takes() {
    let mut harness = harness();
    harness.prove("a.example");
    harness.admit_each(1..=3, "a.example");
    harness.queues.report_slow(NOW, harness.hop("a.example").number);
    harness.now = NOW + seconds(7200);
    let slow = harness.take();
    assert_eq!(harness.hop("a.example").adopted_by, Some(LAME));
    harness.defer(slow, ContactResult::Answered { slowest: seconds(60) });
    let quick_one = harness.take();
    harness.deliver(quick_one);
    assert_eq!(harness.hop("a.example").adopted_by, Some(LAME));
    harness.now = NOW + seconds(7200 + 3600);
    harness.next();
    assert_eq!(harness.hop("a.example").adopted_by, None);
}

#[test]
fn mail_that_is_at_home_in_the_lame_queue_has_its_cap_without_being_adopted() {
    let mut harness = harness();
    harness.prove("a.example");
    (1..=5).for_each(|sequence| _ = harness.admit_to(LAME, sequence, 5, "a.example", 1));
    assert_eq!(harness.take_all().len(), 2);
    harness.admit_each(11..=15, "a.example");
    assert_eq!(harness.take_all().len(), 5);
}

#[test]
fn a_next_hop_of_two_queues_shares_its_limits_and_is_adopted_from_both() {
    let mut harness = harness();
    harness.route = |_| "mx.example".to_owned();
    harness.limits = adaptive(4, 4);
    harness.prove("a.example");
    harness.admit_each(1..=9, "a.example");
    (11..=19).for_each(|sequence| _ = harness.admit_to(LISTS, sequence, 5, "b.example", 1));
    let flying = harness.take_all();
    assert_eq!((flying.len(), harness.queue(STANDARD).attempts, harness.queue(LISTS).attempts), (4, 2, 2));
    harness.queues.report_slow(NOW, harness.hop("mx.example").number);
    assert_eq!(
        (harness.queue(STANDARD).attempts, harness.queue(LISTS).attempts, harness.queue(LAME).attempts),
        (0, 0, 4)
    );
    flying.into_iter().for_each(|attempt| harness.deliver(attempt));
    assert_eq!((harness.take_all().len(), harness.queue(LAME).attempts), (2, 2));
}

#[test]
fn a_full_next_hop_costs_its_queue_nothing() {
    let mut harness = harness();
    harness.limits = adaptive(1, 1);
    harness.admit_each(1..=50, "full.example");
    let stuck = harness.take();
    harness.admit_each(101..=150, "free.example");
    assert!(harness.drain().into_iter().eq(101..=150));
    harness.deliver(stuck);
    assert!(harness.drain().into_iter().eq(2..=50));
}

#[test]
fn no_more_next_hops_and_destinations_are_kept_than_the_limits_say() {
    let mut harness = harness();
    for number in 0..25_000 {
        harness.admit(number, 5, &format!("{number}.example"), 1);
        let attempt = harness.take();
        harness.deliver(attempt);
    }
    assert!(harness.queues.next_hop_views().count() <= 20_001, "{}", harness.queues.next_hop_views().count());
    // First the destinations are forgotten, then the next hops they kept.
    for hours in [1, 3] {
        harness.now = NOW + seconds(hours * 3600);
        for number in 0..12_000 {
            harness.admit(number, 5, "last.example", 1);
            let attempt = harness.take();
            harness.deliver(attempt);
        }
    }
    assert_eq!(harness.queues.next_hop_views().count(), 1);
}

#[test]
fn a_lame_next_hop_stays_lame_while_it_has_no_mail_for_a_moment() {
    let mut harness = harness();
    harness.prove("a.example");
    harness.queues.report_slow(NOW, harness.hop("a.example").number);
    harness.now = NOW + seconds(300);
    harness.admit_each(1..=5, "a.example");
    assert_eq!(harness.take_all().len(), 2);
}

#[test]
fn an_unknown_contact_result_changes_nothing() {
    let mut harness = harness();
    harness.admit_each(1..=2, "a.example");
    let mut attempt = harness.take();
    harness.queues.finish_contact(NOW, &mut attempt, ContactResult::Unknown);
    let reply = Reply::without_enhanced_code(550, "no");
    let verdict = harness.queues.compute_verdict(NOW, &attempt, Outcome::Failed(reply));
    harness.queues.report_verdicts(NOW, attempt, &[verdict]);
    assert_eq!(harness.take_all().len(), 1);
    assert_eq!((harness.hop("a.example").failures, harness.hop("a.example").concurrency), (0, 1));
}

#[test]
fn the_rest_of_an_interrupted_message_lets_its_sender_s_next_message_pass() {
    let mut harness = harness();
    harness.limits.recipients_per_attempt_max = Some(2);
    harness.prove("a.example");
    harness.admit(1, 5, "a.example", 5);
    harness.admit(2, 5, "a.example", 1);
    let first = harness.take();
    assert_eq!(first.id, id(1));
    harness.defer(first, ContactResult::Interrupted(Reply::without_enhanced_code(451, "connection lost")));
    let order: Vec<_> =
        harness.take_all().iter().map(|attempt| (attempt.id.sequence(), attempt.recipients.len())).collect();
    assert_eq!(order, [(2, 1), (1, 2), (1, 1)]);
}

#[test]
fn an_interrupted_message_lets_others_pass_at_all_destinations_of_the_next_hop() {
    let mut harness = harness();
    harness.route = host_of;
    harness.prove("z.mx.example");
    let domains = ["a.mx.example", "b.mx.example", "c.mx.example"];
    let recipients = (0..3).map(|ordinal| harness.pending(STANDARD, domains[ordinal as usize], ordinal)).collect();
    let admission = harness.admission(1, 5, recipients);
    harness.queues.admit(NOW, &admission);
    harness.admit(2, 6, "d.mx.example", 1);
    let first = harness.take();
    harness.defer(first, ContactResult::Interrupted(Reply::without_enhanced_code(451, "connection lost")));
    assert_eq!(harness.take().id, id(2));
}
