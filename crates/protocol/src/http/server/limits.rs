//! The limits of a connection.

use std::time::Duration;

/// What a client may send, and how long it may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpServerLimits {
    /// Octets of a head, including the empty line that ends it (431).
    pub head_octets_max: usize,
    /// Octets of the body of a request, including its framing. It is skipped (413).
    pub body_octets_max: u64,
    /// Requests of a connection; the last response closes it.
    pub requests_max: u32,
    /// From the first byte of a head to its last, and from the connection to the end of the first
    /// head (408).
    pub head_time_max: Duration,
    /// From the head of a request to the end of its body (408).
    pub body_time_max: Duration,
    /// Between a response and the next request.
    pub idle_time_max: Duration,
    /// How long the client may accept nothing.
    pub send_time_max: Duration,
}

impl Default for HttpServerLimits {
    fn default() -> Self {
        HttpServerLimits {
            head_octets_max: 16 << 10,
            body_octets_max: 64 << 10,
            requests_max: 1_000_000,
            head_time_max: Duration::from_secs(30),
            body_time_max: Duration::from_secs(30),
            idle_time_max: Duration::from_secs(60),
            send_time_max: Duration::from_secs(60),
        }
    }
}
