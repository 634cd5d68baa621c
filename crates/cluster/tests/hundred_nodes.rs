//! A model of a cluster of 100 nodes on a virtual clock, with the real state machines of owners and watchers. It
//! answers what no test machine can: how many records and bytes a second the NATS servers get, how often idle
//! nodes renew, how soon the lanes of dead nodes are taken over, and how these are spread.
//!
//! The times and costs are assumptions or measurements of single servers (`docs/cluster.md` names both). The servers
//! themselves are never slow here: what they need is printed, so that it can be compared with what they have.
//!
//! `cargo test -p cluster --test hundred_nodes -- --nocapture` prints the figures that `docs/cluster.md` quotes.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use bytes::Bytes;
use cluster::lane::owner::{BatchId, Claim, LaneOwner, OwnerAction, PublishId};
use cluster::lane::watcher::{LaneWatcher, WatcherAction};
use cluster::lane::{BootTime, LaneTimes, RecordSubject, StreamTail};
use cluster::record::RecordHeader;
use sim::Random;

const NODES: usize = 100;
const MESSAGES_A_MINUTE: u64 = 1_000_000;
/// Of the spool and of the servers.
const SYNC: Duration = Duration::from_millis(2);
const STORE: Duration = Duration::from_millis(1);
/// From a node to a server; back, up to as much again by chance.
const WAY: Duration = Duration::from_micros(250);
/// From the 250 to the outcome.
const DELIVERY: Duration = Duration::from_millis(500);
/// In a batch: a message of 6,000 octets with its envelope and trace fields, and an outcome.
const MESSAGE_BYTES: usize = 6_420;
const OUTCOME_BYTES: usize = 40;
/// The operation, subject, reply subject and condition of a publish.
const PUBLISH_BYTES: u64 = 170;
/// Of three servers together: for each record, and for each of its bytes.
const RECORD_CPU: Duration = Duration::from_micros(27);
const BYTE_CPU_NS: f64 = 12.7;
/// What a node restores in a second.
const RESTORED_A_SECOND: u64 = 52_000;
const CLAIM_DELAY_PER_LANE: Duration = Duration::from_millis(100);
const CLAIM_DELAY_MAX: Duration = Duration::from_secs(1);
const CLAIM_JITTER: Duration = Duration::from_millis(100);
const IN_FLIGHT_BYTES_MAX: u64 = 8 << 20;
/// How often the state machines look at the clock.
const TICK: Duration = Duration::from_millis(5);

/// A lane with its stream and what its spool has to write.
#[derive(Default)]
struct Lane {
    owner: usize,
    last: u64,
    tail: Option<RecordHeader>,
    watchers: Vec<usize>,
    messages: usize,
    outcomes: usize,
    is_syncing: bool,
    claimed: BootTime,
}

struct Owner {
    node: usize,
    lane: usize,
    machine: LaneOwner,
    is_dead: bool,
    /// The messages of each batch that is not confirmed.
    batches: HashMap<BatchId, usize>,
}

struct Watcher {
    node: usize,
    lane: usize,
    machine: LaneWatcher,
}

#[derive(Clone, Copy, Debug, Default)]
struct Figures {
    messages: u64,
    records: u64,
    bytes: u64,
    renewals: u64,
    questions: u64,
    claims: u64,
}

type Event = Box<dyn FnOnce(&mut World)>;

#[derive(Default)]
struct World {
    now: BootTime,
    events: BTreeMap<(BootTime, u64), Event>,
    event_count: u64,
    lanes: Vec<Lane>,
    owners: Vec<Owner>,
    watchers: Vec<Watcher>,
    /// How many lanes each node has.
    owned: Vec<u32>,
    figures: Figures,
}

impl World {
    /// Each node claims its lanes within the first second.
    fn new(lanes_per_node: usize) -> World {
        let lanes = (0..NODES * lanes_per_node).map(|_| Lane::default()).collect();
        let mut world = World { lanes, owned: vec![0; NODES], ..World::default() };
        world.tick();
        for lane in 0..world.lanes.len() {
            world.run_for(Duration::from_secs(1) / (NODES * lanes_per_node) as u32);
            world.claim(lane % NODES, lane, 0);
        }
        world.run_for(Duration::from_secs(2));
        assert!(world.owned.iter().all(|owned| *owned as usize == lanes_per_node), "{:?}", world.owned);
        world
    }

    /// Returns what the servers get in this time.
    fn run_for(&mut self, span: Duration) -> Figures {
        self.figures = Figures::default();
        let end = self.now.after(span);
        while let Some(first) = self.events.first_entry().filter(|first| first.key().0 <= end) {
            self.now = first.key().0;
            first.remove()(self);
        }
        self.now = end;
        self.figures
    }

    fn after(&mut self, span: Duration, event: impl FnOnce(&mut World) + 'static) {
        self.event_count += 1;
        self.events.insert((self.now.after(span), self.event_count), Box::new(event));
    }

    /// The same in each run.
    fn by_chance(&self, most: Duration) -> Duration {
        Duration::from_nanos(Random::new(self.event_count).below(most.as_nanos() as u64))
    }

