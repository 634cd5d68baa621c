//! Next hops that are slow, down or easily overloaded, and how little they delay the others.

use std::time::Duration;

use queue::{RetryPolicy, SchedulerConfig};

use crate::environment::*;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// Admits `singles` messages for each of `count` next hops, interleaved.
fn admit_all(environment: &mut Environment, count: usize, singles: usize) {
    for _ in 0..singles {
        (0..count).for_each(|n| _ = environment.admit(STANDARD, n as u64, [format!("{n}.example")]));
    }
}

fn number_of(domain: &str) -> usize {
    domain.split('.').next().and_then(|number| number.parse().ok()).expect("test domains begin with a number")
}

fn unlimited_config() -> SchedulerConfig {
    let mut config = config(RetryPolicy::default());
    config.queues[0].concurrency = 200;
    config
}

/// How long the mail of next hops 10 to 99 takes, if those before are as slow as `slow` says.
fn time_of_the_quick_ones(slow: impl Fn(usize) -> Peer) -> Duration {
    let mut environment = Environment::new(3, unlimited_config());
    for n in 0..100 {
        let peer = if n < 10 { slow(n) } else { Peer { time: 2 * SECOND, ..Peer::default() } };
        environment.peers.insert(format!("{n}.example"), peer);
    }
    admit_all(&mut environment, 100, 90);
    environment.run_until(START + 3 * MINUTE);
    let quick = |mail: &MessageModel| number_of(&mail.recipients[0].domain) >= 10;
    let all_done =
        environment.mail.iter().filter(|mail| quick(mail)).all(|mail| mail.recipients[0].state == State::Delivered);
    assert!(all_done);
    environment.time_of(quick)
}

#[test]
fn ten_of_a_hundred_next_hops_that_are_slow_or_silent_cost_the_others_less_than_5_percent() {
    let without = time_of_the_quick_ones(|_| Peer { time: SECOND / 100, ..Peer::default() });
    let with = time_of_the_quick_ones(|n| match n % 2 {
        0 => Peer { time: 40 * SECOND, ..Peer::default() },
        _ => Peer { time: 120 * SECOND, down_until: START + 60 * MINUTE, ..Peer::default() },
    });
    assert!(without > MINUTE, "the run is too short to show a difference: {without:?}");
    assert!(with.as_secs_f64() < 1.05 * without.as_secs_f64(), "{with:?} instead of {without:?}");
}

#[test]
fn slow_next_hops_share_the_lame_queue_fairly_and_within_its_caps() {
    let mut environment = Environment::new(5, config(RetryPolicy::default()));
    environment.checks = true;
    for n in 0..20 {
        environment.peers.insert(format!("{n}.example"), Peer { time: 20 * SECOND, ..Peer::default() });
    }
    admit_all(&mut environment, 20, 10);
    environment.run_until(START + MINUTE);
    assert!(environment.queues.next_hop_views().all(|hop| hop.adopted_by == Some(LAME) && hop.attempts <= 2));
    let reasons: Vec<_> =
        environment.queues.next_hop_views().map(|hop| (hop.concurrency, hop.concurrency_reason)).collect();
    let capped = (2, queue::ConcurrencyReason::Adopted(LAME));
    assert!(reasons.iter().all(|reason| *reason == capped), "{reasons:?}");
    let from = environment.departures.len();
    environment.run_until(START + 4 * MINUTE);
    let mut counts = [0; 20];
    environment.departures[from..].iter().for_each(|departure| counts[number_of(&departure.next_hop)] += 1);
    let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
    assert!(most - least <= 1 && *least >= 4, "{counts:?}");
    environment.run();
    assert!(environment.is_resolved());
}

#[test]
fn a_busy_next_hop_that_becomes_slow_frees_its_slots_and_returns_when_it_recovers() {
    let mut environment = Environment::new(5, config(RetryPolicy::default()));
    environment.checks = true;
    for _ in 0..400 {
        environment.admit(STANDARD, 1, ["mx"]);
    }
    environment.run_until(START + SECOND);
    assert_eq!(environment.hop("mx").map(|hop| hop.concurrency), Some(20));
    environment.peers.insert("mx".into(), Peer { time: MINUTE, ..Peer::default() });
    environment.run_until(environment.now + SECOND / 2);
    let slots =
        |environment: &Environment| environment.queues.queue_views().map(|queue| queue.attempts).collect::<Vec<_>>();
    assert_eq!(slots(&environment), [20, 0, 0]);
    environment.run_until(environment.now + 10 * SECOND);
    assert_eq!(slots(&environment), [0, 20, 0]);
    environment.peers.insert("mx".into(), Peer::default());
    let well_from = environment.now + MINUTE;
    environment.run_until(well_from);
    assert_eq!(environment.hop("mx").and_then(|hop| hop.adopted_by), Some(LAME));
    while environment.hop("mx").is_some_and(|hop| hop.adopted_by.is_some()) {
        assert!(environment.now.since(well_from) <= 301 * SECOND, "no release");
        environment.admit(STANDARD, 1, ["mx"]);
        environment.run_until(environment.now + SECOND);
    }
    assert!(environment.now.since(well_from) >= 250 * SECOND);
    environment.run();
    assert!(environment.is_resolved());
}

#[test]
fn a_next_hop_that_is_down_for_hours_is_probed_and_its_mail_leaves_when_it_is_back() {
    let mut environment = Environment::new(9, config(RetryPolicy { longest: 20 * MINUTE, ..RetryPolicy::default() }));
    environment.checks = true;
    let back_at = START + 180 * MINUTE;
    environment.peers.insert("mx".into(), Peer { down_until: back_at, ..Peer::default() });
    for _ in 0..100 {
        environment.admit(STANDARD, 1, ["mx"]);
    }
    environment.run();
    let tries = environment.departures.iter().filter(|departure| departure.at < back_at).count();
    // Three failures, four probes in the first quarter of an hour, then one every 10 minutes.
    assert!((15..=3 + 4 + 17).contains(&tries), "{tries} attempts in three hours");
    assert!(environment.is_resolved());
    // A probe at most 10 minutes later, and a retry of those refused until then: 20 minutes plus
    // the jitter.
    assert!(environment.time_of(|_| true) <= back_at.since(START) + 35 * MINUTE, "{:?}", environment.time_of(|_| true));
    let (departures, mail) = (environment.departures.len() - tries, environment.mail.len());
    assert!((mail..mail + 3).contains(&departures), "{departures} attempts for {mail} messages");
}

#[test]
fn concurrency_finds_what_a_peer_takes_and_stays_about_there() {
    let mut environment = Environment::new(9, config(RetryPolicy { first: SECOND, ..RetryPolicy::default() }));
    environment.peers.insert("mx".into(), Peer { most: 6, ..Peer::default() });
    for _ in 0..3000 {
        environment.admit(STANDARD, 1, ["mx"]);
    }
    environment.run_until(START + 30 * SECOND);
    let delivered = environment.mail.iter().filter(|mail| mail.recipients[0].state == State::Delivered).count();
    // 6 at a time with 75 ms each on average are 80 per second.
    assert!(delivered >= 30 * 80 * 6 / 10, "{delivered} delivered");
    assert!(environment.departures.len() <= delivered * 13 / 10, "{} attempts", environment.departures.len());
    assert_eq!(environment.hop("mx").and_then(|hop| hop.adopted_by), None);
}
