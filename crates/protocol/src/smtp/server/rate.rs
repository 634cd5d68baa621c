//! The minimum data rate of messages. A message in progress uses memory that others wait for, so an
//! untrusted client that sends a byte now and then must not occupy it.
//!
//! Time is divided into windows, from the 354 or the first chunk on; each must bring a minimum of
//! octets of any kind. The next window begins when the last one was found sufficient. Time the
//! driver needs does not count: no window ends while a question is pending.

use mail::Timestamp;

use super::{SmtpSession, replies};

/// A span of time and the octets received in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct RateWindow {
    began_at: Timestamp,
    octets: u64,
}

impl SmtpSession {
    /// Starts measuring; input received before counts.
    pub(super) fn begin_window(&mut self) {
        if self.config.limits.data_rate_min > 0
            && !self.is_trusted()
            && let Some(transaction) = &mut self.transaction
        {
            let octets = (self.backlog.len() - self.backlog_used) as u64;
            transaction.window = Some(RateWindow { began_at: self.heard_at, octets });
        }
    }

    /// Counts octets received.
    pub(super) fn count_octets(&mut self, octets: usize) {
        if let Some(window) = self.transaction.as_mut().and_then(|transaction| transaction.window.as_mut()) {
            window.octets += octets as u64;
        }
    }

    /// When to check whether the message comes fast enough.
    pub(super) fn window_end(&self) -> Option<Timestamp> {
        let window = self.transaction.as_ref()?.window?;
        Some(window.began_at + self.config.limits.data_rate_window)
    }

    /// Starts the next window, or ends the session if this one brought too little.
    pub(super) fn end_window(&mut self, now: Timestamp) {
        let octets_min = self.config.limits.window_octets_min();
        let window = self.transaction.as_mut().and_then(|transaction| transaction.window.as_mut());
        match window {
            Some(window) if window.octets < octets_min => self.close("data-rate", replies::TOO_SLOW),
            Some(window) => *window = RateWindow { began_at: now, octets: 0 },
            None => {}
        }
    }
}
