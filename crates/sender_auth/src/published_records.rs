//! What is wrong with the policy records of a domain: SPF, DMARC and TLS reporting. For their owner, who
//! wants to know what receivers ignore; a receiver reads the records by the same parsers and ignores it.
//!
//! Only what stands in the text is judged. What other records and addresses it refers to is for the
//! evaluation (`spf`), and DKIM keys are held against the private ones (`signing::key_record`).

use crate::dmarc::record::{Policy, is_policy_record};
use crate::reports::destination::{parse_destinations, tls_record};
use crate::spf::record::{SpfRecord, is_record};
use crate::tag_list::is_white_space;

/// A kind of policy record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyRecord {
    /// RFC 7208.
    Spf,
    /// RFC 9989.
    Dmarc,
    /// RFC 8460.
    TlsReporting,
}

impl PolicyRecord {
    /// What the text begins with.
    pub fn version(self) -> &'static str {
        match self {
            PolicyRecord::Spf => "v=spf1",
            PolicyRecord::Dmarc => "v=DMARC1",
            PolicyRecord::TlsReporting => "v=TLSRPTv1",
        }
    }

    /// Whether receivers take a TXT record as one of this kind.
    pub fn is_kind_of(self, text: &[u8]) -> bool {
        match self {
            PolicyRecord::Spf => is_record(text),
            PolicyRecord::Dmarc => is_policy_record(text),
            PolicyRecord::TlsReporting => first_tag(text) == Some(("v", "TLSRPTv1")),
        }
    }

    /// What is wrong with a record of this kind; empty: nothing.
    pub fn faults(self, text: &[u8]) -> Vec<String> {
        match self {
            PolicyRecord::Spf => spf_faults(text),
            PolicyRecord::Dmarc => dmarc_faults(text),
            PolicyRecord::TlsReporting => tls_reporting_faults(text),
        }
    }
}

fn spf_faults(text: &[u8]) -> Vec<String> {
    match SpfRecord::parse(text) {
        Ok(_) => Vec::new(),
        Err(_) => vec!["its syntax is invalid, so that receivers ignore all of it (RFC 7208 section 4.6)".into()],
    }
}

/// Receivers ignore a tag that they do not know or whose value is invalid (RFC 9989 section 4.7).
fn dmarc_faults(text: &[u8]) -> Vec<String> {
    let (mut faults, mut seen) = (Vec::new(), Vec::new());
    let text = String::from_utf8_lossy(text);
    for part in text.split(';').map(|part| part.trim_matches(is_white_space)).filter(|part| !part.is_empty()) {
        let Some((name, value)) = part.split_once('=') else {
            faults.push(format!("`{part}` is not of the form `name=value`"));
            continue;
        };
        let (name, value) = (name.trim_matches(is_white_space), value.trim_matches(is_white_space));
        faults.extend(dmarc_tag_fault(name, value));
        if seen.contains(&name) {
            faults.push(format!("`{name}` appears twice"));
        }
        seen.push(name);
    }
    if !seen.contains(&"p") {
        faults.push("`p` is missing: receivers take it as none, or ignore the record".into());
    }
    faults
}

fn dmarc_tag_fault(name: &str, value: &str) -> Option<String> {
    let is_one_of = |words: &[&str]| words.iter().any(|word| word.eq_ignore_ascii_case(value));
    let fault = |is_valid: bool, expected: &str| (!is_valid).then(|| format!("`{name}={value}`: expected {expected}"));
    match name {
        "p" | "sp" | "np" => fault(Policy::parse(value).is_some(), "none, quarantine or reject"),
        "adkim" | "aspf" => fault(is_one_of(&["r", "s"]), "r or s"),
        "t" => fault(is_one_of(&["y", "n"]), "y or n"),
        "psd" => fault(is_one_of(&["y", "n", "u"]), "y, n or u"),
        "rua" | "ruf" => fault(!parse_destinations(value, 1).is_empty(), "mailto: and an address"),
        _ => None,
    }
}