    /// All state machines look at the clock.
    fn tick(&mut self) {
        let now = self.now;
        for owner in 0..self.owners.len() {
            let machine = &mut self.owners[owner].machine;
            if machine.poll_timeout().is_some_and(|due| due <= now) {
                machine.handle_timeout(now);
                self.poll_owner(owner);
            }
        }
        for watcher in 0..self.watchers.len() {
            self.watchers[watcher].machine.handle_timeout(now);
            self.poll_watcher(watcher);
        }
        self.after(TICK, World::tick);
    }

    fn claim(&mut self, node: usize, lane: usize, last_sequence: u64) {
        let (times, epoch, name) = (LaneTimes::default(), self.owners.len() as u64 + 1, format!("mx-{node}"));
        let (node_name, announced_lease) = (name.parse().unwrap(), times.lease);
        let claim = Claim { epoch, token: epoch, node: node_name, spool_epoch: 1, last_sequence, announced_lease };
        let machine = LaneOwner::claim(times, IN_FLIGHT_BYTES_MAX, claim, self.now);
        self.owners.push(Owner { node, lane, machine, is_dead: false, batches: HashMap::new() });
        self.figures.claims += 1;
        self.poll_owner(self.owners.len() - 1);
    }

    fn poll_owner(&mut self, owner: usize) {
        while !self.owners[owner].is_dead
            && let Some(action) = self.owners[owner].machine.poll_action(self.now)
        {
            let Owner { node, lane, .. } = self.owners[owner];
            match action {
                OwnerAction::Publish { id, subject, expected_last, record } => {
                    self.after(WAY, move |world| {
                        let stored = world.store(lane, expected_last, subject, &record);
                        let way = STORE + WAY + world.by_chance(WAY);
                        world.after(way, move |world| world.answer(owner, id, stored));
                    });
                }
                OwnerAction::Confirmed { batch, .. } => self.confirm(owner, batch),
                OwnerAction::Claimed { .. } => {
                    self.owned[node] += 1;
                    (self.lanes[lane].owner, self.lanes[lane].claimed) = (owner, self.now);
                }
                OwnerAction::EpochRepeated { .. } => {}
                action => panic!("{action:?}"),
            }
        }
    }

    /// Without a sequence, another owner's record is where this one was to be: it finds that out and ends.
    fn answer(&mut self, owner: usize, id: PublishId, stored: Option<u64>) {
        self.owners[owner].is_dead |= stored.is_none();
        stored.into_iter().for_each(|sequence| self.owners[owner].machine.handle_published(id, sequence, self.now));
        self.poll_owner(owner);
    }

    fn poll_watcher(&mut self, watcher: usize) {
        while let Some(action) = self.watchers[watcher].machine.poll_action() {
            let Watcher { node, lane, .. } = self.watchers[watcher];
            match action {
                WatcherAction::ReadTail => {
                    self.figures.questions += 1;
                    self.after(WAY, move |world| world.tell(watcher, lane));
                }
                WatcherAction::MayAdopt(StreamTail { last_sequence, .. }) => {
                    let jitter = self.by_chance(CLAIM_JITTER);
                    let delay = (CLAIM_DELAY_PER_LANE * self.owned[node]).min(CLAIM_DELAY_MAX) + jitter;
                    self.after(delay + 4 * WAY, move |world| {
                        if world.lanes[lane].last == last_sequence {
                            world.claim(node, lane, last_sequence);
                        }
                    });
                }
            }
        }
    }

    /// Tells a watcher how its stream ends.
    fn tell(&mut self, watcher: usize, lane: usize) {
        let Lane { last, tail, .. } = self.lanes[lane];
        let tail = StreamTail { last_sequence: last, first_sequence: 1, record: tail };
        let way = WAY + self.by_chance(WAY);
        self.after(way, move |world| {
            world.watchers[watcher].machine.handle_tail(Ok(tail), world.now);
            world.poll_watcher(watcher);
        });
    }

    fn store(&mut self, lane: usize, expected_last: u64, subject: RecordSubject, record: &Bytes) -> Option<u64> {
        self.figures.records += 1;
        self.figures.bytes += record.len() as u64 + PUBLISH_BYTES;
        let stream = &mut self.lanes[lane];
        if stream.last != expected_last {
            return None;
        }
        stream.last += 1;
        stream.tail = Some(RecordHeader::read(record).unwrap());
        let (stored, watchers) = (stream.last, stream.watchers.clone());
        if subject == RecordSubject::Renew {
            self.figures.renewals += 1;
            for watcher in watchers {
                let way = STORE + WAY + self.by_chance(WAY);
                self.after(way, move |world| world.watchers[watcher].machine.handle_hint(world.now));
            }
        }
        Some(stored)
    }

    /// Mail comes by chance: the time between two messages has an exponential distribution.
    fn send_mail(&mut self, lane: usize, interval: Duration) {
        let chance = 1.0 - self.by_chance(Duration::from_secs(1)).as_secs_f64();
        self.after(interval.mul_f64(-chance.ln()), move |world| {
            world.send_mail(lane, interval);
            world.lanes[lane].messages += 1;
            world.write(lane);
        });
    }

