//! Runs a load: distributes connections over threads until all tickets are used, and shows the
//! progress.
//!
//! A load defines what one connection does ([`Load::carry`]); the engine knows no protocol. The
//! first Ctrl-C or SIGTERM stops new tickets and lets open ones finish; the second one aborts those
//! too. Both end with a summary.

use std::cell::Cell;
use std::future::Future;
use std::net::IpAddr;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use net::{Stop, Stopper};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};

use crate::meanwhile::Meanwhile;
use crate::options::LoadOptions;
use crate::pace::{Pace, Ticket};
use crate::runtime::runtime;
use crate::signals::Signals;
use crate::summary::{Counted, Summary};
use crate::tally::Tally;
use crate::view::{MinuteLines, View};
use crate::{Fault, handles, sys};

/// How often the progress on a terminal is redrawn.
const VIEW_INTERVAL: Duration = Duration::from_millis(250);
/// How often the line in postal's format is written.
const LINE_INTERVAL: Duration = Duration::from_secs(60);
/// How long a connection slot pauses after a failed ticket.
const REST: Duration = Duration::from_millis(100);
/// Open files that the process needs besides its connections and runtimes.
const HANDLES_OTHER: u64 = 64;
const HANDLES_PER_THREAD: u64 = 8;

/// What one connection slot does.
pub(crate) trait Load: Send + Sync + 'static {
    /// What is counted and timed.
    const COUNTED: Counted;

    /// Processes tickets until there are none left.
    fn carry(self: Arc<Self>, worker: Worker) -> impl Future<Output = ()> + Send;

    /// Whether the run must stop. The load reports the reason when it is closed.
    fn is_faulty(&self) -> bool {
        false
    }
}

/// A run with its options.
#[derive(Debug)]
pub(crate) struct Run<'a> {
    /// For the summary: `smtp 127.0.0.1:25`.
    pub(crate) title: String,
    pub(crate) options: &'a LoadOptions,
    /// The number of tickets; None is no limit.
    pub(crate) count: Option<u64>,
    /// Set by a caller that controls the run. Then there is no progress, no minute line, and
    /// signals are not handled.
    pub(crate) told: Option<Stop>,
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
    pace: Arc<Pace>,
    tally: Arc<Mutex<Tally>>,
    stop: Stop,
}

impl Worker {
    /// Waits for the next ticket; None when the run ends.
    pub(crate) async fn next(&mut self) -> Option<Ticket> {
        let ticket = self.pace.next(&mut self.stop).await?;
        self.tally().counts.begun += 1;
        Some(ticket)
    }

    /// Counts a ticket that failed because the connection failed. Pauses, so that a closed loop
    /// does not reconnect to a dead server at full speed.
    pub(crate) async fn gave_up(&mut self, error: String) {
        {
            let mut tally = self.tally();
            tally.error(error);
            tally.failed(Instant::now());
        }
        tokio::select! {
            () = sleep(REST) => {}
            () = self.stop.requested() => {}
        }
    }

    /// The counters of this thread. Do not hold the lock across an await.
    pub(crate) fn tally(&self) -> MutexGuard<'_, Tally> {
        lock(&self.tally)
    }

    /// The deadline of a step that begins now.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.timeout
    }
}

fn lock(tally: &Mutex<Tally>) -> MutexGuard<'_, Tally> {
    // Counting does not panic, so the data is consistent.
    tally.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a load to its end.
pub(crate) fn run<L: Load>(run: Run<'_>, load: &Arc<L>) -> Result<Summary, Fault> {
    let LoadOptions { connections, threads, .. } = run.options;
    handles::raise(u64::from(*connections) + u64::from(*threads) * HANDLES_PER_THREAD + HANDLES_OTHER)?;
    let machine = Meanwhile::begin_with_disk(&run.options.disk)?;
    let watching = runtime()?;
    let ((stopper, stop), (axe, axed), (gone, present)) = (Stopper::new(), Stopper::new(), Stopper::new());
    let words = Words { stop: stopper, stopped_at: Cell::new(None), axe, gone };
    let pace = Arc::new(Pace::begin(run.options.rate, run.count, run.options.duration));
    let mut crew = Crew { pace, tallies: Vec::new(), threads: Vec::new() };
    let mut numbers = 0..*threads as usize;
    let hired = numbers.try_for_each(|thread| crew.hire(thread, run.options, load, (&stop, &axed), present.clone()));
    drop((axed, present));
    let watched = hired.and_then(|()| watching.block_on(watch(&run, load.as_ref(), &crew, &words)));
    if watched.is_err() {
        words.axe.stop();
    }
    let stopped_at = words.stopped_at.get();
    for thread in crew.threads.drain(..) {
        thread.join().unwrap_or_else(|panic| resume_unwind(panic));
    }
    watched?;
    let mut tally = crew.sum(L::COUNTED.phases.len());
    let missed = crew.pace.missed(stopped_at.unwrap_or_else(Instant::now));
    missed.waits().for_each(|wait| tally.missed(wait));
    let summary = Summary::of(run.title, &L::COUNTED, &tally, crew.pace.begun(), machine.end());
    Ok(Summary { stopped: stopped_at.is_some(), ..summary })
}

