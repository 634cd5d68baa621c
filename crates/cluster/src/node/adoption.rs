//! Takes over a lane: claims it, restores it from its stream into a folder, and hands its live
//! messages to the scheduler. Once it is claimed, it is this node's, so what fails after that is
//! tried again until it succeeds or another node claims the lane.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use futures_util::FutureExt;
use mail::LogLevel;
use spool::{Disk, FolderDisk, LaneId, LaneRestorer, LiveMessage, RestoreError, Spool};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::claim::{EndFailure, claim, end_of, is_closed, take_up};
use super::copies::reader;
use super::folders::{mark_copied, mark_finished};
use super::forgetting::require_standstill;
use super::replay::{ReplayFailure, ReplayedLane, replay};
use super::{ClusterNode, ForgetError, NodeShared, RESTORE_RETRY_DELAY};
use crate::jetstream::parse_lane;
use crate::lane::{StreamTail, TailFailure};
use crate::{LaneHandle, LaneStream, NodeEntry, NodeName};

/// So many messages are handed to the scheduler at once.
const ADMITTED_AT_ONCE: usize = 1000;

/// The last owner of a lane may have given ids of later epochs than those in its stream, if that does not name it.
const EPOCHS_SKIPPED: u32 = 1000;

/// What became of an attempt to adopt a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Adoption {
    /// The lane is this node's, or was.
    Done,
    /// Its owner is alive, or another node was faster.
    Refused,
    /// It is not known how its stream ends.
    Unknown(EndFailure),
}

/// Why a lane was not taken over by hand.
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    /// The text is not a lane.
    #[error("'{0}' is not a lane: give one as `mailrace cluster status` shows it")]
    NotALane(String),
    /// It has no stream.
    #[error("lane {0} has no stream in this cluster")]
    NoStream(LaneId),
    /// This node has it.
    #[error("this node owns lane {0}, or is taking it over")]
    Ours(LaneId),
    /// Its owner writes its entry.
    #[error("node {1}, which owns lane {0}, is alive: `mailrace cluster drain` there hands it over")]
    OwnerAlive(LaneId, NodeName),
    /// Another node was faster, or the owner has written meanwhile.
    #[error("lane {0} was not taken over: its owner is alive, or another node was faster")]
    Refused(LaneId),
    /// It is not known who owns it.
    #[error("cannot read the state of the cluster: {0}")]
    Unavailable(String),
}

impl ClusterNode {
    /// Takes over a lane now, without waiting until its lease is over. Its owner must not have written
    /// its entry lately. Returns when the lane is claimed; its mail follows.
    ///
    /// # Errors
    ///
    /// See [`AdoptError`].
    pub fn adopt(&self, lane: &str) -> Result<(), AdoptError> {
        let lane = parse_lane(lane).ok_or_else(|| AdoptError::NotALane(lane.to_owned()))?;
        let nodes = self.nodes().map_err(|error| AdoptError::Unavailable(error.to_string()))?;
        self.thread.handle().block_on(adopt_by_hand(self.shared.clone(), lane, nodes))
    }
}

async fn adopt_by_hand(
    shared: Arc<NodeShared>,
    lane: LaneId,
    nodes: Vec<(NodeName, NodeEntry)>,
) -> Result<(), AdoptError> {
    if shared.owns(lane) {
        return Err(AdoptError::Ours(lane));
    }
    let stream = shared.connection.lane_stream(lane);
    let (tail, newest) = match end_of(&stream).await {
        Ok(end) => end,
        Err(EndFailure::OwnerUnknown(tail)) => {
            require_no_owner(&shared, lane).await?;
            (tail, None)
        }
        Err(EndFailure::Stream(TailFailure::NoStream)) => return Err(AdoptError::NoStream(lane)),
        Err(failure) => return Err(AdoptError::Unavailable(failure.to_string())),
    };
    // Of a lane of its own that it has no disk of, this node is no living owner.
    let owner = newest.map(|newest| newest.record.node).filter(|owner| *owner != shared.parts.config.node);
    if let Some(owner) = owner.filter(|owner| nodes.iter().any(|(name, _)| name == owner)) {
        return Err(AdoptError::OwnerAlive(lane, owner));
    }
    let (claimed, waiter) = oneshot::channel();
    tokio::spawn(async move { adopt_and_tell(&shared, &stream, tail, Some(claimed)).await });
    match waiter.await {
        Ok(()) => Ok(()),
        // The claim has failed.
        Err(_) => Err(AdoptError::Refused(lane)),
    }
}

