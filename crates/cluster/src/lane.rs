//! The state machines of one lane: its owner, the nodes that watch it, whose it is after a start, what
//! is still needed of its stream, and what the stream says.
//!
//! They have no clock, no socket and no async code. `handle_*` takes events in, `poll_*` gives actions
//! and deadlines out; after each event, poll until nothing comes. All times are those of the node's
//! own CLOCK_BOOTTIME, which also runs while the machine sleeps: clocks of different nodes are
//! never compared, only their rates are trusted to be equal within a few percent.

pub mod owner;
pub mod ownership;
pub mod replay;
pub mod retention;
pub mod watcher;

use std::time::Duration;

use crate::record::{RecordError, RecordHeader};

/// The largest number of records that an owner has in flight. Owners of all versions rely on it: a new
/// one waits until late records of the owner before it cannot be stored any more.
pub const PUBLISHES_IN_FLIGHT_MAX: u64 = 32;

/// The longest lease of a node that delivers.
pub const LEASE_MAX: Duration = Duration::from_secs(60);

/// The lease that an owner announces while its disk has mail that the stream lacks: if others took the lane
/// over, that mail would wait for the owner's return. Its own attempts end with its usual lease.
pub const COPYING_LEASE: Duration = Duration::from_secs(12 * 3600);

/// A time of the node's CLOCK_BOOTTIME.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootTime(pub Duration);

impl BootTime {
    /// The time `later` after this one.
    pub fn after(self, later: Duration) -> BootTime {
        BootTime(self.0.saturating_add(later))
    }

    /// How long ago `earlier` was; zero if it is in the future.
    pub fn since(self, earlier: BootTime) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// The times by which owners and watchers of a lane act. A watcher goes by the lease of the owner, which
/// is in its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneTimes {
    /// How long an owner may deliver after it sent a record that was stored.
    pub lease: Duration,
    /// How much longer others wait: for different rates of clocks, and for attempts that just began.
    pub margin: Duration,
    /// How long the owner waits for the answer to a record, before it looks whether it was stored.
    pub ack_timeout: Duration,
    /// How long a batch may wait before it counts as failed.
    pub batch_timeout: Duration,
}

impl Default for LaneTimes {
    fn default() -> Self {
        LaneTimes {
            lease: Duration::from_secs(3),
            margin: Duration::from_secs(1),
            ack_timeout: Duration::from_secs(2),
            batch_timeout: Duration::from_secs(10),
        }
    }
}

impl LaneTimes {
    /// The same with the lease of another owner, and the margin that belongs to it.
    pub fn with_lease(self, lease: Duration) -> LaneTimes {
        LaneTimes { lease, margin: lease / 3, ..self }
    }

    /// The time between Renew records.
    pub fn renew_interval(&self) -> Duration {
        self.lease / 3
    }
}

/// The end of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamTail {
    /// The sequence of the last record; 0 if there never was one.
    pub last_sequence: u64,
    /// The sequence of the first record that was not purged.
    pub first_sequence: u64,
    /// The last record; None if the stream is empty.
    pub record: Option<RecordHeader>,
}

/// Why the end of a stream, or its newest owner, is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TailFailure {
    /// The servers do not answer now.
    #[error("the NATS servers do not answer")]
    Unavailable,
    /// There is no such stream.
    #[error("there is no such stream")]
    NoStream,
    /// Something else has written the record, or another version of Mailrace.
    #[error("record {sequence} of its stream cannot be read: {error}")]
    Unreadable {
        /// The sequence of the record.
        sequence: u64,
        /// Why.
        error: RecordError,
    },
}

/// The subject of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecordSubject {
    /// Parts of batches, and Release records.
    Log,
    /// Renew records: other nodes listen to them.
    Renew,
    /// Epoch records: the last one is found by its subject.
    Epoch,
}

/// Why a record was not stored, as far as is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PublishFailure {
    /// Another record was the last one.
    WrongLastSequence,
    /// No answer came; it may be stored.
    Timeout,
    /// The servers cannot be reached, or cannot store now; it may be stored.
    Unavailable,
    /// The stream has no room for it.
    StreamFull,
}

/// What is stored at a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Slot {
    /// This record.
    Stored(bytes::Bytes),
    /// No record, as far as the server that answers knows.
    Absent {
        /// The last sequence of the stream.
        last_sequence: u64,
    },
}

/// Why a slot could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadFailure {
    /// The servers do not answer now.
    Unavailable,
    /// There is no such stream.
    NoStream,
}

impl From<ReadFailure> for TailFailure {
    fn from(failure: ReadFailure) -> Self {
        match failure {
            ReadFailure::Unavailable => TailFailure::Unavailable,
            ReadFailure::NoStream => TailFailure::NoStream,
        }
    }
}
