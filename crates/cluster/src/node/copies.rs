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
//! Meanwhile mail is accepted and delivered; what is new needs no comparison. Copies come before outcomes,
//! so that a bounce is never missing whose message has ended.
//!
//! As long as the stream may lack mail that was acknowledged, the owner announces a long lease
//! ([`crate::lane::COPYING_LEASE`]): another node that takes the lane over would not get this mail.
//!
//! Only a message that the spool does not know any more counts as finished. A spool that is closed, or a message
//! that cannot be read, ends or delays the comparison, and the lane stays marked as not copied.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt, StreamExt, stream};
use mail::{LogLevel, QueueId};
use spool::{BatchDraft, EntryDraft, FinishedMessages, LaneId, ReadError, RecipientState, SpooledMessage, StepAnswer};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::body_check::check_body;
use super::claim::OpenLane;
use super::lost_mail::{self, LostMessages};
use super::replay::{ReplayedLane, replay};
use super::{NodeShared, RESTORE_RETRY_DELAY, RETRY_DELAY, folders};
use crate::LaneHandle;
use crate::lane::COPYING_LEASE;
use crate::lane::retention::{LaneRetention, StateChange};

/// Messages that are copied at the same time.
const COPIES_IN_FLIGHT: usize = 8;

const RESTORE_FAILED: &str = "cannot restore mail that the disk lacks; trying again";
const NOT_WITHDRAWN: &str = "cannot record in the stream of a lane which mail is finished; trying again";
const NOT_COMPARED: &str = "not all mail of a lane was copied to its stream; this is tried again at the next start";
const NOT_NOTED: &str = "cannot note which mail of a lane has its second copy; trying again";
const UNREADABLE: &str = "cannot read a message to copy it; it has no second copy";
const NOT_RESTORED: &str =
    "cannot restore a message that the disk lacks: its stream lacks it too, or it exceeds a segment";

/// Why a comparison has not come to its end.
#[derive(Debug, thiserror::Error)]
enum CompareError {
    /// Or its spool is closed already.
    #[error("the server is stopping")]
    Stopping,
    #[error("the lane is not this node's any more")]
    LaneLost,
    #[error("{0}")]
    Failed(String),
}

/// Compares, until it succeeds or the lane is lost. `last` is the last sequence of its stream before this
/// node claimed it.
pub(super) async fn compare(shared: Arc<NodeShared>, handle: LaneHandle, open: OpenLane, last: u64) {
    let lane = open.lane;
    if let Err(error) = compare_and_copy(&shared, &handle, open, last).await {
        let level = if matches!(error, CompareError::Failed(_)) { LogLevel::Warning } else { LogLevel::Info };
        shared.log(level, NOT_COMPARED, &[("lane", &lane), ("error", &error)]);
    }
}

async fn compare_and_copy(
    shared: &Arc<NodeShared>,
    handle: &LaneHandle,
    mut open: OpenLane,
    last: u64,
) -> Result<(), CompareError> {
    let replayed = read_stream(shared, handle, (open.lane, last)).await?;
    let Comparison { on_disk, lost, finished, proof } = Comparison::of(shared, &open, &replayed).await?;
    let restored: Vec<QueueId> = lost.keys().copied().collect();
    // Nothing is purged before the stream is seeded.
    restore_lost(shared, handle, (open.lane, last), lost).await?;
    let ReplayedLane { retention, recipients } = replayed;
    let changes = state_changes(shared, &retention, on_disk.iter().chain(&restored))?;
    handle.seed(retention, reader(shared));
    let missing = on_disk.iter().copied().filter(|id| !recipients.contains_key(id));
    let missing: Vec<QueueId> = missing.filter(|id| LaneId::epoch_of(*id) < open.compared_before).collect();
    log_comparison(shared, open.lane, [missing.len(), finished.len(), changes.len(), restored.len()]);
    note_missing(shared, handle, &mut open, &missing).await?;
    // The outcomes come last: the copies may be bounces that belong to them.
    let unreadable = copy_all(shared, handle, missing).await?;
    let count = |id: QueueId| recipients.get(&id).copied().unwrap_or_default();
    let finished = finished.into_iter().map(|id| (id, count(id))).collect();
    withdraw_finished(shared, handle, open.lane, finished).await.map_err(CompareError::Failed)?;
    // From here on the stream knows itself what the log proves.
    drop(proof);
    let changes = changes.into_iter().map(|(id, changes)| submit_changes(handle, id, changes));
    // What is late is queued, and before what follows.
    drop(stream::iter(changes).buffered(COPIES_IN_FLIGHT).collect::<Vec<_>>().await);
    copy_unreadable(shared, handle, unreadable).await?;
    handle.end_comparison();
    mark_copied(shared, handle, &open).await
}

