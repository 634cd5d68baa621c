//! Test support: a spool on a simulated disk. Everything a test submits is also recorded, to
//! compare it with what is found after a crash.
//!
//! Waiting is bounded: a spool that does not answer fails the test, with the log of the disk.

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mail::{BodyFlags, BodyType, ClientInfo, DsnNotify, Envelope, QueueId, Recipient, Timestamp};
use sim::Random;
use spool::{
    CommitError, Config, LiveMessage, OpenError, ReadError, RecipientState, Spool, SpoolEntry, SpoolEvent,
    SubmittedBody,
};

use crate::promises::{PromiseLog, RecoveredMessages, SubmittedChanges, TestMessage};

/// The seed for disks whose seed does not matter.
pub(crate) const SEED: u64 = 20_261_120;
const OTHER_SEED: u64 = 20_261_121;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) struct SpoolHarness {
    pub(crate) disk: sim::Disk,
    pub(crate) spool: Spool,
    pub(crate) promises: PromiseLog,
    /// All ids that this spool has issued in any run.
    pub(crate) issued_ids: BTreeSet<QueueId>,
    random: Random,
}

/// A submission in progress.
pub(crate) struct PendingSubmission {
    proposal: SubmittedChanges,
    answer: Receiver<Result<(), CommitError>>,
}

/// Small segments, so that a few messages fill one; otherwise the defaults.
pub(crate) fn config(segment_bytes: u64) -> Config {
    Config { segment_bytes, spare_segments: 1, copy_after: Duration::ZERO, ..Config::default() }
}

impl SpoolHarness {
    pub(crate) fn open(disk: &sim::Disk, config: Config) -> Result<SpoolHarness, OpenError> {
        SpoolHarness::reopen(disk, config, PromiseLog::default(), BTreeSet::new())
    }

    /// Opens a disk after a crash, checks what it finds, and takes it as the new truth.
    pub(crate) fn reopen(
        disk: &sim::Disk,
        config: Config,
        promises: PromiseLog,
        given: BTreeSet<QueueId>,
    ) -> Result<SpoolHarness, OpenError> {
        Ok(SpoolHarness::check_opened(disk, open(disk, config)?, promises, given, SEED))
    }

    /// Creates a spool with another id.
    pub(crate) fn create_other(disk: &sim::Disk, config: Config) -> Result<SpoolHarness, OpenError> {
        let spool = spool::open(vec![Arc::new(disk.clone())], config, OTHER_SEED, &mut |_| {})?;
        let opened = (spool, RecoveredMessages::new());
        Ok(SpoolHarness::check_opened(disk, opened, PromiseLog::default(), BTreeSet::new(), OTHER_SEED))
    }

    fn check_opened(
        disk: &sim::Disk,
        (spool, found): (Spool, RecoveredMessages),
        mut promises: PromiseLog,
        given: BTreeSet<QueueId>,
        seed: u64,
    ) -> SpoolHarness {
        promises.check(&found).unwrap_or_else(|what| panic!("{what}\n{}", disk.log()));
        promises.accept_recovered(&found);
        let random = Random::new(seed);
        SpoolHarness { disk: disk.clone(), spool, promises, issued_ids: given, random }
    }

    /// A new id, which must not have been issued before.
    pub(crate) fn begin(&mut self) -> QueueId {
        let id = self.spool.new_id();
        assert!(self.issued_ids.insert(id), "{id} was issued twice");
        id
    }

    /// Submits a message of `size` bytes and waits for the result.
    pub(crate) fn accept(&mut self, size: usize, recipients: usize) -> Result<QueueId, CommitError> {
        let (id, ticket) = self.start_accept(size, recipients);
        self.wait(ticket).map(|()| id)
    }

    /// Submits a message and does not wait.
    pub(crate) fn start_accept(&mut self, size: usize, recipients: usize) -> (QueueId, PendingSubmission) {
        let id = self.begin();
        let bytes = self.bytes(size);
        let entry = self.message(id, bytes, recipients);
        (id, self.submit(vec![entry]))
    }

    /// Submits a message with a body file and waits for the result.
    pub(crate) fn accept_spilled(&mut self, size: usize, recipients: usize) -> Result<QueueId, CommitError> {
        let (id, ticket) = self.start_accept_spilled(size, recipients)?;
        self.wait(ticket).map(|()| id)
    }

