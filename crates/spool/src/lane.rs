//! A lane: one log on one disk, with two threads. Only the *writer* appends to the log
//! (`writer.rs`); segment maintenance prepares, empties and frees segments (`keeper.rs`).

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mail::{Body, ByteSource, QueueId, SpoolId};

use crate::disk::{Disk, InMemory};
use crate::entry::{Content, Entry, MessageHead, OutcomeHead, STATE_BYTES_MAX, Stored, all_states};
use crate::ledger::{Ledger, Place, Stage};
use crate::record::{Draft, FRAME_BYTES, Frame, RECORD_ALIGN};
use crate::segment::{Lease, read_record};
use crate::states::State;
use crate::stats::{Counters, Stats};
use crate::{CommitError, Config, Done, Event, ReadError, spill};

/// The lower bits of a sequence number count messages; the upper ones are the epoch, which counts
/// starts, so that a number used before a crash is never used again.
pub(crate) const COUNTER_BITS: u32 = 40;

/// How long a busy writer lets a batch gather: sharing a sync saves more than the wait costs.
const GATHER_MAX: Duration = Duration::from_micros(500);

pub(crate) struct Lane {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) number: u16,
    pub(crate) spool: SpoolId,
    pub(crate) epoch: u32,
    /// A secret of this run.
    pub(crate) random: u64,
    pub(crate) config: Config,
    pub(crate) counters: Counters,
    /// Maintenance could not sync the open segment (relaxed durability only).
    pub(crate) sync_failed: AtomicBool,
    /// Copies are waiting for the writer.
    pub(crate) copying: Arc<AtomicBool>,
    /// They were not committed: maintenance waits before it tries again.
    pub(crate) copy_failed: Arc<AtomicBool>,
    next_sequence: AtomicU64,
    yard: Mutex<Yard>,
    /// Wakes the maintenance thread.
    pub(crate) work: Condvar,
    /// Wakes the writer when a segment is ready.
    pub(crate) supply: Condvar,
    inbox: Mutex<Inbox>,
    inbox_filled: Condvar,
}

/// The state of segments and messages, under one lock.
pub(crate) struct Yard {
    pub(crate) ledger: Ledger,
    pub(crate) next_number: u64,
    /// Why no segment could be prepared, for a writer that waits for one.
    pub(crate) shortage: Option<CommitError>,
    /// Whether the writer waits for a segment.
    pub(crate) wanted: bool,
    pub(crate) closing: bool,
}

#[derive(Default)]
struct Inbox {
    waiting: Vec<Submission>,
    /// The writer sleeps until this many submissions wait; 0 means it is awake.
    wanted: usize,
    closed: bool,
}

/// The record of a live message, with a lease on its segment and its outcomes so far.
pub(crate) struct Located {
    pub(crate) place: Place,
    pub(crate) lease: Arc<Lease>,
    /// The number and size of its segment.
    pub(crate) number: u64,
    pub(crate) size: u64,
    pub(crate) states: Vec<(u32, State)>,
}

/// Entries that become durable in one batch, with their callback.
pub(crate) struct Submission {
    pub(crate) items: Vec<Item>,
    pub(crate) done: Done,
}

/// A record to write, and its effect on the index.
pub(crate) struct Item {
    pub(crate) draft: Draft,
    pub(crate) effect: Effect,
}

pub(crate) enum Effect {
    /// A new message. The head is reported with the commit.
    Insert(MessageHead),
    /// New states of recipients.
    Settle(OutcomeHead),
    /// A message copied forward.
    Relocate(MessageHead),
}

impl Lane {
    pub(crate) fn new(
        disk: Arc<dyn Disk>,
        (spool, number, epoch): (SpoolId, u16, u32),
        random: u64,
        config: Config,
        ledger: Ledger,
        next_number: u64,
    ) -> Self {
        Lane {
            disk,
            number,
            spool,
            epoch,
            random,
            config,
            counters: Counters::default(),
            sync_failed: AtomicBool::new(false),
            copying: Arc::default(),
            copy_failed: Arc::default(),
            next_sequence: AtomicU64::new(u64::from(epoch) << COUNTER_BITS),
            yard: Mutex::new(Yard { ledger, next_number, shortage: None, wanted: false, closing: false }),
            work: Condvar::new(),
            supply: Condvar::new(),
            inbox: Mutex::default(),
            inbox_filled: Condvar::new(),
        }
    }

