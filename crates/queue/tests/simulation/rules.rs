//! Random simulations, compared with the model at every step: everything resolves within the rules.

use std::time::Duration;

use mail::Timestamp;
use proptest::prelude::*;
use queue::{Act, Limits, QueueNumber, Rate};

use crate::world::*;

/// Peers of every kind, six domains at three next hops.
fn random_world(seed: u64) -> World {
    let mut config = config(brisk());
    let mut random = Random(seed ^ 1);
    for queue in &mut config.queues {
        queue.concurrency = 1 + random.below(12) as usize;
    }
    config.mailing_above = random.below(30) as usize;
    config.unrecorded_max = 1 + random.below(50) as usize;
    let mut world = World::new(seed, config);
    world.route = |domain| format!("mx{}", domain.len() % 3);
    world.checks = true;
    world.route_time = Duration::from_secs([0, 1, 20, 200][random.below(4) as usize]);
    world.answer_time = Duration::from_millis([0, 0, 30, 20_000][random.below(4) as usize]);
    (world.deferred_of_100, world.failed_of_100) = (30, 5);
    for name in ["mx0", "mx1", "mx2"] {
        let peer = Peer {
            time: Duration::from_millis([50, 2000, 15_000, 40_000][random.below(4) as usize]),
            down_until: START + Duration::from_secs([0, 0, 100, 700][random.below(4) as usize]),
            breaks_until: START + Duration::from_secs([0, 0, 0, 200, 800][random.below(5) as usize]),
            most: [1, 3, usize::MAX][random.below(3) as usize],
        };
        world.peers.insert(name.into(), peer);
    }
    world.poison = [|_| false, |message| message % 5 == 4, |message| message % 2 == 0][random.below(3) as usize];
    if random.below(3) == 0 {
        world.limits.rate = Some(Rate { messages: 1 + random.below(30) as u32, per: Duration::from_secs(10) });
    }
    world
}

fn admit_random(world: &mut World) {
    let (queue, sender) = (QueueNumber(world.random.below(3) as u16), world.random.below(4));
    let count = if world.random.below(10) == 0 { world.random.below(40) } else { 1 + world.random.below(2) };
    let domains: Vec<String> = (0..count).map(|_| "x".repeat(1 + world.random.below(6) as usize)).collect();
    world.admit(queue, sender, domains);
}

/// An action on about half of the recipients it applies to.
fn act(world: &mut World, act: Act) {
    let (now, salt) = (world.now, world.random.next());
    let chosen = |entry: &queue::Entry| Random(salt ^ entry.id.sequence() ^ u64::from(entry.ordinal)).below(2) == 0;
    world.queues.pick(act, now, &mut { chosen });
}

