//! Restores a lane into an empty folder, from a copy of its messages and outcomes that somebody else
//! has kept. The folder can then be adopted ([`crate::Spool::adopt`]). Or restores single messages that
//! an open lane has lost ([`crate::Spool::restore`]).
//!
//! It is written as a lane is: by a writer thread and with segments, which are freed when all of
//! their messages are finished. But nothing is acknowledged, so nothing but bodies in files of their
//! own is synced before a segment is full, and a folder of which [`LaneRestorer::finish`] did not
//! return `Ok` must be thrown away.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use mail::{BodyFlags, Envelope, QueueId};
use parking_lot::{Condvar, Mutex};

use crate::disk::Disk;
use crate::entries::{SpoolEntry, SubmittedBody};
use crate::lane::LaneContext;
use crate::lanes::{RunningLane, create_lane, lock};
use crate::recipient_states::RecipientState;
use crate::spill::SpillWriter;
use crate::{CommitCallback, CommitError, Config, Durability, LaneId, OpenError, Spool, SpoolEvent};

/// A call waits while this many bytes wait to be written.
const WAITING_BYTES_MAX: u64 = 8 << 20;
/// What an entry takes in memory beside its body, approximately.
const ENTRY_BYTES: u64 = 512;
/// Longer than any restoration writes into one segment.
const SYNC_EVERY: Duration = Duration::from_secs(3600);

/// A lane that is being restored. Its methods block.
pub struct LaneRestorer {
    lane: RunningLane,
    backlog: Arc<Backlog>,
}

/// A message to restore.
#[derive(Debug)]
pub struct RestoredMessage {
    /// Its id, which belongs to the lane.
    pub id: QueueId,
    /// Its envelope.
    pub envelope: Envelope,
    /// Ordinals of recipients that are not new, and their states.
    pub states: Vec<(u32, RecipientState)>,
    /// Its prefix and body.
    pub content: SubmittedBody,
    /// Properties of the prefix and the body together.
    pub flags: BodyFlags,
}