    /// Submits a message with a body file and does not wait.
    pub(crate) fn start_accept_spilled(
        &mut self,
        size: usize,
        recipients: usize,
    ) -> Result<(QueueId, PendingSubmission), CommitError> {
        let id = self.begin();
        let bytes = self.bytes(size);
        let failed = |error: std::io::Error| CommitError::Failed(error.to_string());
        let mut spill = self.spool.create_spill_file(id).map_err(failed)?;
        let (prefix, body) = bytes.split_at(prefix_len_of(&bytes));
        for piece in body.chunks(700) {
            spill.append(piece).map_err(failed)?;
        }
        let spilled = spill.finish(prefix).map_err(|error| failed(error.into()))?;
        let flags = flags_of(&bytes);
        let envelope = envelope(recipients);
        self.record_proposal(id, envelope.clone(), bytes);
        let ticket =
            self.submit(vec![SpoolEntry::Message { id, envelope, content: SubmittedBody::Spilled(spilled), flags }]);
        Ok((id, ticket))
    }

    /// Submits an outcome and waits for the result.
    pub(crate) fn settle(&mut self, id: QueueId, states: &[(u32, RecipientState)]) -> Result<(), CommitError> {
        let ticket = self.start_outcome(id, states);
        self.wait(ticket)
    }

    /// Submits an outcome and does not wait.
    pub(crate) fn start_outcome(&mut self, id: QueueId, states: &[(u32, RecipientState)]) -> PendingSubmission {
        self.submit(vec![SpoolEntry::Outcome { id, recipients: states.to_vec(), bounce: None }])
    }

    /// Submits a failure together with its bounce and waits for the result.
    pub(crate) fn bounce(&mut self, id: QueueId, ordinal: u32, size: usize) -> Result<QueueId, CommitError> {
        let (bounce, ticket) = self.start_bounce(id, ordinal, size);
        self.wait(ticket).map(|()| bounce)
    }

    /// Submits a failure together with its bounce and does not wait.
    pub(crate) fn start_bounce(&mut self, id: QueueId, ordinal: u32, size: usize) -> (QueueId, PendingSubmission) {
        let bounce = self.spool.new_id_in_lane_of(id);
        assert!(self.issued_ids.insert(bounce), "{bounce} was issued twice");
        let bytes = self.bytes(size);
        let message = self.message(bounce, bytes, 1);
        let outcome =
            SpoolEntry::Outcome { id, recipients: vec![(ordinal, RecipientState::Failed)], bounce: Some(bounce) };
        (bounce, self.submit(vec![message, outcome]))
    }

    /// Makes an entry for these bytes and records it as proposed.
    pub(crate) fn message(&mut self, id: QueueId, bytes: Vec<u8>, recipients: usize) -> SpoolEntry {
        let envelope = envelope(recipients);
        self.record_proposal(id, envelope.clone(), bytes.clone());
        message_entry(id, envelope, &bytes)
    }

    pub(crate) fn submit(&mut self, entries: Vec<SpoolEntry>) -> PendingSubmission {
        let mut proposal = SubmittedChanges::default();
        for entry in &entries {
            match entry {
                SpoolEntry::Message { id, .. } => proposal.messages.push(*id),
                SpoolEntry::Outcome { id, recipients, bounce } => {
                    for (ordinal, state) in recipients {
                        self.promises.propose_outcome(*id, *ordinal, *state, *bounce);
                        proposal.outcomes.push((*id, *ordinal, *state));
                    }
                }
            }
        }
        let (tell, answer): (Sender<_>, _) = channel();
        // The receiver may have timed out.
        self.spool.submit(entries, Box::new(move |result| drop(tell.send(result))));
        PendingSubmission { proposal, answer }
    }

    pub(crate) fn wait(&mut self, ticket: PendingSubmission) -> Result<(), CommitError> {
        let answer = ticket.answer.recv_timeout(ANSWER_TIMEOUT);
        let result = answer.unwrap_or_else(|_| panic!("no answer\n{}", self.disk.log()));
        if result.is_ok() {
            self.promises.promise(&ticket.proposal);
        }
        result
    }

