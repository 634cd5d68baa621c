//! Which queue and which destination a message is for, by the rules of the configuration.
//!
//! | a queue is named by | precedence | what has to be known |
//! |---|---|---|
//! | nothing: what goes into mailboxes here is in `local` | first | the envelope; the directory, where tables name domains |
//! | a header field | second | the message's header: a read from the spool |
//! | the sender | third | the envelope |
//! | the sender, by a table | fourth | the table; where that cannot say, the next rule counts |
//! | the recipient's domain | fifth | the envelope |
//! | nothing: `standard` | last | the envelope |
//!
//! A destination is a recipient's domain, or `host!domain` where the directory says which machine stores the mailbox;
//! `?!domain` where it should and does not: there the directory is asked again at each attempt. The scheduler sorts by
//! itself what the envelope alone decides; for the rest there is a thread that may wait.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

use delivery::Ending;
use lookup::directory::{Directory, Store};
use lookup::{Answer, Table};
use mail::{Address, Enhanced, Envelope, Outcome, Reply, Timestamp};
use queue::{Admission, Contact, Destination, Pending, QueueNumber};
use spool::{Live, State};
use tokio::runtime::Runtime;

use super::shelf::{Message, Shelf};
use super::{Attempt, Ended, Mailbag, Note, Queues};
use crate::config::{HeaderRule, Pattern, SenderRule};

/// No more of a message is searched for its header.
const HEADER_OCTETS_MAX: usize = 64 << 10;
/// Stands for the machine of a mailbox of which the directory does not say who stores it. No host bears the name.
pub(super) const UNKNOWN_HOST: &str = "?";

/// The rules.
pub struct Rules {
    /// Queues by header field; the first match counts.
    pub headers: Vec<(HeaderRule, QueueNumber)>,
    /// Queues by sender; the first match counts.
    pub senders: Vec<(SenderRule, QueueNumber)>,
    /// Queues by a table of senders; the first that has the sender counts.
    pub sender_tables: Vec<(Arc<dyn Table>, QueueNumber)>,
    /// Queues by the recipient's domain; the first match counts.
    pub domains: Vec<(Pattern, QueueNumber)>,
    /// Domains whose mail goes to mailboxes here, and their queue.
    pub local: (HashSet<Box<str>>, QueueNumber),
    /// The queue of everything else.
    pub standard: QueueNumber,
    /// Domains of ours that the configuration names.
    pub configured: HashSet<Box<str>>,
    /// Whether tables name others.
    pub tabled: bool,
    /// Domains of which several machines store the mailboxes.
    pub shared: Vec<Pattern>,
    /// Senders whose letters go out one by one, so that each bears its recipient in the sender's name (VERP).
    pub verp: HashSet<Box<str>>,
}

impl Rules {
    /// Whether only the directory says where the domain's mailboxes are: several machines store them, or a table may say
    /// that it is ours.
    pub(crate) fn is_open(&self, domain: &str) -> bool {
        self.tabled && !self.configured.contains(domain) || self.shared.iter().any(|pattern| pattern.fits(domain))
    }

    /// The queue of a sender, by the lists of senders.
    pub(crate) fn by_sender(&self, sender: &Address) -> Option<&(SenderRule, QueueNumber)> {
        self.senders.iter().find(|(rule, _)| rule.matches(sender))
    }

    /// The queue of a sender, by the first table that has him; by none, where one that comes first cannot say.
    pub(crate) async fn by_sender_table(&self, sender: &Address) -> Option<&(Arc<dyn Table>, QueueNumber)> {
        let domain = format!("@{}", sender.domain());
        for named in &self.sender_tables {
            let answers = named.0.lookup(&[sender.as_str(), &domain]).await;
            // A sender who was in none before an outage is in none.
            let is_none = |answer: &Answer| matches!(answer, Answer::NotFound | Answer::Unconfirmed(_));
            match answers.iter().find(|answer| !is_none(answer)) {
                Some(Answer::Found(_)) => return Some(named),
                Some(_) => return None,
                None => {}
            }
        }
        None
    }

    /// Whether the sender's letters go out one by one.
    pub(super) fn is_verp(&self, sender: Option<&Address>) -> bool {
        !self.verp.is_empty() && sender.is_some_and(|sender| self.verp.contains(&*sender.as_str().to_lowercase()))
    }
}

/// What a message needs beside its envelope, found out.
pub(crate) struct Sorted {
    live: Live,
    /// By a header field, or by a table of senders.
    queue: Option<QueueNumber>,
    /// By ordinal, where the mailbox is, as far as the directory was asked.
    places: HashMap<u32, Place>,
}

/// Where a mailbox is, as the directory says.
enum Place {
    /// On this machine.
    Here,
    /// On that one.
    Host(Box<str>),
}

impl Sorted {
    /// One of which the envelope says all.
    pub(crate) fn by_envelope(live: Live) -> Self {
        Sorted { live, queue: None, places: HashMap::new() }
    }
}

