//! Everything that a peer could make grow, and where it stops growing. A session holds at most one command line and
//! the input of one call beside the replies that it has not sent.

use std::time::Duration;

/// The limits of a session, each with the reply that a peer gets who goes beyond it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// A command line with its CRLF. Beyond: 500 5.5.2, and the line is discarded up to its CRLF. RFC 5321 section
    /// 4.5.3.1.4 wants 512 at least, and extensions add to it. AUTH and the lines of its exchange may have 12,288 octets
    /// in any case (RFC 4954 section 4).
    pub command_line_octets_max: usize,
    /// Commands that brought no mail forward (NOOP, RSET, greetings, refused ones) since a message was last accepted.
    /// The next such command: 421 4.7.0, close. A refused RCPT does not count once its transaction has a recipient.
    pub commands_max: u32,
    /// Commands and messages of a session that were answered with 5xx, and RCPT with 454. The next such: 421 4.7.0, close.
    pub errors_max: u32,
    /// Tries to log in that failed in a session (RFC 4954 section 4). The next such: 421 4.7.0, close.
    pub failed_logins_max: u32,
    /// Accepted recipients of a transaction, announced as RCPTMAX (RFC 9422). Beyond: 452 4.5.3.
    pub recipients_max: usize,
    /// Octets of a message, announced as SIZE (RFC 1870). Beyond: 552 5.3.4, to MAIL where SIZE= says so, to BDAT where
    /// its chunk goes beyond, else after the end of the data.
    pub message_octets_max: u64,
    /// Octets of a message's header. Beyond: 552 5.3.4 after the end of the data.
    pub header_octets_max: u64,
    /// Received lines of a message. Beyond: 554 5.4.6 after the end of the data; it goes round in a loop.
    pub received_max: u32,
    /// From the banner to the last reply. After: 421 4.4.2, close.
    pub session_time_max: Duration,
    /// Silence of the peer while it is its turn (RFC 5321 section 4.5.3.2.7). After: 421 4.4.2, close.
    pub idle_time_max: Duration,
    /// Octets a second that a message has to bring, on average over each [`data_rate_window`](Limits::data_rate_window)
    /// from the 354 or the first chunk on, unless its client has logged in or may relay. 0: no limit. Fewer: 421 4.4.2,
    /// close.
    pub data_rate_min: u64,
    /// Over how long that is measured; so long, too, nothing is asked of a message that has just begun.
    pub data_rate_window: Duration,
}

impl Limits {
    /// The octets that each window of a message has to bring.
    pub(super) fn window_octets_min(&self) -> u64 {
        let octets = u128::from(self.data_rate_min) * self.data_rate_window.as_millis() / 1000;
        u64::try_from(octets).unwrap_or(u64::MAX)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
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
