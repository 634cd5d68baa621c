//! Three nodes and one lane, with every fault that servers, network and clocks may have. Whatever
//! happens: what was acknowledged is in the stream until it has ended, what has ended does not come
//! back, and never may two nodes deliver. When the faults end, one node owns the lane.
//!
//! A second simulation has a lane whose mail comes from its first owner alone. Those who take it over
//! close it when all of its mail is finished, and delete its stream. The first owner comes back with its
//! disk, at any time: what has ended is not delivered again. A third one has a stream with a limit. In a
//! fourth one that disk may come back as it was earlier, or damaged: mail may be delivered twice then, but
//! none is lost. In a fifth one that owner begins without a stream, and acknowledges on its disk alone: what it has
//! acknowledged is copied or ends, unless the disk is thrown away before. In a sixth one, the servers lose records that
//! a purge was to leave, as version 2.9.10 does: the owner publishes them again, unless it fails before.
//!
//! `MAILRACE_SEEDS=100000 cargo test -p cluster --test simulation` runs more of it (the third and the sixth one have as few
//! as by default, in proportion), `MAILRACE_SEEDS=5000..6000` a part, and `MAILRACE_SEED=7` a single one.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod disk;
mod entries;
mod ledger;
mod local;
mod node;
mod starting;
mod stream;
mod world;

use world::{Rules, World};

/// Small, so that messages are copied and the stream is purged.
const SLACK_BYTES: u64 = 20_000;

const SEEDS: u64 = 200;
/// With a limit on the stream a seed takes twenty times as long.
const SEEDS_WITH_LIMIT: u64 = 30;
/// With lost records it takes longer, too: what is found before and after is compared each time.
const SEEDS_WITH_LOSSES: u64 = 50;

/// Less than the mail that waits.
const STREAM_BYTES_MAX: u64 = 400_000;

#[test]
fn no_acknowledged_message_is_lost_and_never_do_two_nodes_own_a_lane() {
    simulate(Rules::default(), SEEDS);
}

#[test]
fn a_lane_that_was_taken_over_and_closed_never_comes_back() {
    simulate(Rules { closes_lanes: true, ..Rules::default() }, SEEDS);
}

#[test]
fn an_owner_whose_stream_has_a_limit_keeps_its_lease() {
    simulate(Rules { stream_bytes_max: Some(STREAM_BYTES_MAX), ..Rules::default() }, SEEDS_WITH_LIMIT);
}

#[test]
fn a_disk_that_comes_back_older_or_damaged_loses_no_acknowledged_message() {
    simulate(Rules { closes_lanes: true, spoils_disks: true, ..Rules::default() }, SEEDS);
}

#[test]
fn what_a_local_lane_has_accepted_is_copied_unless_its_disk_is_thrown_away() {
    simulate(Rules { closes_lanes: true, begins_local: true, ..Rules::default() }, SEEDS);
}

#[test]
fn what_servers_lose_around_a_purge_is_published_again_unless_the_owner_fails_too() {
    simulate(Rules { loses_records: true, ..Rules::default() }, SEEDS_WITH_LOSSES);
}

/// Runs this many seeds, or those that the environment names.
fn simulate(rules: Rules, count: u64) {
    let seeds = seeds(count);
    let (mut claims, mut acknowledged, mut purged, mut closed, mut refused) = (0, 0, 0, 0, 0);
    let (mut local, mut given_up, mut mended) = (0, 0, 0);
    for seed in seeds.clone() {
        let ran = std::panic::catch_unwind(|| {
            let mut world = World::new(seed, rules);
            world.run(60, 60);
            world.check_end();
            world
        });
        let Ok(world) = ran else { panic!("seed {seed} failed: run it with MAILRACE_SEED={seed}") };
        claims += world.claims;
        acknowledged += world.acknowledged();
        purged += world.purged();
        closed += u64::from(world.is_closed());
        refused += world.refused();
        local += world.accepted_locally();
        given_up += world.given_up();
        mended += world.mended();
    }
    println!(
        "{rules:?}, {seeds:?}: {claims} claims, {acknowledged} messages acknowledged, {purged} records purged, \
         {closed} lanes closed, {refused} records refused, {local} messages accepted locally, {mended} lost by the \
         servers and published again, {given_up} lost by them and their owner, or thrown away with their disk"
    );
    assert_eq!(refused, 0, "the stream was full");
    assert!(!rules.loses_records || mended > 10 && given_up < 2 * mended, "nothing is published again");
    let does_something = claims > seeds.end - seeds.start && acknowledged > 0 && purged > 0;
    assert!(!rules.begins_local || local > 100 && given_up > 0 && given_up < local / 2, "there is no local mail");
    assert!(does_something && (!rules.closes_lanes || closed > 0), "the simulation does nothing");
}

fn seeds(count: u64) -> std::ops::Range<u64> {
    let number = |text: &str| text.parse::<u64>().unwrap();
    if let Ok(seed) = std::env::var("MAILRACE_SEED") {
        return number(&seed)..number(&seed) + 1;
    }
    let Ok(seeds) = std::env::var("MAILRACE_SEEDS") else { return 0..count };
    match seeds.split_once("..") {
        Some((first, end)) => number(first)..number(end),
        None => 0..number(&seeds) * count / SEEDS,
    }
}