    /// Waits until `done` returns true; submits empty outcomes meanwhile to trigger work.
    pub(crate) fn wait_until(&mut self, what: &str, mut done: impl FnMut(&mut SpoolHarness) -> bool) {
        let end = Instant::now() + ANSWER_TIMEOUT;
        while !done(self) {
            assert!(Instant::now() < end, "{what}: {:?}\n{}", self.spool.stats(), self.disk.log());
            std::thread::yield_now();
        }
    }

    /// All live messages of the open spool.
    pub(crate) fn recovered(&self) -> RecoveredMessages {
        self.spool
            .ids()
            .into_iter()
            .map(|id| (id, read_message(&self.spool, id).expect("a live message is readable")))
            .collect()
    }

    /// Closes the spool; returns the recorded promises.
    pub(crate) fn close(self) -> (PromiseLog, BTreeSet<QueueId>) {
        let SpoolHarness { spool, promises, issued_ids: given, disk, .. } = self;
        close(spool, &disk);
        (promises, given)
    }

    pub(crate) fn bytes(&mut self, size: usize) -> Vec<u8> {
        let mut bytes = vec![0; size];
        self.random.fill(&mut bytes);
        bytes
    }

    fn record_proposal(&mut self, id: QueueId, envelope: Envelope, bytes: Vec<u8>) {
        let states = vec![RecipientState::NEW; envelope.recipients.len()];
        let (flags, prefix_len) = (flags_of(&bytes), prefix_len_of(&bytes));
        self.promises.propose(id, TestMessage { flags, envelope, states, bytes, prefix_len });
    }
}

/// Collects the events of a spool.
#[derive(Clone, Default)]
pub(crate) struct RecordedEvents(Arc<Mutex<Vec<SpoolEvent>>>);

impl RecordedEvents {
    /// The configuration, with events sent here.
    pub(crate) fn record_from(&self, config: Config) -> Config {
        let heard = self.0.clone();
        Config { events: Arc::new(move |event| heard.lock().expect("the lock is not poisoned").push(event)), ..config }
    }

    /// The reported commits.
    pub(crate) fn committed(&self) -> Vec<(QueueId, Vec<RecipientState>)> {
        let heard = self.0.lock().expect("the lock is not poisoned");
        let lives = heard.iter().filter_map(|event| match event {
            SpoolEvent::Committed(lives) => Some(lives),
            _ => None,
        });
        lives.flatten().map(|live| (live.id, live.states.clone())).collect()
    }

    /// The reported damage.
    pub(crate) fn set_aside(&self) -> Vec<String> {
        let what = |event: &SpoolEvent| match event {
            SpoolEvent::SetAside { what, .. } => Some(what.clone()),
            _ => None,
        };
        self.0.lock().expect("the lock is not poisoned").iter().filter_map(what).collect()
    }
}

impl PendingSubmission {
    /// The result, if it has arrived.
    pub(crate) fn try_result(&self) -> Option<Result<(), CommitError>> {
        self.answer.try_recv().ok()
    }
}

/// Opens a disk and reads all live messages.
pub(crate) fn open(disk: &sim::Disk, config: Config) -> Result<(Spool, RecoveredMessages), OpenError> {
    let (spool, found, damaged) = open_damaged(disk, config)?;
    match damaged.first() {
        Some(_) if disk.is_off() => Err(OpenError::Io(std::io::ErrorKind::BrokenPipe.into())),
        Some((id, error)) => panic!("{id}: {error}\n{}", disk.log()),
        None => {
            assert_eq!(spool.ids(), found.keys().copied().collect::<Vec<_>>());
            Ok((spool, found))
        }
    }
}

/// Live messages that cannot be read.
pub(crate) type Unreadable = Vec<(QueueId, ReadError)>;

