//! Next hops, one property per test: concurrency, rates, death and probes, adoption.

mod post;

use mail::{Outcome, Reply, Timestamp};
use post::*;
use queue::{Adapt, Concurrency, Contact, Limits, Obstacle, Progress, Purpose, Rate, Verdict};

fn adaptive(start: usize, most: usize) -> Limits {
    Limits { concurrency: Concurrency { start, most, ..Concurrency::default() }, ..Limits::default() }
}

/// Takes all attempts that may leave now and ends them with this contact; returns how many there
/// were.
fn round(post: &mut Post, contact: &Contact) -> usize {
    let attempts = post.take_all();
    let count = attempts.len();
    for mut attempt in attempts {
        post.queues.ended(post.now, &mut attempt, contact.clone());
        let verdicts = vec![Verdict::Delivered; attempt.recipients.len()];
        post.queues.report(post.now, attempt, &verdicts);
    }
    count
}

/// Makes a next hop dead by three failures, of messages 1 to 3.
fn kill(post: &mut Post, domain: &str) {
    post.admit_each(1..=3, domain);
    for _ in 0..3 {
        let attempt = post.take();
        post.defer(attempt, unreachable());
    }
}

#[test]
fn the_cap_of_a_queue_counts_attempts_and_an_ended_one_is_free_before_it_is_reported() {
    let mut config = config();
    config.queues[0].concurrency = 2;
    let mut post = Post::new(config);
    (1..=4).for_each(|sequence| _ = post.admit(sequence, 5, &format!("{sequence}.example"), 70));
    let mut first = post.take_all();
    assert_eq!((first.len(), post.queues.in_flight(), post.queue(STANDARD).attempts), (2, 140, 2));
    assert_eq!(post.queues.next_deadline(), None);
    post.queues.ended(NOW, &mut first[0], quick());
    post.queues.ended(NOW, &mut first[0], quick());
    assert_eq!((post.queues.unrecorded(), post.queues.in_flight()), (1, 140));
    assert_eq!(post.queues.next_deadline(), Some(Timestamp(0)));
    assert_eq!(post.take_all().len(), 1);
}

#[test]
fn what_is_ended_and_not_reported_is_bounded() {
    let mut config = config();
    config.unrecorded_max = 3;
    let mut post = Post::new(config);
    post.prove("a.example");
    post.admit_each(1..=50, "a.example");
    let mut ended = Vec::new();
    while let Some(mut attempt) = post.next() {
        post.queues.ended(NOW, &mut attempt, quick());
        ended.push(attempt);
    }
    assert_eq!((ended.len(), post.queues.unrecorded(), post.queues.next_deadline()), (3, 3, None));
    let destination = ended[0].destination;
    assert_eq!(post.queues.explain(NOW, destination), [Obstacle::Unrecorded { attempts: 3, most: 3 }]);
    let attempt = ended.swap_remove(0);
    post.deliver(attempt);
    assert_eq!(post.take_all().len(), 47);
}

#[test]
fn a_queue_of_no_concurrency_holds_everything() {
    let mut config = config();
    config.queues[0].concurrency = 0;
    let mut post = Post::new(config);
    let destination = post.admit(1, 5, "a.example", 1);
    assert!(post.next().is_none() && post.queues.next_deadline().is_none());
    assert_eq!(post.queues.explain(NOW, destination), [Obstacle::Paused(STANDARD)]);
}

#[test]
fn an_unproven_next_hop_gets_one_attempt_then_start_then_one_more_for_each_success() {
    let mut post = post();
    post.limits = adaptive(2, 20);
    post.admit_each(1..=200, "a.example");
    let rounds: Vec<usize> = (0..6).map(|_| round(&mut post, &quick())).collect();
    assert_eq!(rounds, [1, 2, 4, 8, 16, 20]);
}

