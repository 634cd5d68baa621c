//! Runs a load: distributes connections over threads until all tickets are used, and shows the
//! progress.
//!
//! A load defines what one connection does ([`Workload::run_connection`]); the engine knows no
//! protocol. The first signal of the operator stops new tickets and lets open ones finish; the second
//! one aborts those too. Both end with a summary.

use std::cell::Cell;
use std::future::Future;
use std::net::IpAddr;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use net::{StopReceiver, StopSender};
use parking_lot::Mutex;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};

use crate::machine_usage::MachineUsage;
use crate::options::LoadOptions;
use crate::pacer::{Pacer, Ticket};
use crate::progress_view::{MinuteLines, ProgressView};
use crate::runtime::runtime;
use crate::signals::Signals;
use crate::summary::{LoadLabels, LoadSummary};
use crate::tally::LoadTally;
use crate::{BenchError, open_files_limit, sys};

/// How often the progress on a terminal is redrawn.
const VIEW_REFRESH_INTERVAL: Duration = Duration::from_millis(250);
/// How often the line in postal's format is written.
const MINUTE_LINE_INTERVAL: Duration = Duration::from_secs(60);
/// How long a connection slot pauses after a failed ticket.
const FAILURE_PAUSE: Duration = Duration::from_millis(100);
/// Open files that the process needs besides its connections and runtimes.
const OPEN_FILES_OTHER: u64 = 64;
const OPEN_FILES_PER_THREAD: u64 = 8;

/// What one connection slot does.
pub(crate) trait Workload: Send + Sync + 'static {
    /// What is counted and timed.
    const LABELS: LoadLabels;

    /// Processes tickets until there are none left.
    fn run_connection(self: Arc<Self>, worker: Worker) -> impl Future<Output = ()> + Send;

    /// Whether the run must stop. The load reports the reason when it is closed.
    fn has_failed(&self) -> bool {
        false
    }
}

/// A run with its options.
#[derive(Debug)]
pub(crate) struct LoadRun<'a> {
    /// For the summary: `smtp 127.0.0.1:25`.
    pub(crate) title: String,
    pub(crate) options: &'a LoadOptions,
    /// The number of tickets; None is no limit.
    pub(crate) count: Option<u64>,
    /// Set by a caller that controls the run. Then there is no progress, no minute line, and
    /// signals are not handled.
    pub(crate) stop: Option<StopReceiver>,
}

/// The state of one connection slot.
#[derive(Debug)]
pub(crate) struct Worker {
    /// Its number among all connections, from 0.
    pub(crate) number: usize,
    /// The local address to connect from.
    pub(crate) local: Option<IpAddr>,
    /// The time limit of each step.
    pub(crate) timeout: Duration,
    pub(crate) random: fastrand::Rng,
    pacer: Arc<Pacer>,
    /// Not to be locked across an await.
    pub(crate) tally: Arc<Mutex<LoadTally>>,
    stop: StopReceiver,
}

impl Worker {
    /// Waits for the next ticket; None when the run ends.
    pub(crate) async fn next(&mut self) -> Option<Ticket> {
        let ticket = self.pacer.next(&mut self.stop).await?;
        self.tally.lock().counts.begun += 1;
        Some(ticket)
    }

    /// Counts a ticket that failed because the connection failed. Pauses, so that a closed loop
    /// does not reconnect to a dead server at full speed.
    pub(crate) async fn fail_ticket(&mut self, error: String) {
        {
            let mut tally = self.tally.lock();
            tally.record_error(error);
            tally.record_failed(Instant::now());
        }
        tokio::select! {
            () = sleep(FAILURE_PAUSE) => {}
            () = self.stop.wait_for_stop() => {}
        }
    }

    /// The deadline of a step that begins now.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.timeout
    }
}

