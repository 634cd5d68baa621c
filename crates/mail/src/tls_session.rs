//! How TLS went in sessions with hosts of other domains: what their owners may want to have reported (RFC
//! 8460).

use std::net::IpAddr;
use std::sync::Arc;

use crate::{DanePolicy, DsnNotify, Envelope, HostTls, Recipient, StsRule};

/// A session with a host, the attempt to open one, or why there was none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsSession {
    /// The domain of the recipients, as it is written.
    pub domain: Box<str>,
    /// The host, as its MX record names it; None: the failure is that of a policy, not of a host.
    pub host: Option<Box<str>>,
    /// Its address; None: it was not contacted.
    pub address: Option<IpAddr>,
    /// The policy that counts for the host.
    pub policy: DomainTlsPolicy,
    /// Why there was no TLS, or not as the policy wants it; None: there was.
    pub failure: Option<TlsFailure>,
    /// More about the failure.
    pub reason: Option<Box<str>>,
}

/// The policy of a domain about TLS with one of its hosts (RFC 8460 section 4.4, `policy-type`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DomainTlsPolicy {
    /// TLSA records. None: they could not be looked up, or none can be used.
    Tlsa(Option<Arc<DanePolicy>>),
    /// An MTA-STS policy, as its lines. None: it could not be fetched.
    Sts(Option<Arc<[Box<str>]>>),
    /// The domain has none.
    None,
}

/// Why a policy of a domain cannot be met, or is not known, which is clear before any session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsPolicyFailure {
    /// The host that is left out; None: the failure is that of the policy.
    pub host: Option<Box<str>>,
    /// The policy.
    pub policy: DomainTlsPolicy,
    /// What is wrong.
    pub failure: TlsFailure,
    /// More about it.
    pub reason: Option<Box<str>>,
}

/// Why there is no TLS with a host as its domain wants it, in the terms of RFC 8460 section 4.3.
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
    /// Its TLSA records could not be looked up.
    DnssecInvalid,
    /// The MTA-STS policy does not name it.
    HostNotNamed,
    /// The MTA-STS policy could not be fetched.
    StsPolicyFetch,
    /// What was fetched is not an MTA-STS policy.
    StsPolicyInvalid,
    /// The host of the MTA-STS policy has no valid certificate.
    StsPolicyCertificate,
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
            TlsFailure::DnssecInvalid => "dnssec-invalid",
            TlsFailure::StsPolicyFetch => "sts-policy-fetch-error",
            TlsFailure::StsPolicyInvalid => "sts-policy-invalid",
            TlsFailure::StsPolicyCertificate => "sts-webpki-invalid",
            TlsFailure::HostNotNamed | TlsFailure::Other => "validation-failure",
        }
    }

    /// What the result type does not say (RFC 8460 section 4.3.1 asks for it).
    pub fn reason_code(self) -> Option<&'static str> {
        (self == TlsFailure::HostNotNamed).then_some("mx-host-not-in-policy")
    }
}

impl DomainTlsPolicy {
    /// The policy behind what a host must prove. What only the settings of this server demand is no policy of
    /// the domain.
    pub fn of_host(demand: &HostTls, sts: Option<&StsRule>) -> DomainTlsPolicy {
        match (demand, sts) {
            (HostTls::Dane(policy), _) => DomainTlsPolicy::Tlsa(Some(policy.clone())),
            (HostTls::Encrypted, _) => DomainTlsPolicy::Tlsa(None),
            (HostTls::Verified(_) | HostTls::Transport, Some(rule)) => DomainTlsPolicy::Sts(Some(rule.policy.clone())),
            (HostTls::Verified(_) | HostTls::Transport, None) => DomainTlsPolicy::None,
        }
    }
}

impl TlsSession {
    /// The domain whose owner may want a report about a delivery to these recipients. None: the message is one
    /// that this server has written: a report, whose session is in no report (RFC 8460 section 3), since two
    /// servers would else tell each other of nothing but that, or a notice, which strangers can have sent to
    /// any domain.
    pub fn reported_domain<'a>(envelope: &'a Envelope, recipients: &[u32]) -> Option<&'a str> {
        let is_silent = |recipient: &Recipient| recipient.notify == DsnNotify::NEVER;
        let is_own =
            envelope.sender.is_none() && envelope.client.address.is_none() && envelope.recipients.iter().all(is_silent);
        let recipient = envelope.recipients.get(*recipients.first()? as usize)?;
        (!is_own).then(|| recipient.address.domain())
    }
}

impl TlsPolicyFailure {
    /// The same for mail to this domain.
    pub fn session(&self, domain: &str) -> TlsSession {
        let TlsPolicyFailure { host, policy, failure, reason } = self.clone();
        TlsSession { domain: domain.into(), host, address: None, policy, failure: Some(failure), reason }
    }
}

/// Takes what is to be reported about sessions, without waiting.
pub trait TlsSessionLog: Send + Sync {
    /// Takes one session.
    fn record(&self, session: TlsSession);
}
