//! Messages that interrupt every session, and how little they delay other mail at their next hop;
//! next hops that interrupt everything.

use std::iter::repeat_n;
use std::time::Duration;

use queue::{Obstacle, Retry};

use crate::world::*;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// All domains share the next hop `mx`, where an attempt takes 100 ms.
fn relay() -> World {
    let mut world = World::new(11, config(Retry::default()));
    world.route = |_| "mx".to_owned();
    world.checks = true;
    world
}

fn is_blamed(world: &World) -> bool {
    world.hop("mx").is_some_and(|hop| hop.adopted_by.is_some() || hop.probe_at.is_some())
}

/// Steps until `end` and checks at each step that the next hop is not blamed.
fn run_blameless(world: &mut World, end: mail::Timestamp) {
    while world.now < end {
        world.run_until(end.min(world.now + SECOND / 10));
        assert!(!is_blamed(world), "{:?} after {:?}", world.hop("mx"), world.now.since(START));
    }
}

/// Attempts of poison messages between the admission of a message and its own first attempt.
fn attempts_before(world: &World, message: u64, admitted_at: mail::Timestamp) -> usize {
    let left = world.departures.iter().position(|departure| departure.message == message).expect("it has left");
    let before = world.departures[..left].iter().filter(|departure| departure.at >= admitted_at);
    before.filter(|departure| (world.poison)(departure.message)).count()
}

#[test]
fn any_number_of_poison_messages_delays_the_others_by_one_attempt_each_at_most() {
    for poison in [1, 2, 3, 5, 8, 30] {
        let mut world = relay();
        world.poison = |message| message % 2 == 0;
        for _ in 0..poison {
            world.admit(STANDARD, 1, ["poison.test"]);
            world.admit(STANDARD, 2, Vec::<String>::new());
        }
        let good: Vec<u64> = (0..40).map(|_| world.admit(STANDARD, 2, ["good.test"])).filter(|n| n % 2 == 1).collect();
        run_blameless(&mut world, START + 10 * SECOND);
        for message in good {
            assert!(attempts_before(&world, message, START) <= poison + 20, "{poison} poison messages");
            let known = &world.mail[message as usize].recipients[0];
            assert_eq!((known.state, known.attempts), (State::Delivered, 1), "{poison} poison messages");
        }
    }
}

/// The next hop was declared dead because of the first sender's messages, and the other sender's
/// was never tried.
#[test]
fn poison_of_one_sender_delays_others_at_the_same_destination_by_one_attempt() {
    for (poison_senders, good_senders) in [(1, 1), (1, 2), (2, 1)] {
        let mut world = relay();
        world.poison = |message| message < 20;
        for message in 0..20 {
            world.admit(STANDARD, message % poison_senders, ["a.test"]);
        }
        let good: Vec<u64> = (0..good_senders).map(|n| world.admit(STANDARD, 10 + n, ["a.test"])).collect();
        run_blameless(&mut world, START + SECOND);
        for message in good {
            let known = &world.mail[message as usize].recipients[0];
            assert_eq!((known.state, known.attempts), (State::Delivered, 1), "{poison_senders} {good_senders}");
            assert!(
                attempts_before(&world, message, START) <= poison_senders as usize,
                "at most one per poison sender"
            );
        }
    }
}

/// Five messages to an address at which a server drops the connection stopped all mail to a shared
/// next hop for a minute.
#[test]
fn good_mail_every_five_seconds_passes_poison_that_came_first_and_comes_again() {
    for (poison, domain) in [(5, "good.test"), (200, "good.test"), (5, "poison.test"), (200, "poison.test")] {
        let mut world = relay();
        (world.poison, world.checks) = (|message| message < 200, false);
        for message in 0..200 {
            world.admit(STANDARD, 1, (message < poison).then_some("poison.test"));
        }
        let mut good = Vec::new();
        for _ in 0..120 {
            let next = world.now + 5 * SECOND;
            run_blameless(&mut world, next);
            good.push((world.admit(STANDARD, 2, [domain]), next));
        }
        let end = world.now + 10 * SECOND;
        run_blameless(&mut world, end);
        for (message, admitted_at) in good {
            let known = &world.mail[message as usize].recipients[0];
            assert_eq!((known.state, known.attempts), (State::Delivered, 1));
            assert!(attempts_before(&world, message, admitted_at) <= 1, "{poison} poison messages, {domain}");
        }
    }
}

