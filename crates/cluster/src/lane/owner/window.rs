//! The records of an owner that are not confirmed, in their order.
//!
//! Those at the front have been sent. The record at place `n` can be stored at one sequence only, `n + 1`
//! after the last confirmed one, because it names the sequence before as the last one. It is confirmed
//! when the servers have said that it is stored, and all records before it are confirmed: an answer
//! alone proves nothing, because another owner's record may have taken the place of an earlier one.

use std::collections::VecDeque;

use bytes::Bytes;

use super::{BatchId, PublishId};
use crate::lane::{BootTime, PUBLISHES_IN_FLIGHT_MAX, RecordSubject};
use crate::record::RecordKind;

/// A record that is not confirmed.
pub(super) struct QueuedRecord {
    pub(super) kind: RecordKind,
    pub(super) bytes: Bytes,
    /// The batch of a part, and whether it is the last part.
    pub(super) part_of: Option<(BatchId, bool)>,
    /// When it was sent for the first time.
    first_sent: Option<BootTime>,
    last_try: Option<Try>,
}

struct Try {
    id: PublishId,
    sent: BootTime,
    is_stored: bool,
}

/// A record that has to be published.
pub(super) struct RecordToSend {
    pub(super) id: PublishId,
    pub(super) subject: RecordSubject,
    pub(super) expected_last: u64,
    pub(super) record: Bytes,
}

/// A record that is confirmed.
pub(super) struct ConfirmedRecord {
    pub(super) sequence: u64,
    pub(super) record: QueuedRecord,
    /// When it was sent, at the earliest.
    pub(super) sent: BootTime,
}

/// What an answer of the servers means.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AnswerFit {
    /// It belongs to a try that was given up.
    Old,
    /// The record is not where it can be.
    WrongPlace,
    /// The record is stored.
    Stored,
}

/// The records that are not confirmed.
pub(super) struct RecordWindow {
    records: VecDeque<QueuedRecord>,
    /// The number of records at the front that were sent, and their bytes.
    sent: usize,
    sent_bytes: u64,
    sent_bytes_max: u64,
    waiting_bytes: u64,
    /// The last sequence that is known to be ours, or to be void.
    confirmed: u64,
    next_id: u64,
}

impl QueuedRecord {
    pub(super) fn new(kind: RecordKind, bytes: Bytes) -> Self {
        QueuedRecord { kind, bytes, part_of: None, first_sent: None, last_try: None }
    }

    pub(super) fn of_part(bytes: Bytes, batch: BatchId, is_last: bool) -> Self {
        QueuedRecord { part_of: Some((batch, is_last)), ..QueuedRecord::new(RecordKind::Part, bytes) }
    }

    fn subject(&self) -> RecordSubject {
        match self.kind {
            RecordKind::Epoch => RecordSubject::Epoch,
            RecordKind::Renew => RecordSubject::Renew,
            RecordKind::Part | RecordKind::Release => RecordSubject::Log,
        }
    }

    pub(super) fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn is_stored(&self) -> bool {
        self.last_try.as_ref().is_some_and(|last| last.is_stored)
    }
}

impl RecordWindow {
    pub(super) fn new(last_sequence: u64, sent_bytes_max: u64) -> Self {
        RecordWindow {
            records: VecDeque::new(),
            sent: 0,
            sent_bytes: 0,
            sent_bytes_max,
            waiting_bytes: 0,
            confirmed: last_sequence,
            next_id: 0,
        }
    }

    pub(super) fn push(&mut self, record: QueuedRecord) {
        self.waiting_bytes += record.len();
        self.records.push_back(record);
    }

