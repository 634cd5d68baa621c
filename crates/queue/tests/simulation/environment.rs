//! The environment of the queues on a virtual clock: peers that are quick, slow, busy or down, and
//! a model of what the queues should hold.
//!
//! MessageModel is admitted, attempts take as long as their peer needs, and the outcome depends
//! only on the attempt. With [`Environment::checks`] every step is compared with the model: limits,
//! legal attempts, deadlines, counts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mail::{EnhancedCode, Outcome, QueueId, Reply, SpoolId, Timestamp};
use queue::{
    AdmittedMessage, Attempt, AttemptPurpose, BlockReason, ConcurrencyPolicy, ContactResult, DestinationId,
    HopAdoptionPolicy, NextHopLimits, NextHopRoute, NextHopView, OperatorAction, PendingRecipient, QueueConfig,
    QueueNumber, Queues, RecipientVerdict, RetryPolicy, SchedulerConfig,
};

pub(crate) const START: Timestamp = Timestamp(1_700_000_000_000);
pub(crate) const STANDARD: QueueNumber = QueueNumber(0);
pub(crate) const LAME: QueueNumber = QueueNumber(1);
pub(crate) const LISTS: QueueNumber = QueueNumber(2);

/// SplitMix64: the same seed gives the same simulation.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// The behavior of a next hop.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    /// The maximum duration of an attempt; the minimum is half of it.
    pub(crate) time: Duration,
    /// Every attempt fails until then.
    pub(crate) down_until: Timestamp,
    /// Every message is interrupted until then.
    pub(crate) breaks_until: Timestamp,
    /// The number of attempts at a time above which further ones are refused.
    pub(crate) most: usize,
}

