//! What stands between callers and a [`Backend`], outside in:
//!
//! | layer      | what it does                                                                                          |
//! |------------|-------------------------------------------------------------------------------------------------------|
//! | cache      | answers at once on the caller's thread; where the backend fails, a Found for a while beyond its time    |
//! | coalescing | a key is under way once: whoever asks for it meanwhile joins                                            |
//! | batching   | what is asked within a moment, or while all requests are out, leaves together in the next one           |
//! | breaker    | after so many failed requests in a row none is made, and nobody waits, until a probe succeeds           |
//!
//! Failure is never NotFound: a key of which the backend cannot say anything, and the cache has no Found, is Unavailable,
//! or Unconfirmed where the cache has a NotFound. Load alone is no failure: questions wait, for as long and as many of them
//! as the settings let.
//!
//! Callers may be on any number of tokio runtimes. The table has a thread and a runtime of its own, on which the backend
//! does its work.

mod asker;
mod bell;
mod breaker;
mod cache;
mod counters;
mod gather;
mod question;
mod shared;
mod store;
mod ticket;
mod troubles;

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::task::LocalSet;

use self::asker::Asker;
pub use self::cache::CacheSettings;
use self::question::Question;
use self::shared::Shared;
use crate::backend::Backend;
use crate::{Answer, Answers, Events, Layer, Stats, Table, Trace, Tracing};

/// How a backend is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How long answers are kept; None: not at all.
    pub cache: Option<CacheSettings>,
    /// Keys in one request, at least 1. Default 64.
    pub batch_max: usize,
    /// How long a request that is not full waits for more keys. Sessions ask in crowds, and a key that is asked together
    /// with twenty others costs the directory and us a third of what it costs alone. Default 300 microseconds.
    pub gather_time: Duration,
    /// Requests under way at once, at least 1. Default 2.
    pub concurrency: usize,
    /// How long a question waits for its answers in all; those that are missing then are stale or Unavailable. Default 30
    /// seconds.
    pub wait_max: Duration,
    /// Keys that may wait at once, those that are asked now included; others are stale or Unavailable. Default 100,000.
    pub waiting_max: usize,
    /// Failed requests in a row after which no more are made. Default 3.
    pub failures_max: usize,
    /// Time between two probes while no requests are made. Default 500 milliseconds.
    pub probe_every: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            cache: Some(CacheSettings::default()),
            batch_max: 64,
            gather_time: Duration::from_micros(300),
            concurrency: 2,
            wait_max: Duration::from_secs(30),
            waiting_max: 100_000,
            failures_max: 3,
            probe_every: Duration::from_millis(500),
        }
    }
}

/// A table over a backend.
///
/// A question whose keys are all in the cache is answered when it is asked. One that has to wait must be awaited on a tokio
/// runtime with a clock. To drop it ends its thread, as soon as the backend lets go of that: a backend that blocks is waited
/// for.
pub struct Layered {
    shared: Arc<Shared>,
    /// None: it has been told to end.
    thread: Option<JoinHandle<()>>,
}

impl Layered {
    /// Starts the table `name` over a backend. Fails where the system gives no thread or no runtime.
    pub fn start(name: &str, backend: impl Backend, settings: Settings, events: Events) -> io::Result<Layered> {
        let shared = Arc::new(Shared::new(name, &settings));
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let asker = Asker::new(shared.clone(), backend, events, &settings);
        let work = move || {
            LocalSet::new().block_on(&runtime, asker.run());
            // What the backend left on threads of its own, a name that is being resolved, is not waited for.
            runtime.shutdown_background();
        };
        let thread = thread::Builder::new().name(format!("table {name}")).spawn(work)?;
        Ok(Layered { shared, thread: Some(thread) })
    }
}

impl Table for Layered {
    fn name(&self) -> &str {
        &self.shared.name
    }

    fn lookup<'a>(&'a self, keys: &'a [&'a str]) -> Answers<'a> {
        if let Some(answers) = self.shared.hits(keys) {
            return Box::pin(std::future::ready(answers));
        }
        let question = Question::new(&self.shared, keys);
        Box::pin(async move { question.traces().await.into_iter().map(|trace| trace.answer).collect() })
    }

    fn trace<'a>(&'a self, key: &'a str) -> Tracing<'a> {
        let question = Question::new(&self.shared, &[key]);
        Box::pin(async move {
            question.traces().await.pop().unwrap_or_else(|| Trace {
                answer: Answer::Unavailable(format!("table '{}': no answer", self.name())),
                layer: Layer::Backend,
            })
        })
    }

    fn stats(&self) -> Option<Stats> {
        Some(self.shared.stats())
    }
}

impl Drop for Layered {
    fn drop(&mut self) {
        self.shared.end();
        let here = thread::current().id();
        // The last owner may be the table's own thread, in what it tells of events; that one ends by itself.
        if let Some(thread) = self.thread.take().filter(|thread| thread.thread().id() != here) {
            // A panic over there has been told where it happened.
            let _ = thread.join();
        }
    }
}