    /// Puts a record before all others that were never sent. One that was sent keeps its place: a late
    /// try may still store it there.
    pub(super) fn push_next(&mut self, record: QueuedRecord) {
        self.waiting_bytes += record.len();
        let place = self.records.partition_point(|record| record.first_sent.is_some());
        self.records.insert(place, record);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Whether sent records are unconfirmed.
    pub(super) fn has_sent(&self) -> bool {
        self.sent > 0
    }

    pub(super) fn confirmed(&self) -> u64 {
        self.confirmed
    }

    pub(super) fn waiting_bytes(&self) -> u64 {
        self.waiting_bytes
    }

    /// When the first record was sent whose answer is missing.
    pub(super) fn oldest_sent(&self) -> Option<BootTime> {
        let mut sent = self.records.iter().take(self.sent).filter(|record| !record.is_stored());
        sent.next().and_then(|record| record.last_try.as_ref()).map(|last| last.sent)
    }

    /// The next record to send, if the limits allow it; at most `in_flight_max` records.
    pub(super) fn send_next(&mut self, in_flight_max: u64, now: BootTime) -> Option<RecordToSend> {
        let in_flight_max = in_flight_max.min(PUBLISHES_IN_FLIGHT_MAX);
        let record = self.records.get_mut(self.sent)?;
        let fits = self.sent == 0 || self.sent_bytes + record.len() <= self.sent_bytes_max;
        if self.sent as u64 >= in_flight_max || !fits {
            return None;
        }
        let id = PublishId(self.next_id);
        self.next_id += 1;
        record.first_sent.get_or_insert(now);
        record.last_try = Some(Try { id, sent: now, is_stored: false });
        let expected_last = self.confirmed + self.sent as u64;
        self.sent += 1;
        self.sent_bytes += record.len();
        Some(RecordToSend { id, subject: record.subject(), expected_last, record: record.bytes.clone() })
    }

    /// Whether this try is the last one of a record that is not known to be stored.
    pub(super) fn is_in_flight(&self, id: PublishId) -> bool {
        self.place_of(id).is_some_and(|place| !self.records[place].is_stored())
    }

    /// Takes the answer that a record is stored.
    pub(super) fn mark_stored(&mut self, id: PublishId, sequence: u64) -> AnswerFit {
        let Some(place) = self.place_of(id) else { return AnswerFit::Old };
        if sequence != self.confirmed + 1 + place as u64 {
            return AnswerFit::WrongPlace;
        }
        if let Some(last) = &mut self.records[place].last_try {
            last.is_stored = true;
        }
        AnswerFit::Stored
    }

    /// Removes the first record if the servers have answered that it is stored.
    pub(super) fn confirm_answered(&mut self) -> Option<ConfirmedRecord> {
        let last_try = self.records.front().filter(|first| first.is_stored())?.last_try.as_ref()?;
        let sent = last_try.sent;
        self.confirm_first(sent)
    }

    /// Removes the first record if it is the one that was found in the stream. It is unknown which try
    /// stored it.
    pub(super) fn confirm_found(&mut self, stored: &[u8]) -> Option<ConfirmedRecord> {
        let sent = self.records.front().filter(|first| first.bytes == stored)?.first_sent?;
        self.confirm_first(sent)
    }

    /// The next sequence is taken by a void record.
    pub(super) fn skip_sequence(&mut self) {
        self.confirmed += 1;
        self.forget_tries();
    }

    /// All records will be sent again, and late answers to earlier tries are ignored.
    pub(super) fn forget_tries(&mut self) {
        self.records.iter_mut().take(self.sent).for_each(|record| record.last_try = None);
        self.sent = 0;
        self.sent_bytes = 0;
    }

    /// Removes all records.
    pub(super) fn clear(&mut self) {
        self.forget_tries();
        self.records.clear();
        self.waiting_bytes = 0;
    }

    fn confirm_first(&mut self, sent: BootTime) -> Option<ConfirmedRecord> {
        let record = self.records.pop_front()?;
        self.sent -= 1;
        self.sent_bytes -= record.len();
        self.waiting_bytes -= record.len();
        self.confirmed += 1;
        Some(ConfirmedRecord { sequence: self.confirmed, record, sent })
    }

    fn place_of(&self, id: PublishId) -> Option<usize> {
        let is_this = |record: &QueuedRecord| record.last_try.as_ref().is_some_and(|last| last.id == id);
        self.records.iter().take(self.sent).position(is_this)
    }
}
