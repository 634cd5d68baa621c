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

impl TlsInfo {
    /// The length of the cipher's key in bits; 0 if its name does not tell.
    pub fn cipher_bits(&self) -> u16 {
        match self.cipher {
            name if name.contains("AES_128") => 128,
            name if name.contains("AES_256") || name.contains("CHACHA20") => 256,
            _ => 0,
        }
    }
}

/// The form used in Received lines and logs: `TLSv1.3 with cipher TLS_AES_256_GCM_SHA384`.
impl fmt::Display for TlsInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with cipher {}", self.version, self.cipher)
    }
}
