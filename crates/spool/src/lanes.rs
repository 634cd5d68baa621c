//! An open spool: its lanes by their ids, and their threads.
//!
//! The lanes given to [`open`] are the spool's own, and never change. [`Spool::adopt`] adds lanes of
//! other spools while it runs; they are in a map behind a lock, so that reading an own lane, which
//! is nearly always what is asked for, needs none. A lane stays open until the spool is closed.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::io;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::JoinHandle;

use mail::{QueueId, SpoolId};
use parking_lot::{Mutex, RwLock};

use crate::disk::Disk;
use crate::entries::{LiveMessage, OutcomeHead, SpoolEntry, SpooledMessage};
use crate::finished_messages::FinishedMessages;
use crate::lane::{self, Lane, LaneContext, PendingRecord, Submission};
use crate::message_index::{MessageIndex, SegmentStage};
use crate::recipient_states::RecipientState;
use crate::recovery::{LaneSurvey, LoggedMessages, RecoveredLog, RecoveryFindings};
use crate::spill::SpillWriter;
use crate::stats::{LaneBatching, Stats};
use crate::writer::Writer;
use crate::{CommitCallback, CommitError, Config, LaneId, OpenError, ReadError, SpoolEvent};

/// An open spool: its lanes and their threads.
pub struct Spool {
    /// In the order of the folders given to [`open`].
    own: Vec<RunningLane>,
    own_by_id: BTreeMap<LaneId, Arc<Lane>>,
    adopted: RwLock<BTreeMap<LaneId, RunningLane>>,
    /// The lanes that give the ids of new messages; never empty.
    accepting: RwLock<Vec<Arc<Lane>>>,
    /// Held during an adoption, so that two cannot take the same lane.
    adopting: Mutex<()>,
    next_lane: AtomicUsize,
    context: LaneContext,
}

/// Opens the lanes of a spool, or creates a new one, whose id is derived from `random`. That number
/// must be different and unpredictable at every start. Every live message is passed to `sink`
/// before this returns, in the order of each lane's log. On return each lane has a segment ready.
///
/// Only the spool's own folders may be given, not those of lanes that it adopted in an earlier run:
/// these are opened by their own spool, or adopted again.
pub fn open(
    disks: Vec<Arc<dyn Disk>>,
    config: Config,
    random: u64,
    sink: &mut dyn FnMut(LiveMessage),
) -> Result<Spool, OpenError> {
    let surveys = disks.into_iter().map(survey).collect::<Result<Vec<_>, _>>()?;
    let lane_ids = assign_identities(&surveys, random)?;
    let has_step = config.commit_step.is_some();
    let recover = |(survey, lane_id)| RecoveredLane::recover(survey, lane_id, has_step, sink).map(|(lane, _)| lane);
    let recovered = surveys.into_iter().zip(lane_ids).map(recover).collect::<Result<Vec<_>, _>>()?;
    let context = LaneContext { config, random, step_bytes: Arc::default() };
    let epoch = recovered.iter().map(|lane| lane.findings.epoch).max().ok_or(OpenError::NoLane)?;
    let lanes = recovered.into_iter().map(|lane| lane.make_ready(epoch, &context)).collect::<Result<Vec<_>, _>>()?;
    let mut opened = Spool {
        own: Vec::new(),
        own_by_id: lanes.iter().map(|lane| (lane.lane_id, lane.clone())).collect(),
        adopted: RwLock::default(),
        accepting: RwLock::new(lanes.clone()),
        adopting: Mutex::default(),
        next_lane: AtomicUsize::new(0),
        context,
    };
    for lane in lanes {
        opened.own.push(RunningLane::start(lane)?);
    }
    Ok(opened)
}

/// What the segments of a folder say about their lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneIdentity {
    /// The lane; None if no segment says it.
    pub lane: Option<LaneId>,
    /// The highest epoch in a header: how often the lane's spool was opened. 0 if there is none.
    pub epoch: u32,
}

