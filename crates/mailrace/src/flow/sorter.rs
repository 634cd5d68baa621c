//! Which queue and which destination a message is for, by the rules of the configuration.
//!
//! | a queue is named by | precedence | what has to be known |
//! |---|---|---|
//! | nothing: what goes into mailboxes here is in `local` | first | the envelope |
//! | a header field | second | the message's header: a read from the spool |
//! | the sender | third | the envelope |
//! | the recipient's domain | fourth | the envelope |
//! | nothing: `standard` | last | the envelope |
//!
//! A destination is a recipient's domain, or `host!domain` where the directory says which machine stores the mailbox.
//! The scheduler sorts by itself what the envelope alone decides; for the rest there is a thread that may wait.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use lookup::directory::{Directory, Store};
use mail::{Address, Timestamp};
use queue::{Admission, Destination, Pending, QueueNumber};
use spool::{Live, State};
use tokio::runtime::Runtime;

use super::shelf::Shelf;
use super::{Mailbag, Note, Queues};
use crate::config::{HeaderRule, Pattern, SenderRule};

/// No more of a message is searched for its header.
const HEADER_OCTETS_MAX: usize = 64 << 10;
/// While the directory cannot say who stores a mailbox, it is asked again so much later.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// The rules.
pub struct Rules {
    /// Queues by header field; the first match counts.
    pub headers: Vec<(HeaderRule, QueueNumber)>,
    /// Queues by sender; the first match counts.
    pub senders: Vec<(SenderRule, QueueNumber)>,
    /// Queues by the recipient's domain; the first match counts.
    pub domains: Vec<(Pattern, QueueNumber)>,
    /// Domains whose mail goes to mailboxes here, and their queue.
    pub local: (HashSet<Box<str>>, QueueNumber),
    /// The queue of everything else.
    pub standard: QueueNumber,
    /// Domains of which several machines store the mailboxes.
    pub shared: HashSet<Box<str>>,
    /// Senders whose letters go out one by one, so that each bears its recipient in the sender's name (VERP).
    pub verp: HashSet<Box<str>>,
}

impl Rules {
    /// Whether the sender's letters go out one by one.
    pub(super) fn is_verp(&self, sender: Option<&Address>) -> bool {
        !self.verp.is_empty() && sender.is_some_and(|sender| self.verp.contains(&*sender.as_str().to_lowercase()))
    }
}

/// What a message needs beside its envelope, found out.
pub(crate) struct Sorted {
    live: Live,
    /// By a header field.
    queue: Option<QueueNumber>,
    /// By ordinal, who stores the mailbox, where that is another machine.
    hosts: HashMap<u32, Box<str>>,
}

impl Sorted {
    /// One of which the envelope says all.
    pub(crate) fn by_envelope(live: Live) -> Self {
        Sorted { live, queue: None, hosts: HashMap::new() }
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
        let is_shared = |recipient: &mail::Recipient| self.0.shared.contains(recipient.address.domain());
        self.0.headers.is_empty() && (self.0.shared.is_empty() || !live.envelope.recipients.iter().any(is_shared))
    }

    /// Takes a message into its queues. What was never tried is not due before `not_before`.
    pub(crate) fn enter(&self, queues: &mut Queues, sorted: &Sorted, now: Timestamp, not_before: Timestamp) {
        let Live { id, envelope, states, recovered } = &sorted.live;
        let by_message = sorted.queue.or_else(|| self.by_sender(envelope.sender.as_ref()));
        let mut recipients = Vec::with_capacity(states.len());
        for (ordinal, state) in (0..).zip(states) {
            let (attempts, due, held) = match *state {
                State::Waiting { attempts: 0, until } => (0, until.max(not_before), false),
                State::Waiting { attempts, until } => (attempts, until, false),
                State::Held { attempts } => (attempts, now, true),
                State::Delivered | State::Failed | State::SetAside => continue,
            };
            let domain = envelope.recipients[ordinal as usize].address.domain();
            let destination =
                self.destination(queues, by_message, sorted.hosts.get(&ordinal).map(AsRef::as_ref), domain);
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
        host: Option<&str>,
        domain: &str,
    ) -> Destination {
        let (local, local_queue) = &self.0.local;
        let queue = match host.is_none() && local.contains(domain) {
            true => *local_queue,
            false => by_message.unwrap_or_else(|| self.by_domain(domain)),
        };
        match host {
            Some(host) => queues.destination(queue, &format!("{host}!{domain}")),
            None => queues.destination(queue, domain),
        }
    }

    fn by_sender(&self, sender: Option<&Address>) -> Option<QueueNumber> {
        let sender = sender?;
        self.0.senders.iter().find(|(rule, _)| rule.matches(sender)).map(|(_, queue)| *queue)
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
    ) -> io::Result<Sender<Live>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let room = SortingRoom { rules, shelf, directory, runtime, mailbag };
        let (sender, messages) = mpsc::channel();
        thread::Builder::new().name("sorter".into()).spawn(move || {
            room.run(&messages);
            drop(alive);
        })?;
        Ok(sender)
    }

    /// Messages whose directory does not answer stay here, and are asked for again.
    fn run(&self, messages: &Receiver<Live>) {
        let mut waiting: Vec<Live> = Vec::new();
        loop {
            let live = match waiting.is_empty() {
                true => messages.recv().map_err(|_| mpsc::RecvTimeoutError::Disconnected),
                false => messages.recv_timeout(ASK_AGAIN_AFTER),
            };
            match live {
                Ok(live) => waiting.extend(self.sort(live)),
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    let again = std::mem::take(&mut waiting);
                    waiting = again.into_iter().filter_map(|live| self.sort(live)).collect();
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Sorts a message and hands it on; gives it back while the directory does not answer.
    fn sort(&self, live: Live) -> Option<Live> {
        let Some(hosts) = self.hosts(&live) else { return Some(live) };
        let queue = self.by_header(&live);
        self.mailbag.tell(Note::Sorted(Sorted { live, queue, hosts }));
        None
    }

    /// By ordinal, who stores the mailbox, where that is another machine.
    fn hosts(&self, live: &Live) -> Option<HashMap<u32, Box<str>>> {
        let is_open = |ordinal: u32| live.states.get(ordinal as usize).is_some_and(|state| !state.is_final());
        let shared: Vec<(u32, Address)> = (0..)
            .zip(&live.envelope.recipients)
            .filter(|(ordinal, found)| is_open(*ordinal) && self.rules.shared.contains(found.address.domain()))
            .map(|(ordinal, found)| (ordinal, found.address.clone()))
            .collect();
        let (ordinals, addresses): (Vec<u32>, Vec<Address>) = shared.into_iter().unzip();
        let stores = self.runtime.block_on(self.directory.stores(&addresses));
        let mut hosts = HashMap::new();
        for (ordinal, store) in ordinals.into_iter().zip(stores) {
            match store {
                Store::Here => {}
                Store::At(host) => drop(hosts.insert(ordinal, host)),
                Store::Unavailable(_) => return None,
            }
        }
        Some(hosts)
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
