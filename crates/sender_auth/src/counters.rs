//! How often each method gave each verdict, and how often a limit prevented one.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::settings::Method;

/// All words that a method can say.
const RESULTS: [&str; 8] = ["none", "pass", "fail", "softfail", "neutral", "policy", "temperror", "permerror"];

/// A limit that was reached. What cannot be judged because of it is a temporary error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReachedLimit {
    /// Messages that are verified at the same time.
    Concurrent,
    /// DNS queries for one message.
    MessageQueries,
    /// DNS queries for one client.
    ClientQueries,
    /// The time for one message.
    Time,
    /// The size of a message.
    MessageSize,
}

impl ReachedLimit {
    /// All limits.
    pub const ALL: [ReachedLimit; 5] = [
        ReachedLimit::Concurrent,
        ReachedLimit::MessageQueries,
        ReachedLimit::ClientQueries,
        ReachedLimit::Time,
        ReachedLimit::MessageSize,
    ];

    /// The name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            ReachedLimit::Concurrent => "concurrent",
            ReachedLimit::MessageQueries => "message_queries",
            ReachedLimit::ClientQueries => "client_queries",
            ReachedLimit::Time => "time",
            ReachedLimit::MessageSize => "message_size",
        }
    }
}

/// The counters.
#[derive(Debug, Default)]
pub struct VerdictCounters {
    verdicts: [[AtomicU64; RESULTS.len()]; Method::ALL.len()],
    limits: [AtomicU64; ReachedLimit::ALL.len()],
}

impl VerdictCounters {
    /// The verdicts so far, without those that were never given: method, result, count.
    pub fn verdicts(&self) -> Vec<(&'static str, &'static str, u64)> {
        let of = |method: Method| {
            let counts = self.verdicts[method as usize].iter().map(|count| count.load(Relaxed));
            RESULTS.into_iter().zip(counts).map(move |(result, count)| (method.name(), result, count))
        };
        Method::ALL.into_iter().flat_map(of).filter(|(.., count)| *count > 0).collect()
    }

    /// How often each limit was reached.
    pub fn limits(&self) -> Vec<(&'static str, u64)> {
        ReachedLimit::ALL.into_iter().map(|limit| (limit.name(), self.limits[limit as usize].load(Relaxed))).collect()
    }

    pub(crate) fn count(&self, method: Method, result: &str) {
        if let Some(number) = RESULTS.iter().position(|known| *known == result) {
            self.verdicts[method as usize][number].fetch_add(1, Relaxed);
        }
    }

    pub(crate) fn count_limit(&self, limit: ReachedLimit) {
        self.limits[limit as usize].fetch_add(1, Relaxed);
    }
}
