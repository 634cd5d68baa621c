//! Fair turns: between next hops, destinations, senders, single messages and bulk mail, and queues.

use std::collections::BTreeMap;
use std::iter::repeat_n;
use std::time::Duration;

use queue::{Contact, Retry, Verdict};

use crate::world::*;

fn fair_world() -> World {
    World::new(1, config(Retry::default()))
}

/// Delivers attempts one at a time until `wanted` leaves; returns how many recipients left before
/// it.
fn recipients_before(world: &mut World, wanted: u64) -> usize {
    let mut before = 0;
    while let Some((message, recipients)) = deliver_one(world) {
        if message == wanted {
            return before;
        }
        before += recipients;
    }
    panic!("message {wanted} never left");
}

/// Delivers the next attempt; returns its message and number of recipients.
fn deliver_one(world: &mut World) -> Option<(u64, usize)> {
    world.answer();
    let mut attempt = world.queues.next(START)?;
    let count = attempt.recipients.len();
    let message = attempt.id.sequence();
    world.queues.ended(START, &mut attempt, Contact::Answered { slowest: Duration::from_millis(5) });
    world.queues.report(START, attempt, &vec![Verdict::Delivered; count]);
    Some((message, count))
}

#[test]
fn a_letter_beside_a_mailing_of_100_000_to_the_same_domain_waits_for_one_attempt() {
    let mut world = fair_world();
    world.admit(STANDARD, 1, repeat_n("large.example", 100_000));
    let letter = world.admit(STANDARD, 1, ["large.example"]);
    assert!(recipients_before(&mut world, letter) <= 100);
}

#[test]
fn a_letter_beside_100_000_single_messages_to_the_same_domain_waits_for_one_of_them() {
    let mut world = fair_world();
    (0..100_000).for_each(|_| _ = world.admit(STANDARD, 1, ["large.example"]));
    let letter = world.admit(STANDARD, 2, ["large.example"]);
    assert!(recipients_before(&mut world, letter) <= 1);
}

#[test]
fn a_letter_beside_a_mailing_to_a_thousand_domains_waits_for_a_turn_or_two() {
    let mut world = fair_world();
    // What was ready before the sender became bulk are its single messages: one round of them.
    (0..100_000).for_each(|n| _ = world.admit(STANDARD, 1, [format!("{}.example", n % 1000)]));
    let letter = world.admit(STANDARD, 2, ["alone.example"]);
    assert!(recipients_before(&mut world, letter) <= 1400);
    let letter = world.admit(STANDARD, 2, ["alone.example"]);
    assert!(recipients_before(&mut world, letter) <= 2);
}

#[test]
fn a_thousand_letters_after_a_mailing_to_20_000_domains_are_there_within_2_seconds() {
    let mut config = config(Retry::default());
    config.queues[0].concurrency = 400;
    let mut world = World::new(1, config);
    world.admit(STANDARD, 1, (0..200_000).map(|n| format!("{}.example", n % 20_000)));
    world.run_until(START + Duration::from_millis(500));
    let sent_at = world.now;
    for n in 0..1000 {
        world.admit(STANDARD, 2 + n % 10, [format!("{}.example", n * 20)]);
    }
    world.run_until(sent_at + Duration::from_secs(2));
    let letters = &world.mail[1..];
    assert!(letters.iter().all(|mail| mail.recipients[0].state == State::Delivered));
    let mailing = world.mail[0].recipients.iter().filter(|known| known.state == State::Delivered).count();
    assert!((10_000..190_000).contains(&mailing), "{mailing} of the bulk mail");
    world.run_until(START + Duration::from_secs(60));
    assert!(world.is_resolved());
}

/// Delivers until enough recipients left; counts them by the `share` of their message.
fn shares(world: &mut World, recipients: usize, share: impl Fn(u64) -> u64) -> BTreeMap<u64, usize> {
    let mut shares = BTreeMap::new();
    while shares.values().sum::<usize>() < recipients {
        let (message, count) = deliver_one(world).expect("enough mail is queued");
        *shares.entry(share(message)).or_default() += count;
    }
    shares
}

#[test]
fn next_hops_get_equal_shares_of_recipients_whatever_the_size_of_their_messages() {
    let mut world = fair_world();
    for n in 0..3000 {
        world.admit(STANDARD, 1, repeat_n(["a", "b", "c"][n % 3], [1, 7, 100][n % 3]));
    }
    let shares = shares(&mut world, 1500, |message| message % 3);
    assert!(shares.values().all(|share| (400..=600).contains(share)), "{shares:?}");
}

#[test]
fn destinations_of_one_next_hop_get_equal_shares_and_the_next_hop_gets_one() {
    let mut world = fair_world();
    world.route = |domain| domain[1..].to_owned();
    for n in 0..4000 {
        world.admit(
            STANDARD,
            1,
            repeat_n(["a-shared", "b-shared", "c-shared", "d-alone"][n % 4], [1, 7, 60, 1][n % 4]),
        );
    }
    let shares = shares(&mut world, 1200, |message| message % 4);
    let shared = shares[&0] + shares[&1] + shares[&2];
    assert!((500..=700).contains(&shared), "{shares:?}");
    assert!([0, 1, 2].iter().all(|n| (140..=280).contains(&shares[n])), "{shares:?}");
}

#[test]
fn senders_of_mailings_at_one_destination_take_turns_too() {
    let mut world = fair_world();
    (0..6000).for_each(|n| _ = world.admit(STANDARD, n % 3, ["large.example"]));
    (0..3000).for_each(|_| _ = deliver_one(&mut world));
    let shares = shares(&mut world, 600, |message| message % 3);
    assert!(shares.values().all(|&share| share == 200), "{shares:?}");
}

#[test]
fn a_mailing_is_not_starved_by_letters_that_never_end() {
    let mut world = fair_world();
    let mailing = world.admit(STANDARD, 1, repeat_n("a.example", 2000));
    let mut mailed = 0;
    for n in 0..400 {
        world.admit(STANDARD, n, ["b.example"]);
        world.admit(STANDARD, n, ["a.example"]);
        if deliver_one(&mut world).is_some_and(|(message, _)| message == mailing) {
            mailed += 1;
        }
        if mailed == 20 {
            return;
        }
    }
    panic!("bulk mail had {mailed} turns of 400");
}

#[test]
fn queues_take_turns_when_the_records_are_the_bottleneck() {
    let mut config = config(Retry::default());
    config.unrecorded_max = 1;
    let mut world = World::new(1, config);
    for _ in 0..300 {
        world.admit(STANDARD, 1, ["a.example"]);
        world.admit(LISTS, 1, ["b.example"]);
    }
    let shares = shares(&mut world, 200, |message| message % 2);
    assert_eq!(shares.into_values().collect::<Vec<_>>(), [100, 100]);
}

#[test]
fn nobody_starves_though_new_next_hops_come_all_the_time() {
    let mut world = fair_world();
    for _ in 0..100 {
        world.admit(STANDARD, 1, ["patient.example"]);
    }
    let mut left = 0;
    for n in 0..220 {
        if n % 2 == 0 {
            world.admit(STANDARD, 2, [format!("{n}.example")]);
        }
        if deliver_one(&mut world).is_some_and(|(message, _)| message < 100) {
            left += 1;
        }
    }
    assert_eq!(left, 100);
}