#[test]
fn a_refusal_halves_once_for_all_that_left_together_and_growth_is_slow_from_then_on() {
    let mut post = post();
    post.limits = adaptive(8, 20);
    post.admit_each(1..=300, "a.example");
    assert_eq!((round(&mut post, &quick()), round(&mut post, &quick())), (1, 8));
    let rounds: Vec<usize> = (0..2).map(|_| round(&mut post, &Contact::Busy)).collect();
    assert_eq!(rounds, [16, 8]);
    let rounds: Vec<usize> = (0..4).map(|_| round(&mut post, &quick())).collect();
    // Each good answer adds 1/n, and n grows with it, so a full round adds slightly less than one.
    assert_eq!(rounds, [4, 4, 5, 6]);
    assert_eq!(post.hop("a.example").adopted_by, None);
}

#[test]
fn concurrency_that_nobody_uses_does_not_grow() {
    let mut post = post();
    post.limits = adaptive(4, 20);
    for sequence in 1..=50 {
        post.admit(sequence, 5, "a.example", 1);
        round(&mut post, &quick());
    }
    assert_eq!(post.hop("a.example").concurrency, 4);
}

#[test]
fn concurrency_by_latency_grows_within_the_target_and_shrinks_beyond_and_is_never_lame() {
    let mut post = post();
    post.limits = adaptive(4, 100);
    post.limits.concurrency.adapt = Adapt::ByLatency { target: seconds(1) };
    post.admit_each(1..=1000, "maildir");
    let rounds: Vec<usize> = (0..3).map(|_| round(&mut post, &quick())).collect();
    assert_eq!(rounds, [1, 4, 8]);
    let slow = Contact::Answered { slowest: seconds(30) };
    let rounds: Vec<usize> = (0..3).map(|_| round(&mut post, &slow)).collect();
    assert_eq!(rounds, [16, 8, 4]);
    post.queues.slow(NOW, post.hop("maildir").number);
    assert_eq!(post.hop("maildir").adopted_by, None);
}

#[test]
fn a_rate_is_held_exactly_and_its_moments_are_deadlines() {
    let mut post = post();
    post.limits.rate = Some(Rate { messages: 4, per: seconds(1) });
    post.prove("a.example");
    post.admit_each(1..=20, "a.example");
    let mut times = Vec::new();
    while !post.queues.is_empty() {
        while let Some(attempt) = post.next() {
            times.push(post.now.since(NOW).as_millis());
            post.deliver(attempt);
        }
        if let Some(deadline) = post.queues.next_deadline() {
            assert!(deadline > post.now);
            post.now = deadline;
        }
    }
    // The first answer used one of the four attempts of the first second.
    assert!(times.iter().copied().eq([0, 0, 0].into_iter().chain((1..=17).map(|n| n * 250))), "{times:?}");
}

#[test]
fn a_dead_next_hop_is_probed_and_what_comes_up_meanwhile_is_refused_without_a_slot() {
    let mut post = post();
    kill(&mut post, "a.example");
    let probe_at = NOW + seconds(60);
    assert_eq!(post.hop("a.example").probe_at, Some(probe_at));
    let destination = post.admit(4, 5, "a.example", 2);
    let Obstacle::Dead { probe_at: at, .. } = post.queues.explain(NOW, destination)[0].clone() else { panic!() };
    assert_eq!(at, probe_at);
    let refused = post.take();
    assert_eq!((refused.id, refused.number, post.queue(LAME).attempts), (id(4), 1, 0));
    let Purpose::Refuse(reply) = refused.purpose.clone() else { panic!("{:?}", refused.purpose) };
    assert_eq!((reply.to_string().as_str(), post.queues.unrecorded()), ("451 4.4.1 no connection", 1));
    let verdict = post.queues.judge(NOW, &refused, Outcome::Deferred(reply));
    post.queues.report(NOW, refused, &[verdict.clone(), verdict]);
    assert_eq!((post.progress(4), post.queues.unrecorded()), (Progress::Waiting(probe_at), 0));
}

