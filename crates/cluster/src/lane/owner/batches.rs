//! The batches of an owner whose last part is not confirmed, in their order.

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
    is_failed: bool,
}

impl WaitingBatches {
    pub(super) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    pub(super) fn start(&mut self, now: BootTime) -> BatchId {
        let id = self.next_id();
        self.batches.push_back(WaitingBatch { id, started: now, parts: 0, first: None, bytes: 0, is_failed: false });
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

    /// Takes a confirmed part. Returns where the batch is, if this was its last part.
    pub(super) fn confirm_part(
        &mut self,
        id: BatchId,
        is_last: bool,
        sequence: u64,
        bytes: u64,
    ) -> Option<StoredRange> {
        let batch = self.find(id)?;
        let first = *batch.first.get_or_insert(sequence);
        batch.bytes += bytes;
        let bytes = batch.bytes;
        is_last.then(|| {
            self.remove(id);
            StoredRange { first, last: sequence, bytes }
        })
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
