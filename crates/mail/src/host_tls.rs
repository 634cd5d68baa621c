//! What a connection to another host must prove before mail goes over it, and what it did prove.
//!
//! The route decides it for each host, and the connection keeps to it: without that proof, mail
//! waits. Only [`HostTls::Transport`] allows clear text.

use std::fmt;
use std::sync::Arc;

/// What a host must prove.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HostTls {
    /// Nothing beyond what the settings of the transport require.
    #[default]
    Transport,
    /// TLS with any certificate: the host has TLSA records, but none that can be used (RFC 7672
    /// section 2.2).
    Encrypted,
    /// A certificate of a trusted authority for one of these names.
    Verified(Arc<VerifiedNames>),
    /// A certificate that TLSA records name (RFC 7672).
    Dane(Arc<DanePolicy>),
}

/// The names of which a certificate must have one, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedNames {
    /// Names with A-labels, or addresses; at least one.
    pub names: Vec<Box<str>>,
    /// What demands it.
    pub by: VerifiedBy,
}

/// What demands a verified certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerifiedBy {
    /// The settings of the transport.
    Transport,
    /// The MTA-STS policy of the domain (RFC 8461).
    MtaSts,
}

/// What the MTA-STS policy of the domain says of a host (RFC 8461), beside the proof that an enforced one
/// demands ([`HostTls::Verified`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StsRule {
    /// The lines of the policy, for reports.
    pub policy: Arc<[Box<str>]>,
    /// The policy is in mode `testing`: what the host proves is only reported. None: it is enforced.
    pub test: Option<StsTest>,
}

/// What a policy in mode `testing` says of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StsTest {
    /// It names the host, which should prove its name.
    Named,
    /// It does not name the host: mail should not go there.
    NotNamed,
}

/// The TLSA records of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DanePolicy {
    /// The records that can be used; at least one.
    pub records: Vec<DaneRecord>,
    /// The TLSA base domain, which is sent as SNI (RFC 7672 section 8.1).
    pub base_domain: Box<str>,
    /// The names of which a certificate must have one, if a trust anchor vouches for it (RFC 7672
    /// section 3.2.2). The base domain is one of them.
    pub names: Vec<Box<str>>,
}

/// A TLSA record that SMTP can use (RFC 7672 section 3.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaneRecord {
    /// Which certificate it is about.
    pub usage: DaneUsage,
    /// Which part of the certificate.
    pub selector: DaneSelector,
    /// How that part compares with `data`.
    pub matching: DaneMatching,
    /// The part itself, or its digest.
    pub data: Box<[u8]>,
}

/// The certificate that a TLSA record is about (RFC 6698 section 2.1.1). SMTP has no use for the
/// usages 0 and 1 (RFC 7672 section 3.1.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DaneUsage {
    /// DANE-TA(2): an authority whose certificate is in the chain of the host.
    TrustAnchor,
    /// DANE-EE(3): the host itself. Its names and dates do not matter (RFC 7672 section 3.1.1).
    EndEntity,
}

/// The part of the certificate that counts (RFC 6698 section 2.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DaneSelector {
    /// Cert(0): all of it.
    Certificate,
    /// SPKI(1): the public key.
    PublicKey,
}

/// How the part compares with the record (RFC 6698 section 2.1.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DaneMatching {
    /// Full(0): byte by byte.
    Full,
    /// SHA2-256(1).
    Sha256,
    /// SHA2-512(2).
    Sha512,
}

impl DaneRecord {
    /// The record with these numbers and data; None if SMTP cannot use it: an unknown number, the
    /// usages 0 and 1, a digest of the wrong length, or no data.
    pub fn new(usage: u8, selector: u8, matching: u8, data: &[u8]) -> Option<DaneRecord> {
        let usage = match usage {
            2 => DaneUsage::TrustAnchor,
            3 => DaneUsage::EndEntity,
            _ => return None,
        };
        let selector = match selector {
            0 => DaneSelector::Certificate,
            1 => DaneSelector::PublicKey,
            _ => return None,
        };
        let matching = match (matching, data.len()) {
            (0, 1..) => DaneMatching::Full,
            (1, 32) => DaneMatching::Sha256,
            (2, 64) => DaneMatching::Sha512,
            _ => return None,
        };
        Some(DaneRecord { usage, selector, matching, data: data.into() })
    }

