//! A courier: the thread of one Maildir transport. It takes what waits for it, fetches each message from the
//! spool and lets them go round together; the larger the crowd, the fewer the syncs for each.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Instant;

use delivery::local::{Folders, Local, Task};
use mailbox::{Config, LineEnds};
use queue::Contact;

use super::shelf::{Message, Shelf};
use super::{Attempt, Ended, Mailbag, Note};

/// Letters that go round together. More share their syncs better and wait for each other longer.
const TURN_LETTERS_MAX: usize = 1000;

/// A Maildir transport.
pub struct Transport {
    /// Its name in the configuration.
    pub name: Box<str>,
    /// Where mailboxes are.
    pub folders: Folders,
    /// How lines end in them.
    pub line_ends: LineEnds,
}

pub(super) struct Courier {
    local: Local<Ticket>,
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
        let Transport { name, folders, line_ends } = transport;
        let local = Local::new(Config { host: hostname.into(), line_ends }, folders);
        let (sender, attempts) = mpsc::channel();
        let courier = Courier { local, shelf, mailbag };
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
            let tasks = waiting.into_iter().filter_map(|attempt| self.fetch(attempt)).collect();
            let ended: Vec<_> = self.local.turn(tasks).into_iter().map(ended).collect();
            if !ended.is_empty() {
                self.mailbag.tell(Note::Ended(ended));
            }
        }
    }

    fn fetch(&self, attempt: Attempt) -> Option<Task<Ticket>> {
        match self.shelf.message(attempt.id) {
            Ok(message) => Some(Task {
                id: attempt.id,
                recipients: attempt.recipients.clone(),
                // A second try may follow a first one that succeeded unseen: its sync failed.
                recovered: attempt.recovered || attempt.number > 1,
                envelope: message.envelope.clone(),
                body: message.body.clone(),
                ticket: Ticket { attempt, message, begun_at: Instant::now() },
            }),
            Err(error) => {
                self.mailbag.tell(Note::unread(attempt, error));
                None
            }
        }
    }
}

fn ended(ended: delivery::local::Ended<Ticket>) -> Ended {
    let Ticket { attempt, message, begun_at } = ended.ticket;
    let contact = Contact::Answered { slowest: begun_at.elapsed() };
    Ended { attempt, message: Some(message), ending: ended.ending, contact, peer: None }
}
