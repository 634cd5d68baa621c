//! Counters of all sessions since the server started.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

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

    /// Messages that POP3 clients have got, whole or in part.
    pub(crate) fn pop3_messages(&self) -> u64 {
        self.pop3_messages.load(Relaxed)
    }

    /// HTTP responses, by whether they are errors.
    pub(crate) fn http_responses(&self) -> [(&'static str, u64); 2] {
        [("ok", self.http_served.load(Relaxed)), ("error", self.http_failed.load(Relaxed))]
    }

    /// Logins at backends, by result.
    pub(crate) fn backend_logins(&self) -> [(&'static str, u64); 3] {
        [
            ("ok", self.backend_logins_accepted.load(Relaxed)),
            ("refused", self.backend_logins_refused.load(Relaxed)),
            ("unavailable", self.backend_logins_unavailable.load(Relaxed)),
        ]
    }
}
