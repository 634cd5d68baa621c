//! The owner of a lane: it claims the lane, publishes the records of its batches in order, and notices
//! when another node has taken the lane.
//!
//! | stage | what is sent | ends when |
//! |---|---|---|
//! | claiming | the Epoch record | it is confirmed |
//! | settling | Renew records, one at a time | no late record of an earlier owner can be stored any more |
//! | owning | parts of batches, Renew records, at the end a Release record | another's record is found, or the Release record is confirmed |
//! | ended | nothing | |
//!
//! **Why settling.** Records are pipelined, and each names the sequence before its own as the last
//! one. If an Epoch record takes the place of the first record in flight, the second one still finds
//! the sequence that it names, and is stored. Such records are void, and their owner never confirms
//! them, since the first one is missing. But they could also come between records of the new owner.
//! They can be stored only within [`PUBLISHES_IN_FLIGHT_MAX`] sequences from the Epoch record, so
//! the new owner fills these before it sends anything that counts.
//!
//! **After a failure**, a timeout or an answer that does not fit, nothing is sent until the owner has
//! read what is stored at the one sequence where its first unconfirmed record can be. What is stored
//! there never changes, so an old answer can only say that it is absent, and then the same bytes are
//! sent again with the same condition, which does no harm.
//!
//! **The lease.** A confirmed record renews the lease from the time at which it was sent. An adopter
//! waits for longer than that after it saw the last record of the stream, so while the lease lasts,
//! nobody else delivers.
//!
//! **A batch counts** when it is stored and the lease lasts. An owner that was suspended may read much later that a
//! batch is stored. Others may have taken the lane over since, and what became of the batch is not known here: so
//! the owner has a further record stored first, or ends.

mod batches;
mod window;

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;

use self::batches::WaitingBatches;
use self::window::{AnswerFit, ConfirmedRecord, QueuedRecord, RecordToSend, RecordWindow};
use super::{BootTime, LaneTimes, PUBLISHES_IN_FLIGHT_MAX, PublishFailure, ReadFailure, RecordSubject, Slot};
use crate::NodeName;
use crate::record::{EpochRecord, Payload, RecordHeader, RecordKind};

/// The time between attempts to read a slot while the servers do not answer.
const READ_PAUSE: Duration = Duration::from_millis(250);

/// The Epoch record is repeated instead of every so many Renew records.
const RENEWALS_PER_EPOCH_RECORD: u64 = 64;

/// Why batches fail that the owner has when it ends, or gets later.
const ENDED: &str = "this node has lost the lane or given it away";

/// Identifies one try to publish a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublishId(pub u64);

/// Identifies a batch of this owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId(pub u64);

/// Where a batch is in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredRange {
    /// The sequence of its first record.
    pub first: u64,
    /// The sequence of its last record.
    pub last: u64,
    /// The bytes of its records.
    pub bytes: u64,
}

/// A node claims a lane.
#[derive(Clone, Debug)]
pub struct Claim {
    /// One more than the newest known epoch of the lane.
    pub epoch: u64,
    /// Random, and different for each claim.
    pub token: u64,
    /// The node.
    pub node: NodeName,
    /// The epoch of its spool.
    pub spool_epoch: u32,
    /// The last sequence of the stream. If another record follows it, the claim fails.
    pub last_sequence: u64,
    /// How long others wait for this owner; at least its lease. See [`LaneOwner::announce_lease`].
    pub announced_lease: Duration,
}

/// What the caller has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnerAction {
    /// Publish a record, and pass the result to [`LaneOwner::handle_published`] or
    /// [`LaneOwner::handle_publish_failed`]. Records must leave in the order of these actions.
    Publish {
        /// This try.
        id: PublishId,
        /// Its subject.
        subject: RecordSubject,
        /// The sequence that must be the last one of the stream.
        expected_last: u64,
        /// The record.
        record: Bytes,
    },
    /// Read what is stored at this sequence, and pass it to [`LaneOwner::handle_slot`].
    Read {
        /// The sequence.
        sequence: u64,
    },
    /// The batch is stored, and the lease lasts. It may have been reported as failed before.
    Confirmed {
        /// The batch.
        batch: BatchId,
        /// Where it is.
        range: StoredRange,
    },
    /// The batch has waited for too long, or the owner has ended. If it has not ended, the records
    /// of the batch are still sent.
    Failed {
        /// The batch.
        batch: BatchId,
        /// A description of the failure.
        reason: String,
    },
    /// The lane is ours.
    Claimed {
        /// The epoch.
        epoch: u64,
        /// The sequence of the Epoch record. What earlier owners have said is before it.
        base: u64,
    },
    /// The Epoch record was repeated.
    EpochRepeated {
        /// Its sequence.
        sequence: u64,
        /// It is the one of [`LaneOwner::announce_lease`].
        is_announcement: bool,
    },
    /// Another node has the lane; before [`OwnerAction::Claimed`] it means that the claim came too
    /// late. The last action.
    Fenced {
        /// The other node, if it is known.
        by: Option<NodeName>,
    },
    /// The stream lacks what it had. The last action.
    Lost {
        /// What is missing.
        reason: String,
    },
    /// The Release record is stored. The last action.
    Released,
}

