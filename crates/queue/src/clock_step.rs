//! Corrects stored times after the clock was set back. Without this, times that now lie far ahead
//! would block mail for the length of the step.
//!
//! Times that limit a next hop are moved no further ahead than the rules allow: a full rate bucket,
//! one wait for a probe, trouble just now. Times that the spool stores, such as when a recipient is
//! due, are kept.

use std::time::Duration;

use mail::Timestamp;

use crate::Queues;

/// Smaller steps are ignored: clocks are adjusted all the time, and waiting that long does no harm.
const STEP_MIN: Duration = Duration::from_secs(1);

impl<R: Clone> Queues<R> {
    /// Detects a step back since the last call and corrects every next hop after one.
    pub(crate) fn handle_clock_step(&mut self, now: Timestamp) {
        let last = std::mem::replace(&mut self.last_now, now);
        if last.since(now) < STEP_MIN {
            return;
        }
        let all: Vec<u32> = self.hops.iter().map(|(hop, _)| hop).collect();
        self.moved_check_at = self.moved_check_at.map(|at| at.min(now));
        for hop in all {
            self.hops[hop].clamp_to_clock(now);
            self.update_next_hop(now, hop);
        }
    }
}
