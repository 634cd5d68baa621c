//! The thread that owns the queue: it admits what the spool has committed, sends out what is due, and learns
//! outcomes when the spool has them.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, SystemTime};

use delivery::local::{Ended, Ending};
use mail::{Enhanced, Outcome, Reply, Timestamp};
use queue::{Admission, Attempt, Pending, Queue, Verdict};
use spool::{CommitError, Live, ReadError, State};

use super::record::Recorder;
use super::{Judged, Note, STOP_TIME_MAX};

/// After a failure to record, the spool is asked again so much later.
const RECORD_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// A message that could not be read is tried again so much later.
const READ_AGAIN_AFTER: Duration = Duration::from_secs(60);
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
    /// Since when we are to stop.
    stopping: Option<Timestamp>,
}

impl Scheduler {
    pub(super) fn new(
        queue: Queue,
        routes: HashMap<Box<str>, Box<str>>,
        couriers: HashMap<Box<str>, Sender<Attempt>>,
        recorder: Recorder,
    ) -> Self {
        Scheduler { queue, routes, couriers, recorder, unrecorded: Vec::new(), record_again_at: None, stopping: None }
    }

    /// Works until it was told to stop and nothing is in flight.
    pub(super) fn run(mut self, notes: &Receiver<Note>) {
        while !self.is_over() {
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

    /// Told to stop, and nothing is in flight or it took too long.
    fn is_over(&self) -> bool {
        self.stopping.is_some_and(|since| self.queue.in_flight() == 0 || now().since(since) >= STOP_TIME_MAX)
    }

    fn sleep(&self) -> Duration {
        let due = match self.stopping {
            Some(since) => Some(since + STOP_TIME_MAX),
            None => self.queue.next_deadline(),
        };
        let soonest = due.into_iter().chain(self.record_again_at).min();
        // A millisecond more: the queue's clock has whole ones.
        soonest.map_or(SLEEP_MAX, |at| at.since(now()) + Duration::from_millis(1)).min(SLEEP_MAX)
    }

    fn read(&mut self, note: Note) {
        match note {
            Note::Committed(messages) => messages.iter().for_each(|message| admit(&mut self.queue, message)),
            Note::Ended(ended) => self.judge(ended),
            Note::Recorded(judged, Ok(())) => self.learn(judged),
            Note::Recorded(judged, Err(CommitError::TooLarge | CommitError::Closed)) => self.give_up(judged),
            Note::Recorded(judged, Err(error)) => self.keep(judged, &error.to_string()),
            Note::Void(attempt) => self.forget(attempt),
            Note::Unread(attempt, why) => self.postpone(attempt, why),
            // Whoever asked may have gone away.
            Note::Count(asker) => drop(asker.send(self.queue.len())),
            Note::List(asker) => drop(asker.send(self.queue.entries().collect())),
            Note::Stop(at) => self.stopping = Some(at),
        }
    }

    /// Sends out everything that is due and has room.
    fn dispatch(&mut self) {
        let now = now();
        while self.stopping.is_none()
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

    /// There is no way to bring it. A bounce that nobody can be brought is given up at once; other mail waits for
    /// the operator, who may have taken the domain away by mistake.
    fn defer(&mut self, attempt: Attempt, why: &'static str) {
        let envelope = match self.recorder.envelope(attempt.id) {
            Ok(envelope) => envelope,
            Err(ReadError::Unknown) => return self.forget(attempt),
            Err(error) => return self.postpone(attempt, error.to_string()),
        };
        let outcome = match envelope.sender {
            Some(_) => Outcome::Deferred(Reply::new(451, Enhanced(4, 4, 4), why)),
            None => Outcome::Failed(Reply::new(550, Enhanced(5, 4, 4), why)),
        };
        let ending = Ending::Outcomes(vec![outcome; attempt.recipients.len()]);
        self.judge(vec![Ended { ticket: attempt, envelope, ending }]);
    }

    /// Nothing happened to the message, and nothing is recorded of it.
    fn postpone(&mut self, attempt: Attempt, why: String) {
        self.recorder.complain_of_reading(attempt.id, &why);
        let (now, reason) = (now(), Reply::new(451, Enhanced(4, 3, 0), why));
        let verdict = Verdict::Deferred { reason, until: now + READ_AGAIN_AFTER };
        let verdicts = vec![verdict; attempt.recipients.len()];
        self.queue.report(now, attempt, &verdicts);
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
        self.record(judged, now);
    }

    fn record(&mut self, judged: Vec<Judged>, now: Timestamp) {
        let rest = self.recorder.record(judged, now);
        if !rest.is_empty() {
            self.keep(rest, "the directory does not say who gets the bounce");
        }
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
    fn keep(&mut self, judged: Vec<Judged>, why: &str) {
        if self.stopping.is_some() {
            return self.give_up(judged);
        }
        self.recorder.complain(judged.len(), why);
        self.unrecorded.extend(judged);
        self.record_again_at = Some(now() + RECORD_AGAIN_AFTER);
    }

    /// The next start finds them in the spool as they were before this attempt.
    fn give_up(&mut self, judged: Vec<Judged>) {
        self.recorder.complain(judged.len(), "given up until the next start");
        judged.into_iter().for_each(|judged| self.forget(judged.attempt));
    }

    fn record_again(&mut self) {
        let now = now();
        if self.record_again_at.is_some_and(|at| at <= now) {
            self.record_again_at = None;
            let unrecorded = std::mem::take(&mut self.unrecorded);
            self.record(unrecorded, now);
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
