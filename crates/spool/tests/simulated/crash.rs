//! Power failures at every step. A scenario runs on a disk that fails at the first step, then at
//! the second, and so on until it completes; after each failure several crashes are simulated, and
//! what is found is checked. Recovery is tested in the same way: it must find the same, however
//! often it is interrupted.
//!
//! `SPOOL_SEED=n` runs the large scenario with one seed instead of the fixed ones.

use std::collections::BTreeSet;
use std::time::Duration;

use mail::{QueueId, Timestamp};
use sim::{OperationKind, Random};
use spool::{CommitError, Config, Durability, RecipientState};

use crate::harness::{SEED, SpoolHarness, close, config, open};
use crate::promises::{PromiseLog, RecoveredMessages};

const LATER: RecipientState = RecipientState::Waiting { attempts: 1, until: Timestamp(1_763_000_060_000) };

/// Simulated crashes after each power failure, alternately gentle and harsh; fewer where segments
/// are large.
const CRASHES: u64 = 10;
const CRASHES_OF_LARGE_SEGMENTS: u64 = 4;
/// Recovery is interrupted at each of its steps after one in this many power failures.
const RECOVERY_CRASH_EVERY: u64 = 5;
/// Recovery takes fewer steps; later steps belong to maintenance, which never ends.
const RECOVERY_STEPS_MAX: u64 = 30;

pub(crate) type Scenario = fn(&mut SpoolHarness) -> Result<(), CommitError>;

/// Runs `scenario` with a power failure at each of its steps.
pub(crate) fn crash_everywhere(config: &Config, scenario: Scenario) {
    const CRASHES_IN_PARALLEL: u64 = 16;
    let mut first = 1;
    while std::thread::scope(|scope| {
        let dies_at = |step| scope.spawn(move || crash_at(step, config, scenario));
        let deaths: Vec<_> = (first..first + CRASHES_IN_PARALLEL).map(dies_at).collect();
        deaths.into_iter().all(|death| death.join().expect("no promise was broken; see above"))
    }) {
        first += CRASHES_IN_PARALLEL;
    }
}

/// Returns false if the scenario completes before `step`.
fn crash_at(step: u64, config: &Config, scenario: Scenario) -> bool {
    let disk = sim::Disk::new(SEED);
    disk.crash_at(step);
    let (promises, given) = run_until_power_fails(&disk, config, scenario);
    let crashes = if config.segment_bytes > 64 << 10 { CRASHES_OF_LARGE_SEGMENTS } else { CRASHES };
    for seed in 0..crashes {
        let after = if seed % 2 == 0 { disk.crash(seed) } else { disk.crash_harshly(seed) };
        let story = || format!("power failure at step {step}, crash with seed {seed}; log before it:\n{}", disk.log());
        let found = verify(&after, config, &promises, &given, &story);
        if seed == 0 && step.is_multiple_of(RECOVERY_CRASH_EVERY) {
            interrupt_recovery(&disk, seed, config, &found, &story);
        }
    }
    disk.is_off()
}

fn run_until_power_fails(disk: &sim::Disk, config: &Config, scenario: Scenario) -> (PromiseLog, BTreeSet<QueueId>) {
    match SpoolHarness::open(disk, config.clone()) {
        Ok(mut harness) => {
            let result = scenario(&mut harness);
            assert!(
                result.is_ok() || disk.is_off(),
                "the scenario fails without a power failure: {result:?}\n{}",
                disk.log()
            );
            harness.close()
        }
        Err(error) => {
            assert!(disk.is_off(), "cannot open an empty disk: {error}");
            Default::default()
        }
    }
}

