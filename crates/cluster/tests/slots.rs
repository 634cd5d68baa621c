//! Nodes that share the concurrency of a next hop, on a virtual clock: changes of the table are stored
//! late or not at all, their answers are lost, tables are read late, one node starts again and one is gone
//! for ever. Older servers store changes of the same revision one after the other.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::VecDeque;
use std::time::Duration;

use cluster::slots::{ClusterView, HopSlots, SlotTable, SlotUse, SlotWrite, WriteOutcome};

const STEP: Duration = Duration::from_millis(20);
const END: Duration = Duration::from_secs(240);
const DELAY_MS_MAX: u64 = 200;
/// Where servers store two changes of a revision, which have to be on their way at the same time.
const DELAY_MS_MAX_OLD: u64 = 60;
const IN_FLIGHT_MAX: Duration = Duration::from_millis(20);
/// A change that hangs on its way, and how long a node waits for the answer.
const LONG_DELAY: Duration = Duration::from_secs(3);
const ANSWER_TIME_MAX: Duration = Duration::from_secs(2);
/// How long a connection stays open after its last attempt.
const IDLE: Duration = Duration::from_secs(1);
const ATTEMPT_MS_MAX: u64 = 3000;
/// The node that starts again, and the one that is gone.
const RESTARTED: usize = 0;
const RESTART_AT: Duration = Duration::from_secs(70);
const GONE: usize = 1;
const GONE_AT: Duration = Duration::from_secs(100);
/// How long mail may wait for its first attempt: the slots of a node that is gone are free after 30 s.
const WAIT_MAX: Duration = Duration::from_secs(45);
/// Where there are fewer slots than nodes.
const WAIT_MAX_FEW: Duration = Duration::from_secs(110);

struct Node {
    name: String,
    slots: HopSlots,
    /// What its queues know of what is granted.
    granted: u32,
    /// When attempts end, and when idle connections are closed.
    attempts: Vec<Duration>,
    idle: Vec<Duration>,
    wanted: u32,
    wants_until: Duration,
    waits_since: Option<Duration>,
    tables: VecDeque<(Duration, u64, SlotTable)>,
    /// When the answer to its change of this number comes, and which.
    answer: Option<(Duration, u64, WriteOutcome)>,
    is_gone: bool,
}

impl Node {
    fn connections(&self) -> u32 {
        u32::try_from(self.attempts.len() + self.idle.len()).unwrap()
    }
}

/// A change on its way.
struct Write {
    arrival: Duration,
    node: usize,
    number: u64,
    change: SlotWrite,
    is_answer_lost: bool,
}

struct Simulation {
    random: u64,
    now: Duration,
    limit: u32,
    view: ClusterView,
    nodes: Vec<Node>,
    revision: u64,
    table: SlotTable,
    stored_at: Duration,
    has_old_servers: bool,
    writes: Vec<Write>,
    written: u64,
    stored: u64,
    most: u32,
    used: u64,
}

impl Simulation {
    fn new(seed: u64, limit: u32, nodes: u32) -> Simulation {
        let node = |number: u32| Node {
            name: number.to_string(),
            slots: HopSlots::new(&number.to_string(), u64::from(number) << 32),
            granted: 0,
            attempts: Vec::new(),
            idle: Vec::new(),
            wanted: 0,
            wants_until: Duration::ZERO,
            waits_since: None,
            tables: VecDeque::new(),
            answer: None,
            is_gone: false,
        };
        Simulation {
            random: seed,
            now: Duration::ZERO,
            limit,
            view: ClusterView { nodes, is_connected: true, is_counted: true },
            nodes: (0..nodes).map(node).collect(),
            revision: 0,
            table: SlotTable::default(),
            stored_at: Duration::ZERO,
            has_old_servers: false,
            writes: Vec::new(),
            written: 0,
            stored: 0,
            most: 0,
            used: 0,
        }
    }

    fn random(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % below
    }

    fn delay(&mut self) -> Duration {
        match self.random(100) {
            _ if self.has_old_servers => Duration::from_millis(self.random(DELAY_MS_MAX_OLD)),
            0 => LONG_DELAY,
            _ => Duration::from_millis(self.random(DELAY_MS_MAX)),
        }
    }

    fn run(mut self, wait_max: Duration) -> Simulation {
        while self.now < END {
            self.now += STEP;
            self.end_lives();
            self.store_writes();
            for number in 0..self.nodes.len() {
                if !self.nodes[number].is_gone {
                    self.read(number);
                    self.deliver(number);
                    self.decide(number);
                    let since = self.nodes[number].waits_since.unwrap_or(self.now);
                    assert!(self.now - since <= wait_max, "node {number} waits at {:?}", self.now);
                }
            }
            let all = self.nodes.iter().map(Node::connections).sum();
            assert!(all <= self.limit, "{all} connections of {} at {:?}", self.limit, self.now);
            self.most = self.most.max(all);
            self.used += u64::from(all);
        }
        self
    }

    fn end_lives(&mut self) {
        let (now, random) = (self.now, self.random(1 << 30));
        let end = |node: &mut Node| {
            node.slots = HopSlots::new(&node.name, random);
            (node.granted, node.answer, node.waits_since) = (0, None, None);
            node.attempts.clear();
            node.idle.clear();
        };
        if now == RESTART_AT {
            end(&mut self.nodes[RESTARTED]);
        }
        if now == GONE_AT {
            end(&mut self.nodes[GONE]);
            self.nodes[GONE].is_gone = true;
        }
    }

