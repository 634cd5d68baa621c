//! TLS of listeners: certificates and modes. The certificate files are not read here but by
//! [`check_certificates`](super::check_certificates): most commands run without the permission to
//! read private keys.

use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

pub use net::TlsVersion;

/// A certificate with its private key, in PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateSettings {
    /// The server's own certificate, then intermediate certificates.
    pub chain: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The names it is used for, in lower case; `*.` matches one label. Empty: those in the
    /// certificate.
    pub names: Vec<Box<str>>,
    /// The span of `chain` in the text.
    pub(super) chain_span: Range<usize>,
    /// The span of `key` in the text.
    pub(super) key_span: Range<usize>,
}

/// The TLS mode of a listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListenerTls {
    /// No TLS.
    #[default]
    None,
    /// STARTTLS is optional (RFC 3207).
    Starttls,
    /// STARTTLS is required before mail commands.
    Required,
    /// TLS from the first byte (RFC 8314 section 3).
    Implicit,
}

/// TLS settings of all listeners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerTlsSettings {
    /// The lowest version that clients may use.
    pub version_min: TlsVersion,
    /// A longer handshake fails.
    pub handshake_timeout: Duration,
    /// The time between checks of the files.
    pub reload_every: Duration,
}

impl Default for ServerTlsSettings {
    fn default() -> Self {
        ServerTlsSettings {
            version_min: TlsVersion::V1_2,
            handshake_timeout: Duration::from_secs(30),
            reload_every: Duration::from_secs(60),
        }
    }
}
