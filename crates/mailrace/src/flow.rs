//! The path of a message after its 250. One thread schedules; other threads deliver to local
//! mailboxes and to other hosts. The spool records each outcome before the queue learns of it.
//!
//! ```text
//! spool --Committed--> scheduler --attempt--> local deliverer > delivery::local  > mailbox
//!   ^                   |  ^  ^ \             SMTP deliverer  > delivery::remote > next hop
//!   |  [DSN sender] <---'  |  |  `--query---> route resolver  > route
//!   '---- submit ----------'  |                   |
//!          Recorded           '------ Routed -----'     deliverers answer with Ended
//! ```
//!
//! The parts send [`Note`]s to the scheduler, which alone owns the queues. Work that may wait for a
//! disk or a directory has threads of its own: the classifier, for messages whose envelope does not
//! determine the queue, and the DSN sender, for attempts that may need a notice.

mod carrier;
mod courier;
mod emptier;
mod navigator;
mod notary;
mod places;
mod record;
mod registrar;
mod scheduler;
mod shelf;
mod sorter;
mod sorting;
mod strays;
mod submission;
mod way;

use std::collections::HashMap;
use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use delivery::Ending;
use delivery::bounce::Letter;
use delivery::remote::NextHop;
use load::Delivery;
use lookup::directory::Directory;
use mail::{Envelope, Fact, Journal, LoggedHeader, QueueId, Timestamp};
use queue::{Contact, Destination, Routed, Verdict};
use spool::{CommitError, Live, ReadError, Spool};

use crate::line::Level;
use crate::log::Log;
use crate::metrics::Attempts;
use crate::tables::Tables;

use carrier::Carriers;
use courier::Courier;
pub use courier::Transport;
pub use emptier::{DropFolder, Emptier};
use navigator::Shipyard;
pub use navigator::{Exception, Fleet, Ship};
pub use notary::Notices;
use notary::Terms;
pub use places::{Folders, PlaceTable, Places};
use record::Recorder;
use registrar::Registrar;
use scheduler::{Crew, Scheduler};
use shelf::{Message, Shelf};
pub use sorter::Rules;
use sorter::{Sorted, Sorter};
use sorting::SortingRoom;
pub use submission::Desk as DropDesk;
pub use way::Way;

/// The queues; each destination carries its route.
pub type Queues = queue::Queues<Arc<Way>>;
type Attempt = queue::Attempt<Arc<Way>>;

/// Blocking threads of each SMTP delivery thread. Bodies may need all disk reads that the process
/// allows; a permit without a thread would block other readers. The extra threads read messages, so
/// that these need not wait for bodies.
const BLOCKING_THREADS_MAX: usize = net::DISK_READS_MAX + 8;
/// At shutdown, attempts in progress may take this long to finish.
const STOP_TIME_MAX: Duration = Duration::from_secs(30);

