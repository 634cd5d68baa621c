//! A clock that was set back: moments that were kept would lie ahead for as long as the step, and hold mail all the while.
//!
//! What limits a next hop is brought no further ahead than it can be by the rules: a full bucket of its rate, one wait
//! for the probe, trouble of just now. Moments that the spool keeps (when a recipient is due) stay as they were promised.

use std::time::Duration;

use mail::Timestamp;

use crate::Queues;

/// Less than that is no step: clocks are adjusted all the time, and to wait so long does no harm.
const STEP_MIN: Duration = Duration::from_secs(1);

impl<R: Clone> Queues<R> {
    /// Notices a step back since the last time, and looks at every next hop again after one.
    pub(crate) fn tick(&mut self, now: Timestamp) {
        let last = std::mem::replace(&mut self.clock, now);
        if last.since(now) < STEP_MIN {
            return;
        }
        let all: Vec<u32> = self.hops.iter().map(|(hop, _)| hop).collect();
        self.moved_at = self.moved_at.map(|at| at.min(now));
        for hop in all {
            self.hops[hop].set_back(now);
            self.settle(now, hop);
        }
    }
}
