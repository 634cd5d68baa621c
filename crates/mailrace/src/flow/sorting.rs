//! The thread that classifies messages whose envelope is not enough. It may wait for the disk and
//! for the directory, and does one lookup for all messages of a batch: a lookup costs a round trip.
//!
//! Recipients whose mailbox host is unknown wait at `?!domain`. Each attempt there comes to this
//! thread:
//!
//! | the directory knows the host of | then |
//! |---|---|
//! | none of the attempt's recipients | all are deferred, as by a host |
//! | some | these are requeued at their hosts; the others return at once as a new attempt |
//! | all | all are requeued at their hosts |

use std::collections::{HashMap, HashSet};
use std::io;
use std::iter;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

use delivery::Ending;
use lookup::directory::{Directory, Store};
use mail::{Address, Enhanced, Envelope, Outcome, Reply, Timestamp};
use queue::{Contact, QueueNumber};
use spool::{Live, ReadError, State, Stored};
use tokio::runtime::Runtime;

use super::shelf::{Message, Shelf};
use super::sorter::{Place, Rules, Sorted, UNKNOWN_HOST};
use super::{Attempt, Ended, Mailbag, Note};
use crate::config::HeaderRule;

/// Messages in one batch.
const TURN_MESSAGES_MAX: usize = 1000;
/// A batch takes no more messages once their envelopes have this many recipients: each envelope is
/// copied.
const TURN_RECIPIENTS_MAX: usize = 10_000;
/// How much of a message is searched for its header.
const HEADER_OCTETS_MAX: usize = 64 << 10;

/// A request to the thread.
pub(super) enum Puzzle {
    /// A message whose envelope is not enough.
    Fresh(Live),
    /// Recipients whose mailbox host was unknown when they were last classified.
    Again(Attempt),
    /// Recipients whose queue is retired or whose rules have changed; they keep their state in the
    /// spool.
    Moved(Attempt),
    /// Switches to these rules.
    Change(Arc<Rules>, Arc<Directory>),
}

/// What the thread works with.
pub(super) struct SortingRoom {
    rules: Arc<Rules>,
    shelf: Shelf,
    directory: Arc<Directory>,
    runtime: Runtime,
    mailbag: Mailbag,
}

/// A message to classify: the recipients that are not final.
struct Case {
    live: Live,
    again: Again,
}