/// When all that is queued is stored, others may take the lane over as usual.
async fn mark_copied(shared: &NodeShared, handle: &LaneHandle, open: &OpenLane) -> Result<(), CompareError> {
    // All that was read of the spool is true only if it is open.
    require_open(shared)?;
    announce_lease(handle, shared.parts.config.lease).await?;
    require_open(shared)?;
    if !open.is_copied {
        let text = "all mail of a lane has its second copy";
        shared.log(LogLevel::Info, text, &[("lane", &open.lane)]);
    }
    folders::mark_copied(&open.path, open.epoch).map_err(|error| CompareError::Failed(error.to_string()))
}

fn require_open(shared: &NodeShared) -> Result<(), CompareError> {
    if shared.is_open() { Ok(()) } else { Err(CompareError::Stopping) }
}

/// The same, for what goes on for as long as the node has the lane.
fn require_owned(shared: &NodeShared, handle: &LaneHandle) -> Result<(), CompareError> {
    match handle.ended().now_or_never() {
        Some(_) => Err(CompareError::LaneLost),
        None => require_open(shared),
    }
}

async fn announce_lease(handle: &LaneHandle, lease: Duration) -> Result<(), CompareError> {
    let (answer, announced) = answer_to_wait_for();
    handle.announce_lease(lease, answer);
    wait_for(announced).await.map_err(CompareError::Failed)
}

