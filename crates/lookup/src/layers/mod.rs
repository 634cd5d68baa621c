//! Layers between callers and a [`Backend`], from the outside in:
//!
//! | layer      | what it does                                                                          |
//! |------------|---------------------------------------------------------------------------------------|
//! | cache      | answers on the caller's thread; while the backend fails, uses expired Found entries   |
//! | coalescing | requests a key once for all callers that need it                                      |
//! | batching   | sends keys together that arrive within a moment or while all requests are out         |
//! | breaker    | after several failed requests in a row, fails fast until a probe succeeds             |
//!
//! A failure never becomes NotFound. Without a backend answer a key is Found if the cache has an
//! old Found, Unconfirmed if it has an old NotFound, otherwise Unavailable. Load is not a failure:
//! lookups wait, within the limits of the settings.
//!
//! Callers may be on any tokio runtime. The table has its own thread and runtime for the backend.

mod answer_slots;
mod backend_worker;
mod batch_queue;
mod breaker;
mod cache;
mod counters;
mod failures;
mod notifier;
mod pending_lookup;
mod shared;
mod store;

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::task::LocalSet;

use self::backend_worker::BackendWorker;
pub use self::cache::CacheSettings;
use self::pending_lookup::PendingLookup;
use self::shared::Shared;
use crate::backend::Backend;
use crate::{LookupAnswer, LookupFuture, LookupStats, Table, TableEventHandler, TableLayer, TraceFuture, TracedAnswer};

/// How to use a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackendSettings {
    /// The cache; None disables it.
    pub cache: Option<CacheSettings>,
    /// Keys per request, at least 1. Default 64.
    pub batch_max: usize,
    /// How long a request waits for more keys if it is not full. Lookups come in bursts, and a
    /// batch of twenty keys costs a third per key. Default 300 microseconds.
    pub batch_delay: Duration,
    /// Concurrent requests, at least 1. Default 2.
    pub concurrency: usize,
    /// How long a lookup waits in total; after that, missing answers are stale or Unavailable.
    /// Default 30 seconds.
    pub wait_max: Duration,
    /// Keys queued or under way; beyond that, answers are stale or Unavailable. Default 100,000.
    pub waiting_max: usize,
    /// Consecutive failed requests that open the breaker. Default 3.
    pub failures_max: usize,
    /// Time between probes while the breaker is open. Default 500 milliseconds.
    pub probe_interval: Duration,
}

impl Default for BackendSettings {
    fn default() -> Self {
        BackendSettings {
            cache: Some(CacheSettings::default()),
            batch_max: 64,
            batch_delay: Duration::from_micros(300),
            concurrency: 2,
            wait_max: Duration::from_secs(30),
            waiting_max: 100_000,
            failures_max: 3,
            probe_interval: Duration::from_millis(500),
        }
    }
}

/// A table on top of a backend.
///
/// A lookup whose keys are all cached is ready immediately. Others must be awaited on a tokio
/// runtime with time enabled. Dropping the table joins its thread, and therefore waits for a
/// backend that blocks.
pub struct BackendTable {
    shared: Arc<Shared>,
    /// None after shutdown.
    thread: Option<JoinHandle<()>>,
}

impl BackendTable {
    /// Starts the table `name`. Fails if the thread or its runtime cannot be created.
    pub fn start(
        name: &str,
        backend: impl Backend,
        settings: BackendSettings,
        events: TableEventHandler,
    ) -> io::Result<BackendTable> {
        let shared = Arc::new(Shared::new(name, &settings));
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let worker = BackendWorker::new(shared.clone(), backend, events, &settings);
        let work = move || {
            LocalSet::new().block_on(&runtime, worker.run());
            // Do not wait for blocking work of the backend, such as name resolution.
            runtime.shutdown_background();
        };
        let thread = thread::Builder::new().name(format!("table {name}")).spawn(work)?;
        Ok(BackendTable { shared, thread: Some(thread) })
    }
}

impl Table for BackendTable {
    fn name(&self) -> &str {
        &self.shared.name
    }

    fn lookup<'a>(&'a self, keys: &'a [&'a str]) -> LookupFuture<'a> {
        if let Some(answers) = self.shared.cached_answers(keys) {
            return Box::pin(std::future::ready(answers));
        }
        let lookup = PendingLookup::new(&self.shared, keys);
        Box::pin(async move { lookup.traces().await.into_iter().map(|trace| trace.answer).collect() })
    }

    fn trace<'a>(&'a self, key: &'a str) -> TraceFuture<'a> {
        let lookup = PendingLookup::new(&self.shared, &[key]);
        Box::pin(async move {
            lookup.traces().await.pop().unwrap_or_else(|| TracedAnswer {
                answer: LookupAnswer::Unavailable(format!("table '{}': no answer", self.name())),
                layer: TableLayer::Backend,
            })
        })
    }

    fn stats(&self) -> Option<LookupStats> {
        Some(self.shared.stats())
    }
}

impl Drop for BackendTable {
    fn drop(&mut self) {
        self.shared.end();
        let here = thread::current().id();
        // An event handler on the table's own thread may drop the last reference; that thread ends
        // on its own.
        if let Some(thread) = self.thread.take().filter(|thread| thread.thread().id() != here) {
            // A panic of the thread has already been reported.
            let _ = thread.join();
        }
    }
}
