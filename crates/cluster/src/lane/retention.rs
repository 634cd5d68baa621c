//! Which records of a stream are still needed, and which messages are published again so that those
//! before them can be purged.
//!
//! | a message is | its record |
//! |---|---|
//! | queued | is not stored |
//! | live | is needed |
//! | copied: a later batch has it again, with its states | is not needed |
//! | settled: a stored batch has the final state of each recipient | is not needed |
//!
//! A stream is purged from its start, up to the first batch with a live message that was not copied.
//! The outcomes of a message follow it, so they are purged with it or after it. A message is settled
//! only when the batch that settles it is stored: a bounce may be in it. The newest Epoch record and
//! what follows it is never purged, nor a batch of which only a part is stored.
//!
//! If the servers have lost records, the messages in them are copied at once.
//!
//! The Epoch record is repeated now and then, and sooner if it is all that keeps a purge from being worth it.
//!
//! If the stream has a limit, no new mail is taken long before it is reached: what is left is for
//! outcomes, copies and Renew records, so that the owner keeps its lease, and can make room.

use std::collections::{BTreeMap, HashMap, HashSet};

use mail::QueueId;
use spool::{RecipientState, RecipientStates};

use super::owner::{BatchId, StoredRange};

/// What a record takes in a stream beside its own bytes, approximately.
const RECORD_OVERHEAD_BYTES: u64 = 128;

/// So many records, or bytes, are purged at once.
const PURGED_RECORDS_MIN: u64 = 64;
const PURGED_BYTES_MIN: u64 = 1 << 20;

/// So many messages are copied at the same time.
const COPIES_MAX: usize = 16;

/// So many batches at the start of the stream are searched for messages to copy.
const COPIED_BATCHES_MAX: usize = 256;

/// The stream may be larger than its live messages by this factor, beside the slack.
const LIVE_FACTOR: u64 = 2;

/// This part of a stream with a limit is not for new mail.
const RESERVED_DIVISOR: u64 = 8;

/// So many Epoch records may be asked for while the slack is written once.
const EPOCHS_IN_SLACK: u64 = 4;

/// An entry of a batch, as far as retention is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RetainedEntry {
    /// A message, new or copied.
    Message {
        /// Its id.
        id: QueueId,
        /// The number of its recipients.
        recipients: u32,
        /// States that are not new; only in copies.
        states: Vec<(u32, RecipientState)>,
    },
    /// New states of recipients.
    Outcome {
        /// The message.
        id: QueueId,
        /// Ordinals and states.
        recipients: Vec<(u32, RecipientState)>,
    },
}

/// The state of a recipient that somebody else knows better than the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateChange {
    /// The ordinal of the recipient.
    pub ordinal: u32,
    /// What the stream has.
    pub from: RecipientState,
    /// What it should have.
    pub to: RecipientState,
}

/// What the caller has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetentionAction {
    /// Purge all records up to this sequence.
    PurgeUpTo(u64),
    /// Repeat the Epoch record: what is before it can be purged then.
    RepeatEpoch,
    /// Publish the message again: read it, and ask for its [`states`](LaneRetention::states) when its
    /// batch is queued, so that the states in the stream stay in their order.
    Copy(QueueId),
}

/// The live messages of a stream, and where they are.
pub struct LaneRetention {
    slack_bytes: u64,
    stream_bytes_max: Option<u64>,
    messages: HashMap<QueueId, RetainedMessage>,
    /// The stored batches that were not purged, by their first sequence.
    batches: BTreeMap<u64, StoredBatch>,
    queued: BTreeMap<BatchId, QueuedBatch>,
    /// Live messages that are being copied, or cannot be.
    copying: HashSet<QueueId>,
    not_copied: HashSet<QueueId>,
    /// Those of `not_copied` that are tried once more: the servers have lost them.
    retried: HashSet<QueueId>,
    /// The bytes and the records of the batches in `batches`, and the bytes that are live.
    batch_bytes: u64,
    batch_records: u64,
    live_bytes: u64,
    newest_epoch: u64,
    /// The bytes of the batches that were stored since then.
    bytes_since_epoch: u64,
    /// The Epoch record after this one is asked for already.
    is_epoch_asked: bool,
    /// The last sequence of a complete batch; parts of others come after it.
    last_stored: u64,
    purged: u64,
    /// The bytes and the records that can be purged, but were not.
    dead_bytes: u64,
    dead_records: u64,
    /// The servers have lost the records before this one, whether they are needed or not.
    lost_before: u64,
    /// Something has changed since no message was found that has to be copied.
    may_copy: bool,
}

