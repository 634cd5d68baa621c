//! A lane: one log on one disk, with two threads. Only the *writer* appends to the log
//! (`writer.rs`); segment maintenance prepares, empties and frees segments
//! (`segment_maintenance.rs`).

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use mail::{Body, ByteSource, QueueId};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::batch_size::BatchSizer;
use crate::commit_step::{StepPermit, StepQueue};
use crate::disk::{CachedOnly, Disk};
use crate::entries::{
    MessageHead, OutcomeHead, STATE_BYTES_MAX, SpoolEntry, SpooledMessage, SubmittedBody, all_states,
};
use crate::finished_messages::FinishedMessages;
use crate::message_index::{MessageIndex, RecordPlace, SegmentStage};
use crate::recipient_states::RecipientState;
use crate::record::{FRAME_BYTES, RECORD_ALIGN, RecordDraft, RecordFrame};
use crate::segment::{FileLease, read_record};
use crate::stats::{LaneBatching, LaneCounters, Stats};
use crate::{CommitCallback, CommitError, Config, LaneId, ReadError, SpoolEvent, spill};

/// The lower bits of a sequence number count messages; the upper ones are the epoch, which counts
/// starts, so that a number used before a crash is never used again.
pub(crate) const COUNTER_BITS: u32 = 40;

/// How long a busy writer lets a batch gather: sharing a sync saves more than the wait costs.
const GATHER_MAX: Duration = Duration::from_micros(500);

/// More than any segment holds, so it is refused; several of it can be added.
const UNWRITABLE_BYTES: u64 = 0x1000_0000_0000_0000;

pub(crate) struct Lane {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) lane_id: LaneId,
    pub(crate) epoch: u32,
    /// A secret of this run.
    pub(crate) random: u64,
    pub(crate) config: Config,
    pub(crate) counters: LaneCounters,
    /// None without a commit step.
    pub(crate) steps: Option<StepQueue>,
    /// Maintenance could not sync the open segment (relaxed durability only).
    pub(crate) sync_failed: AtomicBool,
    /// Copies are waiting for the writer.
    pub(crate) copying: Arc<AtomicBool>,
    /// Copies or withdrawals were not committed: maintenance waits before it tries again.
    pub(crate) tidying_failed: Arc<AtomicBool>,
    next_sequence: AtomicU64,
    /// Segments and messages of this lane.
    pub(crate) segment_table: Mutex<SegmentTable>,
    /// Wakes the maintenance thread.
    pub(crate) maintenance_wanted: Condvar,
    /// Wakes the writer when a segment is ready.
    pub(crate) segment_ready: Condvar,
    inbox: Mutex<Inbox>,
    inbox_filled: Condvar,
}

/// The state of segments and messages, under one lock.
pub(crate) struct SegmentTable {
    pub(crate) index: MessageIndex,
    pub(crate) next_number: u64,
    /// Why no segment could be prepared, for a writer that waits for one.
    pub(crate) segment_error: Option<CommitError>,
    /// Whether the writer waits for a segment.
    pub(crate) segment_wanted: bool,
    /// Outcomes of refused messages that could not be written, one list for each submission.
    pub(crate) unwithdrawn: Vec<Vec<OutcomeHead>>,
    /// None without a commit step, and once it was taken.
    pub(crate) finished: Option<FinishedMessages>,
    pub(crate) closing: bool,
}

#[derive(Default)]
struct Inbox {
    waiting: Vec<Submission>,
    /// The writer sleeps until this many submissions wait; 0 means it is awake.
    wake_at: usize,
    closed: bool,
}

/// The record of a live message, with a lease on its segment and its outcomes so far.
pub(crate) struct LocatedMessage {
    pub(crate) place: RecordPlace,
    pub(crate) lease: Arc<FileLease>,
    /// The number and size of its segment.
    pub(crate) number: u64,
    pub(crate) size: u64,
    pub(crate) states: Vec<(u32, RecipientState)>,
}

/// What the lanes of a spool share.
#[derive(Clone)]
pub(crate) struct LaneContext {
    pub(crate) config: Config,
    /// A secret of this run.
    pub(crate) random: u64,
    /// The bytes that wait for the commit step.
    pub(crate) step_bytes: Arc<AtomicU64>,
}

/// Entries that become durable in one batch, with their callback.
pub(crate) struct Submission {
    pub(crate) records: Vec<PendingRecord>,
    /// The submission is only acknowledged when the commit step has succeeded.
    pub(crate) permit: Option<StepPermit>,
    pub(crate) done: CommitCallback,
}