fn tls_reporting_faults(text: &[u8]) -> Vec<String> {
    let is_https = |uri: &str| uri.trim().to_ascii_lowercase().starts_with("https://");
    match tls_record(text) {
        None => vec!["`rua` is missing".into()],
        Some(list) if parse_destinations(&list, 1).is_empty() && !list.split(',').any(is_https) => {
            vec![format!("`rua={list}`: expected mailto: and an address, or an address that begins with https://")]
        }
        Some(_) => Vec::new(),
    }
}

/// The name and the value of the first tag.
fn first_tag(text: &[u8]) -> Option<(&str, &str)> {
    let (name, value) = std::str::from_utf8(text).ok()?.split(';').next()?.split_once('=')?;
    Some((name.trim_matches(is_white_space), value.trim_matches(is_white_space)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(kind: PolicyRecord, text: &str) -> String {
        assert!(kind.is_kind_of(text.as_bytes()), "{text}");
        kind.faults(text.as_bytes()).join("; ")
    }

    #[test]
    fn a_record_is_of_the_kind_that_its_version_says() {
        for (kind, text) in [
            (PolicyRecord::Spf, "v=spf10 -all"),
            (PolicyRecord::Spf, "v=spf1;-all"),
            (PolicyRecord::Dmarc, "v=dmarc1; p=none"),
            (PolicyRecord::Dmarc, "p=none; v=DMARC1"),
            (PolicyRecord::TlsReporting, "v=TLSRPTv2; rua=mailto:a@b.example"),
            (PolicyRecord::TlsReporting, ""),
        ] {
            assert!(!kind.is_kind_of(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn the_faults_of_a_record_are_told() {
        for (kind, text, expected) in [
            (PolicyRecord::Spf, "v=spf1 mx -all", ""),
            (PolicyRecord::Spf, "V=SPF1", ""),
            (PolicyRecord::Spf, "v=spf1 mx- all", "its syntax is invalid"),
            (PolicyRecord::Spf, "v=spf1 ip4:192.0.2.300", "its syntax is invalid"),
            (
                PolicyRecord::Dmarc,
                "v=DMARC1; p=Reject; sp=none; np=reject; adkim=s; aspf=r; t=n; psd=n; x=1; fo=1;",
                "",
            ),
            (PolicyRecord::Dmarc, "v=DMARC1; p=none; rua=mailto:a@b.example, mailto:c@d.example!10m", ""),
            (PolicyRecord::Dmarc, "v=DMARC1", "`p` is missing"),
            (PolicyRecord::Dmarc, "v=DMARC1; p=rejct", "`p=rejct`: expected none, quarantine or reject"),
            (PolicyRecord::Dmarc, "v=DMARC1; p=none; rua=a@b.example", "`rua=a@b.example`: expected mailto:"),
            (PolicyRecord::Dmarc, "v=DMARC1; p=none; p=reject", "`p` appears twice"),
            (PolicyRecord::Dmarc, "v=DMARC1; p=none, sp=none", "`p=none, sp=none`: expected"),
            (
                PolicyRecord::Dmarc,
                "v=DMARC1; p=none; aspf=strict; reject",
                "expected r or s; `reject` is not of the form",
            ),
            (PolicyRecord::TlsReporting, "v=TLSRPTv1; rua=mailto:a@b.example", ""),
            (PolicyRecord::TlsReporting, "v=TLSRPTv1;rua=https://b.example/x", ""),
            (PolicyRecord::TlsReporting, "v=TLSRPTv1", "`rua` is missing"),
            (PolicyRecord::TlsReporting, "v=TLSRPTv1; rua=a@b.example", "expected mailto:"),
        ] {
            let told = faults(kind, text);
            assert!(told.contains(expected) && told.is_empty() == expected.is_empty(), "{text}: {told}");
        }
    }
}
