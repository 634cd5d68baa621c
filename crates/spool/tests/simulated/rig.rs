//! Test support: a spool on a simulated disk. Everything a test submits is also recorded, to compare
//! it with what is found after a crash.
//!
//! Waiting is bounded: a spool that does not answer fails the test, with the log of the disk.

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mail::{BodyFlags, BodyType, Client, Envelope, Notify, QueueId, Recipient, Timestamp};
use sim::Random;
use spool::{CommitError, Config, Content, Entry, Event, Live, OpenError, ReadError, Spool, State};

use crate::book::{Book, Found, Letter, Proposal};

/// The seed for disks whose seed does not matter.
pub(crate) const SEED: u64 = 20_261_120;

const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Rig {
    pub(crate) disk: sim::Disk,
    pub(crate) spool: Spool,
    pub(crate) book: Book,
    /// All ids that this spool has issued in any run.
    pub(crate) given: BTreeSet<QueueId>,
    random: Random,
}

/// A submission in progress.
pub(crate) struct Ticket {
    proposal: Proposal,
    answer: Receiver<Result<(), CommitError>>,
}

/// Small segments, so that a few messages fill one; otherwise the defaults.
pub(crate) fn config(segment_bytes: u64) -> Config {
    Config { segment_bytes, spare_segments: 1, copy_after: Duration::ZERO, ..Config::default() }
}

impl Rig {
    pub(crate) fn open(disk: &sim::Disk, config: Config) -> Result<Rig, OpenError> {
        Rig::reopen(disk, config, Book::default(), BTreeSet::new())
    }

    /// Opens a disk after a crash, checks what it finds, and takes it as the new truth.
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

    /// A new id, which must not have been issued before.
    pub(crate) fn begin(&mut self) -> QueueId {
        let id = self.spool.begin();
        assert!(self.given.insert(id), "{id} was issued twice");
        id
    }

    /// Submits a message of `size` bytes and waits for the result.
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

    /// Submits a message with a body file and waits for the result.
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

    /// Submits an outcome and waits for the result.
    pub(crate) fn settle(&mut self, id: QueueId, states: &[(u32, State)]) -> Result<(), CommitError> {
        let ticket = self.offer_outcome(id, states);
        self.wait(ticket)
    }

    /// Submits an outcome and does not wait.
    pub(crate) fn offer_outcome(&mut self, id: QueueId, states: &[(u32, State)]) -> Ticket {
        self.submit(vec![Entry::Outcome { id, recipients: states.to_vec(), bounce: None }])
    }

    /// Submits a failure together with its bounce and waits for the result.
    pub(crate) fn bounce(&mut self, id: QueueId, ordinal: u32, size: usize) -> Result<QueueId, CommitError> {
        let bounce = self.spool.begin_beside(id);
        assert!(self.given.insert(bounce), "{bounce} was issued twice");
        let bytes = self.bytes(size);
        let message = self.message(bounce, bytes, 1);
        let outcome = Entry::Outcome { id, recipients: vec![(ordinal, State::Failed)], bounce: Some(bounce) };
        let ticket = self.submit(vec![message, outcome]);
        self.wait(ticket).map(|()| bounce)
    }

    /// Makes an entry for these bytes and records it as proposed.
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
        // The receiver may have timed out.
        self.spool.submit(entries, Box::new(move |result| drop(tell.send(result))));
        Ticket { proposal, answer }
    }

    pub(crate) fn wait(&mut self, ticket: Ticket) -> Result<(), CommitError> {
        let answer = ticket.answer.recv_timeout(PATIENCE);
        let result = answer.unwrap_or_else(|_| panic!("no answer\n{}", self.disk.log()));
        if result.is_ok() {
            self.book.promise(&ticket.proposal);
        }
        result
    }

    /// Waits until `done` returns true; submits empty outcomes meanwhile to trigger work.
    pub(crate) fn wait_until(&mut self, what: &str, mut done: impl FnMut(&mut Rig) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !done(self) {
            assert!(Instant::now() < end, "{what}: {:?}\n{}", self.spool.stats(), self.disk.log());
            std::thread::yield_now();
        }
    }

    /// All live messages of the open spool.
    pub(crate) fn found(&self) -> Found {
        self.spool
            .ids()
            .into_iter()
            .map(|id| (id, letter(&self.spool, id).expect("a live message is readable")))
            .collect()
    }

    /// Closes the spool; returns the recorded promises.
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

