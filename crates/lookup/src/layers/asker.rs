//! The thread of a layered table: sends batches to the backend, delivers answers, opens and closes
//! the breaker, and reports events. When it ends, for any reason, all waiting lookups end too.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::Notify;

use super::Settings;
use super::shared::{Shared, hand_out};
use super::troubles::{Telling, Troubles};
use crate::backend::{Backend, Failure};
use crate::{Answer, Event, Events, Layer, Trace};

pub(super) struct Asker<B> {
    shared: Arc<Shared>,
    backend: B,
    events: Events,
    probe_every: Duration,
    gather_time: Duration,
    telling: RefCell<Telling>,
    /// Notified when the breaker opens.
    opened: Notify,
}

/// A finished request.
struct Request {
    keys: Vec<Box<str>>,
    result: Result<Vec<Answer>, Failure>,
    took: Duration,
}

impl<B: Backend> Asker<B> {
    pub(super) fn new(shared: Arc<Shared>, backend: B, events: Events, settings: &Settings) -> Self {
        let &Settings { probe_every, gather_time, .. } = settings;
        Asker { shared, backend, events, probe_every, gather_time, telling: RefCell::default(), opened: Notify::new() }
    }

    /// Runs until the table is dropped.
    pub(super) async fn run(self) {
        tokio::select! {
            () = self.serve() => {}
            () = self.watch() => {}
        }
    }

    async fn serve(&self) {
        let mut requests = FuturesUnordered::new();
        while !self.shared.gather().has_ended() {
            let troubles = self.shared.gather().poll_troubles();
            self.tell(troubles);
            while let Some(keys) = self.shared.poll_batch() {
                requests.push(self.ask(keys));
            }
            tokio::select! {
                () = self.shared.called() => self.let_gather(),
                Some(request) = requests.next() => self.settle(request),
            }
        }
    }

    /// Blocks the whole thread: it belongs to the table, and no tokio timer is as fine.
    fn let_gather(&self) {
        let has_room = self.shared.gather().has_room();
        if has_room {
            std::thread::sleep(self.gather_time);
        }
    }

    /// Sends probes while the breaker is open, and closes it when one succeeds.
    async fn watch(&self) {
        loop {
            self.opened.notified().await;
            tokio::time::sleep(self.probe_every).await;
            while self.backend.probe().await.is_err() {
                tokio::time::sleep(self.probe_every).await;
            }
            let outage = self.shared.gather().handle_recovery();
            if let Some(outage) = outage {
                (self.events)(Event::Up { table: self.table(), after: outage.since.elapsed() });
            }
        }
    }

    async fn ask(&self, keys: Vec<Box<str>>) -> Request {
        let began = Instant::now();
        let result = self.backend.ask(&keys).await.and_then(|answers| complete(answers, keys.len()));
        Request { keys, result, took: began.elapsed() }
    }

    fn settle(&self, request: Request) {
        self.shared.counters.count_request(request.keys.len(), request.took, request.result.is_err());
        match request.result {
            Ok(answers) => self.settle_answered(&request.keys, answers),
            Err(failure) => self.settle_failed(&request.keys, failure.to_string().into()),
        }
    }

    fn settle_answered(&self, keys: &[Box<str>], answers: Vec<Answer>) {
        let now = Instant::now();
        let mut troubles = None;
        let mut trace = |(key, answer): (&str, Answer)| match answer {
            Answer::Unavailable(why) | Answer::Unconfirmed(why) => {
                Troubles::add(&mut troubles, || why.as_str().into(), 1);
                confirmed(self.shared.without_backend(key, &why, Layer::Backend, now))
            }
            answer => {
                self.shared.keep(key, &answer, now);
                Trace { answer, layer: Layer::Backend }
            }
        };
        let traces: Vec<Trace> = keys.iter().map(|key| &**key).zip(answers).map(&mut trace).collect();
        // After the cache, so that a lookup that is too late to join finds the answer there.
        let waiters = self.shared.gather().handle_success(keys);
        hand_out(traces.into_iter().zip(waiters));
        self.tell(troubles);
    }

    fn settle_failed(&self, keys: &[Box<str>], error: Box<str>) {
        let now = Instant::now();
        let (waiters, dismissed) = self.shared.gather().handle_failure(keys, &error, now);
        let traces = keys.iter().map(|key| self.shared.without_backend(key, &error, Layer::Backend, now));
        hand_out(traces.zip(waiters));
        let opened = dismissed.map(|dismissed| self.shared.dismiss(dismissed, &error, Layer::Breaker)).is_some();
        self.tell(Some(Troubles { error: error.clone(), count: 1 }));
        if opened {
            (self.events)(Event::Down { table: self.table(), error });
            self.opened.notify_one();
        }
    }

    fn tell(&self, troubles: Option<Troubles>) {
        let Some(Troubles { error, count }) = troubles else { return };
        let left_out = self.telling.borrow_mut().handle(count, Instant::now());
        if let Some(left_out) = left_out {
            (self.events)(Event::Failed { table: self.table(), error, left_out });
        }
    }

    fn table(&self) -> Box<str> {
        self.shared.name.clone()
    }
}

impl<B> Drop for Asker<B> {
    fn drop(&mut self) {
        self.shared.end();
    }
}

/// Turns Unconfirmed into Unavailable. The backend works but gives no answer for this key, so the
/// key may exist, and an earlier NotFound means nothing.
fn confirmed(trace: Trace) -> Trace {
    match trace.answer {
        Answer::Unconfirmed(why) => Trace { answer: Answer::Unavailable(why), ..trace },
        _ => trace,
    }
}

/// A backend that returns the wrong number of answers has failed: no answer can be assigned to a
/// key.
fn complete(answers: Vec<Answer>, keys: usize) -> Result<Vec<Answer>, Failure> {
    if answers.len() == keys {
        return Ok(answers);
    }
    Err(Failure::new("backend", format!("{} answers to {keys} keys", answers.len())))
}
