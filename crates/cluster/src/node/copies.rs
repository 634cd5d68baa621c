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

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use futures_util::{FutureExt, StreamExt, stream};
use mail::{LogLevel, QueueId};
use spool::{BatchDraft, EntryDraft, FinishedMessages, LaneId, RecipientState, SpooledMessage, StepAnswer};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::claim::OpenLane;
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

/// Compares, until it succeeds or the lane is lost. `last` is the last sequence of its stream before this
/// node claimed it.
pub(super) async fn compare(shared: Arc<NodeShared>, handle: LaneHandle, open: OpenLane, last: u64) {
    let Some(replayed) = read_stream(&shared, &handle, (open.lane, last)).await else { return };
    let Some(comparison) = Comparison::of(&shared, &open, &replayed).await else { return };
    let Comparison { on_disk, lost, finished, proof } = comparison;
    let restored: Vec<QueueId> = lost.keys().copied().collect();
    // Nothing is purged before the stream is seeded.
    if !restore_lost(&shared, &handle, (open.lane, last), lost).await {
        return;
    }
    let ReplayedLane { retention, recipients } = replayed;
    let changes = on_disk.iter().chain(&restored).map(|id| (*id, state_changes(&shared, &retention, *id)));
    let changes: Vec<_> = changes.filter(|(_, changes)| !changes.is_empty()).collect();
    handle.seed(retention, reader(&shared));
    let missing = on_disk.iter().copied().filter(|id| !recipients.contains_key(id));
    let missing: Vec<QueueId> = missing.filter(|id| LaneId::epoch_of(*id) < open.compared_before).collect();
    log_comparison(&shared, open.lane, [missing.len(), finished.len(), changes.len(), restored.len()]);
    if !open.is_copied && !note_uncopied(&shared, &open, &missing) {
        return;
    }
    // The outcomes come last: the copies may be bounces that belong to them.
    if !copy_all(&shared, &handle, missing).await {
        return;
    }
    let count = |id: QueueId| recipients.get(&id).copied().unwrap_or_default();
    let finished = finished.into_iter().map(|id| (id, count(id))).collect();
    if withdraw_finished(&shared, &handle, open.lane, finished).await.is_err() {
        return;
    }
    // From here on the stream knows itself what the log proves.
    drop(proof);
    let changes = changes.into_iter().map(|(id, changes)| submit_changes(&handle, id, changes));
    // What is late is queued, and before what follows.
    drop(stream::iter(changes).buffered(COPIES_IN_FLIGHT).collect::<Vec<_>>().await);
    handle.end_comparison();
    if let Err(error) = mark_copied(&shared, &handle, &open).await {
        let text = "not all mail of a lane was copied to its stream; this is tried again at the next start";
        shared.log(LogLevel::Warning, text, &[("lane", &open.lane), ("error", &error)]);
    }
}

/// When all that is queued is stored, others may take the lane over as usual.
async fn mark_copied(shared: &NodeShared, handle: &LaneHandle, open: &OpenLane) -> Result<(), String> {
    let (answer, announced) = answer_to_wait_for();
    handle.announce_lease(shared.parts.config.lease, answer);
    wait_for(announced).await?;
    if !open.is_copied {
        let text = "all mail of a lane has its second copy";
        shared.log(LogLevel::Info, text, &[("lane", &open.lane)]);
    }
    folders::mark_copied(&open.path, open.epoch).map_err(|error| error.to_string())
}

/// Whatever becomes of this node, it finds later what was never copied. Without that, nothing is copied: the
/// lane stays with this node.
fn note_uncopied(shared: &NodeShared, open: &OpenLane, missing: &[QueueId]) -> bool {
    let noted = folders::note_uncopied(&open.path, open.epoch, missing);
    if let Err(error) = &noted {
        let text = "cannot note which mail of a lane has to be copied; it is copied at the next start";
        shared.log(LogLevel::Error, text, &[("lane", &open.lane), ("error", error)]);
    }
    noted.is_ok()
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
    async fn of(shared: &NodeShared, opened: &OpenLane, replayed: &ReplayedLane) -> Option<Comparison> {
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
    (lane, last): (LaneId, u64),
    mut lost: LostMessages,
) -> bool {
    if lost.is_empty() {
        return true;
    }
    let text = "the disk lacks mail that the stream of its lane has; it is restored";
    shared.log(LogLevel::Warning, text, &[("lane", &lane), ("messages", &lost.len())]);
    let stream = shared.connection.lane_stream(lane);
    while handle.ended().now_or_never().is_none() {
        let (runtime, stream, spool) = (Handle::current(), stream.clone(), shared.spool.clone());
        let is_stopping = shared.stopping_check();
        let restoring = spawn_blocking(move || {
            let restored = lost_mail::restore(&runtime, &stream, last, &spool, &mut lost, &is_stopping);
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
        shared.log(LogLevel::Error, RESTORE_FAILED, &[("lane", &lane), ("error", &error)]);
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
async fn read_stream(
    shared: &Arc<NodeShared>,
    handle: &LaneHandle,
    (lane, last): (LaneId, u64),
) -> Option<ReplayedLane> {
    let stream = shared.connection.lane_stream(lane);
    let mut has_failed = false;
    while handle.ended().now_or_never().is_none() {
        let (runtime, stream, is_stopping) = (Handle::current(), stream.clone(), shared.stopping_check());
        match spawn_blocking(move || replay(&runtime, &stream, last, None, &is_stopping)).await.ok()? {
            Ok(replayed) => return Some(replayed),
            Err(error) if !has_failed => {
                let text = "cannot read the stream of a lane; trying again";
                shared.log(LogLevel::Warning, text, &[("lane", &lane), ("error", &error)]);
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

/// Copies messages with the states of their recipients, in their order, unless they are finished meanwhile; tries
/// again until it succeeds. False: the lane is lost, or the server stops.
async fn copy_all(shared: &NodeShared, handle: &LaneHandle, mut missing: Vec<QueueId>) -> bool {
    let mut has_failed = false;
    while handle.ended().now_or_never().is_none() && !shared.stopping.load(Relaxed) {
        let ids = missing.clone();
        let mut copies = stream::iter(ids.into_iter().map(|id| copy(shared, handle, id))).buffered(COPIES_IN_FLIGHT);
        let mut copied = 0;
        let failure = loop {
            match copies.next().await {
                None => return true,
                Some(Ok(())) => copied += 1,
                Some(Err(error)) => break error,
            }
        };
        drop(copies);
        missing.drain(..copied);
        if !std::mem::replace(&mut has_failed, true) {
            let text = "cannot copy mail of a lane to its stream; trying again";
            shared.log(LogLevel::Warning, text, &[("lane", &handle.lane()), ("error", &failure)]);
        }
        sleep(RESTORE_RETRY_DELAY).await;
    }
    false
}

async fn copy(shared: &NodeShared, handle: &LaneHandle, id: QueueId) -> Result<(), String> {
    let spool = shared.spool.clone();
    let read = move || spool.upgrade().and_then(|spool| spool.message(id).ok());
    let Some(message) = spawn_blocking(read).await.map_err(|error| error.to_string())? else { return Ok(()) };
    let (answer, stored) = answer_to_wait_for();
    handle.submit_missing(id, message, answer);
    wait_for(stored).await
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