/// Reads which lane a folder holds, without its messages. Locks it until `disk` is dropped.
///
/// # Errors
///
/// The folder is in use, or holds segments of another format or of several lanes.
pub fn survey_lane(disk: Arc<dyn Disk>) -> Result<LaneIdentity, OpenError> {
    let survey = survey(disk)?;
    Ok(LaneIdentity { lane: survey.identity, epoch: survey.epoch })
}

fn survey(disk: Arc<dyn Disk>) -> Result<LaneSurvey, OpenError> {
    lock(&*disk)?;
    LaneSurvey::of(disk)
}

pub(crate) fn lock(disk: &dyn Disk) -> Result<(), OpenError> {
    match disk.lock() {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(OpenError::Locked),
        locked => Ok(locked?),
    }
}

/// Creates a lane in an empty folder, in the epoch after `before`.
pub(crate) fn create_lane(
    disk: Arc<dyn Disk>,
    lane_id: LaneId,
    before: u32,
    context: &LaneContext,
) -> Result<Arc<Lane>, OpenError> {
    let (index, findings) = (MessageIndex::default(), RecoveryFindings::default());
    RecoveredLane { disk, lane_id, next_number: 1, index, findings }.make_ready(before, context)
}

/// The id of each lane: from its segments, or the spool's id and the lowest free number.
fn assign_identities(surveys: &[LaneSurvey], random: u64) -> Result<Vec<LaneId>, OpenError> {
    let mut taken: Vec<LaneId> = surveys.iter().filter_map(|survey| survey.identity).collect();
    // The id is public, but the salts are made from the same number, so the id is a hash of it.
    let made = || SpoolId::new(BuildHasherDefault::<DefaultHasher>::default().hash_one((random, "spool id")));
    let spool = taken.first().map_or_else(made, |lane| lane.spool);
    taken.sort_unstable();
    if taken.iter().any(|other| other.spool != spool) || taken.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(OpenError::ForeignLane);
    }
    let id_of = |survey: &LaneSurvey| {
        survey.identity.unwrap_or_else(|| {
            let free = (0..=u16::MAX).map(|number| LaneId { spool, number }).find(|lane| !taken.contains(lane));
            let free = free.unwrap_or(LaneId { spool, number: u16::MAX });
            taken.push(free);
            free
        })
    };
    Ok(surveys.iter().map(id_of).collect())
}

/// A lane whose log was read.
struct RecoveredLane {
    disk: Arc<dyn Disk>,
    lane_id: LaneId,
    next_number: u64,
    index: MessageIndex,
    findings: RecoveryFindings,
}

impl RecoveredLane {
    /// Without a commit step, nobody asks for outcomes of messages that are not live.
    fn recover(
        survey: LaneSurvey,
        lane_id: LaneId,
        has_step: bool,
        sink: &mut dyn FnMut(LiveMessage),
    ) -> Result<(Self, LoggedMessages), OpenError> {
        let (disk, next_number) = (survey.disk.clone(), survey.next_number);
        let RecoveredLog { index, mut findings, messages } = survey.recover(lane_id, sink)?;
        if !has_step {
            findings.outcomes = HashMap::new();
        }
        Ok((RecoveredLane { disk, lane_id, next_number, index, findings }, messages))
    }

    /// Begins the epoch after `epoch`, and prepares the first segment.
    fn make_ready(self, epoch: u32, context: &LaneContext) -> Result<Arc<Lane>, OpenError> {
        let epoch = epoch.saturating_add(1);
        if u64::from(epoch) >> (u64::BITS - lane::COUNTER_BITS) != 0 {
            return Err(OpenError::EpochsExhausted);
        }
        let lane = Lane::new(self.disk, (self.lane_id, epoch), context, self.index, self.next_number);
        let report = |what| lane.report_event(SpoolEvent::SetAside { id: None, what });
        self.findings.aside.into_iter().for_each(report);
        if lane.steps.is_some() {
            let mut table = lane.segment_table.lock();
            let sealed = table.index.segments.values().filter(|segment| segment.stage == SegmentStage::Sealed);
            let segments = sealed.map(|segment| segment.lease.clone()).collect();
            table.finished = Some(FinishedMessages::new(self.findings.outcomes, segments));
        }
        lane.free_dead_segments();
        // The header of this segment makes the new epoch durable before the first id is used.
        lane.make_ready()?;
        Ok(Arc::new(lane))
    }
}

