//! What is counted: a message of a domain whose owner wants reports, or a session with a host of one.
//! Equal rows are counted together.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::dmarc::record::PublishedPolicy;

/// The kinds of reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReportKind {
    /// About mail in the name of a domain (RFC 9990).
    Dmarc,
    /// About TLS with the hosts of a domain (RFC 8460).
    Tls,
}

impl ReportKind {
    /// Both.
    pub const ALL: [ReportKind; 2] = [ReportKind::Dmarc, ReportKind::Tls];

    /// The word in the configuration, in metrics and in the answers of commands.
    pub fn as_str(self) -> &'static str {
        match self {
            ReportKind::Dmarc => "dmarc",
            ReportKind::Tls => "tls",
        }
    }
}

/// What a report is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ReportSubject {
    /// The kind of the report.
    pub kind: ReportKind,
    /// For DMARC the domain of the policy record, for TLS that of the recipients. In lower case, with
    /// A-labels.
    pub domain: Box<str>,
}

/// Something to count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// The report that it belongs to.
    pub subject: ReportSubject,
    /// For DMARC, the policy record.
    pub policy: Option<PublishedPolicy>,
    /// What was observed.
    pub row: ReportRow,
}

/// Observations that are equal in all but their time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReportRow {
    /// A message.
    Dmarc(DmarcRow),
    /// A session.
    Tls(TlsRow),
}

/// What DMARC said about a message.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DmarcRow {
    /// The client.
    pub source: IpAddr,
    /// What happened by the policy.
    pub disposition: Disposition,
    /// A signature of an aligned domain is valid.
    pub dkim_aligned: bool,
    /// SPF has passed for an aligned domain.
    pub spf_aligned: bool,
    /// Why the disposition is not what the policy asks for.
    pub reason: Option<OverrideReason>,
    /// The domain in From.
    pub header_from: Box<str>,
    /// The domain of the sender; empty for the null sender.
    pub envelope_from: Box<str>,
    /// The signatures that were checked.
    pub dkim: Vec<DkimSignatureResult>,
    /// SPF of the sender, or of the HELO name for the null sender.
    pub spf: Option<SpfDomainResult>,
}

/// What happened to a message by the policy of its author.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Disposition {
    /// It passed DMARC.
    Pass,
    /// It failed, and was accepted.
    None,
    /// It was tagged or held.
    Quarantine,
    /// It was refused.
    Reject,
}

impl Disposition {
    /// The word of RFC 9990.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Disposition::Pass => "pass",
            Disposition::None => "none",
            Disposition::Quarantine => "quarantine",
            Disposition::Reject => "reject",
        }
    }
}

/// Why less happened than the policy asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OverrideReason {
    /// A trusted forwarder has sealed that DMARC passed.
    TrustedSeal,
    /// The settings of this server.
    LocalPolicy,
}

/// The result for a signature.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DkimSignatureResult {
    /// `d=`.
    pub domain: Box<str>,
    /// `s=`.
    pub selector: Box<str>,
    /// The word of RFC 8601.
    pub result: Box<str>,
}

/// The result of SPF.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SpfDomainResult {
    /// The domain.
    pub domain: Box<str>,
    /// The word of RFC 8601.
    pub result: Box<str>,
}

/// What TLS was like in a session with a host of a domain.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TlsRow {
    /// `tlsa`, `sts` or `no-policy-found` (RFC 8460 section 4.4).
    pub policy_type: Box<str>,
    /// The policy as text; empty without one.
    pub policy_strings: Vec<Box<str>>,
    /// The host, as its MX record names it; empty if the failure is that of the policy.
    pub mx_host: Box<str>,
    /// Its address.
    pub receiving_ip: Option<IpAddr>,
    /// The result type of RFC 8460 section 4.3; None: the session was as the policy wants it.
    pub failure: Option<Box<str>>,
    /// More about the failure, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Box<str>>,
}
