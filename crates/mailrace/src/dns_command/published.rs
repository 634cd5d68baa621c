//! What is published, held against what should be.

use dns::DnsAnswer;

use super::expected::{ExpectedData, ExpectedRecord, tlsa_text};

/// What the DNS has in place of an expected record.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// The record, or another valid one of its kind.
    Same,
    /// Nothing.
    Missing,
    /// Something else.
    Different(Vec<String>),
    /// It does not answer; the reason.
    Unanswered(Box<str>),
}

/// Compares an expected record with the answer of the DNS.
pub(super) fn compare(record: &ExpectedRecord, answer: &DnsAnswer) -> Finding {
    let found = |is_same: bool, published: Vec<String>| match is_same {
        true => Finding::Same,
        false if published.is_empty() => Finding::Missing,
        false => Finding::Different(published),
    };
    match (&record.data, answer) {
        (_, DnsAnswer::Unanswered(why)) => Finding::Unanswered(why.clone()),
        (ExpectedData::Mx(_), DnsAnswer::NullMx) => Finding::Different(vec!["MX 0 .".into()]),
        (ExpectedData::Mx(host), DnsAnswer::MxHosts(hosts)) => {
            let published = hosts.iter().map(|mx| format!("MX {} {}.", mx.preference, mx.name)).collect();
            found(hosts.iter().any(|mx| mx.name == *host), published)
        }
        (ExpectedData::TextOfKind { version, .. }, DnsAnswer::Texts(texts)) => {
            let of_kind: Vec<String> =
                texts.iter().filter(|text| is_of_kind(text, version)).map(|text| printable(text)).collect();
            found(of_kind.len() == 1, of_kind)
        }
        (ExpectedData::Tlsa(own), DnsAnswer::Tlsa(records)) => {
            found(records.contains(own), records.iter().map(tlsa_text).collect())
        }
        (ExpectedData::Ptr(host), DnsAnswer::Names(names)) => {
            found(names.contains(host), names.iter().map(|name| format!("PTR {name}.")).collect())
        }
        _ => Finding::Missing,
    }
}

/// Whether a text has this version, and not a longer one (RFC 7208 section 4.5, RFC 7489 section
/// 6.4).
fn is_of_kind(text: &[u8], version: &str) -> bool {
    let has_version = text.get(..version.len()).is_some_and(|front| front.eq_ignore_ascii_case(version.as_bytes()));
    has_version && text.get(version.len()).is_none_or(|next| matches!(next, b' ' | b';' | b'\t'))
}

fn printable(text: &[u8]) -> String {
    mail::printable(&String::from_utf8_lossy(text)).to_string()
}

#[cfg(test)]
mod tests {
    use dns::{MxHost, TlsaRecord};

    use super::super::expected::Importance;
    use super::*;

    fn record(data: ExpectedData) -> ExpectedRecord {
        ExpectedRecord { name: "example.org".into(), data, importance: Importance::Needed, purpose: "" }
    }

    fn texts(texts: &[&str]) -> DnsAnswer {
        DnsAnswer::Texts(texts.iter().map(|text| text.as_bytes().into()).collect())
    }

    #[test]
    fn one_text_of_the_kind_is_right_whatever_it_says() {
        let spf = record(ExpectedData::TextOfKind { version: "v=spf1", proposal: "v=spf1 mx -all".into() });
        for (answer, finding) in [
            (texts(&["x", "v=spf1 ip4:192.0.2.1 ~all"]), Finding::Same),
            (texts(&["V=SPF1"]), Finding::Same),
            (texts(&["v=spf10 -all"]), Finding::Missing),
            (texts(&["x"]), Finding::Missing),
            (DnsAnswer::NoSuchName, Finding::Missing),
            (texts(&["v=spf1 a", "v=spf1 b"]), Finding::Different(vec!["v=spf1 a".into(), "v=spf1 b".into()])),
            (DnsAnswer::Unanswered("x".into()), Finding::Unanswered("x".into())),
        ] {
            assert_eq!(compare(&spf, &answer), finding, "{answer:?}");
        }
    }

    #[test]
    fn facts_must_be_among_what_is_published() {
        let mx = |names: &[&str]| {
            DnsAnswer::MxHosts(names.iter().map(|&name| MxHost { preference: 5, name: name.into() }).collect())
        };
        let expected = record(ExpectedData::Mx("mx1.example.org".into()));
        assert_eq!(compare(&expected, &mx(&["mx0.example.org", "mx1.example.org"])), Finding::Same);
        let other = Finding::Different(vec!["MX 5 mx0.example.org.".into()]);
        assert_eq!(compare(&expected, &mx(&["mx0.example.org"])), other);
        assert_eq!(compare(&expected, &DnsAnswer::NoRecords), Finding::Missing);
        assert!(matches!(compare(&expected, &DnsAnswer::NullMx), Finding::Different(_)));
        let tlsa = |octet| TlsaRecord { usage: 3, selector: 1, matching: 1, data: [octet; 32].into() };
        let expected = record(ExpectedData::Tlsa(tlsa(1)));
        assert_eq!(compare(&expected, &DnsAnswer::Tlsa([tlsa(2), tlsa(1)].into())), Finding::Same);
        assert!(matches!(compare(&expected, &DnsAnswer::Tlsa([tlsa(2)].into())), Finding::Different(_)));
        let expected = record(ExpectedData::Ptr("mx1.example.org".into()));
        assert_eq!(compare(&expected, &DnsAnswer::Names(["mx1.example.org".into()].into())), Finding::Same);
        assert!(matches!(compare(&expected, &DnsAnswer::Names(["x".into()].into())), Finding::Different(_)));
    }
}