/// A message to the scheduler.
enum Note {
    /// Messages that are now durable in the spool.
    Committed(Vec<Live>),
    /// A message whose envelope was not enough, classified by these rules.
    Sorted(Arc<Rules>, Sorted),
    /// The recipients of this attempt belong elsewhere by these rules; the attempt is void.
    Resorted(Arc<Rules>, Attempt, Sorted),
    /// The route of a destination, by this edition of the routing.
    Routed(u32, Destination, Routed<Arc<Way>>),
    /// Finished attempts.
    Ended(Vec<Ended>),
    /// An attempt at this next hop has waited a long time for an answer.
    Slow(Arc<NextHop>),
    /// The spool's answer to a record of outcomes.
    Recorded(Vec<Judged>, Result<(), CommitError>),
    /// Outcomes that cannot be recorded now, and why.
    Unrecorded(Vec<Judged>, &'static str),
    /// The message of this attempt is gone or set aside: nothing is recorded.
    Void(Attempt),
    /// The message of this attempt cannot be read now, and why.
    Unread(Attempt, String),
    /// Which deliveries may start, by load.
    Load(Delivery),
    /// Runs on the scheduler's thread, to read or change the queues.
    Ask(Box<dyn FnOnce(&mut Queues) + Send>),
    /// Switches to another configuration.
    Change(Box<scheduler::Change>),
    /// Stops; sent at this time.
    Stop(Timestamp),
}

/// A finished attempt.
struct Ended {
    attempt: Attempt,
    /// None if it could not be read.
    message: Option<Arc<Message>>,
    ending: Ending,
    contact: Contact,
    /// The host that answered.
    peer: Option<Box<str>>,
}

/// A finished attempt with a verdict for each recipient.
struct Judged {
    attempt: Attempt,
    /// None if it has not been read yet.
    message: Option<Arc<Message>>,
    verdicts: Vec<Verdict>,
    /// Set if a delay notice is due: when we stop retrying.
    late_until: Option<Timestamp>,
    /// The host that answered.
    peer: Option<Box<str>>,
    /// The notice to the sender.
    notice: Option<Told>,
    /// Progress of the notice, which may take several tries.
    telling: Telling,
}

/// The tries to send a notice.
#[derive(Default)]
struct Telling {
    /// Since when the sender's address cannot be resolved.
    unaddressed_since: Option<Instant>,
    /// Whether the notice is sent, once decided.
    decision: Option<bool>,
}

/// A notice made for an attempt.
struct Told {
    id: QueueId,
    /// The recipients that it reports.
    ordinals: Vec<u32>,
    /// How many recipients the notice has.
    recipients: usize,
    size: u64,
    /// The header fields for the log.
    header: LoggedHeader,
}

impl Told {
    fn by(letter: &Letter, id: QueueId, ordinals: Vec<u32>, envelope: &Envelope) -> Told {
        // The subject would be our own text.
        let header = intake::logged_header(&letter.content, false);
        Told { id, ordinals, recipients: envelope.recipients.len(), size: letter.content.len() as u64, header }
    }

