//! Passes commit results from the spool to the thread whose sessions wait for them. A batch commits
//! the messages of many sessions at once, on the spool's thread; waking each session from there
//! would cost a system call each. The results are collected here, and the thread is woken once to
//! wake its own sessions.

use std::sync::{Arc, Mutex, PoisonError};

use spool::{CommitError, Done};
use tokio::sync::{Notify, oneshot};

/// The commit results for the sessions of one thread.
#[derive(Clone, Default)]
pub struct Answers {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    arrived: Mutex<Vec<Arrived>>,
    bell: Notify,
}

type Answer = Result<(), CommitError>;
type Arrived = (oneshot::Sender<Answer>, Answer);

impl Answers {
    /// Passes results on, and never returns. Must be spawned on the thread whose sessions wait.
    pub async fn hand_on(self) {
        loop {
            self.shared.bell.notified().await;
            for (waiter, answer) in self.shared.take() {
                // A session that is gone needs no result.
                drop(waiter.send(answer));
            }
        }
    }

    /// The callback for the spool, and the receiver for its result.
    pub(crate) fn expect(&self) -> (Done, oneshot::Receiver<Answer>) {
        let (waiter, answer) = oneshot::channel();
        let shared = self.shared.clone();
        (Box::new(move |result| shared.bring(waiter, result)), answer)
    }
}

impl Shared {
    fn bring(&self, waiter: oneshot::Sender<Answer>, answer: Answer) {
        let mut arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        arrived.push((waiter, answer));
        let first = arrived.len() == 1;
        drop(arrived);
        if first {
            self.bell.notify_one();
        }
    }

    fn take(&self) -> Vec<Arrived> {
        std::mem::take(&mut self.arrived.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
