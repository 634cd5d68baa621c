//! Three nodes and one lane, with every fault that servers, network and clocks may have. Whatever
//! happens: what was acknowledged is in the stream until it has ended, what has ended does not come
//! back, and never may two nodes deliver. When the faults end, one node owns the lane.
//!
//! `MAILRACE_SEEDS=100000 cargo test -p cluster --test simulation` runs more of it, and
//! `MAILRACE_SEED=7` a single one.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod ledger;
mod node;
mod stream;
mod world;

use world::World;

/// Small, so that messages are copied and the stream is purged.
const SLACK_BYTES: u64 = 20_000;

const SEEDS: u64 = 200;

#[test]
fn no_acknowledged_message_is_lost_and_never_do_two_nodes_own_a_lane() {
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let seeds = match number("MAILRACE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("MAILRACE_SEEDS").unwrap_or(SEEDS),
    };
    let (mut claims, mut acknowledged, mut purged) = (0, 0, 0);
    for seed in seeds.clone() {
        let ran = std::panic::catch_unwind(|| {
            let mut world = World::new(seed);
            world.run(60, 60);
            world.check_end();
            world
        });
        let Ok(world) = ran else { panic!("seed {seed} failed: run it with MAILRACE_SEED={seed}") };
        claims += world.claims;
        acknowledged += world.acknowledged();
        purged += world.purged();
    }
    println!("{seeds:?}: {claims} claims, {acknowledged} messages acknowledged, {purged} records purged");
    assert!(claims > seeds.end - seeds.start && acknowledged > 0 && purged > 0, "the simulation does nothing");
}