/// Where the message comes from.
enum Again {
    No,
    /// From an attempt at an unknown host.
    Unplaced(Attempt, Arc<Message>),
    /// From a retired queue, or classified by other rules.
    Moved(Attempt),
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
        let mut room = SortingRoom { rules, shelf, directory, runtime, mailbag };
        let (sender, puzzles) = mpsc::channel();
        thread::Builder::new().name("sorter".into()).spawn(move || {
            while let Ok(first) = puzzles.recv() {
                let turn = turn(iter::once(first).chain(puzzles.try_iter()).filter_map(|puzzle| room.case(puzzle)));
                room.solve(turn);
            }
            // The spool reference goes first: the spool is closed when `alive` ends.
            drop((room, alive));
        })?;
        Ok(sender)
    }

    fn case(&mut self, puzzle: Puzzle) -> Option<Case> {
        match puzzle {
            Puzzle::Fresh(live) => Some(Case { live, again: Again::No }),
            Puzzle::Again(attempt) => match self.shelf.message(attempt.id) {
                Ok(message) => Some(Case::again(attempt, message)),
                Err(error) => self.unread(attempt, error),
            },
            Puzzle::Moved(attempt) => match self.shelf.stored(attempt.id) {
                Ok(stored) => Some(Case::moved(attempt, stored)),
                Err(error) => self.unread(attempt, error),
            },
            Puzzle::Change(rules, directory) => {
                (self.rules, self.directory) = (rules, directory);
                None
            }
        }
    }

    fn unread(&self, attempt: Attempt, error: ReadError) -> Option<Case> {
        self.mailbag.tell(Note::unread(attempt, error));
        None
    }

    fn solve(&self, turn: Vec<Case>) {
        let stores = self.runtime.block_on(stores(&self.rules, &self.directory, &turn));
        let queues = self.queues(&turn);
        for ((case, stores), queue) in turn.into_iter().zip(stores).zip(queues) {
            self.mailbag.tell(case.close(&self.rules, stores, queue));
        }
    }

    /// By a header field, else by a table of senders unless a configured list has the sender.
    fn queues(&self, turn: &[Case]) -> Vec<Option<QueueNumber>> {
        let mut queues: Vec<_> = turn.iter().map(|case| self.by_header(&case.live)).collect();
        let is_listed = |sender: &&Address| self.rules.by_sender(sender).is_some();
        let sender = |case: &'_ Case| case.live.envelope.sender.clone().filter(|sender| !is_listed(&sender));
        let open = queues.iter_mut().zip(turn).filter(|(queue, _)| queue.is_none());
        let (places, senders): (Vec<_>, Vec<_>) = open.filter_map(|(queue, case)| Some((queue, sender(case)?))).unzip();
        let senders: Vec<&Address> = senders.iter().collect();
        let found = self.runtime.block_on(self.rules.by_sender_tables(&senders));
        for (queue, found) in places.into_iter().zip(found) {
            *queue = found.map(|(_, queue)| *queue);
        }
        queues
    }

    fn by_header(&self, live: &Live) -> Option<QueueNumber> {
        if self.rules.headers.is_empty() {
            return None;
        }
        // A message that cannot be read goes by its envelope; the attempt will report the error.
        let body = self.shelf.message(live.id).ok()?.body.clone();
        let mut bytes = vec![0; HEADER_OCTETS_MAX.min(usize::try_from(body.len()).unwrap_or(usize::MAX))];
        let read = body.read_at(&mut bytes, 0).ok()?;
        let fields = fields(&bytes[..read]);
        let matches = |pattern: &HeaderRule| fields.iter().any(|(name, value)| pattern.matches(name, value));
        self.rules.headers.iter().find(|(pattern, _)| matches(pattern)).map(|(_, queue)| *queue)
    }
}

impl Case {
    /// Only the attempt's recipients are open, and this attempt does not count.
    fn again(attempt: Attempt, message: Arc<Message>) -> Self {
        let mut states = vec![State::Delivered; message.envelope.recipients.len()];
        for ordinal in &attempt.recipients {
            states[*ordinal as usize] = State::Waiting { attempts: attempt.number - 1, until: Timestamp::default() };
        }
        let envelope = Envelope::clone(&message.envelope);
        let live = Live { id: attempt.id, envelope, states, recovered: attempt.recovered };
        Case { live, again: Again::Unplaced(attempt, message) }
    }

    /// Only the attempt's recipients are open, with their state in the spool.
    fn moved(attempt: Attempt, stored: Stored) -> Self {
        let Stored { envelope, states, body: _ } = stored;
        let is_meant: HashSet<u32> = attempt.recipients.iter().copied().collect();
        let state = |(ordinal, state): (u32, State)| if is_meant.contains(&ordinal) { state } else { State::Delivered };
        let states = (0..).zip(states).map(state).collect();
        let live = Live { id: attempt.id, envelope, states, recovered: attempt.recovered };
        Case { live, again: Again::Moved(attempt) }
    }