/// A record to write, and its effect on the index.
pub(crate) struct PendingRecord {
    pub(crate) draft: RecordDraft,
    pub(crate) index_update: IndexUpdate,
    /// The body of a new message in a file of its own, for the commit step.
    pub(crate) spilled: Option<Body>,
    /// The commit step has it already: it is a message that only this disk lacked.
    pub(crate) is_restored: bool,
}

pub(crate) enum IndexUpdate {
    /// A new message. The head is reported with the commit.
    Insert(MessageHead),
    /// New states of recipients.
    ApplyOutcome(OutcomeHead),
    /// A message copied forward.
    Relocate(MessageHead),
}

impl Lane {
    pub(crate) fn new(
        disk: Arc<dyn Disk>,
        (lane_id, epoch): (LaneId, u32),
        context: &LaneContext,
        index: MessageIndex,
        next_number: u64,
    ) -> Self {
        let LaneContext { config, random, step_bytes } = context.clone();
        let steps = config.commit_step.clone().map(|step| StepQueue::new(step, step_bytes));
        Lane {
            disk,
            lane_id,
            epoch,
            random,
            config,
            steps,
            counters: LaneCounters::default(),
            sync_failed: AtomicBool::new(false),
            copying: Arc::default(),
            tidying_failed: Arc::default(),
            next_sequence: AtomicU64::new(u64::from(epoch) << COUNTER_BITS),
            segment_table: Mutex::new(SegmentTable {
                index,
                next_number,
                segment_error: None,
                segment_wanted: false,
                unwithdrawn: Vec::new(),
                finished: None,
                closing: false,
            }),
            maintenance_wanted: Condvar::new(),
            segment_ready: Condvar::new(),
            inbox: Mutex::default(),
            inbox_filled: Condvar::new(),
        }
    }

    pub(crate) fn new_id(&self) -> QueueId {
        self.id(self.next_sequence.fetch_add(1, Relaxed))
    }

    pub(crate) fn id(&self, sequence: u64) -> QueueId {
        QueueId::new(self.lane_id.spool, self.lane_id.number, sequence)
    }

    /// Whether a segment is ready for the writer.
    pub(crate) fn has_ready(&self) -> bool {
        self.segment_table.lock().index.count(SegmentStage::Ready) > 0
    }

    pub(crate) fn report_event(&self, event: SpoolEvent) {
        (self.config.events)(event);
    }

    /// Submits the entries of a caller.
    pub(crate) fn submit_entries(&self, entries: Vec<SpoolEntry>, done: CommitCallback) {
        let permit = match self.steps.as_ref().map_or(Ok(None), |steps| steps.permit(self.lane_id, &entries)) {
            Ok(permit) => permit,
            Err(error) => return done(Err(error)),
        };
        let encode = |entry| PendingRecord::encode(entry, self.steps.is_some());
        self.submit(Submission { records: entries.into_iter().map(encode).collect(), permit, done });
    }

    /// Submits entries that the commit step has already. Nobody waits for it.
    pub(crate) fn submit_restored(&self, entries: Vec<SpoolEntry>, done: CommitCallback) {
        let restored = |entry| PendingRecord { is_restored: true, ..PendingRecord::encode(entry, false) };
        self.submit(Submission { records: entries.into_iter().map(restored).collect(), permit: None, done });
    }

    pub(crate) fn submit(&self, submission: Submission) {
        let inbox = self.inbox.lock();
        if inbox.closed {
            drop(inbox);
            return self.refuse(submission, CommitError::Closed);
        }
        self.enqueue(inbox, submission);
    }

    /// Submits although the lane may be closed already.
    pub(crate) fn submit_internal(&self, submission: Submission) {
        self.enqueue(self.inbox.lock(), submission);
    }

    fn enqueue(&self, mut inbox: MutexGuard<'_, Inbox>, submission: Submission) {
        inbox.waiting.push(submission);
        let wake = inbox.wake_at != 0 && inbox.waiting.len() >= inbox.wake_at;
        if wake {
            inbox.wake_at = 0;
        }
        drop(inbox);
        if wake {
            self.inbox_filled.notify_one();
        }
    }

    /// Fails a submission that was not written, and removes its body files.
    pub(crate) fn refuse(&self, submission: Submission, error: CommitError) {
        for item in &submission.records {
            if let IndexUpdate::Insert(head) = &item.index_update
                && head.spilled.is_some()
            {
                // A file that stays is removed at the next start.
                let _ = self.disk.remove(&spill::file_name(head.sequence));
            }
        }
        (submission.done)(Err(error));
    }

