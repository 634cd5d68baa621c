//! The log that keeps accepted mail: one append-only log per lane (a lane is a folder on a disk), group
//! commit, segments that are reused whole. Own threads, no async.
//!
//! The promise: when [`Done`] is called with `Ok`, every entry of that submission survives kill -9 and power
//! loss. When it is called with an error, entries of it *may* appear after a restart all the same.
//!
//! | a message is | on disk | after a crash |
//! |---|---|---|
//! | begun | nothing, or a body file that no record names | gone; its id is never given again |
//! | submitted | perhaps its record, perhaps torn | whole, or gone |
//! | committed | its record, synced | there, byte for byte |
//! | settled in part | and outcomes, synced | there, with what is left to do |
//! | dead | and an outcome for every recipient, synced | gone for good |
//!
//! What cannot be read is set aside in a file beside the log and reported, never deleted. The bytes are
//! described in `docs/spool-format.md`.

mod codec;
pub mod disk;
mod entry;
mod inspect;
mod keeper;
mod lane;
mod ledger;
mod pace;
mod record;
mod recovery;
mod scan;
mod segment;
mod spill;
mod states;
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

pub use disk::{Disk, DiskFile, Folder, Space};
pub use entry::{Content, Entry, Live, Stored};
pub use inspect::{Inspection, SegmentReport, inspect};
pub use spill::{Spill, Spilled};
pub use states::State;
pub use stats::Stats;

use lane::{Item, Lane, Submission};
use recovery::Survey;

/// How a spool works.
#[derive(Clone)]
pub struct Config {
    /// Bytes of a new segment file. A message must fit with room for its index: at least four times the
    /// largest record.
    pub segment_bytes: u64,
    /// When a message counts as kept.
    pub durability: Durability,
    /// Free segments that stay on the disk for reuse.
    pub spare_segments: usize,
    /// A batch takes no further submission when it has this many bytes, or fewer where the disk is slow.
    pub batch_bytes_max: u64,
    /// The survivors of a mostly dead segment are copied forward when none of them has died for so long; at once where
    /// the disk is short of room.
    pub copy_after: Duration,
    /// Batches are made smaller while one takes longer than this to be written and synced: nobody is to wait for the
    /// bytes of too many others.
    pub batch_time_target: Duration,
    /// Hears of commits and of trouble, on the spool's own threads. Must not block for long.
    pub events: Arc<dyn Fn(Event) + Send + Sync>,
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

/// When a message counts as kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// When it is synced.
    Commit,
    /// When it is written; a power loss takes what was accepted since the last sync.
    Relaxed {
        /// A sync at least this often.
        sync_every: Duration,
    },
}

/// What the spool tells of itself.
#[derive(Clone, Debug)]
pub enum Event {
    /// These messages became durable in one batch.
    Committed(Vec<Live>),
    /// Something could not be read back; what is left of it is in a file beside the log.
    SetAside {
        /// The message, if its name could still be read.
        id: Option<QueueId>,
        /// What and where.
        what: String,
    },
    /// A batch could not be written or synced. Nothing of it was acknowledged.
    BatchFailed {
        /// The lane.
        lane: u16,
        /// The number of the segment, which is not written again.
        segment: u64,
        /// Why.
        error: String,
    },
    /// No segment could be made ready; it is tried again.
    NoSegment {
        /// The lane.
        lane: u16,
        /// Why.
        error: String,
    },
}

/// Called once, on the writer's thread, when a submission is durable or has failed.
pub type Done = Box<dyn FnOnce(Result<(), CommitError>) + Send>;

/// Why a submission was not kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    /// The disk has no room; the same may succeed later.
    #[error("the spool's disk is full")]
    Full,
    /// A write or a sync failed; the next batch goes to a fresh segment.
    #[error("the spool could not be written: {0}")]
    Failed(String),
    /// It would not fit into an empty segment.
    #[error("the record is larger than a segment")]
    TooLarge,
    /// The spool is closed, or the message is gone.
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

/// Why a message was not given.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// No live message has this name.
    #[error("no such message")]
    Unknown,
    /// It cannot be read now, for want of memory or handles; it may be later.
    #[error("the message cannot be read now: {0}")]
    Unavailable(String),
    /// Its bytes cannot be read; see [`Spool::set_aside`].
    #[error("the message is damaged: {what}")]
    Damaged {
        /// What is wrong.
        what: String,
    },
}

