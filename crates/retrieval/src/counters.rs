//! Counters of all sessions since the server started, and what the operator sees of retrieval.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use net::ConnectionLimiter;

use crate::proxy::BackendHosts;

/// The counters of all retrieval sessions.
#[derive(Debug, Default)]
pub struct RetrievalCounters {
    pop3_messages: AtomicU64,
    http_served: AtomicU64,
    http_failed: AtomicU64,
    backend_logins_accepted: AtomicU64,
    backend_logins_refused: AtomicU64,
    backend_logins_unavailable: AtomicU64,
}

/// The result of a proxy's login at a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BackendLoginResult {
    /// The client is connected to its mailbox.
    Accepted,
    /// The backend refuses the user.
    Refused,
    /// The backend is down, busy, or fails.
    Unavailable,
}

impl RetrievalCounters {
    /// A POP3 client gets a message, or its first lines.
    pub(crate) fn count_message(&self) {
        self.pop3_messages.fetch_add(1, Relaxed);
    }

    /// An HTTP client gets what it has asked for, or an error.
    pub(crate) fn count_response(&self, is_error: bool) {
        if is_error { &self.http_failed } else { &self.http_served }.fetch_add(1, Relaxed);
    }

    /// A proxy has tried to log in at a backend.
    pub(crate) fn count_backend_login(&self, result: BackendLoginResult) {
        let counter = match result {
            BackendLoginResult::Accepted => &self.backend_logins_accepted,
            BackendLoginResult::Refused => &self.backend_logins_refused,
            BackendLoginResult::Unavailable => &self.backend_logins_unavailable,
        };
        counter.fetch_add(1, Relaxed);
    }
}

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
        let counters = &self.counters;
        RetrievalStats {
            sessions: self.connection_limiter.session_count(),
            pop3_messages: counters.pop3_messages.load(Relaxed),
            http_responses: [("ok", counters.http_served.load(Relaxed)), ("error", counters.http_failed.load(Relaxed))],
            backend_logins: [
                ("ok", counters.backend_logins_accepted.load(Relaxed)),
                ("refused", counters.backend_logins_refused.load(Relaxed)),
                ("unavailable", counters.backend_logins_unavailable.load(Relaxed)),
            ],
            backends_down: self.backends.as_ref().map(|backends| backends.down().len()),
        }
    }
}
