//! Whether the mail of a lane may be delivered by this server now. It is asked before each attempt:
//! where several servers can take over a lane from one another, only its owner may deliver from it.
//!
//! An attempt that is refused goes back to the queue and does not count as one.

use std::time::Duration;

use spool::LaneId;

/// A refused attempt is tried again this much later.
pub(super) const RETRY_DELAY: Duration = Duration::from_secs(2);

/// Says whether this server owns a lane. Called on the scheduler's thread, often: it must not wait.
pub trait LaneFence: Send + Sync {
    /// Whether an attempt to deliver a message of `lane` may start now.
    fn may_attempt(&self, lane: LaneId) -> bool;
}
