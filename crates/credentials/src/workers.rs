//! The threads that compute hashes: few, at low priority, with a bounded queue, so that floods of
//! wrong passwords do not take CPU time from mail.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

/// The nice value of the threads: about a tenth of a busy processor beside threads of nice 0.
const NICE: i32 = 10;

type Job = Box<dyn FnOnce() + Send>;

/// The threads. They end with this handle, after their current job.
pub(super) struct HashWorkers {
    shared: Arc<Shared>,
    queue_max: usize,
}

struct Shared {
    queue: Mutex<JobQueue>,
    arrived: Condvar,
}

#[derive(Default)]
struct JobQueue {
    jobs: VecDeque<Job>,
    is_closed: bool,
}

/// The queue is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many passwords are waiting to be checked")]
pub(super) struct QueueFull;

impl HashWorkers {
    /// Starts this number of threads.
    pub(super) fn start(threads: usize, queue_max: usize) -> std::io::Result<HashWorkers> {
        let shared = Arc::new(Shared { queue: Mutex::default(), arrived: Condvar::new() });
        let workers = HashWorkers { shared, queue_max };
        for _ in 0..threads.max(1) {
            let shared = workers.shared.clone();
            std::thread::Builder::new().name("credentials".to_owned()).spawn(move || shared.run_jobs())?;
        }
        Ok(workers)
    }

    /// Runs `compute` on one of the threads and waits for the result. If dropped, a job that has
    /// not started is skipped.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        compute: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, QueueFull> {
        let (answer, answered) = oneshot::channel();
        self.push(Box::new(move || {
            if !answer.is_closed() {
                let _ = answer.send(compute());
            }
        }))?;
        answered.await.map_err(|_| QueueFull)
    }

    /// Jobs in the queue.
    pub(super) fn waiting(&self) -> usize {
        self.shared.queue.lock().jobs.len()
    }

    fn push(&self, job: Job) -> Result<(), QueueFull> {
        let mut queue = self.shared.queue.lock();
        if queue.jobs.len() >= self.queue_max.max(1) {
            return Err(QueueFull);
        }
        queue.jobs.push_back(job);
        drop(queue);
        self.shared.arrived.notify_one();
        Ok(())
    }
}

impl Drop for HashWorkers {
    fn drop(&mut self) {
        let mut queue = self.shared.queue.lock();
        queue.is_closed = true;
        queue.jobs.clear();
        drop(queue);
        self.shared.arrived.notify_all();
    }
}

impl Shared {
    fn run_jobs(&self) {
        // On Linux this sets the priority of this thread only (setpriority(2)). Without permission,
        // continue at the priority of the process.
        let ours = rustix::process::getpriority_process(None).unwrap_or_default();
        let _ = rustix::process::setpriority_process(None, NICE.max(ours));
        while let Some(job) = self.next_job() {
            job();
        }
    }

    fn next_job(&self) -> Option<Job> {
        let mut queue = self.queue.lock();
        loop {
            match queue.jobs.pop_front() {
                _ if queue.is_closed => return None,
                Some(job) => return Some(job),
                None => self.arrived.wait(&mut queue),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn hash_threads_have_low_priority() {
        let nice = || rustix::process::getpriority_process(None).unwrap();
        let ours = nice();
        let workers = HashWorkers::start(1, 1).unwrap();
        assert_eq!(workers.run(nice).await.unwrap(), NICE.max(ours), "a hash thread");
        assert_eq!(nice(), ours, "other threads");
    }
}
