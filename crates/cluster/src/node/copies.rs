//! Compares the stream of a lane with the disk, after a start: what was in flight when the node
//! stopped is on one side only.
//!
//! | a message is live | it was | what is done |
//! |---|---|---|
//! | on the disk only | never acknowledged, or accepted before there was a cluster | it is copied to the stream |
//! | in the stream only, and the log has its end | finished, and its outcome not copied | the stream gets a final outcome |
//! | in the stream only, and the log knows nothing of it | lost by the disk; or in flight, and maybe never acknowledged | it is restored from the stream, which gets the states that differ |
//! | on both sides | accepted; outcomes of some recipients may not be copied | the stream gets the states that differ |
//!
//! Meanwhile mail is accepted and delivered; what is new needs no comparison.

use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use futures_util::{FutureExt, StreamExt, stream};
use mail::{LogLevel, QueueId};
use spool::{BatchDraft, DraftBody, EntryDraft, FinishedMessages, LaneId, RecipientState, SpooledMessage, StepAnswer};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::lost_mail::{self, LostMessages};
use super::replay::{ReplayedLane, replay};
use super::{NodeShared, RESTORE_RETRY_DELAY, RETRY_DELAY, folders};
use crate::LaneHandle;
use crate::lane::retention::{LaneRetention, StateChange};

/// Messages that are copied at the same time.
const COPIES_IN_FLIGHT: usize = 8;

const RESTORE_FAILED: &str = "cannot restore mail that the disk lacks; trying again";
const NOT_WITHDRAWN: &str = "cannot record in the stream of a lane which mail is finished; trying again";
const NOT_RESTORED: &str =
    "cannot restore a message that the disk lacks: its stream lacks it too, or it exceeds a segment";

/// A lane that was opened from its disk.
pub(super) struct OpenedLane {
    pub(super) lane: LaneId,
    /// The epoch of its spool: ids of this epoch are new.
    pub(super) epoch: u32,
    /// Its folder.
    pub(super) path: PathBuf,
    /// The last sequence of its stream before this node claimed it.
    pub(super) last: u64,
}

/// Compares, until it succeeds or the lane is lost.
pub(super) async fn compare(shared: Arc<NodeShared>, handle: LaneHandle, opened: OpenedLane) {
    let Some(replayed) = read_stream(&shared, &handle, &opened).await else { return };
    let Some(comparison) = Comparison::of(&shared, &opened, &replayed).await else { return };
    let Comparison { on_disk, lost, finished, proof } = comparison;
    let restored: Vec<QueueId> = lost.keys().copied().collect();
    // Nothing is purged before the stream is seeded.
    if !restore_lost(&shared, &handle, &opened, lost).await {
        return;
    }
    let ReplayedLane { retention, recipients } = replayed;
    let changes = on_disk.iter().chain(&restored).map(|id| (*id, state_changes(&shared, &retention, *id)));
    let changes: Vec<_> = changes.filter(|(_, changes)| !changes.is_empty()).collect();
    handle.seed(retention, reader(&shared));
    let missing = on_disk.iter().copied().filter(|id| !recipients.contains_key(id));
    let missing: Vec<QueueId> = missing.filter(|id| LaneId::epoch_of(*id) < opened.epoch).collect();
    log_comparison(&shared, opened.lane, [missing.len(), finished.len(), changes.len(), restored.len()]);
    let count = |id: QueueId| recipients.get(&id).copied().unwrap_or_default();
    let finished = finished.into_iter().map(|id| (id, count(id))).collect();
    let outcomes = withdraw_finished(&shared, &handle, opened.lane, finished).await;
    // From here on the stream knows itself what the log proves.
    drop(proof);
    let copies = missing.into_iter().map(|id| copy(&shared, &handle, opened.lane, id));
    let changes = changes.into_iter().map(|(id, changes)| submit_changes(&handle, id, changes));
    let copies = all_stored(stream::iter(copies).buffered(COPIES_IN_FLIGHT).collect().await);
    let changes = all_stored(stream::iter(changes).buffered(COPIES_IN_FLIGHT).collect().await);
    let marked = outcomes
        .and(copies)
        .and(changes)
        .and_then(|()| folders::mark_copied(&opened.path, opened.epoch).map_err(|error| error.to_string()));
    if let Err(error) = marked {
        let text = "not all mail of a lane was copied to its stream; this is tried again at the next start";
        shared.log(LogLevel::Warning, text, &[("lane", &opened.lane), ("error", &error)]);
    }
}

