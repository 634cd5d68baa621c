//! The thread that owns the queue: it admits what the spool has committed, sends out what is due, and learns
//! outcomes when the spool has them.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, SystemTime};

use delivery::local::{Ended, Ending};
use mail::{Enhanced, Outcome, Reply, Timestamp};
use queue::{Admission, Attempt, Pending, Queue, Verdict};
use spool::{CommitError, Live, State};

use super::record::Recorder;
use super::{Judged, Note};

/// After a failure to record, the spool is asked again so much later.
const RECORD_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Sleep no longer than this, so that a clock that was set is noticed.
const SLEEP_MAX: Duration = Duration::from_secs(60);

pub(super) struct Scheduler {
    queue: Queue,
    routes: HashMap<Box<str>, Box<str>>,
    couriers: HashMap<Box<str>, Sender<Attempt>>,
    recorder: Recorder,
    /// Verdicts that the spool could not take, and when it is asked again.
    unrecorded: Vec<Judged>,
    record_again_at: Option<Timestamp>,
    stopping: bool,
}

impl Scheduler {
    pub(super) fn new(
        queue: Queue,
        routes: HashMap<Box<str>, Box<str>>,
        couriers: HashMap<Box<str>, Sender<Attempt>>,
        recorder: Recorder,
    ) -> Self {
        Scheduler { queue, routes, couriers, recorder, unrecorded: Vec::new(), record_again_at: None, stopping: false }
    }

    /// Works until it was told to stop and nothing is in flight.
    pub(super) fn run(mut self, notes: &Receiver<Note>) {
        while !(self.stopping && self.queue.in_flight() == 0) {
            self.dispatch();
            match notes.recv_timeout(self.sleep()) {
                Ok(note) => self.read(note),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            while let Ok(note) = notes.try_recv() {
                self.read(note);
            }
            self.record_again();
        }
    }

    fn sleep(&self) -> Duration {
        let due = if self.stopping { None } else { self.queue.next_deadline() };
        let soonest = due.into_iter().chain(self.record_again_at).min();
        // A millisecond more: the queue's clock has whole ones.
        soonest.map_or(SLEEP_MAX, |at| at.since(now()) + Duration::from_millis(1)).min(SLEEP_MAX)
    }

    fn read(&mut self, note: Note) {
        match note {
            Note::Committed(messages) => messages.iter().for_each(|message| admit(&mut self.queue, message)),
            Note::Ended(ended) => self.judge(ended),
            Note::Recorded(judged, Ok(())) => self.learn(judged),
            Note::Recorded(judged, Err(error)) => self.keep(judged, &error),
            Note::Void(attempt) => self.forget(attempt),
            // Whoever asked may have gone away.
            Note::Count(asker) => drop(asker.send(self.queue.len())),
            Note::List(asker) => drop(asker.send(self.queue.entries().collect())),
            Note::Stop => self.stopping = true,
        }
    }

    /// Sends out everything that is due and has room.
    fn dispatch(&mut self) {
        let now = now();
        while !self.stopping
            && let Some(attempt) = self.queue.next(now)
        {
            let domain = self.queue.domain(attempt.destination);
            let courier = self.routes.get(domain).and_then(|transport| self.couriers.get(transport));
            match courier {
                Some(courier) => {
                    if let Err(unsent) = courier.send(attempt) {
                        self.defer(unsent.0, "the transport has stopped");
                    }
                }
                None => self.defer(attempt, "no transport leads to this domain"),
            }
        }
    }

    fn defer(&mut self, attempt: Attempt, why: &'static str) {
        let outcomes = vec![Outcome::Deferred(Reply::new(451, Enhanced(4, 4, 4), why)); attempt.recipients.len()];
        match self.recorder.envelope(attempt.id) {
            Some(envelope) => {
                self.judge(vec![Ended { ticket: attempt, envelope, ending: Ending::Outcomes(outcomes) }]);
            }
            None => self.forget(attempt),
        }
    }

    fn judge(&mut self, ended: Vec<Ended<Attempt>>) {
        let mut judged = Vec::with_capacity(ended.len());
        let now = now();
        for Ended { ticket: attempt, envelope, ending } in ended {
            match ending {
                Ending::Damaged(what) => self.recorder.set_aside(attempt, &what),
                Ending::Outcomes(outcomes) => {
                    let verdicts = outcomes.into_iter().map(|outcome| self.queue.judge(now, &attempt, outcome));
                    let verdicts = verdicts.collect();
                    judged.push(Judged { attempt, envelope, verdicts, bounce: None });
                }
            }
        }
        self.recorder.record(judged, now);
    }

    /// The spool has it: the queue may know, and the log.
    fn learn(&mut self, judged: Vec<Judged>) {
        let now = now();
        for judged in judged {
            let domain = self.queue.domain(judged.attempt.destination);
            let transport = self.routes.get(domain).map_or("none", |transport| transport);
            self.recorder.tell(&judged, transport, now);
            self.queue.report(now, judged.attempt, &judged.verdicts);
        }
    }

    /// Nothing is forgotten while the spool cannot take it: the recipients stay in flight.
    fn keep(&mut self, judged: Vec<Judged>, error: &CommitError) {
        self.recorder.complain(judged.len(), error);
        if *error == CommitError::Closed {
            return judged.into_iter().for_each(|judged| self.forget(judged.attempt));
        }
        self.unrecorded.extend(judged);
        self.record_again_at = Some(now() + RECORD_AGAIN_AFTER);
    }

    fn record_again(&mut self) {
        let now = now();
        if self.record_again_at.is_some_and(|at| at <= now) {
            self.record_again_at = None;
            self.recorder.record(std::mem::take(&mut self.unrecorded), now);
        }
    }

    /// The queue lets go of recipients of whom the spool keeps nothing any more.
    fn forget(&mut self, attempt: Attempt) {
        let verdicts = vec![Verdict::Delivered; attempt.recipients.len()];
        self.queue.report(now(), attempt, &verdicts);
    }
}

/// Takes a live message into the queue; also used for what a start finds in the spool.
pub(crate) fn admit(queue: &mut Queue, message: &Live) {
    let mut recipients = Vec::with_capacity(message.states.len());
    for (ordinal, state) in (0..).zip(&message.states) {
        if let State::Waiting { attempts, until } = *state {
            let domain = message.envelope.recipients[ordinal as usize].address.domain();
            recipients.push(Pending { ordinal, destination: queue.destination(domain), attempts, due: until });
        }
    }
    let admission = Admission {
        id: message.id,
        sender: message.envelope.sender.as_ref().map_or(0, fingerprint),
        accepted_at: message.envelope.accepted_at,
        recovered: message.recovered,
        recipients,
    };
    queue.admit(now(), &admission);
}

fn fingerprint(sender: &mail::Address) -> u64 {
    let mut hasher = DefaultHasher::new();
    sender.hash(&mut hasher);
    hasher.finish()
}

fn now() -> Timestamp {
    SystemTime::now().into()
}
