//! Test support: queues whose routes are answered automatically, and helpers that end and report
//! attempts.

#![allow(dead_code, reason = "each test file uses some of it")]

use std::time::Duration;

use mail::{EnhancedCode, Outcome, QueueId, Reply, SpoolId, Timestamp};
use queue::{
    AdmittedMessage, Attempt, ConcurrencyPolicy, ContactResult, DestinationId, HopAdoptionPolicy, NextHopLimits,
    NextHopRoute, NextHopView, PauseTarget, PendingRecipient, QueueConfig, QueueNumber, QueueView, Queues,
    RecipientProgress, RecipientVerdict, RecipientView, RetryPolicy, SchedulerConfig,
};

pub(crate) const NOW: Timestamp = Timestamp(1_700_000_000_000);
pub(crate) const STANDARD: QueueNumber = QueueNumber(0);
pub(crate) const LAME: QueueNumber = QueueNumber(1);
pub(crate) const LISTS: QueueNumber = QueueNumber(2);

pub(crate) struct Harness {
    pub(crate) queues: Queues<u32>,
    pub(crate) now: Timestamp,
    pub(crate) limits: NextHopLimits,
    /// From a domain to its next hop: everything after the first dot, or the domain itself.
    pub(crate) route: fn(&str) -> String,
    pub(crate) route_time: Duration,
    /// Routes are [`NextHopRoute::transient`].
    pub(crate) transient: bool,
    /// Route requests are answered immediately.
    pub(crate) answers: bool,
    routes: u32,
}

/// `standard`, `lame` (adopts) and `lists`; no jitter.
pub(crate) fn config() -> SchedulerConfig {
    let retry = RetryPolicy { jitter: 0.0, ..RetryPolicy::default() };
    let standard = QueueConfig { concurrency: 100, retry, ..QueueConfig::default() };
    let lame = QueueConfig {
        name: "lame".into(),
        concurrency: 10,
        adopts: Some(HopAdoptionPolicy { slower_than: Duration::from_secs(10), ..HopAdoptionPolicy::default() }),
        ..standard.clone()
    };
    let lists = QueueConfig { name: "lists".into(), concurrency: 10, ..standard.clone() };
    SchedulerConfig { queues: vec![standard, lame, lists], ..SchedulerConfig::default() }
}

/// No limit in practice, from the first answer on.
pub(crate) fn unlimited() -> NextHopLimits {
    let concurrency = ConcurrencyPolicy { start: 10_000, max: 10_000, ..ConcurrencyPolicy::default() };
    NextHopLimits { concurrency, ..NextHopLimits::default() }
}

pub(crate) fn host_of(domain: &str) -> String {
    domain.split_once('.').map_or(domain, |(_, host)| host).to_owned()
}

pub(crate) fn harness() -> Harness {
    Harness::new(config())
}

pub(crate) fn id(sequence: u64) -> QueueId {
    QueueId::new(SpoolId::new(1), 0, sequence)
}

pub(crate) fn busy() -> Reply {
    Reply::new(451, EnhancedCode(4, 3, 0), "busy")
}

pub(crate) fn unreachable() -> ContactResult {
    ContactResult::Failed(Reply::new(451, EnhancedCode(4, 4, 1), "no connection"))
}

pub(crate) fn quick() -> ContactResult {
    ContactResult::Answered { slowest: Duration::from_millis(5) }
}

pub(crate) fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

impl Harness {
    pub(crate) fn new(config: SchedulerConfig) -> Self {
        Harness {
            queues: Queues::new(config, 7),
            now: NOW,
            limits: unlimited(),
            route: str::to_owned,
            route_time: Duration::from_secs(1_000_000),
            transient: false,
            answers: true,
            routes: 0,
        }
    }

    pub(crate) fn pending(&mut self, queue: QueueNumber, domain: &str, ordinal: u32) -> PendingRecipient {
        let destination = self.queues.intern_destination(queue, domain);
        PendingRecipient { ordinal, destination, attempts: 0, due: self.now, held: false }
    }

    pub(crate) fn admission(&self, sequence: u64, sender: u64, recipients: Vec<PendingRecipient>) -> AdmittedMessage {
        AdmittedMessage {
            id: id(sequence),
            sender,
            accepted_at: self.now,
            recovered: false,
            separate_attempts: false,
            recipients,
        }
    }

