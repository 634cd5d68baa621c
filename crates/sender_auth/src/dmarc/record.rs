//! Policy records (RFC 9989 section 4.7). What is unknown or invalid in one is ignored, so that only
//! the rest of it counts.

use serde::{Deserialize, Serialize};

use crate::tag_list::is_white_space;

/// The longest list of destinations of reports that is read; a longer one counts as none.
const REPORTS_TO_OCTETS_MAX: usize = 2000;

/// What the owner of a domain wants done with mail that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// Nothing.
    None,
    /// It is suspicious.
    Quarantine,
    /// It is refused.
    Reject,
}

impl Policy {
    /// The word in the record.
    pub fn as_str(self) -> &'static str {
        match self {
            Policy::None => "none",
            Policy::Quarantine => "quarantine",
            Policy::Reject => "reject",
        }
    }

    pub(crate) fn parse(word: &str) -> Option<Policy> {
        [Policy::None, Policy::Quarantine, Policy::Reject]
            .into_iter()
            .find(|policy| policy.as_str().eq_ignore_ascii_case(word))
    }

    /// What a domain that is testing wants done (RFC 9989 section 4.7, `t`).
    fn while_testing(self) -> Policy {
        match self {
            Policy::Reject => Policy::Quarantine,
            Policy::Quarantine | Policy::None => Policy::None,
        }
    }
}

/// A DMARC policy record, as far as reports repeat it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedPolicy {
    /// `rua`: where reports go.
    pub reports_to: Box<str>,
    /// The organizational domain: destinations in it need not be verified.
    pub organization: Box<str>,
    /// `p`.
    pub policy: Policy,
    /// `sp`.
    pub subdomain_policy: Option<Policy>,
    /// `np`.
    pub nonexistent_policy: Option<Policy>,
    /// `adkim=s`.
    pub strict_dkim: bool,
    /// `aspf=s`.
    pub strict_spf: bool,
    /// `t=y`.
    pub is_testing: bool,
}

/// How similar two domains must be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Alignment {
    /// They have the same organizational domain.
    #[default]
    Relaxed,
    /// They are the same.
    Strict,
}

/// Whether a domain is one below which others register theirs (`psd`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum PublicSuffix {
    #[default]
    Unknown,
    Yes,
    /// It is an organizational domain.
    No,
}

/// A policy record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DmarcRecord {
    policy: Option<Policy>,
    subdomain_policy: Option<Policy>,
    nonexistent_policy: Option<Policy>,
    is_testing: bool,
    pub(crate) dkim_alignment: Alignment,
    pub(crate) spf_alignment: Alignment,
    pub(crate) public_suffix: PublicSuffix,
    /// Where aggregate reports go, as it is written; None: nowhere.
    pub(crate) reports_to: Option<Box<str>>,
}

/// Whether a TXT record is a policy record: its first tag is `v=DMARC1`.
pub(crate) fn is_policy_record(record: &[u8]) -> bool {
    DmarcRecord::parse(record).is_some()
}

/// Which domains a record is applied to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PolicyScope {
    /// The one that it belongs to.
    Own,
    /// Those below it.
    Subdomains,
    /// Those below it that do not exist.
    Nonexistent,
}

impl DmarcRecord {
    /// Reads a TXT record; None if it is something else.
    pub(crate) fn parse(record: &[u8]) -> Option<DmarcRecord> {
        let text = String::from_utf8_lossy(record);
        let mut tags = text.split(';').map(|part| {
            let (name, value) = part.split_once('=').unwrap_or_default();
            (name.trim_matches(is_white_space), value.trim_matches(is_white_space))
        });
        if tags.next() != Some(("v", "DMARC1")) {
            return None;
        }
        let mut read = DmarcRecord::default();
        tags.for_each(|(name, value)| read.set(name, value));
        Some(read)
    }

