//! A lane's task, seen from outside.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use mail::QueueId;
use spool::{BatchDraft, LaneId, SpooledMessage, StepAnswer};
use tokio::sync::{mpsc, oneshot, watch};

use super::stream_maintenance::ReadMessage;
use crate::NodeName;
use crate::clock::boot_time;
use crate::lane::retention::{LaneRetention, StateChange};
use crate::lane::{BootTime, LaneTimes};

/// A lane's task, seen from outside; clones are the same. The task ends with the last one.
#[derive(Clone)]
pub struct LaneHandle {
    commands: mpsc::UnboundedSender<LaneCommand>,
    shared: Arc<LaneShared>,
}

/// What the task is told.
pub(super) enum LaneCommand {
    Batch(BatchDraft, StepAnswer),
    Changes(QueueId, Vec<StateChange>, StepAnswer),
    Missing(QueueId, SpooledMessage, StepAnswer),
    Seed(Box<LaneRetention>, ReadMessage),
    Compared,
    AnnounceLease(Duration, StepAnswer),
    ConfirmFinished(oneshot::Sender<bool>),
    Release,
}

/// What a claim has led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimedLane {
    /// The epoch of this node.
    pub epoch: u64,
    /// The sequence of its Epoch record: what earlier owners wrote is before it.
    pub base: u64,
}

/// Why a lane is this node's no more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaneEnd {
    /// Another node has claimed it. Before it was claimed here: the claim came too late.
    #[error("another node owns the lane{}", named(.by.as_ref()))]
    Fenced {
        /// The other node, if it is known.
        by: Option<NodeName>,
    },
    /// The stream lacks what it had, or the task was stopped.
    #[error("{0}")]
    Lost(String),
    /// It was handed over.
    #[error("the lane was released")]
    Released,
}

fn named(node: Option<&NodeName>) -> String {
    node.map_or(String::new(), |node| format!(": {node}"))
}

/// The figures of a lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneStatus {
    /// The epoch and its first sequence; None while the lane is being claimed.
    pub claimed: Option<(u64, u64)>,
    /// How much longer the node may deliver; zero: not at all.
    pub lease_left: Duration,
    /// The sequence of the last record that is known to be stored.
    pub confirmed_sequence: u64,
    /// Bytes of records that are not.
    pub waiting_bytes: u64,
    /// Bytes of the records that the stream keeps, as far as they are known.
    pub stored_bytes: u64,
    /// Messages that are live in the stream, as far as they are known.
    pub live_messages: u64,
    /// Batches that were confirmed since the start.
    pub batches_confirmed: u64,
    /// Batches that failed since the start.
    pub batches_failed: u64,
    /// Publishes without a good answer since the start.
    pub publishes_failed: u64,
}

/// What the task and its handles share.
pub(super) struct LaneShared {
    lane: LaneId,
    state: watch::Sender<LaneState>,
    /// The end of the lease in nanoseconds of [`boot_time`]; 0 without one.
    lease_until: AtomicU64,
    /// See [`LaneHandle::is_finished`].
    pub(super) is_finished: AtomicBool,
    /// See [`LaneHandle::is_copying`].
    pub(super) is_copying: AtomicBool,
    pub(super) counters: LaneCounters,
}

#[derive(Default)]
pub(super) struct LaneCounters {
    pub(super) confirmed_sequence: AtomicU64,
    pub(super) waiting_bytes: AtomicU64,
    pub(super) stored_bytes: AtomicU64,
    pub(super) live_messages: AtomicU64,
    pub(super) batches_confirmed: AtomicU64,
    pub(super) batches_failed: AtomicU64,
    pub(super) publishes_failed: AtomicU64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum LaneState {
    Claiming,
    Claimed(ClaimedLane),
    Ended(LaneEnd),
}

impl LaneHandle {
    pub(super) fn new(lane: LaneId) -> (LaneHandle, mpsc::UnboundedReceiver<LaneCommand>, Arc<LaneShared>) {
        let (commands, receiver) = mpsc::unbounded_channel();
        let shared = Arc::new(LaneShared {
            lane,
            state: watch::Sender::new(LaneState::Claiming),
            lease_until: AtomicU64::new(0),
            is_finished: AtomicBool::new(false),
            is_copying: AtomicBool::new(false),
            counters: LaneCounters::default(),
        });
        (LaneHandle { commands, shared: shared.clone() }, receiver, shared)
    }

    /// The lane.
    pub fn lane(&self) -> LaneId {
        self.shared.lane
    }

    /// Waits until the lane is claimed, or cannot be.
    pub async fn claimed(&self) -> Result<ClaimedLane, LaneEnd> {
        match self.wait_for(|state| *state != LaneState::Claiming).await {
            LaneState::Claimed(claimed) => Ok(claimed),
            LaneState::Ended(end) => Err(end),
            LaneState::Claiming => Err(LaneEnd::Lost("the lane's task has ended".into())),
        }
    }

    /// Waits until the lane is this node's no more.
    pub async fn ended(&self) -> LaneEnd {
        match self.wait_for(|state| matches!(state, LaneState::Ended(_))).await {
            LaneState::Ended(end) => end,
            LaneState::Claiming | LaneState::Claimed(_) => LaneEnd::Lost("the lane's task has ended".into()),
        }
    }

    /// Whether this node may begin a delivery now.
    pub fn may_deliver(&self) -> bool {
        !self.lease_left().is_zero()
    }

    /// Whether new mail may get its copy soon: the lease is not over, or only since a moment. Another server
    /// may take the place of one that has failed.
    pub fn takes_mail(&self) -> bool {
        let until = BootTime(Duration::from_nanos(self.shared.lease_until.load(Relaxed)));
        until > BootTime::default() && boot_time() < until.after(LaneTimes::default().batch_timeout)
    }