/// What is known of the messages of a stream.
struct Comparison {
    /// All live messages of the disk, sorted.
    on_disk: Vec<QueueId>,
    /// Live in the stream, and unknown to the disk.
    lost: LostMessages,
    /// Live in the stream, and finished on the disk.
    finished: Vec<QueueId>,
    /// What the log says of these; it stays in the log for as long as this is kept.
    proof: FinishedMessages,
}

impl Comparison {
    /// None: the spool is closed.
    async fn of(shared: &NodeShared, opened: &OpenedLane, replayed: &ReplayedLane) -> Option<Comparison> {
        let (spool, lane) = (shared.spool.clone(), opened.lane);
        let known = move || {
            let spool = spool.upgrade()?;
            let on_disk: Vec<QueueId> = spool.ids().into_iter().filter(|id| LaneId::of(*id) == lane).collect();
            // After the ids: a message that is finished meanwhile is known to be.
            Some((on_disk, spool.take_finished(lane).unwrap_or_default()))
        };
        let (on_disk, proof) = spawn_blocking(known).await.ok()??;
        let (mut lost, mut finished) = (LostMessages::new(), Vec::new());
        for (id, recipients) in replayed.recipients.iter().filter(|(id, _)| on_disk.binary_search(id).is_err()) {
            let states = replayed.retention.states(*id).unwrap_or_default();
            match proof.unfinished_states(*id, *recipients, states) {
                Some(states) => drop(lost.insert(*id, states)),
                None => finished.push(*id),
            }
        }
        Some(Comparison { on_disk, lost, finished, proof })
    }
}

/// Restores what the disk lacks; tries again until it succeeds. False: the lane is lost, or the spool closed.
async fn restore_lost(
    shared: &Arc<NodeShared>,
    handle: &LaneHandle,
    opened: &OpenedLane,
    mut lost: LostMessages,
) -> bool {
    if lost.is_empty() {
        return true;
    }
    let text = "the disk lacks mail that the stream of its lane has; it is restored";
    shared.log(LogLevel::Warning, text, &[("lane", &opened.lane), ("messages", &lost.len())]);
    let (stream, last) = (shared.connection.lane_stream(opened.lane), opened.last);
    while handle.ended().now_or_never().is_none() {
        let (runtime, stream, spool) = (Handle::current(), stream.clone(), shared.spool.clone());
        let restoring = spawn_blocking(move || {
            let restored = lost_mail::restore(&runtime, &stream, last, &spool, &mut lost);
            (restored, lost)
        });
        let Ok((restored, left)) = restoring.await else { return false };
        let Err(error) = restored else {
            left.keys().for_each(|id| shared.log(LogLevel::Error, NOT_RESTORED, &[("id", id)]));
            return true;
        };
        if shared.stopping.load(Relaxed) || shared.spool.strong_count() == 0 {
            return false;
        }
        shared.log(LogLevel::Error, RESTORE_FAILED, &[("lane", &opened.lane), ("error", &error)]);
        lost = left;
        sleep(RESTORE_RETRY_DELAY).await;
    }
    false
}