struct RetainedMessage {
    recipients: u32,
    /// With the outcomes that are queued.
    states: RecipientStates,
    /// The first sequence of the batch that has it; None while it is queued for the first time.
    batch: Option<u64>,
    /// All recipients have final states, at the latest by a batch that is queued.
    is_settled: bool,
}

#[derive(Default)]
struct QueuedBatch {
    messages: Vec<QueueId>,
    /// Those whose last recipient has its final state by this batch.
    settled: Vec<QueueId>,
}

struct StoredBatch {
    bytes: u64,
    records: u64,
    messages: Vec<QueueId>,
    live: usize,
}

impl StoredBatch {
    /// The share of the live messages.
    fn live_bytes(&self) -> u64 {
        match self.messages.len() as u64 {
            0 => 0,
            total => self.bytes * self.live as u64 / total,
        }
    }
}

impl LaneRetention {
    /// Messages are copied when the stream is larger than twice its live messages and
    /// `slack_bytes`; or before it is half full, if it may have `stream_bytes_max` at most.
    pub fn new(slack_bytes: u64, stream_bytes_max: Option<u64>) -> LaneRetention {
        LaneRetention {
            slack_bytes: slack_bytes.min(stream_bytes_max.map_or(u64::MAX, |max| max / RESERVED_DIVISOR)),
            stream_bytes_max,
            messages: HashMap::new(),
            batches: BTreeMap::new(),
            queued: BTreeMap::new(),
            copying: HashSet::new(),
            not_copied: HashSet::new(),
            retried: HashSet::new(),
            batch_bytes: 0,
            live_bytes: 0,
            newest_epoch: 0,
            bytes_since_epoch: 0,
            is_epoch_asked: false,
            last_stored: 0,
            purged: 0,
            dead_bytes: 0,
            batch_records: 0,
            dead_records: 0,
            lost_before: 0,
            may_copy: false,
        }
    }

    /// A batch that was read from the stream, in its order.
    pub fn handle_stored(&mut self, range: StoredRange, entries: Vec<RetainedEntry>) {
        // No owner has a batch 0.
        self.handle_queued(BatchId(0), entries);
        self.handle_confirmed(BatchId(0), range);
    }

    /// An Epoch record is stored at this sequence.
    pub fn handle_epoch(&mut self, sequence: u64) {
        self.note_start(sequence);
        self.newest_epoch = self.newest_epoch.max(sequence);
        self.bytes_since_epoch = 0;
        self.is_epoch_asked = false;
    }

    /// A batch is queued at the owner, in the order of the batches and before its first part.
    pub fn handle_queued(&mut self, batch: BatchId, entries: Vec<RetainedEntry>) {
        let mut queued = QueuedBatch::default();
        for entry in entries {
            self.queue_entry(entry, &mut queued);
        }
        self.queued.insert(batch, queued);
    }

    /// A queued batch is stored.
    pub fn handle_confirmed(&mut self, batch: BatchId, range: StoredRange) {
        self.note_start(range.first);
        self.may_copy = true;
        self.last_stored = self.last_stored.max(range.last);
        let QueuedBatch { messages, settled } = self.queued.remove(&batch).unwrap_or_default();
        let (live, earlier) = self.move_messages(&messages, range.first);
        self.bytes_since_epoch += range.bytes;
        let records = range.last - range.first + 1;
        let stored = StoredBatch { bytes: range.bytes + records * RECORD_OVERHEAD_BYTES, records, messages, live };
        self.live_bytes += stored.live_bytes();
        self.batch_bytes += stored.bytes;
        self.batch_records += stored.records;
        self.batches.insert(range.first, stored);
        earlier.into_iter().for_each(|first| self.release_place(first));
        settled.into_iter().for_each(|id| self.settle(id));
    }

