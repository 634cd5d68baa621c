//! The spool: keeps accepted mail in append-only logs, one per lane (a lane is a folder on a disk),
//! with group commit and segments that are reused as a whole. It has its own threads and no async
//! code.
//!
//! The promise: when [`CommitCallback`] is called with `Ok`, every entry of that submission
//! survives kill -9 and power loss. When it is called with an error, its entries *may* still appear
//! after a restart.
//!
//! | a message is | on disk | after a crash |
//! |---|---|---|
//! | begun | nothing, or a body file that no record names | gone; its id is never used again |
//! | submitted | perhaps its record, perhaps torn | complete, or gone |
//! | waiting for the commit step, if there is one | its record, synced | present, though not acknowledged |
//! | committed | its record, synced | present, byte for byte |
//! | settled in part | and outcomes, synced | present, with the remaining recipients |
//! | dead | and a final outcome for every recipient, synced | gone |
//!
//! What may be added to it: a [`CommitStep`], which confirms batches beside the local disk, and lanes
//! of other spools ([`Spool::adopt`]), also such that a [`LaneRestorer`] has written from a copy.
//!
//! Data that cannot be read is copied to a file beside the log and reported, never deleted. The
//! format is described in `docs/spool-format.md`.

mod batch_size;
mod codec;
mod commit_step;
pub mod disk;
mod entries;
mod finished_messages;
mod inspect;
mod lane;
mod lanes;
mod message_index;
mod recipient_states;
mod record;
mod recovery;
mod restore;
mod scan;
mod segment;
mod segment_maintenance;
mod spill;
mod stats;
mod step_answers;
mod writer;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use mail::{QueueId, SpoolId};

pub use commit_step::{BatchDraft, CommitStep, CommitStepConfig, DraftBody, EntryDraft, OutcomesStored, StepAnswer};
pub use disk::{Disk, DiskFile, DiskSpace, FolderDisk};
pub use entries::{
    LiveMessage, SpoolEntry, SpooledMessage, SubmittedBody, decode_envelope, decode_states, encode_envelope,
    encode_states,
};
pub use finished_messages::FinishedMessages;
pub use inspect::{Inspection, SegmentReport, inspect};
pub use lanes::{LaneIdentity, Spool, open, survey_lane};
pub use recipient_states::{RecipientState, RecipientStates};
pub use restore::{LaneRestorer, RestoreError, RestoredMessage};
pub use spill::{PREFIX_BYTES_MAX, SpillError, SpillWriter, SpilledBody};
pub use stats::{LaneBatching, Stats};

/// The settings of a spool.
#[derive(Clone)]
pub struct Config {
    /// The size of a new segment file. A message must fit with its index: use at least four times
    /// the largest record.
    pub segment_bytes: u64,
    /// When a message counts as durable.
    pub durability: Durability,
    /// The number of free segments to keep for reuse.
    pub spare_segments: usize,
    /// A batch takes no further submission when it has this many bytes, or fewer if the disk is
    /// slow.
    pub batch_bytes_max: u64,
    /// The live messages of a mostly dead segment are copied forward if none of them died for this
    /// long, or immediately if the disk is short of space.
    pub copy_after: Duration,
    /// Batches are made smaller while one takes longer than this to write and sync, so that a
    /// submission does not wait for the bytes of too many others.
    pub batch_time_target: Duration,
    /// Confirms each batch before its messages are acknowledged; none by default.
    pub commit_step: Option<CommitStepConfig>,
    /// Receives commits and errors, on the spool's own threads and on those on which the commit step
    /// answers. It must not block for long.
    pub events: Arc<dyn Fn(SpoolEvent) + Send + Sync>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            segment_bytes: 64 << 20,
            durability: Durability::Commit,
            spare_segments: 8,
            batch_bytes_max: 8 << 20,
            copy_after: Duration::from_secs(5),
            batch_time_target: Duration::from_millis(100),
            commit_step: None,
            events: Arc::new(|_| {}),
        }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Config({} bytes a segment, {:?})", self.segment_bytes, self.durability)
    }
}

/// A lane: a spool, and the number of the lane in it. As text it is the first two parts of the ids of
/// its messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneId {
    /// The spool that assigns the ids of the lane's messages.
    pub spool: SpoolId,
    /// The number of the lane in that spool.
    pub number: u16,
}

impl LaneId {
    /// The lane of a message.
    pub fn of(id: QueueId) -> Self {
        LaneId { spool: id.spool(), number: id.lane() }
    }

    /// The epoch in which the lane gave this id: how often its spool had been opened.
    pub fn epoch_of(id: QueueId) -> u32 {
        u32::try_from(id.sequence() >> lane::COUNTER_BITS).unwrap_or(u32::MAX)
    }
}