#[test]
fn probes_come_one_at_a_time_and_further_and_further_apart() {
    let mut post = post();
    kill(&mut post, "a.example");
    let mut waits = Vec::new();
    for _ in 0..6 {
        let probe_at = post.hop("a.example").probe_at.unwrap();
        waits.push(probe_at.since(post.now).as_secs());
        post.now = probe_at;
        post.admit_each(100..102, "b.example");
        post.admit_each(102..104, "a.example");
        let attempts = post.take_all();
        let probes = attempts.iter().filter(|attempt| post.queues.destination_name(attempt.destination) == "a.example");
        let probes: Vec<_> = probes.map(|attempt| attempt.purpose.clone()).collect();
        assert_eq!(probes, [Purpose::Deliver]);
        for attempt in attempts {
            let is_probe = post.queues.destination_name(attempt.destination) == "a.example";
            post.defer(attempt, if is_probe { unreachable() } else { quick() });
        }
        // Recipients that waited for the probe are refused now.
        let mut refused = 0;
        while let Some(attempt) = post.next() {
            if post.queues.destination_name(attempt.destination) == "a.example" {
                assert!(matches!(attempt.purpose, Purpose::Refuse(_)));
                refused += 1;
            }
            post.defer(attempt, Contact::None);
        }
        assert!(refused > 0);
    }
    assert_eq!(waits, [60, 120, 240, 480, 600, 600]);
}

#[test]
fn an_answer_to_a_probe_brings_a_next_hop_back() {
    for answer in [quick(), Contact::Busy] {
        let mut post = post();
        post.limits = adaptive(2, 20);
        kill(&mut post, "a.example");
        post.now = NOW + seconds(60);
        let probe = post.take();
        assert_eq!(probe.purpose, Purpose::Deliver);
        assert!(post.next().is_none());
        let is_busy = answer == Contact::Busy;
        post.defer(probe, answer);
        let hop = post.hop("a.example");
        assert_eq!((hop.probe_at, hop.failures), (None, 0));
        assert_eq!(post.take_all().len(), if is_busy { 1 } else { 2 });
    }
}

#[test]
fn failures_of_attempts_from_before_the_death_do_not_put_off_the_probe() {
    let mut post = post();
    post.prove("a.example");
    post.admit_each(1..=20, "a.example");
    for attempt in post.take_all() {
        post.now = post.now + seconds(1);
        post.defer(attempt, unreachable());
    }
    assert_eq!(post.hop("a.example").probe_at, Some(NOW + seconds(3 + 60)));
}

#[test]
fn adoption_moves_the_slots_in_flight_and_caps_what_follows() {
    let mut post = post();
    post.prove("slow.example");
    post.admit_each(1..=20, "slow.example");
    post.admit_each(31..=32, "quick.example");
    let mut flying: Vec<_> = post.take_all();
    assert_eq!((flying.len(), post.queue(STANDARD).attempts), (21, 21));
    let hop = post.hop("slow.example").number;
    post.queues.slow(NOW, hop);
    post.queues.slow(NOW, hop);
    assert_eq!((post.queue(STANDARD).attempts, post.queue(LAME).attempts), (1, 20));
    assert_eq!(post.hop("slow.example").adopted_by, Some(LAME));
    let destination = post.admit(41, 5, "slow.example", 1);
    post.admit_each(42..=45, "slow.example");
    let obstacles = post.queues.explain(NOW, destination);
    assert!(matches!(
        obstacles[..],
        [
            Obstacle::NextHopFull { attempts: 20, most: 2 },
            Obstacle::QueueFull { queue: LAME, attempts: 20, most: 10 },
            Obstacle::Adopted { queue: LAME, .. }
        ]
    ));
    let slow = flying.iter().position(|attempt| attempt.next_hop == Some(hop)).unwrap();
    assert!((flying.swap_remove(slow).number, post.next().is_none()) == (1, true));
    while let Some(place) = flying.iter().position(|attempt| attempt.next_hop == Some(hop)) {
        let attempt = flying.swap_remove(place);
        post.deliver(attempt);
    }
    // One of the twenty was dropped above and stays in flight.
    assert_eq!((post.take_all().len(), post.queue(LAME).attempts), (1, 2));
}

