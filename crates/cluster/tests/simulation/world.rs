//! The servers, the network and three nodes, on a virtual clock in microseconds. Everything that may
//! go wrong does, by a seed: requests and answers are lost, late, doubled and out of order; copies of
//! the stream lag; servers are away; nodes are stopped, cut off, held back and killed.

use std::collections::BTreeMap;
use std::time::Duration;

use cluster::lane::{COPYING_LEASE, PublishFailure, ReadFailure, RecordSubject, TailFailure};
use sim::Random;

use crate::disk::Disk;
use crate::ledger::{Found, Ledger, read};
use crate::local::LocalLane;
use crate::node::{Answer, Clock, Context, Node, Request};
use crate::starting::{Fact, Question};
use crate::stream::Stream;

const NODES: usize = 3;
const MS: u64 = 1_000;
const SECOND: u64 = 1_000 * MS;

/// A node, and how often it was killed before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Life {
    node: usize,
    deaths: u64,
    /// The role in which it sent a request.
    role: u64,
}

#[derive(Debug)]
enum Event {
    Request(Life, Request),
    Answer(Life, Answer),
    /// Ignored if the node has another timeout meanwhile.
    Timeout(Life, u64),
    Work(Life),
    Start(usize),
    Fault,
    /// A server that was killed soon after a purge comes back.
    Loss,
}

/// What differs between simulations.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rules {
    /// The first node has a disk, and all new mail. Those who take the lane over close it at its end.
    pub(crate) closes_lanes: bool,
    pub(crate) stream_bytes_max: Option<u64>,
    /// The disk may come back older, or damaged.
    pub(crate) spoils_disks: bool,
    /// The lane has no stream at first, and its owner acknowledges without copies. Its disk may be thrown away.
    pub(crate) begins_local: bool,
    /// The servers lose records that a purge was to leave.
    pub(crate) loses_records: bool,
}

/// A node with what holds it up.
struct Host {
    node: Option<Node>,
    deaths: u64,
    timeout: Option<u64>,
    stopped_until: u64,
    /// Until then nothing reaches it or leaves it.
    cut_off_until: u64,
    /// Until then what it sends waits on the way.
    held_until: u64,
}

pub(crate) struct World {
    random: Random,
    now: u64,
    next_event: u64,
    events: BTreeMap<(u64, u64), Event>,
    rules: Rules,
    refused: u64,
    stream: Stream,
    /// There is a stream.
    has_stream: bool,
    /// The lane is noted as closed.
    is_closed: bool,
    /// The disk of the first node.
    disk: Option<Disk>,
    /// What it was earlier.
    snapshot: Option<Disk>,
    hosts: Vec<Host>,
    ledger: Ledger,
    has_faults: bool,
    servers_away_until: u64,
    /// The longest usual time of a message on its way.
    delay_max: u64,
    pub(crate) claims: u64,
    /// The lane is local still, or the first node was killed since.
    is_local: bool,
    is_disk_gone: bool,
    /// Messages that only a disk had which was thrown away.
    thrown_away: u64,
}

impl World {
    pub(crate) fn new(seed: u64, rules: Rules) -> Self {
        let host = |_| Host { node: None, deaths: 0, timeout: None, stopped_until: 0, cut_off_until: 0, held_until: 0 };
        let mut world = World {
            random: Random::new(seed),
            now: 0,
            next_event: 0,
            events: BTreeMap::new(),
            rules,
            refused: 0,
            stream: Stream::new(rules.stream_bytes_max),
            has_stream: !rules.closes_lanes,
            is_closed: false,
            disk: rules.closes_lanes.then(Disk::default),
            snapshot: None,
            hosts: (0..NODES).map(host).collect(),
            ledger: Ledger::default(),
            has_faults: true,
            servers_away_until: 0,
            delay_max: 5 * MS,
            claims: 0,
            is_local: rules.begins_local,
            is_disk_gone: false,
            thrown_away: 0,
        };
        (0..NODES).for_each(|node| world.start(node));
        world.schedule(SECOND, Event::Fault);
        world
    }

    /// Runs with faults, and then without.
    pub(crate) fn run(&mut self, seconds: u64, quiet_seconds: u64) {
        self.run_until(seconds * SECOND);
        self.has_faults = false;
        self.delay_max = 5 * MS;
        self.run_until((seconds + quiet_seconds) * SECOND);
    }

