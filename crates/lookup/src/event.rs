//! Events that tables report to the operator.

use std::sync::Arc;
use std::time::Duration;

/// Handles table events. Runs on a table's own thread and must not block for long.
pub type TableEventHandler = Arc<dyn Fn(TableEvent) + Send + Sync>;

/// An event of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableEvent {
    /// A request failed, or an answer was Unavailable. An outage causes many failures, so they are
    /// rate-limited and the suppressed ones counted.
    Failed {
        /// The table's name.
        table: Box<str>,
        /// What failed and why, in the backend's words.
        error: Box<str>,
        /// Failures suppressed since the last report.
        left_out: u64,
    },
    /// After repeated failures the table stops sending requests. Cached answers remain in use.
    Down {
        /// The table's name.
        table: Box<str>,
        /// The last failure.
        error: Box<str>,
    },
    /// The backend answers again.
    Up {
        /// The table's name.
        table: Box<str>,
        /// Length of the outage.
        after: Duration,
    },
    /// A replica matches its server.
    ReplicaLoaded {
        /// The table's name.
        table: Box<str>,
        /// Entries in the replica.
        entries: u64,
        /// Entries that this refresh added or changed.
        changed: u64,
        /// Entries that this refresh removed.
        removed: u64,
        /// Duration of the refresh.
        took: Duration,
    },
    /// A refresh would remove more entries than allowed and waits for the operator.
    RemovalsHeldBack {
        /// The table's name.
        table: Box<str>,
        /// Entries to remove.
        removals: u64,
        /// Entries in the replica.
        entries: u64,
    },
    /// A replica lost its server and keeps answering from its copy.
    ReplicaDisconnected {
        /// The table's name.
        table: Box<str>,
        /// The reason.
        error: Box<str>,
    },
}
