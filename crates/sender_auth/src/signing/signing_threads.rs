//! The threads that sign: the key operations of RSA take most of a millisecond, which no session
//! waits for but its own. The line before them is bounded; when it is full, a session waits for a
//! place, for a limited time.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

type Job = Box<dyn FnOnce() + Send>;

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
    jobs: Sender<Job>,
    places: Arc<Semaphore>,
    wait_max: Duration,
}

/// The line stayed full for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many messages wait to be signed")]
pub(super) struct LineFull;

impl SigningThreads {
    pub(super) fn start(config: &SigningThreadsConfig) -> io::Result<SigningThreads> {
        let (jobs, line) = channel();
        let line = Arc::new(Mutex::new(line));
        for _ in 0..config.threads.max(1) {
            let line = line.clone();
            std::thread::Builder::new().name("signing".to_owned()).spawn(move || run_jobs(&line))?;
        }
        let places = config.threads.max(1).saturating_add(config.waiting_max).min(Semaphore::MAX_PERMITS);
        Ok(SigningThreads { jobs, places: Arc::new(Semaphore::new(places)), wait_max: config.wait_max })
    }

    /// Runs `compute` on one of the threads and waits for the result.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        compute: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, LineFull> {
        let place = self.place().await?;
        let (answer, answered) = oneshot::channel();
        let job: Job = Box::new(move || {
            // The session may have ended.
            if !answer.is_closed() {
                let _ = answer.send(compute());
            }
            drop(place);
        });
        self.jobs.send(job).map_err(|_| LineFull)?;
        answered.await.map_err(|_| LineFull)
    }

    async fn place(&self) -> Result<OwnedSemaphorePermit, LineFull> {
        let place = tokio::time::timeout(self.wait_max, self.places.clone().acquire_owned());
        place.await.ok().and_then(Result::ok).ok_or(LineFull)
    }
}

fn run_jobs(line: &Mutex<Receiver<Job>>) {
    loop {
        let job = line.lock().recv();
        match job {
            Ok(job) => job(),
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
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
        assert_eq!(threads.run(|| 3).await, Err(LineFull));
        release.send(()).unwrap();
        assert_eq!((first.await.unwrap(), second.await.unwrap()), (Ok(true), Ok(2)));
        assert_eq!(threads.run(|| 4).await, Ok(4));
    }
}