    /// What must hold when nothing has gone wrong for a while.
    pub(crate) fn check_end(&self) {
        if self.is_closed {
            let nothing = Found::nothing(None);
            self.ledger.check(&nothing, u64::MAX, &nothing);
            self.ledger.check_local(&nothing);
            return;
        }
        let owners = self.hosts.iter().filter(|host| host.may_deliver(self.now)).count();
        let last = self.stream.last_sequence();
        let found = read(&self.stream, last);
        // Nobody takes over a lane soon of which the rest was on that disk.
        let lease = self.stream.newest_epoch().map(|newest| newest.lease);
        let waits = self.is_disk_gone && lease.is_none_or(|lease| lease == COPYING_LEASE);
        assert_eq!(owners, usize::from(!waits), "one node owns the lane and may deliver");
        self.ledger.check(&found, last, &found);
        self.ledger.check_exposed(&found, last);
        self.ledger.check_local(&found);
    }

    pub(crate) fn accepted_locally(&self) -> u64 {
        self.ledger.messages.values().filter(|message| message.is_accepted_locally).count() as u64
    }

    pub(crate) fn acknowledged(&self) -> usize {
        self.ledger.messages.values().filter(|message| message.acknowledged_at.is_some()).count()
    }

    /// Messages that were lost with both of their copies.
    pub(crate) fn given_up(&self) -> u64 {
        self.thrown_away + self.ledger.lost_twice
    }