    /// The log event for the notice.
    fn received(&self, hostname: &str) -> Fact {
        Fact::Received {
            id: self.id,
            client: None,
            helo: hostname.into(),
            sender: None,
            recipients: self.recipients,
            size: self.size,
            protocol: "bounce",
            security: None,
            user: None,
            header: self.header.clone(),
        }
    }
}

/// A handle to the scheduler.
#[derive(Clone)]
pub struct Mailbag(Sender<Note>);

/// The messages for the scheduler, kept until it starts.
pub struct Notes(Receiver<Note>);

/// What the flow starts with.
pub struct Parts {
    /// The messages.
    pub spool: Arc<Spool>,
    /// The queues, with the recovered messages already in them.
    pub queues: Queues,
    /// The first configuration.
    pub course: Course,
    /// Threads that deliver to other hosts.
    pub carriers: usize,
    /// Counters of outcomes.
    pub attempts: Arc<Attempts>,
    /// The log.
    pub log: Arc<Log>,
}

/// The part of the configuration that can change while mail is being delivered ([`Flow::prepare`]).
pub struct Course {
    /// Resolves addresses and names the host of each mailbox.
    pub directory: Arc<Directory>,
    /// The tables that the routing rules use.
    pub tables: Tables,
    /// The rules that choose the queue of a message.
    pub rules: Arc<Rules>,
    /// How mail is routed.
    pub router: route::Config,
    /// All transports.
    pub fleet: Fleet,
    /// The local (Maildir) transports.
    pub transports: Vec<Transport>,
    /// When senders get notices.
    pub notices: Notices,
    /// The hostname of this server.
    pub hostname: Box<str>,
}

/// What a new configuration changes.
#[derive(Clone, Copy, Debug)]
pub struct Difference {
    /// Routes or transport settings differ. Otherwise the router stays, with its cache.
    pub ways: bool,
    /// The limit on notices differs. Otherwise the notices already sent still count.
    pub cap: bool,
}

/// A configuration that is ready to apply; applying it cannot fail.
pub struct Change(Box<scheduler::Change>);

/// The running threads.
pub struct Flow {
    mailbag: Mailbag,
    workshop: Workshop,
    /// Every thread holds a sender; the channel closes when the last thread ends.
    ended: Receiver<()>,
}

/// What it takes to start more threads.
struct Workshop {
    shelf: Shelf,
    shipyard: Shipyard,
    alive: Sender<()>,
}

/// The channel to the scheduler. It is created first, because the spool needs the sender before the
/// queues are recovered.
pub fn mailbag() -> (Mailbag, Notes) {
    let (sender, receiver) = mpsc::channel();
    (Mailbag(sender), Notes(receiver))
}

/// Adds a recovered message to the queues, or leaves it to the classifier.
pub fn admit(queues: &mut Queues, rules: &Arc<Rules>, mailbag: &Mailbag, message: Live) {
    let (sorter, now) = (Sorter::new(rules.clone()), SystemTime::now().into());
    match sorter.knows(&message) {
        true => sorter.enter(queues, &Sorted::by_envelope(message), now, now),
        false => mailbag.tell(Note::Committed(vec![message])),
    }
}

impl Flow {
    /// Starts the threads.
    pub fn start(parts: Parts, mailbag: Mailbag, notes: Notes) -> io::Result<Flow> {
        let Parts { spool, queues, course, carriers, attempts, log } = parts;
        let Course { directory, tables, rules, router, fleet, transports, notices, hostname } = course;
        let (alive, ended) = mpsc::channel();
        let shelf = Shelf::new(spool.clone());
        let (navigator, shipyard) = navigator::start(router, &tables, fleet, mailbag.clone(), alive.clone())?;
        let workshop = Workshop { shelf: shelf.clone(), shipyard, alive: alive.clone() };
        let couriers = workshop.couriers(transports, &hostname, &mailbag)?;
        let registrar = Registrar { spool, mailbag: mailbag.clone() };
        let patience = notices.patience(queues.config());
        let office = notary::Office {
            registrar: registrar.clone(),
            shelf: shelf.clone(),
            directory: directory.clone(),
            rules: rules.clone(),
            attempts: attempts.clone(),
        };
        let notary = office.open(notices, hostname.clone(), log.clone(), alive.clone())?;
        let crew = Crew {
            couriers,
            carriers: Carriers::start(carriers, &shelf, &mailbag, &alive)?,
            navigator,
            sorter: SortingRoom::start(rules.clone(), shelf, directory, mailbag.clone(), alive.clone())?,
            recorder: Recorder::new(registrar, notary, hostname, attempts, log),
            patience,
        };
        let scheduler = Scheduler::new(queues, Sorter::new(rules), crew);
        let run = move || {
            scheduler.run(&notes.0);
            drop((notes, alive));
        };
        thread::Builder::new().name("scheduler".into()).spawn(run)?;
        Ok(Flow { mailbag, workshop, ended })
    }

    /// Prepares another configuration without using it yet. Dropping the result undoes it.
    ///
    /// # Errors
    ///
    /// A thread cannot be started, or the system configures no DNS servers.
    pub fn prepare(&self, queues: queue::Config, course: Course, differs: Difference) -> io::Result<Change> {
        let Course { directory, tables, rules, router, fleet, transports, notices, hostname } = course;
        let ways = differs.ways.then(|| self.workshop.shipyard.ways(router, &tables, fleet)).transpose()?;
        let couriers = self.workshop.couriers(transports, &hostname, &self.mailbag)?;
        let patience = notices.patience(&queues);
        let (keeps_cap, directory_of_terms) = (!differs.cap, directory.clone());
        let terms = Terms { notices, keeps_cap, rules: rules.clone(), directory: directory_of_terms, hostname };
        let change = scheduler::Change { queues, rules, directory, couriers, ways, patience, terms };
        Ok(Change(Box::new(change)))
    }

    /// Applies the prepared configuration. Attempts in progress finish with the old one.
    pub fn change(&self, change: Change) {
        self.mailbag.tell(Note::Change(change.0));
    }

