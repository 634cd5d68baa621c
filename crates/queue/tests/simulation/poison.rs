//! Messages that interrupt every session, and how little they delay other mail at their next hop;
//! next hops that interrupt everything.

use std::iter::repeat_n;
use std::time::Duration;

use queue::{BlockReason, RetryPolicy};

use crate::environment::*;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// All domains share the next hop `mx`, where an attempt takes 100 ms.
fn relay() -> Environment {
    let mut environment = Environment::new(11, config(RetryPolicy::default()));
    environment.route = |_| "mx".to_owned();
    environment.checks = true;
    environment
}

fn is_blamed(environment: &Environment) -> bool {
    environment.hop("mx").is_some_and(|hop| hop.adopted_by.is_some() || hop.probe_at.is_some())
}

/// Steps until `end` and checks at each step that the next hop is not blamed.
fn run_blameless(environment: &mut Environment, end: mail::Timestamp) {
    while environment.now < end {
        environment.run_until(end.min(environment.now + SECOND / 10));
        assert!(!is_blamed(environment), "{:?} after {:?}", environment.hop("mx"), environment.now.since(START));
    }
}

/// Attempts of poison messages between the admission of a message and its own first attempt.
fn attempts_before(environment: &Environment, message: u64, admitted_at: mail::Timestamp) -> usize {
    let left = environment.departures.iter().position(|departure| departure.message == message).expect("it has left");
    let before = environment.departures[..left].iter().filter(|departure| departure.at >= admitted_at);
    before.filter(|departure| (environment.poison)(departure.message)).count()
}

#[test]
fn any_number_of_poison_messages_delays_the_others_by_one_attempt_each_at_most() {
    for poison in [1, 2, 3, 5, 8, 30] {
        let mut environment = relay();
        environment.poison = |message| message % 2 == 0;
        for _ in 0..poison {
            environment.admit(STANDARD, 1, ["poison.test"]);
            environment.admit(STANDARD, 2, Vec::<String>::new());
        }
        let good: Vec<u64> =
            (0..40).map(|_| environment.admit(STANDARD, 2, ["good.test"])).filter(|n| n % 2 == 1).collect();
        run_blameless(&mut environment, START + 10 * SECOND);
        for message in good {
            assert!(attempts_before(&environment, message, START) <= poison + 20, "{poison} poison messages");
            let known = &environment.mail[message as usize].recipients[0];
            assert_eq!((known.state, known.attempts), (State::Delivered, 1), "{poison} poison messages");
        }
    }
}

/// The next hop was declared dead because of the first sender's messages, and the other sender's
/// was never tried.
#[test]
fn poison_of_one_sender_delays_others_at_the_same_destination_by_one_attempt() {
    for (poison_senders, good_senders) in [(1, 1), (1, 2), (2, 1)] {
        let mut environment = relay();
        environment.poison = |message| message < 20;
        for message in 0..20 {
            environment.admit(STANDARD, message % poison_senders, ["a.test"]);
        }
        let good: Vec<u64> = (0..good_senders).map(|n| environment.admit(STANDARD, 10 + n, ["a.test"])).collect();
        run_blameless(&mut environment, START + SECOND);
        for message in good {
            let known = &environment.mail[message as usize].recipients[0];
            assert_eq!((known.state, known.attempts), (State::Delivered, 1), "{poison_senders} {good_senders}");
            assert!(
                attempts_before(&environment, message, START) <= poison_senders as usize,
                "at most one per poison sender"
            );
        }
    }
}

/// Five messages to an address at which a server drops the connection stopped all mail to a shared
/// next hop for a minute.
#[test]
fn good_mail_every_five_seconds_passes_poison_messages_that_arrived_first_and_are_retried() {
    for (poison, domain) in [(5, "good.test"), (200, "good.test"), (5, "poison.test"), (200, "poison.test")] {
        let mut environment = relay();
        (environment.poison, environment.checks) = (|message| message < 200, false);
        for message in 0..200 {
            environment.admit(STANDARD, 1, (message < poison).then_some("poison.test"));
        }
        let mut good = Vec::new();
        for _ in 0..120 {
            let next = environment.now + 5 * SECOND;
            run_blameless(&mut environment, next);
            good.push((environment.admit(STANDARD, 2, [domain]), next));
        }
        let end = environment.now + 10 * SECOND;
        run_blameless(&mut environment, end);
        for (message, admitted_at) in good {
            let known = &environment.mail[message as usize].recipients[0];
            assert_eq!((known.state, known.attempts), (State::Delivered, 1));
            assert!(attempts_before(&environment, message, admitted_at) <= 1, "{poison} poison messages, {domain}");
        }
    }
}

