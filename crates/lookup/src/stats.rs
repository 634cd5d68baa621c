//! What tables count of themselves, read at one moment.

use std::time::Duration;

use mail::Histogram;

/// A reading of one table's counters. Those of a layer that the table has not are 0 or None.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Keys by answer, as the callers got them.
    pub found: u64,
    /// The same.
    pub not_found: u64,
    /// The same.
    pub unavailable: u64,
    /// Keys that the cache answered while they were fresh.
    pub hits: u64,
    /// Keys that it answered beyond their time, since the backend failed.
    pub stale: u64,
    /// Entries in the cache.
    pub cached: u64,
    /// Keys for which somebody else's question was under way.
    pub joined: u64,
    /// Keys that wait to be asked, and those that are asked now.
    pub waiting: u64,
    /// Requests to the backend.
    pub requests: u64,
    /// Those of them that failed.
    pub failures: u64,
    /// Keys in one request.
    pub request_keys: Histogram,
    /// Microseconds of one request.
    pub request_micros: Histogram,
    /// Since when the backend is down and is not asked, and why.
    pub down: Option<Down>,
    /// The local copy.
    pub replica: Option<ReplicaStats>,
}

/// A backend that is not asked for now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Down {
    /// For how long.
    pub since: Duration,
    /// The last failure.
    pub error: Box<str>,
}

/// A local copy of a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicaStats {
    /// Entries in it.
    pub entries: u64,
    /// Keys that they have.
    pub keys: u64,
    /// Whether the first load is complete: before that it says NotFound of nothing.
    pub complete: bool,
    /// Whether changes arrive as they are made.
    pub live: bool,
    /// How long ago it was known to be as its master: nothing while it is live and nothing is held back.
    pub age: Option<Duration>,
    /// Removals that wait for the operator.
    pub held_back: Option<u64>,
    /// Octets of its file.
    pub file_octets: u64,
}
