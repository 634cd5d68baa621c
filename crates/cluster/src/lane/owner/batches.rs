//! The batches of an owner that do not count yet, in their order: their last part is not confirmed, or the lease
//! was over when it was.

use std::collections::VecDeque;
use std::time::Duration;

use super::{BatchId, StoredRange};
use crate::lane::BootTime;

/// The batches that wait.
#[derive(Default)]
pub(super) struct WaitingBatches {
    batches: VecDeque<WaitingBatch>,
    /// The number of batches so far.
    started: u64,
}

struct WaitingBatch {
    id: BatchId,
    started: BootTime,
    /// The number of parts so far.
    parts: u32,
    /// The sequence of the first part, once it is confirmed.
    first: Option<u64>,
    /// The bytes of its confirmed parts.
    bytes: u64,
    /// Where it is, once its last part is confirmed.
    stored: Option<StoredRange>,
    is_failed: bool,
}

impl WaitingBatches {
    pub(super) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    pub(super) fn start(&mut self, now: BootTime) -> BatchId {
        let id = self.next_id();
        let (first, stored) = (None, None);
        self.batches.push_back(WaitingBatch { id, started: now, parts: 0, first, bytes: 0, stored, is_failed: false });
        id
    }

    /// The id of a batch that does not wait.
    pub(super) fn next_id(&mut self) -> BatchId {
        self.started += 1;
        BatchId(self.started)
    }

    /// The number of the next part; None if there is no such batch.
    pub(super) fn add_part(&mut self, id: BatchId) -> Option<u32> {
        let batch = self.find(id)?;
        batch.parts += 1;
        Some(batch.parts - 1)
    }

    /// Takes a confirmed part.
    pub(super) fn confirm_part(&mut self, id: BatchId, is_last: bool, sequence: u64, bytes: u64) {
        let Some(batch) = self.find(id) else { return };
        let first = *batch.first.get_or_insert(sequence);
        batch.bytes += bytes;
        batch.stored = is_last.then_some(StoredRange { first, last: sequence, bytes: batch.bytes });
    }

    /// Whether the first batch is stored.
    pub(super) fn has_stored(&self) -> bool {
        self.batches.front().is_some_and(|batch| batch.stored.is_some())
    }

    /// Removes the first batch if it is stored.
    pub(super) fn take_stored(&mut self) -> Option<(BatchId, StoredRange)> {
        let batch = self.batches.pop_front_if(|batch| batch.stored.is_some())?;
        batch.stored.map(|range| (batch.id, range))
    }

    /// Forgets a batch; its parts are sent, but no last one follows.
    pub(super) fn remove(&mut self, id: BatchId) {
        self.batches.retain(|batch| batch.id != id);
    }

    /// When the first batch will have waited for too long.
    pub(super) fn deadline(&self, timeout: Duration) -> Option<BootTime> {
        self.batches.iter().find(|batch| !batch.is_failed).map(|batch| batch.started.after(timeout))
    }

    /// The next batch that has waited for too long; it counts as failed from now on.
    pub(super) fn fail_overdue(&mut self, timeout: Duration, now: BootTime) -> Option<BatchId> {
        let batch = self.batches.iter_mut().find(|batch| !batch.is_failed)?;
        (batch.started.after(timeout) <= now).then(|| {
            batch.is_failed = true;
            batch.id
        })
    }

    /// Forgets all. Returns those that were not failed.
    pub(super) fn fail_all(&mut self) -> Vec<BatchId> {
        let batches = self.batches.drain(..).filter(|batch| !batch.is_failed);
        batches.map(|batch| batch.id).collect()
    }

    fn find(&mut self, id: BatchId) -> Option<&mut WaitingBatch> {
        self.batches.iter_mut().find(|batch| batch.id == id)
    }
}
