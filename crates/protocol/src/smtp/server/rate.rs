//! How fast a message has to come. A message under way has memory that others wait for, so a stranger that sends a byte now
//! and then must not keep it.
//!
//! Time is cut into windows, from the 354 or the first chunk on; each has to bring its octets, whatever they are. The next
//! window begins when one was found to be full. What the driver asks and does meanwhile is not the client's time: while a
//! question is open no window ends.

use mail::Timestamp;

use super::{Session, replies};

/// A stretch of time and what came in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    began_at: Timestamp,
    octets: u64,
}

impl Session {
    /// The message may come now. What came before counts.
    pub(super) fn begin_window(&mut self) {
        if self.config.limits.data_rate_min > 0
            && !self.is_trusted()
            && let Some(transaction) = &mut self.transaction
        {
            let octets = (self.backlog.len() - self.backlog_used) as u64;
            transaction.window = Some(Window { began_at: self.heard_at, octets });
        }
    }

    /// So many octets came in.
    pub(super) fn count_octets(&mut self, octets: usize) {
        if let Some(window) = self.transaction.as_mut().and_then(|transaction| transaction.window.as_mut()) {
            window.octets += octets as u64;
        }
    }

    /// When it is found out whether the message comes fast enough.
    pub(super) fn window_end(&self) -> Option<Timestamp> {
        let window = self.transaction.as_ref()?.window?;
        Some(window.began_at + self.config.limits.data_rate_window)
    }

    /// Begins the next window, or ends the session where this one brought too little.
    pub(super) fn end_window(&mut self, now: Timestamp) {
        let octets_min = self.config.limits.window_octets_min();
        let window = self.transaction.as_mut().and_then(|transaction| transaction.window.as_mut());
        match window {
            Some(window) if window.octets < octets_min => self.close("data-rate", replies::TOO_SLOW),
            Some(window) => *window = Window { began_at: now, octets: 0 },
            None => {}
        }
    }
}
