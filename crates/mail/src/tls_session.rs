//! How TLS went in sessions with hosts of other domains: what their owners may want to have reported (RFC
//! 8460).

use std::net::IpAddr;

use crate::HostTls;

/// A session with a host, or the attempt to open one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsSession {
    /// The domain of the recipients, as it is written.
    pub domain: Box<str>,
    /// The host, as its MX record names it.
    pub host: Box<str>,
    /// Its address.
    pub address: Option<IpAddr>,
    /// What the host had to prove.
    pub demand: HostTls,
    /// Why there was no TLS, or not as demanded; None: there was.
    pub failure: Option<TlsFailure>,
}

/// Why there is no TLS with a host, in the terms of RFC 8460 section 4.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsFailure {
    /// It does not offer STARTTLS, or refuses it.
    NotSupported,
    /// Its certificate is for other names.
    HostMismatch,
    /// Its certificate has expired, or is not valid yet.
    Expired,
    /// No trusted authority has issued its certificate.
    Untrusted,
    /// None of its TLSA records can be used.
    TlsaInvalid,
    /// Anything else, such as a handshake that fails or a certificate that no TLSA record names.
    Other,
}

impl TlsFailure {
    /// The result type of RFC 8460 section 4.3.
    pub fn as_str(self) -> &'static str {
        match self {
            TlsFailure::NotSupported => "starttls-not-supported",
            TlsFailure::HostMismatch => "certificate-host-mismatch",
            TlsFailure::Expired => "certificate-expired",
            TlsFailure::Untrusted => "certificate-not-trusted",
            TlsFailure::TlsaInvalid => "tlsa-invalid",
            TlsFailure::Other => "validation-failure",
        }
    }
}

/// Takes what is to be reported about sessions, without waiting.
pub trait TlsSessionLog: Send + Sync {
    /// Takes one session.
    fn record(&self, session: TlsSession);
}
