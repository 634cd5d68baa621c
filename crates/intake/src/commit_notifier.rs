//! Passes commit results from the spool to the thread whose sessions wait for them. A batch commits
//! the messages of many sessions at once, on the spool's thread; waking each session from there
//! would cost a system call each. The results are collected here, and the thread is woken once to
//! wake its own sessions.

use std::sync::Arc;

use parking_lot::Mutex;
use spool::{CommitCallback, CommitError};
use tokio::sync::{Notify, oneshot};

/// The commit results for the sessions of one thread.
#[derive(Clone, Default)]
pub struct CommitNotifier {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    completed: Mutex<Vec<CompletedCommit>>,
    notify: Notify,
}

type CommitResult = Result<(), CommitError>;
/// The callback for the spool, and the receiver for its result.
pub(crate) type CommitTicket = (CommitCallback, oneshot::Receiver<CommitResult>);
type CompletedCommit = (oneshot::Sender<CommitResult>, CommitResult);

impl CommitNotifier {
    /// Passes results on, and never returns. Must be spawned on the thread whose sessions wait.
    pub async fn run(self) {
        loop {
            self.shared.notify.notified().await;
            for (waiter, answer) in self.shared.take_completed() {
                // A session that is gone needs no result.
                drop(waiter.send(answer));
            }
        }
    }

    /// A ticket for one commit.
    pub(crate) fn register(&self) -> CommitTicket {
        let (waiter, answer) = oneshot::channel();
        let shared = self.shared.clone();
        (Box::new(move |result| shared.push(waiter, result)), answer)
    }
}

/// A ticket for a thread that waits for one commit at a time: the spool's thread wakes it directly.
pub(crate) fn single_ticket() -> CommitTicket {
    let (waiter, answer) = oneshot::channel();
    (Box::new(move |result| drop(waiter.send(result))), answer)
}

impl Shared {
    fn push(&self, waiter: oneshot::Sender<CommitResult>, answer: CommitResult) {
        let mut completed = self.completed.lock();
        completed.push((waiter, answer));
        let first = completed.len() == 1;
        drop(completed);
        if first {
            self.notify.notify_one();
        }
    }

    fn take_completed(&self) -> Vec<CompletedCommit> {
        std::mem::take(&mut self.completed.lock())
    }
}