/// Runs a load to its end.
pub(crate) fn run<L: Workload>(run: LoadRun<'_>, load: &Arc<L>) -> Result<LoadSummary, BenchError> {
    let LoadOptions { connections, threads, .. } = run.options;
    open_files_limit::raise(u64::from(*connections) + u64::from(*threads) * OPEN_FILES_PER_THREAD + OPEN_FILES_OTHER)?;
    let machine = MachineUsage::begin_with_disk(&run.options.disk)?;
    let watching = runtime()?;
    let ((stopper, stop), (abort, abort_requested), (threads_done, running)) =
        (StopSender::new(), StopSender::new(), StopSender::new());
    let stop_handles = StopHandles { stop: stopper, stopped_at: Cell::new(None), abort, threads_done };
    let pacer = Arc::new(Pacer::begin(run.options.rate, run.count, run.options.duration));
    let mut load_threads = LoadThreads { pacer, tallies: Vec::new(), threads: Vec::new() };
    let mut numbers = 0..*threads as usize;
    let spawned = numbers.try_for_each(|thread| {
        load_threads.spawn(thread, run.options, load, (&stop, &abort_requested), running.clone())
    });
    drop((abort_requested, running));
    let watched =
        spawned.and_then(|()| watching.block_on(wait_for_threads(&run, load.as_ref(), &load_threads, &stop_handles)));
    if watched.is_err() {
        stop_handles.abort.stop();
    }
    let stopped_at = stop_handles.stopped_at.get();
    for thread in load_threads.threads.drain(..) {
        thread.join().unwrap_or_else(|panic| resume_unwind(panic));
    }
    watched?;
    let mut tally = load_threads.sum(L::LABELS.phases.len());
    let missed = load_threads.pacer.missed_tickets(stopped_at.unwrap_or_else(Instant::now));
    missed.waits().for_each(|wait| tally.record_missed(wait));
    let summary = LoadSummary::of(run.title, &L::LABELS, &tally, load_threads.pacer.begun(), machine.end());
    Ok(LoadSummary { stopped: stopped_at.is_some(), ..summary })
}

/// Stops the threads, and tells when they are done.
struct StopHandles {
    /// No more tickets.
    stop: StopSender,
    /// When `stop` was requested.
    stopped_at: Cell<Option<Instant>>,
    /// Aborts open tickets.
    abort: StopSender,
    /// Each thread holds a handle until it is done.
    threads_done: StopSender,
}

impl StopHandles {
    fn stop(&self) {
        self.stopped_at.set(self.stopped_at.get().or_else(|| Some(Instant::now())));
        self.stop.stop();
    }

    fn stop_if_failed(&self, load: &impl Workload) {
        if load.has_failed() {
            self.stop();
        }
    }
}

/// The threads and their counters.
struct LoadThreads {
    pacer: Arc<Pacer>,
    tallies: Vec<Arc<Mutex<LoadTally>>>,
    threads: Vec<JoinHandle<()>>,
}

impl LoadThreads {
    /// Starts a thread with its share of the connections. It holds `running` until it is done.
    fn spawn<L: Workload>(
        &mut self,
        thread: usize,
        options: &LoadOptions,
        load: &Arc<L>,
        (stop, abort_requested): (&StopReceiver, &StopReceiver),
        running: StopReceiver,
    ) -> Result<(), BenchError> {
        let tally = Arc::new(Mutex::new(LoadTally::new(L::LABELS.phases.len())));
        self.tallies.push(tally.clone());
        let numbers = (thread..options.connections as usize).step_by(options.threads as usize);
        let workers: Vec<Worker> = numbers
            .map(|number| Worker {
                number,
                local: options.local.get(number % options.local.len().max(1)).copied(),
                timeout: options.timeout,
                random: fastrand::Rng::with_seed(options.seed.wrapping_add(number as u64)),
                pacer: self.pacer.clone(),
                tally: tally.clone(),
                stop: stop.clone(),
            })
            .collect();
        let (runtime, load, mut abort_requested) = (runtime()?, load.clone(), abort_requested.clone());
        let is_closed_loop = options.rate.is_none();
        let work = move || {
            // On the machine of the server, each of its answers would wake this thread and preempt
            // the server. An open loop must keep its schedule, so it stays with the default policy.
            if is_closed_loop {
                sys::use_batch_scheduling();
            }
            runtime.block_on(async {
                let mut tasks: JoinSet<()> =
                    workers.into_iter().map(|worker| load.clone().run_connection(worker)).collect();
                tokio::select! {
                    () = join_all(&mut tasks) => {}
                    () = abort_requested.wait_for_stop() => {}
                }
            });
            drop(running);
        };
        let started = std::thread::Builder::new().name(format!("load-{thread}")).spawn(work);
        self.threads.push(started.map_err(BenchError::system("starting a thread"))?);
        Ok(())
    }

