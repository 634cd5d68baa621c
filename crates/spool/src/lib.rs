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
//! | committed | its record, synced | present, byte for byte |
//! | settled in part | and outcomes, synced | present, with the remaining recipients |
//! | dead | and a final outcome for every recipient, synced | gone |
//!
//! Data that cannot be read is copied to a file beside the log and reported, never deleted. The
//! format is described in `docs/spool-format.md`.

mod batch_size;
mod codec;
pub mod disk;
mod entries;
mod inspect;
mod lane;
mod message_index;
mod recipient_states;
mod record;
mod recovery;
mod scan;
mod segment;
mod segment_maintenance;
mod spill;
mod stats;
mod writer;

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use mail::{QueueId, SpoolId};

pub use disk::{Disk, DiskFile, DiskSpace, FolderDisk};
pub use entries::{LiveMessage, SpoolEntry, SpooledMessage, SubmittedBody};
pub use inspect::{Inspection, SegmentReport, inspect};
pub use recipient_states::RecipientState;
pub use spill::{SpillWriter, SpilledBody};
pub use stats::Stats;

use lane::{Lane, PendingRecord, Submission};
use recovery::LaneSurvey;

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
    /// Receives commits and errors, on the spool's own threads. It must not block for long.
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
            events: Arc::new(|_| {}),
        }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Config({} bytes a segment, {:?})", self.segment_bytes, self.durability)
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
    /// These messages became durable in one batch.
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
        lane: u16,
        /// The number of the segment, which is not written again.
        segment: u64,
        /// The error.
        error: String,
    },
    /// No segment could be prepared; the spool tries again.
    NoSegment {
        /// The lane.
        lane: u16,
        /// The error.
        error: String,
    },
}

/// Called once, on the writer's thread, when a submission is durable or has failed.
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
    /// Another process works on the lane.
    #[error("the lane is in use by another process")]
    Locked,
    /// It was written by another version of the format.
    #[error(
        "{segment} has spool format version {version}; this program only reads version {}",
        segment::FORMAT_VERSION
    )]
    Version {
        /// The file.
        segment: String,
        /// Its version.
        version: u32,
    },
    /// A later version wrote a record that must not be skipped.
    #[error("the log has a record of unknown kind {kind}; use the version of this program that wrote it")]
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
}

/// An open spool: its lanes and their threads.
pub struct Spool {
    lanes: BTreeMap<u16, Arc<Lane>>,
    lanes_in_order: Vec<Arc<Lane>>,
    next_lane: AtomicUsize,
    writers: Vec<JoinHandle<()>>,
    maintenance_threads: Vec<JoinHandle<()>>,
}

/// Opens the lanes of a spool, or creates a new one, whose id is derived from `random`. That number
/// must be different and unpredictable at every start. Every live message is passed to `sink`
/// before this returns, in the order of each lane's log. On return each lane has a segment ready.
pub fn open(
    disks: Vec<Arc<dyn Disk>>,
    config: Config,
    random: u64,
    sink: &mut dyn FnMut(LiveMessage),
) -> Result<Spool, OpenError> {
    let surveys = disks.into_iter().map(survey).collect::<Result<Vec<_>, _>>()?;
    let (spool, numbers) = assign_identities(&surveys, random)?;
    let (mut epoch, mut recovered) = (0, Vec::new());
    for (survey, number) in surveys.into_iter().zip(numbers) {
        let (disk, next_number) = (survey.disk.clone(), survey.next_number);
        let (index, findings) = survey.recover((spool, number), sink)?;
        epoch = epoch.max(findings.epoch.saturating_add(1));
        recovered.push((number, disk, next_number, index, findings));
    }
    if recovered.is_empty() {
        return Err(OpenError::NoLane);
    }
    if u64::from(epoch) >> (u64::BITS - lane::COUNTER_BITS) != 0 {
        return Err(OpenError::EpochsExhausted);
    }
    let mut order = Vec::new();
    for (number, disk, next_number, index, findings) in recovered {
        let lane = Lane::new(disk, (spool, number, epoch), random, config.clone(), index, next_number);
        findings.aside.into_iter().for_each(|what| lane.report_event(SpoolEvent::SetAside { id: None, what }));
        lane.free_dead_segments();
        // The header of this segment makes the new epoch durable before the first id is used.
        lane.make_ready()?;
        order.push(Arc::new(lane));
    }
    let lanes = order.iter().map(|lane| (lane.number, lane.clone())).collect();
    let mut opened = Spool {
        lanes,
        lanes_in_order: order,
        next_lane: AtomicUsize::new(0),
        writers: Vec::new(),
        maintenance_threads: Vec::new(),
    };
    opened.start()?;
    Ok(opened)
}

fn survey(disk: Arc<dyn Disk>) -> Result<LaneSurvey, OpenError> {
    match disk.lock() {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(OpenError::Locked),
        locked => {
            locked?;
            LaneSurvey::of(disk)
        }
    }
}

/// The spool's id, and the number of each lane: from its segments, or the lowest free one.
fn assign_identities(surveys: &[LaneSurvey], random: u64) -> Result<(SpoolId, Vec<u16>), OpenError> {
    let known: Vec<(SpoolId, u16)> = surveys.iter().filter_map(|survey| survey.identity).collect();
    // The id is public, but the salts are made from the same number, so the id is a hash of it.
    let made = || SpoolId::new(BuildHasherDefault::<DefaultHasher>::default().hash_one((random, "spool id")));
    let spool = known.first().map_or_else(made, |(spool, _)| *spool);
    let mut taken: Vec<u16> = known.iter().map(|(_, lane)| *lane).collect();
    taken.sort_unstable();
    if known.iter().any(|(other, _)| *other != spool) || taken.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(OpenError::ForeignLane);
    }
    let number_of = |survey: &LaneSurvey| {
        survey.identity.map(|(_, lane)| lane).unwrap_or_else(|| {
            let free = (0..=u16::MAX).find(|lane| !taken.contains(lane)).unwrap_or(u16::MAX);
            taken.push(free);
            free
        })
    };
    Ok((spool, surveys.iter().map(number_of).collect()))
}

