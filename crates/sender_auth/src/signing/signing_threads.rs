//! The threads that sign: the key operations of RSA take a good part of a millisecond, which no
//! session waits for but its own. The line before them is bounded; when it is full, a session waits
//! for a place, for a limited time.
//!
//! While other jobs wait, results are kept for a moment and passed on together: the thread of the
//! sessions then runs for many messages at once, and they reach the spool as one batch.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::job_line::JobLine;
use super::result_notifier::{FinishedJob, ResultNotifiers, pass_on};

/// A result is kept no longer, except for the time of one more job.
const RESULT_KEPT_MAX: Duration = Duration::from_millis(8);

/// None: the session has ended.
type Job = Box<dyn FnOnce() -> Option<FinishedJob> + Send>;

/// How many threads, and how long their line is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SigningThreadsConfig {
    /// Threads, at least 1.
    pub threads: usize,
    /// Jobs that wait for a thread.
    pub waiting_max: usize,
    /// How long a session waits for a place in the line.
    pub wait_max: Duration,
}

impl Default for SigningThreadsConfig {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        SigningThreadsConfig { threads, waiting_max: 1000, wait_max: Duration::from_secs(5) }
    }
}

/// The threads. They end with this handle, after the jobs in line.
pub(super) struct SigningThreads {
    line: Arc<JobLine<Job>>,
    notifiers: ResultNotifiers,
    places: Arc<Semaphore>,
    wait_max: Duration,
}

/// Why there is no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JobError {
    /// The line stayed full for too long.
    LineFull,
    /// The thread has ended in the middle of the job.
    ThreadEnded,
}

impl SigningThreads {
    pub(super) fn start(config: &SigningThreadsConfig) -> io::Result<SigningThreads> {
        let places = config.threads.max(1).saturating_add(config.waiting_max).min(Semaphore::MAX_PERMITS);
        let started = SigningThreads {
            line: Arc::default(),
            notifiers: ResultNotifiers::default(),
            places: Arc::new(Semaphore::new(places)),
            wait_max: config.wait_max,
        };
        for _ in 0..config.threads.max(1) {
            let line = started.line.clone();
            std::thread::Builder::new().name("signing".to_owned()).spawn(move || run_jobs(&line))?;
        }
        Ok(started)
    }

    /// Runs `compute` on one of the threads and waits for the result.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        compute: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, JobError> {
        let place = self.place().await?;
        let (notifier, (waiter, result)) = (self.notifiers.current(), oneshot::channel());
        self.line.push(Box::new(move || {
            let computed = (!waiter.is_closed()).then(compute);
            drop(place);
            computed.map(|computed| FinishedJob { notifier, delivery: Box::new(move || drop(waiter.send(computed))) })
        }));
        result.await.map_err(|_| JobError::ThreadEnded)
    }

    async fn place(&self) -> Result<OwnedSemaphorePermit, JobError> {
        let place = tokio::time::timeout(self.wait_max, self.places.clone().acquire_owned());
        place.await.ok().and_then(Result::ok).ok_or(JobError::LineFull)
    }
}

impl Drop for SigningThreads {
    fn drop(&mut self) {
        self.line.close();
    }
}

fn run_jobs(line: &JobLine<Job>) {
    while let Some(job) = line.pop() {
        run_together(job, line);
    }
}

/// Runs a job and those that wait behind it, for a limited time, and passes their results on.
fn run_together(first: Job, line: &JobLine<Job>) {
    let (begun, mut finished) = (Instant::now(), Vec::new());
    let mut next = Some(first);
    while let Some(job) = next {
        finished.extend(job());
        next = if begun.elapsed() < RESULT_KEPT_MAX { line.try_pop() } else { None };
    }
    pass_on(finished);
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_full_line_is_waited_for_and_then_an_error() {
        let config = SigningThreadsConfig { threads: 1, waiting_max: 1, wait_max: Duration::from_secs(5) };
        let threads = Arc::new(SigningThreads::start(&config).unwrap());
        let (release, released) = channel::<()>();
        let (busy, waiting) = (threads.clone(), threads.clone());
        let first = tokio::spawn(async move { busy.run(move || released.recv().is_ok()).await });
        let second = tokio::spawn(async move { waiting.run(|| 2).await });
        while threads.places.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(threads.run(|| 3).await, Err(JobError::LineFull));
        release.send(()).unwrap();
        assert_eq!((first.await.unwrap(), second.await.unwrap()), (Ok(true), Ok(2)));
        assert_eq!(threads.run(|| 4).await, Ok(4));
    }

    #[tokio::test]
    async fn a_job_whose_thread_ends_has_an_error_of_its_own() {
        let config = SigningThreadsConfig { threads: 1, ..SigningThreadsConfig::default() };
        let threads = SigningThreads::start(&config).unwrap();
        let ended = threads.run(|| std::panic::resume_unwind(Box::new("the operation fails"))).await;
        assert_eq!(ended, Err::<(), _>(JobError::ThreadEnded));
    }

    #[tokio::test]
    async fn jobs_that_wait_behind_others_run_in_their_order_and_none_is_forgotten() {
        let config = SigningThreadsConfig { threads: 1, ..SigningThreadsConfig::default() };
        let threads = SigningThreads::start(&config).unwrap();
        let (sender, order) = channel();
        let jobs = (0..50).map(|number| {
            let sender = sender.clone();
            threads.run(move || {
                std::thread::sleep(RESULT_KEPT_MAX / 16);
                sender.send(number).unwrap();
                number
            })
        });
        let results = futures_util::future::join_all(jobs).await;
        assert_eq!(results.into_iter().collect::<Result<Vec<_>, _>>(), Ok((0..50).collect()));
        assert_eq!(order.try_iter().collect::<Vec<_>>(), (0..50).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn a_session_that_has_ended_costs_no_signature() {
        let config = SigningThreadsConfig { threads: 1, ..SigningThreadsConfig::default() };
        let threads = SigningThreads::start(&config).unwrap();
        let (release, released) = channel::<()>();
        let (sender, ran) = channel();
        let busy = threads.run(move || released.recv().is_ok());
        let ended = threads.run(move || sender.send(()));
        let first = tokio::select! {
            biased;
            _ = futures_util::future::join(busy, ended) => None,
            () = tokio::task::yield_now() => Some(()),
        };
        assert_eq!(first, Some(()), "both sessions end before their results come");
        release.send(()).unwrap();
        assert_eq!(threads.run(|| 1).await, Ok(1));
        assert!(ran.try_recv().is_err());
    }
}