/// Sorts what the envelope alone decides.
#[derive(Clone)]
pub(crate) struct Sorter(Arc<Rules>);

impl Sorter {
    pub(crate) fn new(rules: Arc<Rules>) -> Self {
        Sorter(rules)
    }

    /// Whether the envelope of a message says all.
    pub(crate) fn knows(&self, live: &Live) -> bool {
        let rules = &self.0;
        let sender_is_open = |sender: &Address| !rules.sender_tables.is_empty() && rules.by_sender(sender).is_none();
        let is_open = |recipient: &mail::Recipient| rules.is_open(recipient.address.domain());
        rules.headers.is_empty()
            && !live.envelope.sender.as_ref().is_some_and(sender_is_open)
            && ((rules.shared.is_empty() && !rules.tabled) || !live.envelope.recipients.iter().any(is_open))
    }

    /// Takes a message into its queues. What was never tried is not due before `not_before`.
    pub(crate) fn enter(&self, queues: &mut Queues, sorted: &Sorted, now: Timestamp, not_before: Timestamp) {
        let Live { id, envelope, states, recovered } = &sorted.live;
        let by_sender = || Some(self.0.by_sender(envelope.sender.as_ref()?)?.1);
        let by_message = sorted.queue.or_else(by_sender);
        let mut recipients = Vec::with_capacity(states.len());
        for (ordinal, state) in (0..).zip(states) {
            let (attempts, due, held) = match *state {
                State::Waiting { attempts: 0, until } => (0, until.max(not_before), false),
                State::Waiting { attempts, until } => (attempts, until, false),
                State::Held { attempts } => (attempts, now, true),
                State::Delivered | State::Failed | State::SetAside => continue,
            };
            let domain = envelope.recipients[ordinal as usize].address.domain();
            let destination = self.destination(queues, by_message, sorted.places.get(&ordinal), domain);
            recipients.push(Pending { ordinal, destination, attempts, due, held });
        }
        let admission = Admission {
            id: *id,
            sender: envelope.sender.as_ref().map_or(0, fingerprint),
            accepted_at: envelope.accepted_at,
            recovered: *recovered,
            alone: self.0.is_verp(envelope.sender.as_ref()),
            recipients,
        };
        queues.admit(now, &admission);
    }

    fn destination(
        &self,
        queues: &mut Queues,
        by_message: Option<QueueNumber>,
        place: Option<&Place>,
        domain: &str,
    ) -> Destination {
        let (local, local_queue) = &self.0.local;
        let is_here = match place {
            Some(Place::Here) => true,
            Some(Place::Host(_)) => false,
            None => local.contains(domain),
        };
        let queue = if is_here { *local_queue } else { by_message.unwrap_or_else(|| self.by_domain(domain)) };
        match place {
            Some(Place::Host(host)) => queues.destination(queue, &format!("{host}!{domain}")),
            Some(Place::Here) | None => queues.destination(queue, domain),
        }
    }

    fn by_domain(&self, domain: &str) -> QueueNumber {
        let named = self.0.domains.iter().find(|(pattern, _)| pattern.fits(domain)).map(|(_, queue)| *queue);
        named.unwrap_or(self.0.standard)
    }
}

fn fingerprint(sender: &Address) -> u64 {
    let mut hasher = DefaultHasher::new();
    sender.hash(&mut hasher);
    hasher.finish()
}

/// What the thread is asked.
pub(super) enum Puzzle {
    /// A message whose envelope does not say all.
    Fresh(Live),
    /// Recipients of whom nobody knew which machine stores their mailboxes, when they were sorted last.
    Again(Attempt),
}

/// The thread for messages whose envelope does not say all.
pub(super) struct SortingRoom {
    rules: Arc<Rules>,
    shelf: Shelf,
    directory: Arc<Directory>,
    runtime: Runtime,
    mailbag: Mailbag,
}

