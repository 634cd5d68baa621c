//! Counters of tables, read at one moment.

use std::time::Duration;

use mail::Histogram;

/// The counters of one table. Counters of layers that the table does not have are 0 or None.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LookupStats {
    /// Keys answered Found.
    pub found: u64,
    /// Keys answered NotFound.
    pub not_found: u64,
    /// Keys answered Unavailable or Unconfirmed.
    pub unavailable: u64,
    /// Keys answered by fresh cache entries.
    pub hits: u64,
    /// Keys answered by expired cache entries because the backend failed.
    pub stale: u64,
    /// Entries in the cache.
    pub cached: u64,
    /// Keys that joined a request already under way for another caller.
    pub joined: u64,
    /// Keys waiting for a request or its answer.
    pub waiting: u64,
    /// Requests sent to the backend.
    pub requests: u64,
    /// Failed requests.
    pub failures: u64,
    /// Keys per request.
    pub request_keys: Histogram,
    /// The most keys in a request, as configured; 0 if the table has no backend.
    pub request_keys_max: u64,
    /// Microseconds per request.
    pub request_micros: Histogram,
    /// The current outage, if the backend is down.
    pub down: Option<BackendDown>,
    /// The replica, if the table has one.
    pub replica: Option<ReplicaStats>,
}

/// An outage: the backend is down and gets no requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendDown {
    /// Time since it began.
    pub since: Duration,
    /// The failure that caused it.
    pub error: Box<str>,
}

/// The state of a replica.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicaStats {
    /// Entries.
    pub entries: u64,
    /// Keys of all entries.
    pub keys: u64,
    /// Whether the first load has finished. Until then the replica answers nothing.
    pub complete: bool,
    /// Whether changes arrive as they happen.
    pub live: bool,
    /// Time since the copy last matched its server; zero while it is live and holds back nothing.
    pub age: Option<Duration>,
    /// Removals that wait for the operator.
    pub held_back: Option<u64>,
    /// File size in octets.
    pub file_octets: u64,
}
