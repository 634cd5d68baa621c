//! Limits on everything that a client could grow before its login. A session buffers at most one
//! command and the input of one call, besides the replies not sent yet.

use std::time::Duration;

/// The limits of a session before its login. Beyond each, the client gets a BYE and is disconnected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImapLimits {
    /// A command with its literals and its CRLF, or a line of an AUTHENTICATE exchange; lines of
    /// exchanges are also limited by [`crate::sasl::LINE_OCTETS_MAX`].
    pub command_octets_max: usize,
    /// Octets of a literal.
    pub literal_octets_max: usize,
    /// Commands other than logins, and logins that fail for lack of a backend.
    pub commands_max: u32,
    /// Failed logins.
    pub failed_logins_max: u32,
    /// Time the client may be silent before its login.
    pub idle_time_max: Duration,
    /// Time from the greeting to the login.
    pub login_time_max: Duration,
}

impl Default for ImapLimits {
    /// 16 KiB a command, 1 KiB a literal, 100 commands, 3 failed logins, a minute of silence, and 3
    /// minutes in all.
    fn default() -> Self {
        ImapLimits {
            command_octets_max: 16 << 10,
            literal_octets_max: 1 << 10,
            commands_max: 100,
            failed_logins_max: 3,
            idle_time_max: Duration::from_secs(60),
            login_time_max: Duration::from_secs(3 * 60),
        }
    }
}