impl Default for Peer {
    fn default() -> Self {
        Peer { time: Duration::from_millis(100), down_until: START, breaks_until: START, most: usize::MAX }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum State {
    /// Waiting or ready.
    Due(Timestamp),
    InFlight,
    Held,
    Delivered,
    Failed,
}

/// What the spool would know of a recipient.
#[derive(Clone, Debug)]
pub(crate) struct RecipientModel {
    pub(crate) queue: QueueNumber,
    pub(crate) domain: String,
    pub(crate) attempts: u16,
    pub(crate) state: State,
    /// When it was delivered or failed.
    pub(crate) ended_at: Timestamp,
}

pub(crate) struct MessageModel {
    pub(crate) sender: u64,
    accepted_at: Timestamp,
    pub(crate) recipients: Vec<RecipientModel>,
}

/// From (message, ordinal, number of the attempt) to the verdict as text.
pub(crate) type AttemptLog = BTreeMap<(u64, u32, u16), String>;

/// An attempt in flight, and how it will end.
struct RunningAttempt {
    attempt: Attempt<Timestamp>,
    contact: ContactResult,
    started_at: Timestamp,
    is_noticed: bool,
}

/// An attempt that left for a next hop.
#[derive(Clone, Debug)]
pub(crate) struct Departure {
    pub(crate) at: Timestamp,
    pub(crate) next_hop: String,
    pub(crate) message: u64,
}

pub(crate) struct Environment {
    pub(crate) queues: Queues<Timestamp>,
    pub(crate) seed: u64,
    pub(crate) now: Timestamp,
    pub(crate) random: Random,
    pub(crate) mail: Vec<MessageModel>,
    pub(crate) peers: BTreeMap<String, Peer>,
    pub(crate) limits: NextHopLimits,
    /// From a domain to its next hop.
    pub(crate) route: fn(&str) -> String,
    /// How long a route is valid, from the time of its request.
    pub(crate) route_time: Duration,
    /// How long a route takes to arrive.
    pub(crate) answer_time: Duration,
    /// Open route requests, by the time of their answer.
    questions: BTreeSet<(Timestamp, DestinationId)>,
    running: BTreeMap<(Timestamp, u64), RunningAttempt>,
    serial: u64,
    pub(crate) departures: Vec<Departure>,
    pub(crate) attempt_log: AttemptLog,
    /// How many of 100 recipients that are reached are deferred, and how many fail.
    pub(crate) deferred_of_100: u64,
    pub(crate) failed_of_100: u64,
    /// Messages that are interrupted wherever they go.
    pub(crate) poison: fn(u64) -> bool,
    /// Whether every step is compared with the model.
    pub(crate) checks: bool,
}

/// `standard` (50 attempts), `lame` (10, adopts) and `lists` (20).
pub(crate) fn config(retry: RetryPolicy) -> SchedulerConfig {
    let standard = QueueConfig { concurrency: 50, retry, ..QueueConfig::default() };
    let lame = QueueConfig {
        name: "lame".into(),
        concurrency: 10,
        adopts: Some(HopAdoptionPolicy { release_after: Duration::from_secs(300), ..HopAdoptionPolicy::default() }),
        ..standard.clone()
    };
    let lists = QueueConfig { name: "lists".into(), concurrency: 20, ..standard.clone() };
    SchedulerConfig { queues: vec![standard, lame, lists], ..SchedulerConfig::default() }
}

/// Short, so that a simulation of a few hundred steps covers every rule.
pub(crate) fn short_retry() -> RetryPolicy {
    RetryPolicy {
        first: Duration::from_secs(10),
        longest: Duration::from_secs(120),
        lifetime: Duration::from_secs(900),
        ..RetryPolicy::default()
    }
}

/// No limit in practice, from the first answer on.
pub(crate) fn unlimited() -> NextHopLimits {
    let concurrency = ConcurrencyPolicy { start: 10_000, max: 10_000, ..ConcurrencyPolicy::default() };
    NextHopLimits { concurrency, ..NextHopLimits::default() }
}

pub(crate) fn id(number: u64) -> QueueId {
    QueueId::new(SpoolId::new(1), 0, number)
}

impl Environment {
    pub(crate) fn new(seed: u64, config: SchedulerConfig) -> Self {
        Environment {
            queues: Queues::new(config, seed),
            seed,
            now: START,
            random: Random(seed),
            mail: Vec::new(),
            peers: BTreeMap::new(),
            limits: NextHopLimits::default(),
            route: str::to_owned,
            route_time: Duration::from_secs(200),
            answer_time: Duration::ZERO,
            questions: BTreeSet::new(),
            running: BTreeMap::new(),
            serial: 0,
            departures: Vec::new(),
            attempt_log: AttemptLog::new(),
            deferred_of_100: 0,
            failed_of_100: 0,
            poison: |_| false,
            checks: false,
        }
    }

    pub(crate) fn admit<D: AsRef<str>>(
        &mut self,
        queue: QueueNumber,
        sender: u64,
        domains: impl IntoIterator<Item = D>,
    ) -> u64 {
        let (now, number) = (self.now, self.mail.len() as u64);
        let known = |domain: D| {
            let domain = domain.as_ref().to_owned();
            RecipientModel { queue, domain, attempts: 0, state: State::Due(now), ended_at: now }
        };
        let recipients = domains.into_iter().map(known).collect();
        self.mail.push(MessageModel { sender, accepted_at: now, recipients });
        self.admit_pending(number, false);
        number
    }

    /// Admits the recipients of a message that are pending in the model.
    fn admit_pending(&mut self, number: u64, recovered: bool) {
        let MessageModel { sender, accepted_at, recipients } = &self.mail[number as usize];
        let mut pending = Vec::new();
        for (ordinal, known) in (0..).zip(recipients) {
            if let State::Due(due) = known.state {
                let destination = self.queues.intern_destination(known.queue, &known.domain);
                pending.push(PendingRecipient { ordinal, destination, attempts: known.attempts, due, held: false });
            }
        }
        let (id, alone) = (id(number), number % 7 == 3);
        let (sender, accepted_at, recipients) = (*sender, *accepted_at, pending);
        self.queues.admit(
            self.now,
            &AdmittedMessage { id, sender, accepted_at, recovered, separate_attempts: alone, recipients },
        );
    }

    /// The process dies and restarts: attempts in flight are lost, and all pending recipients are
    /// admitted again.
    pub(crate) fn restart(&mut self) {
        for RunningAttempt { attempt, .. } in std::mem::take(&mut self.running).into_values() {
            for &ordinal in &attempt.recipients {
                self.known(&attempt, ordinal).state = State::Due(START);
            }
        }
        self.questions.clear();
        self.queues = Queues::new(self.queues.config().clone(), self.seed);
        (0..self.mail.len() as u64).for_each(|number| self.admit_pending(number, true));
        self.check();
    }

    /// Advances the clock to the next event; false if there is none.
    pub(crate) fn step(&mut self) -> bool {
        self.step_before(Timestamp(u64::MAX))
    }

    fn step_before(&mut self, end: Timestamp) -> bool {
        self.start_attempts();
        let landing = self.running.keys().next().copied();
        let slow_after = self.slower_than();
        let unnoticed = self.running.values().filter(|running_attempt| !running_attempt.is_noticed);
        let slow_at = unnoticed.map(|running_attempt| running_attempt.started_at + slow_after).min();
        let answer_at = self.questions.first().map(|&(at, _)| at);
        let moments = [landing.map(|(at, _)| at), slow_at, answer_at, self.queues.next_deadline()];
        let Some(moment) = moments.into_iter().flatten().min().filter(|&moment| moment < end) else { return false };
        self.now = self.now.max(moment);
        self.notice_slow(slow_after);
        while let Some(entry) = self.running.first_entry().filter(|entry| entry.key().0 <= self.now) {
            let running_attempt = entry.remove();
            self.end_attempt(running_attempt);
        }
        self.start_attempts();
        true
    }

    pub(crate) fn run(&mut self) {
        while self.step() {}
    }

    pub(crate) fn run_until(&mut self, end: Timestamp) {
        while self.step_before(end) {}
        self.now = self.now.max(end);
    }

    /// Like the caller of the queues: reports an attempt that has waited for too long as slow.
    fn notice_slow(&mut self, slow_after: Duration) {
        for running_attempt in self.running.values_mut() {
            if !running_attempt.is_noticed && running_attempt.started_at + slow_after <= self.now {
                running_attempt.is_noticed = true;
                self.queues.report_slow(self.now, running_attempt.attempt.next_hop.expect("a delivery has a next hop"));
            }
        }
    }

    fn slower_than(&self) -> Duration {
        let adopts = self.queues.config().queues.iter().find_map(|queue| queue.adopts.as_ref());
        adopts.map_or(Duration::from_secs(1_000_000), |adopt| adopt.slower_than)
    }

    /// Starts all attempts that may leave now.
    pub(crate) fn start_attempts(&mut self) {
        loop {
            let answered = self.answer();
            match self.queues.next_attempt(self.now) {
                Some(attempt) => self.start(attempt),
                None if !answered => break,
                None => {}
            }
        }
        self.check();
    }

    pub(crate) fn answer(&mut self) -> bool {
        while let Some(destination) = self.queues.next_unrouted() {
            self.questions.insert((self.now + self.answer_time, destination));
        }
        let mut answered = false;
        while let Some((at, destination)) = self.questions.first().copied().filter(|&(at, _)| at <= self.now) {
            self.questions.pop_first();
            let next_hop = (self.route)(self.queues.destination_name(destination)).into();
            let (limits, until) = (self.limits.clone(), at - self.answer_time + self.route_time);
            let routed = NextHopRoute { next_hop, route: until, limits, until, transient: false };
            self.queues.set_route(self.now, destination, routed);
            answered = true;
        }
        answered
    }

    fn start(&mut self, attempt: Attempt<Timestamp>) {
        if self.checks {
            self.check_attempt(&attempt);
        }
        for ordinal in attempt.recipients.clone() {
            self.known(&attempt, ordinal).state = State::InFlight;
        }
        if let AttemptPurpose::Action(_) = attempt.purpose {
            return self.finish(attempt, None);
        }
        let next_hop = self.queues.next_hop_name(attempt.next_hop.expect("it is not an action")).to_owned();
        if let AttemptPurpose::Refuse(reply) = attempt.purpose.clone() {
            return self.finish(attempt, Some(reply));
        }
        assert_eq!(attempt.purpose, AttemptPurpose::Deliver);
        let peer = self.peers.get(&next_hop).cloned().unwrap_or_default();
        let millis = peer.time.as_millis() as u64;
        let time = Duration::from_millis(millis - self.random.below(millis / 2 + 1));
        let under_way = self
            .running
            .values()
            .filter(|running_attempt| running_attempt.attempt.next_hop == attempt.next_hop)
            .count();
        let contact = match () {
            () if self.now < peer.down_until => {
                ContactResult::Failed(Reply::new(451, EnhancedCode(4, 4, 1), "no connection"))
            }
            () if self.now < peer.breaks_until || (self.poison)(attempt.id.sequence()) => {
                ContactResult::Interrupted(Reply::new(451, EnhancedCode(4, 4, 2), "connection lost"))
            }
            () if under_way >= peer.most => ContactResult::Busy,
            () => ContactResult::Answered { slowest: time },
        };
        let (at, message) = (self.now, attempt.id.sequence());
        self.departures.push(Departure { at, next_hop, message });
        self.serial += 1;
        let running_attempt = RunningAttempt { attempt, contact, started_at: self.now, is_noticed: false };
        self.running.insert((self.now + time, self.serial), running_attempt);
    }

    fn end_attempt(&mut self, running_attempt: RunningAttempt) {
        let RunningAttempt { mut attempt, contact, .. } = running_attempt;
        self.queues.finish_contact(self.now, &mut attempt, contact.clone());
        let error = match contact {
            ContactResult::Failed(reply) | ContactResult::Interrupted(reply) => Some(reply),
            ContactResult::Busy => Some(Reply::new(421, EnhancedCode(4, 7, 0), "too many connections")),
            ContactResult::Answered { .. } | ContactResult::Unknown => None,
        };
        self.finish(attempt, error);
    }

    fn finish(&mut self, attempt: Attempt<Timestamp>, error: Option<Reply>) {
        let mut verdicts = Vec::new();
        for &ordinal in &attempt.recipients {
            let outcome = error.clone().map_or_else(|| self.outcome(&attempt, ordinal), Outcome::Deferred);
            let verdict = self.queues.compute_verdict(self.now, &attempt, outcome);
            let now = self.now;
            let known = self.known(&attempt, ordinal);
            known.state = match &verdict {
                RecipientVerdict::Delivered => State::Delivered,
                RecipientVerdict::Failed { .. } | RecipientVerdict::Removed => State::Failed,
                RecipientVerdict::Deferred { until, .. } => State::Due(*until),
                RecipientVerdict::Held => State::Held,
                RecipientVerdict::Relayed { .. } => panic!("no peer relays here"),
            };
            (known.attempts, known.ended_at) = (attempt.number, now);
            if self.checks {
                self.attempt_log.insert((attempt.id.sequence(), ordinal, attempt.number), format!("{verdict:?}"));
            }
            verdicts.push(verdict);
        }
        self.queues.report_verdicts(self.now, attempt, &verdicts);
    }

    /// Depends only on the attempt, so that simulations with the same seed have the same outcomes
    /// in any order.
    fn outcome(&self, attempt: &Attempt<Timestamp>, ordinal: u32) -> Outcome {
        let parts = [attempt.id.sequence(), u64::from(ordinal), u64::from(attempt.number)];
        let fate = parts.into_iter().fold(self.seed, |state, part| Random(state ^ part).next()) % 100;
        if fate < self.deferred_of_100 {
            Outcome::Deferred(Reply::new(451, EnhancedCode(4, 3, 0), "busy"))
        } else if fate < self.deferred_of_100 + self.failed_of_100 {
            Outcome::Failed(Reply::new(550, EnhancedCode(5, 1, 1), "no such user"))
        } else {
            Outcome::Delivered
        }
    }

    fn known(&mut self, attempt: &Attempt<Timestamp>, ordinal: u32) -> &mut RecipientModel {
        &mut self.mail[attempt.id.sequence() as usize].recipients[ordinal as usize]
    }

    pub(crate) fn hop(&self, name: &str) -> Option<NextHopView<'_>> {
        self.queues.next_hop_views().find(|hop| hop.name == name)
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.running.is_empty()
    }

    pub(crate) fn is_resolved(&self) -> bool {
        let mut all = self.mail.iter().flat_map(|mail| &mail.recipients);
        all.all(|known| matches!(known.state, State::Delivered | State::Failed))
    }

    /// How long it took from the start until the last recipient of those messages was resolved.
    pub(crate) fn time_of(&self, chosen: impl Fn(&MessageModel) -> bool) -> Duration {
        let mail = self.mail.iter().filter(|mail| chosen(mail));
        mail.flat_map(|mail| &mail.recipients).map(|known| known.ended_at.since(START)).max().unwrap_or_default()
    }

    /// Checks an attempt: one message and destination, all recipients due, none in flight, and
    /// every limit holds.
    fn check_attempt(&mut self, attempt: &Attempt<Timestamp>) {
        let now = self.now;
        let domain = self.queues.destination_name(attempt.destination).to_owned();
        let queue = self.queues.destination_queue(attempt.destination);
        assert!(!attempt.recipients.is_empty() && attempt.recipients.len() <= 100);
        for &ordinal in &attempt.recipients {
            let known = self.known(attempt, ordinal);
            assert_eq!((&known.domain, known.queue), (&domain, queue));
            if let AttemptPurpose::Action(act) = attempt.purpose {
                assert_eq!(known.attempts, attempt.number);
                match known.state {
                    State::Due(_) => assert_ne!(act, OperatorAction::Release),
                    // A hold may take over what a release has picked.
                    State::Held => assert_ne!(act, OperatorAction::Retry),
                    state => panic!("{act:?} on a recipient that is {state:?}"),
                }
            } else {
                assert_eq!(known.attempts + 1, attempt.number);
                assert!(matches!(known.state, State::Due(due) if due <= now), "{known:?} at {now}");
            }
        }
        if attempt.next_hop.is_some() {
            self.check_next_hop(attempt, queue);
        }
    }

    fn check_next_hop(&self, attempt: &Attempt<Timestamp>, queue: QueueNumber) {
        let hop =
            self.queues.next_hop_views().find(|hop| Some(hop.number) == attempt.next_hop).expect("an attempt keeps it");
        assert!(
            attempt.recipients.len() == 1 || attempt.id.sequence() % 7 != 3,
            "this message has one recipient per attempt"
        );
        // A second at least, and five minutes for recipients that were ready in time.
        let until = attempt.route.expect("an attempt with a next hop has a route") + Duration::from_secs(301);
        assert!(self.now < until + self.answer_time, "used a route that expired long before {}", self.now);
        match &attempt.purpose {
            AttemptPurpose::Deliver => {
                assert!(hop.attempts <= hop.concurrency, "{hop:?}");
                assert!(hop.probe_at.is_none_or(|at| at <= self.now), "{hop:?} is tried before its probe is due");
                let serving = hop.adopted_by.unwrap_or(queue);
                let view = self.queues.queue_views().nth(usize::from(serving.0)).expect("there are three queues");
                assert!(view.attempts <= view.concurrency && view.pause.is_none(), "{view:?}");
            }
            AttemptPurpose::Refuse(_) => assert!(hop.probe_at.is_some(), "{hop:?}"),
            AttemptPurpose::Action(_) | AttemptPurpose::Reclassify => panic!("an action has no next hop"),
        }
    }

    /// Checks that the queues hold what the model holds, and that slots are counted correctly.
    pub(crate) fn check(&mut self) {
        if !self.checks {
            return;
        }
        let states = || self.mail.iter().flat_map(|mail| &mail.recipients).map(|known| known.state);
        let in_flight = states().filter(|&state| state == State::InFlight).count();
        let pending = states().filter(|state| matches!(state, State::Due(_))).count();
        let held = states().filter(|&state| state == State::Held).count();
        assert_eq!(
            (self.queues.recipients_in_flight(), self.queues.recipient_count()),
            (in_flight, in_flight + pending + held)
        );
        let mut slots: BTreeMap<QueueNumber, usize> = BTreeMap::new();
        for RunningAttempt { attempt, .. } in self.running.values() {
            let hop = self
                .queues
                .next_hop_views()
                .find(|hop| Some(hop.number) == attempt.next_hop)
                .expect("an attempt keeps it");
            let home = self.queues.destination_queue(attempt.destination);
            *slots.entry(hop.adopted_by.unwrap_or(home)).or_default() += 1;
        }
        for view in self.queues.queue_views() {
            assert_eq!(view.attempts, slots.get(&view.number).copied().unwrap_or(0), "{view:?}");
        }
        match self.queues.next_deadline() {
            Some(deadline) if deadline > self.now => {
                assert!(self.queues.next_attempt(Timestamp(deadline.millis() - 1)).is_none(), "the deadline is late");
            }
            Some(deadline) => panic!("the deadline {deadline} has passed, but nothing was due at {}", self.now),
            None => {}
        }
        self.check_that_all_wait_for_something();
    }

    /// Checks that every ready recipient that does not leave has an obstacle to show.
    fn check_that_all_wait_for_something(&mut self) {
        for (queue, domain) in self.ready() {
            let destination = self.queues.intern_destination(queue, &domain);
            let obstacles: Vec<BlockReason> = self.queues.block_reasons(self.now, destination);
            assert!(!obstacles.is_empty(), "{domain} waits without an obstacle");
        }
    }

    fn ready(&self) -> Vec<(QueueNumber, String)> {
        let all = self.mail.iter().flat_map(|mail| &mail.recipients);
        let ready = all.filter(|known| matches!(known.state, State::Due(due) if due <= self.now));
        ready.map(|known| (known.queue, known.domain.clone())).collect()
    }
}
