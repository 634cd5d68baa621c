//! How far an operator's action is. Whoever asked for it shares the counts with the queues, and sees when all that
//! was picked is recorded, without a visit to the queues.
//!
//! | a picked recipient | counts as |
//! |---|---|
//! | its outcome is not durable yet | picked, and neither recorded nor dropped |
//! | [`Attempt::note_recorded`](crate::Attempt::note_recorded) was called | recorded |
//! | the attempt was reported without it, or a later action took the recipient over | dropped: the action was not done |

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::OperatorAction;

/// The counts of one action, which only grow.
#[derive(Debug, Default)]
pub struct ActProgress {
    picked: AtomicUsize,
    recorded: AtomicUsize,
    dropped: AtomicUsize,
}

/// A reading of [`ActProgress`], in recipients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ActCounts {
    /// Those that are recorded.
    pub recorded: usize,
    /// Those that are picked and not recorded yet.
    pub pending: usize,
    /// Those that were picked, and for which the action was not done.
    pub dropped: usize,
}

impl ActProgress {
    /// The counts now.
    pub fn counts(&self) -> ActCounts {
        // The others first: they never exceed what was picked before.
        let (recorded, dropped) = (self.recorded.load(Relaxed), self.dropped.load(Relaxed));
        let pending = self.picked.load(Relaxed).saturating_sub(recorded + dropped);
        ActCounts { recorded, pending, dropped }
    }

    pub(crate) fn note_picked(&self, count: usize) {
        self.picked.fetch_add(count, Relaxed);
    }

    pub(crate) fn note_recorded(&self, count: usize) {
        self.recorded.fetch_add(count, Relaxed);
    }

    pub(crate) fn note_dropped(&self, count: usize) {
        self.dropped.fetch_add(count, Relaxed);
    }
}

/// An action with its counts.
#[derive(Clone, Debug)]
pub struct TrackedAction {
    /// What is done.
    pub action: OperatorAction,
    /// How far it is.
    pub progress: Arc<ActProgress>,
    /// Only count: nothing is picked.
    pub dry_run: bool,
}

impl From<OperatorAction> for TrackedAction {
    fn from(action: OperatorAction) -> Self {
        TrackedAction { action, progress: Arc::default(), dry_run: false }
    }
}
