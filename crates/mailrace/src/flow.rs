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
use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};

use delivery::local::Ended;
use lookup::directory::Directory;
use mail::{Envelope, Fact, Journal, Timestamp};
use queue::{Attempt, Entry, Queue, Verdict};
use spool::{CommitError, Live, Spool};

use crate::line::Level;
use crate::log::Log;

use courier::Courier;
pub use courier::Transport;
use record::Recorder;
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
    /// The message of this attempt could not be read now, and why.
    Unread(Attempt, String),
    /// How many recipients wait?
    Count(Sender<usize>),
    /// Who waits?
    List(Sender<Vec<Entry>>),
    /// Come to an end; said at this moment.
    Stop(Timestamp),
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
    /// Who stands for whom, for bounces.
    pub directory: Arc<Directory>,
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
    /// Each thread holds the other end until it ends.
    ended: Receiver<()>,
}

/// What is under way when the server stops has so long to come to its end.
const STOP_TIME_MAX: Duration = Duration::from_secs(30);

/// A way to tell the scheduler, and what it will read: made first, since the spool needs the one before the
/// queue is full enough to start.
pub fn mailbag() -> (Mailbag, Notes) {
    let (sender, receiver) = mpsc::channel();
    (Mailbag(sender), Notes(receiver))
}

impl Flow {
    /// Starts the threads.
    pub fn start(parts: Parts, mailbag: Mailbag, notes: Notes) -> io::Result<Flow> {
        let Parts { spool, directory, queue, routes, transports, hostname, log } = parts;
        let (alive, ended) = mpsc::channel();
        let couriers = transports
            .into_iter()
            .map(|transport| Courier::start(transport, &hostname, spool.clone(), mailbag.clone(), alive.clone()))
            .collect::<io::Result<HashMap<_, _>>>()?;
        let recorder = Recorder::new(spool, directory, hostname, log, mailbag.clone())?;
        let scheduler = Scheduler::new(queue, routes, couriers, recorder);
        let run = move || {
            scheduler.run(&notes.0);
            drop(alive);
        };
        thread::Builder::new().name("scheduler".into()).spawn(run)?;
        Ok(Flow { mailbag, ended })
    }

    /// Lets what is under way come to its end, and starts nothing more. False if that took too long: a disk or a
    /// mailbox hangs, and the threads that wait for it are left behind.
    pub fn stop(self) -> bool {
        self.mailbag.tell(Note::Stop(SystemTime::now().into()));
        self.ended.recv_timeout(STOP_TIME_MAX * 2) == Err(RecvTimeoutError::Disconnected)
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
    let mailbag = Mutex::new(mailbag);
    move |event| match event {
        spool::Event::Committed(messages) => {
            let mailbag = mailbag.lock().unwrap_or_else(PoisonError::into_inner);
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