/// Why a spool was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The disk refused, or another process has the lane.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Another process works on the lane.
    #[error("the lane is in use by another process")]
    Locked,
    /// Written by another version of the format.
    #[error(
        "{segment} has version {version} of the spool format; this program reads version {}",
        segment::FORMAT_VERSION
    )]
    Version {
        /// The file.
        segment: String,
        /// Its version.
        version: u32,
    },
    /// Written by a later version, and not to be passed by.
    #[error("the log holds a record of kind {kind}, which this program does not know")]
    UnknownRecord {
        /// The kind.
        kind: u8,
    },
    /// Segments of several lanes or spools are in one folder.
    #[error("the folder holds segments of more than one lane")]
    Mixed,
    /// The lanes do not belong together.
    #[error("the lanes belong to different spools, or one is given twice")]
    Foreign,
    /// The spool was started more often than its numbers can tell.
    #[error("the spool has no epoch left")]
    Exhausted,
    /// No lane was given.
    #[error("a spool needs a lane")]
    NoLane,
}

/// An open spool: its lanes and their threads.
pub struct Spool {
    lanes: BTreeMap<u16, Arc<Lane>>,
    order: Vec<Arc<Lane>>,
    turn: AtomicUsize,
    writers: Vec<JoinHandle<()>>,
    keepers: Vec<JoinHandle<()>>,
}

/// Opens the lanes of a spool, or makes a new one that takes its id from `random`, which must be another number at
/// every start and not to be guessed. Every live message goes to `sink` before this returns, in the order of the log of each lane. On return each lane has a segment ready.
pub fn open(
    disks: Vec<Arc<dyn Disk>>,
    config: Config,
    random: u64,
    sink: &mut dyn FnMut(Live),
) -> Result<Spool, OpenError> {
    let surveys = disks.into_iter().map(survey).collect::<Result<Vec<_>, _>>()?;
    let (spool, numbers) = identities(&surveys, random)?;
    let (mut epoch, mut recovered) = (0, Vec::new());
    for (survey, number) in surveys.into_iter().zip(numbers) {
        let (disk, next_number) = (survey.disk.clone(), survey.next_number);
        let (ledger, findings) = survey.recover((spool, number), sink)?;
        epoch = epoch.max(findings.epoch.saturating_add(1));
        recovered.push((number, disk, next_number, ledger, findings));
    }
    if recovered.is_empty() {
        return Err(OpenError::NoLane);
    }
    if u64::from(epoch) >> (u64::BITS - lane::COUNTER_BITS) != 0 {
        return Err(OpenError::Exhausted);
    }
    let mut order = Vec::new();
    for (number, disk, next_number, ledger, findings) in recovered {
        let lane = Lane::new(disk, (spool, number, epoch), random, config.clone(), ledger, next_number);
        findings.aside.into_iter().for_each(|what| lane.tell(Event::SetAside { id: None, what }));
        lane.free_the_dead();
        // The new epoch is durable with this segment's header, before the first id is given.
        lane.make_ready()?;
        order.push(Arc::new(lane));
    }
    let lanes = order.iter().map(|lane| (lane.number, lane.clone())).collect();
    let mut opened = Spool { lanes, order, turn: AtomicUsize::new(0), writers: Vec::new(), keepers: Vec::new() };
    opened.start()?;
    Ok(opened)
}

fn survey(disk: Arc<dyn Disk>) -> Result<Survey, OpenError> {
    match disk.lock() {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(OpenError::Locked),
        locked => {
            locked?;
            Survey::of(disk)
        }
    }
}

