//! A spool on a simulated disk with a book beside it: everything a test asks of the spool goes through here and
//! is entered in the book, and [`verify`] opens what a crash left and compares.
//!
//! Waiting is bounded: a spool that never answers fails the test, with the log of the disk.

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mail::{BodyFlags, BodyType, Client, Envelope, Notify, QueueId, Recipient, Timestamp};
use sim::Random;
use spool::{CommitError, Config, Content, Entry, Event, Live, OpenError, ReadError, Spool, State};

use crate::book::{Book, Found, Letter, Proposal};

/// The seed of every disk whose seed does not matter.
pub(crate) const SEED: u64 = 20_261_120;

const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Rig {
    pub(crate) disk: sim::Disk,
    pub(crate) spool: Spool,
    pub(crate) book: Book,
    /// Every id that any life of this spool gave.
    pub(crate) given: BTreeSet<QueueId>,
    random: Random,
}

/// A submission under way.
pub(crate) struct Ticket {
    proposal: Proposal,
    answer: Receiver<Result<(), CommitError>>,
}

/// Small segments, so that a few messages fill one; the rest as it comes.
pub(crate) fn config(segment_bytes: u64) -> Config {
    Config { segment_bytes, spare_segments: 1, copy_after: Duration::ZERO, ..Config::default() }
}

impl Rig {
    pub(crate) fn open(disk: &sim::Disk, config: Config) -> Result<Rig, OpenError> {
        Rig::reopen(disk, config, Book::default(), BTreeSet::new())
    }

    /// Opens what a crash left. What it finds must be as the book has it, and is certain from now on.
    pub(crate) fn reopen(
        disk: &sim::Disk,
        config: Config,
        mut book: Book,
        given: BTreeSet<QueueId>,
    ) -> Result<Rig, OpenError> {
        let (spool, found) = open(disk, config)?;
        book.check(&found).unwrap_or_else(|what| panic!("{what}\n{}", disk.log()));
        book.settle_on(&found);
        let random = Random::new(SEED);
        Ok(Rig { disk: disk.clone(), spool, book, given, random })
    }

    /// A name that was never given before.
    pub(crate) fn begin(&mut self) -> QueueId {
        let id = self.spool.begin();
        assert!(self.given.insert(id), "{id} was given twice");
        id
    }

    /// Submits a message of `size` bytes and waits.
    pub(crate) fn accept(&mut self, size: usize, recipients: usize) -> Result<QueueId, CommitError> {
        let (id, ticket) = self.offer(size, recipients);
        self.wait(ticket).map(|()| id)
    }

    /// Submits a message and does not wait.
    pub(crate) fn offer(&mut self, size: usize, recipients: usize) -> (QueueId, Ticket) {
        let id = self.begin();
        let bytes = self.bytes(size);
        let entry = self.message(id, bytes, recipients);
        (id, self.submit(vec![entry]))
    }

    /// Submits a message whose body has a file of its own, and waits.
    pub(crate) fn accept_spilled(&mut self, size: usize, recipients: usize) -> Result<QueueId, CommitError> {
        let id = self.begin();
        let bytes = self.bytes(size);
        let failed = |error: std::io::Error| CommitError::Failed(error.to_string());
        let mut spill = self.spool.spill(id).map_err(failed)?;
        for piece in bytes.chunks(700) {
            spill.append(piece).map_err(failed)?;
        }
        let spilled = spill.finish().map_err(failed)?;
        let flags = flags_of(&bytes);
        let envelope = envelope(recipients);
        self.enter(id, envelope.clone(), bytes);
        let ticket = self.submit(vec![Entry::Message { id, envelope, content: Content::Spilled(spilled), flags }]);
        self.wait(ticket).map(|()| id)
    }

    /// Submits an outcome and waits.
    pub(crate) fn settle(&mut self, id: QueueId, states: &[(u32, State)]) -> Result<(), CommitError> {
        let ticket = self.offer_outcome(id, states);
        self.wait(ticket)
    }

    /// Submits an outcome and does not wait.
    pub(crate) fn offer_outcome(&mut self, id: QueueId, states: &[(u32, State)]) -> Ticket {
        self.submit(vec![Entry::Outcome { id, recipients: states.to_vec(), bounce: None }])
    }