    /// Messages that the servers have lost, and that were published again.
    pub(crate) fn mended(&self) -> u64 {
        self.ledger.mended
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// How often a record was refused because the stream was full.
    pub(crate) fn refused(&self) -> u64 {
        self.refused
    }

    pub(crate) fn purged(&self) -> u64 {
        self.stream.first_sequence() - 1
    }

    fn run_until(&mut self, end: u64) {
        while let Some(first) = self.events.first_entry()
            && first.key().0 <= end
        {
            let ((at, _), event) = first.remove_entry();
            self.now = at;
            self.handle(event);
            let owners = self.hosts.iter().filter(|host| host.may_deliver(self.now)).count();
            assert!(owners <= 1, "{owners} nodes may deliver at {}", self.now);
        }
        self.now = end;
    }

    fn schedule(&mut self, at: u64, event: Event) {
        self.next_event += 1;
        self.events.insert((at, self.next_event), event);
    }

    fn start(&mut self, node: usize) {
        if node == 0 && self.has_faults && self.rules.spoils_disks {
            self.spoil_disk();
        }
        let clock = Clock::random(&mut self.random);
        let host = &mut self.hosts[node];
        host.node = Some(match node == 0 && std::mem::take(&mut self.is_local) {
            true => {
                let delay = Duration::from_micros(self.random.below(20 * SECOND));
                Node::with_local_lane(node, clock, self.now, delay, LocalLane::new(&mut self.random))
            }
            false => Node::new(node, clock, self.now, self.disk.as_ref().filter(|_| node == 0)),
        });
        let life = Life { node, deaths: host.deaths, role: 0 };
        self.schedule_timeout(life);
        self.schedule(self.now + SECOND, Event::Work(life));
    }

    /// The disk is sometimes not as it was when the node was killed.
    fn spoil_disk(&mut self) {
        let Some(disk) = &mut self.disk else { return };
        match self.random.below(4) {
            0 => {
                if let Some(snapshot) = &self.snapshot {
                    disk.clone_from(snapshot);
                }
                self.ledger.may_come_back.extend(disk.live.keys());
            }
            1 => self.ledger.may_come_back.extend(disk.damage(&mut self.random)),
            _ => {}
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Request(life, request) => self.serve(life, request),
            Event::Answer(life, answer) => self.pass(life, answer),
            Event::Timeout(life, at) => {
                if (self.hosts[life.node].timeout, self.hosts[life.node].deaths) == (Some(at), life.deaths) {
                    self.hosts[life.node].timeout = None;
                    self.pass(life, Answer::Timeout);
                }
            }
            Event::Work(life) => {
                let next = self.now + 20 * MS + self.random.below(300 * MS);
                if self.hosts[life.node].deaths == life.deaths {
                    self.schedule(next, Event::Work(life));
                    self.pass(life, Answer::Work);
                }
            }
            Event::Start(node) => self.start(node),
            Event::Fault => self.fail_something(),
            Event::Loss => self.lose_records(),
        }
    }

    /// Passes something to a node, if it still lives; when it goes on, if it is stopped.
    fn pass(&mut self, life: Life, answer: Answer) {
        let host = &mut self.hosts[life.node];
        if host.deaths != life.deaths {
            return;
        }
        if host.stopped_until > self.now {
            let at = host.stopped_until;
            self.schedule(at, Event::Answer(life, answer));
            return;
        }
        let Some(node) = &mut host.node else { return };
        if answer.is_of_role() && node.roles != life.role {
            return;
        }
        let mut no_disk = None;
        let mut context = Context {
            now: node.clock.local(self.now),
            random: &mut self.random,
            ledger: &mut self.ledger,
            stream: &self.stream,
            requests: Vec::new(),
            may_release: self.has_faults,
            begins_local: self.rules.begins_local,
            closes_lanes: self.rules.closes_lanes,
            disk: if life.node == 0 { &mut self.disk } else { &mut no_disk },
            syncs: Vec::new(),
            local_syncs: Vec::new(),
            claims: 0,
        };
        node.handle(answer, &mut context);
        let Context { requests, syncs, local_syncs, claims, .. } = context;
        let life = Life { role: node.roles, ..life };
        self.claims += claims;
        self.sync_all(life, syncs, [Answer::Synced, Answer::WriteFailed]);
        self.sync_all(life, local_syncs, [Answer::LocalSynced, Answer::LocalWriteFailed]);
        self.send_all(life, requests);
    }

    /// The disk takes its time, and may fail.
    fn sync_all(&mut self, life: Life, syncs: Vec<u64>, [synced, failed]: [fn(u64) -> Answer; 2]) {
        for number in syncs {
            let slowest = if self.has_faults && self.random.chance(1) { 4 * SECOND } else { 20 * MS };
            let at = self.now + 1 + self.random.below(slowest);
            let has_failed = self.has_faults && self.random.below(1_000) == 0;
            let answer = if has_failed { failed(number) } else { synced(number) };
            self.schedule(at, Event::Answer(life, answer));
        }
    }

    /// Sends what a node wants to send; it may be killed before and after each of them, when its disk has
    /// synced any part of what belongs to it.
    fn send_all(&mut self, life: Life, requests: Vec<Request>) {
        for request in requests {
            if self.has_faults && self.random.below(3_000) == 0 {
                self.kill(life.node);
                return;
            }
            self.send(life, request);
        }
        if self.has_faults && self.random.below(10_000) == 0 {
            self.kill(life.node);
            return;
        }
        self.schedule_timeout(life);
    }

    fn schedule_timeout(&mut self, life: Life) {
        let host = &mut self.hosts[life.node];
        let due = host.node.as_ref().and_then(Node::timeout).map(|due| due.max(self.now + 1));
        if host.timeout != due {
            host.timeout = due;
            due.into_iter().for_each(|due| self.schedule(due, Event::Timeout(life, due)));
        }
    }

    fn send(&mut self, life: Life, request: Request) {
        let publish = match &request {
            Request::Publish { id, .. } => Some(*id),
            _ => None,
        };
        if self.is_lost(life.node) {
            // The client may notice that its connection is gone.
            if let Some(id) = publish
                && self.random.chance(30)
            {
                let failure = Answer::Published(id, Err(PublishFailure::Unavailable));
                self.schedule(self.now + MS, Event::Answer(life, failure));
            }
            return;
        }
        let at = self.delay(life.node);
        if publish.is_some() && self.has_faults && self.random.chance(1) {
            let again = self.delay(life.node);
            self.schedule(again, Event::Request(life, request.clone()));
        }
        self.schedule(at, Event::Request(life, request));
    }

    fn serve(&mut self, life: Life, request: Request) {
        if self.servers_away_until > self.now {
            return;
        }
        let lag = if self.has_faults && self.random.chance(10) { self.random.below(6) } else { 0 };
        let answer = match request {
            Request::Publish { id, subject, expected_last, record } => {
                if subject == RecordSubject::Renew {
                    self.announce(life.node);
                }
                if !self.has_stream {
                    Answer::Published(id, Err(PublishFailure::Unavailable))
                } else if self.has_faults && self.random.below(500) == 0 {
                    Answer::Published(id, Err(PublishFailure::StreamFull))
                } else {
                    let stored = self.stream.publish(expected_last, record);
                    self.refused += u64::from(stored == Err(PublishFailure::StreamFull));
                    Answer::Published(id, stored)
                }
            }
            Request::Read { sequence } if !self.has_stream => Answer::Slot(sequence, Err(ReadFailure::NoStream)),
            Request::ReadTail if !self.has_stream => Answer::Tail(Err(TailFailure::NoStream), None),
            Request::Read { sequence } => {
                let is_mixed = self.random.chance(50);
                Answer::Slot(sequence, Ok(self.stream.slot(sequence, lag, is_mixed)))
            }
            Request::ReadTail => {
                let lease = self.stream.newest_epoch().map(|newest| newest.lease);
                Answer::Tail(Ok(self.stream.tail(lag)), lease)
            }
            // One that comes late finds a new stream.
            Request::Purge(up_to) if up_to >= self.stream.last_sequence() && self.rules.closes_lanes => return,
            Request::Purge(up_to) => {
                self.stream.purge(up_to);
                return self.kill_server();
            }
            Request::ReadFirst => Answer::First(self.stream.first_sequence()),
            Request::Ask(number, question) => Answer::Told(number, self.tell(question)),
        };
        if !self.is_lost(life.node) {
            let at = self.delay(life.node);
            self.schedule(at, Event::Answer(life, answer));
        }
    }

    /// A server is killed soon after a purge.
    fn kill_server(&mut self) {
        if self.rules.loses_records && self.has_faults {
            let at = self.now + self.random.below(3 * SECOND);
            self.schedule(at, Event::Loss);
        }
    }

    /// It comes back without some of the records that follow the purged ones; never without the last one.
    fn lose_records(&mut self) {
        let (first, last) = (self.stream.first_sequence(), self.stream.last_sequence());
        let most = self.random.pick(&[2, 20, 500]).min(last.saturating_sub(first));
        let lost_up_to = first + self.random.below(most);
        if lost_up_to < last {
            let before = read(&self.stream, last);
            self.stream.purge(lost_up_to);
            self.ledger.note_lost(lost_up_to, &before, &read(&self.stream, last));
        }
    }

    /// What the leaders of the servers say.
    fn tell(&mut self, question: Question) -> Fact {
        match question {
            Question::NewestEpoch => return Fact::NewestEpoch(self.stream.newest_epoch()),
            Question::IsClosed => return Fact::IsClosed(self.is_closed),
            Question::Tail => return Fact::Tail(self.has_stream.then(|| self.stream.tail(0))),
            Question::MakeStream => self.has_stream = true,
            Question::Close => self.is_closed = true,
            Question::DeleteStream => {
                assert!(self.is_closed, "a stream is deleted whose lane is not closed");
                (self.has_stream, self.stream) = (false, Stream::new(self.rules.stream_bytes_max));
            }
        }
        Fact::Done
    }

    /// The other nodes hear a Renew record, whether it was stored or not.
    fn announce(&mut self, from: usize) {
        for node in (0..NODES).filter(|node| *node != from) {
            if !self.is_lost(node) {
                let (at, life) = (self.delay(node), Life { node, deaths: self.hosts[node].deaths, role: 0 });
                self.schedule(at, Event::Answer(life, Answer::Renewed));
            }
        }
    }

    fn is_lost(&mut self, node: usize) -> bool {
        self.hosts[node].cut_off_until > self.now || self.has_faults && self.random.chance(1)
    }

    /// When something that is sent now arrives.
    fn delay(&mut self, node: usize) -> u64 {
        let sent = self.now.max(self.hosts[node].held_until);
        let is_late = self.has_faults && self.random.below(300) == 0;
        sent + 1 + self.random.below(if is_late { 15 * SECOND } else { self.delay_max })
    }

    fn kill(&mut self, node: usize) {
        let host = &mut self.hosts[node];
        if let Some(mut killed) = host.node.take() {
            killed.crash(&mut self.random, &mut self.disk);
        }
        host.deaths += 1;
        host.timeout = None;
        if node == 0 && self.rules.begins_local && !self.is_disk_gone && self.random.chance(10) {
            self.throw_disk_away();
        }
        let again = self.now + self.random.below(20 * SECOND);
        self.schedule(again, Event::Start(node));
    }

    fn throw_disk_away(&mut self) {
        (self.disk, self.is_disk_gone) = (None, true);
        let found = self.has_stream.then(|| read(&self.stream, self.stream.last_sequence()));
        self.thrown_away += self.ledger.give_up(found.as_ref());
    }

    fn fail_something(&mut self) {
        if !self.has_faults {
            return;
        }
        if self.random.chance(20) {
            self.snapshot.clone_from(&self.disk);
        }
        let node = self.random.below(NODES as u64) as usize;
        let node = self
            .hosts
            .iter()
            .position(|host| host.may_deliver(self.now))
            .filter(|_| self.random.chance(60))
            .unwrap_or(node);
        // Often about as long as it takes others to claim the lane.
        let long = self.random.pick(&[200 * MS, 3 * SECOND, 8 * SECOND, 25 * SECOND]);
        let until = self.now + self.random.below(long);
        match self.random.below(8) {
            0 => self.hosts[node].stopped_until = until,
            1 => self.hosts[node].cut_off_until = until,
            2 | 3 => self.hosts[node].held_until = until,
            4 => self.servers_away_until = until,
            5 => self.delay_max = self.random.pick(&[2 * MS, 50 * MS, 1_000 * MS, 3_000 * MS]),
            6 if self.hosts[node].node.is_some() => self.kill(node),
            _ => {}
        }
        let next = self.now + self.random.below(6 * SECOND);
        self.schedule(next, Event::Fault);
    }
}

impl Host {
    fn may_deliver(&self, now: u64) -> bool {
        self.node.as_ref().is_some_and(|node| node.may_deliver(now))
    }
}
