//! Brings the spool's answers to the thread whose sessions wait for them. A batch answers many sessions at
//! once, on the spool's thread; waking each of them from there would cost a system call for each. Here they
//! gather, the thread is woken once, and wakes its own sessions without leaving itself.

use std::sync::{Arc, Mutex, PoisonError};

use spool::{CommitError, Done};
use tokio::sync::{Notify, oneshot};

/// The letter box of one thread.
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
    /// Hands answers on for ever. To be spawned on the thread whose sessions wait.
    pub async fn hand_on(self) {
        loop {
            self.shared.bell.notified().await;
            for (waiter, answer) in self.shared.take() {
                // A session that is gone asks no more.
                drop(waiter.send(answer));
            }
        }
    }

    /// What to give the spool, and what to wait for.
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
