//! Power failures at every step. A scenario runs on a disk that fails at the first step, then at
//! the second, and so on until it completes; after each failure several crashes are simulated, and
//! what is found is checked. Recovery is tested in the same way: it must find the same, however
//! often it is interrupted.
//!
//! `SPOOL_SEED=n` runs the large scenario with one seed instead of the fixed ones.

use std::collections::BTreeSet;
use std::time::Duration;

use mail::{QueueId, Timestamp};
use sim::{Kind, Random};
use spool::{CommitError, Config, Durability, State};

use crate::book::{Book, Found};
use crate::rig::{Rig, SEED, close, config, open};

const LATER: State = State::Waiting { attempts: 1, until: Timestamp(1_763_000_060_000) };

/// Simulated crashes after each power failure, alternately gentle and harsh; fewer where segments
/// are large.
const CRASHES: u64 = 10;
const CRASHES_OF_LARGE_SEGMENTS: u64 = 4;
/// Recovery is interrupted at each of its steps after one in this many power failures.
const RECOVERY_EVERY: u64 = 5;
/// Recovery takes fewer steps; later steps belong to maintenance, which never ends.
const RECOVERY_STEPS_MAX: u64 = 30;

type Scenario = fn(&mut Rig) -> Result<(), CommitError>;

/// Runs `scenario` with a power failure at each of its steps.
fn crash_everywhere(config: &Config, scenario: Scenario) {
    const DEATHS_AT_ONCE: u64 = 16;
    let mut first = 1;
    while std::thread::scope(|scope| {
        let dies_at = |step| scope.spawn(move || crash_at(step, config, scenario));
        let deaths: Vec<_> = (first..first + DEATHS_AT_ONCE).map(dies_at).collect();
        deaths.into_iter().all(|death| death.join().expect("no promise was broken; see above"))
    }) {
        first += DEATHS_AT_ONCE;
    }
}

/// Returns false if the scenario completes before `step`.
fn crash_at(step: u64, config: &Config, scenario: Scenario) -> bool {
    let disk = sim::Disk::new(SEED);
    disk.crash_at(step);
    let (book, given) = live_until_death(&disk, config, scenario);
    let crashes = if config.segment_bytes > 64 << 10 { CRASHES_OF_LARGE_SEGMENTS } else { CRASHES };
    for seed in 0..crashes {
        let after = if seed % 2 == 0 { disk.crash(seed) } else { disk.crash_harshly(seed) };
        let story = || format!("power failure at step {step}, crash with seed {seed}; log before it:\n{}", disk.log());
        let found = verify(&after, config, &book, &given, &story);
        if seed == 0 && step.is_multiple_of(RECOVERY_EVERY) {
            cut_recovery_short(&disk, seed, config, &found, &story);
        }
    }
    disk.is_off()
}