fn is_empty(world: &World) -> bool {
    let queues = &world.queues;
    (queues.len(), queues.messages(), queues.destinations(), queues.unrecorded()) == (0, 0, 0, 0)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// Mail arrives, peers fail and recover, queues are paused, everything is stopped for some
    /// time, the operator acts.
    #[test]
    fn everything_resolves_within_the_rules(seed: u64) {
        let mut world = random_world(seed);
        for _ in 0..40 {
            admit_random(&mut world);
            let (queue, dice) = (QueueNumber(world.random.below(3) as u16), world.random.below(12));
            match dice {
                0 | 1 => world.queues.pause(queue, dice == 0),
                2 | 3 => world.queues.set_stopped(dice == 2),
                4..=6 => act(&mut world, [Act::Hold, Act::Release, Act::Retry][dice as usize - 4]),
                7 if world.random.below(4) == 0 => act(&mut world, Act::Remove),
                _ => {}
            }
            for _ in 0..world.random.below(6) {
                world.step();
            }
        }
        (0..3).for_each(|queue| world.queues.pause(QueueNumber(queue), false));
        world.queues.set_stopped(false);
        // A hold that is not recorded yet does not count.
        world.start_attempts();
        let now = world.now;
        world.queues.pick(Act::Release, now, &mut |_| true);
        world.run();
        prop_assert!(world.is_resolved());
        prop_assert!(is_empty(&world));
    }

    /// A recipient that is always deferred fails at the end of its lifetime: not earlier, and at
    /// most one attempt later.
    #[test]
    fn what_never_succeeds_ends_with_its_lifetime(seed: u64) {
        let mut world = World::new(seed, config(brisk()));
        (world.limits, world.deferred_of_100, world.checks) = (wide(), 100, true);
        (0..20).for_each(|_| admit_random(&mut world));
        world.run();
        prop_assert!(world.is_resolved());
        let late = world.now.since(START + brisk().lifetime);
        prop_assert!(late <= Duration::from_secs(5), "{late:?}");
    }

    /// Mail for a next hop that never comes back fails in time, although most of it is never tried.
    #[test]
    fn what_nobody_takes_ends_with_its_lifetime(seed: u64) {
        let mut world = World::new(seed, config(brisk()));
        world.route = |_| "mx".to_owned();
        world.peers.insert("mx".into(), Peer { down_until: Timestamp(u64::MAX), ..Peer::default() });
        world.checks = true;
        (0..20).for_each(|_| admit_random(&mut world));
        world.run();
        prop_assert!(world.is_resolved());
        let late = world.now.since(START + brisk().lifetime);
        prop_assert!(late <= Duration::from_secs(5), "{late:?}");
        // 900 seconds: three failures, and probes after 1, 2, 4, 8 minutes.
        prop_assert!(world.departures.len() <= 3 + 4, "{} attempts", world.departures.len());
    }

    /// The process restarts between attempts; the outcome of the mail is the same as without the
    /// restart.
    #[test]
    fn a_restart_between_attempts_changes_nothing(seed: u64, steps in 0usize..60) {
        let story = |restart: bool| {
            let mut world = World::new(seed, config(brisk()));
            (world.deferred_of_100, world.failed_of_100, world.checks) = (30, 5, true);
            (world.limits, world.peers) = (wide(), Default::default());
            (0..20).for_each(|_| admit_random(&mut world));
            (0..steps).for_each(|_| _ = world.step());
            while restart && !world.is_quiet() {
                world.step();
            }
            if restart {
                world.restart();
            }
            world.run();
            assert!(world.is_resolved());
            let outcome = |mail: &Mail| mail.recipients.iter().map(|known| (known.state, known.attempts)).collect();
            world.mail.iter().map(outcome).collect::<Vec<Vec<_>>>()
        };
        prop_assert_eq!(story(false), story(true));
    }

    /// A crash with attempts in flight repeats those and loses nothing.
    #[test]
    fn a_crash_loses_nobody(seed: u64, steps in 0usize..200) {
        let mut world = random_world(seed);
        (0..30).for_each(|_| admit_random(&mut world));
        (0..steps).for_each(|_| _ = world.step());
        world.restart();
        world.run();
        prop_assert!(world.is_resolved());
    }

    /// First attempts at one destination leave in the order of admission, sender by sender.
    #[test]
    fn order_holds_within_a_sender(seed: u64, most in 1usize..8) {
        let mut world = random_world(seed);
        world.limits = Limits::default();
        world.limits.concurrency.most = most;
        let mut first = Vec::new();
        for _ in 0..80 {
            let sender = world.random.below(3);
            first.push(world.admit(STANDARD, sender, ["one"]));
            (0..world.random.below(3)).for_each(|_| _ = world.step());
        }
        // Only attempts from before the first deferral: refusals are not departures.
        world.peers.values_mut().for_each(|peer| (peer.down_until, peer.breaks_until) = (START, START));
        world.poison = |_| false;
        world.run();
        for sender in 0..3 {
            let mut seen = Vec::new();
            for departure in &world.departures {
                let is_own = world.mail[departure.message as usize].sender == sender;
                if is_own && !seen.contains(&departure.message) {
                    seen.push(departure.message);
                }
            }
            let refused = world.story.iter().any(|(_, verdict)| verdict.contains("no connection") || verdict.contains("connection lost"));
            prop_assert!(refused || seen.is_sorted(), "{seen:?}");
        }
    }

    /// No time span has more attempts than the burst plus its share, whatever the order of arrival.
    #[test]
    fn a_rate_is_never_exceeded(seed: u64, messages in 1u32..40, seconds in 1u64..20) {
        let mut world = random_world(seed);
        let rate = Rate { messages, per: Duration::from_secs(seconds) };
        world.limits.rate = Some(rate);
        for _ in 0..40 {
            admit_random(&mut world);
            (0..world.random.below(8)).for_each(|_| _ = world.step());
        }
        world.run();
        let per_second = f64::from(messages) / seconds as f64;
        let burst = per_second.floor().max(1.0);
        for name in ["mx0", "mx1", "mx2"] {
            let times: Vec<_> = world.departures.iter().filter(|d| d.next_hop == name).map(|d| d.at).collect();
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
