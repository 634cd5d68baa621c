//! A stream as JetStream keeps it: records with sequences that only grow, a condition on the last one,
//! purges from the start. Readers may see an earlier state.

use std::collections::VecDeque;

use bytes::Bytes;
use cluster::lane::{PublishFailure, Slot, StreamTail};
use cluster::record::{EpochRecord, RecordHeader};

/// What a record takes beside its own bytes.
const RECORD_OVERHEAD_BYTES: u64 = 128;

#[derive(Default)]
pub(crate) struct Stream {
    records: VecDeque<Bytes>,
    bytes: u64,
    pub(crate) bytes_max: Option<u64>,
    /// The records that were purged.
    purged: u64,
    /// The last record that names an epoch, and its sequence.
    newest_epoch: Option<(u64, RecordHeader, EpochRecord)>,
    /// The sequence of the last one that there ever was.
    last_epoch_at: u64,
}

impl Stream {
    pub(crate) fn new(bytes_max: Option<u64>) -> Self {
        Stream { bytes_max, ..Stream::default() }
    }

    pub(crate) fn last_sequence(&self) -> u64 {
        self.purged + self.records.len() as u64
    }

    pub(crate) fn first_sequence(&self) -> u64 {
        self.purged + 1
    }

    pub(crate) fn publish(&mut self, expected_last: u64, record: Bytes) -> Result<u64, PublishFailure> {
        if expected_last != self.last_sequence() {
            return Err(PublishFailure::WrongLastSequence);
        }
        let bytes = self.bytes + size(&record);
        if self.bytes_max.is_some_and(|max| bytes > max) {
            return Err(PublishFailure::StreamFull);
        }
        self.bytes = bytes;
        let epoch = EpochRecord::read_record(&record).ok();
        self.records.push_back(record);
        if let Some((header, epoch)) = epoch {
            self.last_epoch_at = self.last_sequence();
            self.newest_epoch = Some((self.last_epoch_at, header, epoch));
        }
        Ok(self.last_sequence())
    }

    pub(crate) fn purge(&mut self, up_to: u64) {
        assert!(up_to < self.last_sequence(), "the last record must stay");
        while self.purged < up_to {
            self.bytes -= self.records.pop_front().as_ref().map_or(0, size);
            self.purged += 1;
        }
        self.newest_epoch.take_if(|(sequence, ..)| *sequence <= up_to);
    }

    pub(crate) fn record(&self, sequence: u64) -> Option<&Bytes> {
        self.records.get(usize::try_from(sequence.checked_sub(self.purged + 1)?).ok()?)
    }

    /// What a copy that lags by `lag` records says, together with the leader's last sequence if
    /// `is_mixed`.
    pub(crate) fn slot(&self, sequence: u64, lag: u64, is_mixed: bool) -> Slot {
        let visible = self.visible(lag);
        match self.record(sequence) {
            Some(record) if sequence <= visible => Slot::Stored(record.clone()),
            _ => Slot::Absent { last_sequence: if is_mixed { self.last_sequence() } else { visible } },
        }
    }

    pub(crate) fn newest_epoch(&self) -> Option<EpochRecord> {
        self.newest_epoch.as_ref().map(|(.., record)| record.clone())
    }

    /// The number of the newest epoch, as far as the stream still says.
    pub(crate) fn epoch(&self) -> u64 {
        self.newest_epoch.as_ref().map_or(0, |(_, header, _)| header.epoch)
    }

    /// Whether a node that has claimed the lane at `base` is its last owner so far.
    pub(crate) fn is_last_claim(&self, base: u64) -> bool {
        self.last_epoch_at <= base
    }

    pub(crate) fn tail(&self, lag: u64) -> StreamTail {
        let last_sequence = self.visible(lag);
        let record = self.record(last_sequence).map(|record| RecordHeader::read(record).unwrap());
        StreamTail { last_sequence, first_sequence: self.first_sequence(), record }
    }

    /// The last sequence that a copy knows which lags by `lag` records.
    fn visible(&self, lag: u64) -> u64 {
        let lag = lag.min((self.records.len() as u64).saturating_sub(1));
        self.last_sequence() - lag
    }
}

fn size(record: &Bytes) -> u64 {
    record.len() as u64 + RECORD_OVERHEAD_BYTES
}
