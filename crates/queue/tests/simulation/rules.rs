//! Random simulations, compared with the model at every step: everything resolves within the rules.

use std::time::Duration;

use mail::{Rate, Timestamp};
use proptest::prelude::*;
use queue::{NextHopLimits, OperatorAction, PauseTarget, QueueNumber};

use crate::environment::*;

/// Peers of every kind, six domains at three next hops.
fn random_environment(seed: u64) -> Environment {
    let mut config = config(short_retry());
    let mut random = Random(seed ^ 1);
    for queue in &mut config.queues {
        queue.concurrency = 1 + random.below(12) as usize;
    }
    config.policy.bulk_above = random.below(30) as usize;
    config.policy.unrecorded_max = 1 + random.below(50) as usize;
    let mut environment = Environment::new(seed, config);
    environment.route = |domain| format!("mx{}", domain.len() % 3);
    environment.checks = true;
    environment.route_time = Duration::from_secs([0, 1, 20, 200][random.below(4) as usize]);
    environment.answer_time = Duration::from_millis([0, 0, 30, 20_000][random.below(4) as usize]);
    (environment.deferred_of_100, environment.failed_of_100) = (30, 5);
    for name in ["mx0", "mx1", "mx2"] {
        let peer = Peer {
            time: Duration::from_millis([50, 2000, 15_000, 40_000][random.below(4) as usize]),
            down_until: START + Duration::from_secs([0, 0, 100, 700][random.below(4) as usize]),
            breaks_until: START + Duration::from_secs([0, 0, 0, 200, 800][random.below(5) as usize]),
            most: [1, 3, usize::MAX][random.below(3) as usize],
        };
        environment.peers.insert(name.into(), peer);
    }
    environment.poison = [|_| false, |message| message % 5 == 4, |message| message % 2 == 0][random.below(3) as usize];
    if random.below(3) == 0 {
        environment.limits.rate = Some(Rate { count: 1 + random.below(30) as u32, per: Duration::from_secs(10) });
    }
    environment
}

fn admit_random(environment: &mut Environment) {
    let (queue, sender) = (QueueNumber(environment.random.below(3) as u16), environment.random.below(4));
    let count =
        if environment.random.below(10) == 0 { environment.random.below(40) } else { 1 + environment.random.below(2) };
    let domains: Vec<String> = (0..count).map(|_| "x".repeat(1 + environment.random.below(6) as usize)).collect();
    environment.admit(queue, sender, domains);
}

/// An action on about half of the recipients it applies to.
fn act(environment: &mut Environment, act: OperatorAction) {
    let (now, salt) = (environment.now, environment.random.next());
    let chosen =
        |entry: &queue::RecipientView| Random(salt ^ entry.id.sequence() ^ u64::from(entry.ordinal)).below(2) == 0;
    environment.queues.pick_recipients_for_action(act, now, 0..u32::MAX, &mut { chosen });
}

/// Pauses this queue, a next hop or a destination, for some time or until it is resumed.
fn pause_random(environment: &mut Environment, queue: QueueNumber) {
    let (now, random) = (environment.now, &mut environment.random);
    let target = match random.below(3) {
        0 => PauseTarget::Queue(queue),
        1 => PauseTarget::NextHop(format!("mx{}", random.below(3)).into()),
        _ => PauseTarget::Destination("x".repeat(1 + random.below(6) as usize).into()),
    };
    let until = (random.below(2) == 0).then(|| now + Duration::from_secs(random.below(600)));
    environment.queues.pause(now, target, until).expect("few pauses are in force");
}

fn resume_all(environment: &mut Environment) {
    let paused: Vec<PauseTarget> = environment.queues.pause_views().map(|(target, _)| target.clone()).collect();
    let now = environment.now;
    paused.iter().for_each(|target| assert!(environment.queues.resume(now, target)));
}

