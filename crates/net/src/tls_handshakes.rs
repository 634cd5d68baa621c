//! Counts TLS handshakes by result.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use mail::TlsInfo;

/// The counters.
#[derive(Debug, Default)]
pub struct TlsHandshakeCounters {
    made_1_2: AtomicU64,
    made_1_3: AtomicU64,
    failed: AtomicU64,
}

impl TlsHandshakeCounters {
    /// The counters by result. A failed handshake has no version.
    pub fn counts(&self) -> [(&'static str, u64); 3] {
        [
            ("TLSv1.2", self.made_1_2.load(Relaxed)),
            ("TLSv1.3", self.made_1_3.load(Relaxed)),
            ("failed", self.failed.load(Relaxed)),
        ]
    }

    /// Counts a successful handshake.
    pub fn count_made(&self, security: TlsInfo) {
        let counter = if security.version == "TLSv1.2" { &self.made_1_2 } else { &self.made_1_3 };
        counter.fetch_add(1, Relaxed);
    }

    /// Counts a failed handshake.
    pub fn count_failed(&self) {
        self.failed.fetch_add(1, Relaxed);
    }
}