    /// All waiting submissions; None when the lane is closed and none is waiting. `idle` is called
    /// before waiting and returns the maximum time, after which an empty list is returned. If fewer
    /// than `gather_count` are waiting, waits a moment for more.
    pub(crate) fn take_submissions(
        &self,
        gather_count: usize,
        idle: impl Fn() -> Option<Duration>,
    ) -> Option<Vec<Submission>> {
        let mut inbox = self.inbox.lock();
        while inbox.waiting.is_empty() {
            if inbox.closed {
                return None;
            }
            inbox.wake_at = 1;
            match idle() {
                None => self.inbox_filled.wait(&mut inbox),
                Some(span) => {
                    self.inbox_filled.wait_for(&mut inbox, span);
                    if inbox.waiting.is_empty() {
                        return Some(Vec::new());
                    }
                }
            }
        }
        if inbox.waiting.len() < gather_count && !inbox.closed {
            inbox.wake_at = gather_count;
            self.inbox_filled.wait_for(&mut inbox, GATHER_MAX);
        }
        inbox.wake_at = 0;
        Some(std::mem::take(&mut inbox.waiting))
    }

    /// Accepts no more submissions; waiting ones are still written.
    pub(crate) fn close_inbox(&self) {
        self.inbox.lock().closed = true;
        self.inbox_filled.notify_all();
    }

    /// Ends the maintenance thread after its current task.
    pub(crate) fn close_maintenance(&self) {
        self.segment_table.lock().closing = true;
        self.maintenance_wanted.notify_all();
    }

    pub(crate) fn batching(&self) -> LaneBatching {
        let max = self.config.batch_bytes_max;
        let now = self.counters.batch_bytes_max.load(Relaxed);
        LaneBatching {
            lane: self.lane_id,
            // Before the writer has started, there is no other number.
            batch_bytes: if now == 0 { max } else { now },
            batch_bytes_bounds: BatchSizer::bounds(max),
            batch_time_target: self.config.batch_time_target,
            slow_batch: self.counters.last_slow_batch(),
            gather_count: self.counters.gather_count.load(Relaxed),
            gather_time_max: GATHER_MAX,
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        let table = self.segment_table.lock();
        Stats {
            messages_live: table.index.messages() as u64,
            segments: table.index.segments.len() as u64,
            segments_free: table.index.count(SegmentStage::Free) as u64,
            ..self.counters.read()
        }
    }

    /// The position of a live message.
    pub(crate) fn locate(&self, sequence: u64) -> Option<LocatedMessage> {
        let mut table = self.segment_table.lock();
        let place = table.index.place(sequence)?;
        let states = table.index.states(sequence);
        let segment = table.index.segment(place.slot);
        Some(LocatedMessage { place, lease: segment.lease.clone(), number: segment.number, size: segment.size, states })
    }

    pub(crate) fn message(&self, sequence: u64) -> Result<SpooledMessage, ReadError> {
        let located = self.locate(sequence).ok_or(ReadError::Unknown)?;
        let (offset, size) = (located.place.offset, located.size);
        // A device may fail once and then succeed.
        let again = |_| read_record(&*located.lease, offset, size);
        let record = read_record(&*located.lease, offset, size).or_else(again);
        let (frame, head) = read_head(sequence, offset, record)?;
        self.stored(located, frame, head)
    }

    /// The message, unless its head or the open of a spilled body would have to wait for the disk.
    pub(crate) fn message_if_cached(&self, sequence: u64) -> Result<Option<SpooledMessage>, ReadError> {
        let located = self.locate(sequence).ok_or(ReadError::Unknown)?;
        let (offset, size) = (located.place.offset, located.size);
        let record = match located.lease.file() {
            Some(file) => read_record(&CachedOnly(file), offset, size),
            None => read_record(&*located.lease, offset, size),
        };
        // A read that failed may succeed in `message`, where waiting is allowed.
        let Ok(record) = record else { return Ok(None) };
        let (frame, head) = read_head(sequence, offset, Ok(record))?;
        if head.spilled.is_some() {
            return Ok(None);
        }
        self.stored(located, frame, head).map(Some)
    }

    fn stored(
        &self,
        located: LocatedMessage,
        frame: RecordFrame,
        mut head: MessageHead,
    ) -> Result<SpooledMessage, ReadError> {
        let LocatedMessage { place, lease, states, .. } = located;
        let (prefix_len, len) = (u64::from(head.prefix_len), head.spilled.map_or(frame.body_len.into(), |it| it.len));
        if prefix_len > len {
            return Err(damaged("the prefix is longer than the body", place.offset));
        }
        let body = match head.spilled {
            None => {
                let offset = place.offset + frame.body_offset();
                Body::new(lease, offset, len, frame.body_crc, head.flags)
            }
            Some(range) => {
                let file = self.disk.open(&spill::file_name(head.sequence));
                let file = file.map_err(|error| failed(&error, place.offset))?;
                Body::new(Arc::new(FileLease(file)), range.start, len, range.digest, head.flags)
            }
        };
        head.merge(states);
        let states = all_states(head.envelope.recipients.len(), &head.states);
        Ok(SpooledMessage { states, envelope: head.envelope, body, prefix_len })
    }
}

/// The head of a message, from the record at `offset`.
fn read_head(
    sequence: u64,
    offset: u64,
    record: io::Result<Option<(RecordFrame, Vec<u8>)>>,
) -> Result<(RecordFrame, MessageHead), ReadError> {
    let record = record.map_err(|error| failed(&error, offset))?;
    let (frame, record) = record.ok_or_else(|| damaged("the record's checksum is wrong", offset))?;
    let head = MessageHead::read(&record[FRAME_BYTES..]).filter(|head| head.sequence == sequence);
    Ok((frame, head.ok_or_else(|| damaged("the record is not this message", offset))?))
}

fn damaged(what: &str, offset: u64) -> ReadError {
    ReadError::Damaged { what: format!("{what} at byte {offset}") }
}

fn failed(error: &io::Error, offset: u64) -> ReadError {
    match is_data_error(error) {
        true => damaged(&error.to_string(), offset),
        false => ReadError::Unavailable(error.to_string()),
    }
}

/// Whether an error means that the data is lost, and not that a resource is short.
fn is_data_error(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof)
        || error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error())
}

