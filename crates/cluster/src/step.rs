//! The commit step of the spool's lanes: passes each batch to the task of its lane.
//!
//! | a lane | its batches | its mail may be delivered |
//! |---|---|---|
//! | has a task | wait for their records | while the lease lasts |
//! | is local: it has no stream yet, so no other node can have it | are confirmed at once | always |
//! | has neither | fail | never |

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::RwLock;
use spool::{BatchDraft, CommitStep, LaneId, StepAnswer};

use crate::LaneHandle;

/// Passes batches to the tasks of their lanes. A batch of a lane without a task fails: what it was
/// about is compared with the stream when the lane is claimed.
#[derive(Default)]
pub struct ClusterStep {
    lanes: RwLock<BTreeMap<LaneId, StepLane>>,
    local_batches: AtomicU64,
}

#[derive(Clone)]
enum StepLane {
    Claimed(LaneHandle),
    Local,
}

impl ClusterStep {
    /// A step without lanes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the task of a lane, or replaces it. A lane is not local any more.
    pub fn insert(&self, lane: LaneId, handle: LaneHandle) {
        self.lanes.write().insert(lane, StepLane::Claimed(handle));
    }

    /// Adds a lane that nobody else can have.
    pub(crate) fn insert_local(&self, lane: LaneId) {
        self.lanes.write().insert(lane, StepLane::Local);
    }

    /// Forgets the task of a lane.
    pub fn remove(&self, lane: LaneId) {
        self.lanes.write().remove(&lane);
    }

    /// The tasks of all lanes.
    pub fn lanes(&self) -> Vec<LaneHandle> {
        self.lanes.read().values().filter_map(StepLane::handle).cloned().collect()
    }

    /// The local lanes.
    pub(crate) fn local_lanes(&self) -> Vec<LaneId> {
        let lanes = self.lanes.read();
        lanes.iter().filter(|(_, lane)| lane.handle().is_none()).map(|(id, _)| *id).collect()
    }

    pub(crate) fn is_local(&self, lane: LaneId) -> bool {
        matches!(self.lanes.read().get(&lane), Some(StepLane::Local))
    }

    /// How many batches were confirmed without a second copy.
    pub(crate) fn local_batches(&self) -> u64 {
        self.local_batches.load(Relaxed)
    }

    /// Whether this node may deliver mail of the lane now.
    pub fn may_deliver(&self, lane: LaneId) -> bool {
        match self.lanes.read().get(&lane) {
            Some(StepLane::Claimed(handle)) => handle.may_deliver(),
            Some(StepLane::Local) => true,
            None => false,
        }
    }

    /// The task of a lane.
    pub(crate) fn lane(&self, lane: LaneId) -> Option<LaneHandle> {
        self.lanes.read().get(&lane).and_then(StepLane::handle).cloned()
    }
}

impl StepLane {
    fn handle(&self) -> Option<&LaneHandle> {
        match self {
            StepLane::Claimed(handle) => Some(handle),
            StepLane::Local => None,
        }
    }
}

impl CommitStep for ClusterStep {
    fn start(&self, batch: BatchDraft, answer: StepAnswer) {
        let lane = self.lanes.read().get(&batch.lane).cloned();
        match lane {
            Some(StepLane::Claimed(handle)) => handle.submit(batch, answer),
            Some(StepLane::Local) => {
                self.local_batches.fetch_add(1, Relaxed);
                answer.send(Ok(()));
            }
            None => answer.send(Err(format!("lane {} is not claimed", batch.lane))),
        }
    }

    /// What is refused here is not written, so that clients that try again and again do not fill the disk.
    fn takes_mail(&self, lane: LaneId) -> bool {
        match self.lanes.read().get(&lane) {
            Some(StepLane::Claimed(handle)) => handle.takes_mail(),
            Some(StepLane::Local) => true,
            None => false,
        }
    }
}
