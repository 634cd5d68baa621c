//! Limits on everything that a peer could grow. A session buffers at most one command line and the
//! input of one call, besides the replies not sent yet.

use std::time::Duration;

/// The limits of a session, each with the reply to a peer that exceeds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionLimits {
    /// A command line with its CRLF. Beyond: 500 5.5.2, and the line is discarded up to its CRLF.
    /// RFC 5321 section 4.5.3.1.4 requires at least 512, and extensions add to it. AUTH and its
    /// exchange may always use lines of 12,288 octets (RFC 4954 section 4).
    pub command_line_octets_max: usize,
    /// Commands without progress (NOOP, RSET, greetings, refused commands) since the last accepted
    /// message. The next such command: 421 4.7.0, close. A refused RCPT does not count once its
    /// transaction has a recipient.
    pub commands_max: u32,
    /// Commands and messages with a 5xx reply, and RCPT with a 454. The next one: 421 4.7.0, close.
    pub errors_max: u32,
    /// Failed authentication attempts in a session (RFC 4954 section 4). The next one: 421 4.7.0,
    /// close.
    pub failed_logins_max: u32,
    /// Accepted recipients of a transaction, announced as RCPTMAX (RFC 9422). Beyond: 452 4.5.3.
    pub recipients_max: usize,
    /// Octets of a message, announced as SIZE (RFC 1870). Beyond: 552 5.3.4; to MAIL if SIZE=
    /// exceeds it, to BDAT if its chunk does, otherwise after the end of the data.
    pub message_octets_max: u64,
    /// Octets of a message's header. Beyond: 552 5.3.4 after the end of the data.
    pub header_octets_max: u64,
    /// Received lines of a message. Beyond: 554 5.4.6 after the end of the data; the mail is
    /// looping.
    pub received_max: u32,
    /// Time from the banner to the last reply. After: 421 4.4.2, close.
    pub session_time_max: Duration,
    /// Time the peer may be silent while it is its turn (RFC 5321 section 4.5.3.2.7). After: 421
    /// 4.4.2, close.
    pub idle_time_max: Duration,
    /// The lowest data rate of a message in octets per second, averaged over each
    /// [`data_rate_window`](SessionLimits::data_rate_window) from the 354 or the first chunk on;
    /// not for clients that have logged in or may relay. 0: no limit. Below: 421 4.4.2, close.
    pub data_rate_min: u64,
    /// The length of the measuring window; also the initial time without a check.
    pub data_rate_window: Duration,
}

impl SessionLimits {
    /// The octets that each window of a message must contain.
    pub(super) fn window_octets_min(&self) -> u64 {
        let octets = u128::from(self.data_rate_min) * self.data_rate_window.as_millis() / 1000;
        u64::try_from(octets).unwrap_or(u64::MAX)
    }
}

impl Default for SessionLimits {
    fn default() -> Self {
        SessionLimits {
            command_line_octets_max: 4096,
            commands_max: 100,
            errors_max: 20,
            failed_logins_max: 3,
            recipients_max: 1000,
            message_octets_max: 50 << 20,
            header_octets_max: 256 << 10,
            received_max: 100,
            session_time_max: Duration::from_secs(2 * 60 * 60),
            idle_time_max: Duration::from_secs(5 * 60),
            data_rate_min: 0,
            data_rate_window: Duration::from_secs(5 * 60),
        }
    }
}