fn log_comparison(shared: &NodeShared, lane: LaneId, [to_copy, finished, changed, restored]: [usize; 4]) {
    let fields: [(&'static str, &dyn Display); 5] = [
        ("lane", &lane),
        ("messages", &to_copy),
        ("removed", &finished),
        ("changed", &changed),
        ("restored", &restored),
    ];
    shared.log(LogLevel::Info, "compared a lane with its stream", &fields);
}

/// Reads messages of the spool while it is open.
pub(super) fn reader(shared: &Arc<NodeShared>) -> Arc<dyn Fn(QueueId) -> Option<SpooledMessage> + Send + Sync> {
    let spool = shared.spool.clone();
    Arc::new(move |id| spool.upgrade()?.message(id).ok())
}

/// What the stream had before the claim. None: the lane is lost.
async fn read_stream(shared: &Arc<NodeShared>, handle: &LaneHandle, opened: &OpenedLane) -> Option<ReplayedLane> {
    let (stream, last) = (shared.connection.lane_stream(opened.lane), opened.last);
    let mut has_failed = false;
    while handle.ended().now_or_never().is_none() {
        let (runtime, stream) = (Handle::current(), stream.clone());
        match spawn_blocking(move || replay(&runtime, &stream, last, None)).await.ok()? {
            Ok(replayed) => return Some(replayed),
            Err(error) if !has_failed => {
                let text = "cannot read the stream of a lane; trying again";
                shared.log(LogLevel::Warning, text, &[("lane", &opened.lane), ("error", &error)]);
            }
            Err(_) => {}
        }
        has_failed = true;
        sleep(RETRY_DELAY).await;
    }
    None
}

/// What the stream lacks of a message that it has.
fn state_changes(shared: &NodeShared, retention: &LaneRetention, id: QueueId) -> Vec<StateChange> {
    let (Some(found), Some(spool)) = (retention.states(id), shared.spool.upgrade()) else { return Vec::new() };
    StateChange::between(&found.into(), &spool.states(id).into())
}

/// Ends messages in the stream, each with its number of recipients; tries again until it succeeds. If it fails,
/// the lane is lost.
async fn withdraw_finished(
    shared: &NodeShared,
    handle: &LaneHandle,
    lane: LaneId,
    finished: Vec<(QueueId, u32)>,
) -> Result<(), String> {
    let mut has_failed = false;
    loop {
        let outcomes = finished.iter().copied().map(|(id, count)| submit(handle, lane, vec![withdrawal(id, count)]));
        match all_stored(stream::iter(outcomes).buffered(COPIES_IN_FLIGHT).collect().await) {
            Err(error) if handle.ended().now_or_never().is_none() => {
                if !std::mem::replace(&mut has_failed, true) {
                    shared.log(LogLevel::Warning, NOT_WITHDRAWN, &[("lane", &lane), ("error", &error)]);
                }
                sleep(RETRY_DELAY).await;
            }
            ended => return ended,
        }
    }
}

fn all_stored(results: Vec<Result<(), String>>) -> Result<(), String> {
    results.into_iter().collect()
}

/// The end of a message that is finished on the disk.
fn withdrawal(id: QueueId, recipients: u32) -> EntryDraft {
    let recipients = (0..recipients).map(|ordinal| (ordinal, RecipientState::Withdrawn)).collect();
    EntryDraft::Outcome { id, recipients, bounce: None }
}

/// Copies a message with the states of its recipients, unless it is finished meanwhile.
async fn copy(shared: &NodeShared, handle: &LaneHandle, lane: LaneId, id: QueueId) -> Result<(), String> {
    let spool = shared.spool.clone();
    let read = move || spool.upgrade().and_then(|spool| spool.message(id).ok());
    let Some(message) = spawn_blocking(read).await.map_err(|error| error.to_string())? else { return Ok(()) };
    let SpooledMessage { envelope, states, body, prefix_len } = message;
    let (flags, digest) = (body.flags(), body.digest());
    let content = DraftBody::Spilled { content: body, prefix_len };
    let recipients: Vec<_> = (0..).zip(states).filter(|(_, state)| *state != RecipientState::NEW).collect();
    let mut entries = vec![EntryDraft::Message { id, envelope, content, flags, digest }];
    if !recipients.is_empty() {
        entries.push(EntryDraft::Outcome { id, recipients, bounce: None });
    }
    submit(handle, lane, entries).await
}

async fn submit_changes(handle: &LaneHandle, id: QueueId, changes: Vec<StateChange>) -> Result<(), String> {
    let (sender, answer) = oneshot::channel();
    handle.submit_changes(id, changes, StepAnswer::new(move |result| drop(sender.send(result))));
    answer.await.unwrap_or_else(|_| Err("the lane's task gave no answer".into()))
}

async fn submit(handle: &LaneHandle, lane: LaneId, entries: Vec<EntryDraft>) -> Result<(), String> {
    let (sender, answer) = oneshot::channel();
    // The receiver waits for it.
    handle.submit(BatchDraft { lane, entries }, StepAnswer::new(move |result| drop(sender.send(result))));
    answer.await.unwrap_or_else(|_| Err("the step gave no answer".into()))
}
