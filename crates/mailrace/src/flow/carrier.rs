//! An SMTP deliverer: a thread that delivers to other hosts. All connections to one next hop are on
//! one thread, so their number never exceeds the attempts that the queue allows. A message that is
//! in memory is used directly; otherwise a blocking thread reads it from the spool.

use std::cell::RefCell;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread;
use std::time::Duration;

use delivery::remote::{self, NextHop, Remote, Report, Task};
use tokio::sync::Notify;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::task::{LocalSet, spawn_blocking, spawn_local};
use tokio::time::timeout;

use super::shelf::{Message, Shelf};
use super::sorter::Rules;
use super::{Attempt, Ended, Mailbag, Note};

/// At shutdown, connected hosts may take this long to answer QUIT.
const LEAVE_TIME_MAX: Duration = Duration::from_secs(2);

/// An attempt and the hosts to try.
pub(super) struct Errand {
    pub(super) attempt: Attempt,
    pub(super) hop: Arc<NextHop>,
    /// Names the senders whose messages use VERP.
    pub(super) rules: Arc<Rules>,
}

/// Handles to all threads.
pub(super) struct Carriers(Vec<UnboundedSender<Errand>>);

/// Returned with the result. It keeps the message in memory while the attempt runs.
struct Ticket {
    attempt: Attempt,
    message: Arc<Message>,
}

type Reports = Rc<RefCell<Vec<Report<Ticket>>>>;

impl Carriers {
    /// Starts `count` threads. They end soon after this is dropped; attempts still running are cut
    /// off.
    pub(super) fn start(count: usize, shelf: &Shelf, mailbag: &Mailbag, alive: &Sender<()>) -> io::Result<Self> {
        let start = |number| {
            let (sender, errands) = mpsc::unbounded_channel();
            let carrier = Carrier { shelf: shelf.clone(), mailbag: mailbag.clone() };
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .max_blocking_threads(super::BLOCKING_THREADS_MAX)
                .build()?;
            let alive = alive.clone();
            thread::Builder::new().name(format!("carrier-{number}")).spawn(move || {
                LocalSet::new().block_on(&runtime, carrier.run(errands));
                // This does not wait: a thread that is blocked on a disk is abandoned.
                runtime.shutdown_background();
                drop(alive);
            })?;
            Ok(sender)
        };
        Ok(Carriers((0..count.max(1)).map(start).collect::<io::Result<_>>()?))
    }

    /// Sends an attempt to the thread of its next hop, or returns it if that thread has ended.
    pub(super) fn send(&self, errand: Errand) -> Option<Errand> {
        let mut hasher = DefaultHasher::new();
        errand.hop.name.hash(&mut hasher);
        let place = hasher.finish() % self.0.len() as u64;
        self.0[place as usize].send(errand).err().map(|unsent| unsent.0)
    }
}

struct Carrier {
    shelf: Shelf,
    mailbag: Mailbag,
}

impl Carrier {
    async fn run(self, mut errands: UnboundedReceiver<Errand>) {
        let (reports, news) = (Reports::default(), Rc::new(Notify::new()));
        let remote = {
            let (reports, news) = (reports.clone(), news.clone());
            Rc::new(Remote::new(move |report| {
                reports.borrow_mut().push(report);
                news.notify_one();
            }))
        };
        let telling = spawn_local(hand_on(reports.clone(), news, self.mailbag.clone()));
        let carrier = Rc::new(self);
        while let Some(errand) = errands.recv().await {
            match carrier.shelf.message_at_once(errand.attempt.id) {
                Ok(None) => drop(spawn_local(carrier.clone().fetch(errand, remote.clone()))),
                Ok(Some(message)) => remote.start(task(errand, message)),
                Err(error) => carrier.mailbag.tell(Note::unread(errand.attempt, error)),
            }
        }
        // The scheduler has stopped, and with it everything that is still running.
        drop(timeout(LEAVE_TIME_MAX, remote.close()).await);
        telling.abort();
        tell(&carrier.mailbag, reports.take());
    }

    async fn fetch(self: Rc<Self>, errand: Errand, remote: Rc<Remote<Ticket>>) {
        let (shelf, id) = (self.shelf.clone(), errand.attempt.id);
        match spawn_blocking(move || shelf.message(id)).await {
            Ok(Ok(message)) => remote.start(task(errand, message)),
            Ok(Err(error)) => self.mailbag.tell(Note::unread(errand.attempt, error)),
            // The thread was not started because we are stopping; the next start finds the message.
            Err(_) => self.mailbag.tell(Note::Unread(errand.attempt, "stopping".into())),
        }
    }
}

fn task(errand: Errand, message: Arc<Message>) -> Task<Ticket> {
    let Errand { attempt, hop, rules } = errand;
    Task {
        id: attempt.id,
        envelope: message.envelope.clone(),
        recipients: attempt.recipients.clone(),
        body: message.body.clone(),
        next_hop: hop,
        verp: rules.is_verp(message.envelope.sender.as_ref()),
        ticket: Ticket { attempt, message },
    }
}

/// Forwards the events gathered since the last time: many attempts need one message and one wake-up
/// of the scheduler.
async fn hand_on(reports: Reports, news: Rc<Notify>, mailbag: Mailbag) {
    loop {
        news.notified().await;
        tell(&mailbag, reports.take());
    }
}

fn tell(mailbag: &Mailbag, reports: Vec<Report<Ticket>>) {
    let mut ended = Vec::with_capacity(reports.len());
    for report in reports {
        match report {
            Report::Slow { next_hop } => mailbag.tell(Note::Slow(next_hop)),
            Report::Ended(report) => ended.push(Ended {
                attempt: report.ticket.attempt,
                message: Some(report.ticket.message),
                ending: report.ending,
                contact: contact(report.contact),
                peer: report.peer.map(|peer| peer.to_string().into()),
            }),
        }
    }
    if !ended.is_empty() {
        mailbag.tell(Note::Ended(ended));
    }
}

fn contact(contact: remote::Contact) -> queue::Contact {
    match contact {
        remote::Contact::Answered { slowest } => queue::Contact::Answered { slowest },
        remote::Contact::Busy => queue::Contact::Busy,
        remote::Contact::Failed(reply) => queue::Contact::Failed(reply),
        remote::Contact::Interrupted(reply) => queue::Contact::Interrupted(reply),
        remote::Contact::None => queue::Contact::None,
    }
}
