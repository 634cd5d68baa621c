//! The path of a message after its 250, wired. One thread schedules; couriers bring mail to mailboxes here, carriers to
//! other hosts; the spool is told of every outcome before the queue learns of it.
//!
//! ```text
//! spool --Committed--> scheduler --Attempt--> courier > delivery::local  > mailbox
//!   ^                   |  ^  ^ \             carrier > delivery::remote > next hop
//!   |    [notary] <-----'  |  |  `-Question-> navigator > route
//!   '---- submit ----------'  |                   |
//!          Recorded           '------ Routed -----'        Ended comes back from couriers and carriers
//! ```
//!
//! What goes between them are [`Note`]s to the scheduler, which alone owns the queues. Threads that may wait for a disk or
//! a directory stand beside it: the sorter for messages whose envelope does not say where they belong, the notary for
//! attempts of which somebody is to be told.

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

/// The queues, which carry ways.
pub type Queues = queue::Queues<Arc<Way>>;
type Attempt = queue::Attempt<Arc<Way>>;

/// Threads of each carrier that may wait for a disk: for bodies as many as the whole process has places for, since one
/// carrier may need them all and a place without a thread would be kept from the others; the rest fetch messages, which
/// so need not wait for bodies.
const BLOCKING_THREADS_MAX: usize = net::DISK_READS_MAX + 8;
/// What is under way when the server stops has so long to come to its end.
const STOP_TIME_MAX: Duration = Duration::from_secs(30);

/// What the scheduler is told.
enum Note {
    /// These messages are durable in the spool.
    Committed(Vec<Live>),
    /// A message whose envelope did not say all, sorted by these rules.
    Sorted(Arc<Rules>, Sorted),
    /// The recipients of this attempt, which is void, belong elsewhere by these rules.
    Resorted(Arc<Rules>, Attempt, Sorted),
    /// Where mail for a destination goes, by this edition of the ways.
    Routed(u32, Destination, Routed<Arc<Way>>),
    /// Attempts that are over.
    Ended(Vec<Ended>),
    /// An attempt at this next hop waits for an answer, and that for long.
    Slow(Arc<NextHop>),
    /// The spool's answer to a record of verdicts.
    Recorded(Vec<Judged>, Result<(), CommitError>),
    /// These could not be brought to the spool now, and why.
    Unrecorded(Vec<Judged>, &'static str),
    /// The message of this attempt is gone or set aside: nothing is left to record.
    Void(Attempt),
    /// The message of this attempt could not be read now, and why.
    Unread(Attempt, String),
    /// Which deliveries may start.
    Load(Delivery),
    /// Something to ask of the queues, or to change there.
    Ask(Box<dyn FnOnce(&mut Queues) + Send>),
    /// Go by something else from now on.
    Change(Box<scheduler::Change>),
    /// Come to an end; said at this moment.
    Stop(Timestamp),
}

/// An attempt that is over.
struct Ended {
    attempt: Attempt,
    /// None where it could not be read.
    message: Option<Arc<Message>>,
    ending: Ending,
    contact: Contact,
    /// Who answered.
    peer: Option<Box<str>>,
}

/// An attempt and what it means.
struct Judged {
    attempt: Attempt,
    /// None where nobody has read it yet.
    message: Option<Arc<Message>>,
    verdicts: Vec<Verdict>,
    /// It takes so long that the sender is told; when we give up.
    late_until: Option<Timestamp>,
    /// Who answered.
    peer: Option<Box<str>>,
    /// What the sender is told.
    notice: Option<Told>,
    /// How far the telling has come, where it takes several tries.
    telling: Telling,
}

/// The tries to tell a sender.
#[derive(Default)]
struct Telling {
    /// Since when nobody knows who he is.
    unaddressed_since: Option<Instant>,
    /// Whether the notice is sent, once that was decided.
    decision: Option<bool>,
}

/// A notice that was made of an attempt.
struct Told {
    id: QueueId,
    /// Of whom it tells.
    ordinals: Vec<u32>,
    /// To how many it goes.
    recipients: usize,
    size: u64,
    /// What the log shows of its header.
    header: LoggedHeader,
}

impl Told {
    fn by(letter: &Letter, id: QueueId, ordinals: Vec<u32>, envelope: &Envelope) -> Told {
        // A subject would be of our own making.
        let header = intake::logged_header(&letter.content, false);
        Told { id, ordinals, recipients: envelope.recipients.len(), size: letter.content.len() as u64, header }
    }