impl SortingRoom {
    /// Starts the thread; it ends when the sender is dropped.
    pub(super) fn start(
        rules: Arc<Rules>,
        shelf: Shelf,
        directory: Arc<Directory>,
        mailbag: Mailbag,
        alive: Sender<()>,
    ) -> io::Result<Sender<Puzzle>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let room = SortingRoom { rules, shelf, directory, runtime, mailbag };
        let (sender, puzzles) = mpsc::channel();
        thread::Builder::new().name("sorter".into()).spawn(move || {
            while let Ok(puzzle) = puzzles.recv() {
                room.solve(puzzle);
            }
            drop(alive);
        })?;
        Ok(sender)
    }

    fn solve(&self, puzzle: Puzzle) {
        let note = match puzzle {
            Puzzle::Fresh(live) => Note::Sorted(self.sort(live)),
            Puzzle::Again(attempt) => match self.shelf.message(attempt.id) {
                Ok(message) => self.sort_again(attempt, &message),
                Err(error) => Note::unread(attempt, error),
            },
        };
        self.mailbag.tell(note);
    }

    /// Those of whom the directory does not say who stores them wait where it is asked again at each attempt.
    fn sort(&self, live: Live) -> Sorted {
        let is_open = |ordinal: u32| live.states.get(ordinal as usize).is_some_and(|state| !state.is_final());
        let ordinals = (0..live.envelope.recipients.len() as u32).filter(|ordinal| is_open(*ordinal));
        let stores = self.stores(&live.envelope, ordinals);
        let place = |store| match store {
            Store::Here => Some(Place::Here),
            Store::Onward => None,
            Store::At(host) => Some(Place::Host(host)),
            Store::Unavailable(_) => Some(Place::Host(UNKNOWN_HOST.into())),
        };
        let places = stores.into_iter().filter_map(|(ordinal, store)| Some((ordinal, place(store)?))).collect();
        Sorted { queue: self.by_header(&live).or_else(|| self.by_sender_table(&live)), places, live }
    }

    /// Asked only where no list of senders has him.
    fn by_sender_table(&self, live: &Live) -> Option<QueueNumber> {
        let sender = live.envelope.sender.as_ref().filter(|sender| self.rules.by_sender(sender).is_none())?;
        self.runtime.block_on(self.rules.by_sender_table(sender)).map(|(_, queue)| *queue)
    }

    /// Now the directory says where they are, or they are deferred like others.
    fn sort_again(&self, attempt: Attempt, message: &Arc<Message>) -> Note {
        let stores = self.stores(&message.envelope, attempt.recipients.iter().copied());
        let unknown = stores.iter().find_map(|(_, store)| match store {
            Store::Unavailable(why) => Some(why.clone()),
            Store::Here | Store::Onward | Store::At(_) => None,
        });
        if let Some(why) = unknown {
            let text = format!("the directory does not say which machine stores the mailbox: {why}");
            let outcome = Outcome::Deferred(Reply::new(451, Enhanced(4, 3, 5), text));
            return Note::Ended(vec![Ended {
                ending: Ending::Outcomes(vec![outcome; attempt.recipients.len()]),
                contact: Contact::Answered { slowest: Duration::ZERO },
                message: Some(message.clone()),
                peer: None,
                attempt,
            }]);
        }
        let mut states = vec![State::Delivered; message.envelope.recipients.len()];
        for ordinal in &attempt.recipients {
            states[*ordinal as usize] = State::Waiting { attempts: attempt.number - 1, until: Timestamp::default() };
        }
        let envelope = Envelope::clone(&message.envelope);
        let sorted = self.sort(Live { id: attempt.id, envelope, states, recovered: attempt.recovered });
        Note::Resorted(attempt, sorted)
    }

    /// Where the mailboxes are, of those of these recipients of whom only the directory says it.
    fn stores(&self, envelope: &Envelope, ordinals: impl Iterator<Item = u32>) -> Vec<(u32, Store)> {
        let is_open = |address: &Address| self.rules.is_open(address.domain());
        let address = |ordinal: u32| envelope.recipients[ordinal as usize].address.clone();
        let asked = ordinals.map(|ordinal| (ordinal, address(ordinal))).filter(|(_, address)| is_open(address));
        let (ordinals, addresses): (Vec<u32>, Vec<Address>) = asked.unzip();
        let stores = self.runtime.block_on(self.directory.stores(&addresses));
        ordinals.into_iter().zip(stores).collect()
    }

    fn by_header(&self, live: &Live) -> Option<QueueNumber> {
        if self.rules.headers.is_empty() {
            return None;
        }
        // A message that cannot be read goes where its envelope says; the attempt finds out what is wrong with it.
        let body = self.shelf.message(live.id).ok()?.body.clone();
        let mut bytes = vec![0; HEADER_OCTETS_MAX.min(usize::try_from(body.len()).unwrap_or(usize::MAX))];
        let read = body.read_at(&mut bytes, 0).ok()?;
        let fields = fields(&bytes[..read]);
        let matches = |pattern: &HeaderRule| fields.iter().any(|(name, value)| pattern.matches(name, value));
        self.rules.headers.iter().find(|(pattern, _)| matches(pattern)).map(|(_, queue)| *queue)
    }
}

/// The fields of a header, unfolded (RFC 5322 section 2.2.3).
fn fields(message: &[u8]) -> Vec<(String, String)> {
    let text = String::from_utf8_lossy(message);
    let mut fields: Vec<(String, String)> = Vec::new();
    for line in text.split("\r\n").take_while(|line| !line.is_empty()) {
        if line.starts_with([' ', '\t']) {
            if let Some((_, value)) = fields.last_mut() {
                value.push_str(line);
            }
        } else if let Some((name, value)) = line.split_once(':') {
            fields.push((name.trim_end().to_owned(), value.trim_start().to_owned()));
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_unfolded_and_ends_at_the_empty_line() {
        let found =
            fields(b"Subject: a\r\n\tlong one\r\nList-Id :  <l.example>\r\nnonsense\r\n\r\nPrecedence: bulk\r\n");
        let expected = [("Subject", "a\tlong one"), ("List-Id", "<l.example>")];
        assert_eq!(found, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }
}
