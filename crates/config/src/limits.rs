//! Limits on what clients can use, and limits on system load, above which the server does less or
//! nothing.

use std::time::Duration;

use load::LoadLimits;
use mail::Networks;
use net::ConnectionLimits;
use protocol::smtp::server::SessionLimits;

/// Limits on what clients can use, and the reply above each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientLimits {
    /// Limits on each session.
    pub session: SessionLimits,
    /// Limits on sessions, connections and messages; those of one client apply only outside the
    /// relay networks.
    pub connections: ConnectionLimits,
    /// Clients that wait before the greeting; others are greeted at once.
    pub delayed_greetings_max: usize,
    /// Sessions of clients that read: POP3, HTTP and the proxies.
    pub reading_sessions_max: usize,
    /// Recipients of a message after alias expansion (452).
    pub expanded_recipients_max: usize,
    /// Memory for message bodies before they reach the spool.
    pub body_memory_max: u64,
    /// A body larger than this is written to a file of its own.
    pub spill_above: u64,
    /// How long a new message waits for body memory (452).
    pub message_wait_max: Duration,
    /// The octets of a message after its header whose lines content rules compare.
    pub content_body_octets_max: u64,
    /// The octets of lines of the body, with their line ends, that content rules look up in tables.
    pub content_body_lookup_octets_max: u64,
    /// Connections that wait in the kernel to be accepted.
    pub backlog: u32,
}

impl Default for ClientLimits {
    fn default() -> Self {
        ClientLimits {
            // Other servers of this protocol, such as the sinks of load tests, have no lowest rate.
            session: SessionLimits { data_rate_min: 500, ..SessionLimits::default() },
            connections: ConnectionLimits::default(),
            delayed_greetings_max: 5000,
            reading_sessions_max: 10_000,
            expanded_recipients_max: 10_000,
            body_memory_max: 128 << 20,
            spill_above: 1 << 20,
            message_wait_max: Duration::from_secs(10),
            content_body_octets_max: 256 << 10,
            content_body_lookup_octets_max: 50 << 10,
            backlog: 1024,
        }
    }
}

/// Limits on system load.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadSettings {
    /// The limits.
    pub limits: LoadLimits,
    /// The time between checks.
    pub every: Duration,
    /// Networks that may always connect.
    pub reserve: Networks,
}

impl Default for LoadSettings {
    fn default() -> Self {
        LoadSettings { limits: LoadLimits::default(), every: Duration::from_secs(1), reserve: Networks::loopback() }
    }
}
