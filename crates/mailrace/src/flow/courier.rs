//! A courier: the thread of one Maildir transport. It takes what waits for it, fetches each message from the
//! spool and lets them go round together; the larger the crowd, the fewer the syncs for each.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use delivery::local::{Ended, Ending, Folders, Local, Task};
use mailbox::{Config, LineEnds};
use queue::Attempt;
use spool::{ReadError, Spool};

use super::{Mailbag, Note};

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
    local: Local<Attempt>,
    spool: Arc<Spool>,
    mailbag: Mailbag,
}

impl Courier {
    /// Starts the thread; gives the transport's name and where its attempts go. It ends when that is dropped
    /// and everything is delivered.
    pub(super) fn start(
        transport: Transport,
        hostname: &str,
        spool: Arc<Spool>,
        mailbag: Mailbag,
        alive: Sender<()>,
    ) -> io::Result<(Box<str>, Sender<Attempt>)> {
        let Transport { name, folders, line_ends } = transport;
        let local = Local::new(Config { host: hostname.into(), line_ends }, folders);
        let (sender, attempts) = mpsc::channel();
        let courier = Courier { local, spool, mailbag };
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
            let mut ended = Vec::new();
            let tasks = waiting.into_iter().filter_map(|attempt| self.fetch(attempt, &mut ended)).collect();
            ended.extend(self.local.turn(tasks));
            if !ended.is_empty() {
                self.mailbag.tell(Note::Ended(ended));
            }
        }
    }

    fn fetch(&self, attempt: Attempt, ended: &mut Vec<Ended<Attempt>>) -> Option<Task<Attempt>> {
        match self.spool.message(attempt.id) {
            Ok(stored) => Some(Task {
                id: attempt.id,
                recipients: attempt.recipients.clone(),
                // A second try may follow a first one that succeeded unseen: its sync failed.
                recovered: attempt.recovered || attempt.number > 1,
                ticket: attempt,
                envelope: stored.envelope,
                body: stored.body,
            }),
            Err(ReadError::Unknown) => {
                self.mailbag.tell(Note::Void(attempt));
                None
            }
            Err(ReadError::Unavailable(why)) => {
                self.mailbag.tell(Note::Unread(attempt, why));
                None
            }
            Err(ReadError::Damaged { what }) => {
                let envelope = super::record::unreadable_envelope(attempt.accepted_at);
                ended.push(Ended { ticket: attempt, envelope, ending: Ending::Damaged(what) });
                None
            }
        }
    }
}