fn live_until_death(disk: &sim::Disk, config: &Config, scenario: Scenario) -> (Book, BTreeSet<QueueId>) {
    match Rig::open(disk, config.clone()) {
        Ok(mut rig) => {
            let result = scenario(&mut rig);
            assert!(
                result.is_ok() || disk.is_off(),
                "the scenario fails without a power failure: {result:?}\n{}",
                disk.log()
            );
            rig.close()
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
    book: &Book,
    given: &BTreeSet<QueueId>,
    story: &dyn Fn() -> String,
) -> Found {
    let fail = |what: &str| -> ! { panic!("{what}\n{}after it:\n{}", story(), after.log()) };
    let (spool, found) = open(after, config.clone()).unwrap_or_else(|error| fail(&format!("cannot open: {error}")));
    book.check(&found).unwrap_or_else(|what| fail(&what));
    let id = spool.begin();
    if given.contains(&id) {
        fail(&format!("{id} was reused"));
    }
    close(spool, after);
    let (spool, again) = open(after, config.clone()).unwrap_or_else(|error| fail(&format!("cannot open: {error}")));
    if again != found {
        fail("a second recovery finds other messages");
    }
    if spool.begin() == id {
        fail(&format!("{id} was reused after an orderly stop"));
    }
    close(spool, after);
    found
}

/// Recovers from the same crash with a power failure at each step of recovery, and then once more.
fn cut_recovery_short(disk: &sim::Disk, seed: u64, config: &Config, found: &Found, story: &dyn Fn() -> String) {
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
    crash_everywhere(&config(64 << 10), |rig| {
        let one = rig.accept(1000, 1)?;
        let two = rig.accept(5000, 3)?;
        rig.settle(two, &[(1, LATER)])?;
        rig.settle(one, &[(0, State::Delivered)])?;
        let empty = rig.accept(0, 1)?;
        rig.settle(two, &[(0, State::Delivered), (1, State::Failed)])?;
        rig.settle(empty, &[(0, LATER)])?;
        rig.settle(two, &[(2, State::Delivered)])
    });
}

#[test]
fn segments_that_rotate_and_are_used_again_give_back_no_old_mail() {
    crash_everywhere(&config(32 << 10), |rig| {
        let mut waiting = Vec::new();
        for round in 0..14 {
            waiting.push(rig.accept(3000 + 100 * round, 1)?);
            if waiting.len() > 2 {
                let id = waiting.remove(0);
                rig.settle(id, &[(0, State::Delivered)])?;
            }
        }
        Ok(())
    });
}

#[test]
fn a_bounce_and_its_outcome_are_found_together() {
    crash_everywhere(&config(64 << 10), |rig| {
        let id = rig.accept(600, 2)?;
        rig.bounce(id, 1, 9000)?;
        let other = rig.accept(600, 1)?;
        let bounce = rig.bounce(other, 0, 700)?;
        rig.settle(bounce, &[(0, State::Delivered)])
    });
}

#[test]
fn bodies_in_files_of_their_own_survive_and_are_swept() {
    crash_everywhere(&config(32 << 10), |rig| {
        let one = rig.accept_spilled(3000, 1)?;
        let two = rig.accept_spilled(1500, 2)?;
        rig.settle(one, &[(0, State::Delivered)])?;
        rig.accept(100, 1)?;
        rig.settle(two, &[(0, State::Failed)])?;
        rig.settle(two, &[(1, State::Delivered)])
    });
}

#[test]
fn survivors_that_are_copied_forward_keep_their_ids_and_outcomes() {
    crash_everywhere(&config(512 << 10), copy_forward);
}

/// Fills segments with messages that die, among two that stay live, until those were copied.
fn copy_forward(rig: &mut Rig) -> Result<(), CommitError> {
    let survivor = rig.accept(700, 3)?;
    rig.settle(survivor, &[(0, State::Delivered), (1, LATER)])?;
    let other = rig.accept_spilled(900, 1)?;
    for _ in 0..16 {
        let id = rig.accept(100_000, 1)?;
        rig.settle(id, &[(0, State::Delivered)])?;
    }
    rig.settle(survivor, &[(1, State::Failed)])?;
    for _ in 0..6 {
        let id = rig.accept(100_000, 1)?;
        rig.settle(id, &[(0, State::Delivered)])?;
    }
    let disk = rig.disk.clone();
    rig.wait_until("nothing is copied forward", |rig| disk.is_off() || rig.spool.stats().messages_copied >= 2);
    rig.settle(survivor, &[(2, State::Delivered)])?;
    rig.settle(other, &[(0, LATER)])
}

/// One batch of several submissions, held at its sync: every message found after a crash is
/// complete.
#[test]
fn a_torn_batch_gives_whole_messages_or_none() {
    let disk = sim::Disk::new(SEED);
    let mut rig = Rig::open(&disk, config(256 << 10)).unwrap();
    let old = rig.accept(300, 2).unwrap();
    let hold = disk.hold(Kind::Sync);
    let mut tickets = vec![rig.offer(100, 1).1];
    hold.wait_for(1);
    tickets.extend([5000, 0, 12_000, 300].map(|size| rig.offer(size, 2).1));
    tickets.push(rig.offer_outcome(old, &[(1, State::Delivered)]));
    let crash = |rig: &Rig, seeds| {
        for seed in seeds {
            let after = if seed % 2 == 0 { disk.crash(seed) } else { disk.crash_harshly(seed) };
            let story = || format!("seed {seed}; before:\n{}", disk.log());
            verify(&after, &config(256 << 10), &rig.book, &rig.given, &story);
        }
    };
    crash(&rig, 0..100);
    assert!(tickets.iter().all(|ticket| ticket.answer_now().is_none()), "acknowledged before the sync");
    drop(hold);
    let first = tickets.remove(0);
    rig.wait(first).unwrap();
    tickets.into_iter().for_each(|ticket| rig.wait(ticket).unwrap());
    crash(&rig, 0..20);
    rig.close();
}

#[test]
fn a_second_life_goes_on_where_the_first_one_ended() {
    for step in (10..120).step_by(7) {
        let mut disk = sim::Disk::new(SEED);
        disk.crash_at(step);
        let config = config(32 << 10);
        let (mut book, mut given) = live_until_death(&disk, &config, churn);
        for life in 1..6 {
            disk = disk.crash_harshly(step * 10 + life);
            disk.crash_at(step + life);
            let Ok(mut rig) = Rig::reopen(&disk, config.clone(), book.clone(), given.clone()) else {
                assert!(disk.is_off(), "cannot open run {life} after {step} steps\n{}", disk.log());
                continue;
            };
            let result = churn(&mut rig);
            assert!(result.is_ok() || disk.is_off(), "run {life}: {result:?}\n{}", disk.log());
            (book, given) = rig.close();
        }
    }
}

/// Accepts messages, and resolves those and the ones it found.
fn churn(rig: &mut Rig) -> Result<(), CommitError> {
    for id in rig.spool.ids() {
        let recipients = rig.book.letter(id).states.len() as u32;
        rig.settle(id, &(0..recipients).map(|ordinal| (ordinal, State::Delivered)).collect::<Vec<_>>())?;
    }
    for size in [500, 4000, 900] {
        let id = rig.accept(size, 2)?;
        rig.settle(id, &[(1, State::Delivered)])?;
        rig.bounce(id, 0, 300)?;
        rig.accept_spilled(size, 1)?;
    }
    Ok(())
}

#[test]
fn a_long_random_life_with_many_in_flight_keeps_its_promises() {
    let seeds = match std::env::var("SPOOL_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => vec![seed],
        None => (1..=12).collect::<Vec<u64>>(),
    };
    for seed in seeds {
        println!("SPOOL_SEED={seed}");
        random_life(seed);
    }
}

fn random_life(seed: u64) {
    let mut random = Random::new(seed);
    let config = config(random.pick(&[64 << 10, 256 << 10]));
    let disk = sim::Disk::new(seed);
    disk.crash_at(50 + random.below(400));
    if random.chance(50) {
        disk.set_short_writes();
    }
    let Ok(mut rig) = Rig::open(&disk, config.clone()) else { return };
    let (mut alive, mut tickets): (Vec<QueueId>, Vec<_>) = (Vec::new(), Vec::new());
    while !disk.is_off() {
        for _ in 0..1 + random.below(8) {
            let size = random.pick(&[0, 40, 700, 6000, 14_000]);
            let (id, ticket) = rig.offer(size, 1 + random.below(3) as usize);
            alive.push(id);
            tickets.push(ticket);
        }
        let refused = tickets.drain(..).filter_map(|ticket| rig.wait(ticket).err()).count();
        if refused > 0 {
            break;
        }
        while alive.len() > 6 {
            let id = alive.swap_remove(random.below(alive.len() as u64) as usize);
            let states: Vec<_> = (0..rig.book.letter(id).states.len() as u32).map(|o| (o, State::Delivered)).collect();
            tickets.push(rig.offer_outcome(id, &states));
        }
    }
    tickets.into_iter().for_each(|ticket| drop(rig.wait(ticket)));
    let (book, given) = rig.close();
    for crash in 0..20 {
        let story = || format!("SPOOL_SEED={seed}, crash {crash}; before:\n{}", disk.log());
        verify(&disk.crash_harshly(seed ^ (crash << 32)), &config, &book, &given, &story);
    }
}

#[test]
fn relaxed_durability_may_lose_mail_but_never_gives_part_of_it() {
    let mut config = config(256 << 10);
    config.durability = Durability::Relaxed { sync_every: Duration::from_secs(3600) };
    let disk = sim::Disk::new(SEED);
    let mut rig = Rig::open(&disk, config.clone()).unwrap();
    let ids: Vec<_> = (0..8).map(|n| rig.accept(3000 + n, 1).unwrap()).collect();
    let given: Vec<_> = ids.iter().map(|id| rig.book.letter(*id).clone()).collect();
    for seed in 0..200 {
        let after = disk.crash(seed);
        let (spool, found) = open(&after, config.clone()).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        for (id, letter) in &found {
            let place = ids.iter().position(|known| known == id).expect("it was submitted");
            assert_eq!(*letter, given[place], "seed {seed}");
        }
        close(spool, &after);
    }
    rig.close();
}