    /// Admits a message with `count` recipients that are all due now.
    pub(crate) fn admit_to(
        &mut self,
        queue: QueueNumber,
        sequence: u64,
        sender: u64,
        domain: &str,
        count: u32,
    ) -> DestinationId {
        let recipients: Vec<_> = (0..count).map(|ordinal| self.pending(queue, domain, ordinal)).collect();
        let admission = self.admission(sequence, sender, recipients);
        self.queues.admit(self.now, &admission);
        self.queues.intern_destination(queue, domain)
    }

    pub(crate) fn admit(&mut self, sequence: u64, sender: u64, domain: &str, count: u32) -> DestinationId {
        self.admit_to(STANDARD, sequence, sender, domain, count)
    }

    /// Admits a message with one recipient for each number.
    pub(crate) fn admit_each(&mut self, sequences: impl IntoIterator<Item = u64>, domain: &str) {
        sequences.into_iter().for_each(|sequence| _ = self.admit(sequence, 5, domain, 1));
    }

    /// Pauses without an end.
    pub(crate) fn pause(&mut self, target: PauseTarget) {
        self.queues.pause(self.now, target, None).expect("few pauses are in force");
    }

    pub(crate) fn answer(&mut self) -> bool {
        let mut answered = false;
        while let Some(destination) = self.answers.then(|| self.queues.next_unrouted()).flatten() {
            let name = self.queues.destination_name(destination).to_owned();
            self.send_to(destination, &(self.route)(&name));
            answered = true;
        }
        answered
    }

    /// Routes a destination; the route is the number of routes so far.
    pub(crate) fn send_to(&mut self, destination: DestinationId, next_hop: &str) {
        self.routes += 1;
        let (limits, until) = (self.limits.clone(), self.now + self.route_time);
        let routed =
            NextHopRoute { next_hop: next_hop.into(), route: self.routes, limits, until, transient: self.transient };
        self.queues.set_route(self.now, destination, routed);
    }

    pub(crate) fn next(&mut self) -> Option<Attempt<u32>> {
        loop {
            self.answer();
            let attempt = self.queues.next_attempt(self.now);
            if attempt.is_some() || !self.answer() {
                return attempt;
            }
        }
    }

    pub(crate) fn take(&mut self) -> Attempt<u32> {
        self.next().expect("something is due")
    }

    pub(crate) fn take_all(&mut self) -> Vec<Attempt<u32>> {
        std::iter::from_fn(|| self.next()).collect()
    }

    pub(crate) fn deliver(&mut self, mut attempt: Attempt<u32>) {
        self.queues.finish_contact(self.now, &mut attempt, quick());
        let verdicts = vec![RecipientVerdict::Delivered; attempt.recipients.len()];
        self.queues.report_verdicts(self.now, attempt, &verdicts);
    }

    /// Ends an attempt with this contact and defers its recipients by the rules; returns when they
    /// are due again.
    pub(crate) fn defer(&mut self, mut attempt: Attempt<u32>, contact: ContactResult) -> Timestamp {
        self.queues.finish_contact(self.now, &mut attempt, contact);
        let verdict = self.queues.compute_verdict(self.now, &attempt, Outcome::Deferred(busy()));
        let RecipientVerdict::Deferred { until, .. } = verdict else { panic!("{verdict:?}") };
        let verdicts = vec![verdict; attempt.recipients.len()];
        self.queues.report_verdicts(self.now, attempt, &verdicts);
        until
    }

    /// Delivers a first message, so that the next hop is proven.
    pub(crate) fn prove(&mut self, domain: &str) {
        self.admit(1_000_000, 99, domain, 1);
        let attempt = self.take();
        self.deliver(attempt);
    }

    /// Delivers everything, one attempt at a time; returns the messages in the order in which they
    /// left.
    pub(crate) fn drain(&mut self) -> Vec<u64> {
        let mut order = Vec::new();
        while let Some(attempt) = self.next() {
            order.push(attempt.id.sequence());
            self.deliver(attempt);
        }
        order
    }

    pub(crate) fn queue(&self, number: QueueNumber) -> QueueView<'_> {
        self.queues.queue_views().nth(usize::from(number.0)).expect("there are three queues")
    }

    pub(crate) fn hop(&self, name: &str) -> NextHopView<'_> {
        self.queues.next_hop_views().find(|hop| hop.name == name).expect("mail was routed there")
    }

    pub(crate) fn entry(&self, sequence: u64) -> RecipientView {
        self.queues.recipient_views().find(|entry| entry.id == id(sequence)).expect("the message is in the queues")
    }

    pub(crate) fn progress(&self, sequence: u64) -> RecipientProgress {
        self.entry(sequence).progress
    }
}