/// Opens a disk after a crash, twice; both must keep the promises and must not reuse an id.
fn verify(
    after: &sim::Disk,
    config: &Config,
    promises: &PromiseLog,
    given: &BTreeSet<QueueId>,
    story: &dyn Fn() -> String,
) -> RecoveredMessages {
    let fail = |what: &str| -> ! { panic!("{what}\n{}after it:\n{}", story(), after.log()) };
    let (spool, found) = open(after, config.clone()).unwrap_or_else(|error| fail(&format!("cannot open: {error}")));
    promises.check(&found).unwrap_or_else(|what| fail(&what));
    let id = spool.new_id();
    if given.contains(&id) {
        fail(&format!("{id} was reused"));
    }
    close(spool, after);
    let (spool, again) = open(after, config.clone()).unwrap_or_else(|error| fail(&format!("cannot open: {error}")));
    if again != found {
        fail("a second recovery finds other messages");
    }
    if spool.new_id() == id {
        fail(&format!("{id} was reused after an orderly stop"));
    }
    close(spool, after);
    found
}

/// Recovers from the same crash with a power failure at each step of recovery, and then once more.
fn interrupt_recovery(
    disk: &sim::Disk,
    seed: u64,
    config: &Config,
    found: &RecoveredMessages,
    story: &dyn Fn() -> String,
) {
    for step in 1..=RECOVERY_STEPS_MAX {
        let after = disk.crash(seed);
        after.crash_at(step);
        if let Ok((spool, _)) = open(&after, config.clone()) {
            close(spool, &after);
        }
        for seed in 0..3 {
            let again = after.crash_harshly(seed);
            let fail = |what: String| -> ! { panic!("{what}\nrecovery cut at step {step}, seed {seed}; {}", story()) };
            let (spool, refound) = open(&again, config.clone()).unwrap_or_else(|error| fail(error.to_string()));
            if refound != *found {
                fail("recovery is not idempotent".to_owned());
            }
            close(spool, &again);
        }
        if !after.is_off() {
            return;
        }
    }
}

#[test]
fn a_few_messages_and_their_outcomes_survive_a_crash_at_every_step() {
    crash_everywhere(&config(64 << 10), |harness| {
        let one = harness.accept(1000, 1)?;
        let two = harness.accept(5000, 3)?;
        harness.settle(two, &[(1, LATER)])?;
        harness.settle(one, &[(0, RecipientState::Delivered)])?;
        let empty = harness.accept(0, 1)?;
        harness.settle(two, &[(0, RecipientState::Delivered), (1, RecipientState::Failed)])?;
        harness.settle(empty, &[(0, LATER)])?;
        harness.settle(two, &[(2, RecipientState::Delivered)])
    });
}

#[test]
fn segments_that_rotate_and_are_used_again_give_back_no_old_mail() {
    crash_everywhere(&config(32 << 10), |harness| {
        let mut waiting = Vec::new();
        for round in 0..14 {
            waiting.push(harness.accept(3000 + 100 * round, 1)?);
            if waiting.len() > 2 {
                let id = waiting.remove(0);
                harness.settle(id, &[(0, RecipientState::Delivered)])?;
            }
        }
        Ok(())
    });
}

#[test]
fn a_bounce_and_its_outcome_are_found_together() {
    crash_everywhere(&config(64 << 10), |harness| {
        let id = harness.accept(600, 2)?;
        harness.bounce(id, 1, 9000)?;
        let other = harness.accept(600, 1)?;
        let bounce = harness.bounce(other, 0, 700)?;
        harness.settle(bounce, &[(0, RecipientState::Delivered)])
    });
}

#[test]
fn bodies_in_files_of_their_own_survive_and_are_swept() {
    crash_everywhere(&config(32 << 10), |harness| {
        let one = harness.accept_spilled(3000, 1)?;
        let two = harness.accept_spilled(1500, 2)?;
        harness.settle(one, &[(0, RecipientState::Delivered)])?;
        harness.accept(100, 1)?;
        harness.settle(two, &[(0, RecipientState::Failed)])?;
        harness.settle(two, &[(1, RecipientState::Delivered)])
    });
}

#[test]
fn survivors_that_are_copied_forward_keep_their_ids_and_outcomes() {
    crash_everywhere(&config(512 << 10), copy_forward);
}