/// Collects the events of a spool.
#[derive(Clone, Default)]
pub(crate) struct Events(Arc<Mutex<Vec<Event>>>);

impl Events {
    /// The configuration, with events sent here.
    pub(crate) fn heard_by(&self, config: Config) -> Config {
        let heard = self.0.clone();
        Config { events: Arc::new(move |event| heard.lock().expect("the lock is not poisoned").push(event)), ..config }
    }

    /// The reported commits.
    pub(crate) fn committed(&self) -> Vec<(QueueId, Vec<State>)> {
        let heard = self.0.lock().expect("the lock is not poisoned");
        let lives = heard.iter().filter_map(|event| match event {
            Event::Committed(lives) => Some(lives),
            _ => None,
        });
        lives.flatten().map(|live| (live.id, live.states.clone())).collect()
    }

    /// The reported damage.
    pub(crate) fn set_aside(&self) -> Vec<String> {
        let what = |event: &Event| match event {
            Event::SetAside { what, .. } => Some(what.clone()),
            _ => None,
        };
        self.0.lock().expect("the lock is not poisoned").iter().filter_map(what).collect()
    }
}

impl Ticket {
    /// The result, if it has arrived.
    pub(crate) fn answer_now(&self) -> Option<Result<(), CommitError>> {
        self.answer.try_recv().ok()
    }
}

/// Opens a disk and reads all live messages.
pub(crate) fn open(disk: &sim::Disk, config: Config) -> Result<(Spool, Found), OpenError> {
    let (spool, found, damaged) = open_damaged(disk, config)?;
    match damaged.first() {
        Some(_) if disk.is_off() => Err(OpenError::Io(std::io::ErrorKind::BrokenPipe.into())),
        Some((id, error)) => panic!("{id}: {error}\n{}", disk.log()),
        None => Ok((spool, found)),
    }
}

/// Live messages that cannot be read.
pub(crate) type Unreadable = Vec<(QueueId, ReadError)>;

/// Opens a disk that may be damaged.
pub(crate) fn open_damaged(disk: &sim::Disk, config: Config) -> Result<(Spool, Found, Unreadable), OpenError> {
    let mut lives: Vec<Live> = Vec::new();
    let spool = spool::open(vec![Arc::new(disk.clone())], config, SEED, &mut |live| lives.push(live))?;
    let (mut found, mut damaged) = (Found::new(), Vec::new());
    assert_eq!(spool.ids(), lives.iter().map(|live| live.id).collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>());
    for live in lives {
        assert!(live.recovered, "{} is not marked as recovered", live.id);
        match letter(&spool, live.id) {
            Err(error) => damaged.push((live.id, error)),
            Ok(letter) => {
                assert_eq!((&letter.envelope, &letter.states), (&live.envelope, &live.states), "{}", live.id);
                assert!(found.insert(live.id, letter).is_none(), "{} was returned twice", live.id);
            }
        }
    }
    Ok((spool, found, damaged))
}

/// Reads a live message completely.
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

/// Closes a spool; fails if that does not end.
pub(crate) fn close(spool: Spool, disk: &sim::Disk) {
    let (tell, told) = channel();
    let closing = std::thread::spawn(move || {
        spool.close();
        // The receiver may have timed out.
        let _ = tell.send(());
    });
    told.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("closing does not end\n{}", disk.log()));
    closing.join().expect("closing does not panic");
}

/// An envelope that uses every field.
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

/// Flags for these bytes: the tests only check that they are stored.
pub(crate) fn flags_of(bytes: &[u8]) -> BodyFlags {
    BodyFlags { dot_lines: bytes.len().is_multiple_of(2), eight_bit: true, ends_in_crlf: bytes.len().is_multiple_of(3) }
}