    /// Submits a failure together with the bounce that it causes, and waits.
    pub(crate) fn bounce(&mut self, id: QueueId, ordinal: u32, size: usize) -> Result<QueueId, CommitError> {
        let bounce = self.spool.begin_beside(id);
        assert!(self.given.insert(bounce), "{bounce} was given twice");
        let bytes = self.bytes(size);
        let message = self.message(bounce, bytes, 1);
        let outcome = Entry::Outcome { id, recipients: vec![(ordinal, State::Failed)], bounce: Some(bounce) };
        let ticket = self.submit(vec![message, outcome]);
        self.wait(ticket).map(|()| bounce)
    }

    /// An entry for these bytes, in the book already.
    pub(crate) fn message(&mut self, id: QueueId, bytes: Vec<u8>, recipients: usize) -> Entry {
        let envelope = envelope(recipients);
        self.enter(id, envelope.clone(), bytes.clone());
        Entry::Message { id, envelope, flags: flags_of(&bytes), content: Content::Memory(bytes) }
    }

    pub(crate) fn submit(&mut self, entries: Vec<Entry>) -> Ticket {
        let mut proposal = Proposal::default();
        for entry in &entries {
            match entry {
                Entry::Message { id, .. } => proposal.messages.push(*id),
                Entry::Outcome { id, recipients, bounce } => {
                    for (ordinal, state) in recipients {
                        self.book.propose_outcome(*id, *ordinal, *state, *bounce);
                        proposal.outcomes.push((*id, *ordinal, *state));
                    }
                }
            }
        }
        let (tell, answer): (Sender<_>, _) = channel();
        // The receiver may have given up.
        self.spool.submit(entries, Box::new(move |result| drop(tell.send(result))));
        Ticket { proposal, answer }
    }

    pub(crate) fn wait(&mut self, ticket: Ticket) -> Result<(), CommitError> {
        let answer = ticket.answer.recv_timeout(PATIENCE);
        let result = answer.unwrap_or_else(|_| panic!("no answer came\n{}", self.disk.log()));
        if result.is_ok() {
            self.book.promise(&ticket.proposal);
        }
        result
    }

    /// Waits until `done` holds; what it looks at is nudged by outcomes that say nothing new.
    pub(crate) fn wait_until(&mut self, what: &str, mut done: impl FnMut(&mut Rig) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !done(self) {
            assert!(Instant::now() < end, "{what}: {:?}\n{}", self.spool.stats(), self.disk.log());
            std::thread::yield_now();
        }
    }

    /// What the open spool says of every live message.
    pub(crate) fn found(&self) -> Found {
        self.spool.ids().into_iter().map(|id| (id, letter(&self.spool, id).expect("it is live"))).collect()
    }

    /// Ends the spool; what is left is the disk and what was promised.
    pub(crate) fn close(self) -> (Book, BTreeSet<QueueId>) {
        let Rig { spool, book, given, disk, .. } = self;
        close(spool, &disk);
        (book, given)
    }

    pub(crate) fn bytes(&mut self, size: usize) -> Vec<u8> {
        let mut bytes = vec![0; size];
        self.random.fill(&mut bytes);
        bytes
    }

    fn enter(&mut self, id: QueueId, envelope: Envelope, bytes: Vec<u8>) {
        let states = vec![State::NEW; envelope.recipients.len()];
        self.book.propose(id, Letter { flags: flags_of(&bytes), envelope, states, bytes });
    }
}

/// What a spool tells of itself, for looking at.
#[derive(Clone, Default)]
pub(crate) struct Events(Arc<Mutex<Vec<Event>>>);

impl Events {
    /// The configuration with these ears.
    pub(crate) fn heard_by(&self, config: Config) -> Config {
        let heard = self.0.clone();
        Config { events: Arc::new(move |event| heard.lock().expect("nobody panics with it").push(event)), ..config }
    }

    /// What the queue was told of messages that became durable.
    pub(crate) fn committed(&self) -> Vec<(QueueId, Vec<State>)> {
        let heard = self.0.lock().expect("nobody panics with it");
        let lives = heard.iter().filter_map(|event| match event {
            Event::Committed(lives) => Some(lives),
            _ => None,
        });
        lives.flatten().map(|live| (live.id, live.states.clone())).collect()
    }