/// Fills segments with messages that die, among two that stay live, until those were copied.
fn copy_forward(harness: &mut SpoolHarness) -> Result<(), CommitError> {
    let survivor = harness.accept(700, 3)?;
    harness.settle(survivor, &[(0, RecipientState::Delivered), (1, LATER)])?;
    let other = harness.accept_spilled(900, 1)?;
    for _ in 0..16 {
        let id = harness.accept(100_000, 1)?;
        harness.settle(id, &[(0, RecipientState::Delivered)])?;
    }
    harness.settle(survivor, &[(1, RecipientState::Failed)])?;
    for _ in 0..6 {
        let id = harness.accept(100_000, 1)?;
        harness.settle(id, &[(0, RecipientState::Delivered)])?;
    }
    let disk = harness.disk.clone();
    harness
        .wait_until("nothing is copied forward", |harness| disk.is_off() || harness.spool.stats().messages_copied >= 2);
    harness.settle(survivor, &[(2, RecipientState::Delivered)])?;
    harness.settle(other, &[(0, LATER)])
}

/// One batch of several submissions, held at its sync: every message found after a crash is
/// complete.
#[test]
fn a_torn_batch_yields_complete_messages_or_none() {
    let disk = sim::Disk::new(SEED);
    let mut harness = SpoolHarness::open(&disk, config(256 << 10)).unwrap();
    let old = harness.accept(300, 2).unwrap();
    let hold = disk.hold(OperationKind::Sync);
    let mut tickets = vec![harness.start_accept(100, 1).1];
    hold.wait_for(1);
    tickets.extend([5000, 0, 12_000, 300].map(|size| harness.start_accept(size, 2).1));
    tickets.push(harness.start_outcome(old, &[(1, RecipientState::Delivered)]));
    let crash = |harness: &SpoolHarness, seeds| {
        for seed in seeds {
            let after = if seed % 2 == 0 { disk.crash(seed) } else { disk.crash_harshly(seed) };
            let story = || format!("seed {seed}; before:\n{}", disk.log());
            verify(&after, &config(256 << 10), &harness.promises, &harness.issued_ids, &story);
        }
    };
    crash(&harness, 0..100);
    assert!(tickets.iter().all(|ticket| ticket.try_result().is_none()), "acknowledged before the sync");
    drop(hold);
    let first = tickets.remove(0);
    harness.wait(first).unwrap();
    tickets.into_iter().for_each(|ticket| harness.wait(ticket).unwrap());
    crash(&harness, 0..20);
    harness.close();
}

#[test]
fn a_restarted_spool_continues_where_it_stopped() {
    for step in (10..120).step_by(7) {
        let mut disk = sim::Disk::new(SEED);
        disk.crash_at(step);
        let config = config(32 << 10);
        let (mut promises, mut given) = run_until_power_fails(&disk, &config, churn);
        for life in 1..6 {
            disk = disk.crash_harshly(step * 10 + life);
            disk.crash_at(step + life);
            let Ok(mut harness) = SpoolHarness::reopen(&disk, config.clone(), promises.clone(), given.clone()) else {
                assert!(disk.is_off(), "cannot open run {life} after {step} steps\n{}", disk.log());
                continue;
            };
            let result = churn(&mut harness);
            assert!(result.is_ok() || disk.is_off(), "run {life}: {result:?}\n{}", disk.log());
            (promises, given) = harness.close();
        }
    }
}

/// Accepts messages, and resolves those and the ones it found.
fn churn(harness: &mut SpoolHarness) -> Result<(), CommitError> {
    for id in harness.spool.ids() {
        let recipients = harness.promises.message(id).states.len() as u32;
        harness.settle(id, &(0..recipients).map(|ordinal| (ordinal, RecipientState::Delivered)).collect::<Vec<_>>())?;
    }
    for size in [500, 4000, 900] {
        let id = harness.accept(size, 2)?;
        harness.settle(id, &[(1, RecipientState::Delivered)])?;
        harness.bounce(id, 0, 300)?;
        harness.accept_spilled(size, 1)?;
    }
    Ok(())
}