    fn sum(&self, phases: usize) -> LoadTally {
        let mut sum = LoadTally::new(phases);
        self.tallies.iter().for_each(|tally| sum.add(&tally.lock()));
        sum
    }
}

/// Waits until all threads are done. Shows the progress, unless the caller controls the run.
async fn wait_for_threads<L: Workload>(
    run: &LoadRun<'_>,
    load: &L,
    load_threads: &LoadThreads,
    stop_handles: &StopHandles,
) -> Result<(), BenchError> {
    match run.stop.clone() {
        Some(told) => wait_without_view(told, load, stop_handles).await,
        None => wait_with_view(run, load, load_threads, stop_handles).await?,
    }
    stop_handles.threads_done.wait_receivers_dropped().await;
    Ok(())
}

/// Waits for the caller's stop request or the end of the run.
async fn wait_without_view(mut stop: StopReceiver, load: &impl Workload, stop_handles: &StopHandles) {
    let mut view_ticks = every(VIEW_REFRESH_INTERVAL);
    loop {
        tokio::select! {
            () = stop_handles.threads_done.wait_receivers_dropped() => return,
            () = stop.wait_for_stop() => return stop_handles.stop(),
            _ = view_ticks.tick() => stop_handles.stop_if_failed(load),
        }
    }
}

async fn wait_with_view<L: Workload>(
    run: &LoadRun<'_>,
    load: &L,
    load_threads: &LoadThreads,
    stop_handles: &StopHandles,
) -> Result<(), BenchError> {
    let sum = || load_threads.sum(L::LABELS.phases.len());
    let mut view = ProgressView::new(run.count, run.options.duration, L::LABELS.unit);
    let mut lines = MinuteLines::new(run.options.json);
    let mut signals = Signals::listen()?;
    let (mut view_ticks, mut minute_ticks) = (every(VIEW_REFRESH_INTERVAL), every(MINUTE_LINE_INTERVAL));
    let (mut stop_requested, mut output_error) = (false, None);
    loop {
        tokio::select! {
            () = stop_handles.threads_done.wait_receivers_dropped() => break,
            () = signals.next() => {
                if stop_requested { stop_handles.abort.stop() } else { stop_handles.stop() }
                stop_requested = true;
            }
            _ = view_ticks.tick() => {
                view.show(sum);
                stop_handles.stop_if_failed(load);
            }
            _ = minute_ticks.tick() => if let Err(fault) = view.suspend(|| lines.write(&sum().counts)) {
                output_error.get_or_insert(fault);
                stop_handles.stop();
            }
        }
    }
    view.end();
    output_error.map_or(Ok(()), Err)
}

/// Waits for all tasks. Propagates panics, since figures without that task would be wrong.
async fn join_all(tasks: &mut JoinSet<()>) {
    while let Some(ended) = tasks.join_next().await {
        if let Err(Ok(panic)) = ended.map_err(JoinError::try_into_panic) {
            resume_unwind(panic);
        }
    }
}

fn every(span: Duration) -> tokio::time::Interval {
    let mut ticks = interval_at(Instant::now() + span, span);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    ticks
}
