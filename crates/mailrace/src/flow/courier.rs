//! A courier: the thread of one Maildir transport. It takes what waits for it, fetches each message from the
//! spool, finds the mailboxes, and lets them go round together; the larger the crowd, the fewer the syncs for each.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Instant;

use delivery::Ending;
use delivery::local::{Local, Task};
use mail::{Address, Enhanced, Outcome, Reply};
use mailbox::{Config, LineEnds};
use queue::Contact;

use super::places::{Folders, PlaceTable, Places, shares};
use super::shelf::{Message, Shelf};
use super::{Attempt, Ended, Mailbag, Note};

/// Letters that go round together. More share their syncs better and wait for each other longer.
const TURN_LETTERS_MAX: usize = 1000;

/// A Maildir transport.
pub struct Transport {
    /// Its name in the configuration.
    pub name: Box<str>,
    /// Where mailboxes are,
    pub folders: Folders,
    /// unless a table says where.
    pub places: Option<PlaceTable>,
    /// How lines end in them.
    pub line_ends: LineEnds,
}

pub(super) struct Courier {
    local: Local<Ticket>,
    places: Places,
    shelf: Shelf,
    mailbag: Mailbag,
}

/// What goes round with a task.
struct Ticket {
    attempt: Attempt,
    message: Arc<Message>,
    begun_at: Instant,
}

impl Courier {
    /// Starts the thread; gives the transport's name and where its attempts go. It ends when that is dropped
    /// and everything is delivered.
    pub(super) fn start(
        transport: Transport,
        hostname: &str,
        shelf: Shelf,
        mailbag: Mailbag,
        alive: Sender<()>,
    ) -> io::Result<(Box<str>, Sender<Attempt>)> {
        let Transport { name, folders, places, line_ends } = transport;
        let local = Local::new(Config { host: hostname.into(), line_ends });
        let (sender, attempts) = mpsc::channel();
        let courier = Courier { local, places: Places::new(folders, places)?, shelf, mailbag };
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
            Ok(message) => Some(Ticket { attempt, message, begun_at: Instant::now() }),
            Err(error) => {
                self.mailbag.tell(Note::unread(attempt, error));
                None
            }
        }
    }

    /// What can go round, and attempts that have ended since nobody can say where a mailbox is.
    fn place(&self, tickets: Vec<Ticket>) -> (Vec<Task<Ticket>>, Vec<Ended>) {
        let mailboxes: Vec<&Address> = tickets.iter().flat_map(Ticket::mailboxes).collect();
        let sizes = tickets.iter().map(|ticket| ticket.attempt.recipients.len());
        let places = shares(self.places.of(&mailboxes), sizes);
        let (mut tasks, mut misplaced) = (Vec::with_capacity(tickets.len()), Vec::new());
        for (ticket, places) in tickets.into_iter().zip(places) {
            match places.into_iter().collect::<Result<Vec<_>, _>>() {
                Ok(folders) => tasks.push(ticket.task(folders)),
                Err(why) => misplaced.push(ticket.misplaced(&why)),
            }
        }
        (tasks, misplaced)
    }
}

impl Ticket {
    fn mailboxes(&self) -> impl Iterator<Item = &Address> {
        self.attempt.recipients.iter().map(|ordinal| &self.message.envelope.recipients[*ordinal as usize].address)
    }

    fn task(self, folders: Vec<PathBuf>) -> Task<Ticket> {
        let attempt = &self.attempt;
        Task {
            id: attempt.id,
            recipients: attempt.recipients.iter().copied().zip(folders).collect(),
            // A second try may follow a first one that succeeded unseen: its sync failed.
            recovered: attempt.recovered || attempt.number > 1,
            envelope: self.message.envelope.clone(),
            body: self.message.body.clone(),
            ticket: self,
        }
    }

    fn misplaced(self, why: &str) -> Ended {
        let text = format!("the directory does not say where the mailbox is: {why}");
        let outcome = Outcome::Deferred(Reply::new(451, Enhanced(4, 3, 5), text));
        let outcomes = vec![outcome; self.attempt.recipients.len()];
        self.ended(Ending::Outcomes(outcomes))
    }

    fn ended(self, ending: Ending) -> Ended {
        let contact = Contact::Answered { slowest: self.begun_at.elapsed() };
        Ended { attempt: self.attempt, message: Some(self.message), ending, contact, peer: None }
    }
}

fn ended(ended: delivery::local::Ended<Ticket>) -> Ended {
    ended.ticket.ended(ended.ending)
}