/// Notes that the stream has all acknowledged mail, or what it lacks: whatever becomes of this node, it finds
/// later what was never copied. Nothing is copied before.
async fn note_missing(
    shared: &NodeShared,
    handle: &LaneHandle,
    open: &mut OpenLane,
    missing: &[QueueId],
) -> Result<(), CompareError> {
    if open.is_copied && !missing.is_empty() {
        // It may have been acknowledged: nobody knows why the stream lacks it.
        open.is_copied = false;
        announce_lease(handle, COPYING_LEASE).await?;
    }
    let mut has_failed = false;
    loop {
        let noted = match open.is_copied {
            true => folders::mark_acknowledged(&open.path, open.epoch),
            false => folders::note_uncopied(&open.path, open.epoch, missing),
        };
        let Err(error) = noted else { return Ok(()) };
        if !std::mem::replace(&mut has_failed, true) {
            shared.log(LogLevel::Error, NOT_NOTED, &[("lane", &open.lane), ("error", &error)]);
        }
        sleep(RESTORE_RETRY_DELAY).await;
        require_owned(shared, handle)?;
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
    async fn of(shared: &NodeShared, opened: &OpenLane, replayed: &ReplayedLane) -> Result<Comparison, CompareError> {
        let (spool, lane) = (shared.spool.clone(), opened.lane);
        let known = move || {
            let spool = spool.upgrade()?;
            let on_disk: Vec<QueueId> = spool.ids().into_iter().filter(|id| LaneId::of(*id) == lane).collect();
            // After the ids: a message that is finished meanwhile is known to be.
            Some((on_disk, spool.take_finished(lane)))
        };
        let known = spawn_blocking(known).await.map_err(|error| CompareError::Failed(error.to_string()))?;
        let (on_disk, proof) = known.ok_or(CompareError::Stopping)?;
        // Without it, all that the disk does not have would count as lost, and be delivered again.
        let proof = proof.ok_or_else(|| CompareError::Failed("its log was compared before".into()))?;
        let (mut lost, mut finished) = (LostMessages::new(), Vec::new());
        for (id, recipients) in replayed.recipients.iter().filter(|(id, _)| on_disk.binary_search(id).is_err()) {
            let states = replayed.retention.states(*id).unwrap_or_default();
            match proof.unfinished_states(*id, *recipients, states) {
                Some(states) => drop(lost.insert(*id, states)),
                None => finished.push(*id),
            }
        }
        Ok(Comparison { on_disk, lost, finished, proof })
    }
}

/// Restores what the disk lacks; tries again until it succeeds.
async fn restore_lost(
    shared: &Arc<NodeShared>,
    handle: &LaneHandle,
    (lane, last): (LaneId, u64),
    mut lost: LostMessages,
) -> Result<(), CompareError> {
    if lost.is_empty() {
        return Ok(());
    }
    let text = "the disk lacks mail that the stream of its lane has; it is restored";
    shared.log(LogLevel::Warning, text, &[("lane", &lane), ("messages", &lost.len())]);
    let stream = shared.connection.lane_stream(lane);
    loop {
        require_owned(shared, handle)?;
        let (runtime, stream, spool) = (Handle::current(), stream.clone(), shared.spool.clone());
        let is_stopping = shared.stopping_check();
        let restoring = spawn_blocking(move || {
            let restored = lost_mail::restore(&runtime, &stream, last, &spool, &mut lost, &is_stopping);
            (restored, lost)
        });
        let (restored, left) = restoring.await.map_err(|error| CompareError::Failed(error.to_string()))?;
        let Err(error) = restored else {
            left.keys().for_each(|id| shared.log(LogLevel::Error, NOT_RESTORED, &[("id", id)]));
            return Ok(());
        };
        require_open(shared)?;
        shared.log(LogLevel::Error, RESTORE_FAILED, &[("lane", &lane), ("error", &error)]);
        lost = left;
        sleep(RESTORE_RETRY_DELAY).await;
    }
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

/// Reads messages of the spool while it is open. One that cannot be read keeps its place in the stream.
pub(super) fn reader(shared: &Arc<NodeShared>) -> Arc<dyn Fn(QueueId) -> Option<SpooledMessage> + Send + Sync> {
    let spool = shared.spool.clone();
    Arc::new(move |id| spool.upgrade()?.message(id).ok())
}

/// What the stream had before the claim.
async fn read_stream(
    shared: &Arc<NodeShared>,
    handle: &LaneHandle,
    (lane, last): (LaneId, u64),
) -> Result<ReplayedLane, CompareError> {
    let stream = shared.connection.lane_stream(lane);
    let mut has_failed = false;
    loop {
        require_owned(shared, handle)?;
        let (runtime, stream, is_stopping) = (Handle::current(), stream.clone(), shared.stopping_check());
        let replaying = spawn_blocking(move || replay(&runtime, &stream, last, None, &is_stopping));
        match replaying.await.map_err(|error| CompareError::Failed(error.to_string()))? {
            Ok(replayed) => return Ok(replayed),
            Err(error) if !has_failed => {
                let text = "cannot read the stream of a lane; trying again";
                shared.log(LogLevel::Warning, text, &[("lane", &lane), ("error", &error)]);
            }
            Err(_) => {}
        }
        has_failed = true;
        sleep(RETRY_DELAY).await;
    }
}

/// What the stream lacks of messages that it has.
fn state_changes<'a>(
    shared: &NodeShared,
    retention: &LaneRetention,
    ids: impl Iterator<Item = &'a QueueId>,
) -> Result<Vec<(QueueId, Vec<StateChange>)>, CompareError> {
    let mut changed = Vec::new();
    for id in ids {
        let Some(found) = retention.states(*id) else { continue };
        // It is not held, so that it can be closed meanwhile.
        let spool = shared.spool.upgrade().ok_or(CompareError::Stopping)?;
        let changes = StateChange::between(&found.into(), &spool.states(*id).into());
        changed.extend((!changes.is_empty()).then_some((*id, changes)));
    }
    Ok(changed)
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

/// Why a message was not copied.
enum CopyFailure {
    /// Its bytes are damaged: others need not wait for it.
    Unreadable(String),
    /// It may succeed later.
    Passing(String),
    Closed,
}

/// Copies messages with the states of their recipients, in their order, unless they are finished meanwhile; tries
/// again until it succeeds. Returns those whose bytes are damaged.
async fn copy_all(
    shared: &NodeShared,
    handle: &LaneHandle,
    mut missing: Vec<QueueId>,
) -> Result<Vec<QueueId>, CompareError> {
    let (mut unreadable, mut has_failed) = (Vec::new(), false);
    while let Some(error) = copy_until_failure(shared, handle, &mut missing, &mut unreadable).await? {
        if !std::mem::replace(&mut has_failed, true) {
            let text = "cannot copy mail of a lane to its stream; trying again";
            shared.log(LogLevel::Warning, text, &[("lane", &handle.lane()), ("error", &error)]);
        }
        sleep(RESTORE_RETRY_DELAY).await;
    }
    Ok(unreadable)
}

/// Copies until one fails, which is the last one then. Returns why; None: none is left.
async fn copy_until_failure(
    shared: &NodeShared,
    handle: &LaneHandle,
    missing: &mut Vec<QueueId>,
    unreadable: &mut Vec<QueueId>,
) -> Result<Option<String>, CompareError> {
    let copying = missing.clone().into_iter().map(|id| copy(shared, handle, id));
    let mut copies = stream::iter(copying).buffered(COPIES_IN_FLIGHT);
    let mut ended = 0;
    let failure = loop {
        require_owned(shared, handle)?;
        let Some(copied) = copies.next().await else { break None };
        match copied {
            Ok(()) => {}
            Err(CopyFailure::Unreadable(error)) => {
                shared.log(LogLevel::Error, UNREADABLE, &[("id", &missing[ended]), ("error", &error)]);
                unreadable.push(missing[ended]);
            }
            Err(CopyFailure::Closed) => return Err(CompareError::Stopping),
            Err(CopyFailure::Passing(error)) => break Some(error),
        }
        ended += 1;
    };
    drop(copies);
    missing.drain(..ended);
    if failure.is_some() {
        missing.rotate_left(1);
    }
    Ok(failure)
}

/// Tries to copy damaged messages, until they can be read or are finished: an attempt to deliver them sets them
/// aside. Until then, the stream lacks them, and the lane waits for this node.
async fn copy_unreadable(
    shared: &NodeShared,
    handle: &LaneHandle,
    mut unreadable: Vec<QueueId>,
) -> Result<(), CompareError> {
    while !unreadable.is_empty() {
        sleep(RESTORE_RETRY_DELAY).await;
        let mut left = Vec::new();
        for id in unreadable {
            require_owned(shared, handle)?;
            match copy(shared, handle, id).await {
                Ok(()) => {}
                Err(CopyFailure::Unreadable(_) | CopyFailure::Passing(_)) => left.push(id),
                Err(CopyFailure::Closed) => return Err(CompareError::Stopping),
            }
        }
        unreadable = left;
    }
    Ok(())
}

async fn copy(shared: &NodeShared, handle: &LaneHandle, id: QueueId) -> Result<(), CopyFailure> {
    let passing = |error: &dyn Display| CopyFailure::Passing(error.to_string());
    let spool = shared.spool.clone();
    let read = move || spool.upgrade().map(|spool| spool.message(id));
    let read = spawn_blocking(read).await.map_err(|error| passing(&error))?.ok_or(CopyFailure::Closed)?;
    let message = match read {
        Ok(message) => message,
        // It is finished.
        Err(ReadError::Unknown) => return Ok(()),
        Err(error @ ReadError::Unavailable(_)) => return Err(passing(&error)),
        Err(error @ ReadError::Damaged { .. }) => return Err(CopyFailure::Unreadable(error.to_string())),
    };
    let (body, (answer, stored)) = (message.body.clone(), answer_to_wait_for());
    handle.submit_missing(id, message, answer);
    let Err(error) = wait_for(stored).await else { return Ok(()) };
    match spawn_blocking(move || check_body(&body)).await {
        Ok(Err(damage)) => Err(CopyFailure::Unreadable(damage.to_string())),
        Ok(Ok(())) | Err(_) => Err(CopyFailure::Passing(error)),
    }
}

async fn submit_changes(handle: &LaneHandle, id: QueueId, changes: Vec<StateChange>) -> Result<(), String> {
    let (answer, stored) = answer_to_wait_for();
    handle.submit_changes(id, changes, answer);
    wait_for(stored).await
}

async fn submit(handle: &LaneHandle, lane: LaneId, entries: Vec<EntryDraft>) -> Result<(), String> {
    let (answer, stored) = answer_to_wait_for();
    handle.submit(BatchDraft { lane, entries }, answer);
    wait_for(stored).await
}

fn answer_to_wait_for() -> (StepAnswer, oneshot::Receiver<Result<(), String>>) {
    let (sender, answer) = oneshot::channel();
    (StepAnswer::new(move |result| drop(sender.send(result))), answer)
}

async fn wait_for(answer: oneshot::Receiver<Result<(), String>>) -> Result<(), String> {
    answer.await.unwrap_or_else(|_| Err("the lane's task gave no answer".into()))
}
