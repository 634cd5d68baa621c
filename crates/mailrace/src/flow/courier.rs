//! A local deliverer: the thread of one Maildir transport. It reads the waiting messages from the
//! spool, finds the mailboxes, checks their quotas, and delivers a batch together: the larger the
//! batch, the fewer syncs for each message.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Instant, SystemTime};

use delivery::Ending;
use delivery::local::{Addressee, Local, Task};
use mail::{Address, Enhanced, Outcome, Reply};
use mailbox::{Config, LineEnds};
use queue::Contact;
use tokio::runtime::{Builder, Runtime};

use crate::quota::{self, Allowance};

use super::places::{Places, shares};
use super::shelf::{Message, Shelf};
use super::{Attempt, Ended, Mailbag, Note};

/// Recipients in one batch. A larger batch shares its syncs better, but each message waits longer.
const TURN_LETTERS_MAX: usize = 1000;

/// A Maildir transport.
pub struct Transport {
    /// The transport's name in the configuration.
    pub name: Box<str>,
    /// Where the mailboxes are.
    pub places: Places,
    /// The line endings in mailboxes.
    pub line_ends: LineEnds,
    /// The quota of the mailboxes; None: no quota.
    pub allowance: Option<Arc<Allowance>>,
}

pub(super) struct Courier {
    local: Local<Ticket>,
    places: Places,
    allowance: Option<Arc<Allowance>>,
    /// For table lookups; None if the transport uses no tables.
    runtime: Option<Runtime>,
    shelf: Shelf,
    mailbag: Mailbag,
}

/// The mailbox folder of a recipient and its quota, or why the folder is unknown.
type Place = Result<(PathBuf, mailbox::Quota), String>;

/// What a delivery task carries.
struct Ticket {
    attempt: Attempt,
    message: Arc<Message>,
    begun_at: Instant,
    /// In the order of the attempt's recipients: the outcome of each whose mailbox is unknown.
    misplaced: Vec<Option<Outcome>>,
}

impl Courier {
    /// Starts the thread; returns the transport's name and the sender for its attempts. The thread
    /// ends when that sender is dropped and everything is delivered.
    pub(super) fn start(
        transport: Transport,
        hostname: &str,
        shelf: Shelf,
        mailbag: Mailbag,
        alive: Sender<()>,
    ) -> io::Result<(Box<str>, Sender<Attempt>)> {
        let Transport { name, places, line_ends, allowance } = transport;
        let when_full = allowance.as_ref().map(|allowance| allowance.when_full).unwrap_or_default();
        let local = Local::new(Config { host: hostname.into(), line_ends }, when_full);
        let (sender, attempts) = mpsc::channel();
        let is_tabled = places.table.is_some() || allowance.as_ref().is_some_and(|allowance| allowance.table.is_some());
        let runtime = is_tabled.then(|| Builder::new_current_thread().enable_all().build()).transpose()?;
        let courier = Courier { local, places, allowance, runtime, shelf, mailbag };
        thread::Builder::new().name(format!("courier-{name}")).spawn(move || {
            courier.run(&attempts);
            drop(alive);
        })?;
        Ok((name, sender))
    }

    fn run(mut self, attempts: &Receiver<Attempt>) {
        loop {
            let mut waiting = Vec::new();
            if self.local.is_idle() {
                match attempts.recv() {
                    Ok(attempt) => waiting.push(attempt),
                    Err(_) => return,
                }
            }
            let mut letters: usize = waiting.iter().map(|attempt| attempt.recipients.len()).sum();
            while letters < TURN_LETTERS_MAX
                && let Ok(attempt) = attempts.try_recv()
            {
                letters += attempt.recipients.len();
                waiting.push(attempt);
            }
            let fetched = waiting.into_iter().filter_map(|attempt| self.fetch(attempt)).collect();
            let (tasks, misplaced) = self.place(fetched);
            let ended: Vec<_> = self.local.turn(tasks).into_iter().map(ended).chain(misplaced).collect();
            if !ended.is_empty() {
                self.mailbag.tell(Note::Ended(ended));
            }
        }
    }

    fn fetch(&self, attempt: Attempt) -> Option<Ticket> {
        match self.shelf.message(attempt.id) {
            Ok(message) => Some(Ticket { attempt, message, begun_at: Instant::now(), misplaced: Vec::new() }),
            Err(error) => {
                self.mailbag.tell(Note::unread(attempt, error));
                None
            }
        }
    }

    /// Tasks to deliver, and attempts that ended because none of their mailboxes is known.
    fn place(&self, tickets: Vec<Ticket>) -> (Vec<Task<Ticket>>, Vec<Ended>) {
        let mailboxes: Vec<&Address> = tickets.iter().flat_map(Ticket::mailboxes).collect();
        let sizes = tickets.iter().map(|ticket| ticket.attempt.recipients.len());
        let places = match &self.runtime {
            Some(runtime) => runtime.block_on(self.places.of(&mailboxes)),
            None => self.places.by_pattern(&mailboxes),
        };
        let places = shares(self.seats(&tickets, &mailboxes, places), sizes);
        let (mut tasks, mut misplaced) = (Vec::with_capacity(tickets.len()), Vec::new());
        for (ticket, places) in tickets.into_iter().zip(places) {
            let task = ticket.task(places);
            match task.recipients.is_empty() {
                true => misplaced.push(task.ticket.ended(Ending::Outcomes(Vec::new()))),
                false => tasks.push(task),
            }
        }
        (tasks, misplaced)
    }

