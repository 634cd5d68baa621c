//! The lanes of the spool, each with its counters since the start.

use serde::{Deserialize, Serialize};
use spool::{LaneId, Stats};
use utoipa::ToSchema;

/// A lane of the spool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct LaneStatus {
    /// Its id, which begins the ids of its messages.
    pub lane: String,
    /// Messages in it with pending recipients.
    pub messages: u64,
    /// Messages accepted since the start.
    pub accepted: u64,
    /// Half of the writes with their sync took at most this many milliseconds; null without any.
    pub sync_p50_ms: Option<f64>,
    /// 99 % of them took at most this many milliseconds.
    pub sync_p99_ms: Option<f64>,
    /// Batches that could not be written or synced.
    pub batches_failed: u64,
    /// Segment files, used and free.
    pub segments: u64,
    /// Those that are free.
    pub segments_free: u64,
}

pub(crate) fn lane_status(lane: LaneId, stats: &Stats) -> LaneStatus {
    let millis = |share| stats.sync_micros.quantile(share).map(|micros| micros / 1000.0);
    LaneStatus {
        lane: lane.to_string(),
        messages: stats.messages_live,
        accepted: stats.messages_committed,
        sync_p50_ms: millis(0.5),
        sync_p99_ms: millis(0.99),
        batches_failed: stats.batches_failed,
        segments: stats.segments,
        segments_free: stats.segments_free,
    }
}