    /// The numbers of usage, selector and matching type.
    pub fn numbers(&self) -> (u8, u8, u8) {
        let usage = match self.usage {
            DaneUsage::TrustAnchor => 2,
            DaneUsage::EndEntity => 3,
        };
        let selector = match self.selector {
            DaneSelector::Certificate => 0,
            DaneSelector::PublicKey => 1,
        };
        let matching = match self.matching {
            DaneMatching::Full => 0,
            DaneMatching::Sha256 => 1,
            DaneMatching::Sha512 => 2,
        };
        (usage, selector, matching)
    }
}

impl HostTls {
    /// What a connection that keeps to this has proved, if it uses TLS.
    pub fn proof(&self) -> TlsProof {
        match self {
            HostTls::Transport | HostTls::Encrypted => TlsProof::Encrypted,
            HostTls::Verified(names) if names.by == VerifiedBy::MtaSts => TlsProof::MtaSts,
            HostTls::Verified(_) => TlsProof::Verified,
            HostTls::Dane(_) => TlsProof::Dane,
        }
    }
}

/// How a connection to a host was protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsProof {
    /// By nothing: in clear text.
    Clear,
    /// By TLS with a certificate that nobody verified.
    Encrypted,
    /// By TLS with a certificate of a trusted authority.
    Verified,
    /// The same, as the domain's MTA-STS policy demands.
    MtaSts,
    /// By TLS with a certificate that TLSA records name.
    Dane,
}

impl TlsProof {
    /// All of them, from nothing to the strictest.
    pub const ALL: [TlsProof; 5] =
        [TlsProof::Clear, TlsProof::Encrypted, TlsProof::Verified, TlsProof::MtaSts, TlsProof::Dane];

    /// The word in the log.
    pub fn as_str(self) -> &'static str {
        match self {
            TlsProof::Clear => "clear",
            TlsProof::Encrypted => "encrypted",
            TlsProof::Verified => "verified",
            TlsProof::MtaSts => "mta-sts",
            TlsProof::Dane => "dane",
        }
    }
}

impl fmt::Display for TlsProof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The rule in words, for people.
impl fmt::Display for HostTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostTls::Transport => f.write_str("as the transport requires"),
            HostTls::Encrypted => f.write_str("required, any certificate (no usable TLSA record)"),
            HostTls::Verified(names) => {
                let by = if names.by == VerifiedBy::MtaSts { "mta-sts" } else { "verified" };
                write!(f, "{by}, certificate for {}", names.names.join(" or "))
            }
            HostTls::Dane(policy) => write!(f, "dane, by {} of {}", records(policy.records.len()), policy.base_domain),
        }
    }
}

fn records(count: usize) -> String {
    if count == 1 { "1 TLSA record".to_owned() } else { format!("{count} TLSA records") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_smtp_cannot_use_is_none() {
        for usage in 0..=255 {
            for selector in 0..=255 {
                let is_known = matches!((usage, selector), (2 | 3, 0 | 1));
                let numbers = DaneRecord::new(usage, selector, 1, &[7; 32]).map(|record| record.numbers());
                assert_eq!(numbers, is_known.then_some((usage, selector, 1)), "{usage} {selector}");
            }
        }
        for (matching, octets, is_usable) in
            [(0, 0, false), (0, 1, true), (0, 900, true), (1, 31, false), (1, 33, false), (2, 64, true), (2, 32, false)]
        {
            let record = DaneRecord::new(3, 1, matching, &vec![1; octets]);
            let numbers = record.map(|record| record.numbers());
            assert_eq!(numbers, is_usable.then_some((3, 1, matching)), "{matching} with {octets} octets");
        }
        assert_eq!(DaneRecord::new(3, 1, 3, &[7; 32]), None);
        assert_eq!(DaneRecord::new(3, 1, 255, &[7; 64]), None);
    }
}
