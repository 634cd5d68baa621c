//! What tables have to tell the operator, beside their answers.

use std::sync::Arc;
use std::time::Duration;

/// Takes what happens. Called on the threads of tables; must not block for long.
pub type Events = Arc<dyn Fn(Event) + Send + Sync>;

/// Something that happened to a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request failed, or an answer was Unavailable. One outage fails many: those that were left out since the last such
    /// event of this table are counted.
    Failed {
        /// The table.
        table: Box<str>,
        /// Who failed and how, in the backend's own words.
        error: Box<str>,
        /// Failures of which nothing was told.
        left_out: u64,
    },
    /// Requests failed so often in a row that none are made for now; what is in the cache goes on being answered.
    Down {
        /// The table.
        table: Box<str>,
        /// The last failure.
        error: Box<str>,
    },
    /// It answers again.
    Up {
        /// The table.
        table: Box<str>,
        /// How long it did not.
        after: Duration,
    },
    /// A replica is as its master, from now on or again.
    Loaded {
        /// The table.
        table: Box<str>,
        /// Entries in it.
        entries: u64,
        /// Changed or added, and removed by this refresh.
        changed: u64,
        /// Removed by this refresh.
        removed: u64,
        /// How long it took.
        took: Duration,
    },
    /// A refresh would remove more entries than it may, and waits for the operator.
    HeldBack {
        /// The table.
        table: Box<str>,
        /// Entries that would go.
        removals: u64,
        /// Entries that are there.
        entries: u64,
    },
    /// A replica lost its master, and goes on with what it has.
    Lost {
        /// The table.
        table: Box<str>,
        /// Why.
        error: Box<str>,
    },
}
