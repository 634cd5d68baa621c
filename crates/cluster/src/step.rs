//! The commit step of the spool's lanes: passes each batch to the task of its lane.

use std::collections::BTreeMap;

use parking_lot::RwLock;
use spool::{BatchDraft, CommitStep, LaneId, StepAnswer};

use crate::LaneHandle;

/// Passes batches to the tasks of their lanes. A batch of a lane without a task fails: what it was
/// about is compared with the stream when the lane is claimed.
#[derive(Default)]
pub struct ClusterStep {
    lanes: RwLock<BTreeMap<LaneId, LaneHandle>>,
}

impl ClusterStep {
    /// A step without lanes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the task of a lane, or replaces it.
    pub fn insert(&self, lane: LaneId, handle: LaneHandle) {
        self.lanes.write().insert(lane, handle);
    }

    /// Forgets the task of a lane.
    pub fn remove(&self, lane: LaneId) {
        self.lanes.write().remove(&lane);
    }

    /// The tasks of all lanes.
    pub fn lanes(&self) -> Vec<LaneHandle> {
        self.lanes.read().values().cloned().collect()
    }

    /// Whether this node may deliver mail of the lane now.
    pub fn may_deliver(&self, lane: LaneId) -> bool {
        self.lane(lane).is_some_and(|handle| handle.may_deliver())
    }

    /// The task of a lane.
    pub(crate) fn lane(&self, lane: LaneId) -> Option<LaneHandle> {
        self.lanes.read().get(&lane).cloned()
    }
}

impl CommitStep for ClusterStep {
    fn start(&self, batch: BatchDraft, answer: StepAnswer) {
        match self.lane(batch.lane) {
            Some(handle) => handle.submit(batch, answer),
            None => answer.send(Err(format!("lane {} is not claimed", batch.lane))),
        }
    }
}