#[test]
fn a_long_random_workload_with_many_in_flight_keeps_its_promises() {
    let seeds = match std::env::var("SPOOL_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => vec![seed],
        None => (1..=12).collect::<Vec<u64>>(),
    };
    for seed in seeds {
        println!("SPOOL_SEED={seed}");
        random_workload(seed);
    }
}

fn random_workload(seed: u64) {
    let mut random = Random::new(seed);
    let config = config(random.pick(&[64 << 10, 256 << 10]));
    let disk = sim::Disk::new(seed);
    disk.crash_at(50 + random.below(400));
    if random.chance(50) {
        disk.set_short_writes();
    }
    let Ok(mut harness) = SpoolHarness::open(&disk, config.clone()) else { return };
    let (mut alive, mut tickets): (Vec<QueueId>, Vec<_>) = (Vec::new(), Vec::new());
    while !disk.is_off() {
        for _ in 0..1 + random.below(8) {
            let size = random.pick(&[0, 40, 700, 6000, 14_000]);
            let (id, ticket) = harness.start_accept(size, 1 + random.below(3) as usize);
            alive.push(id);
            tickets.push(ticket);
        }
        let refused = tickets.drain(..).filter_map(|ticket| harness.wait(ticket).err()).count();
        if refused > 0 {
            break;
        }
        while alive.len() > 6 {
            let id = alive.swap_remove(random.below(alive.len() as u64) as usize);
            let states: Vec<_> =
                (0..harness.promises.message(id).states.len() as u32).map(|o| (o, RecipientState::Delivered)).collect();
            tickets.push(harness.start_outcome(id, &states));
        }
    }
    tickets.into_iter().for_each(|ticket| drop(harness.wait(ticket)));
    let (promises, given) = harness.close();
    for crash in 0..20 {
        let story = || format!("SPOOL_SEED={seed}, crash {crash}; before:\n{}", disk.log());
        verify(&disk.crash_harshly(seed ^ (crash << 32)), &config, &promises, &given, &story);
    }
}

#[test]
fn relaxed_durability_syncs_after_its_time_and_not_before() {
    let lost = |harness: &SpoolHarness, id: QueueId| {
        (0..20).any(|seed| {
            let after = harness.disk.crash(seed);
            let (spool, found) = open(&after, config(64 << 10)).unwrap();
            close(spool, &after);
            !found.contains_key(&id)
        })
    };
    for (sync_every, is_synced) in [(Duration::from_secs(3600), false), (Duration::from_millis(20), true)] {
        let disk = sim::Disk::new(SEED);
        let durability = Durability::Relaxed { sync_every };
        let mut harness = SpoolHarness::open(&disk, Config { durability, ..config(64 << 10) }).unwrap();
        harness.accept(1000, 1).unwrap();
        harness.wait_until("no spare segment is created", |harness| harness.spool.stats().segments == 2);
        let (syncs, id) = (disk.count(OperationKind::Sync), harness.accept(3000, 1).unwrap());
        if is_synced {
            harness.wait_until("nothing is synced", |_| disk.count(OperationKind::Sync) > syncs);
            harness.wait_until("it is not durable", |harness| !lost(harness, id));
        } else {
            assert!(lost(&harness, id), "synced before its time");
        }
        harness.close();
    }
}

#[test]
fn relaxed_durability_may_lose_messages_but_never_returns_part_of_one() {
    let mut config = config(256 << 10);
    config.durability = Durability::Relaxed { sync_every: Duration::from_secs(3600) };
    let disk = sim::Disk::new(SEED);
    let mut harness = SpoolHarness::open(&disk, config.clone()).unwrap();
    let ids: Vec<_> = (0..8).map(|n| harness.accept(3000 + n, 1).unwrap()).collect();
    let given: Vec<_> = ids.iter().map(|id| harness.promises.message(*id).clone()).collect();
    for seed in 0..200 {
        let after = disk.crash(seed);
        let (spool, found) = open(&after, config.clone()).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        for (id, message) in &found {
            let place = ids.iter().position(|known| known == id).expect("it was submitted");
            assert_eq!(*message, given[place], "seed {seed}");
        }
        close(spool, &after);
    }
    harness.close();
}