    /// A queued batch was abandoned: it will never be complete.
    pub fn handle_abandoned(&mut self, batch: BatchId) {
        for id in self.queued.remove(&batch).unwrap_or_default().messages {
            self.copying.remove(&id);
            if self.messages.get(&id).is_some_and(|message| message.batch.is_none()) {
                self.messages.remove(&id);
            }
        }
    }

    /// The first record that the servers have. Versions have been seen that lose records which a purge was to
    /// leave: their messages are published again, and so is the Epoch record. Those that could not be read before are
    /// tried again.
    pub fn handle_first_record(&mut self, sequence: u64) {
        if sequence > self.purged + 1 && sequence > self.lost_before {
            self.lost_before = sequence;
            self.may_copy = true;
        }
        self.retried = self.not_copied.iter().copied().filter(|id| self.is_stuck(*id)).collect();
        self.may_copy |= !self.retried.is_empty();
    }

    /// A message cannot be copied. It keeps the records from its own on.
    pub fn handle_copy_failed(&mut self, id: QueueId) {
        self.copying.remove(&id);
        if self.messages.contains_key(&id) {
            self.not_copied.insert(id);
        }
    }

    /// The states of a message that is not settled, with all outcomes that are queued; those that are
    /// new are left out.
    pub fn states(&self, id: QueueId) -> Option<Vec<(u32, RecipientState)>> {
        let message = self.messages.get(&id).filter(|message| !message.is_settled)?;
        Some(message.states.listed())
    }

    /// Those of the changes whose state in the stream is still the one that they begin with.
    pub fn unchanged(&self, id: QueueId, changes: Vec<StateChange>) -> Vec<(u32, RecipientState)> {
        let Some(message) = self.messages.get(&id).filter(|message| !message.is_settled) else { return Vec::new() };
        let applies = |change: &StateChange| message.states.state(change.ordinal) == change.from;
        changes.into_iter().filter(applies).map(|change| (change.ordinal, change.to)).collect()
    }

    /// Whether new mail of this size may be queued, together with what is queued but not stored. Live
    /// mail stays below the rest, so that copies of it make room for the outcomes of further attempts.
    pub fn has_room_for(&self, bytes: u64) -> bool {
        let is_free = |max: u64| {
            let reserved = max / RESERVED_DIVISOR;
            let (stored, live) = (self.stored_bytes().saturating_add(bytes), self.live_bytes.saturating_add(bytes));
            stored <= max - reserved && live <= max - 2 * reserved
        };
        self.stream_bytes_max.is_none_or(is_free)
    }

    /// Whether every message is settled, and nothing is queued.
    pub fn is_finished(&self) -> bool {
        self.messages.is_empty() && self.queued.is_empty()
    }

    /// Whether a message is not settled by a stored batch.
    pub fn is_live(&self, id: QueueId) -> bool {
        self.messages.contains_key(&id)
    }

    /// Whether a stored batch has a message that is not settled.
    pub fn is_stored(&self, id: QueueId) -> bool {
        self.messages.get(&id).is_some_and(|message| message.batch.is_some())
    }

    /// The next action.
    pub fn poll_action(&mut self) -> Option<RetentionAction> {
        self.drop_dead_batches();
        self.repeat_lost_epoch().or_else(|| self.purge()).or_else(|| self.repeat_epoch()).or_else(|| self.copy())
    }

    /// The bytes of the stream that were not purged, approximately.
    pub fn stored_bytes(&self) -> u64 {
        let records = self.last_stored.saturating_sub(self.purged);
        let others = records.saturating_sub(self.batch_records + self.dead_records);
        self.batch_bytes + self.dead_bytes + others * RECORD_OVERHEAD_BYTES
    }

    /// The number of messages that are not settled.
    pub fn live_messages(&self) -> u64 {
        self.messages.len() as u64
    }

