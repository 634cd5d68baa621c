//! SPF (RFC 7208): whether a domain lets a client send its mail.

use std::net::IpAddr;

use mail::Address;

use crate::DnsLookup;

/// What a check says (RFC 7208 section 2.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SpfResult {
    /// The domain has no record, or there is no domain that could have one.
    None,
    /// The domain says nothing about the client.
    Neutral,
    /// The client may send the domain's mail.
    Pass,
    /// It may not.
    Fail,
    /// It probably may not.
    SoftFail,
    /// The DNS did not answer in time.
    TempError,
    /// The domain's records are invalid or exceed a limit.
    PermError,
}

/// Who sends.
#[derive(Clone, Copy, Debug)]
pub struct SpfClient<'a> {
    /// The client's address.
    pub address: IpAddr,
    /// What it said in HELO or EHLO.
    pub helo: &'a str,
    /// Our own name, for the macro `%{r}`.
    pub hostname: &'a str,
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpfCheck {
    /// The result.
    pub result: SpfResult,
    /// The domain that was checked, in lower case and with A-labels if it is a host name.
    pub domain: Box<str>,
    /// What the domain says to clients that fail: at most 255 printable ASCII characters.
    pub explanation: Option<Box<str>>,
}

impl SpfResult {
    /// The word of RFC 8601 section 2.7.2.
    pub fn as_str(self) -> &'static str {
        match self {
            SpfResult::None => "none",
            SpfResult::Neutral => "neutral",
            SpfResult::Pass => "pass",
            SpfResult::Fail => "fail",
            SpfResult::SoftFail => "softfail",
            SpfResult::TempError => "temperror",
            SpfResult::PermError => "permerror",
        }
    }
}

/// Checks the name that the client said in HELO or EHLO (RFC 7208 section 2.3).
pub async fn check_helo(_dns: &dyn DnsLookup, client: &SpfClient<'_>) -> SpfCheck {
    SpfCheck { result: SpfResult::None, domain: client.helo.into(), explanation: None }
}

/// Checks the sender of MAIL (RFC 7208 section 2.4). The null sender counts as
/// `postmaster@` and the HELO name.
pub async fn check_mail_from(_dns: &dyn DnsLookup, client: &SpfClient<'_>, sender: Option<&Address>) -> SpfCheck {
    let domain = sender.map_or(client.helo, Address::domain);
    SpfCheck { result: SpfResult::None, domain: domain.into(), explanation: None }
}
