//! Fair turns: between next hops, destinations, senders, single messages and bulk mail, and queues.

use std::collections::BTreeMap;
use std::iter::repeat_n;
use std::time::Duration;

use queue::{ContactResult, RecipientVerdict, RetryPolicy};

use crate::environment::*;

fn fair_environment() -> Environment {
    Environment::new(1, config(RetryPolicy::default()))
}

/// Delivers attempts one at a time until `wanted` leaves; returns how many recipients left before
/// it.
fn recipients_before(environment: &mut Environment, wanted: u64) -> usize {
    let mut before = 0;
    while let Some((message, recipients)) = deliver_one(environment) {
        if message == wanted {
            return before;
        }
        before += recipients;
    }
    panic!("message {wanted} never left");
}

/// Delivers the next attempt; returns its message and number of recipients.
fn deliver_one(environment: &mut Environment) -> Option<(u64, usize)> {
    environment.answer();
    let mut attempt = environment.queues.next_attempt(START)?;
    let count = attempt.recipients.len();
    let message = attempt.id.sequence();
    environment.queues.finish_contact(
        START,
        &mut attempt,
        ContactResult::Answered { slowest: Duration::from_millis(5) },
    );
    environment.queues.report_verdicts(START, attempt, &vec![RecipientVerdict::Delivered; count]);
    Some((message, count))
}

#[test]
fn a_single_message_beside_bulk_mail_to_100_000_at_the_same_domain_waits_for_one_attempt() {
    let mut environment = fair_environment();
    environment.admit(STANDARD, 1, repeat_n("large.example", 100_000));
    let single = environment.admit(STANDARD, 1, ["large.example"]);
    assert!(recipients_before(&mut environment, single) <= 100);
}

#[test]
fn a_message_beside_100_000_of_another_sender_to_the_same_domain_waits_for_one_of_them() {
    let mut environment = fair_environment();
    (0..100_000).for_each(|_| _ = environment.admit(STANDARD, 1, ["large.example"]));
    let single = environment.admit(STANDARD, 2, ["large.example"]);
    assert!(recipients_before(&mut environment, single) <= 1);
}

#[test]
fn a_single_message_beside_bulk_mail_to_a_thousand_domains_waits_for_a_turn_or_two() {
    let mut environment = fair_environment();
    // What was ready before the sender became bulk are its single messages: one round of them.
    (0..100_000).for_each(|n| _ = environment.admit(STANDARD, 1, [format!("{}.example", n % 1000)]));
    let single = environment.admit(STANDARD, 2, ["alone.example"]);
    assert!(recipients_before(&mut environment, single) <= 1400);
    let single = environment.admit(STANDARD, 2, ["alone.example"]);
    assert!(recipients_before(&mut environment, single) <= 2);
}

#[test]
fn a_thousand_single_messages_after_bulk_mail_to_20_000_domains_arrive_within_2_seconds() {
    let mut config = config(RetryPolicy::default());
    config.queues[0].concurrency = 400;
    let mut environment = Environment::new(1, config);
    environment.admit(STANDARD, 1, (0..200_000).map(|n| format!("{}.example", n % 20_000)));
    environment.run_until(START + Duration::from_millis(500));
    let sent_at = environment.now;
    for n in 0..1000 {
        environment.admit(STANDARD, 2 + n % 10, [format!("{}.example", n * 20)]);
    }
    environment.run_until(sent_at + Duration::from_secs(2));
    let singles = &environment.mail[1..];
    assert!(singles.iter().all(|mail| mail.recipients[0].state == State::Delivered));
    let bulk = environment.mail[0].recipients.iter().filter(|known| known.state == State::Delivered).count();
    assert!((10_000..190_000).contains(&bulk), "{bulk} of the bulk mail");
    environment.run_until(START + Duration::from_secs(60));
    assert!(environment.is_resolved());
}

/// Delivers until enough recipients left; counts them by the `share` of their message.
fn shares(environment: &mut Environment, recipients: usize, share: impl Fn(u64) -> u64) -> BTreeMap<u64, usize> {
    let mut shares = BTreeMap::new();
    while shares.values().sum::<usize>() < recipients {
        let (message, count) = deliver_one(environment).expect("enough mail is queued");
        *shares.entry(share(message)).or_default() += count;
    }
    shares
}

#[test]
fn next_hops_get_equal_shares_of_recipients_whatever_the_size_of_their_messages() {
    let mut environment = fair_environment();
    for n in 0..3000 {
        environment.admit(STANDARD, 1, repeat_n(["a", "b", "c"][n % 3], [1, 7, 100][n % 3]));
    }
    let shares = shares(&mut environment, 1500, |message| message % 3);
    assert!(shares.values().all(|share| (400..=600).contains(share)), "{shares:?}");
}

#[test]
fn destinations_of_one_next_hop_get_equal_shares_and_the_next_hop_gets_one() {
    let mut environment = fair_environment();
    environment.route = |domain| domain[1..].to_owned();
    for n in 0..4000 {
        environment.admit(
            STANDARD,
            1,
            repeat_n(["a-shared", "b-shared", "c-shared", "d-alone"][n % 4], [1, 7, 60, 1][n % 4]),
        );
    }
    let shares = shares(&mut environment, 1200, |message| message % 4);
    let shared = shares[&0] + shares[&1] + shares[&2];
    assert!((500..=700).contains(&shared), "{shares:?}");
    assert!([0, 1, 2].iter().all(|n| (140..=280).contains(&shares[n])), "{shares:?}");
}

#[test]
fn bulk_senders_at_one_destination_take_turns_too() {
    let mut environment = fair_environment();
    (0..6000).for_each(|n| _ = environment.admit(STANDARD, n % 3, ["large.example"]));
    (0..3000).for_each(|_| _ = deliver_one(&mut environment));
    let shares = shares(&mut environment, 600, |message| message % 3);
    assert!(shares.values().all(|&share| share == 200), "{shares:?}");
}

#[test]
fn bulk_mail_is_not_starved_by_single_messages_that_never_end() {
    let mut environment = fair_environment();
    let bulk = environment.admit(STANDARD, 1, repeat_n("a.example", 2000));
    let mut mailed = 0;
    for n in 0..400 {
        environment.admit(STANDARD, n, ["b.example"]);
        environment.admit(STANDARD, n, ["a.example"]);
        if deliver_one(&mut environment).is_some_and(|(message, _)| message == bulk) {
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
    let mut config = config(RetryPolicy::default());
    config.policy.unrecorded_max = 1;
    let mut environment = Environment::new(1, config);
    for _ in 0..300 {
        environment.admit(STANDARD, 1, ["a.example"]);
        environment.admit(LISTS, 1, ["b.example"]);
    }
    let shares = shares(&mut environment, 200, |message| message % 2);
    assert_eq!(shares.into_values().collect::<Vec<_>>(), [100, 100]);
}

#[test]
fn no_next_hop_starves_while_new_ones_keep_coming() {
    let mut environment = fair_environment();
    for _ in 0..100 {
        environment.admit(STANDARD, 1, ["patient.example"]);
    }
    let mut left = 0;
    for n in 0..220 {
        if n % 2 == 0 {
            environment.admit(STANDARD, 2, [format!("{n}.example")]);
        }
        if deliver_one(&mut environment).is_some_and(|(message, _)| message < 100) {
            left += 1;
        }
    }
    assert_eq!(left, 100);
}
