//! Limits on what clients can use.

use std::time::Duration;

use mail::Rate;

/// Limits on what clients can use, and the reply above each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientLimits {
    /// A command, including its line end (500).
    pub command_line_octets_max: usize,
    /// Commands without progress since the last accepted message (421).
    pub commands_max: u32,
    /// Refused commands in a session (421).
    pub errors_max: u32,
    /// Failed logins in a session (421).
    pub failed_logins_max: u32,
    /// Recipients of a message (452).
    pub recipients_max: usize,
    /// Recipients of a message after alias expansion (452).
    pub expanded_recipients_max: usize,
    /// The size of a message (552).
    pub message_octets_max: u64,
    /// The size of its header (552).
    pub header_octets_max: u64,
    /// Received lines of a message (554).
    pub received_max: u32,
    /// The duration of a session (421).
    pub session_time_max: Duration,
    /// Time without input from a client (421).
    pub idle_time_max: Duration,
    /// Bytes per second of a message from an untrusted client, averaged over a window (421); 0: no
    /// limit.
    pub data_rate_min: u64,
    /// The window.
    pub data_rate_window: Duration,
    /// Concurrent sessions (421).
    pub sessions_max: usize,
    /// Concurrent sessions from one address outside the relay networks (421).
    pub sessions_per_client_max: usize,
    /// Memory for message bodies before they reach the spool.
    pub body_memory_max: u64,
    /// A body larger than this is written to a file of its own.
    pub spill_above: u64,
    /// How long a new message waits for body memory (452).
    pub message_wait_max: Duration,
    /// Connections from one address outside the relay networks (421); None: no limit.
    pub connections_per_client: Option<Rate>,
    /// Messages from one address outside the relay networks (451); None: no limit.
    pub messages_per_client: Option<Rate>,
    /// Connections that wait in the kernel to be accepted.
    pub backlog: u32,
}

impl Default for ClientLimits {
    fn default() -> Self {
        ClientLimits {
            command_line_octets_max: 4096,
            commands_max: 100,
            errors_max: 20,
            failed_logins_max: 3,
            recipients_max: 1000,
            expanded_recipients_max: 10_000,
            message_octets_max: 50 << 20,
            header_octets_max: 256 << 10,
            received_max: 100,
            session_time_max: Duration::from_secs(2 * 3600),
            idle_time_max: Duration::from_secs(5 * 60),
            data_rate_min: 500,
            data_rate_window: Duration::from_secs(5 * 60),
            sessions_max: 10_000,
            sessions_per_client_max: 100,
            body_memory_max: 128 << 20,
            spill_above: 1 << 20,
            message_wait_max: Duration::from_secs(10),
            connections_per_client: None,
            messages_per_client: None,
            backlog: 1024,
        }
    }
}