impl PendingRecord {
    /// The maximum size of the record in the log, and of its frame and head in the index.
    pub(crate) fn size_max(&self) -> (u64, u64) {
        // Until the batch is written, states may be added to a copy, one per recipient.
        let growth = match &self.index_update {
            IndexUpdate::Relocate(head) => 4 + STATE_BYTES_MAX * head.envelope.recipients.len() as u64 + RECORD_ALIGN,
            _ => 0,
        };
        let span = self.draft.span().unwrap_or(UNWRITABLE_BYTES);
        (span + growth, self.draft.record.len() as u64 + 4 + growth)
    }

    /// Encodes an entry, on the thread that submits it.
    /// `for_step` keeps the file of a body open for the commit step.
    pub(crate) fn encode(entry: SpoolEntry, for_step: bool) -> PendingRecord {
        match entry {
            SpoolEntry::Message { id, envelope, content, flags } => {
                let mut step_body = None;
                let (prefix, body, prefix_len, spilled) = match content {
                    // Lengths that do not fit the frame are refused by the writer.
                    SubmittedBody::Memory { prefix, body } => {
                        let prefix_len = u32::try_from(prefix.len()).unwrap_or(u32::MAX);
                        (prefix, body, prefix_len, None)
                    }
                    SubmittedBody::Spilled(spilled) => {
                        step_body = for_step.then(|| spilled.content(flags));
                        (Vec::new(), Vec::new(), spilled.prefix_len, Some(spilled.keep()))
                    }
                };
                let states = Vec::new();
                let head = MessageHead { sequence: id.sequence(), flags, prefix_len, spilled, states, envelope };
                let draft = head.draft().with_content(prefix, body);
                let index_update = IndexUpdate::Insert(head);
                PendingRecord { draft, index_update, spilled: step_body, is_restored: false }
            }
            SpoolEntry::Outcome { id, mut recipients, bounce } => {
                recipients.sort_by_key(|(ordinal, _)| *ordinal);
                let bounce = bounce.map_or(0, QueueId::sequence);
                PendingRecord::outcome(OutcomeHead { sequence: id.sequence(), bounce, states: recipients })
            }
        }
    }

    pub(crate) fn outcome(head: OutcomeHead) -> PendingRecord {
        let draft = head.draft();
        PendingRecord { draft, index_update: IndexUpdate::ApplyOutcome(head), spilled: None, is_restored: false }
    }
}

#[cfg(test)]
mod tests;