/// An owner that lives says within its lease whose the lane is.
async fn require_no_owner(shared: &NodeShared, lane: LaneId) -> Result<(), AdoptError> {
    match require_standstill(shared, &[lane]).await {
        Ok(()) => Ok(()),
        Err(ForgetError::Moves(lane)) => Err(AdoptError::Refused(lane)),
        Err(error) => Err(AdoptError::Unavailable(error.to_string())),
    }
}

/// Adopts a lane as it is at `tail`.
pub(super) async fn adopt(shared: &Arc<NodeShared>, stream: &LaneStream, tail: StreamTail) -> Adoption {
    adopt_and_tell(shared, stream, tail, None).await
}

/// The same; tells when the lane is claimed. Who waits for that may take a lane that names no owner.
async fn adopt_and_tell(
    shared: &Arc<NodeShared>,
    stream: &LaneStream,
    tail: StreamTail,
    claimed: Option<oneshot::Sender<()>>,
) -> Adoption {
    let lane = stream.lane();
    // The epoch of the last owner's spool has to be known: ids that it has given are not given again.
    let (now, newest) = match end_of(stream).await {
        Ok(end) => end,
        Err(EndFailure::OwnerUnknown(tail)) if claimed.is_some() => (tail, None),
        Err(failure) => return Adoption::Unknown(failure),
    };
    if now.last_sequence != tail.last_sequence {
        return Adoption::Refused;
    }
    match is_closed(&shared.connection, lane).await {
        Ok(false) => {}
        Ok(true) => return remove_closed(stream).await,
        Err(failure) => return Adoption::Unknown(failure.into()),
    }
    // Whoever has made an empty stream has all mail of the lane on its disk.
    if tail.last_sequence == 0 {
        return Adoption::Refused;
    }
    let spool_epoch = match &newest {
        Some(newest) => newest.record.spool_epoch,
        None => match highest_epoch(shared, stream, tail.last_sequence).await {
            Some(epoch) => epoch.saturating_add(EPOCHS_SKIPPED),
            None => return Adoption::Refused,
        },
    };
    let lease = shared.parts.config.lease;
    // The folder is created in the next epoch, and opened in the one after it.
    let handle = claim(shared, stream.clone(), (&tail, newest.as_ref()), spool_epoch.saturating_add(2), lease);
    shared.adopting.lock().insert(lane);
    if handle.claimed().await.is_err() {
        shared.adopting.lock().remove(&lane);
        return Adoption::Refused;
    }
    take_up(shared, &handle);
    shared.adopted.lock().insert(lane);
    // Whoever waits for it may be gone.
    let _ = claimed.map(|claimed| claimed.send(()));
    shared.counters.takeovers.fetch_add(1, Relaxed);
    shared.log(LogLevel::Warning, "taking over a lane", &[("lane", &lane)]);
    restore_until_done(shared, stream, &handle, (tail.last_sequence, spool_epoch)).await;
    shared.adopting.lock().remove(&lane);
    Adoption::Done
}

/// The highest epoch of an id in a stream; None: it cannot be read.
async fn highest_epoch(shared: &Arc<NodeShared>, stream: &LaneStream, last: u64) -> Option<u32> {
    let (runtime, stream, is_stopping) = (Handle::current(), stream.clone(), shared.stopping_check());
    let replayed = spawn_blocking(move || replay(&runtime, &stream, last, None, &is_stopping)).await.ok()?.ok()?;
    Some(replayed.recipients.keys().map(|id| LaneId::epoch_of(*id)).max().unwrap_or(0))
}

/// Removes the stream of a closed lane: who closed it has failed to do so, or a start has made it anew.
async fn remove_closed(stream: &LaneStream) -> Adoption {
    // If it fails, it is tried again.
    drop(stream.delete().await);
    Adoption::Refused
}