/// The owner of a lane; see the top of this file.
pub struct LaneOwner {
    times: LaneTimes,
    records: OwnRecords,
    window: RecordWindow,
    batches: WaitingBatches,
    stage: Stage,
    flow: Flow,
    release: ReleaseStage,
    /// A Renew or a repeated Epoch record is queued.
    renewal_queued: bool,
    renewal_due: BootTime,
    renewals: u64,
    /// The Epoch record is to be repeated at once.
    repeats_epoch: bool,
    /// Records with another lease, until the first of them is stored.
    announced: Option<OwnRecords>,
    lease_until: Option<BootTime>,
    /// Since when the stream seems to lack what it had.
    missing_since: Option<BootTime>,
    last_failure: Option<PublishFailure>,
    actions: VecDeque<OwnerAction>,
}

/// The records that are the same whenever they are sent.
struct OwnRecords {
    epoch: u64,
    token: u64,
    content: EpochRecord,
    epoch_record: Bytes,
    renew: Bytes,
    release: Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Claiming,
    Settling { base: u64, until: u64 },
    Owning,
    Ended,
}

/// Whether records are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    Open,
    /// The slot of the first record is being read.
    Reading {
        since: BootTime,
    },
    /// The slot of the first record will be read.
    Paused {
        until: BootTime,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReleaseStage {
    Kept,
    Asked,
    Queued,
}

impl OwnRecords {
    fn new(claim: &Claim) -> Self {
        let lease = claim.announced_lease;
        let content = EpochRecord { node: claim.node.clone(), spool_epoch: claim.spool_epoch, lease };
        OwnRecords::with_content(claim.epoch, claim.token, content)
    }

    fn with_content(epoch: u64, token: u64, content: EpochRecord) -> Self {
        let header = |kind| RecordHeader { kind, epoch, token, batch: 0, part: 0, last: false };
        let payload = content.encode();
        OwnRecords {
            epoch,
            token,
            content,
            epoch_record: header(RecordKind::Epoch).encode(&payload),
            renew: header(RecordKind::Renew).encode(&payload),
            release: header(RecordKind::Release).encode(&[]),
        }
    }

    fn part(&self, batch: BatchId, part: u32, last: bool, payload: Payload) -> Bytes {
        let (epoch, token) = (self.epoch, self.token);
        RecordHeader { kind: RecordKind::Part, epoch, token, batch: batch.0, part, last }.seal(payload)
    }

    fn renewal(&self, count: u64) -> QueuedRecord {
        match count % RENEWALS_PER_EPOCH_RECORD {
            0 => QueuedRecord::new(RecordKind::Epoch, self.epoch_record.clone()),
            _ => QueuedRecord::new(RecordKind::Renew, self.renew.clone()),
        }
    }
}

impl LaneOwner {
    /// Claims a lane. Records of at most `in_flight_bytes_max` bytes are in flight, or a single
    /// larger one.
    pub fn claim(times: LaneTimes, in_flight_bytes_max: u64, claim: Claim, now: BootTime) -> LaneOwner {
        let records = OwnRecords::new(&claim);
        let mut window = RecordWindow::new(claim.last_sequence, in_flight_bytes_max);
        window.push(QueuedRecord::new(RecordKind::Epoch, records.epoch_record.clone()));
        LaneOwner {
            times,
            records,
            window,
            batches: WaitingBatches::default(),
            stage: Stage::Claiming,
            flow: Flow::Open,
            release: ReleaseStage::Kept,
            renewal_queued: false,
            renewal_due: now,
            renewals: 0,
            repeats_epoch: false,
            announced: None,
            lease_until: None,
            missing_since: None,
            last_failure: None,
            actions: VecDeque::new(),
        }
    }

    /// Begins a batch. Its parts follow before the next batch begins. After the owner has ended, the
    /// batch fails.
    pub fn start_batch(&mut self, now: BootTime) -> BatchId {
        if self.stage != Stage::Ended {
            return self.batches.start(now);
        }
        let batch = self.batches.next_id();
        self.actions.push_back(OwnerAction::Failed { batch, reason: ENDED.into() });
        batch
    }

    /// Queues a part of a batch.
    pub fn handle_part(&mut self, batch: BatchId, payload: impl Into<Payload>, last: bool) {
        let Some(part) = self.batches.add_part(batch) else { return };
        let record = self.records.part(batch, part, last, payload.into());
        self.window.push(QueuedRecord::of_part(record, batch, last));
    }

    /// Gives up a batch before its last part: readers ignore what is stored of it. No action follows.
    pub fn abandon_batch(&mut self, batch: BatchId) {
        self.batches.remove(batch);
    }

    /// The servers answered that a record is stored.
    pub fn handle_published(&mut self, id: PublishId, sequence: u64, now: BootTime) {
        match self.window.mark_stored(id, sequence) {
            AnswerFit::Old => {}
            AnswerFit::WrongPlace => self.read_slot(now),
            AnswerFit::Stored => self.confirm_answered(now),
        }
    }

    /// A record was not stored, as far as is known.
    pub fn handle_publish_failed(&mut self, id: PublishId, failure: PublishFailure, now: BootTime) {
        if self.flow != Flow::Open || !self.window.is_in_flight(id) {
            return;
        }
        self.last_failure = Some(failure);
        match failure {
            PublishFailure::StreamFull => self.flow = Flow::Paused { until: now.after(READ_PAUSE) },
            _ => self.read_slot(now),
        }
    }

    /// What is stored at a sequence that was to be read.
    pub fn handle_slot(&mut self, sequence: u64, slot: Result<Slot, ReadFailure>, now: BootTime) {
        let is_expected = matches!(self.flow, Flow::Reading { .. }) && sequence == self.window.confirmed() + 1;
        if !is_expected || self.stage == Stage::Ended {
            return;
        }
        match slot {
            Ok(Slot::Stored(record)) => self.take_stored(&record, now),
            Ok(Slot::Absent { last_sequence }) => self.take_absence(last_sequence, now),
            Err(ReadFailure::Unavailable) => self.flow = Flow::Paused { until: now.after(READ_PAUSE) },
            Err(ReadFailure::NoStream) => self.miss(now, lost("the stream is gone")),
        }
    }

    /// Takes note of the time; due at [`LaneOwner::poll_timeout`].
    pub fn handle_timeout(&mut self, now: BootTime) {
        if self.stage == Stage::Ended {
            return;
        }
        self.fail_overdue_batches(now);
        if self.flow_deadline().is_some_and(|deadline| deadline <= now) {
            if self.flow == Flow::Open {
                self.last_failure = Some(PublishFailure::Timeout);
            }
            self.read_slot(now);
        }
    }

    /// Gives the lane away after the batches that have begun. Attempts at delivery should have ended
    /// before: the next owner may deliver at once.
    pub fn release(&mut self) {
        if self.release == ReleaseStage::Kept {
            self.release = ReleaseStage::Asked;
        }
    }

    /// Repeats the Epoch record, so that all before it can be purged.
    pub fn repeat_epoch(&mut self) {
        self.repeats_epoch = true;
    }

    /// Repeats the Epoch record behind all that is queued. Once it is stored, others wait for `lease` after the
    /// last record, and at least for what this owner goes by.
    pub fn announce_lease(&mut self, lease: Duration) {
        if self.stage != Stage::Owning {
            return;
        }
        let content = EpochRecord { lease: lease.max(self.times.lease), ..self.records.content.clone() };
        let records = OwnRecords::with_content(self.records.epoch, self.records.token, content);
        self.window.push(QueuedRecord::new(RecordKind::Epoch, records.epoch_record.clone()));
        self.announced = Some(records);
    }

    /// Whether others wait for longer than this owner delivers: the stream may lack mail.
    pub fn announces_longer_lease(&self) -> bool {
        self.records.content.lease > self.times.lease
    }

    /// The next action.
    pub fn poll_action(&mut self, now: BootTime) -> Option<OwnerAction> {
        if let Some(action) = self.actions.pop_front() {
            return Some(action);
        }
        if self.flow != Flow::Open {
            return None;
        }
        self.queue_own_records(now);
        let RecordToSend { id, subject, expected_last, record } = self.window.send_next(self.in_flight_max(), now)?;
        Some(OwnerAction::Publish { id, subject, expected_last, record })
    }

    /// When [`LaneOwner::handle_timeout`] is due, and then `poll_action`.
    pub fn poll_timeout(&self) -> Option<BootTime> {
        if self.stage == Stage::Ended {
            return None;
        }
        let is_queued = self.renewal_queued || self.announced.is_some();
        let renews = self.stage == Stage::Owning && self.flow == Flow::Open && !is_queued;
        let renewal = (renews && self.needs_renewal()).then_some(self.renewal_due);
        let batch = self.batches.deadline(self.times.batch_timeout);
        [renewal, batch, self.flow_deadline()].into_iter().flatten().min()
    }

    /// Whether an attempt at delivery may begin.
    pub fn may_deliver(&self, now: BootTime) -> bool {
        self.lease_until().is_some_and(|until| now < until)
    }

    /// Until when attempts at delivery may begin; None if none may.
    pub fn lease_until(&self) -> Option<BootTime> {
        let is_owner = self.stage == Stage::Owning && self.release != ReleaseStage::Queued;
        self.lease_until.filter(|_| is_owner)
    }

    /// The bytes of the records that are not confirmed.
    pub fn waiting_bytes(&self) -> u64 {
        self.window.waiting_bytes()
    }

    /// The sequence of the last confirmed record.
    pub fn confirmed_sequence(&self) -> u64 {
        self.window.confirmed()
    }

    fn in_flight_max(&self) -> u64 {
        match self.stage {
            Stage::Claiming | Stage::Settling { .. } => 1,
            Stage::Owning => PUBLISHES_IN_FLIGHT_MAX,
            Stage::Ended => 0,
        }
    }

    /// Queues Renew and Release records as they are due. They are sent before parts that wait, so
    /// that others see in time that the owner lives.
    fn queue_own_records(&mut self, now: BootTime) {
        match self.stage {
            Stage::Settling { .. } if !self.renewal_queued => {
                self.renewal_queued = true;
                self.window.push_next(QueuedRecord::new(RecordKind::Renew, self.records.renew.clone()));
            }
            Stage::Owning if self.needs_renewal() => self.queue_renewal(now),
            Stage::Owning if self.release == ReleaseStage::Asked && self.is_idle() => {
                self.release = ReleaseStage::Queued;
                self.window.push(QueuedRecord::new(RecordKind::Release, self.records.release.clone()));
            }
            _ => {}
        }
    }

    /// Whether the lease is to go on: the lane is kept, or a stored batch waits for it.
    fn needs_renewal(&self) -> bool {
        self.release == ReleaseStage::Kept || self.batches.has_stored()
    }

    fn queue_renewal(&mut self, now: BootTime) {
        // A record with the earlier lease must not follow the one that announces another.
        if self.renewal_queued || self.announced.is_some() {
            return;
        }
        if std::mem::take(&mut self.repeats_epoch) {
            // Others do not hear it, so the next Renew record comes when it would have come.
            self.renewals = 0;
        } else if now < self.renewal_due {
            return;
        } else {
            self.renewals += 1;
            self.renewal_due = now.after(self.times.renew_interval());
        }
        self.renewal_queued = true;
        self.window.push_next(self.records.renewal(self.renewals));
    }

    fn is_idle(&self) -> bool {
        self.window.is_empty() && self.batches.is_empty()
    }

    /// When the answers to records or to a reading are overdue, or a pause ends.
    fn flow_deadline(&self) -> Option<BootTime> {
        match self.flow {
            Flow::Open => self.window.oldest_sent().map(|sent| sent.after(self.times.ack_timeout)),
            Flow::Reading { since } => Some(since.after(self.times.ack_timeout)),
            Flow::Paused { until } => Some(until),
        }
    }

    fn confirm_answered(&mut self, now: BootTime) {
        let first = self.window.confirmed();
        while let Some(confirmed) = self.window.confirm_answered() {
            self.take_confirmed(confirmed, now);
        }
        if self.flow != Flow::Open && self.window.confirmed() != first {
            // The slot that was asked for is known now.
            self.read_slot(now);
        }
    }

    /// Asks for the slot of the first unconfirmed record, if there is one that was sent.
    fn read_slot(&mut self, now: BootTime) {
        if self.stage == Stage::Ended {
            return;
        }
        if !self.window.has_sent() {
            self.flow = Flow::Open;
            return;
        }
        self.flow = Flow::Reading { since: now };
        self.actions.push_back(OwnerAction::Read { sequence: self.window.confirmed() + 1 });
    }

    fn take_stored(&mut self, stored: &[u8], now: BootTime) {
        if let Some(confirmed) = self.window.confirm_found(stored) {
            self.take_confirmed(confirmed, now);
            self.read_slot(now);
            return;
        }
        let is_late = RecordHeader::read(stored).is_ok_and(|header| header.kind != RecordKind::Epoch);
        match self.stage {
            Stage::Settling { .. } if is_late => {
                self.window.skip_sequence();
                self.flow = Flow::Open;
                self.settle(now);
            }
            _ => {
                let by = EpochRecord::read_record(stored).ok().map(|(_, record)| record.node);
                self.end(OwnerAction::Fenced { by });
            }
        }
    }

    fn take_absence(&mut self, last_sequence: u64, now: BootTime) {
        match last_sequence.cmp(&self.window.confirmed()) {
            Ordering::Equal => {
                self.missing_since = None;
                self.window.forget_tries();
                self.flow = Flow::Open;
            }
            Ordering::Less => self.miss(now, lost("the stream ends before records that were confirmed")),
            // Another owner has purged it.
            Ordering::Greater => self.miss(now, OwnerAction::Fenced { by: None }),
        }
    }

    /// The stream lacks something. A server that lags or starts may say so too, hence it counts only
    /// if it stays so.
    fn miss(&mut self, now: BootTime, ending: OwnerAction) {
        let since = *self.missing_since.get_or_insert(now);
        if now.since(since) < self.times.batch_timeout {
            self.flow = Flow::Paused { until: now.after(READ_PAUSE) };
            return;
        }
        self.end(ending);
    }

    fn take_confirmed(&mut self, confirmed: ConfirmedRecord, now: BootTime) {
        let ConfirmedRecord { sequence, record, sent } = confirmed;
        self.lease_until = self.lease_until.max(Some(sent.after(self.times.lease)));
        self.missing_since = None;
        self.last_failure = None;
        self.confirm_batches(now);
        match record.kind {
            RecordKind::Epoch if self.stage == Stage::Claiming => {
                self.stage = Stage::Settling { base: sequence, until: sequence + PUBLISHES_IN_FLIGHT_MAX - 1 };
            }
            RecordKind::Epoch => {
                let announced = self.announced.take_if(|announced| announced.epoch_record == record.bytes);
                let is_announcement = announced.is_some();
                match announced {
                    Some(records) => self.records = records,
                    None => self.renewal_queued = false,
                }
                self.actions.push_back(OwnerAction::EpochRepeated { sequence, is_announcement });
            }
            RecordKind::Renew => self.renewal_queued = false,
            RecordKind::Part => self.confirm_part(sequence, &record, now),
            RecordKind::Release => self.end(OwnerAction::Released),
        }
        self.settle(now);
    }

    fn confirm_part(&mut self, sequence: u64, record: &QueuedRecord, now: BootTime) {
        let Some((batch, is_last)) = record.part_of else { return };
        self.batches.confirm_part(batch, is_last, sequence, record.len());
        self.confirm_batches(now);
    }

    /// Stored batches count if nobody else can have the lane.
    fn confirm_batches(&mut self, now: BootTime) {
        if !self.may_deliver(now) {
            return;
        }
        while let Some((batch, range)) = self.batches.take_stored() {
            self.actions.push_back(OwnerAction::Confirmed { batch, range });
        }
    }

    /// Ends settling when late records of earlier owners cannot be stored any more.
    fn settle(&mut self, now: BootTime) {
        let Stage::Settling { base, until } = self.stage else { return };
        if self.window.confirmed() < until {
            return;
        }
        self.stage = Stage::Owning;
        self.renewal_due = now.after(self.times.renew_interval());
        self.actions.push_back(OwnerAction::Claimed { epoch: self.records.epoch, base });
    }

    fn fail_overdue_batches(&mut self, now: BootTime) {
        while let Some(batch) = self.batches.fail_overdue(self.times.batch_timeout, now) {
            let reason = match self.last_failure {
                Some(PublishFailure::StreamFull) => "the stream is full",
                _ => "the NATS servers did not confirm it in time",
            };
            self.actions.push_back(OwnerAction::Failed { batch, reason: reason.into() });
        }
    }

    /// Fails what waits. Nothing is sent any more.
    fn end(&mut self, ending: OwnerAction) {
        self.stage = Stage::Ended;
        self.flow = Flow::Open;
        self.window.clear();
        let failed = self.batches.fail_all().into_iter();
        self.actions.extend(failed.map(|batch| OwnerAction::Failed { batch, reason: ENDED.into() }));
        self.actions.push_back(ending);
    }
}

fn lost(reason: &str) -> OwnerAction {
    OwnerAction::Lost { reason: reason.into() }
}
