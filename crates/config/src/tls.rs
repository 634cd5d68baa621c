//! TLS of listeners: certificates and versions. The certificate files are not read here but by
//! [`check_certificates`](super::check_certificates): most commands run without the permission to
//! read private keys.

use std::ops::Range;
use std::time::Duration;

use acme::CertificateNames;
use net::CertificateFiles;
pub use net::TlsVersion;

/// A certificate with its private key, in PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateSettings {
    /// Its files, and the names it is used for.
    pub files: CertificateFiles,
    /// The names that it is obtained for, by [`Config::acme`](super::Config::acme). None: the operator
    /// provides the files.
    pub obtained_for: Option<CertificateNames>,
    /// The span of `chain` in the text, or of `acme`.
    pub(super) chain_span: Range<usize>,
    /// The span of `key` in the text, or of `acme`.
    pub(super) key_span: Range<usize>,
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