async fn restore_until_done(
    shared: &Arc<NodeShared>,
    stream: &LaneStream,
    handle: &LaneHandle,
    (last, spool_epoch): (u64, u32),
) {
    let (begin, lane) = (Instant::now(), stream.lane());
    while handle.ended().now_or_never().is_none() {
        let (runtime, restoring) = (Handle::current(), LaneRestoration::new(shared, stream, last, spool_epoch));
        let error = match spawn_blocking(move || restoring.run(&runtime)).await {
            Ok(Ok(Some((replayed, messages)))) => {
                handle.seed(replayed.retention, reader(shared));
                // All that is here came from the stream.
                handle.end_comparison();
                let took = format!("{:.1}s", begin.elapsed().as_secs_f64());
                let fields: [(&'static str, &dyn std::fmt::Display); 3] =
                    [("lane", &lane), ("messages", &messages), ("took", &took)];
                shared.log(LogLevel::Info, "took over a lane", &fields);
                return;
            }
            // The server is stopping.
            Ok(Ok(None)) => return,
            Ok(Err(ReplayFailure::Stopped)) => return,
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        let text = "cannot restore a lane; its mail waits";
        shared.log(LogLevel::Error, text, &[("lane", &lane), ("error", &error)]);
        sleep(RESTORE_RETRY_DELAY).await;
    }
}

/// The restoration of a lane, on a blocking thread.
struct LaneRestoration {
    shared: Arc<NodeShared>,
    stream: LaneStream,
    /// The last sequence of the stream before the claim.
    last: u64,
    /// The epoch of the last owner's spool.
    spool_epoch: u32,
}

impl LaneRestoration {
    fn new(shared: &Arc<NodeShared>, stream: &LaneStream, last: u64, spool_epoch: u32) -> Self {
        LaneRestoration { shared: shared.clone(), stream: stream.clone(), last, spool_epoch }
    }

    /// Returns what the stream has, and the number of live messages. None: the spool is closed.
    fn run(&self, runtime: &Handle) -> Result<Option<(ReplayedLane, usize)>, ReplayFailure> {
        let (shared, lane) = (&self.shared, self.stream.lane());
        let path = shared.folders.create_adopted(lane)?;
        let replayed = self.restore(runtime, lane, &path)?;
        let Some(spool) = shared.spool.upgrade() else { return Ok(None) };
        let count = open_adopted(shared, &spool, &path)?;
        // From here on it is as if it had always been here; all of it came from the stream.
        let marked = mark_copied(&path, self.spool_epoch.saturating_add(2)).and_then(|()| mark_finished(&path));
        if let Err(error) = marked {
            let text = "cannot mark an adopted lane as complete; the next start restores it again";
            shared.log(LogLevel::Warning, text, &[("folder", &path.display()), ("error", &error)]);
        }
        Ok(Some((replayed, count)))
    }

    fn restore(&self, runtime: &Handle, lane: LaneId, path: &Path) -> Result<ReplayedLane, ReplayFailure> {
        let disk: Arc<dyn Disk> = Arc::new(FolderDisk::open(path)?);
        let parts = &self.shared.parts;
        let config = spool::Config { segment_bytes: parts.segment_bytes, ..spool::Config::default() };
        let restorer = LaneRestorer::create(disk, lane, self.spool_epoch, config, (parts.random)())?;
        let replayed = replay(runtime, &self.stream, self.last, Some(&restorer), &*self.shared.stopping_check())?;
        restorer.finish()?;
        Ok(replayed)
    }
}

/// Opens a restored lane, and hands its messages on in parts. Returns their number.
fn open_adopted(shared: &NodeShared, spool: &Arc<Spool>, path: &Path) -> Result<usize, ReplayFailure> {
    let (mut count, mut part) = (0, Vec::new());
    let mut take = |live: LiveMessage| {
        count += 1;
        part.push(live);
        if part.len() == ADMITTED_AT_ONCE {
            (shared.admit)(std::mem::take(&mut part));
        }
    };
    let adopted = spool.adopt(Arc::new(FolderDisk::open(path)?), &mut take);
    // All of it came from the stream, so there is nothing to compare.
    drop(spool.take_finished(adopted.map_err(RestoreError::from)?));
    (shared.admit)(part);
    Ok(count)
}
