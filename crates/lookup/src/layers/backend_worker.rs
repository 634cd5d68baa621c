//! The thread of a layered table: sends batches to the backend, delivers answers, opens and closes
//! the breaker, and reports events. When it ends, for any reason, all waiting lookups end too.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::Notify;

use super::BackendSettings;
use super::failures::{FailureSummary, FailureThrottle};
use super::shared::{Shared, deliver};
use crate::backend::{Backend, BackendFailure};
use crate::{LookupAnswer, TableEvent, TableEventHandler, TableLayer, TracedAnswer};

pub(super) struct BackendWorker<B> {
    shared: Arc<Shared>,
    backend: B,
    events: TableEventHandler,
    probe_interval: Duration,
    batch_delay: Duration,
    failure_throttle: RefCell<FailureThrottle>,
    /// Notified when the breaker opens.
    breaker_opened: Notify,
}

/// A finished request.
struct FinishedRequest {
    keys: Vec<Box<str>>,
    result: Result<Vec<LookupAnswer>, BackendFailure>,
    took: Duration,
}

impl<B: Backend> BackendWorker<B> {
    pub(super) fn new(shared: Arc<Shared>, backend: B, events: TableEventHandler, settings: &BackendSettings) -> Self {
        let &BackendSettings { probe_interval: probe_every, batch_delay: gather_time, .. } = settings;
        BackendWorker {
            shared,
            backend,
            events,
            probe_interval: probe_every,
            batch_delay: gather_time,
            failure_throttle: RefCell::default(),
            breaker_opened: Notify::new(),
        }
    }

    /// Runs until the table is dropped.
    pub(super) async fn run(self) {
        tokio::select! {
            () = self.serve() => {}
            () = self.probe_while_open() => {}
        }
    }

    async fn serve(&self) {
        let mut requests = FuturesUnordered::new();
        while !self.shared.queue.lock().has_ended() {
            let failures = self.shared.queue.lock().poll_failures();
            self.report_failures(failures);
            while let Some(keys) = self.shared.poll_batch() {
                requests.push(self.ask(keys));
            }
            tokio::select! {
                () = self.shared.woken() => self.wait_for_batch(),
                Some(request) = requests.next() => self.finish_request(request),
            }
        }
    }

    /// Blocks the whole thread: it belongs to the table, and no tokio timer is as fine.
    fn wait_for_batch(&self) {
        let has_room = self.shared.queue.lock().can_fill_batch();
        if has_room {
            std::thread::sleep(self.batch_delay);
        }
    }

    /// Sends probes while the breaker is open, and closes it when one succeeds.
    async fn probe_while_open(&self) {
        loop {
            self.breaker_opened.notified().await;
            tokio::time::sleep(self.probe_interval).await;
            while self.backend.probe().await.is_err() {
                tokio::time::sleep(self.probe_interval).await;
            }
            let outage = self.shared.queue.lock().handle_recovery();
            if let Some(outage) = outage {
                (self.events)(TableEvent::Up { table: self.table(), after: outage.since.elapsed() });
            }
        }
    }

    async fn ask(&self, keys: Vec<Box<str>>) -> FinishedRequest {
        let began = Instant::now();
        let result = self.backend.ask(&keys).await.and_then(|answers| check_count(answers, keys.len()));
        FinishedRequest { keys, result, took: began.elapsed() }
    }

    fn finish_request(&self, request: FinishedRequest) {
        self.shared.counters.count_request(request.keys.len(), request.took, request.result.is_err());
        match request.result {
            Ok(answers) => self.finish_success(&request.keys, answers),
            Err(failure) => self.finish_failure(&request.keys, failure.to_string().into()),
        }
    }

    fn finish_success(&self, keys: &[Box<str>], answers: Vec<LookupAnswer>) {
        let now = Instant::now();
        let mut failures = None;
        let mut trace = |(key, answer): (&str, LookupAnswer)| match answer {
            LookupAnswer::Unavailable(why) | LookupAnswer::Unconfirmed(why) => {
                FailureSummary::add(&mut failures, || why.as_str().into(), 1);
                without_unconfirmed(self.shared.fallback_answer(key, &why, TableLayer::Backend, now))
            }
            answer => {
                self.shared.cache_answer(key, &answer, now);
                TracedAnswer { answer, layer: TableLayer::Backend }
            }
        };
        let traces: Vec<TracedAnswer> = keys.iter().map(|key| &**key).zip(answers).map(&mut trace).collect();
        // After the cache, so that a lookup that is too late to join finds the answer there.
        let waiters = self.shared.queue.lock().handle_success(keys);
        deliver(traces.into_iter().zip(waiters));
        self.report_failures(failures);
    }

    fn finish_failure(&self, keys: &[Box<str>], error: Box<str>) {
        let now = Instant::now();
        let (waiters, cancelled) = self.shared.queue.lock().handle_failure(keys, &error, now);
        let traces = keys.iter().map(|key| self.shared.fallback_answer(key, &error, TableLayer::Backend, now));
        deliver(traces.zip(waiters));
        let opened =
            cancelled.map(|cancelled| self.shared.answer_cancelled(cancelled, &error, TableLayer::Breaker)).is_some();
        self.report_failures(Some(FailureSummary { error: error.clone(), count: 1 }));
        if opened {
            (self.events)(TableEvent::Down { table: self.table(), error });
            self.breaker_opened.notify_one();
        }
    }

    fn report_failures(&self, failures: Option<FailureSummary>) {
        let Some(FailureSummary { error, count }) = failures else { return };
        let left_out = self.failure_throttle.borrow_mut().should_report(count, Instant::now());
        if let Some(left_out) = left_out {
            (self.events)(TableEvent::Failed { table: self.table(), error, left_out });
        }
    }

    fn table(&self) -> Box<str> {
        self.shared.name.clone()
    }
}

impl<B> Drop for BackendWorker<B> {
    fn drop(&mut self) {
        self.shared.end();
    }
}

/// Turns Unconfirmed into Unavailable. The backend works but gives no answer for this key, so the
/// key may exist, and an earlier NotFound means nothing.
fn without_unconfirmed(trace: TracedAnswer) -> TracedAnswer {
    match trace.answer {
        LookupAnswer::Unconfirmed(why) => TracedAnswer { answer: LookupAnswer::Unavailable(why), ..trace },
        _ => trace,
    }
}

/// A backend that returns the wrong number of answers has failed: no answer can be assigned to a
/// key.
fn check_count(answers: Vec<LookupAnswer>, keys: usize) -> Result<Vec<LookupAnswer>, BackendFailure> {
    if answers.len() == keys {
        return Ok(answers);
    }
    Err(BackendFailure::new("backend", format!("{} answers to {keys} keys", answers.len())))
}