    /// A change is stored if nobody has changed the table since, even if its node does not wait any more.
    fn store_writes(&mut self) {
        let now = self.now;
        let arrived: Vec<_> = self.writes.extract_if(.., |write| write.arrival <= now).collect();
        for Write { node, number, change, is_answer_lost, .. } in arrived {
            let was_in_flight = self.has_old_servers && self.now <= self.stored_at + IN_FLIGHT_MAX;
            let is_newest = change.revision + u64::from(was_in_flight) >= self.revision;
            if is_newest {
                self.stored_at = self.now;
                (self.revision, self.table) = (self.revision + 1, change.table);
                self.stored += 1;
                for reader in 0..self.nodes.len() {
                    let arrival = self.now + self.delay();
                    let queue = &mut self.nodes[reader].tables;
                    let arrival = queue.back().map_or(arrival, |last| last.0.max(arrival));
                    queue.push_back((arrival, self.revision, self.table.clone()));
                }
            }
            let outcome = match is_newest {
                true => WriteOutcome::Stored(self.revision),
                false => WriteOutcome::Refused(Some(Some((self.revision, self.table.clone())))),
            };
            let arrival = self.now + self.delay();
            if let Some(answer) = &mut self.nodes[node].answer
                && !is_answer_lost
                && answer.1 == number
                && arrival < answer.0
            {
                *answer = (arrival, number, outcome);
            }
        }
    }

    fn read(&mut self, number: usize) {
        let (now, node) = (self.now, &mut self.nodes[number]);
        while node.tables.front().is_some_and(|table| table.0 <= now) {
            let (_, revision, table) = node.tables.pop_front().unwrap();
            node.slots.handle_table(now, revision, table);
        }
        if let Some((_, _, outcome)) = node.answer.take_if(|answer| answer.0 <= now) {
            node.slots.handle_written(now, outcome);
        }
    }

    /// The queues of a node: attempts begin, end, and leave connections that stay open for a while.
    fn deliver(&mut self, number: usize) {
        let (now, limit) = (self.now, u64::from(self.limit));
        if self.nodes[number].wants_until <= now {
            let wanted = [0, 1, limit, limit][self.random(4) as usize];
            let until = now + Duration::from_millis(self.random(30_000));
            (self.nodes[number].wanted, self.nodes[number].wants_until) = (u32::try_from(wanted).unwrap(), until);
        }
        let node = &mut self.nodes[number];
        let ended = node.attempts.extract_if(.., |end| *end <= now).count();
        node.idle.extend((0..ended).map(|_| now + IDLE));
        node.idle.retain(|until| *until > now);
        while (self.nodes[number].attempts.len() as u32) < self.nodes[number].granted.min(self.nodes[number].wanted) {
            let end = now + Duration::from_millis(self.random(ATTEMPT_MS_MAX));
            self.nodes[number].idle.pop();
            self.nodes[number].attempts.push(end);
        }
        let node = &mut self.nodes[number];
        let waits = node.attempts.is_empty() && node.wanted > 0;
        node.waits_since = waits.then(|| node.waits_since.unwrap_or(now));
    }

    fn decide(&mut self, number: usize) {
        let (now, view) = (self.now, self.view);
        let node = &mut self.nodes[number];
        let held = node.connections();
        let wanted = node.wanted.max(held);
        node.slots.handle_use(SlotUse { limit: self.limit, wanted, held, granted: node.granted });
        if let Some(write) = node.slots.poll_write(now, view) {
            self.written += 1;
            node.answer = Some((now + ANSWER_TIME_MAX, self.written, WriteOutcome::Unknown));
            let (arrival, fate) = (now + self.delay(), self.random(20));
            if fate > 0 {
                let is_answer_lost = fate == 1;
                self.writes.push(Write { arrival, node: number, number: self.written, change: write, is_answer_lost });
            }
        }
        let node = &mut self.nodes[number];
        node.granted = node.slots.granted(now, view);
    }
}

#[test]
fn all_nodes_together_keep_to_the_limit_and_each_gets_slots_in_time() {
    for seed in 0..8 {
        for (limit, nodes) in [(3, 3), (7, 3), (10, 2), (40, 5)] {
            let Simulation { most, used, stored, .. } = Simulation::new(seed, limit, nodes).run(WAIT_MAX);
            let steps = u64::try_from(END.as_millis() / STEP.as_millis()).unwrap();
            assert!(most * 10 >= limit * 9, "seed {seed}, {limit} slots: {most} were used");
            assert!(used * 3 >= steps * u64::from(limit), "seed {seed}, {limit} slots: {used} in {steps} steps");
            // Two changes in a second, of each node.
            assert!(stored <= END.as_secs() * 2 * u64::from(nodes), "seed {seed}: {stored} changes");
        }
    }
}

#[test]
fn with_fewer_slots_than_nodes_none_waits_for_ever() {
    for seed in 0..8 {
        for (limit, nodes) in [(1, 3), (2, 5)] {
            Simulation::new(seed, limit, nodes).run(WAIT_MAX_FEW);
        }
    }
}

#[test]
fn servers_that_store_two_changes_of_a_revision_give_out_no_slot_twice() {
    for seed in 0..8 {
        let mut simulation = Simulation::new(seed, 7, 3);
        simulation.has_old_servers = true;
        simulation.run(WAIT_MAX);
    }
}