/// The spool's id, and the number of each lane: what its segments say, or the lowest that is free.
fn identities(surveys: &[Survey], random: u64) -> Result<(SpoolId, Vec<u16>), OpenError> {
    let known: Vec<(SpoolId, u16)> = surveys.iter().filter_map(|survey| survey.identity).collect();
    // The id is public, and the number that it is made of also makes the salts.
    let made = || SpoolId::new(BuildHasherDefault::<DefaultHasher>::default().hash_one((random, "spool id")));
    let spool = known.first().map_or_else(made, |(spool, _)| *spool);
    let mut taken: Vec<u16> = known.iter().map(|(_, lane)| *lane).collect();
    taken.sort_unstable();
    if known.iter().any(|(other, _)| *other != spool) || taken.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(OpenError::Foreign);
    }
    let number_of = |survey: &Survey| {
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
        for lane in &self.order {
            let named = |role: &str| std::thread::Builder::new().name(format!("spool-{role}-{}", lane.number));
            let (writer, keeper) = (lane.clone(), lane.clone());
            self.writers.push(named("writer").spawn(move || writer::Writer::new(&writer).run())?);
            self.keepers.push(named("keeper").spawn(move || keeper.keep())?);
        }
        Ok(())
    }

    /// Names a message. Lanes take turns.
    pub fn begin(&self) -> QueueId {
        let turn = self.turn.fetch_add(1, Relaxed);
        self.order[turn % self.order.len()].begin()
    }

    /// Names a message in the lane of another one, so that both can be in one submission.
    pub fn begin_beside(&self, id: QueueId) -> QueueId {
        self.lane(id).map_or_else(|| self.begin(), |lane| lane.begin())
    }

    /// Asks for entries to be made durable in one batch. All must be of one lane. Never blocks for long.
    pub fn submit(&self, entries: Vec<Entry>, done: Done) {
        let id = entries.first().map(|entry| match entry {
            Entry::Message { id, .. } | Entry::Outcome { id, .. } => *id,
        });
        match id.map(|id| self.lane(id)) {
            None => done(Ok(())),
            Some(None) => done(Err(CommitError::Closed)),
            Some(Some(lane)) => lane.submit(Submission { items: entries.into_iter().map(Item::of).collect(), done }),
        }
    }

    /// A live message, its body leased.
    pub fn message(&self, id: QueueId) -> Result<Stored, ReadError> {
        self.lane(id).ok_or(ReadError::Unknown)?.message(id.sequence())
    }

    /// A live message, its body leased, if its head can be read without waiting for the disk; None if it cannot: then
    /// [`Spool::message`] waits. Not to be able to tell (an old kernel, some file systems) counts as waiting.
    pub fn message_at_once(&self, id: QueueId) -> Result<Option<Stored>, ReadError> {
        self.lane(id).ok_or(ReadError::Unknown)?.message_at_once(id.sequence())
    }

    /// The names of all live messages, sorted.
    pub fn ids(&self) -> Vec<QueueId> {
        let of_lane = |lane: &Arc<Lane>| {
            let sequences = lane.yard().ledger.sequences();
            sequences.into_iter().map(|sequence| lane.id(sequence)).collect::<Vec<_>>()
        };
        let mut ids: Vec<QueueId> = self.order.iter().flat_map(of_lane).collect();
        ids.sort_unstable();
        ids
    }

    /// A file of its own for the body of a message that was begun.
    pub fn spill(&self, id: QueueId) -> io::Result<Spill> {
        let lane = self.lane(id).ok_or(io::ErrorKind::NotFound)?;
        Spill::create(lane.disk.clone(), id.sequence())
    }

    /// Takes a message that cannot be read out of the queue, and keeps what is left of it in a file beside
    /// the log. `done` is told when that is durable.
    pub fn set_aside(&self, id: QueueId, what: &str, done: Done) {
        match self.lane(id) {
            Some(lane) => lane.set_aside(id.sequence(), what, done),
            None => done(Err(CommitError::Closed)),
        }
    }

    /// What the spool counts of itself.
    pub fn stats(&self) -> Stats {
        self.order.iter().fold(Stats::default(), |mut sum, lane| {
            sum.add(&lane.stats());
            sum
        })
    }

    /// The least room on any lane's disk.
    pub fn space(&self) -> io::Result<Space> {
        let least = |a: Space, b: Space| Space {
            bytes_free: a.bytes_free.min(b.bytes_free),
            inodes_free: a.inodes_free.min(b.inodes_free),
        };
        let unlimited = Space { bytes_free: u64::MAX, inodes_free: u64::MAX };
        self.order.iter().try_fold(unlimited, |sum, lane| Ok(least(sum, lane.disk.space()?)))
    }

    /// Writes what waits, seals the logs and ends the threads. Dropping the spool does the same.
    pub fn close(self) {}

    fn lane(&self, id: QueueId) -> Option<&Arc<Lane>> {
        self.lanes.get(&id.lane()).filter(|lane| lane.spool == id.spool())
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        self.order.iter().for_each(|lane| lane.close_inbox());
        // A thread that panicked has said so already.
        self.writers.drain(..).for_each(|writer| drop(writer.join()));
        for lane in &self.order {
            lane.yard().closing = true;
            lane.work.notify_all();
        }
        self.keepers.drain(..).for_each(|keeper| drop(keeper.join()));
    }
}
