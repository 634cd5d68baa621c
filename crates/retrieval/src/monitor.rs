//! What the operator sees of retrieval.

use std::sync::Arc;

use net::ConnectionLimiter;

use crate::RetrievalCounters;
use crate::proxy::BackendHosts;

/// Reads the counters and gauges of retrieval.
#[derive(Clone)]
pub struct RetrievalMonitor {
    /// Counts the sessions.
    pub connection_limiter: Arc<ConnectionLimiter>,
    /// The counters.
    pub counters: Arc<RetrievalCounters>,
    /// The hosts behind the proxies, if there are proxies.
    pub backends: Option<Arc<BackendHosts>>,
}

/// The counters and gauges at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RetrievalStats {
    /// Open sessions of all protocols.
    pub sessions: usize,
    /// Messages that POP3 clients have got, whole or in part.
    pub pop3_messages: u64,
    /// HTTP responses, by whether they are errors.
    pub http_responses: [(&'static str, u64); 2],
    /// Logins at backends, by result.
    pub backend_logins: [(&'static str, u64); 3],
    /// Backends that are down; None without a proxy.
    pub backends_down: Option<usize>,
}

impl RetrievalMonitor {
    /// The present values.
    pub fn stats(&self) -> RetrievalStats {
        RetrievalStats {
            sessions: self.connection_limiter.session_count(),
            pop3_messages: self.counters.pop3_messages(),
            http_responses: self.counters.http_responses(),
            backend_logins: self.counters.backend_logins(),
            backends_down: self.backends.as_ref().map(|backends| backends.down().len()),
        }
    }
}
