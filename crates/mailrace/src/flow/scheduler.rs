//! The thread that owns the queues: it admits committed messages, dispatches what is due, and
//! reports outcomes to the queues once the spool has them. It opens no file and waits only for its
//! messages.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant, SystemTime};

use delivery::Ending;
use load::policy::Delivery;
use mail::{Enhanced, Outcome, Reply, Timestamp};
use queue::{Act, Contact, Destination, Purpose, Verdict};
use spool::{CommitError, Live};

use super::carrier::{Carriers, Errand};
use super::navigator::{Navigation, Question, Request, Ways};
use super::notary::{Patience, Terms};
use super::record::Recorder;
use super::sorter::{Rules, Sorted, Sorter};
use super::sorting::Puzzle;
use super::strays::Strays;
use super::way::Way;
use super::{Attempt, Directory, Ended, Judged, Note, Queues, STOP_TIME_MAX, Telling};

/// After a failed record, the next try follows this much later.
const RECORD_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// A message that could not be read is retried this much later.
const READ_AGAIN_AFTER: Duration = Duration::from_secs(60);
/// While the load allows queueing only, new mail waits this long for its first attempt.
const QUEUE_ONLY_WAIT: Duration = Duration::from_secs(60);
/// The longest sleep, so that a clock change is noticed.
const SLEEP_MAX: Duration = Duration::from_secs(60);
/// The interval for reclassifying mail that returned from attempts to retired queues or outdated
/// destinations. Each pass looks at every recipient.
const RETIRE_AGAIN_AFTER: Duration = Duration::from_secs(5);
/// Attempts dispatched before the next messages are read.
const DISPATCHES_MAX: usize = 1000;

/// The workers that carry out what the scheduler decides.
pub(super) struct Crew {
    /// The local deliverers, by name of the transport.
    pub(super) couriers: HashMap<Box<str>, Sender<Attempt>>,
    /// Deliver to other hosts.
    pub(super) carriers: Carriers,
    /// Resolves routes.
    pub(super) navigator: Navigation,
    /// Classifies messages whose envelope is not enough to do so.
    pub(super) sorter: Sender<Puzzle>,
    /// Writes outcomes to the spool.
    pub(super) recorder: Recorder,
    /// When to send delay notices.
    pub(super) patience: Patience,
}

/// A new configuration. Everything in it is ready, so that applying it cannot fail.
pub(super) struct Change {
    pub(super) queues: queue::Config,
    pub(super) rules: Arc<Rules>,
    pub(super) directory: Arc<Directory>,
    pub(super) couriers: HashMap<Box<str>, Sender<Attempt>>,
    /// None if the routing is unchanged.
    pub(super) ways: Option<Ways>,
    pub(super) patience: Patience,
    pub(super) terms: Terms,
}

pub(super) struct Scheduler {
    queues: Queues,
    sorter: Sorter,
    crew: Crew,
    delivery: Delivery,
    /// Outcomes that are not yet submitted.
    fresh: Vec<Judged>,
    /// Outcomes that the spool could not take, and when to submit them again.
    unrecorded: Vec<Judged>,
    record_again_at: Option<Instant>,
    /// The edition of the routing in force.
    edition: u32,
    /// When to look for retired recipients again.
    retire_again_at: Option<Instant>,
    /// Recipients whose attempts may return them to outdated destinations.
    strays: Strays,
    /// Since when we are stopping.
    stopping: Option<Timestamp>,
}

impl Scheduler {
    pub(super) fn new(queues: Queues, sorter: Sorter, crew: Crew) -> Self {
        Scheduler {
            queues,
            sorter,
            crew,
            delivery: Delivery::All,
            fresh: Vec::new(),
            unrecorded: Vec::new(),
            record_again_at: None,
            edition: 0,
            retire_again_at: None,
            strays: Strays::default(),
            stopping: None,
        }
    }

