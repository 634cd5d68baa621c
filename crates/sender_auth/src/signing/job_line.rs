//! The line before the signing threads: first come, first served. Its length is limited by those who
//! put jobs into it.

use std::collections::VecDeque;

use parking_lot::{Condvar, Mutex};

/// Jobs that wait for a thread.
pub(super) struct JobLine<J> {
    waiting: Mutex<WaitingJobs<J>>,
    changed: Condvar,
}

struct WaitingJobs<J> {
    jobs: VecDeque<J>,
    is_closed: bool,
}

impl<J> Default for JobLine<J> {
    fn default() -> Self {
        JobLine {
            waiting: Mutex::new(WaitingJobs { jobs: VecDeque::new(), is_closed: false }),
            changed: Condvar::new(),
        }
    }
}

impl<J> JobLine<J> {
    pub(super) fn push(&self, job: J) {
        self.waiting.lock().jobs.push_back(job);
        self.changed.notify_one();
    }

    /// The next job, if there is one.
    pub(super) fn try_pop(&self) -> Option<J> {
        self.waiting.lock().jobs.pop_front()
    }

    /// Waits for the next job. None: the line is closed and empty.
    pub(super) fn pop(&self) -> Option<J> {
        let mut waiting = self.waiting.lock();
        loop {
            match waiting.jobs.pop_front() {
                None if !waiting.is_closed => self.changed.wait(&mut waiting),
                job => return job,
            }
        }
    }

    /// No further jobs come.
    pub(super) fn close(&self) {
        self.waiting.lock().is_closed = true;
        self.changed.notify_all();
    }
}