    /// What was reported as damaged.
    pub(crate) fn set_aside(&self) -> Vec<String> {
        let what = |event: &Event| match event {
            Event::SetAside { what, .. } => Some(what.clone()),
            _ => None,
        };
        self.0.lock().expect("nobody panics with it").iter().filter_map(what).collect()
    }
}

impl Ticket {
    /// The answer, if there is one yet.
    pub(crate) fn answer_now(&self) -> Option<Result<(), CommitError>> {
        self.answer.try_recv().ok()
    }
}

/// Opens a disk and reads all that is alive on it.
pub(crate) fn open(disk: &sim::Disk, config: Config) -> Result<(Spool, Found), OpenError> {
    let (spool, found, damaged) = open_damaged(disk, config)?;
    match damaged.first() {
        Some(_) if disk.is_off() => Err(OpenError::Io(std::io::ErrorKind::BrokenPipe.into())),
        Some((id, error)) => panic!("{id}: {error}\n{}", disk.log()),
        None => Ok((spool, found)),
    }
}

/// Messages that are in the queue and cannot be read.
pub(crate) type Unreadable = Vec<(QueueId, ReadError)>;

/// Opens a disk on which something may be damaged.
pub(crate) fn open_damaged(disk: &sim::Disk, config: Config) -> Result<(Spool, Found, Unreadable), OpenError> {
    let mut lives: Vec<Live> = Vec::new();
    let spool = spool::open(vec![Arc::new(disk.clone())], config, SEED, &mut |live| lives.push(live))?;
    let (mut found, mut damaged) = (Found::new(), Vec::new());
    assert_eq!(spool.ids(), lives.iter().map(|live| live.id).collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>());
    for live in lives {
        assert!(live.recovered, "{} is known from before", live.id);
        match letter(&spool, live.id) {
            Err(error) => damaged.push((live.id, error)),
            Ok(letter) => {
                assert_eq!((&letter.envelope, &letter.states), (&live.envelope, &live.states), "{}", live.id);
                assert!(found.insert(live.id, letter).is_none(), "{} was given twice", live.id);
            }
        }
    }
    Ok((spool, found, damaged))
}

/// A live message, read whole.
pub(crate) fn letter(spool: &Spool, id: QueueId) -> Result<Letter, ReadError> {
    let stored = spool.message(id)?;
    let mut bytes = vec![0; stored.body.len() as usize];
    let damaged = |what: String| ReadError::Damaged { what };
    stored.body.read_at(&mut bytes, 0).map_err(|error| damaged(error.to_string()))?;
    if crc32c::crc32c(&bytes) != stored.body.digest() {
        return Err(damaged("the body's checksum is wrong".into()));
    }
    Ok(Letter { envelope: stored.envelope, states: stored.states, flags: stored.body.flags(), bytes })
}

/// Closes a spool, and fails where that never ends.
pub(crate) fn close(spool: Spool, disk: &sim::Disk) {
    let (tell, told) = channel();
    let closing = std::thread::spawn(move || {
        spool.close();
        // The receiver may have given up.
        let _ = tell.send(());
    });
    told.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("closing never ends\n{}", disk.log()));
    closing.join().expect("closing does not panic");
}

/// Two thirds of them from an ordinary envelope with everything in it.
pub(crate) fn envelope(recipients: usize) -> Envelope {
    let recipient = |ordinal: usize| Recipient {
        address: format!("r{ordinal}@example.org").parse().expect("an address"),
        original: (ordinal % 2 == 1).then(|| "alias@example.org".parse().expect("an address")),
        notify: Notify::UNSET,
        orcpt: None,
    };
    Envelope {
        sender: Some("sender@example.com".parse().expect("an address")),
        recipients: (0..recipients).map(recipient).collect(),
        accepted_at: Timestamp(1_763_000_000_000),
        client: Client {
            address: Some("192.0.2.1".parse().expect("an address")),
            helo: "client.example".into(),
            trusted: false,
        },
        body_type: BodyType::EightBitMime,
        smtputf8: false,
        ret: None,
        envid: Some("envelope-1".into()),
    }
}

/// Flags that belong to these bytes; what they say does not matter here, that they come back does.
pub(crate) fn flags_of(bytes: &[u8]) -> BodyFlags {
    BodyFlags { dot_lines: bytes.len().is_multiple_of(2), eight_bit: true, ends_in_crlf: bytes.len().is_multiple_of(3) }
}