/// A lane with its two threads.
pub(crate) struct RunningLane {
    lane: Arc<Lane>,
    threads: Option<LaneThreads>,
}

struct LaneThreads {
    writer: JoinHandle<()>,
    maintenance: JoinHandle<()>,
}

impl RunningLane {
    pub(crate) fn start(lane: Arc<Lane>) -> io::Result<RunningLane> {
        let spawn = |role: &str, work: fn(&Arc<Lane>)| {
            let (name, lane) = (format!("spool-{role}-{}", lane.lane_id.number), lane.clone());
            std::thread::Builder::new().name(name).spawn(move || work(&lane))
        };
        let writer = spawn("writer", |lane| Writer::new(lane).run())?;
        match spawn("maint", Lane::run_maintenance) {
            Ok(maintenance) => Ok(RunningLane { lane, threads: Some(LaneThreads { writer, maintenance }) }),
            Err(error) => {
                lane.close_inbox();
                // If it panicked, it has already reported that.
                drop(writer.join());
                Err(error)
            }
        }
    }

    pub(crate) fn lane(&self) -> &Arc<Lane> {
        &self.lane
    }

    /// Waits for the threads to end; the inbox is closed.
    pub(crate) fn join(&mut self) {
        let Some(LaneThreads { writer, maintenance }) = self.threads.take() else { return };
        // If a thread panicked, it has already reported that.
        drop(writer.join());
        self.lane.close_maintenance();
        drop(maintenance.join());
    }
}

/// A lane found by its id.
pub(crate) enum LaneRef<'a> {
    Own(&'a Arc<Lane>),
    Adopted(Arc<Lane>),
}

impl Deref for LaneRef<'_> {
    type Target = Arc<Lane>;

    fn deref(&self) -> &Arc<Lane> {
        match self {
            LaneRef::Own(lane) => lane,
            LaneRef::Adopted(lane) => lane,
        }
    }
}

impl Spool {
    /// Takes over a lane of another spool, while this one runs, and returns its id. Its live
    /// messages are passed to `sink` in the order of its log, when the lane is ready to serve them:
    /// from then on it is like an own lane, except that [`Spool::new_id`] gives ids in it only if
    /// [`Spool::accept_in`] names it. If it fails, no message was passed.
    ///
    /// It keeps its id, and stays locked until the spool is closed. At the next start its own spool
    /// may open it again, with what was recorded here, or it must be adopted again: [`open`] refuses
    /// it among the own lanes.
    pub fn adopt(&self, disk: Arc<dyn Disk>, sink: &mut dyn FnMut(LiveMessage)) -> Result<LaneId, OpenError> {
        let _one_at_a_time = self.adopting.lock();
        let survey = survey(disk)?;
        let lane_id = survey.identity.ok_or(OpenError::NothingToAdopt)?;
        if self.lane_by_id(lane_id).is_some() {
            return Err(OpenError::AlreadyOpen(lane_id));
        }
        // Who gets a message may ask for it at once, so the lane has to be open before. Until then, only the numbers of
        // messages are held.
        let mut sequences = Vec::new();
        let (has_step, mut take) =
            (self.context.config.commit_step.is_some(), |live: LiveMessage| sequences.push(live.id.sequence()));
        let (recovered, messages) = RecoveredLane::recover(survey, lane_id, has_step, &mut take)?;
        let epoch = recovered.findings.epoch;
        let running = RunningLane::start(recovered.make_ready(epoch, &self.context)?)?;
        self.adopted.write().insert(lane_id, running);
        messages.pass_on(sequences, sink);
        Ok(lane_id)
    }

    /// The id for a new message. The accepting lanes take turns: the own ones, unless
    /// [`Spool::accept_in`] has named others.
    pub fn new_id(&self) -> QueueId {
        let (turn, accepting) = (self.next_lane.fetch_add(1, Relaxed), self.accepting.read());
        accepting[turn % accepting.len()].new_id()
    }