/// Opens a disk that may be damaged.
pub(crate) fn open_damaged(
    disk: &sim::Disk,
    config: Config,
) -> Result<(Spool, RecoveredMessages, Unreadable), OpenError> {
    let mut lives: Vec<LiveMessage> = Vec::new();
    let spool = spool::open(vec![Arc::new(disk.clone())], config, SEED, &mut |live| lives.push(live))?;
    let (mut found, mut damaged) = (RecoveredMessages::new(), Vec::new());
    // Maintenance, which runs already, may have set damaged messages aside.
    let (present, returned) = (BTreeSet::from_iter(spool.ids()), lives.iter().map(|live| live.id).collect());
    assert!(present.is_subset(&returned), "{present:?} {returned:?}");
    for live in lives {
        assert!(live.recovered, "{} is not marked as recovered", live.id);
        match read_message(&spool, live.id) {
            Err(error) => damaged.push((live.id, error)),
            Ok(message) => {
                assert_eq!((&message.envelope, &message.states), (&live.envelope, &live.states), "{}", live.id);
                assert!(found.insert(live.id, message).is_none(), "{} was returned twice", live.id);
            }
        }
    }
    Ok((spool, found, damaged))
}

/// Reads a live message completely.
pub(crate) fn read_message(spool: &Spool, id: QueueId) -> Result<TestMessage, ReadError> {
    let stored = spool.message(id)?;
    let mut bytes = vec![0; stored.body.len() as usize];
    let damaged = |what: String| ReadError::Damaged { what };
    stored.body.read_at(&mut bytes, 0).map_err(|error| damaged(error.to_string()))?;
    if crc32c::crc32c(&bytes) != stored.body.digest() {
        return Err(damaged("the body's checksum is wrong".into()));
    }
    let (flags, prefix_len) = (stored.body.flags(), stored.prefix_len as usize);
    Ok(TestMessage { envelope: stored.envelope, states: stored.states, flags, bytes, prefix_len })
}

/// Submits entries and waits for the result, without recording them.
pub(crate) fn submit(spool: &Spool, entries: Vec<SpoolEntry>) -> Result<(), CommitError> {
    let (tell, told) = channel();
    spool.submit(entries, Box::new(move |result| drop(tell.send(result))));
    told.recv_timeout(ANSWER_TIMEOUT).expect("the spool answers")
}

/// Closes a spool; fails if that does not end.
pub(crate) fn close(spool: Spool, disk: &sim::Disk) {
    let (tell, told) = channel();
    let closing = std::thread::spawn(move || {
        spool.close();
        // The receiver may have timed out.
        let _ = tell.send(());
    });
    told.recv_timeout(ANSWER_TIMEOUT).unwrap_or_else(|_| panic!("closing does not end\n{}", disk.log()));
    closing.join().expect("closing does not panic");
}

/// An envelope that uses every field.
pub(crate) fn envelope(recipients: usize) -> Envelope {
    let recipient = |ordinal: usize| Recipient {
        address: format!("r{ordinal}@example.org").parse().expect("an address"),
        original: (ordinal % 2 == 1).then(|| "alias@example.org".parse().expect("an address")),
        notify: DsnNotify::UNSET,
        orcpt: None,
        is_forwarded: false,
    };
    Envelope {
        sender: Some("sender@example.com".parse().expect("an address")),
        recipients: (0..recipients).map(recipient).collect(),
        accepted_at: Timestamp(1_763_000_000_000),
        client: ClientInfo {
            address: Some("192.0.2.1".parse().expect("an address")),
            helo: "client.example".into(),
            trusted: false,
        },
        body_type: BodyType::EightBitMime,
        smtputf8: false,
        ret: None,
        envid: Some("envelope-1".into()),
        content_filter: false,
    }
}

/// A message of these bytes, the first of which are its prefix.
pub(crate) fn message_entry(id: QueueId, envelope: Envelope, bytes: &[u8]) -> SpoolEntry {
    let (prefix, body) = bytes.split_at(prefix_len_of(bytes));
    let content = SubmittedBody::Memory { prefix: prefix.to_vec(), body: body.to_vec() };
    SpoolEntry::Message { id, envelope, flags: flags_of(bytes), content }
}

/// How many of these bytes the tests submit as the prefix: none, some or all.
pub(crate) fn prefix_len_of(bytes: &[u8]) -> usize {
    match bytes.len() % 4 {
        0 => bytes.len() / 7,
        1 => bytes.len().min(200),
        2 => bytes.len() / 2,
        _ => 0,
    }
}

/// Flags for these bytes: the tests only check that they are stored.
pub(crate) fn flags_of(bytes: &[u8]) -> BodyFlags {
    BodyFlags { dot_lines: bytes.len().is_multiple_of(2), eight_bit: true, ends_in_crlf: bytes.len().is_multiple_of(3) }
}
