//! What is published, held against what should be.

use dns::DnsAnswer;
use mail::Address;
use sender_auth::DnsLookup;
use sender_auth::signing::{PrivateKey, key_record};
use sender_auth::spf::{SpfClient, SpfResult, check_mail_from};

use super::expected::{ExpectedData, ExpectedRecord};
use super::mail_server::MailServer;
use super::text_kind::{TextFinding, TextKind, printable};

/// What the DNS has in place of an expected record.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// The record, or another valid one of its kind.
    Same,
    /// Nothing.
    Missing,
    /// Something else, and what is wrong with it where that can be told.
    Different { published: Vec<String>, faults: Vec<String> },
    /// The DNS does not answer; the reason.
    Unanswered(Box<str>),
}

/// Compares an expected record with the answer of the DNS.
pub(super) fn compare(record: &ExpectedRecord, answer: &DnsAnswer) -> Finding {
    let found = |is_same: bool, published: Vec<String>| match is_same {
        true => Finding::Same,
        false if published.is_empty() => Finding::Missing,
        false => Finding::Different { published, faults: Vec::new() },
    };
    match (&record.data, answer) {
        (_, DnsAnswer::Unanswered(why)) => Finding::Unanswered(why.clone()),
        (ExpectedData::Mx(_), DnsAnswer::NullMx) => found(false, vec!["MX 0 .".into()]),
        (ExpectedData::Mx(host), DnsAnswer::MxHosts(hosts)) => {
            let published = hosts.iter().map(|mx| format!("MX {} {}.", mx.preference, mx.name)).collect();
            found(hosts.iter().any(|mx| mx.name == *host), published)
        }
        (ExpectedData::Text { kind, .. }, DnsAnswer::Texts(texts)) => compare_texts(*kind, texts),
        (ExpectedData::DkimKey { key, .. }, DnsAnswer::Texts(texts)) => compare_key(key, texts),
        (ExpectedData::Tlsa(own), DnsAnswer::Tlsa(records)) => {
            found(records.contains(own), records.iter().map(ToString::to_string).collect())
        }
        (ExpectedData::Ptr(host), DnsAnswer::Names(names)) => {
            found(names.contains(host), names.iter().map(|name| format!("PTR {name}.")).collect())
        }
        _ => Finding::Missing,
    }
}

fn compare_texts(kind: TextKind, texts: &[Box<[u8]>]) -> Finding {
    let TextFinding { published, faults } = kind.compare(texts);
    match (published.is_empty(), faults.is_empty()) {
        (true, _) => Finding::Missing,
        (false, true) => Finding::Same,
        (false, false) => Finding::Different { published, faults },
    }
}

fn compare_key(key: &PrivateKey, texts: &[Box<[u8]>]) -> Finding {
    let published = || texts.iter().map(|text| printable(text)).collect();
    match key_record::record_faults(texts, key) {
        _ if texts.is_empty() => Finding::Missing,
        Ok(faults) if faults.is_empty() => Finding::Same,
        Ok(faults) => Finding::Different { published: published(), faults },
        Err(error) => Finding::Different { published: published(), faults: vec![error.to_string()] },
    }
}