/// Why a lane cannot be restored. What was written is of no use.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The folder cannot be prepared.
    #[error("{0}")]
    Open(#[from] OpenError),
    /// A message or its body cannot be written.
    #[error("{0}")]
    Commit(#[from] CommitError),
    /// A message has the id of another lane.
    #[error("message {0} belongs to another lane")]
    OtherLane(QueueId),
}

/// The entries that wait to be written, and the first failure.
#[derive(Default)]
struct Backlog {
    state: Mutex<BacklogState>,
    written: Condvar,
}

#[derive(Default)]
struct BacklogState {
    bytes: u64,
    failure: Option<CommitError>,
}

impl LaneRestorer {
    /// Begins to restore `lane` into an empty folder. `epoch` must be at least that of every id that
    /// its owners have given; whoever adopts the folder gives ids of later epochs. `random` must be
    /// unpredictable. Of `config`, durability, commit step and events are not used.
    ///
    /// # Errors
    ///
    /// The folder is locked, not empty, or cannot be written.
    pub fn create(
        disk: Arc<dyn Disk>,
        lane: LaneId,
        epoch: u32,
        config: Config,
        random: u64,
    ) -> Result<LaneRestorer, RestoreError> {
        lock(&*disk)?;
        if !disk.list().map_err(OpenError::Io)?.is_empty() {
            return Err(OpenError::Io(io::ErrorKind::DirectoryNotEmpty.into()).into());
        }
        let backlog: Arc<Backlog> = Arc::default();
        let failures = backlog.clone();
        let config = Config {
            durability: Durability::Relaxed { sync_every: SYNC_EVERY },
            commit_step: None,
            events: Arc::new(move |event| {
                // Also from a sync at the end of a segment, for which no submission waits.
                if let SpoolEvent::BatchFailed { error, .. } = event {
                    failures.fail(CommitError::Failed(error));
                }
            }),
            ..config
        };
        let context = LaneContext { config, random, step_bytes: Arc::default() };
        let lane = RunningLane::start(create_lane(disk, lane, epoch, &context)?).map_err(OpenError::Io)?;
        Ok(LaneRestorer { lane, backlog })
    }

    /// Whether a message is written and not finished. One that was appended a moment ago may be
    /// missing.
    pub fn is_live(&self, id: QueueId) -> bool {
        self.lane.lane().segment_table.lock().index.place(id.sequence()).is_some()
    }

    /// Creates the file of a large body.
    pub fn create_spill_file(&self, id: QueueId) -> io::Result<SpillWriter> {
        SpillWriter::create(self.lane.lane().disk.clone(), id.sequence())
    }

    /// Appends a message. If it is live already, only its states count, so that a later copy of it
    /// does no harm.
    pub fn append_message(&self, message: RestoredMessage) -> Result<(), RestoreError> {
        let RestoredMessage { id, envelope, states, content, flags } = message;
        let bytes = match &content {
            SubmittedBody::Memory { prefix, body } => prefix.len() + body.len(),
            SubmittedBody::Spilled(_) => 0,
        };
        let mut entries = Vec::with_capacity(2);
        if !self.is_live(id) {
            entries.push(SpoolEntry::Message { id, envelope, content, flags });
        }
        if !states.is_empty() {
            entries.push(SpoolEntry::Outcome { id, recipients: states, bounce: None });
        }
        self.submit(id, entries, bytes as u64)
    }

    /// Appends new states of recipients of a message that was appended before.
    pub fn append_outcome(&self, id: QueueId, recipients: Vec<(u32, RecipientState)>) -> Result<(), RestoreError> {
        self.submit(id, vec![SpoolEntry::Outcome { id, recipients, bounce: None }], 0)
    }

    fn submit(&self, id: QueueId, entries: Vec<SpoolEntry>, bytes: u64) -> Result<(), RestoreError> {
        let lane = self.lane.lane();
        if LaneId::of(id) != lane.lane_id {
            return Err(RestoreError::OtherLane(id));
        }
        if entries.is_empty() {
            return Ok(());
        }
        let bytes = bytes + ENTRY_BYTES;
        self.backlog.add(bytes)?;
        let backlog = self.backlog.clone();
        lane.submit_entries(entries, Box::new(move |result| backlog.remove(bytes, result)));
        Ok(())
    }

    /// Writes what waits, syncs the log and closes the lane.
    ///
    /// # Errors
    ///
    /// Something could not be written or synced, now or before.
    pub fn finish(mut self) -> Result<(), RestoreError> {
        self.lane.lane().close_inbox();
        self.lane.join();
        let failure = self.backlog.state.lock().failure.take();
        failure.map_or(Ok(()), |failure| Err(failure.into()))
    }
}

impl Spool {
    /// Adds a message that an open lane has lost, with the id that it had. It is reported as committed
    /// when `done` is called with success, and is not passed to the commit step, which has it.
    pub fn restore(&self, message: RestoredMessage, done: CommitCallback) {
        let RestoredMessage { id, envelope, states, content, flags } = message;
        let Some(lane) = self.lane_by_id(LaneId::of(id)) else { return done(Err(CommitError::Closed)) };
        let mut entries = vec![SpoolEntry::Message { id, envelope, content, flags }];
        if !states.is_empty() {
            entries.push(SpoolEntry::Outcome { id, recipients: states, bounce: None });
        }
        lane.submit_restored(entries, done);
    }
}

impl Drop for LaneRestorer {
    fn drop(&mut self) {
        self.lane.lane().close_inbox();
        self.lane.join();
    }
}

impl Backlog {
    /// Waits until there is space. The last entry may exceed the limit.
    fn add(&self, bytes: u64) -> Result<(), CommitError> {
        let mut state = self.state.lock();
        while state.bytes >= WAITING_BYTES_MAX && state.failure.is_none() {
            self.written.wait(&mut state);
        }
        match &state.failure {
            Some(failure) => Err(failure.clone()),
            None => {
                state.bytes += bytes;
                Ok(())
            }
        }
    }

    fn remove(&self, bytes: u64, result: Result<(), CommitError>) {
        self.state.lock().bytes -= bytes;
        if let Err(error) = result {
            self.fail(error);
        }
        self.written.notify_all();
    }

    fn fail(&self, error: CommitError) {
        self.state.lock().failure.get_or_insert(error);
        self.written.notify_all();
    }
}