impl fmt::Display for LaneId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first_id = QueueId::new(self.spool, self.number, 0).to_string();
        f.write_str(first_id.rsplit_once('-').map_or("", |(lane, _)| lane))
    }
}

/// When a message counts as durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// When it is synced.
    Commit,
    /// When it is written; a power failure loses what was accepted since the last sync.
    Relaxed {
        /// The maximum time between syncs.
        sync_every: Duration,
    },
}

/// A report of the spool's threads.
#[derive(Clone, Debug)]
pub enum SpoolEvent {
    /// These messages were acknowledged: they are durable, and the commit step has succeeded.
    Committed(Vec<LiveMessage>),
    /// Some data could not be read; what can be read of it is in a file beside the log.
    SetAside {
        /// The message, if it is known.
        id: Option<QueueId>,
        /// A description of the damage and its position.
        what: String,
    },
    /// A batch could not be written or synced. None of it was acknowledged.
    BatchFailed {
        /// The lane.
        lane: LaneId,
        /// The number of the segment, which is not written again.
        segment: u64,
        /// The error.
        error: String,
    },
    /// No segment could be prepared; the spool tries again.
    NoSegment {
        /// The lane.
        lane: LaneId,
        /// The error.
        error: String,
    },
}

/// Called once, when a submission is durable or has failed: on the thread that submits it, on the
/// writer's, or on the one on which the commit step answers. It must not block for long.
pub type CommitCallback = Box<dyn FnOnce(Result<(), CommitError>) + Send>;

/// Why a submission was not committed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    /// The disk is full; the same submission may succeed later.
    #[error("the spool's disk is full")]
    Full,
    /// A write or a sync failed; the next batch goes to a new segment.
    #[error("cannot write to the spool: {0}")]
    Failed(String),
    /// It does not fit into an empty segment.
    #[error("the record is larger than a segment")]
    TooLarge,
    /// The spool is closed, or the message does not exist.
    #[error("the spool is closed")]
    Closed,
    /// Too many bytes wait for the commit step; the same submission may succeed later.
    #[error("too many messages wait for their second copy")]
    StepBacklog,
    /// The commit step cannot take new mail of the lane now; nothing was written.
    #[error("the second copy cannot be stored now")]
    StepAway,
    /// The commit step failed; the message was withdrawn.
    #[error("the second copy failed: {0}")]
    StepFailed(String),
}

impl From<&io::Error> for CommitError {
    fn from(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => CommitError::Full,
            _ => CommitError::Failed(error.to_string()),
        }
    }
}

/// Why a message could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// There is no live message with this id.
    #[error("no such message")]
    Unknown,
    /// It cannot be read now, for lack of memory or file handles; it may be later.
    #[error("the message cannot be read now: {0}")]
    Unavailable(String),
    /// Its bytes cannot be read; see [`Spool::set_aside_damaged`].
    #[error("the message is damaged: {what}")]
    Damaged {
        /// The damage.
        what: String,
    },
}

/// Why a spool could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The disk reported an error.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Another process works on the lane, or this one has opened its folder already.
    #[error("the lane is in use by another process, or already open in this one")]
    Locked,
    /// It was written by another version of the format.
    #[error(
        "{segment} has version {version} of the spool format, but this program only reads version {}: {}",
        segment::FORMAT_VERSION,
        version_advice(*version)
    )]
    Version {
        /// The file.
        segment: String,
        /// Its version.
        version: u32,
    },
    /// Another version wrote a record that must not be skipped.
    #[error("the log has a record of unknown kind {kind}: use the version of Mailrace that wrote it")]
    UnknownRecord {
        /// The kind.
        kind: u8,
    },
    /// One folder has segments of several lanes or spools.
    #[error("the folder has segments of more than one lane")]
    MixedLanes,
    /// The lanes do not belong together.
    #[error("the lanes belong to different spools, or one is given twice")]
    ForeignLane,
    /// The epoch, which counts starts, has reached its maximum.
    #[error("the spool was started too often: its epoch counter is exhausted")]
    EpochsExhausted,
    /// No lane was given.
    #[error("no lane given: a spool needs at least one")]
    NoLane,
    /// A lane to adopt has no readable header.
    #[error("no segment with a readable header in the folder: there is no lane to adopt")]
    NothingToAdopt,
    /// A lane to adopt has the id of an open one.
    #[error("lane {0} is already open, from another folder")]
    AlreadyOpen(LaneId),
}

/// What to do with a spool of another version.
fn version_advice(version: u32) -> &'static str {
    if version > segment::FORMAT_VERSION {
        return "use the version of Mailrace that wrote it";
    }
    "start the version of Mailrace that wrote it with 'mailrace serve --drain-only' until its queue is empty, then \
     remove the files of the spool, or use a new folder"
}
