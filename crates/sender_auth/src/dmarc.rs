//! DMARC (RFC 9989, which replaces RFC 7489): whether the domain in From is one that SPF or DKIM has
//! confirmed, and what its owner wants done otherwise.
//!
//! | step | here |
//! |---|---|
//! | the one domain of the one address in From | [`author`] |
//! | the policy, and the organizational domain | [`discovery`], [`record`] |
//! | alignment of the confirmed domains | [`judge`] |
//!
//! A message whose author cannot be told is `permerror`, never `none`: two From fields, several
//! addresses, a group, an address that readers may show in another way. `temperror` counts only where
//! the missing answer could have led to `pass`: nobody escapes a policy by a slow domain of his own. Where
//! only the size of the message prevents it, the policy decides as for a failure (`verdicts`).

pub(crate) mod author;
pub(crate) mod discovery;
pub(crate) mod record;

use crate::DnsLookup;
use discovery::{Discovery, OrganizationalDomains, ReportedPolicy};
use record::{Alignment, Policy};

/// What the check says (RFC 9989 section 4.11, in the words of RFC 8601).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DmarcResult {
    /// The domain has no policy.
    None,
    /// SPF or DKIM has confirmed the domain.
    Pass,
    /// Neither has.
    Fail,
    /// Nobody could tell: the DNS did not answer, or the message is too large to be verified.
    TempError,
    /// The author cannot be told.
    PermError,
}

impl DmarcResult {
    /// The word of RFC 8601.
    pub fn as_str(self) -> &'static str {
        match self {
            DmarcResult::None => "none",
            DmarcResult::Pass => "pass",
            DmarcResult::Fail => "fail",
            DmarcResult::TempError => "temperror",
            DmarcResult::PermError => "permerror",
        }
    }
}

/// The result for a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DmarcCheck {
    /// The result.
    pub result: DmarcResult,
    /// Why it is [`DmarcResult::PermError`] or [`DmarcResult::TempError`].
    pub reason: Option<&'static str>,
    /// The domain in From, in lower case and with A-labels.
    pub author_domain: Option<Box<str>>,
    /// What the owner of the domain wants done with mail that fails; None without a policy.
    pub policy: Option<Policy>,
    /// Only the size of the message keeps it from a pass or a failure, now and when it is sent again.
    pub(crate) is_oversized: bool,
    /// For the report about it; None: nobody wants one.
    pub(crate) reported: Option<Box<ReportedCheck>>,
}

/// What a report says of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReportedCheck {
    pub(crate) policy: ReportedPolicy,
    /// A signature of an aligned domain is valid.
    pub(crate) dkim_aligned: bool,
    /// SPF has passed for an aligned domain.
    pub(crate) spf_aligned: bool,
}

impl DmarcCheck {
    pub(crate) fn new(result: DmarcResult, reason: &'static str) -> DmarcCheck {
        let (author_domain, policy, reported) = (None, None, None);
        DmarcCheck { result, reason: Some(reason), author_domain, policy, is_oversized: false, reported }
    }
}

/// A domain that SPF or DKIM has checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CheckedDomain<'a> {
    pub(crate) method: AlignedMethod,
    /// In lower case, with A-labels.
    pub(crate) domain: &'a str,
    pub(crate) state: DomainState,
}

/// Whether a domain has confirmed a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DomainState {
    /// It has.
    Passed,
    /// It may have: the DNS did not answer.
    Unanswered,
    /// It may have: the message is too large to be verified.
    Oversized,
}

impl CheckedDomain<'_> {
    fn has_passed(&self) -> bool {
        self.state == DomainState::Passed
    }
}

/// A method whose domain can be aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AlignedMethod {
    Spf,
    Dkim,
}

/// Judges a message by its policy and the domains that have passed, or have no result for lack of
/// an answer. If `reports`, both methods are judged where the owner of the policy wants reports, else only
/// until one has passed.
pub(crate) async fn judge(
    dns: &dyn DnsLookup,
    discovery: &Discovery,
    checked: &[CheckedDomain<'_>],
    reports: bool,
) -> DmarcCheck {
    let verdict = |result, reason| DmarcCheck {
        result,
        reason,
        author_domain: Some(discovery.author_domain.clone()),
        policy: discovery.policy.as_ref().map(|policy| policy.action),
        is_oversized: false,
        reported: None,
    };
    let Some(policy) = &discovery.policy else { return verdict(DmarcResult::None, None) };
    let mut organizations = OrganizationalDomains::new(dns, discovery);
    let reported = policy.reported.as_ref().filter(|_| reports);
    let (mut aligned, mut is_unsure, mut is_oversized) = (AlignedMethods::default(), false, false);
    // Those that passed come first.
    let passed = checked.iter().filter(|domain| domain.has_passed());
    for domain in passed.chain(checked.iter().filter(|domain| !domain.has_passed())) {
        let is_decided = aligned.any() && (reported.is_none() || !domain.has_passed());
        if is_decided || aligned.includes(domain.method) {
            continue;
        }
        let alignment = match domain.method {
            AlignedMethod::Spf => policy.spf_alignment,
            AlignedMethod::Dkim => policy.dkim_alignment,
        };
        let is_aligned = match alignment {
            Alignment::Strict => Some(domain.domain == &*discovery.author_domain),
            Alignment::Relaxed => organizations.are_aligned(domain.domain).await,
        };
        match is_aligned {
            Some(true) if domain.has_passed() => aligned.add(domain.method),
            Some(true) if domain.state == DomainState::Oversized => is_oversized = true,
            Some(false) => {}
            Some(true) | None => is_unsure = true,
        }
    }
    let check = match (aligned.any(), is_unsure) {
        (true, _) => verdict(DmarcResult::Pass, None),
        (false, true) => return verdict(DmarcResult::TempError, Some("no answer for an aligned domain")),
        (false, false) if is_oversized => {
            return DmarcCheck { is_oversized, ..verdict(DmarcResult::TempError, Some(TOO_LARGE)) };
        }
        (false, false) => verdict(DmarcResult::Fail, None),
    };
    let AlignedMethods { spf: spf_aligned, dkim: dkim_aligned } = aligned;
    let reported = reported.map(|policy| ReportedCheck { policy: policy.clone(), dkim_aligned, spf_aligned });
    DmarcCheck { reported: reported.map(Box::new), ..check }
}

/// Why there is no result for signatures.
pub(crate) const TOO_LARGE: &str = "the message is too large to be verified";

/// The methods that have passed for an aligned domain.
#[derive(Clone, Copy, Default)]
struct AlignedMethods {
    spf: bool,
    dkim: bool,
}

impl AlignedMethods {
    fn any(self) -> bool {
        self.spf || self.dkim
    }

    fn includes(self, method: AlignedMethod) -> bool {
        match method {
            AlignedMethod::Spf => self.spf,
            AlignedMethod::Dkim => self.dkim,
        }
    }

    fn add(&mut self, method: AlignedMethod) {
        match method {
            AlignedMethod::Spf => self.spf = true,
            AlignedMethod::Dkim => self.dkim = true,
        }
    }
}