#[test]
fn a_slow_answer_and_failures_in_a_row_adopt_and_a_refusal_does_not() {
    let slow = Contact::Answered { slowest: seconds(11) };
    for (contacts, adopted) in [
        (vec![slow], true),
        (vec![unreachable(), unreachable(), unreachable()], true),
        (vec![unreachable(), unreachable(), quick(), unreachable()], false),
        (vec![Contact::Busy; 9], false),
        (vec![Contact::Answered { slowest: seconds(10) }; 9], false),
    ] {
        let mut post = post();
        post.admit_each(1..=20, "a.example");
        for contact in contacts {
            let attempt = post.take();
            post.defer(attempt, contact);
        }
        assert_eq!(post.hop("a.example").adopted_by.is_some(), adopted);
    }
}

#[test]
fn a_queue_that_is_shut_adopts_nobody() {
    let mut shut = config();
    shut.queues[usize::from(LAME.0)].concurrency = 0;
    let mut paused = post();
    paused.queues.pause(LAME, true);
    for mut post in [Post::new(shut), paused] {
        kill(&mut post, "a.example");
        post.queues.slow(NOW, post.hop("a.example").number);
        assert_eq!(post.hop("a.example").adopted_by, None);
        post.now = post.hop("a.example").probe_at.unwrap();
        post.admit_each(11..=11, "a.example");
        assert_eq!(post.take().purpose, Purpose::Deliver, "the next hop is still probed");
    }
}

#[test]
fn a_queue_that_is_resumed_adopts_at_the_next_trouble() {
    let mut post = post();
    post.queues.pause(LAME, true);
    kill(&mut post, "a.example");
    post.queues.pause(LAME, false);
    post.queues.slow(NOW, post.hop("a.example").number);
    assert_eq!(post.hop("a.example").adopted_by, Some(LAME));
}

#[test]
fn release_comes_by_time_when_the_last_answer_was_quick_and_moves_the_slots_back() {
    let mut post = post();
    post.prove("a.example");
    post.admit_each(1..=30, "a.example");
    let hop = post.hop("a.example").number;
    post.queues.slow(NOW, hop);
    let first = post.take();
    post.now = NOW + seconds(3000);
    post.deliver(first);
    let _flying = post.take_all();
    assert_eq!(post.queue(LAME).attempts, 2);
    let release_at = NOW + seconds(3600);
    assert_eq!(post.queues.next_deadline(), Some(release_at));
    post.now = release_at;
    assert_eq!(post.take_all().len(), 27);
    assert_eq!((post.hop("a.example").adopted_by, post.queue(LAME).attempts), (None, 0));
    assert_eq!(post.queue(STANDARD).attempts, 29);
}

#[test]
fn without_a_quick_answer_there_is_no_release_however_long_it_takes() {
    let mut post = post();
    post.prove("a.example");
    post.admit_each(1..=3, "a.example");
    post.queues.slow(NOW, post.hop("a.example").number);
    post.now = NOW + seconds(7200);
    let slow = post.take();
    assert_eq!(post.hop("a.example").adopted_by, Some(LAME));
    post.defer(slow, Contact::Answered { slowest: seconds(60) });
    let quick_one = post.take();
    post.deliver(quick_one);
    assert_eq!(post.hop("a.example").adopted_by, Some(LAME));
    post.now = NOW + seconds(7200 + 3600);
    post.next();
    assert_eq!(post.hop("a.example").adopted_by, None);
}

#[test]
fn mail_that_is_at_home_in_the_lame_queue_has_its_cap_without_being_adopted() {
    let mut post = post();
    post.prove("a.example");
    (1..=5).for_each(|sequence| _ = post.admit_to(LAME, sequence, 5, "a.example", 1));
    assert_eq!(post.take_all().len(), 2);
    post.admit_each(11..=15, "a.example");
    assert_eq!(post.take_all().len(), 5);
}