    /// Finishes the attempts in progress and starts no others. Returns false on timeout: a disk or
    /// a mailbox hangs, and the threads that wait for it are abandoned.
    pub fn stop(self) -> bool {
        let Flow { mailbag, workshop, ended } = self;
        drop(workshop);
        mailbag.tell(Note::Stop(SystemTime::now().into()));
        ended.recv_timeout(STOP_TIME_MAX * 2) == Err(RecvTimeoutError::Disconnected)
    }
}

impl Workshop {
    /// Starts a thread for each local transport.
    fn couriers(
        &self,
        transports: Vec<Transport>,
        hostname: &str,
        mailbag: &Mailbag,
    ) -> io::Result<HashMap<Box<str>, Sender<Attempt>>> {
        let start =
            |transport| Courier::start(transport, hostname, self.shelf.clone(), mailbag.clone(), self.alive.clone());
        transports.into_iter().map(start).collect()
    }
}

impl Mailbag {
    fn tell(&self, note: Note) {
        // Only fails after the flow has ended, when nothing needs the message.
        drop(self.0.send(note));
    }

    /// Sets which deliveries may start.
    pub fn set_delivery(&self, delivery: Delivery) {
        self.tell(Note::Load(delivery));
    }

    /// Runs `question` on the scheduler's thread, which waits for it. None if the flow has stopped.
    pub fn ask<T: Send + 'static>(&self, question: impl FnOnce(&mut Queues) -> T + Send + 'static) -> Option<T> {
        let (sender, receiver) = mpsc::channel();
        // The caller may be gone.
        self.tell(Note::Ask(Box::new(move |queues| drop(sender.send(question(queues))))));
        receiver.recv().ok()
    }
}

impl Note {
    /// The message for an attempt whose message could not be read.
    fn unread(attempt: Attempt, error: ReadError) -> Note {
        match error {
            ReadError::Unknown => Note::Void(attempt),
            ReadError::Unavailable(why) => Note::Unread(attempt, why),
            ReadError::Damaged { what } => Note::Ended(vec![Ended {
                attempt,
                message: None,
                ending: Ending::Damaged(what),
                contact: Contact::None,
                peer: None,
            }]),
        }
    }
}

impl Judged {
    /// Whether a notice may be due, or the message has to be read to find out.
    fn may_need_notice(&self) -> bool {
        let Some(message) = &self.message else { return true };
        let envelope = &message.envelope;
        let wants_success = |ordinal: u32| {
            envelope.recipients.get(ordinal as usize).is_some_and(|found| found.notify.contains(mail::Notify::SUCCESS))
        };
        self.attempt.recipients.iter().zip(&self.verdicts).any(|(ordinal, verdict)| match verdict {
            Verdict::Failed { .. } => true,
            Verdict::Deferred { .. } => self.late_until.is_some(),
            Verdict::Delivered | Verdict::Relayed { .. } => wants_success(*ordinal),
            Verdict::Held | Verdict::Removed => false,
        })
    }
}

/// Forwards the spool's events to the scheduler and to the log.
pub fn hear(mailbag: Mailbag, log: Arc<Log>) -> impl Fn(spool::Event) + Send + Sync {
    // An mpsc sender is used by one thread at a time; the spool has several.
    let mailbag = Mutex::new(mailbag);
    move |event| match event {
        spool::Event::Committed(messages) => {
            let mailbag = mailbag.lock().unwrap_or_else(PoisonError::into_inner);
            mailbag.tell(Note::Committed(messages));
        }
        spool::Event::SetAside { id, what } => log.write(Fact::SetAside { id, what }),
        spool::Event::BatchFailed { lane, segment, error } => log.event(
            Level::Error,
            "writing to the spool failed; nothing in the batch was acknowledged",
            &[("lane", &lane), ("segment", &segment), ("error", &error)],
        ),
        spool::Event::NoSegment { lane, error } => {
            log.event(Level::Error, "the spool is full", &[("lane", &lane), ("error", &error)]);
        }
    }
}
