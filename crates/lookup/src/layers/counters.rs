//! What a table counts of itself while it works: numbers that all threads add to and nobody waits for.

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
    /// Answers that all came from the cache while they were fresh.
    pub(super) fn count_hits(&self, answers: &[Answer]) {
        let found = answers.iter().filter(|answer| matches!(answer, Answer::Found(_))).count();
        add(&self.hits, answers.len());
        add(&self.found, found);
        add(&self.not_found, answers.len() - found);
    }

    /// An answer from whatever layer.
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

    /// Keys that somebody else had asked for.
    pub(super) fn count_joined(&self, keys: usize) {
        add(&self.joined, keys);
    }

    /// A request that has ended.
    pub(super) fn count_request(&self, keys: usize, took: Duration, failed: bool) {
        self.request_keys.record(keys as u64);
        self.request_micros.record(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
        add(&self.failures, usize::from(failed));
    }

    /// The part of the reading that is counted here.
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

/// Adds nothing at no cost.
fn add(counter: &AtomicU64, count: usize) {
    if count > 0 {
        counter.fetch_add(count as u64, Relaxed);
    }
}