/// What a valid SPF record of the domain says about mail that leaves this server.
pub(super) async fn judge_spf(dns: &dyn DnsLookup, domain: &str, server: &MailServer, answer: &DnsAnswer) -> Finding {
    let sender = Address::new("postmaster", domain).ok();
    let mut faults = Vec::new();
    for address in &server.senders {
        let client = SpfClient { address: *address, helo: &server.hostname, hostname: &server.hostname };
        match check_mail_from(dns, &client, sender.as_ref()).await.result {
            SpfResult::Pass => {}
            SpfResult::TempError => return Finding::Unanswered("the DNS did not answer what the record asks".into()),
            SpfResult::PermError => faults.push(format!(
                "permerror for mail from {address}: a record that it refers to is missing or invalid, or it needs \
                 too many lookups"
            )),
            result => faults.push(format!("{} for mail from {address}, an address of this server", result.as_str())),
        }
    }
    match answer {
        _ if faults.is_empty() => Finding::Same,
        DnsAnswer::Texts(texts) => Finding::Different { published: TextKind::SPF.compare(texts).published, faults },
        _ => Finding::Different { published: Vec::new(), faults },
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use dns::{MxHost, TlsaRecord};

    use super::super::expected::Importance;
    use super::*;

    fn record(data: ExpectedData) -> ExpectedRecord {
        ExpectedRecord { name: "example.org".into(), data, importance: Importance::Needed, purpose: "" }
    }

    fn texts(texts: &[&str]) -> DnsAnswer {
        DnsAnswer::Texts(texts.iter().map(|text| text.as_bytes().into()).collect())
    }

    fn is_different(finding: &Finding) -> bool {
        matches!(finding, Finding::Different { .. })
    }

    #[test]
    fn a_text_is_missing_or_right_or_has_faults() {
        let dmarc = record(ExpectedData::Text { kind: TextKind::DMARC, proposal: "v=DMARC1; p=none".into() });
        for (answer, finding) in [
            (texts(&["x", "v=DMARC1; p=reject"]), Finding::Same),
            (texts(&["x"]), Finding::Missing),
            (DnsAnswer::NoSuchName, Finding::Missing),
            (DnsAnswer::Unanswered("x".into()), Finding::Unanswered("x".into())),
        ] {
            assert_eq!(compare(&dmarc, &answer), finding, "{answer:?}");
        }
        let published = vec!["v=DMARC1; p=rejct".to_owned()];
        let faults = vec!["`p=rejct`: expected none, quarantine or reject".to_owned()];
        assert_eq!(compare(&dmarc, &texts(&["v=DMARC1; p=rejct"])), Finding::Different { published, faults });
    }

    #[test]
    fn the_published_key_belongs_to_the_private_one() {
        let key = || Arc::new(PrivateKey::generate_ed25519().unwrap());
        let own = key();
        let value = key_record::record_value(&own).unwrap();
        let expected = record(ExpectedData::DkimKey { key: own, value: value.clone() });
        assert_eq!(compare(&expected, &texts(&[&value])), Finding::Same);
        assert_eq!(compare(&expected, &DnsAnswer::NoRecords), Finding::Missing);
        let other = compare(&expected, &texts(&[&key_record::record_value(&key()).unwrap()]));
        assert!(matches!(&other, Finding::Different { faults, .. } if faults[0].contains("another private key")));
    }

    #[test]
    fn facts_must_be_among_what_is_published() {
        let mx = |names: &[&str]| {
            DnsAnswer::MxHosts(names.iter().map(|&name| MxHost { preference: 5, name: name.into() }).collect())
        };
        let expected = record(ExpectedData::Mx("mx1.example.org".into()));
        assert_eq!(compare(&expected, &mx(&["mx0.example.org", "mx1.example.org"])), Finding::Same);
        let other = Finding::Different { published: vec!["MX 5 mx0.example.org.".into()], faults: Vec::new() };
        assert_eq!(compare(&expected, &mx(&["mx0.example.org"])), other);
        assert_eq!(compare(&expected, &DnsAnswer::NoRecords), Finding::Missing);
        assert!(is_different(&compare(&expected, &DnsAnswer::NullMx)));
        let tlsa = |octet| TlsaRecord { usage: 3, selector: 1, matching: 1, data: [octet; 32].into() };
        let expected = record(ExpectedData::Tlsa(tlsa(1)));
        assert_eq!(compare(&expected, &DnsAnswer::Tlsa([tlsa(2), tlsa(1)].into())), Finding::Same);
        assert!(is_different(&compare(&expected, &DnsAnswer::Tlsa([tlsa(2)].into()))));
        let expected = record(ExpectedData::Ptr("mx1.example.org".into()));
        assert_eq!(compare(&expected, &DnsAnswer::Names(["mx1.example.org".into()].into())), Finding::Same);
        assert!(is_different(&compare(&expected, &DnsAnswer::Names(["x".into()].into()))));
    }
}
