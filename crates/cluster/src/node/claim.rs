//! The claim of a lane: what has to be known of its stream before, and what begins with it.

use std::fmt::Display;
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mail::{LogLevel, ServerLog};
use spool::LaneId;
use tokio::runtime::Handle;
use tokio::time::sleep;

use super::{NodeError, NodeShared, RETRY_DELAY, folders};
use crate::clock::boot_time;
use crate::lane::owner::{Claim, LaneOwner};
use crate::lane::ownership::LaneGone;
use crate::lane::{COPYING_LEASE, StreamTail, TailFailure};
use crate::{Connection, LaneHandle, LaneStream, LaneTask, NewestEpoch};

/// Bytes of a lane's records that are on their way at the same time.
const IN_FLIGHT_BYTES_MAX: u64 = 8 << 20;

/// Why it is not known how a stream ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum EndFailure {
    #[error("{0}")]
    Stream(#[from] TailFailure),
    #[error("the servers of a stream do not agree on its last epoch yet")]
    Disagreement,
    /// The servers have lost the owner's Epoch and Renew records.
    #[error(
        "the stream has no record of its owner; if it stays so, use `mailrace cluster adopt` or `forget` with the lane"
    )]
    OwnerUnknown(StreamTail),
}

/// So often is asked for the owner of a stream that names none, before the node with its disk claims it.
const UNKNOWN_OWNER_TRIES: usize = 20;

/// A lane on a disk of this node, which is open.
pub(super) struct OpenLane {
    pub(super) lane: LaneId,
    /// The epoch of its spool.
    pub(super) epoch: u32,
    /// Its folder.
    pub(super) path: PathBuf,
    /// The stream has all mail that was acknowledged before this epoch, and the rest gets its copies at once.
    pub(super) is_copied: bool,
    /// Nothing was ever acknowledged in it.
    is_new: bool,
    /// Messages of earlier epochs than this one are compared with the stream.
    pub(super) compared_before: u32,
}

impl OpenLane {
    /// A lane that is claimed before it gets new mail.
    pub(super) fn reopened(lane: LaneId, epoch: u32, path: PathBuf, is_copied: bool) -> OpenLane {
        OpenLane { lane, epoch, path, is_copied, is_new: false, compared_before: epoch }
    }

    /// A lane that the spool has made, and that is claimed before it gets mail.
    pub(super) fn new(lane: LaneId, epoch: u32, path: PathBuf) -> OpenLane {
        OpenLane { lane, epoch, path, is_copied: true, is_new: true, compared_before: epoch }
    }

    /// A lane that got mail without copies.
    pub(super) fn local(lane: LaneId, epoch: u32, path: PathBuf) -> OpenLane {
        OpenLane { lane, epoch, path, is_copied: false, is_new: false, compared_before: epoch.saturating_add(1) }
    }

    /// What was copied was in a stream that is gone: all mail has to be compared, and moved if the lane is lost.
    fn forget_copies(&mut self) -> Result<(), NodeError> {
        self.is_copied = false;
        let failed = |error: std::io::Error| NodeError::Folder { path: self.path.clone(), error: error.into() };
        folders::forget_copies(&self.path).map_err(failed)
    }
}

/// Claims a lane whose disk this node has, and returns the last sequence of its stream before the claim.
pub(super) async fn claim_own(shared: &Arc<NodeShared>, open: &mut OpenLane) -> Result<(LaneHandle, u64), NodeError> {
    let lane = open.lane;
    let stream = shared.connection.lane_stream(lane);
    let log = &*shared.parts.log;
    let ensure = async || match stream.ensure().await {
        Err(error) if error.is_temporary() => Err(error),
        ensured => Ok(ensured),
    };
    until_answered(log, ensure).await?;
    let (tail, newest) = end_of_own(&stream, log).await;
    if let Some(other) = newest.as_ref().filter(|newest| newest.record.node != shared.parts.config.node) {
        return Err(NodeError::LaneLost { lane, reason: format!("node {}", other.record.node) });
    }
    // The stream may have been deleted since the start began, and made anew just now.
    if newest.is_none() && until_answered(log, || is_closed(&shared.connection, lane)).await {
        return Err(NodeError::LaneLost { lane, reason: LaneGone::Closed.to_string() });
    }
    if newest.is_none() && !open.is_new {
        open.forget_copies()?;
    }
    let lease = if open.is_copied { shared.parts.config.lease } else { COPYING_LEASE };
    let handle = claim(shared, stream, (&tail, newest.as_ref()), open.epoch, lease);
    match handle.claimed().await {
        Ok(_) => Ok((handle, tail.last_sequence)),
        Err(end) => Err(NodeError::LaneLost { lane, reason: end.to_string() }),
    }
}

