//! How a node is doing: what its metrics show.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::ClusterNode;
use crate::LaneStatus;

/// The figures of a node. Counters count since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeFigures {
    /// Whether a server is connected.
    pub connected: bool,
    /// How often the connection broke.
    pub disconnections: u64,
    /// Bytes sent to the servers.
    pub bytes_sent: u64,
    /// Bytes received from them.
    pub bytes_received: u64,
    /// How long they took to store the last entry of this node; None: none is stored.
    pub round_trip: Option<Duration>,
    /// Nodes that are alive, as far as this one knows.
    pub nodes: u64,
    /// Lanes of the own spool.
    pub lanes_own: u64,
    /// Lanes that were taken over.
    pub lanes_adopted: u64,
    /// Lanes without a stream.
    pub lanes_local: u64,
    /// Lanes of other nodes.
    pub lanes_watched: u64,
    /// Owned lanes whose lease is over.
    pub lanes_without_lease: u64,
    /// The shortest lease of an owned lane; None without a lane.
    pub lease_left_min: Option<Duration>,
    /// The sums over the owned lanes. The lease and the claim are not set.
    pub sums: LaneStatus,
    /// Batches that were confirmed without a second copy.
    pub local_batches: u64,
    /// Lanes that were taken over since the start.
    pub takeovers: u64,
    /// Departures of shared rates that were granted by the order of all requests.
    pub departures_shared: u64,
    /// Departures of the own part of them.
    pub departures_own_part: u64,
    /// Slots of shared next hops that may be used now, by the table of all nodes.
    pub slots_shared: u64,
    /// Those of the own part, while no server answers.
    pub slots_own_part: u64,
    /// Slots that others held when this node asked for them.
    pub slots_refused: u64,
}

/// What is counted beside the lanes.
#[derive(Default)]
pub(super) struct NodeCounters {
    /// Microseconds; 0: no entry is stored.
    round_trip: AtomicU64,
    nodes: AtomicU64,
    pub(super) takeovers: AtomicU64,
}

impl NodeCounters {
    pub(super) fn set_round_trip(&self, time: Duration) {
        self.round_trip.store(u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1), Relaxed);
    }

    pub(super) fn set_nodes(&self, count: usize) {
        self.nodes.store(count as u64, Relaxed);
    }

    /// Nodes that are alive, at least this one.
    pub(super) fn nodes(&self) -> u64 {
        self.nodes.load(Relaxed).max(1)
    }
}

impl ClusterNode {
    /// The figures of now. Nobody is asked.
    pub fn figures(&self) -> NodeFigures {
        let (connection, counters) = (&self.shared.connection, &self.shared.counters);
        let (bytes_sent, bytes_received) = connection.traffic();
        let owned: Vec<LaneStatus> = self.shared.step.lanes().iter().map(|handle| handle.status()).collect();
        let adopted = self.shared.adopted.lock().len() as u64;
        let round_trip = counters.round_trip.load(Relaxed);
        NodeFigures {
            connected: connection.is_connected(),
            disconnections: connection.disconnections(),
            bytes_sent,
            bytes_received,
            round_trip: (round_trip > 0).then(|| Duration::from_micros(round_trip)),
            nodes: counters.nodes(),
            lanes_own: (owned.len() as u64).saturating_sub(adopted),
            lanes_adopted: adopted,
            lanes_local: self.shared.step.local_lanes().len() as u64,
            local_batches: self.shared.step.local_batches(),
            lanes_watched: self.shared.watched.lock().len() as u64,
            lanes_without_lease: owned.iter().filter(|lane| lane.lease_left.is_zero()).count() as u64,
            lease_left_min: owned.iter().map(|lane| lane.lease_left).min(),
            sums: owned.iter().fold(LaneStatus::default(), sum),
            takeovers: counters.takeovers.load(Relaxed),
            departures_shared: self.shared.departures.shared.load(Relaxed),
            departures_own_part: self.shared.departures.own_part.load(Relaxed),
            slots_shared: self.shared.slots.shared.load(Relaxed),
            slots_own_part: self.shared.slots.own_part.load(Relaxed),
            slots_refused: self.shared.slots.refused.load(Relaxed),
        }
    }
}

fn sum(total: LaneStatus, lane: &LaneStatus) -> LaneStatus {
    LaneStatus {
        waiting_bytes: total.waiting_bytes + lane.waiting_bytes,
        stored_bytes: total.stored_bytes + lane.stored_bytes,
        live_messages: total.live_messages + lane.live_messages,
        batches_confirmed: total.batches_confirmed + lane.batches_confirmed,
        batches_failed: total.batches_failed + lane.batches_failed,
        publishes_failed: total.publishes_failed + lane.publishes_failed,
        ..total
    }
}
