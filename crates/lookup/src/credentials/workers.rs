//! The threads that compute hashes: few, at low priority, with a bounded queue, so that floods of
//! wrong passwords do not take CPU time from mail.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// The nice value of the threads: about a tenth of a busy processor beside threads of nice 0.
const NICE: i32 = 10;

type Job = Box<dyn FnOnce() + Send>;

/// The threads. They end with this handle, after their current job.
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

/// The queue is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many passwords are waiting to be checked")]
pub(super) struct Full;

impl Workers {
    /// Starts this number of threads.
    pub(super) fn start(threads: usize, line_max: usize) -> std::io::Result<Workers> {
        let shared = Arc::new(Shared { line: Mutex::default(), arrived: Condvar::new() });
        let workers = Workers { shared, line_max };
        for _ in 0..threads.max(1) {
            let shared = workers.shared.clone();
            std::thread::Builder::new().name("credentials".to_owned()).spawn(move || shared.work())?;
        }
        Ok(workers)
    }

    /// Runs `compute` on one of the threads and waits for the result. If dropped, a job that has
    /// not started is skipped.
    pub(super) async fn run<T: Send + 'static>(&self, compute: impl FnOnce() -> T + Send + 'static) -> Result<T, Full> {
        let (answer, answered) = oneshot::channel();
        self.push(Box::new(move || {
            if !answer.is_closed() {
                let _ = answer.send(compute());
            }
        }))?;
        answered.await.map_err(|_| Full)
    }

    /// Jobs in the queue.
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
        // On Linux this sets the priority of this thread only (setpriority(2)). Without permission,
        // continue at normal priority.
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
        assert_eq!(workers.run(nice).await.unwrap(), NICE.max(ours), "a hash thread");
        assert_eq!(nice(), ours, "other threads");
    }
}