    fn queue_entry(&mut self, entry: RetainedEntry, queued: &mut QueuedBatch) {
        let (id, states) = match entry {
            RetainedEntry::Message { id, recipients, states } => {
                self.messages.entry(id).or_insert_with(|| RetainedMessage::new(recipients));
                queued.messages.push(id);
                (id, states)
            }
            RetainedEntry::Outcome { id, recipients } => (id, recipients),
        };
        if self.messages.get_mut(&id).is_some_and(|message| message.merge(states)) {
            queued.settled.push(id);
        }
    }

    /// Notes that messages are in the batch at `first`. Returns how many of them are live, and their places before.
    fn move_messages(&mut self, ids: &[QueueId], first: u64) -> (usize, Vec<u64>) {
        let (mut live, mut earlier) = (0, Vec::new());
        for id in ids {
            self.copying.remove(id);
            self.not_copied.remove(id);
            if let Some(message) = self.messages.get_mut(id) {
                live += 1;
                earlier.extend(message.batch.replace(first));
            }
        }
        (live, earlier)
    }

    fn settle(&mut self, id: QueueId) {
        self.copying.remove(&id);
        self.not_copied.remove(&id);
        if let Some(first) = self.messages.remove(&id).and_then(|message| message.batch) {
            self.release_place(first);
        }
    }

    /// A message in the batch at `first` is not needed there any more.
    fn release_place(&mut self, first: u64) {
        let Some(batch) = self.batches.get_mut(&first) else { return };
        let before = batch.live_bytes();
        batch.live = batch.live.saturating_sub(1);
        self.live_bytes -= before - batch.live_bytes();
    }

    /// The first sequence that is known of the stream: what is before it was purged earlier.
    fn note_start(&mut self, sequence: u64) {
        if self.last_stored == 0 && self.newest_epoch == 0 {
            self.purged = sequence.saturating_sub(1);
        }
    }

    /// Forgets batches at the start of the stream that can be purged.
    fn drop_dead_batches(&mut self) {
        while let Some(first) = self.batches.first_entry()
            && first.get().live == 0
            && *first.key() < self.newest_epoch
        {
            let StoredBatch { bytes, records, .. } = first.remove();
            self.batch_bytes -= bytes;
            self.batch_records -= records;
            self.dead_bytes += bytes;
            self.dead_records += records;
        }
    }

    fn purge(&mut self) -> Option<RetentionAction> {
        let first_needed = self.batches.first_key_value().map_or(u64::MAX, |(first, _)| *first);
        let mut end = first_needed.min(self.newest_epoch).saturating_sub(1);
        if !self.queued.is_empty() {
            end = end.min(self.last_stored);
        }
        let records = end.saturating_sub(self.purged);
        if records < PURGED_RECORDS_MIN && (records == 0 || self.dead_bytes < PURGED_BYTES_MIN) {
            return None;
        }
        self.purged = end;
        self.dead_bytes = 0;
        self.dead_records = 0;
        Some(RetentionAction::PurgeUpTo(end))
    }

    fn repeat_lost_epoch(&mut self) -> Option<RetentionAction> {
        let is_lost = self.newest_epoch < self.lost_before && !self.is_epoch_asked;
        self.is_epoch_asked |= is_lost;
        is_lost.then_some(RetentionAction::RepeatEpoch)
    }

    /// If the first batch is dead, only the Epoch record keeps it.
    fn repeat_epoch(&mut self) -> Option<RetentionAction> {
        let is_first_dead = self.batches.first_key_value().is_some_and(|(_, batch)| batch.live == 0);
        let is_worth_it = self.bytes_since_epoch > self.slack_bytes / EPOCHS_IN_SLACK;
        if self.is_epoch_asked || !is_first_dead || !is_worth_it || self.stored_bytes() <= self.bytes_max() {
            return None;
        }
        self.is_epoch_asked = true;
        Some(RetentionAction::RepeatEpoch)
    }