    /// The open recipients whose mailbox host only the directory knows.
    fn asked<'a>(&'a self, rules: &'a Rules) -> impl Iterator<Item = (u32, &'a Address)> {
        let Live { envelope, states, .. } = &self.live;
        let open = (0..).zip(&envelope.recipients).zip(states).filter(|(_, state)| !state.is_final());
        let addresses = open.map(|((ordinal, recipient), _)| (ordinal, &recipient.address));
        addresses.filter(|(_, address)| rules.is_open(address.domain()))
    }

    fn close(self, rules: &Arc<Rules>, stores: Vec<(u32, Store)>, queue: Option<QueueNumber>) -> Note {
        let Case { live, again } = self;
        let (attempt, message) = match again {
            Again::No => return Note::Sorted(rules.clone(), sorted(live, stores, queue)),
            Again::Moved(attempt) => return Note::Resorted(rules.clone(), attempt, sorted(live, stores, queue)),
            Again::Unplaced(attempt, message) => (attempt, message),
        };
        match unplaced(&attempt.recipients, &stores) {
            None => Note::Resorted(rules.clone(), attempt, sorted(live, stores, queue)),
            Some(outcomes) => Note::Ended(vec![Ended {
                attempt,
                message: Some(message),
                ending: Ending::Outcomes(outcomes),
                contact: Contact::Answered { slowest: Duration::ZERO },
                peer: None,
            }]),
        }
    }
}

/// Takes messages up to the size of a batch; the rest stays in the iterator.
fn turn(cases: impl Iterator<Item = Case>) -> Vec<Case> {
    let (mut turn, mut recipients) = (Vec::new(), 0);
    for case in cases {
        recipients += case.live.envelope.recipients.len();
        turn.push(case);
        if turn.len() >= TURN_MESSAGES_MAX || recipients >= TURN_RECIPIENTS_MAX {
            break;
        }
    }
    turn
}

/// For each message, the mailbox hosts that only the directory knows.
async fn stores(rules: &Rules, directory: &Directory, turn: &[Case]) -> Vec<Vec<(u32, Store)>> {
    let addresses: Vec<Address> = turn.iter().flat_map(|case| case.asked(rules)).map(|(_, it)| it.clone()).collect();
    let mut found = directory.stores(&addresses).await.into_iter();
    turn.iter().map(|case| case.asked(rules).map(|(ordinal, _)| ordinal).zip(found.by_ref()).collect()).collect()
}

/// Recipients whose host is unknown go to a destination whose attempts ask again.
fn sorted(live: Live, stores: Vec<(u32, Store)>, queue: Option<QueueNumber>) -> Sorted {
    let place = |store| match store {
        Store::Here => Some(Place::Here),
        Store::Onward => None,
        Store::At(host) => Some(Place::Host(host)),
        Store::Unavailable(_) => Some(Place::Host(UNKNOWN_HOST.into())),
    };
    let places = stores.into_iter().filter_map(|(ordinal, store)| Some((ordinal, place(store)?))).collect();
    Sorted { live, queue, places }
}

/// If no recipient's host is known: the outcomes of the attempt. None if any is.
fn unplaced(recipients: &[u32], stores: &[(u32, Store)]) -> Option<Vec<Outcome>> {
    let whys: HashMap<u32, &str> = stores.iter().filter_map(|(ordinal, store)| Some((*ordinal, why(store)?))).collect();
    recipients.iter().map(|ordinal| whys.get(ordinal).map(|why| nowhere(why))).collect()
}

fn why(store: &Store) -> Option<&str> {
    match store {
        Store::Unavailable(why) => Some(why),
        Store::Here | Store::Onward | Store::At(_) => None,
    }
}

