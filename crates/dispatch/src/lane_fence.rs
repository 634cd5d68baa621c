//! Whether the mail of a lane may be delivered by this server now. It is asked before each attempt, and again
//! before the message is passed on, since an attempt can wait long for a connection, a table or the disk:
//! where several servers can take over a lane from one another, only its owner may deliver from it.
//!
//! An attempt that is refused goes back to the queue and does not count as one. The longer a lane is
//! refused, the later its mail is tried again: a long queue must not circle while its lane is away.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mail::{QueueId, Timestamp};
use spool::LaneId;

/// A refused attempt is tried again after this time, or after as long as its lane has been refused.
const RETRY_DELAY_MIN: Duration = Duration::from_secs(2);
/// It is never tried again later than that, so mail moves soon after its lane is back.
const RETRY_DELAY_MAX: Duration = Duration::from_secs(30);

/// Says whether this server owns a lane. Called on the threads of the scheduler and of the deliverers, often:
/// it must not wait.
pub trait LaneFence: Send + Sync {
    /// Whether an attempt to deliver a message of `lane` may start now.
    fn may_attempt(&self, lane: LaneId) -> bool;
}

/// Which messages may be delivered. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct AttemptFence(pub(super) Option<Arc<dyn LaneFence>>);

impl AttemptFence {
    /// Whether the message may be delivered now.
    pub(super) fn may_attempt(&self, id: QueueId) -> bool {
        self.0.as_ref().is_none_or(|fence| fence.may_attempt(LaneId::of(id)))
    }
}

/// The lanes that are refused, and since when.
#[derive(Default)]
pub(super) struct RefusedLanes(BTreeMap<LaneId, Timestamp>);

impl RefusedLanes {
    /// The lane is allowed.
    pub(super) fn allow(&mut self, lane: LaneId) {
        self.0.remove(&lane);
    }

    /// An attempt of the lane is refused. Returns when it is tried again.
    pub(super) fn refuse(&mut self, lane: LaneId, now: Timestamp) -> Timestamp {
        let since = *self.0.entry(lane).or_insert(now);
        now + now.since(since).clamp(RETRY_DELAY_MIN, RETRY_DELAY_MAX)
    }
}

#[cfg(test)]
mod tests {
    use mail::SpoolId;

    use super::*;

    #[test]
    fn mail_of_a_refused_lane_is_tried_later_and_later_until_the_lane_is_back() {
        let lane = |number| LaneId { spool: SpoolId::new(1), number };
        let (mut refused, start) = (RefusedLanes::default(), Timestamp(1_000_000));
        let at = |seconds| start + Duration::from_secs(seconds);
        for (now, until) in [(0, 2), (2, 4), (4, 8), (8, 16), (16, 32), (32, 62), (62, 92)] {
            assert_eq!(refused.refuse(lane(0), at(now)), at(until), "{now}");
        }
        assert_eq!(refused.refuse(lane(1), at(62)), at(64), "another lane");
        refused.allow(lane(0));
        assert_eq!(refused.refuse(lane(0), at(92)), at(94), "it was back");
    }
}