#[test]
fn a_next_hop_of_two_queues_shares_its_limits_and_is_adopted_from_both() {
    let mut post = post();
    post.route = |_| "mx.example".to_owned();
    post.limits = adaptive(4, 4);
    post.prove("a.example");
    post.admit_each(1..=9, "a.example");
    (11..=19).for_each(|sequence| _ = post.admit_to(LISTS, sequence, 5, "b.example", 1));
    let flying = post.take_all();
    assert_eq!((flying.len(), post.queue(STANDARD).attempts, post.queue(LISTS).attempts), (4, 2, 2));
    post.queues.slow(NOW, post.hop("mx.example").number);
    assert_eq!((post.queue(STANDARD).attempts, post.queue(LISTS).attempts, post.queue(LAME).attempts), (0, 0, 4));
    flying.into_iter().for_each(|attempt| post.deliver(attempt));
    assert_eq!((post.take_all().len(), post.queue(LAME).attempts), (2, 2));
}

#[test]
fn a_full_next_hop_costs_its_queue_nothing() {
    let mut post = post();
    post.limits = adaptive(1, 1);
    post.admit_each(1..=50, "full.example");
    let stuck = post.take();
    post.admit_each(101..=150, "free.example");
    assert!(post.drain().into_iter().eq(101..=150));
    post.deliver(stuck);
    assert!(post.drain().into_iter().eq(2..=50));
}

#[test]
fn no_more_next_hops_and_destinations_are_kept_than_the_limits_say() {
    let mut post = post();
    for number in 0..25_000 {
        post.admit(number, 5, &format!("{number}.example"), 1);
        let attempt = post.take();
        post.deliver(attempt);
    }
    assert!(post.queues.next_hops().count() <= 20_001, "{}", post.queues.next_hops().count());
    // First the destinations are forgotten, then the next hops they kept.
    for hours in [1, 3] {
        post.now = NOW + seconds(hours * 3600);
        for number in 0..12_000 {
            post.admit(number, 5, "last.example", 1);
            let attempt = post.take();
            post.deliver(attempt);
        }
    }
    assert_eq!(post.queues.next_hops().count(), 1);
}

#[test]
fn a_lame_next_hop_stays_lame_while_it_has_no_mail_for_a_moment() {
    let mut post = post();
    post.prove("a.example");
    post.queues.slow(NOW, post.hop("a.example").number);
    post.now = NOW + seconds(300);
    post.admit_each(1..=5, "a.example");
    assert_eq!(post.take_all().len(), 2);
}

#[test]
fn a_contact_of_nothing_changes_nothing() {
    let mut post = post();
    post.admit_each(1..=2, "a.example");
    let mut attempt = post.take();
    post.queues.ended(NOW, &mut attempt, Contact::None);
    let reply = Reply::plain(550, "no");
    let verdict = post.queues.judge(NOW, &attempt, Outcome::Failed(reply));
    post.queues.report(NOW, attempt, &[verdict]);
    assert_eq!(post.take_all().len(), 1);
    assert_eq!((post.hop("a.example").failures, post.hop("a.example").concurrency), (0, 1));
}

#[test]
fn what_is_left_of_a_message_that_broke_off_lets_the_next_one_of_its_sender_pass() {
    let mut post = post();
    post.limits.recipients_per_attempt_max = Some(2);
    post.prove("a.example");
    post.admit(1, 5, "a.example", 5);
    post.admit(2, 5, "a.example", 1);
    let first = post.take();
    assert_eq!(first.id, id(1));
    post.defer(first, Contact::Interrupted(Reply::plain(451, "connection lost")));
    let order: Vec<_> =
        post.take_all().iter().map(|attempt| (attempt.id.sequence(), attempt.recipients.len())).collect();
    assert_eq!(order, [(2, 1), (1, 2), (1, 1)]);
}

#[test]
fn a_message_that_broke_off_at_one_destination_lets_others_pass_at_all_that_share_the_next_hop() {
    let mut post = post();
    post.route = host_of;
    post.prove("z.mx.example");
    let domains = ["a.mx.example", "b.mx.example", "c.mx.example"];
    let recipients = (0..3).map(|ordinal| post.pending(STANDARD, domains[ordinal as usize], ordinal)).collect();
    let admission = post.admission(1, 5, recipients);
    post.queues.admit(NOW, &admission);
    post.admit(2, 6, "d.mx.example", 1);
    let first = post.take();
    post.defer(first, Contact::Interrupted(Reply::plain(451, "connection lost")));
    assert_eq!(post.take().id, id(2));
}