    /// From now on, these lanes give the ids of new messages. Those that are not open are left out; if
    /// none is left, nothing changes.
    pub fn accept_in(&self, lanes: &[LaneId]) {
        let open = |id: &LaneId| self.lane_by_id(*id).map(|lane| lane.clone());
        let open: Vec<Arc<Lane>> = lanes.iter().filter_map(open).collect();
        if !open.is_empty() {
            *self.accepting.write() = open;
        }
    }

    /// Calls `done` when all that was submitted to a lane before is durable here or has failed. It fails
    /// if that cannot be known, because the log cannot be written.
    pub fn flush(&self, lane: LaneId, done: CommitCallback) {
        let Some(lane) = self.lane_by_id(lane) else { return done(Err(CommitError::Closed)) };
        // An outcome without states, of no message, is written behind them.
        let nothing = OutcomeHead { sequence: 0, bounce: 0, states: Vec::new() };
        lane.submit(Submission { records: vec![PendingRecord::outcome(nothing)], permit: None, done });
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
            Some(Some(lane)) => lane.submit_entries(entries, done),
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

    /// The ids of all live messages, sorted; also of those that wait for the commit step.
    pub fn ids(&self) -> Vec<QueueId> {
        let of_lane = |lane: Arc<Lane>| {
            let sequences = lane.segment_table.lock().index.sequences();
            sequences.into_iter().map(move |sequence| lane.id(sequence))
        };
        let mut ids: Vec<QueueId> = self.all_lanes().into_iter().flat_map(of_lane).collect();
        ids.sort_unstable();
        ids
    }

    /// The states of a live message's recipients that are not new, by ascending ordinal.
    pub fn states(&self, id: QueueId) -> Vec<(u32, RecipientState)> {
        self.lane(id).map_or_else(Vec::new, |lane| lane.segment_table.lock().index.states(id.sequence()))
    }

    /// The first live message of each lane, in the order in which ids were given.
    pub fn first_ids(&self) -> Vec<QueueId> {
        let of_lane = |lane: Arc<Lane>| {
            let first = lane.segment_table.lock().index.first_sequence();
            first.map(|sequence| lane.id(sequence))
        };
        self.all_lanes().into_iter().filter_map(of_lane).collect()
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

    /// All lanes, and the epoch of each: the upper bits of the ids that it gives from now on. The own
    /// lanes come first, in the order of the folders given to [`open`].
    pub fn lane_epochs(&self) -> Vec<(LaneId, u32)> {
        self.all_lanes().iter().map(|lane| (lane.lane_id, lane.epoch)).collect()
    }

    /// The sum of all lanes' counters.
    pub fn stats(&self) -> Stats {
        self.all_lanes().iter().fold(Stats::default(), |mut sum, lane| {
            sum.add(&lane.stats());
            sum
        })
    }

    /// The counters of each lane.
    pub fn lane_stats(&self) -> Vec<(LaneId, Stats)> {
        self.all_lanes().iter().map(|lane| (lane.lane_id, lane.stats())).collect()
    }

    /// How each lane forms its batches now.
    pub fn batching(&self) -> Vec<LaneBatching> {
        self.all_lanes().iter().map(|lane| lane.batching()).collect()
    }

    /// Commits waiting submissions, seals the logs and ends the threads, like dropping the spool.
    pub fn close(self) {}

    fn lane(&self, id: QueueId) -> Option<LaneRef<'_>> {
        self.lane_by_id(LaneId::of(id))
    }

    pub(crate) fn lane_by_id(&self, lane_id: LaneId) -> Option<LaneRef<'_>> {
        match self.own_by_id.get(&lane_id) {
            Some(lane) => Some(LaneRef::Own(lane)),
            None => self.adopted.read().get(&lane_id).map(|running| LaneRef::Adopted(running.lane.clone())),
        }
    }

    fn all_lanes(&self) -> Vec<Arc<Lane>> {
        let adopted = self.adopted.read();
        self.own.iter().chain(adopted.values()).map(|running| running.lane.clone()).collect()
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        self.all_lanes().iter().for_each(|lane| lane.close_inbox());
        self.own.iter_mut().chain(self.adopted.get_mut().values_mut()).for_each(RunningLane::join);
    }
}
