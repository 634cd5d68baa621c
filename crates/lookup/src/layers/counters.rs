//! Counters of a table, updated by all threads without locks.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use mail::HistogramRecorder;

use crate::{LookupAnswer, LookupStats, TableLayer, TracedAnswer};

#[derive(Default)]
pub(super) struct Counters {
    found: AtomicU64,
    not_found: AtomicU64,
    unavailable: AtomicU64,
    hits: AtomicU64,
    stale: AtomicU64,
    joined: AtomicU64,
    failures: AtomicU64,
    request_keys: HistogramRecorder,
    request_micros: HistogramRecorder,
}

impl Counters {
    /// Counts answers that were all fresh cache hits.
    pub(super) fn count_hits(&self, answers: &[LookupAnswer]) {
        let found = answers.iter().filter(|answer| matches!(answer, LookupAnswer::Found(_))).count();
        add(&self.hits, answers.len());
        add(&self.found, found);
        add(&self.not_found, answers.len() - found);
    }

    /// Counts an answer of any layer.
    pub(super) fn count(&self, trace: &TracedAnswer) {
        let answer = match trace.answer {
            LookupAnswer::Found(_) => &self.found,
            LookupAnswer::NotFound => &self.not_found,
            LookupAnswer::Unavailable(_) | LookupAnswer::Unconfirmed(_) => &self.unavailable,
        };
        add(answer, 1);
        match trace.layer {
            TableLayer::Cache { .. } => add(&self.hits, 1),
            TableLayer::Stale { .. } => add(&self.stale, 1),
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
    pub(super) fn read(&self) -> LookupStats {
        let request_keys = self.request_keys.read();
        LookupStats {
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
            ..LookupStats::default()
        }
    }
}

/// Skips the atomic operation if there is nothing to add.
fn add(counter: &AtomicU64, count: usize) {
    if count > 0 {
        counter.fetch_add(count as u64, Relaxed);
    }
}