    pub(crate) fn begin(&self) -> QueueId {
        self.id(self.next_sequence.fetch_add(1, Relaxed))
    }

    pub(crate) fn id(&self, sequence: u64) -> QueueId {
        QueueId::new(self.spool, self.number, sequence)
    }

    /// Locks the state of segments and messages. A poisoned lock is still consistent, because every
    /// change consists of independent steps.
    pub(crate) fn yard(&self) -> MutexGuard<'_, Yard> {
        self.yard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a segment is ready for the writer.
    pub(crate) fn has_ready(&self) -> bool {
        self.yard().ledger.count(Stage::Ready) > 0
    }

    pub(crate) fn tell(&self, event: Event) {
        (self.config.events)(event);
    }

    pub(crate) fn submit(&self, submission: Submission) {
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        if inbox.closed {
            drop(inbox);
            return self.refuse(submission, CommitError::Closed);
        }
        inbox.waiting.push(submission);
        let wake = inbox.wanted != 0 && inbox.waiting.len() >= inbox.wanted;
        if wake {
            inbox.wanted = 0;
        }
        drop(inbox);
        if wake {
            self.inbox_filled.notify_one();
        }
    }

    /// Fails a submission that was not written, and removes its body files.
    pub(crate) fn refuse(&self, submission: Submission, error: CommitError) {
        for item in &submission.items {
            if let Effect::Insert(head) = &item.effect
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
    /// than `crowd` are waiting, waits a moment for more.
    pub(crate) fn take(&self, crowd: usize, idle: impl Fn() -> Option<Duration>) -> Option<Vec<Submission>> {
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        while inbox.waiting.is_empty() {
            if inbox.closed {
                return None;
            }
            inbox.wanted = 1;
            match idle() {
                None => inbox = self.inbox_filled.wait(inbox).unwrap_or_else(PoisonError::into_inner),
                Some(span) => {
                    let waited = self.inbox_filled.wait_timeout(inbox, span);
                    inbox = waited.unwrap_or_else(PoisonError::into_inner).0;
                    if inbox.waiting.is_empty() {
                        return Some(Vec::new());
                    }
                }
            }
        }
        if inbox.waiting.len() < crowd && !inbox.closed {
            inbox.wanted = crowd;
            inbox = self.inbox_filled.wait_timeout(inbox, GATHER_MAX).unwrap_or_else(PoisonError::into_inner).0;
        }
        inbox.wanted = 0;
        Some(std::mem::take(&mut inbox.waiting))
    }

    /// Accepts no more submissions; waiting ones are still written.
    pub(crate) fn close_inbox(&self) {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
        self.inbox_filled.notify_all();
    }

    pub(crate) fn stats(&self) -> Stats {
        let yard = self.yard();
        Stats {
            messages_live: yard.ledger.messages() as u64,
            segments: yard.ledger.segments.len() as u64,
            segments_free: yard.ledger.count(Stage::Free) as u64,
            ..self.counters.read()
        }
    }

    /// The position of a live message.
    pub(crate) fn locate(&self, sequence: u64) -> Option<Located> {
        let mut yard = self.yard();
        let place = yard.ledger.place(sequence)?;
        let states = yard.ledger.states(sequence);
        let segment = yard.ledger.segment(place.slot);
        Some(Located { place, lease: segment.lease.clone(), number: segment.number, size: segment.size, states })
    }

    pub(crate) fn message(&self, sequence: u64) -> Result<Stored, ReadError> {
        let located = self.locate(sequence).ok_or(ReadError::Unknown)?;
        let (offset, size) = (located.place.offset, located.size);
        // A device may fail once and then succeed.
        let again = |_| read_record(&*located.lease, offset, size);
        let record = read_record(&*located.lease, offset, size).or_else(again);
        let (frame, head) = read_head(sequence, offset, record)?;
        self.stored(located, frame, head)
    }

    /// The message, unless its head or the open of a spilled body would have to wait for the disk.
    pub(crate) fn message_at_once(&self, sequence: u64) -> Result<Option<Stored>, ReadError> {
        let located = self.locate(sequence).ok_or(ReadError::Unknown)?;
        let (offset, size) = (located.place.offset, located.size);
        let record = match located.lease.file() {
            Some(file) => read_record(&InMemory(file), offset, size),
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

    fn stored(&self, located: Located, frame: Frame, mut head: MessageHead) -> Result<Stored, ReadError> {
        let Located { place, lease, states, .. } = located;
        let body = match head.spilled {
            None => {
                let offset = place.offset + frame.body_offset();
                Body::new(lease, offset, u64::from(frame.body_len), frame.body_crc, head.flags)
            }
            Some(range) => {
                let file = self.disk.open(&spill::file_name(head.sequence));
                let file = file.map_err(|error| failed(&error, place.offset))?;
                Body::new(Arc::new(Lease(file)), 0, range.len, range.digest, head.flags)
            }
        };
        head.merge(states);
        let states = all_states(head.envelope.recipients.len(), &head.states);
        Ok(Stored { states, envelope: head.envelope, body })
    }
}

/// The head of a message, from the record at `offset`.
fn read_head(
    sequence: u64,
    offset: u64,
    record: io::Result<Option<(Frame, Vec<u8>)>>,
) -> Result<(Frame, MessageHead), ReadError> {
    let record = record.map_err(|error| failed(&error, offset))?;
    let (frame, record) = record.ok_or_else(|| damaged("the record's checksum is wrong", offset))?;
    let head = MessageHead::read(&record[FRAME_BYTES..]).filter(|head| head.sequence == sequence);
    Ok((frame, head.ok_or_else(|| damaged("the record is not this message", offset))?))
}

fn damaged(what: &str, offset: u64) -> ReadError {
    ReadError::Damaged { what: format!("{what} at byte {offset}") }
}

fn failed(error: &io::Error, offset: u64) -> ReadError {
    match is_of_the_bytes(error) {
        true => damaged(&error.to_string(), offset),
        false => ReadError::Unavailable(error.to_string()),
    }
}

/// Whether an error means that the data is lost, and not that a resource is short.
fn is_of_the_bytes(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof)
        || error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error())
}

impl Item {
    /// The maximum size of the record in the log, and of its frame and head in the index.
    pub(crate) fn demand(&self) -> (u64, u64) {
        // Until the batch is written, states may be added to a copy, one per recipient.
        let growth = match &self.effect {
            Effect::Relocate(head) => 4 + STATE_BYTES_MAX * head.envelope.recipients.len() as u64 + RECORD_ALIGN,
            _ => 0,
        };
        let span = self.draft.span().unwrap_or(u64::MAX / 4);
        (span + growth, self.draft.record.len() as u64 + 4 + growth)
    }

    /// Encodes an entry, on the thread that submits it.
    pub(crate) fn of(entry: Entry) -> Item {
        match entry {
            Entry::Message { id, envelope, content, flags } => {
                let (body, spilled) = match content {
                    Content::Memory(bytes) => (bytes, None),
                    Content::Spilled(spilled) => (Vec::new(), Some(spilled.keep())),
                };
                let head = MessageHead { sequence: id.sequence(), flags, spilled, states: Vec::new(), envelope };
                Item { draft: head.draft().with_body(body), effect: Effect::Insert(head) }
            }
            Entry::Outcome { id, mut recipients, bounce } => {
                recipients.sort_by_key(|(ordinal, _)| *ordinal);
                let bounce = bounce.map_or(0, QueueId::sequence);
                let head = OutcomeHead { sequence: id.sequence(), bounce, states: recipients };
                Item { draft: head.draft(), effect: Effect::Settle(head) }
            }
        }
    }
}
