//! The threads that compute hashes: few, of low priority, and with a bounded line before them, so that no number of wrong
//! passwords takes the processors from those who carry mail.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// The nice value of the threads: where others of the usual 0 want the same processor they have about a tenth of it.
const NICE: i32 = 10;

type Job = Box<dyn FnOnce() + Send>;

/// The threads. They end with the last handle, after the job that they are at.
pub(super) struct Workers {
    shared: Arc<Shared>,
    line_max: usize,
}

struct Shared {
    line: Mutex<Line>,
    arrived: Condvar,
}

#[derive(Default)]
struct Line {
    jobs: VecDeque<Job>,
    is_closed: bool,
}

/// Too many wait already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many passwords wait to be checked")]
pub(super) struct Full;

impl Workers {
    /// Starts so many threads.
    pub(super) fn start(threads: usize, line_max: usize) -> std::io::Result<Workers> {
        let shared = Arc::new(Shared { line: Mutex::default(), arrived: Condvar::new() });
        let workers = Workers { shared, line_max };
        for _ in 0..threads.max(1) {
            let shared = workers.shared.clone();
            std::thread::Builder::new().name("credentials".to_owned()).spawn(move || shared.work())?;
        }
        Ok(workers)
    }

    /// Computes, on one of the threads, and waits for it. Dropped before, it is computed all the same, unless it has not
    /// begun.
    pub(super) async fn run<T: Send + 'static>(&self, compute: impl FnOnce() -> T + Send + 'static) -> Result<T, Full> {
        let (answer, answered) = oneshot::channel();
        self.push(Box::new(move || {
            if !answer.is_closed() {
                let _ = answer.send(compute());
            }
        }))?;
        answered.await.map_err(|_| Full)
    }

    /// Jobs that wait.
    pub(super) fn waiting(&self) -> usize {
        self.shared.line().jobs.len()
    }

    fn push(&self, job: Job) -> Result<(), Full> {
        let mut line = self.shared.line();
        if line.jobs.len() >= self.line_max.max(1) {
            return Err(Full);
        }
        line.jobs.push_back(job);
        drop(line);
        self.shared.arrived.notify_one();
        Ok(())
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        let mut line = self.shared.line();
        line.is_closed = true;
        line.jobs.clear();
        drop(line);
        self.shared.arrived.notify_all();
    }
}

impl Shared {
    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        // On Linux this concerns the thread alone (setpriority(2)). Where it is denied hashes are computed all the same.
        let _ = rustix::process::setpriority_process(None, NICE);
        while let Some(job) = self.next() {
            job();
        }
    }

    fn next(&self) -> Option<Job> {
        let mut line = self.line();
        loop {
            match line.jobs.pop_front() {
                _ if line.is_closed => return None,
                Some(job) => return Some(job),
                None => line = self.arrived.wait(line).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn hashes_stand_behind_mail() {
        let nice = || rustix::process::getpriority_process(None).unwrap();
        let ours = nice();
        let workers = Workers::start(1, 1).unwrap();
        assert_eq!(workers.run(nice).await.unwrap(), NICE.max(ours), "of a thread that computes");
        assert_eq!(nice(), ours, "of all others");
    }
}
