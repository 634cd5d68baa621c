//! Limits on everything that a client could grow.
//!
//! A session holds at most one incomplete command line and the input of one call;
//! [`OUTPUT_WAITING_MAX`] of output, and what one more command, or one more piece of a message, adds
//! to it; and a bit for each message once one is marked as deleted. So with a client that never
//! reads, and pieces of at most 64 KiB (encoding at most doubles them), that is less than 200 KiB of
//! output, in a buffer of less than 400 KiB, and less than 80 KiB of input.

use std::time::Duration;

/// While this much output waits to be sent, in octets, no other command is processed, and no other
/// part of a list or a message is made.
pub const OUTPUT_WAITING_MAX: usize = 64 << 10;

/// The limits of a session, each with what happens beyond it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pop3Limits {
    /// A command line with its line end. Beyond: -ERR, and the rest of the line is discarded. RFC
    /// 2449 section 4 requires at least 255; the longest password and user name that are possible
    /// fit into the default, also in UTF-8 (RFC 6856). AUTH and its responses may always use lines
    /// of 12,288 octets (RFC 4954 section 4).
    pub command_line_octets_max: usize,
    /// Commands without progress (NOOP, RSET, lists, refused commands) since the last command about
    /// one message. The next one: -ERR, close.
    pub commands_max: u32,
    /// Commands that are unknown, malformed, or not possible in the state of the session. The next
    /// one: -ERR, close. A command about a message that is gone does not count here.
    pub errors_max: u32,
    /// Failed authentication attempts. The next one: -ERR, close.
    pub failed_logins_max: u32,
    /// Time from the greeting to the end. After: closed.
    pub session_time_max: Duration,
    /// Time that a client may neither send anything nor accept output, once it has logged in. After:
    /// closed without a reply, and nothing is deleted (RFC 1939 section 3, which requires at least
    /// ten minutes).
    pub idle_time_max: Duration,
    /// Time from the greeting, the TLS handshake or the last answered attempt to the next login,
    /// without the time for answers. After: closed without a reply.
    pub login_time_max: Duration,
}

impl Default for Pop3Limits {
    fn default() -> Self {
        Pop3Limits {
            command_line_octets_max: 1024,
            commands_max: 1000,
            errors_max: 20,
            failed_logins_max: 3,
            session_time_max: Duration::from_secs(4 * 60 * 60),
            idle_time_max: Duration::from_secs(10 * 60),
            login_time_max: Duration::from_secs(60),
        }
    }
}
