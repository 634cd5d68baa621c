//! What TLS a connection was made secure with.

use std::fmt;

/// The version and the cipher that both sides agreed upon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Security {
    /// `TLSv1.2` or `TLSv1.3`.
    pub version: &'static str,
    /// By its name in the registry of TLS, such as `TLS_AES_256_GCM_SHA384`.
    pub cipher: &'static str,
}

/// As Received lines and logs have it: `TLSv1.3 with cipher TLS_AES_256_GCM_SHA384`.
impl fmt::Display for Security {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with cipher {}", self.version, self.cipher)
    }
}