    fn set(&mut self, name: &str, value: &str) {
        let is = |word: &str| value.eq_ignore_ascii_case(word);
        let alignment = || if is("s") { Alignment::Strict } else { Alignment::Relaxed };
        match name {
            "p" => self.policy = Policy::parse(value),
            "sp" => self.subdomain_policy = Policy::parse(value),
            "np" => self.nonexistent_policy = Policy::parse(value),
            "adkim" => self.dkim_alignment = alignment(),
            "aspf" => self.spf_alignment = alignment(),
            "t" => self.is_testing |= is("y"),
            // RFC 9989 has no `pct`; those who wrote 0 wanted what is now `t=y`.
            "pct" => self.is_testing |= is("0"),
            "psd" if is("y") => self.public_suffix = PublicSuffix::Yes,
            "psd" if is("n") => self.public_suffix = PublicSuffix::No,
            "rua" if value.len() <= REPORTS_TO_OCTETS_MAX => self.reports_to = Some(value.into()),
            _ => {}
        }
    }

    /// What a report says of the record; None: its owner wants no reports.
    pub(crate) fn published(&self, organization: &str) -> Option<PublishedPolicy> {
        Some(PublishedPolicy {
            reports_to: self.reports_to.clone()?,
            organization: organization.into(),
            policy: self.policy.unwrap_or(Policy::None),
            subdomain_policy: self.subdomain_policy,
            nonexistent_policy: self.nonexistent_policy,
            strict_dkim: self.dkim_alignment == Alignment::Strict,
            strict_spf: self.spf_alignment == Alignment::Strict,
            is_testing: self.is_testing,
        })
    }

    /// Whether domains below it that do not exist are treated in another way than the others.
    pub(crate) fn tells_nonexistent_apart(&self) -> bool {
        self.nonexistent_policy.is_some_and(|policy| Some(policy) != self.subdomain_policy.or(self.policy))
    }

    /// The policy for these domains. Without `p` it is none.
    pub(crate) fn policy_for(&self, scope: PolicyScope) -> Policy {
        let below = self.subdomain_policy.or(self.policy);
        let policy = match scope {
            PolicyScope::Own => self.policy,
            PolicyScope::Subdomains => below,
            PolicyScope::Nonexistent => self.nonexistent_policy.or(below),
        };
        let policy = policy.unwrap_or(Policy::None);
        if self.is_testing { policy.while_testing() } else { policy }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policies(record: &str) -> Option<[Policy; 3]> {
        let record = DmarcRecord::parse(record.as_bytes())?;
        Some(
            [PolicyScope::Own, PolicyScope::Subdomains, PolicyScope::Nonexistent].map(|scope| record.policy_for(scope)),
        )
    }

    #[test]
    fn a_record_has_a_policy_for_each_kind_of_domain() {
        use Policy::{None as Nothing, Quarantine, Reject};
        for (record, expected) in [
            ("v=DMARC1; p=reject", Some([Reject; 3])),
            ("v = DMARC1 ; p = Quarantine ; sp=none; np=reject;", Some([Quarantine, Nothing, Reject])),
            ("v=DMARC1; p=reject; t=y", Some([Quarantine; 3])),
            ("v=DMARC1; p=quarantine; pct=0", Some([Nothing; 3])),
            ("v=DMARC1; p=reject; pct=50", Some([Reject; 3])),
            ("v=DMARC1; rua=mailto:a@b.example", Some([Nothing; 3])),
            ("v=DMARC1; p=strange; ;; x; sp=reject", Some([Nothing, Reject, Reject])),
            ("v=DMARC1", Some([Nothing; 3])),
            ("v=DMARC1;p=reject\u{fffd}", Some([Nothing; 3])),
            ("v=dmarc1; p=reject", None),
            ("p=reject; v=DMARC1", None),
            ("v=spf1 -all", None),
            ("", None),
        ] {
            assert_eq!(policies(record), expected, "{record}");
        }
        let record = DmarcRecord::parse(b"v=DMARC1; adkim=s; aspf=x; psd=n").unwrap();
        assert_eq!((record.dkim_alignment, record.spf_alignment), (Alignment::Strict, Alignment::Relaxed));
        assert_eq!(record.public_suffix, PublicSuffix::No);
    }
}