fn nowhere(why: &str) -> Outcome {
    let text = format!("mailbox host unknown: {why}");
    Outcome::Deferred(Reply::new(451, Enhanced(4, 3, 5), text))
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
    use std::sync::Mutex;

    use lookup::directory::{Domain, Limits};
    use lookup::{Answer, Answers, Table};
    use mail::{BodyType, Client, Notify, QueueId, Recipient, SpoolId};

    use super::*;

    #[test]
    fn a_header_is_read_unfolded_and_ends_at_the_empty_line() {
        let found =
            fields(b"Subject: a\r\n\tlong one\r\nList-Id :  <l.example>\r\nnonsense\r\n\r\nPrecedence: bulk\r\n");
        let expected = [("Subject", "a\tlong one"), ("List-Id", "<l.example>")];
        assert_eq!(found, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }

    /// Regression: one unknown mailbox host deferred the whole attempt.
    #[test]
    fn a_mailbox_of_an_unknown_machine_holds_up_none_of_a_known_one() {
        let unknown = |why: &str| Store::Unavailable(why.into());
        let stores = [(2, unknown("odd")), (5, unknown("down"))];
        assert_eq!(unplaced(&[5, 2], &stores), Some(vec![nowhere("down"), nowhere("odd")]));
        assert_eq!(unplaced(&[5, 2], &[(2, unknown("odd")), (5, Store::At("a.x.org".into()))]), None);
        // The second recipient is classified by its envelope.
        assert_eq!(unplaced(&[5, 2], &stores[..1]), None);
    }

    fn case(recipients: &[&str]) -> Case {
        let recipient = |text: &&str| Recipient {
            address: text.parse().expect("an address"),
            original: None,
            notify: Notify::UNSET,
            orcpt: None,
        };
        let envelope = Envelope {
            sender: None,
            recipients: recipients.iter().map(recipient).collect(),
            accepted_at: Timestamp::default(),
            client: Client { address: None, helo: "client.test".into(), trusted: true },
            body_type: BodyType::default(),
            smtputf8: false,
            ret: None,
            envid: None,
        };
        let states = vec![State::NEW; recipients.len()];
        let id = QueueId::new(SpoolId::new(1), 0, 1);
        Case { live: Live { id, envelope, states, recovered: false }, again: Again::No }
    }

    #[test]
    fn a_turn_has_an_end_and_leaves_the_others() {
        let mut many = iter::repeat_with(|| case(&["a@x.org"])).take(TURN_MESSAGES_MAX + 1);
        assert_eq!((turn(&mut many).len(), many.count()), (TURN_MESSAGES_MAX, 1));
        let all = vec!["a@x.org"; TURN_RECIPIENTS_MAX / 2];
        let mut large = iter::repeat_with(|| case(&all)).take(3);
        assert_eq!((turn(&mut large).len(), large.count()), (2, 1));
    }

    /// Answers every key with `store`, and records its queries.
    #[derive(Default)]
    struct Hosts(Mutex<Vec<String>>);

    impl Table for Hosts {
        fn name(&self) -> &str {
            "hosts"
        }

        fn lookup<'a>(&'a self, keys: &'a [&'a str]) -> Answers<'a> {
            self.0.lock().expect("no test panicked with it").push(keys.join(" "));
            Box::pin(std::future::ready(keys.iter().map(|_| Answer::Found(vec!["store".into()])).collect()))
        }
    }

    /// Regression: each message used to cost a round trip to the table of hosts.
    #[test]
    fn a_table_of_hosts_is_asked_once_for_all_messages_of_a_turn() {
        let hosts = Arc::new(Hosts::default());
        let domain = Domain {
            name: "x.org".into(),
            mailboxes: None,
            aliases: None,
            catch_all: None,
            hosts: Some(hosts.clone()),
            delimiter: None,
            transport: "maildir".into(),
            is_final: true,
        };
        let directory = Directory::new(vec![domain], Limits::default());
        let rules = Rules { tabled: true, ..Rules::plain() };
        let mut done = case(&["a@x.org", "b@x.org"]);
        done.live.states[0] = State::Delivered;
        let turn = [done, case(&["c@y.org"]), case(&["d@y.org", "e@x.org"])];
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let found = runtime.block_on(stores(&rules, &directory, &turn));
        let at = || Store::At("store".into());
        assert_eq!(found, [vec![(1, at())], vec![(0, Store::Onward)], vec![(0, Store::Onward), (1, at())]]);
        assert_eq!(*hosts.0.lock().expect("no test panicked with it"), ["b@x.org e@x.org"]);
    }
}
