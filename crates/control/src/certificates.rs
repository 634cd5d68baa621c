//! What operators see of the certificates of listeners, and of those that the server obtains itself.

use std::sync::Arc;
use std::time::SystemTime;

use acme::{AcmeCertificateStatus, CertificateRenewer};
use mail::Timestamp;
use net::{Certificate, TlsServer};
use serde::Serialize;
use utoipa::ToSchema;

/// What a handler needs to answer.
#[derive(Clone, Default)]
pub struct CertificateParts {
    /// Has the certificates in use; None: no listener has TLS.
    pub tls_server: Option<Arc<TlsServer>>,
    /// Obtains certificates; None: nobody does.
    pub renewer: Option<Arc<CertificateRenewer>>,
}

/// A certificate of the listeners.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct CertificateStatus {
    /// The names that it is presented for.
    pub(crate) names: Vec<String>,
    /// Who issued it (RFC 4514).
    pub(crate) issuer: String,
    /// When it expires (RFC 3339).
    pub(crate) expires: String,
    /// The same in seconds since 1970, for the metrics.
    #[serde(skip)]
    pub(crate) expires_seconds: i64,
    /// Seconds until then; negative once it has expired.
    pub(crate) expires_in_seconds: i64,
    /// Whether it stands for one that the server has not obtained yet. No client trusts it.
    pub(crate) placeholder: bool,
}

/// A certificate that the server obtains.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct AcmeCertificateRow {
    /// Its names.
    names: Vec<String>,
    /// Who has issued the one in use; null: none is issued yet.
    issuer: Option<String>,
    /// When that expires (RFC 3339).
    expires: Option<String>,
    /// When the next attempt is due (RFC 3339).
    next_attempt: String,
    /// Attempts that have failed since the last success.
    failures: u32,
    /// The error of the last attempt, if it has failed.
    error: Option<String>,
}

impl CertificateParts {
    /// All certificates of the listeners, in the order of the configuration.
    pub(crate) fn statuses(&self, now: SystemTime) -> Vec<CertificateStatus> {
        let certificates = self.tls_server.iter().flat_map(|tls_server| tls_server.certificates());
        certificates.map(|certificate| CertificateStatus::of(&certificate, now)).collect()
    }

    /// The certificates that the server obtains.
    pub(crate) fn acme_rows(&self) -> Vec<AcmeCertificateRow> {
        let statuses = self.renewer.iter().flat_map(|renewer| renewer.statuses());
        statuses.map(AcmeCertificateRow::from).collect()
    }
}

impl CertificateStatus {
    fn of(certificate: &Certificate, now: SystemTime) -> CertificateStatus {
        let expires = certificate.not_after();
        CertificateStatus {
            names: certificate.names().iter().map(ToString::to_string).collect(),
            issuer: certificate.issuer().to_owned(),
            expires: Timestamp::from(expires).to_rfc3339(),
            expires_seconds: seconds(expires),
            expires_in_seconds: seconds(expires) - seconds(now),
            placeholder: certificate.is_placeholder(),
        }
    }
}

impl From<AcmeCertificateStatus> for AcmeCertificateRow {
    fn from(status: AcmeCertificateStatus) -> AcmeCertificateRow {
        AcmeCertificateRow {
            names: status.names.iter().map(ToString::to_string).collect(),
            issuer: status.issuer.map(Into::into),
            expires: status.expires.map(Timestamp::to_rfc3339),
            next_attempt: status.next_attempt.to_rfc3339(),
            failures: status.failures,
            error: status.error,
        }
    }
}

/// Seconds since 1970. No certificate is older.
fn seconds(at: SystemTime) -> i64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    since.as_secs().try_into().unwrap_or(i64::MAX)
}
