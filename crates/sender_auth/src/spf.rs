//! SPF (RFC 7208): whether a domain lets a client send its mail.
//!
//! A check is bounded in queries (`evaluation.rs`), in time, and in what macros may expand to
//! (`macros.rs`). Without an answer of the DNS it is a temporary error, never a failure. Names beyond
//! ASCII are checked with A-labels; a local part beyond ASCII matches no macro (RFC 8616 section 4).

mod evaluation;
mod macros;
pub(crate) mod record;

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, SystemTime};

use mail::{Address, Timestamp};
use tokio::time::{Instant, timeout_at};

use crate::DnsLookup;
use evaluation::{Evaluation, EvaluationError, ExplanationSource, HostVerdict};
use macros::{MacroPlace, MacroString, MacroValues};

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
pub async fn check_helo(dns: &dyn DnsLookup, client: &SpfClient<'_>) -> SpfCheck {
    check(dns, client, (POSTMASTER, client.helo), TIME_MAX).await
}

/// Checks the sender of MAIL (RFC 7208 section 2.4). The null sender counts as
/// `postmaster@` and the HELO name.
pub async fn check_mail_from(dns: &dyn DnsLookup, client: &SpfClient<'_>, sender: Option<&Address>) -> SpfCheck {
    let local_part = sender.map_or(POSTMASTER.into(), Address::unquoted_local_part);
    let domain = sender.map_or(client.helo, Address::domain);
    check(dns, client, (&local_part, domain), TIME_MAX).await
}

/// Checks a local part and a domain. Without a result after `time_max`, it is a temporary error.
async fn check(
    dns: &dyn DnsLookup,
    client: &SpfClient<'_>,
    (local_part, domain): (&str, &str),
    time_max: Duration,
) -> SpfCheck {
    let Some(domain) = domain_with_record(domain) else {
        return SpfCheck { result: SpfResult::None, domain: domain.into(), explanation: None };
    };
    let helo = dns::to_ascii(client.helo).filter(|_| !client.helo.is_ascii());
    let values = MacroValues {
        local_part,
        sender_domain: &domain,
        domain: &domain,
        client: client.address.to_canonical(),
        validated_name: "",
        helo: helo.as_deref().unwrap_or(client.helo),
        hostname: client.hostname,
        unix_seconds: Timestamp::from(SystemTime::now()).seconds(),
    };
    let (mut evaluation, deadline) = (Evaluation::new(dns, values), Instant::now() + time_max);
    let (result, source) = match timeout_at(deadline, evaluation.check_host(&domain)).await {
        Ok(Ok(HostVerdict { result, explanation })) => (result, explanation),
        Ok(Err(EvaluationError::Permanent)) => (SpfResult::PermError, None),
        Ok(Err(EvaluationError::Temporary)) | Err(_) => (SpfResult::TempError, None),
    };
    let explanation = match source {
        Some(source) => timeout_at(deadline, explain(&mut evaluation, &source)).await.ok().flatten(),
        None => None,
    };
    SpfCheck { result, domain, explanation }
}

/// A domain as the DNS has it. None: it cannot have a record (section 4.3), since it is no name of
/// several labels.
fn domain_with_record(domain: &str) -> Option<Box<str>> {
    dns::to_ascii(domain).filter(|name| name.contains('.') && name.parse::<Ipv4Addr>().is_err())
}

/// What a domain says about a failure (section 6.2). None: nothing, or its text is invalid.
async fn explain(evaluation: &mut Evaluation<'_>, source: &ExplanationSource) -> Option<Box<str>> {
    let text = evaluation.explanation_text(source).await?;
    let text = MacroString::parse(str::from_utf8(&text).ok()?, MacroPlace::Explanation)?;
    let expanded = text.expand_text(&evaluation.values_for(&text, &source.domain).await, EXPLANATION_OCTETS_MAX);
    let printable = |c: char| if c.is_ascii_graphic() || c == ' ' { c } else { '?' };
    let explanation: String = expanded.trim().chars().map(printable).collect();
    (!explanation.is_empty()).then(|| explanation.into())
}

/// The local part of a sender that has none (RFC 7208 section 4.3).
const POSTMASTER: &str = "postmaster";
/// The time of a check, which RFC 7208 section 4.6.4 wants to be 20 seconds or more.
pub(crate) const TIME_MAX: Duration = Duration::from_secs(20);
/// The size of an explanation, so that it fits into a reply.
const EXPLANATION_OCTETS_MAX: usize = 255;