#[test]
fn one_message_that_always_breaks_off_goes_by_its_own_schedule_and_blames_nobody() {
    let mut world = relay();
    world.poison = |message| message == 0;
    world.admit(STANDARD, 1, ["poison.test"]);
    run_blameless(&mut world, START + 600 * MINUTE);
    // 1, 2, 4... minutes apart, with 20 % jitter.
    assert!((8..=11).contains(&world.departures.len()), "{} attempts", world.departures.len());
    world.run();
    assert!(world.is_resolved() && !is_blamed(&world));
}

#[test]
fn a_mailing_that_breaks_off_lets_others_pass_and_takes_a_second_for_each_of_its_attempts() {
    let mut world = relay();
    world.poison = |message| message == 0;
    world.admit(STANDARD, 1, repeat_n("list.test", 5000));
    run_blameless(&mut world, START + 10 * SECOND);
    assert!((5..=11).contains(&world.departures.len()), "{} attempts", world.departures.len());
    let letter = world.admit(STANDARD, 1, ["list.test"]);
    let admitted_at = world.now;
    run_blameless(&mut world, admitted_at + 2 * SECOND);
    assert_eq!(world.mail[letter as usize].recipients[0].state, State::Delivered);
    assert!(attempts_before(&world, letter, admitted_at) <= 1);
}

#[test]
fn a_next_hop_that_breaks_off_everything_is_dead_within_a_minute_and_probed_once_a_minute() {
    let mut world = relay();
    let back_at = START + 60 * MINUTE;
    world.peers.insert("mx".into(), Peer { breaks_until: back_at, ..Peer::default() });
    (0..1000).for_each(|n| _ = world.admit(STANDARD, n, ["a.test"]));
    world.run_until(START + SECOND);
    let destination = world.queues.destination(STANDARD, "a.test");
    let obstacles = world.queues.explain(world.now, destination);
    assert!(matches!(obstacles[..], [Obstacle::Suspect { messages: 5, .. }]), "{obstacles:?}");
    world.run_until(START + 40 * SECOND);
    assert_eq!(world.departures.len(), 9);
    let hop = world.hop("mx").unwrap();
    assert_eq!((hop.probe_at.is_some(), hop.adopted_by), (true, Some(LAME)));
    let different: std::collections::BTreeSet<u64> = world.departures.iter().map(|left| left.message).collect();
    assert_eq!(different.len(), 9, "nine different messages");
    world.run_until(back_at);
    assert!(world.departures.len() <= 9 + 60, "{} attempts", world.departures.len());
    world.run();
    assert!(world.is_resolved());
}

#[test]
fn a_next_hop_that_begins_to_break_off_everything_in_full_flight_is_dead_as_soon() {
    let mut world = relay();
    (0..4000).for_each(|n| _ = world.admit(STANDARD, n, ["a.test"]));
    world.run_until(START + 2 * SECOND);
    let under_way = world.hop("mx").unwrap().concurrency;
    world.peers.insert("mx".into(), Peer { breaks_until: START + 60 * MINUTE, ..Peer::default() });
    let before = world.departures.len();
    assert_eq!(under_way, 20);
    world.run_until(START + 45 * SECOND);
    assert!(world.hop("mx").unwrap().probe_at.is_some());
    // The attempts in flight, as many again while it shrinks, and one at a time for seven more
    // messages.
    let after = world.departures.len() - before;
    assert!(after <= 20 + 20 + 7, "{after} attempts");
}

#[test]
fn a_dead_next_hop_whose_probe_breaks_off_is_there_again_and_takes_another_message_at_once() {
    let mut world = relay();
    world.poison = |message| message == 3;
    let back_at = START + 59 * SECOND;
    world.peers.insert("mx".into(), Peer { down_until: back_at, ..Peer::default() });
    (0..3).for_each(|_| _ = world.admit(STANDARD, 1, ["good.test"]));
    world.run_until(back_at);
    assert!(world.hop("mx").unwrap().probe_at.is_some());
    let probe_at = world.hop("mx").unwrap().probe_at.unwrap();
    world.run_until(probe_at - SECOND / 1000);
    world.admit(STANDARD, 1, repeat_n("poison.test", 1));
    world.run_until(probe_at + 120 * SECOND);
    let hop = world.hop("mx").unwrap();
    assert_eq!((hop.probe_at, hop.failures), (None, 0));
    assert!((0..3).all(|n| world.mail[n].recipients[0].state == State::Delivered));
}
