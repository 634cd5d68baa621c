//! The commit step of the spool's lanes: passes each batch to the task of its lane.
//!
//! | a lane | its batches | its mail may be delivered |
//! |---|---|---|
//! | has a task | wait for their records | while the lease lasts |
//! | is not claimed yet | with new mail: fail; others are passed to its task when it has one | never |
//! | is being closed | with new mail: fail; others wait for their records | while the lease lasts |
//! | is local: it has no stream yet, so no other node can have it | are confirmed at once | always |

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::{Mutex, RwLock};
use spool::{BatchDraft, CommitStep, LaneId, StepAnswer};

use crate::LaneHandle;
use crate::lane_task::has_new_mail;

/// Passes batches to the tasks of their lanes. Outcomes of a lane that is not claimed yet wait for its task: the spool
/// keeps them until a later batch succeeds, and takes that for the success of all.
#[derive(Default)]
pub struct ClusterStep {
    lanes: RwLock<BTreeMap<LaneId, StepLane>>,
    local_batches: AtomicU64,
}

enum StepLane {
    Claimed(LaneHandle),
    Closing(LaneHandle),
    Local,
    /// Batches without new mail, in their order.
    Unclaimed(Mutex<Vec<(BatchDraft, StepAnswer)>>),
}

impl ClusterStep {
    /// A step without lanes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the task of a lane, or replaces it. A lane is not local any more.
    pub fn insert(&self, lane: LaneId, handle: LaneHandle) {
        let mut lanes = self.lanes.write();
        let before = lanes.insert(lane, StepLane::Claimed(handle.clone()));
        // Under the lock: nothing that comes later is passed before them.
        let kept = before.map(StepLane::kept).unwrap_or_default();
        let refused: Vec<StepAnswer> =
            kept.into_iter().filter_map(|(batch, answer)| handle.pass(batch, answer).err()).collect();
        drop(lanes);
        refused.into_iter().for_each(|answer| answer.send(Err(not_owned(lane))));
    }

    /// Ends the mail of a lane if nothing of it is live, in its stream or on the disk: `has_mail` looks there. What
    /// comes meanwhile is refused, and what was passed to the task before counts. None: the lane takes mail as before.
    pub async fn close_if_finished(&self, lane: LaneId, has_mail: impl Future<Output = bool>) -> Option<LaneHandle> {
        let handle = self.lane(lane)?;
        self.refuse_mail(lane);
        // First the stream: what passes to it is on the disk before it is acknowledged.
        if handle.confirm_finished().await && !has_mail.await {
            return Some(handle);
        }
        self.insert(lane, handle);
        None
    }

    /// From now on, a lane that has a task takes no new mail. What was passed to its task before may have some.
    fn refuse_mail(&self, lane: LaneId) {
        let mut lanes = self.lanes.write();
        if let Some(handle) = lanes.get(&lane).and_then(StepLane::handle).cloned() {
            lanes.insert(lane, StepLane::Closing(handle));
        }
    }

    /// Adds a lane that nobody else can have.
    pub(crate) fn insert_local(&self, lane: LaneId) {
        let before = self.lanes.write().insert(lane, StepLane::Local);
        let kept = before.map(StepLane::kept).unwrap_or_default();
        kept.into_iter().for_each(|(_, answer)| answer.send(Ok(())));
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
        lanes.iter().filter(|(_, lane)| matches!(lane, StepLane::Local)).map(|(id, _)| *id).collect()
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
            Some(StepLane::Claimed(handle) | StepLane::Closing(handle)) => handle.may_deliver(),
            Some(StepLane::Local) => true,
            Some(StepLane::Unclaimed(_)) | None => false,
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
            StepLane::Claimed(handle) | StepLane::Closing(handle) => Some(handle),
            StepLane::Local | StepLane::Unclaimed(_) => None,
        }
    }

    /// What waits for the claim.
    fn kept(self) -> Vec<(BatchDraft, StepAnswer)> {
        match self {
            StepLane::Unclaimed(kept) => kept.into_inner(),
            StepLane::Claimed(_) | StepLane::Closing(_) | StepLane::Local => Vec::new(),
        }
    }
}

fn not_owned(lane: LaneId) -> String {
    format!("lane {lane} is not this node's any more")
}

impl ClusterStep {
    /// Keeps a batch without new mail until its lane is claimed.
    fn keep(&self, batch: BatchDraft, answer: StepAnswer) {
        let mut lanes = self.lanes.write();
        match lanes.entry(batch.lane).or_insert_with(|| StepLane::Unclaimed(Mutex::default())) {
            StepLane::Unclaimed(kept) => kept.get_mut().push((batch, answer)),
            // It was claimed just now.
            StepLane::Claimed(_) | StepLane::Closing(_) | StepLane::Local => {
                drop(lanes);
                self.start(batch, answer);
            }
        }
    }
}

impl CommitStep for ClusterStep {
    fn start(&self, batch: BatchDraft, answer: StepAnswer) {
        let lane = batch.lane;
        // It is passed on under the lock, so that a lane takes nothing behind `refuse_mail`; and answered without it.
        let lanes = self.lanes.read();
        let (answer, result) = match lanes.get(&lane) {
            Some(StepLane::Closing(_)) if has_new_mail(&batch.entries) => {
                (answer, Err(format!("lane {lane} is being closed")))
            }
            Some(StepLane::Claimed(handle) | StepLane::Closing(handle)) => match handle.pass(batch, answer) {
                Ok(()) => return,
                Err(answer) => (answer, Err(not_owned(lane))),
            },
            Some(StepLane::Local) => {
                self.local_batches.fetch_add(1, Relaxed);
                (answer, Ok(()))
            }
            Some(StepLane::Unclaimed(_)) | None if has_new_mail(&batch.entries) => {
                (answer, Err(format!("lane {lane} is not claimed")))
            }
            Some(StepLane::Unclaimed(_)) | None => {
                drop(lanes);
                return self.keep(batch, answer);
            }
        };
        drop(lanes);
        answer.send(result);
    }

    /// What is refused here is not written, so that clients that try again and again do not fill the disk.
    fn takes_mail(&self, lane: LaneId) -> bool {
        match self.lanes.read().get(&lane) {
            Some(StepLane::Claimed(handle)) => handle.takes_mail(),
            Some(StepLane::Local) => true,
            Some(StepLane::Closing(_) | StepLane::Unclaimed(_)) | None => false,
        }
    }
}