impl Spool {
    fn start(&mut self) -> io::Result<()> {
        for lane in &self.lanes_in_order {
            let named = |role: &str| std::thread::Builder::new().name(format!("spool-{role}-{}", lane.number));
            let (writer, maintenance) = (lane.clone(), lane.clone());
            self.writers.push(named("writer").spawn(move || writer::Writer::new(&writer).run())?);
            self.maintenance_threads.push(named("maint").spawn(move || maintenance.run_maintenance())?);
        }
        Ok(())
    }

    /// The id for a new message. Lanes take turns.
    pub fn new_id(&self) -> QueueId {
        let turn = self.next_lane.fetch_add(1, Relaxed);
        self.lanes_in_order[turn % self.lanes_in_order.len()].new_id()
    }

    /// The id for a new message in the lane of another one, so that both can be in one submission.
    pub fn new_id_in_lane_of(&self, id: QueueId) -> QueueId {
        self.lane(id).map_or_else(|| self.new_id(), |lane| lane.new_id())
    }

    /// Submits entries to become durable in one batch. All must be in one lane. Does not block for
    /// long.
    pub fn submit(&self, entries: Vec<SpoolEntry>, done: CommitCallback) {
        let id = entries.first().map(|entry| match entry {
            SpoolEntry::Message { id, .. } | SpoolEntry::Outcome { id, .. } => *id,
        });
        match id.map(|id| self.lane(id)) {
            None => done(Ok(())),
            Some(None) => done(Err(CommitError::Closed)),
            Some(Some(lane)) => {
                lane.submit(Submission { records: entries.into_iter().map(PendingRecord::encode).collect(), done })
            }
        }
    }

    /// Reads a live message; its body holds a lease.
    pub fn message(&self, id: QueueId) -> Result<SpooledMessage, ReadError> {
        self.lane(id).ok_or(ReadError::Unknown)?.message(id.sequence())
    }

    /// Reads a live message like [`Spool::message`], unless that would wait for the disk: then
    /// None. Also None if the system cannot tell (old kernels, some file systems).
    pub fn message_if_cached(&self, id: QueueId) -> Result<Option<SpooledMessage>, ReadError> {
        self.lane(id).ok_or(ReadError::Unknown)?.message_if_cached(id.sequence())
    }

    /// The ids of all live messages, sorted.
    pub fn ids(&self) -> Vec<QueueId> {
        let of_lane = |lane: &Arc<Lane>| {
            let sequences = lane.segment_table.lock().index.sequences();
            sequences.into_iter().map(|sequence| lane.id(sequence)).collect::<Vec<_>>()
        };
        let mut ids: Vec<QueueId> = self.lanes_in_order.iter().flat_map(of_lane).collect();
        ids.sort_unstable();
        ids
    }

    /// Creates a body file for a new message.
    pub fn create_spill_file(&self, id: QueueId) -> io::Result<SpillWriter> {
        let lane = self.lane(id).ok_or(io::ErrorKind::NotFound)?;
        SpillWriter::create(lane.disk.clone(), id.sequence())
    }

    /// Removes an unreadable message from the queue, and keeps what can be read of it in a file
    /// beside the log. `done` is called when that is durable.
    pub fn set_aside_damaged(&self, id: QueueId, what: &str, done: CommitCallback) {
        match self.lane(id) {
            Some(lane) => lane.set_aside(id.sequence(), what, done),
            None => done(Err(CommitError::Closed)),
        }
    }

    /// The sum of all lanes' counters.
    pub fn stats(&self) -> Stats {
        self.lanes_in_order.iter().fold(Stats::default(), |mut sum, lane| {
            sum.add(&lane.stats());
            sum
        })
    }

    /// The smallest free space of the lanes' disks.
    pub fn free_space(&self) -> io::Result<DiskSpace> {
        let least = |a: DiskSpace, b: DiskSpace| DiskSpace {
            bytes_free: a.bytes_free.min(b.bytes_free),
            inodes_free: a.inodes_free.min(b.inodes_free),
        };
        let unlimited = DiskSpace { bytes_free: u64::MAX, inodes_free: u64::MAX };
        self.lanes_in_order.iter().try_fold(unlimited, |sum, lane| Ok(least(sum, lane.disk.space()?)))
    }

    /// Commits waiting submissions, seals the logs and ends the threads, like dropping the spool.
    pub fn close(self) {}

    fn lane(&self, id: QueueId) -> Option<&Arc<Lane>> {
        self.lanes.get(&id.lane()).filter(|lane| lane.spool == id.spool())
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        self.lanes_in_order.iter().for_each(|lane| lane.close_inbox());
        // If a thread panicked, it has already reported that.
        self.writers.drain(..).for_each(|writer| drop(writer.join()));
        for lane in &self.lanes_in_order {
            lane.segment_table.lock().closing = true;
            lane.maintenance_wanted.notify_all();
        }
        self.maintenance_threads.drain(..).for_each(|maintenance| drop(maintenance.join()));
    }
}