    /// Whether every message that the stream ever had is settled in stored records, as far as this node
    /// knows. False before the stream was read.
    pub fn is_finished(&self) -> bool {
        self.shared.is_finished.load(Relaxed)
    }

    /// The same, with all that was submitted before this call. False if the lane has ended.
    pub async fn confirm_finished(&self) -> bool {
        let (sender, answer) = oneshot::channel();
        // A command that is dropped answers by itself.
        drop(self.commands.send(LaneCommand::ConfirmFinished(sender)));
        answer.await.unwrap_or(false)
    }

    /// Whether the stream may lack mail that was acknowledged.
    pub fn is_copying(&self) -> bool {
        self.shared.is_copying.load(Relaxed)
    }

    /// Queues a batch behind all earlier ones. The answer comes when it is stored, or has waited too
    /// long.
    pub fn submit(&self, batch: BatchDraft, answer: StepAnswer) {
        if let Err(answer) = self.pass(batch, answer) {
            answer.send(Err(format!("lane {} is not this node's any more", self.lane())));
        }
    }

    /// The same, but the caller answers if the lane has ended.
    pub(crate) fn pass(&self, batch: BatchDraft, answer: StepAnswer) -> Result<(), StepAnswer> {
        match self.commands.send(LaneCommand::Batch(batch, answer)) {
            Err(mpsc::error::SendError(LaneCommand::Batch(_, answer))) => Err(answer),
            _ => Ok(()),
        }
    }

    /// Queues states that the stream lacks, as a batch; after [`LaneHandle::seed`]. Those that outcomes
    /// have changed meanwhile are left out.
    pub fn submit_changes(&self, id: QueueId, changes: Vec<StateChange>, answer: StepAnswer) {
        // A command that is dropped answers by itself.
        drop(self.commands.send(LaneCommand::Changes(id, changes, answer)));
    }

    /// Queues a message that the stream lacked, as it was read from the disk at any time since the claim:
    /// outcomes that were submitted meanwhile are added. After [`LaneHandle::seed`] and before
    /// [`LaneHandle::end_comparison`].
    pub fn submit_missing(&self, id: QueueId, message: SpooledMessage, answer: StepAnswer) {
        // A command that is dropped answers by itself.
        drop(self.commands.send(LaneCommand::Missing(id, message, answer)));
    }

    /// Nothing more is missing in the stream.
    pub fn end_comparison(&self) {
        // A lane that has ended needs none.
        drop(self.commands.send(LaneCommand::Compared));
    }

    /// From now on, others wait for `lease` after the last record. The answer comes when that is stored.
    pub fn announce_lease(&self, lease: Duration, answer: StepAnswer) {
        // A command that is dropped answers by itself.
        drop(self.commands.send(LaneCommand::AnnounceLease(lease, answer)));
    }

    /// What the stream had before this node's epoch, once it was read. `read` is called on blocking
    /// threads. Before this, nothing of the stream is purged.
    pub fn seed(&self, retention: LaneRetention, read: ReadMessage) {
        // A lane that has ended needs none.
        drop(self.commands.send(LaneCommand::Seed(Box::new(retention), read)));
    }

    /// Hands the lane over when everything that was submitted is stored: another node may claim it at
    /// once. Waits until it has ended. A lane that is being copied is not handed over.
    pub async fn release(&self) -> LaneEnd {
        if self.is_copying() {
            return LaneEnd::Lost("not all of its mail is copied".into());
        }
        // A lane that has ended is not released.
        drop(self.commands.send(LaneCommand::Release));
        self.ended().await
    }

    /// The figures of the lane.
    pub fn status(&self) -> LaneStatus {
        let counters = &self.shared.counters;
        LaneStatus {
            claimed: match &*self.shared.state.borrow() {
                LaneState::Claimed(ClaimedLane { epoch, base }) => Some((*epoch, *base)),
                LaneState::Claiming | LaneState::Ended(_) => None,
            },
            lease_left: self.lease_left(),
            confirmed_sequence: counters.confirmed_sequence.load(Relaxed),
            waiting_bytes: counters.waiting_bytes.load(Relaxed),
            stored_bytes: counters.stored_bytes.load(Relaxed),
            live_messages: counters.live_messages.load(Relaxed),
            batches_confirmed: counters.batches_confirmed.load(Relaxed),
            batches_failed: counters.batches_failed.load(Relaxed),
            publishes_failed: counters.publishes_failed.load(Relaxed),
        }
    }

    fn lease_left(&self) -> Duration {
        let until = BootTime(Duration::from_nanos(self.shared.lease_until.load(Relaxed)));
        until.since(boot_time())
    }

    /// The first state that is as wanted, or the last one of all.
    async fn wait_for(&self, is_wanted: impl FnMut(&LaneState) -> bool) -> LaneState {
        let mut states = self.shared.state.subscribe();
        // The sender is held by this handle, so waiting cannot fail.
        let state = states.wait_for(is_wanted).await.map(|state| state.clone());
        state.unwrap_or_else(|_| self.shared.state.borrow().clone())
    }
}

impl LaneShared {
    pub(super) fn set_lease(&self, until: Option<BootTime>) {
        let nanoseconds = until.map_or(0, |BootTime(time)| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        self.lease_until.store(nanoseconds, Relaxed);
    }

    pub(super) fn set_claimed(&self, claimed: ClaimedLane) {
        self.state.send_replace(LaneState::Claimed(claimed));
    }

    /// No delivery begins after this. Only the first end counts.
    pub(super) fn set_ended(&self, end: LaneEnd) {
        self.set_lease(None);
        if !self.has_ended() {
            self.state.send_replace(LaneState::Ended(end));
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        matches!(*self.state.borrow(), LaneState::Ended(_))
    }
}