fn is_empty(environment: &Environment) -> bool {
    let queues = &environment.queues;
    (queues.recipient_count(), queues.message_count(), queues.destination_count(), queues.unrecorded_attempts())
        == (0, 0, 0, 0)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// MessageModel arrives, peers fail and recover, queues are paused, everything is stopped for
    /// some time, the operator acts.
    #[test]
    fn everything_resolves_within_the_rules(seed: u64) {
        let mut environment = random_environment(seed);
        for _ in 0..40 {
            admit_random(&mut environment);
            let (queue, dice) = (QueueNumber(environment.random.below(3) as u16), environment.random.below(12));
            match dice {
                0 => pause_random(&mut environment, queue),
                1 => resume_all(&mut environment),
                2 | 3 => environment.queues.set_stopped(dice == 2),
                4..=6 => act(&mut environment, [OperatorAction::Hold, OperatorAction::Release, OperatorAction::Retry][dice as usize - 4]),
                7 if environment.random.below(4) == 0 => act(&mut environment, OperatorAction::Remove),
                _ => {}
            }
            for _ in 0..environment.random.below(6) {
                environment.step();
            }
        }
        resume_all(&mut environment);
        environment.queues.set_stopped(false);
        // A hold that is not recorded yet does not count.
        environment.start_attempts();
        let now = environment.now;
        environment.queues.pick_recipients_for_action(OperatorAction::Release, now, 0..u32::MAX, &mut |_| true);
        environment.run();
        prop_assert!(environment.is_resolved());
        prop_assert!(is_empty(&environment));
    }

    /// A recipient that is always deferred fails at the end of its lifetime: not earlier, and at
    /// most one attempt later.
    #[test]
    fn a_recipient_that_never_succeeds_fails_at_the_end_of_its_lifetime(seed: u64) {
        let mut environment = Environment::new(seed, config(short_retry()));
        (environment.limits, environment.deferred_of_100, environment.checks) = (unlimited(), 100, true);
        (0..20).for_each(|_| admit_random(&mut environment));
        environment.run();
        prop_assert!(environment.is_resolved());
        let late = environment.now.since(START + short_retry().lifetime);
        prop_assert!(late <= Duration::from_secs(5), "{late:?}");
    }

    /// MessageModel for a next hop that never comes back fails in time, although most of it is
    /// never tried.
    #[test]
    fn a_recipient_whose_next_hop_is_down_fails_at_the_end_of_its_lifetime(seed: u64) {
        let mut environment = Environment::new(seed, config(short_retry()));
        environment.route = |_| "mx".to_owned();
        environment.peers.insert("mx".into(), Peer { down_until: Timestamp(u64::MAX), ..Peer::default() });
        environment.checks = true;
        (0..20).for_each(|_| admit_random(&mut environment));
        environment.run();
        prop_assert!(environment.is_resolved());
        let late = environment.now.since(START + short_retry().lifetime);
        prop_assert!(late <= Duration::from_secs(5), "{late:?}");
        // 900 seconds: three failures, and probes after 1, 2, 4, 8 minutes.
        prop_assert!(environment.departures.len() <= 3 + 4, "{} attempts", environment.departures.len());
    }

    /// The process restarts between attempts; the outcome of the mail is the same as without the
    /// restart.
    #[test]
    fn a_restart_between_attempts_changes_nothing(seed: u64, steps in 0usize..60) {
        let attempt_log = |restart: bool| {
            let mut environment = Environment::new(seed, config(short_retry()));
            (environment.deferred_of_100, environment.failed_of_100, environment.checks) = (30, 5, true);
            (environment.limits, environment.peers) = (unlimited(), Default::default());
            (0..20).for_each(|_| admit_random(&mut environment));
            (0..steps).for_each(|_| _ = environment.step());
            while restart && !environment.is_quiet() {
                environment.step();
            }
            if restart {
                environment.restart();
            }
            environment.run();
            assert!(environment.is_resolved());
            let outcome = |mail: &MessageModel| mail.recipients.iter().map(|known| (known.state, known.attempts)).collect();
            environment.mail.iter().map(outcome).collect::<Vec<Vec<_>>>()
        };
        prop_assert_eq!(attempt_log(false), attempt_log(true));
    }

    /// A crash with attempts in flight repeats those and loses nothing.
    #[test]
    fn a_crash_loses_no_recipient(seed: u64, steps in 0usize..200) {
        let mut environment = random_environment(seed);
        (0..30).for_each(|_| admit_random(&mut environment));
        (0..steps).for_each(|_| _ = environment.step());
        environment.restart();
        environment.run();
        prop_assert!(environment.is_resolved());
    }

    /// First attempts at one destination leave in the order of admission, sender by sender.
    #[test]
    fn order_holds_within_a_sender(seed: u64, most in 1usize..8) {
        let mut environment = random_environment(seed);
        environment.limits = NextHopLimits::default();
        environment.limits.concurrency.max = most;
        let mut first = Vec::new();
        for _ in 0..80 {
            let sender = environment.random.below(3);
            first.push(environment.admit(STANDARD, sender, ["one"]));
            (0..environment.random.below(3)).for_each(|_| _ = environment.step());
        }
        // Only attempts from before the first deferral: refusals are not departures.
        environment.peers.values_mut().for_each(|peer| (peer.down_until, peer.breaks_until) = (START, START));
        environment.poison = |_| false;
        environment.run();
        for sender in 0..3 {
            let mut seen = Vec::new();
            for departure in &environment.departures {
                let is_own = environment.mail[departure.message as usize].sender == sender;
                if is_own && !seen.contains(&departure.message) {
                    seen.push(departure.message);
                }
            }
            let refused = environment.attempt_log.iter().any(|(_, verdict)| verdict.contains("no connection") || verdict.contains("connection lost"));
            prop_assert!(refused || seen.is_sorted(), "{seen:?}");
        }
    }

    /// No time span has more attempts than the burst plus its share, whatever the order of arrival.
    #[test]
    fn a_rate_is_never_exceeded(seed: u64, messages in 1u32..40, seconds in 1u64..20) {
        let mut environment = random_environment(seed);
        let rate = Rate { count: messages, per: Duration::from_secs(seconds) };
        environment.limits.rate = Some(rate);
        for _ in 0..40 {
            admit_random(&mut environment);
            (0..environment.random.below(8)).for_each(|_| _ = environment.step());
        }
        environment.run();
        let per_second = f64::from(messages) / seconds as f64;
        let burst = per_second.floor().max(1.0);
        for name in ["mx0", "mx1", "mx2"] {
            let times: Vec<_> = environment.departures.iter().filter(|d| d.next_hop == name).map(|d| d.at).collect();
            for (place, &from) in times.iter().enumerate() {
                for (count, &to) in (1u32..).zip(&times[place..]) {
                    // One millisecond, because the clock has whole ones.
                    let allowed = burst + (to.since(from).as_secs_f64() + 0.001) * per_second;
                    prop_assert!(f64::from(count) <= allowed + 1e-6, "{count} in {:?}", to.since(from));
                }
            }
        }
    }
}