    /// The next message of the first batches that has to be copied.
    fn copy(&mut self) -> Option<RetentionAction> {
        let bytes_max = self.bytes_max();
        // A stream that is small enough needs only what it has lost; and if something of this stays, nothing
        // is gained by copying what follows.
        let has_stuck = self.not_copied.iter().any(|id| self.is_stuck(*id));
        let before = if self.stored_bytes() > bytes_max && !has_stuck { u64::MAX } else { self.lost_before };
        if !self.may_copy || before == 0 || self.copying.len() >= COPIES_MAX {
            return None;
        }
        let stays = |id: QueueId| self.is_stuck(id) && !self.retried.contains(&id);
        let first = self.first_live(before).find(|(id, _)| !self.copying.contains(id) && !stays(*id));
        if first.is_some_and(|(_, bytes)| !self.has_room_for_copy(bytes)) {
            return None;
        }
        // If this one stays, nothing is gained by copying those after it.
        let is_tried = |id: &QueueId| !self.not_copied.contains(id) || self.retried.contains(id);
        let copied = first.map(|(id, _)| id).filter(is_tried);
        if let Some(id) = &copied {
            self.retried.remove(id);
        }
        self.may_copy = copied.is_some();
        self.copying.extend(copied);
        copied.map(RetentionAction::Copy)
    }
}

impl LaneRetention {
    /// Whether the servers have lost the record of a message that cannot be copied.
    fn is_stuck(&self, id: QueueId) -> bool {
        let is_lost =
            || self.messages.get(&id).and_then(|message| message.batch).is_some_and(|at| at < self.lost_before);
        self.not_copied.contains(&id) && is_lost()
    }

    /// How large the stream may become without a copy. If nearly all of it is live, copies gain nothing.
    fn bytes_max(&self) -> u64 {
        let usual = self.slack_bytes.saturating_add(LIVE_FACTOR * self.live_bytes);
        let half = self.stream_bytes_max.map_or(u64::MAX, |max| max / 2);
        usual.min(half.max(self.slack_bytes.saturating_add(self.live_bytes)))
    }

    /// Whether one more copy of this size leaves half of what is reserved.
    fn has_room_for_copy(&self, bytes: u64) -> bool {
        let copies = bytes.saturating_mul(self.copying.len() as u64 + 1);
        let is_free = |max: u64| self.stored_bytes().saturating_add(copies) <= max - max / RESERVED_DIVISOR / 2;
        self.stream_bytes_max.is_none_or(is_free)
    }

    /// The live messages of the first batches that begin before this sequence, in the order of the stream, and
    /// their share of it.
    fn first_live(&self, before: u64) -> impl Iterator<Item = (QueueId, u64)> + '_ {
        self.batches.range(..before).take(COPIED_BATCHES_MAX).flat_map(move |(first, batch)| {
            let is_needed = |message: &RetainedMessage| message.batch == Some(*first) && !message.is_settled;
            let is_live = move |id: &&QueueId| self.messages.get(*id).is_some_and(is_needed);
            let share = batch.bytes / batch.messages.len().max(1) as u64;
            batch.messages.iter().filter(is_live).map(move |id| (*id, share))
        })
    }
}

impl StateChange {
    /// What has to change in `found`, so that it has the states of `wanted`. What is final stays so.
    pub fn between(found: &RecipientStates, wanted: &RecipientStates) -> Vec<StateChange> {
        let change = |(ordinal, to)| StateChange { ordinal, from: found.state(ordinal), to };
        let changes = wanted.listed().into_iter().map(change);
        changes.filter(|change| change.from != change.to && !change.from.is_final()).collect()
    }
}

impl RetainedMessage {
    fn new(recipients: u32) -> Self {
        RetainedMessage { recipients, states: RecipientStates::default(), batch: None, is_settled: false }
    }

    /// Takes newer states. True if they are the last ones.
    fn merge(&mut self, newer: Vec<(u32, RecipientState)>) -> bool {
        self.states.merge(newer);
        let was_settled = self.is_settled;
        self.is_settled = self.states.finished() >= self.recipients as usize;
        self.is_settled && !was_settled
    }
}
