//! Counters of a table, updated by all threads without locks.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use mail::Recorder;

use crate::{Answer, Layer, Stats, Trace};

#[derive(Default)]
pub(super) struct Counters {
    found: AtomicU64,
    not_found: AtomicU64,
    unavailable: AtomicU64,
    hits: AtomicU64,
    stale: AtomicU64,
    joined: AtomicU64,
    failures: AtomicU64,
    request_keys: Recorder,
    request_micros: Recorder,
}

impl Counters {
    /// Counts answers that were all fresh cache hits.
    pub(super) fn count_hits(&self, answers: &[Answer]) {
        let found = answers.iter().filter(|answer| matches!(answer, Answer::Found(_))).count();
        add(&self.hits, answers.len());
        add(&self.found, found);
        add(&self.not_found, answers.len() - found);
    }

    /// Counts an answer of any layer.
    pub(super) fn count(&self, trace: &Trace) {
        let answer = match trace.answer {
            Answer::Found(_) => &self.found,
            Answer::NotFound => &self.not_found,
            Answer::Unavailable(_) | Answer::Unconfirmed(_) => &self.unavailable,
        };
        add(answer, 1);
        match trace.layer {
            Layer::Cache { .. } => add(&self.hits, 1),
            Layer::Stale { .. } => add(&self.stale, 1),
            _ => {}
        }
    }

    /// Counts keys that joined a request for another caller.
    pub(super) fn count_joined(&self, keys: usize) {
        add(&self.joined, keys);
    }

    /// Counts a finished request.
    pub(super) fn count_request(&self, keys: usize, took: Duration, failed: bool) {
        self.request_keys.record(keys as u64);
        self.request_micros.record(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
        add(&self.failures, usize::from(failed));
    }

    /// The part of the statistics that is counted here.
    pub(super) fn read(&self) -> Stats {
        let request_keys = self.request_keys.read();
        Stats {
            found: self.found.load(Relaxed),
            not_found: self.not_found.load(Relaxed),
            unavailable: self.unavailable.load(Relaxed),
            hits: self.hits.load(Relaxed),
            stale: self.stale.load(Relaxed),
            joined: self.joined.load(Relaxed),
            requests: request_keys.count(),
            failures: self.failures.load(Relaxed),
            request_keys,
            request_micros: self.request_micros.read(),
            ..Stats::default()
        }
    }
}

/// Skips the atomic operation if there is nothing to add.
fn add(counter: &AtomicU64, count: usize) {
    if count > 0 {
        counter.fetch_add(count as u64, Relaxed);
    }
}
