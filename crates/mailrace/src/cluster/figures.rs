//! The figures of a node, in the words of its metrics.

use cluster::NodeFigures;
use control::ClusterFigures;

pub(super) fn of_node(figures: &NodeFigures) -> ClusterFigures {
    let NodeFigures { lanes_own, lanes_adopted, lanes_local, lanes_watched, sums, .. } = *figures;
    ClusterFigures {
        connected: figures.connected,
        disconnections: figures.disconnections,
        traffic: [("sent", figures.bytes_sent), ("received", figures.bytes_received)],
        round_trip: figures.round_trip,
        nodes: figures.nodes,
        lanes: [("own", lanes_own), ("adopted", lanes_adopted), ("local", lanes_local), ("watched", lanes_watched)],
        lanes_without_lease: figures.lanes_without_lease,
        lease_left_min: figures.lease_left_min,
        waiting_bytes: sums.waiting_bytes,
        stored_bytes: sums.stored_bytes,
        live_messages: sums.live_messages,
        batches: [
            ("stored", sums.batches_confirmed),
            ("failed", sums.batches_failed),
            ("local", figures.local_batches),
        ],
        publishes_failed: sums.publishes_failed,
        takeovers: figures.takeovers,
        departures: [("shared", figures.departures_shared), ("own part", figures.departures_own_part)],
        slots_held: [("shared", figures.slots_shared), ("own part", figures.slots_own_part)],
        slots_refused: figures.slots_refused,
    }
}
