//! The TLS parameters of a connection.

use std::fmt;

/// The negotiated version and cipher suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TlsInfo {
    /// `TLSv1.2` or `TLSv1.3`.
    pub version: &'static str,
    /// The IANA name, such as `TLS_AES_256_GCM_SHA384`.
    pub cipher: &'static str,
}

/// The form used in Received lines and logs: `TLSv1.3 with cipher TLS_AES_256_GCM_SHA384`.
impl fmt::Display for TlsInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with cipher {}", self.version, self.cipher)
    }
}