/// Stops the threads, and tells when they are done.
struct Words {
    /// No more tickets.
    stop: Stopper,
    /// When `stop` was requested.
    stopped_at: Cell<Option<Instant>>,
    /// Aborts open tickets.
    axe: Stopper,
    /// Each thread holds a handle until it is done.
    gone: Stopper,
}

impl Words {
    fn stop(&self) {
        self.stopped_at.set(self.stopped_at.get().or_else(|| Some(Instant::now())));
        self.stop.stop();
    }

    fn stop_if_faulty(&self, load: &impl Load) {
        if load.is_faulty() {
            self.stop();
        }
    }
}

/// The threads and their counters.
struct Crew {
    pace: Arc<Pace>,
    tallies: Vec<Arc<Mutex<Tally>>>,
    threads: Vec<JoinHandle<()>>,
}

impl Crew {
    /// Starts a thread with its share of the connections. It holds `present` until it is done.
    fn hire<L: Load>(
        &mut self,
        thread: usize,
        options: &LoadOptions,
        load: &Arc<L>,
        (stop, axed): (&Stop, &Stop),
        present: Stop,
    ) -> Result<(), Fault> {
        let tally = Arc::new(Mutex::new(Tally::new(L::COUNTED.phases.len())));
        self.tallies.push(tally.clone());
        let numbers = (thread..options.connections as usize).step_by(options.threads as usize);
        let workers: Vec<Worker> = numbers
            .map(|number| Worker {
                number,
                local: options.local.get(number % options.local.len().max(1)).copied(),
                timeout: options.timeout,
                random: fastrand::Rng::with_seed(options.seed.wrapping_add(number as u64)),
                pace: self.pace.clone(),
                tally: tally.clone(),
                stop: stop.clone(),
            })
            .collect();
        let (runtime, load, mut axed) = (runtime()?, load.clone(), axed.clone());
        let is_closed_loop = options.rate.is_none();
        let work = move || {
            // On the machine of the server, each of its answers would wake this thread and preempt
            // the server. An open loop must keep its schedule, so it stays with the default policy.
            if is_closed_loop {
                sys::interrupt_nobody();
            }
            runtime.block_on(async {
                let mut tasks: JoinSet<()> = workers.into_iter().map(|worker| load.clone().carry(worker)).collect();
                tokio::select! {
                    () = all_of(&mut tasks) => {}
                    () = axed.requested() => {}
                }
            });
            drop(present);
        };
        let started = std::thread::Builder::new().name(format!("load-{thread}")).spawn(work);
        self.threads.push(started.map_err(Fault::system("starting a thread"))?);
        Ok(())
    }

    fn sum(&self, phases: usize) -> Tally {
        let mut sum = Tally::new(phases);
        self.tallies.iter().for_each(|tally| sum.add(&lock(tally)));
        sum
    }
}

/// Waits until all threads are done. Shows the progress, unless the caller controls the run.
async fn watch<L: Load>(run: &Run<'_>, load: &L, crew: &Crew, words: &Words) -> Result<(), Fault> {
    match run.told.clone() {
        Some(told) => obey(told, load, words).await,
        None => show(run, load, crew, words).await?,
    }
    words.gone.all_gone().await;
    Ok(())
}

/// Waits for the caller's stop request or the end of the run.
async fn obey(mut told: Stop, load: &impl Load, words: &Words) {
    let mut looks = every(VIEW_INTERVAL);
    loop {
        tokio::select! {
            () = words.gone.all_gone() => return,
            () = told.requested() => return words.stop(),
            _ = looks.tick() => words.stop_if_faulty(load),
        }
    }
}

async fn show<L: Load>(run: &Run<'_>, load: &L, crew: &Crew, words: &Words) -> Result<(), Fault> {
    let sum = || crew.sum(L::COUNTED.phases.len());
    let mut view = View::new(run.count, run.options.duration, L::COUNTED.unit);
    let mut lines = MinuteLines::new(run.options.json);
    let mut signals = Signals::hear()?;
    let (mut looks, mut minutes) = (every(VIEW_INTERVAL), every(LINE_INTERVAL));
    let (mut was_told, mut unheard) = (false, None);
    loop {
        tokio::select! {
            () = words.gone.all_gone() => break,
            () = signals.next() => {
                if was_told { words.axe.stop() } else { words.stop() }
                was_told = true;
            }
            _ = looks.tick() => {
                view.show(sum);
                words.stop_if_faulty(load);
            }
            _ = minutes.tick() => if let Err(fault) = view.above(|| lines.write(&sum().counts)) {
                unheard.get_or_insert(fault);
                words.stop();
            }
        }
    }
    view.end();
    unheard.map_or(Ok(()), Err)
}

/// Waits for all tasks. Propagates panics, since figures without that task would be wrong.
async fn all_of(tasks: &mut JoinSet<()>) {
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