    /// The writer of a lane's spool takes all that waits, unless it is syncing.
    fn write(&mut self, lane: usize) {
        let Lane { owner, messages, outcomes, is_syncing, .. } = &mut self.lanes[lane];
        if *is_syncing || *messages + *outcomes == 0 {
            return;
        }
        let (owner, messages, outcomes) = (*owner, std::mem::take(messages), std::mem::take(outcomes));
        *is_syncing = true;
        let Owner { machine, batches, .. } = &mut self.owners[owner];
        let batch = machine.start_batch(self.now);
        machine.handle_part(batch, &vec![0; messages * MESSAGE_BYTES + outcomes * OUTCOME_BYTES][..], true);
        batches.insert(batch, messages);
        self.after(SYNC, move |world| {
            world.lanes[lane].is_syncing = false;
            world.write(lane);
        });
        self.poll_owner(owner);
    }

    /// The messages of a batch are acknowledged, and will be delivered.
    fn confirm(&mut self, owner: usize, batch: BatchId) {
        let (lane, messages) = (self.owners[owner].lane, self.owners[owner].batches.remove(&batch).unwrap());
        self.figures.messages += messages as u64;
        for _ in 0..messages {
            self.after(DELIVERY, move |world| {
                world.lanes[lane].outcomes += 1;
                world.write(lane);
            });
        }
    }

    /// Kills the first nodes. Returns how long each of their lanes had no owner, and how many each survivor got.
    fn kill(&mut self, dead: usize) -> (Vec<Duration>, Vec<u32>) {
        let lanes: Vec<usize> = (0..self.lanes.len()).filter(|lane| lane % NODES < dead).collect();
        for (node, lane) in (dead..NODES).flat_map(|node| lanes.iter().map(move |lane| (node, *lane))) {
            self.lanes[lane].watchers.push(self.watchers.len());
            self.watchers.push(Watcher { node, lane, machine: LaneWatcher::new(LaneTimes::default(), self.now) });
        }
        self.run_for(Duration::from_millis(5_400));
        let (death, before) = (self.now, self.owned.clone());
        self.owners.iter_mut().for_each(|owner| owner.is_dead |= owner.node < dead);
        self.run_for(Duration::from_secs(15));
        let gaps = lanes.iter().map(|lane| self.lanes[*lane].claimed.since(death)).collect();
        (gaps, (dead..NODES).map(|node| self.owned[node] - before[node]).collect())
    }
}

#[test]
fn a_million_messages_a_minute_need_fewer_records_than_messages_and_outcomes() {
    let mut world = World::new(1);
    let idle = world.run_for(Duration::from_secs(10));
    println!("idle: {} renewals/s, {} bytes/s", idle.renewals / 10, idle.bytes / 10);
    assert!((950..=1000).contains(&idle.renewals) && idle.records <= 1_020, "{idle:?}");
    let interval = Duration::from_secs(60) * NODES as u32 / MESSAGES_A_MINUTE as u32;
    (0..NODES).for_each(|lane| world.send_mail(lane, interval));
    world.run_for(Duration::from_secs(2));
    let busy = world.run_for(Duration::from_secs(10));
    let cpu = RECORD_CPU.as_secs_f64() * busy.records as f64 + BYTE_CPU_NS * 1e-9 * busy.bytes as f64;
    let (megabytes, processors) = (busy.bytes as f64 / 1e7, cpu / 10.0);
    let (messages, records) = (busy.messages / 10, busy.records / 10);
    println!("busy: {messages} messages/s, {records} records/s, {megabytes:.0} MB/s, {processors:.2} processors");
    assert!((160_000..173_000).contains(&busy.messages), "{busy:?}");
    assert!(busy.records < 2 * busy.messages && busy.bytes < 7_000 * busy.messages, "{busy:?}");
}

#[test]
fn the_lanes_of_dead_nodes_are_soon_taken_over_and_spread() {
    for (dead, lanes) in [(1, 1), (1, 4), (10, 4)] {
        let mut world = World::new(lanes);
        let (mut gaps, got) = world.kill(dead);
        gaps.sort_unstable();
        let (first, last) = (gaps[0].as_secs_f64(), gaps[gaps.len() - 1].as_secs_f64());
        let (most, some) = (got.iter().max().unwrap(), got.iter().filter(|got| **got > 0).count());
        let hour = MESSAGES_A_MINUTE * 60 * u64::from(*most) / (NODES * lanes) as u64 / RESTORED_A_SECOND;
        let Figures { questions, claims, .. } = world.figures;
        println!("{dead} of {NODES} nodes die, with {lanes} lanes each: claimed after {first:.1} to {last:.1} s");
        println!("  {some} survivors got lanes, at most {most}; {questions} questions, {claims} claims");
        println!("  an hour of mail is in the queues {hour} s later");
        assert_eq!(got.iter().sum::<u32>() as usize, dead * lanes);
        assert!(first >= 3.0 && last < 9.0 && *most <= 4, "{gaps:?} {got:?}");
    }
}