    /// Runs until it is told to stop and nothing is in progress.
    pub(super) fn run(mut self, notes: &Receiver<Note>) {
        while !self.is_over() {
            let is_through = self.dispatch();
            // Before sleeping: dispatch may have found destinations without a route, and ended
            // attempts that contact no host. No message reports either.
            self.ask_ways();
            self.record();
            self.retire();
            let patience = if is_through { self.sleep() } else { Duration::ZERO };
            match notes.recv_timeout(patience) {
                Ok(note) => self.read(note),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            while let Ok(note) = notes.try_recv() {
                self.read(note);
            }
        }
    }

    /// We are stopping, and nothing is in progress or the time is up.
    fn is_over(&self) -> bool {
        let is_idle = self.queues.in_flight() == 0 && self.queues.unrecorded() == 0;
        self.stopping.is_some_and(|since| is_idle || now().since(since) >= STOP_TIME_MAX)
    }

    fn sleep(&self) -> Duration {
        let due = match self.stopping {
            Some(since) => Some(since + STOP_TIME_MAX),
            None => self.queues.next_deadline(),
        };
        // One millisecond more, since the queue's clock counts whole ones.
        let until_due = due.map_or(SLEEP_MAX, |at| at.since(now()) + Duration::from_millis(1));
        let until_again = self.record_again_at.map_or(SLEEP_MAX, |at| at.saturating_duration_since(Instant::now()));
        let until_retired = match self.has_some_to_sort() {
            true => self.retire_again_at.map_or(Duration::ZERO, |at| at.saturating_duration_since(Instant::now())),
            false => SLEEP_MAX,
        };
        until_due.min(until_again).min(until_retired).min(SLEEP_MAX)
    }

    fn read(&mut self, note: Note) {
        match note {
            Note::Committed(messages) => messages.into_iter().for_each(|message| self.admit(message)),
            // If the rules have changed meanwhile, classify it again.
            Note::Sorted(rules, sorted) => match self.goes_by(&rules) {
                true => self.enter(&sorted),
                false => self.admit(sorted.live),
            },
            Note::Resorted(rules, attempt, sorted) => match self.goes_by(&rules) {
                true => {
                    self.forget(attempt);
                    self.enter(&sorted);
                }
                false => self.sort(Puzzle::Moved(attempt)),
            },
            Note::Routed(edition, destination, routed) if edition == self.edition => {
                self.queues.routed(now(), destination, routed);
            }
            // Resolved before the routing changed.
            Note::Routed(_, destination, _) => self.ask_way(destination),
            Note::Ended(ended) => ended.into_iter().for_each(|ended| self.end(ended)),
            Note::Slow(hop) => {
                if let Some(next_hop) = self.queues.next_hop(&hop.name) {
                    self.queues.slow(now(), next_hop);
                }
            }
            Note::Recorded(judged, Ok(())) => self.learn(judged),
            Note::Recorded(judged, Err(CommitError::TooLarge | CommitError::Closed)) => self.give_up(judged),
            Note::Recorded(judged, Err(error)) => self.keep(judged, &error.to_string()),
            Note::Unrecorded(judged, why) => self.keep(judged, why),
            Note::Void(attempt) => self.forget(attempt),
            Note::Unread(attempt, why) => self.postpone(attempt, why),
            Note::Load(delivery) => self.obey_load(delivery),
            Note::Ask(question) => question(&mut self.queues),
            Note::Change(change) => self.change(*change),
            Note::Stop(at) => self.stopping = Some(at),
        }
    }

    /// Admits a message from the spool; directly if its envelope is enough.
    fn admit(&mut self, message: Live) {
        if self.sorter.knows(&message) {
            self.enter(&Sorted::by_envelope(message));
        } else {
            self.sort(Puzzle::Fresh(message));
        }
    }

    fn sort(&self, puzzle: Puzzle) {
        // Only fails at shutdown; the next start finds the message again.
        drop(self.crew.sorter.send(puzzle));
    }

    fn goes_by(&self, rules: &Arc<Rules>) -> bool {
        Arc::ptr_eq(self.sorter.rules(), rules)
    }

    fn enter(&mut self, sorted: &Sorted) {
        let now = now();
        let not_before = if self.delivery == Delivery::QueueOnly { now + QUEUE_ONLY_WAIT } else { now };
        self.sorter.enter(&mut self.queues, sorted, now, not_before);
    }

    fn obey_load(&mut self, delivery: Delivery) {
        self.delivery = delivery;
        self.queues.set_stopped(delivery == Delivery::None);
    }

    fn ask_ways(&mut self) {
        while let Some(destination) = self.queues.next_question() {
            self.ask_way(destination);
        }
    }

    fn ask_way(&self, destination: Destination) {
        let name = self.queues.destination_name(destination).into();
        self.crew.navigator.tell(Request::Question(Question { destination, name }));
    }

    /// Attempts in progress finish with the deliverer, the hosts and the connection that they began
    /// with.
    fn change(&mut self, change: Change) {
        let Change { queues, rules, directory, couriers, ways, patience, terms } = change;
        let now = now();
        self.queues.change(now, queues);
        (self.crew.couriers, self.crew.patience) = (couriers, patience);
        self.crew.recorder.change(terms);
        self.sort(Puzzle::Change(rules.clone(), directory));
        self.strays.pick(&mut self.queues, self.sorter.rules(), &rules);
        self.sorter = Sorter::new(rules);
        if let Some(ways) = ways {
            self.edition += 1;
            self.crew.navigator.tell(Request::Change(ways, self.edition));
            self.queues.reroute(now);
        }
        self.retire_again_at = None;
    }

    /// Reclassifies recipients in retired queues, and those whose attempts return them to an
    /// outdated destination.
    fn retire(&mut self) {
        let is_too_early = self.retire_again_at.is_some_and(|at| Instant::now() < at);
        if !is_too_early && self.has_some_to_sort() {
            if self.queues.has_retired() {
                self.queues.pick_retired();
            }
            self.strays.pick_returned(&mut self.queues);
            self.retire_again_at = Some(Instant::now() + RETIRE_AGAIN_AFTER);
        }
    }

    fn has_some_to_sort(&self) -> bool {
        self.stopping.is_none() && (self.queues.has_retired() || self.strays.are_some())
    }

    /// Dispatches what is due and within limits; false if there may be more.
    fn dispatch(&mut self) -> bool {
        let now = now();
        for _ in 0..DISPATCHES_MAX {
            if self.stopping.is_some() {
                return true;
            }
            let Some(attempt) = self.queues.next(now) else { return true };
            self.send(attempt);
        }
        false
    }

    fn send(&mut self, attempt: Attempt) {
        match &attempt.purpose {
            Purpose::Deliver => self.deliver(attempt),
            Purpose::Refuse(reply) => {
                let outcome = Outcome::Deferred(reply.clone());
                self.settle(attempt, &outcome);
            }
            Purpose::Act(act) => {
                let outcome = outcome_of(*act);
                self.settle(attempt, &outcome);
            }
            Purpose::Sort => self.sort(Puzzle::Moved(attempt)),
        }
    }

    fn deliver(&mut self, attempt: Attempt) {
        let way = attempt.route.clone().expect("an attempt to deliver has a route");
        let unsent = match &*way {
            Way::Mailboxes { transport } => match self.crew.couriers.get(transport) {
                Some(courier) => courier.send(attempt).err().map(|unsent| unsent.0),
                None => Some(attempt),
            },
            Way::Remote { hop, .. } => {
                let errand = Errand { attempt, hop: hop.clone(), rules: self.sorter.rules().clone() };
                self.crew.carriers.send(errand).map(|unsent| unsent.attempt)
            }
            Way::Unsorted => return self.sort(Puzzle::Again(attempt)),
            Way::Nowhere { outcome } => return self.settle(attempt, outcome),
        };
        if let Some(attempt) = unsent {
            self.settle(attempt, &Outcome::Deferred(Reply::new(451, Enhanced(4, 3, 0), "the transport has stopped")));
        }
    }

    /// Ends an attempt that contacts no host, with the same outcome for all recipients. A mere
    /// deferral is not recorded: after a restart it is simply retried.
    fn settle(&mut self, mut attempt: Attempt, outcome: &Outcome) {
        let now = now();
        // NoRoute is always reachable; for others this says nothing about the next hop.
        let contact = match attempt.route.as_deref() {
            Some(Way::Nowhere { .. }) => Contact::Answered { slowest: Duration::ZERO },
            _ => Contact::None,
        };
        self.queues.ended(now, &mut attempt, contact);
        let verdicts: Vec<_> =
            attempt.recipients.iter().map(|_| self.queues.judge(now, &attempt, outcome.clone())).collect();
        let judged = self.judged(now, attempt, verdicts);
        let only_waits = judged.verdicts.iter().all(|verdict| matches!(verdict, Verdict::Deferred { .. }));
        let is_plain = match judged.attempt.purpose {
            Purpose::Deliver | Purpose::Sort => false,
            Purpose::Refuse(_) => only_waits && judged.late_until.is_none(),
            Purpose::Act(act) => act == Act::Retry,
        };
        match is_plain {
            true => self.queues.report(now, judged.attempt, &judged.verdicts),
            false => self.fresh.push(judged),
        }
    }

    fn judged(&self, now: Timestamp, attempt: Attempt, verdicts: Vec<Verdict>) -> Judged {
        let queue = self.queues.destination_queue(attempt.destination);
        let late_until = self.crew.patience.ends_with(queue, &attempt, now);
        Judged { attempt, message: None, verdicts, late_until, peer: None, notice: None, telling: Telling::default() }
    }

    /// The message is unchanged, and nothing is recorded.
    fn postpone(&mut self, attempt: Attempt, why: String) {
        self.crew.recorder.complain_of_reading(attempt.id, &why);
        let (now, reason) = (now(), Reply::new(451, Enhanced(4, 3, 0), why));
        let verdict = Verdict::Deferred { reason, until: now + READ_AGAIN_AFTER };
        let verdicts = vec![verdict; attempt.recipients.len()];
        self.queues.report(now, attempt, &verdicts);
    }

    fn end(&mut self, ended: Ended) {
        let Ended { mut attempt, message, ending, contact, peer } = ended;
        let now = now();
        self.queues.ended(now, &mut attempt, contact);
        match ending {
            Ending::Damaged(what) => self.crew.recorder.set_aside(attempt, what),
            Ending::Outcomes(outcomes) => {
                let verdicts = outcomes.into_iter().map(|outcome| self.queues.judge(now, &attempt, outcome)).collect();
                self.fresh.push(Judged { message, peer, ..self.judged(now, attempt, verdicts) });
            }
        }
    }

    /// Submits all new outcomes to the spool.
    fn record(&mut self) {
        if self.record_again_at.is_some_and(|at| at <= Instant::now()) {
            self.record_again_at = None;
            self.fresh.append(&mut self.unrecorded);
        }
        if !self.fresh.is_empty() {
            self.crew.recorder.record(std::mem::take(&mut self.fresh));
        }
    }

    /// The spool has the outcomes: report them to the queue and log them.
    fn learn(&mut self, judged: Vec<Judged>) {
        let now = now();
        for judged in judged {
            self.crew.recorder.tell(&judged, now);
            self.queues.report(now, judged.attempt, &judged.verdicts);
        }
    }

    /// Keeps outcomes that the spool cannot take now; the recipients stay in flight.
    fn keep(&mut self, judged: Vec<Judged>, why: &str) {
        if self.stopping.is_some() {
            return self.give_up(judged);
        }
        self.crew.recorder.complain(judged.len(), why);
        self.unrecorded.extend(judged);
        // Later failures do not postpone the retry.
        self.record_again_at.get_or_insert_with(|| Instant::now() + RECORD_AGAIN_AFTER);
    }

    /// The next start finds the recipients in the spool as they were before this attempt.
    fn give_up(&mut self, judged: Vec<Judged>) {
        self.crew.recorder.complain(judged.len(), "they are retried after the next start");
        judged.into_iter().for_each(|judged| self.forget(judged.attempt));
    }

    /// Drops recipients that the spool no longer has.
    fn forget(&mut self, attempt: Attempt) {
        let verdicts = vec![Verdict::Removed; attempt.recipients.len()];
        self.queues.report(now(), attempt, &verdicts);
    }
}

/// The outcome of an operator's action. Only that of a bounce reaches a sender.
fn outcome_of(act: Act) -> Outcome {
    match act {
        Act::Bounce => {
            Outcome::Failed(Reply::new(554, Enhanced(5, 0, 0), "the postmaster returned this message as undeliverable"))
        }
        Act::Hold | Act::Release | Act::Retry | Act::Remove => Outcome::Delivered,
    }
}

fn now() -> Timestamp {
    SystemTime::now().into()
}
