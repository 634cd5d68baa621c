//! Forgets a node that never comes back, or a lane that nobody can take over, when an operator says so.
//!
//! Mail that is only in the stream of a lane is given up with it, so a stream is deleted only by force. A
//! deleted stream is not noted as closed: if its owner does come back with its disk, it delivers what it has.
//! The entries of the nodes are not enough to know who is alive: one may be missing for a while. So the end of
//! the stream has to stand still for a lease before, as for a node that takes over.

use std::sync::Arc;
use std::time::Duration;

use mail::LogLevel;
use spool::LaneId;
use tokio::time::sleep;

use super::claim::newest_epoch;
use super::{ClusterNode, NodeShared};
use crate::jetstream::parse_lane;
use crate::lane::{LEASE_MAX, TailFailure};
use crate::{LaneStream, NodeEntry, NodeName};

/// Why nothing was forgotten.
#[derive(Debug, thiserror::Error)]
pub enum ForgetError {
    /// The text is neither.
    #[error("'{0}' is neither a lane nor the name of a node")]
    Unknown(String),
    /// The node writes its entry.
    #[error("node {0} is alive: stop it, or use `mailrace cluster drain` there")]
    Alive(NodeName),
    /// This node has the lane.
    #[error("this node owns lane {0}, or is taking it over")]
    Ours(LaneId),
    /// Its stream has new records.
    #[error("lane {0} is alive: its owner writes to its stream")]
    Moves(LaneId),
    /// There is no such lane.
    #[error("lane {0} has no stream in this cluster")]
    NoStream(LaneId),
    /// Lanes would go with their mail.
    #[error("no node has taken over {}: their mail would be lost; wait, or use --force", list(.0))]
    HasLanes(Vec<LaneId>),
    /// The servers do not answer.
    #[error("cannot read or change the state of the cluster: {0}")]
    Unavailable(String),
}

fn list(lanes: &[LaneId]) -> String {
    let names: Vec<String> = lanes.iter().map(LaneId::to_string).collect();
    format!("lane {}", names.join(", "))
}

impl ClusterNode {
    /// Forgets a node, by its name, or a lane. With `force`, deletes the streams of lanes that no living
    /// node has, with their mail. Returns these lanes.
    ///
    /// # Errors
    ///
    /// See [`ForgetError`].
    pub fn forget(&self, target: &str, force: bool) -> Result<Vec<LaneId>, ForgetError> {
        let nodes = self.nodes().map_err(unavailable)?;
        let shared = self.shared.clone();
        self.thread.handle().block_on(async move {
            match (parse_lane(target), target.parse::<NodeName>()) {
                (Some(lane), _) => forget_lane(&shared, lane, &nodes, force).await,
                (None, Ok(node)) => forget_node(&shared, node, &nodes, force).await,
                (None, Err(_)) => Err(ForgetError::Unknown(target.to_owned())),
            }
        })
    }
}

async fn forget_node(
    shared: &Arc<NodeShared>,
    node: NodeName,
    nodes: &[(NodeName, NodeEntry)],
    force: bool,
) -> Result<Vec<LaneId>, ForgetError> {
    if nodes.iter().any(|(alive, _)| *alive == node) {
        return Err(ForgetError::Alive(node));
    }
    let mut lanes = Vec::new();
    for lane in shared.connection.lanes().await.map_err(unavailable)? {
        let newest = newest_epoch(&shared.connection.lane_stream(lane)).await.map_err(unavailable)?;
        if newest.is_some_and(|newest| newest.record.node == node) {
            lanes.push(lane);
        }
    }
    delete_streams(shared, lanes, force).await
}

async fn forget_lane(
    shared: &Arc<NodeShared>,
    lane: LaneId,
    nodes: &[(NodeName, NodeEntry)],
    force: bool,
) -> Result<Vec<LaneId>, ForgetError> {
    if shared.owns(lane) {
        return Err(ForgetError::Ours(lane));
    }
    if !shared.connection.lanes().await.map_err(unavailable)?.contains(&lane) {
        return Err(ForgetError::NoStream(lane));
    }
    let owner = match newest_epoch(&shared.connection.lane_stream(lane)).await {
        Ok(newest) => newest.map(|newest| newest.record.node),
        // A lane whose records cannot be read is one that has to be forgotten.
        Err(TailFailure::Unreadable { .. }) => None,
        Err(failure) => return Err(unavailable(failure)),
    };
    match owner.filter(|owner| nodes.iter().any(|(alive, _)| alive == owner)) {
        Some(owner) => Err(ForgetError::Alive(owner)),
        None => delete_streams(shared, vec![lane], force).await,
    }
}

/// Refuses if a lane has an owner that writes to it. Takes longer than the longest of their leases.
pub(super) async fn require_standstill(shared: &NodeShared, lanes: &[LaneId]) -> Result<(), ForgetError> {
    let own_times = shared.parts.config.lane_times();
    let (mut before, mut wait) = (Vec::new(), Duration::ZERO);
    for lane in lanes {
        let stream = shared.connection.lane_stream(*lane);
        before.push((*lane, end_of_stream(&stream).await?));
        // An owner that announces a longer one delivers by its usual one.
        let lease = match newest_epoch(&stream).await {
            Ok(newest) => newest.map(|newest| newest.record.lease.min(LEASE_MAX)),
            // Nobody knows it.
            Err(TailFailure::Unreadable { .. }) => None,
            Err(failure) => return Err(unavailable(failure)),
        };
        let times = lease.map_or(own_times, |lease| own_times.with_lease(lease));
        wait = wait.max(times.lease + times.margin);
    }
    sleep(wait).await;
    for (lane, end) in before {
        if end_of_stream(&shared.connection.lane_stream(lane)).await? != end {
            return Err(ForgetError::Moves(lane));
        }
    }
    Ok(())
}

/// The last record, also if it cannot be read.
async fn end_of_stream(stream: &LaneStream) -> Result<Option<u64>, ForgetError> {
    match stream.tail().await {
        Ok(tail) => Ok(Some(tail.last_sequence)),
        Err(TailFailure::Unreadable { sequence, .. }) => Ok(Some(sequence)),
        Err(TailFailure::NoStream) => Ok(None),
        Err(TailFailure::Unavailable) => Err(unavailable(TailFailure::Unavailable)),
    }
}

async fn delete_streams(shared: &NodeShared, lanes: Vec<LaneId>, force: bool) -> Result<Vec<LaneId>, ForgetError> {
    if !force && !lanes.is_empty() {
        return Err(ForgetError::HasLanes(lanes));
    }
    require_standstill(shared, &lanes).await?;
    for lane in &lanes {
        shared.connection.lane_stream(*lane).delete().await.map_err(unavailable)?;
        shared.log(LogLevel::Warning, "forgot a lane, and all mail that only its stream had", &[("lane", lane)]);
    }
    Ok(lanes)
}

fn unavailable(error: impl std::fmt::Display) -> ForgetError {
    ForgetError::Unavailable(error.to_string())
}
