//! The path of a message after its 250, wired. One thread schedules, one courier for each transport delivers;
//! the spool is told of every outcome before the queue learns of it.
//!
//! ```text
//! spool --Committed--> scheduler --Attempt--> courier > delivery > mailbox
//!   ^                      |  ^                  |
//!   '---- submit ----------'  '----- Ended ------'
//!          Recorded -> scheduler: the queue learns it
//! ```
//!
//! What goes between them are [`Note`]s to the scheduler, which alone owns the queue.

mod courier;
mod record;
mod scheduler;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

use delivery::local::Ended;
use mail::{Envelope, Fact, Journal};
use queue::{Attempt, Entry, Queue, Verdict};
use spool::{CommitError, Live, Spool};

use crate::log::{Level, Log};

use courier::Courier;
pub use courier::Transport;
use scheduler::Scheduler;
pub(crate) use scheduler::admit;

/// What the scheduler is told.
pub(crate) enum Note {
    /// These messages are durable in the spool.
    Committed(Vec<Live>),
    /// Attempts that are over.
    Ended(Vec<Ended<Attempt>>),
    /// The spool's answer to a record of verdicts.
    Recorded(Vec<Judged>, Result<(), CommitError>),
    /// The message of this attempt is gone or set aside: nothing is left to record.
    Void(Attempt),
    /// How many recipients wait?
    Count(Sender<usize>),
    /// Who waits?
    List(Sender<Vec<Entry>>),
    /// Come to an end.
    Stop,
}

/// An attempt and what it means.
pub(crate) struct Judged {
    pub(crate) attempt: Attempt,
    pub(crate) envelope: Envelope,
    pub(crate) verdicts: Vec<Verdict>,
    /// The bounce that tells the sender of those that failed.
    pub(crate) bounce: Option<record::Told>,
}

/// A way to tell the scheduler.
#[derive(Clone)]
pub struct Mailbag(Sender<Note>);

/// What the scheduler will be told, kept until it starts.
pub struct Notes(Receiver<Note>);

/// What the flow is made of.
pub struct Parts {
    /// The messages.
    pub spool: Arc<Spool>,
    /// With what was recovered already in it.
    pub queue: Queue,
    /// Which transport delivers a domain's mail.
    pub routes: HashMap<Box<str>, Box<str>>,
    /// The transports.
    pub transports: Vec<Transport>,
    /// The name of this server.
    pub hostname: Box<str>,
    /// Facts and events.
    pub log: Arc<Log>,
}

/// The running threads.
pub struct Flow {
    mailbag: Mailbag,
    scheduler: JoinHandle<()>,
}

/// A way to tell the scheduler, and what it will read: made first, since the spool needs the one before the
/// queue is full enough to start.
pub fn mailbag() -> (Mailbag, Notes) {
    let (sender, receiver) = mpsc::channel();
    (Mailbag(sender), Notes(receiver))
}

impl Flow {
    /// Starts the threads.
    pub fn start(parts: Parts, mailbag: Mailbag, notes: Notes) -> std::io::Result<Flow> {
        let Parts { spool, queue, routes, transports, hostname, log } = parts;
        let couriers = transports
            .into_iter()
            .map(|transport| Courier::start(transport, &hostname, spool.clone(), mailbag.clone()))
            .collect::<std::io::Result<HashMap<_, _>>>()?;
        let recorder = record::Recorder { spool, hostname, log, mailbag: mailbag.clone() };
        let scheduler = Scheduler::new(queue, routes, couriers, recorder);
        let scheduler = thread::Builder::new().name("scheduler".into()).spawn(move || scheduler.run(&notes.0))?;
        Ok(Flow { mailbag, scheduler })
    }

    /// Lets what is under way come to its end, and starts nothing more.
    pub fn stop(self) {
        self.mailbag.tell(Note::Stop);
        // A thread that panicked has said so already.
        drop(self.scheduler.join());
    }
}

impl Mailbag {
    pub(crate) fn tell(&self, note: Note) {
        // Nobody listens only when the flow has come to its end; then there is nothing to tell.
        drop(self.0.send(note));
    }

    /// How many recipients wait; None if the flow has stopped.
    pub fn count(&self) -> Option<usize> {
        let (sender, receiver) = mpsc::channel();
        self.tell(Note::Count(sender));
        receiver.recv().ok()
    }

    /// All who wait, by message; None if the flow has stopped.
    pub fn list(&self) -> Option<Vec<Entry>> {
        let (sender, receiver) = mpsc::channel();
        self.tell(Note::List(sender));
        receiver.recv().ok()
    }
}

/// What the spool tells of itself goes to the scheduler and to the log.
pub fn hear(mailbag: Mailbag, log: Arc<Log>) -> impl Fn(spool::Event) + Send + Sync {
    // A channel's sender may be used by one thread at a time; the spool has several.
    let mailbag = std::sync::Mutex::new(mailbag);
    move |event| match event {
        spool::Event::Committed(messages) => {
            let mailbag = mailbag.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            mailbag.tell(Note::Committed(messages));
        }
        spool::Event::SetAside { id, what } => log.write(Fact::SetAside { id, what }),
        spool::Event::BatchFailed { lane, segment, error } => log.event(
            Level::Error,
            "the spool could not be written; nothing of the batch was acknowledged",
            &[("lane", &lane), ("segment", &segment), ("error", &error)],
        ),
        spool::Event::NoSegment { lane, error } => {
            log.event(Level::Error, "the spool has no room", &[("lane", &lane), ("error", &error)]);
        }
    }
}