    /// What the log says of it.
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
    pub queues: Queues,
    /// What it goes by at first.
    pub course: Course,
    /// Threads that bring mail to other hosts.
    pub carriers: usize,
    /// Where outcomes are counted.
    pub attempts: Arc<Attempts>,
    /// Facts and events.
    pub log: Arc<Log>,
}

/// What the flow goes by: it can be exchanged while mail is under way ([`Flow::prepare`]).
pub struct Course {
    /// Who stands for whom, and who stores which mailbox.
    pub directory: Arc<Directory>,
    /// What the rules of the router name.
    pub tables: Tables,
    /// Which queue a message belongs to.
    pub rules: Arc<Rules>,
    /// Where mail goes.
    pub router: route::Config,
    /// How it is brought there.
    pub fleet: Fleet,
    /// The transports to mailboxes here.
    pub transports: Vec<Transport>,
    /// What senders are told.
    pub notices: Notices,
    /// The name of this server.
    pub hostname: Box<str>,
}

/// How another course differs from the one before.
#[derive(Clone, Copy, Debug)]
pub struct Difference {
    /// Mail may go elsewhere, or by other settings. Otherwise the router stays, and all that it has learned.
    pub ways: bool,
    /// What each sender may be told. Otherwise what they have had still counts.
    pub cap: bool,
}

/// Another course, ready to be taken: nothing of that can fail.
pub struct Change(Box<scheduler::Change>);

/// The running threads.
pub struct Flow {
    mailbag: Mailbag,
    workshop: Workshop,
    /// Each thread holds the other end until it ends.
    ended: Receiver<()>,
}

/// What more threads are made with.
struct Workshop {
    shelf: Shelf,
    shipyard: Shipyard,
    alive: Sender<()>,
}

/// A way to tell the scheduler, and what it will read: made first, since the spool needs the one before the
/// queues are full enough to start.
pub fn mailbag() -> (Mailbag, Notes) {
    let (sender, receiver) = mpsc::channel();
    (Mailbag(sender), Notes(receiver))
}

/// Takes what a start finds in the spool into the queues, or leaves it to the sorter.
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

    /// Makes ready for another course; nothing goes by it yet. What is not taken up leaves nothing behind.
    ///
    /// # Errors
    ///
    /// A thread cannot be started, or the system names no servers of the DNS.
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

    /// Takes the other course. What is under way ends as it began.
    pub fn change(&self, change: Change) {
        self.mailbag.tell(Note::Change(change.0));
    }

    /// Lets what is under way come to its end, and starts nothing more. False if that took too long: a disk or a
    /// mailbox hangs, and the threads that wait for it are left behind.
    pub fn stop(self) -> bool {
        let Flow { mailbag, workshop, ended } = self;
        drop(workshop);
        mailbag.tell(Note::Stop(SystemTime::now().into()));
        ended.recv_timeout(STOP_TIME_MAX * 2) == Err(RecvTimeoutError::Disconnected)
    }
}

impl Workshop {
    /// A thread for each transport to mailboxes here.
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
        // Nobody listens only when the flow has come to its end; then there is nothing to tell.
        drop(self.0.send(note));
    }

    /// Which deliveries may start from now on.
    pub fn set_delivery(&self, delivery: Delivery) {
        self.tell(Note::Load(delivery));
    }

    /// Asks something of the queues, or changes something there, between two steps of the scheduler, which waits for it.
    /// None if the flow has stopped.
    pub fn ask<T: Send + 'static>(&self, question: impl FnOnce(&mut Queues) -> T + Send + 'static) -> Option<T> {
        let (sender, receiver) = mpsc::channel();
        // Whoever asked may have gone away.
        self.tell(Note::Ask(Box::new(move |queues| drop(sender.send(question(queues))))));
        receiver.recv().ok()
    }
}

impl Note {
    /// What the scheduler is told of a message that was not given.
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
    /// Whether somebody may have to be told, or the message has to be read first: the notary finds out.
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