    /// Adds to each mailbox what its quota means for the message, in the same order.
    fn seats(&self, tickets: &[Ticket], mailboxes: &[&Address], places: Vec<Result<PathBuf, String>>) -> Vec<Place> {
        let Some(allowance) = &self.allowance else {
            return places.into_iter().map(|place| place.map(|folder| (folder, mailbox::Quota::None))).collect();
        };
        let deadline = Instant::now() + quota::PATIENCE;
        let limits = match &self.runtime {
            Some(runtime) => runtime.block_on(allowance.limits(mailboxes, deadline)),
            None => allowance.usual_limits(mailboxes.len()),
        };
        let octets = tickets.iter().flat_map(Ticket::octets);
        let letters = places.iter().zip(&limits).zip(octets).map(|((place, limits), octets)| quota::Letter {
            folder: place.as_deref().ok(),
            limits: limits.as_ref().ok().copied(),
            octets,
        });
        let quotas = allowance.seats(&letters.collect::<Vec<_>>(), SystemTime::now(), deadline);
        places.into_iter().zip(quotas).map(|(place, quota)| place.map(|folder| (folder, quota))).collect()
    }
}

impl Ticket {
    /// The message size in each mailbox.
    fn octets(&self) -> impl Iterator<Item = u64> {
        let Message { envelope, body } = &*self.message;
        self.attempt.recipients.iter().map(|ordinal| delivery::local::octets(envelope, *ordinal, body))
    }

    fn mailboxes(&self) -> impl Iterator<Item = &Address> {
        self.attempt.recipients.iter().map(|ordinal| &self.message.envelope.recipients[*ordinal as usize].address)
    }

    /// Delivers to the recipients whose mailbox is known.
    fn task(self, places: Vec<Place>) -> Task<Ticket> {
        let attempt = &self.attempt;
        let (recipients, misplaced) = part(&attempt.recipients, places);
        Task {
            id: attempt.id,
            recipients,
            // A retry may follow a delivery that succeeded although its sync failed.
            recovered: attempt.recovered || attempt.number > 1,
            envelope: self.message.envelope.clone(),
            body: self.message.body.clone(),
            ticket: Ticket { misplaced, ..self },
        }
    }

    /// The end of a task, or of an attempt none of whose mailboxes is known.
    fn ended(self, ending: Ending) -> Ended {
        let contact = Contact::Answered { slowest: self.begun_at.elapsed() };
        let ending = match ending {
            Ending::Outcomes(outcomes) => Ending::Outcomes(joined(self.misplaced, outcomes)),
            damaged @ Ending::Damaged(_) => damaged,
        };
        Ended { attempt: self.attempt, message: Some(self.message), ending, contact, peer: None }
    }
}

/// Splits the recipients: those with a known mailbox, and in the order of the ordinals an outcome
/// for each of the others.
fn part(ordinals: &[u32], places: Vec<Place>) -> (Vec<Addressee>, Vec<Option<Outcome>>) {
    let (mut placed, mut misplaced) = (Vec::with_capacity(places.len()), Vec::with_capacity(places.len()));
    for (ordinal, place) in ordinals.iter().zip(places) {
        match place {
            Ok((folder, quota)) => {
                placed.push(Addressee { ordinal: *ordinal, folder, quota });
                misplaced.push(None);
            }
            Err(why) => misplaced.push(Some(nowhere(&why))),
        }
    }
    (placed, misplaced)
}

fn nowhere(why: &str) -> Outcome {
    let text = format!("mailbox location unknown: {why}");
    Outcome::Deferred(Reply::new(451, Enhanced(4, 3, 5), text))
}

/// The reverse of [`part`], for outcomes.
fn joined(misplaced: Vec<Option<Outcome>>, placed: Vec<Outcome>) -> Vec<Outcome> {
    let mut placed = placed.into_iter();
    misplaced.into_iter().filter_map(|outcome| outcome.or_else(|| placed.next())).collect()
}

fn ended(ended: delivery::local::Ended<Ticket>) -> Ended {
    ended.ticket.ended(ended.ending)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: one recipient without a known mailbox deferred all others of its attempt.
    #[test]
    fn a_mailbox_without_a_place_puts_off_nobody_else() {
        let (full, none) = (mailbox::Quota::Full, mailbox::Quota::None);
        let down = || Err("it is down".to_owned());
        let places = vec![down(), Ok(("b".into(), full)), Err("odd".to_owned()), Ok(("d".into(), none))];
        let (placed, misplaced) = part(&[3, 5, 6, 9], places);
        let addressee = |ordinal, folder: &str, quota| Addressee { ordinal, folder: folder.into(), quota };
        assert_eq!(placed, [addressee(5, "b", full), addressee(9, "d", none)]);
        let failed = Outcome::Failed(Reply::new(550, Enhanced(5, 2, 0), "no"));
        let outcomes = joined(misplaced, vec![Outcome::Delivered, failed.clone()]);
        assert_eq!(outcomes, [nowhere("it is down"), Outcome::Delivered, nowhere("odd"), failed]);
    }

    #[test]
    fn where_no_mailbox_has_a_place_nobody_goes_round() {
        let (placed, misplaced) = part(&[0], vec![Err("it is down".to_owned())]);
        assert!(placed.is_empty());
        assert_eq!(joined(misplaced, Vec::new()), [nowhere("it is down")]);
    }
}