/// Begins to claim a lane whose stream ends like this.
pub(super) fn claim(
    shared: &NodeShared,
    stream: LaneStream,
    (tail, newest): (&StreamTail, Option<&NewestEpoch>),
    spool_epoch: u32,
    announced_lease: Duration,
) -> LaneHandle {
    let config = &shared.parts.config;
    let claim = Claim {
        epoch: newest.map(|newest| newest.header.epoch).max(tail.record.map(|record| record.epoch)).unwrap_or(0) + 1,
        token: (shared.parts.random)(),
        node: config.node.clone(),
        spool_epoch,
        last_sequence: tail.last_sequence,
        announced_lease,
    };
    let owner = LaneOwner::claim(config.lane_times(), IN_FLIGHT_BYTES_MAX, claim, boot_time());
    LaneTask::start(&Handle::current(), stream, owner)
}

/// The end of the stream of a lane that is on this node's disk. If the stream never says who owns it, this
/// node does: it is fenced like everybody else if that is wrong.
async fn end_of_own(stream: &LaneStream, log: &dyn ServerLog) -> (StreamTail, Option<NewestEpoch>) {
    for _ in 0..UNKNOWN_OWNER_TRIES {
        let end = async || match end_of(stream).await {
            Err(EndFailure::OwnerUnknown(tail)) => Ok(Err(tail)),
            end => end.map(Ok),
        };
        if let Ok(end) = until_answered(log, end).await {
            return end;
        }
        sleep(RETRY_DELAY).await;
    }
    let text = "the stream of a lane does not say who owns it; this node has its disk, and claims it";
    log.event(LogLevel::Warning, text, &[("lane", &stream.lane())]);
    let tail = until_answered(log, || stream.tail()).await;
    (tail, None)
}

/// The end of a stream, and the newest epoch up to there. They are asked one after the other, maybe
/// of different servers: if the last record is of a later epoch, they do not belong together.
pub(super) async fn end_of(stream: &LaneStream) -> Result<(StreamTail, Option<NewestEpoch>), EndFailure> {
    let tail = stream.tail().await?;
    let newest = newest_epoch(stream).await?;
    match (tail.record.as_ref(), newest.as_ref()) {
        (Some(_), None) => Err(EndFailure::OwnerUnknown(tail)),
        (Some(last), Some(newest)) if last.epoch > newest.header.epoch => Err(EndFailure::Disagreement),
        _ => Ok((tail, newest)),
    }
}

/// The newest epoch of a stream; None also if there is no stream.
pub(super) async fn newest_epoch(stream: &LaneStream) -> Result<Option<NewestEpoch>, TailFailure> {
    match stream.newest_epoch().await {
        Err(TailFailure::NoStream) => Ok(None),
        newest => newest,
    }
}

/// Whether the lane is closed.
pub(super) async fn is_closed(connection: &Connection, lane: LaneId) -> Result<bool, TailFailure> {
    Ok(connection.is_closed(lane).await?)
}

/// Routes the batches of a claimed lane, and watches over its end.
pub(super) fn take_up(shared: &Arc<NodeShared>, handle: &LaneHandle) {
    shared.step.insert(handle.lane(), handle.clone());
    tokio::spawn(shared.clone().report_loss(handle.clone()));
}

/// Logs that the servers are waited for.
pub(super) fn log_wait(log: &dyn ServerLog, error: &dyn Display) {
    let text = "waiting for the NATS servers: nothing is accepted or delivered before they answer";
    log.event(LogLevel::Warning, text, &[("error", error)]);
}

/// Sends a request until it is answered. A failure is logged when it is another one than before.
pub(super) async fn until_answered<T, E: Display, F>(log: &dyn ServerLog, request: impl Fn() -> F) -> T
where
    F: Future<Output = Result<T, E>>,
{
    let mut logged = None;
    loop {
        match request().await.map_err(|error| error.to_string()) {
            Ok(answer) => return answer,
            Err(error) if logged.as_ref() != Some(&error) => {
                log_wait(log, &error);
                logged = Some(error);
            }
            Err(_) => {}
        }
        sleep(RETRY_DELAY).await;
    }
}