#[test]
fn one_message_that_is_always_interrupted_keeps_its_schedule_and_harms_no_next_hop() {
    let mut environment = relay();
    environment.poison = |message| message == 0;
    environment.admit(STANDARD, 1, ["poison.test"]);
    run_blameless(&mut environment, START + 600 * MINUTE);
    // 1, 2, 4... minutes apart, with 20 % jitter.
    assert!((8..=11).contains(&environment.departures.len()), "{} attempts", environment.departures.len());
    environment.run();
    assert!(environment.is_resolved() && !is_blamed(&environment));
}

#[test]
fn interrupted_bulk_mail_lets_others_pass_and_takes_a_second_per_attempt() {
    let mut environment = relay();
    environment.poison = |message| message == 0;
    environment.admit(STANDARD, 1, repeat_n("list.test", 5000));
    run_blameless(&mut environment, START + 10 * SECOND);
    assert!((5..=11).contains(&environment.departures.len()), "{} attempts", environment.departures.len());
    let single = environment.admit(STANDARD, 1, ["list.test"]);
    let admitted_at = environment.now;
    run_blameless(&mut environment, admitted_at + 2 * SECOND);
    assert_eq!(environment.mail[single as usize].recipients[0].state, State::Delivered);
    assert!(attempts_before(&environment, single, admitted_at) <= 1);
}

#[test]
fn a_next_hop_that_interrupts_everything_is_dead_within_a_minute_and_probed_once_a_minute() {
    let mut environment = relay();
    let back_at = START + 60 * MINUTE;
    environment.peers.insert("mx".into(), Peer { breaks_until: back_at, ..Peer::default() });
    (0..1000).for_each(|n| _ = environment.admit(STANDARD, n, ["a.test"]));
    environment.run_until(START + SECOND);
    let destination = environment.queues.intern_destination(STANDARD, "a.test");
    let obstacles = environment.queues.block_reasons(environment.now, destination);
    assert!(matches!(obstacles[..], [BlockReason::Suspect { messages: 5, .. }]), "{obstacles:?}");
    environment.run_until(START + 40 * SECOND);
    assert_eq!(environment.departures.len(), 9);
    let hop = environment.hop("mx").unwrap();
    assert_eq!((hop.probe_at.is_some(), hop.adopted_by), (true, Some(LAME)));
    let different: std::collections::BTreeSet<u64> = environment.departures.iter().map(|left| left.message).collect();
    assert_eq!(different.len(), 9, "nine different messages");
    environment.run_until(back_at);
    assert!(environment.departures.len() <= 9 + 60, "{} attempts", environment.departures.len());
    environment.run();
    assert!(environment.is_resolved());
}

#[test]
fn a_busy_next_hop_that_starts_to_interrupt_everything_is_dead_as_soon() {
    let mut environment = relay();
    (0..4000).for_each(|n| _ = environment.admit(STANDARD, n, ["a.test"]));
    environment.run_until(START + 2 * SECOND);
    let under_way = environment.hop("mx").unwrap().concurrency;
    environment.peers.insert("mx".into(), Peer { breaks_until: START + 60 * MINUTE, ..Peer::default() });
    let before = environment.departures.len();
    assert_eq!(under_way, 20);
    environment.run_until(START + 45 * SECOND);
    assert!(environment.hop("mx").unwrap().probe_at.is_some());
    // The attempts in flight, as many again while it shrinks, and one at a time for seven more
    // messages.
    let after = environment.departures.len() - before;
    assert!(after <= 20 + 20 + 7, "{after} attempts");
}

#[test]
fn an_interrupted_probe_revives_a_dead_next_hop_for_the_next_message() {
    let mut environment = relay();
    environment.poison = |message| message == 3;
    let back_at = START + 59 * SECOND;
    environment.peers.insert("mx".into(), Peer { down_until: back_at, ..Peer::default() });
    (0..3).for_each(|_| _ = environment.admit(STANDARD, 1, ["good.test"]));
    environment.run_until(back_at);
    assert!(environment.hop("mx").unwrap().probe_at.is_some());
    let probe_at = environment.hop("mx").unwrap().probe_at.unwrap();
    environment.run_until(probe_at - SECOND / 1000);
    environment.admit(STANDARD, 1, repeat_n("poison.test", 1));
    environment.run_until(probe_at + 120 * SECOND);
    let hop = environment.hop("mx").unwrap();
    assert_eq!((hop.probe_at, hop.failures), (None, 0));
    assert!((0..3).all(|n| environment.mail[n].recipients[0].state == State::Delivered));
}
