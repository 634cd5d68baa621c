//! Nodes that share the rate of a next hop, on a virtual clock: requests reach the log late and out of
//! order, nodes read it late, one node starts again, and one has little mail.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use cluster::departures::{DepartureLedger, DepartureRequest, Departures};

const MILLI: u64 = 1_000_000;
const SECOND: u64 = 1000 * MILLI;
/// Ten departures in a second.
const INTERVAL: u64 = 100 * MILLI;
const BATCH: u32 = 5;
const NODES: usize = 5;
/// The node that has one message now and then.
const MODEST: usize = 0;
const MODEST_PAUSE: u64 = 3 * SECOND;
/// The node that starts again.
const RESTARTED: usize = 1;
const RESTART_AT: u64 = 40 * SECOND;
const END: u64 = 90 * SECOND;
/// The longest way from a node to the log, or back.
const DELAY_MAX: u64 = 40 * MILLI;

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The node wants departures, in this life.
    Want(usize, u64),
    /// Its request reaches the log.
    Store(usize, u64, u32, u64),
    /// A node reads this entry of the log.
    Read(usize, usize),
    /// The node begins an attempt.
    Depart(usize),
    Restart(usize),
}

struct Simulation {
    random: u64,
    now: u64,
    order: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    ledgers: Vec<DepartureLedger>,
    /// When each node has read everything that it was sent: it reads in order.
    read_until: [u64; NODES],
    log: Vec<(u64, DepartureRequest)>,
    numbers: [u64; NODES],
    /// How often each node was started again.
    lives: [u64; NODES],
    departed: Vec<(u64, usize)>,
    /// How long the modest node waited for each of its departures.
    waits: Vec<u64>,
    wanted_at: u64,
}

impl Simulation {
    fn new(seed: u64) -> Simulation {
        let mut simulation = Simulation {
            random: seed,
            now: 0,
            order: 0,
            events: BinaryHeap::new(),
            ledgers: (0..NODES).map(|_| DepartureLedger::default()).collect(),
            read_until: [0; NODES],
            log: Vec::new(),
            numbers: [0; NODES],
            lives: [0; NODES],
            departed: Vec::new(),
            waits: Vec::new(),
            wanted_at: 0,
        };
        (0..NODES).for_each(|node| simulation.at(0, Event::Want(node, 0)));
        simulation.at(RESTART_AT, Event::Restart(RESTARTED));
        simulation
    }

    fn at(&mut self, time: u64, event: Event) {
        self.order += 1;
        self.events.push(Reverse((time, self.order, event)));
    }

    fn delay(&mut self) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % DELAY_MAX
    }

    fn run(mut self) -> Simulation {
        while let Some(Reverse((time, _, event))) = self.events.pop() {
            if time > END {
                break;
            }
            self.now = time;
            match event {
                Event::Want(node, life) if life == self.lives[node] => self.want(node),
                Event::Want(..) => {}
                Event::Store(node, number, count, free_at) => self.store(node, number, count, free_at),
                Event::Read(node, entry) => self.read(node, entry),
                Event::Depart(node) => self.departed.push((time, node)),
                Event::Restart(node) => self.restart(node),
            }
        }
        self
    }

    fn want(&mut self, node: usize) {
        self.numbers[node] += 1;
        let count = if node == MODEST { 1 } else { BATCH };
        if node == MODEST {
            self.wanted_at = self.now;
        }
        let (free_at, arrival) = (self.ledgers[node].free_at("x"), self.now + self.delay());
        self.at(arrival, Event::Store(node, self.numbers[node], count, free_at));
    }

    fn store(&mut self, node: usize, number: u64, count: u32, free_at: u64) {
        let request = DepartureRequest { node: node.to_string(), number, interval: INTERVAL, count, free_at };
        self.log.push((self.now, request));
        for reader in 0..NODES {
            let arrival = (self.now + self.delay()).max(self.read_until[reader]);
            self.read_until[reader] = arrival;
            self.at(arrival, Event::Read(reader, self.log.len() - 1));
        }
    }

    fn read(&mut self, reader: usize, entry: usize) {
        let (stored_at, request) = self.log[entry].clone();
        let departures = self.ledgers[reader].handle_request("x", stored_at, &request);
        if request.node == reader.to_string() && request.number == self.numbers[reader] {
            self.use_departures(reader, departures);
        }
    }

    fn use_departures(&mut self, node: usize, Departures { first_in, interval, count }: Departures) {
        let first = self.now + nanos(first_in);
        (0..u64::from(count)).for_each(|place| self.at(first + place * nanos(interval), Event::Depart(node)));
        let last = first + u64::from(count - 1) * nanos(interval);
        if node == MODEST {
            self.waits.push(first - self.wanted_at);
        }
        self.at(last + if node == MODEST { MODEST_PAUSE } else { MILLI }, Event::Want(node, self.lives[node]));
    }

    /// It has forgotten everything, and reads only the last entry of the log.
    fn restart(&mut self, node: usize) {
        self.ledgers[node] = DepartureLedger::default();
        self.numbers[node] += 1000;
        if let Some((stored_at, request)) = self.log.last().cloned() {
            self.ledgers[node].handle_request("x", stored_at, &request);
        }
        self.lives[node] += 1;
        self.at(self.now + SECOND, Event::Want(node, self.lives[node]));
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap()
}

/// The most departures within this time.
fn most_within(departed: &[(u64, usize)], window: u64) -> usize {
    let count = |(place, (start, _)): (usize, &(u64, usize))| {
        departed[place..].iter().take_while(|(time, _)| *time < start + window).count()
    };
    departed.iter().enumerate().map(count).max().unwrap_or_default()
}

#[test]
fn all_nodes_together_keep_to_the_rate_and_none_starves() {
    for seed in 0..100 {
        let Simulation { departed, waits, .. } = Simulation::new(seed).run();
        for seconds in [1, 10, 60] {
            let most = most_within(&departed, seconds * SECOND);
            // Those of the time, and what is late by a delay.
            assert!(most <= (seconds * 10) as usize + 2, "seed {seed}: {most} in {seconds} s");
        }
        let all = departed.iter().filter(|(time, _)| *time > 50 * SECOND).count();
        assert!(all >= 380, "seed {seed}: {all} of 400 were used");
        for node in (0..NODES).filter(|node| *node != MODEST) {
            let own = departed.iter().filter(|(time, of)| *time > 50 * SECOND && *of == node).count();
            assert!(own >= 80, "seed {seed}: node {node} got {own} of about 95");
        }
        // Before it there are the departures of all others, and those that the restarted node has forgotten.
        let longest = waits.iter().max().unwrap();
        assert!(
            *longest <= u64::from(BATCH) * INTERVAL * NODES as u64 + 4 * DELAY_MAX,
            "seed {seed}: a single message waited {longest} ns"
        );
    }
}
