//! What a check of a message adds to the report about its author's domain.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use mail::OperatorLog;
use sender_auth::reports::{
    CountLimits, Disposition, DmarcRow, OverrideReason, ReportCollector, ReportRow, ReportStore, ReportSubject,
};
use sender_auth::{Method, SenderAuth, VerdictAction, VerificationSettings};

use crate::dkim::{KEY, SIGNED};
use crate::dns_map::DnsMap;
use crate::session::{check, enforcing, sender_auth};

struct NoLog;

impl OperatorLog for NoLog {
    fn log_line(&self, line: fmt::Arguments<'_>) {
        panic!("{line}");
    }
}

/// The rows about `a.example` after this message.
async fn rows(dns: DnsMap, settings: VerificationSettings, message: &[u8]) -> Vec<(ReportSubject, DmarcRow)> {
    let folder = tempfile::tempdir().unwrap();
    let now = SystemTime::now().into();
    let store = ReportStore::open(folder.path(), CountLimits::default(), now).unwrap();
    let collector = ReportCollector::start(store, Arc::new(NoLog)).unwrap();
    let auth = Arc::into_inner(sender_auth(dns, settings)).unwrap();
    check(&Arc::new(SenderAuth { reports: Some(collector.clone()), ..auth }), message).await;
    let reports = collector.with_store(move |store| store.reports_of(now, "a.example")).unwrap();
    collector.stop();
    let rows = reports.into_iter().flat_map(|due| {
        let subject = due.report.subject;
        due.report.rows.into_iter().map(move |(row, _)| (subject.clone(), row))
    });
    let of_dmarc = |(subject, row)| match row {
        ReportRow::Dmarc(row) => (subject, row),
        ReportRow::Tls(_) => panic!("a row about TLS"),
    };
    rows.map(of_dmarc).collect()
}

fn dns(policy: &str) -> DnsMap {
    let spf = "v=spf1 ip4:192.0.2.1 -all";
    DnsMap::default().txt("s1._domainkey.a.example", KEY).txt("a.example", spf).txt("_dmarc.a.example", policy)
}

#[tokio::test]
async fn both_methods_are_reported_although_one_is_enough() {
    let found = rows(dns("v=DMARC1; p=reject; rua=mailto:r@a.example"), enforcing(Method::Dmarc), SIGNED).await;
    let (subject, row) = &found[0];
    assert_eq!(
        (found.len(), &*subject.domain, &*row.header_from, &*row.envelope_from),
        (1, "a.example", "a.example", "a.example")
    );
    assert_eq!((row.dkim_aligned, row.spf_aligned, row.disposition), (true, true, Disposition::Pass));
    assert_eq!((row.source, row.reason), ("192.0.2.1".parse().unwrap(), None));
    assert_eq!((&*row.dkim[0].selector, &*row.dkim[0].result), ("s1", "pass"));
    assert_eq!(row.spf.as_ref().map(|spf| &*spf.result), Some("pass"));
}

#[tokio::test]
async fn a_failure_is_reported_with_what_happened_to_it() {
    let forged = String::from_utf8(SIGNED.to_vec()).unwrap().replace("two  words", "other");
    let forged = forged.as_bytes();
    let failing = |policy: &str| dns(policy).txt("a.example", "v=spf1 -all");
    let observing = VerificationSettings::default;
    for (policy, settings, disposition, reason) in [
        ("p=reject", enforcing(Method::Dmarc), Disposition::Reject, None),
        ("p=quarantine", enforcing(Method::Dmarc), Disposition::Quarantine, None),
        ("p=none", enforcing(Method::Dmarc), Disposition::None, None),
        ("p=reject", observing(), Disposition::None, Some(OverrideReason::LocalPolicy)),
    ] {
        let record = format!("v=DMARC1; {policy}; rua=mailto:r@a.example");
        let found = rows(failing(&record), settings, forged).await;
        let row = &found[0].1;
        assert_eq!((row.disposition, row.reason), (disposition, reason), "{policy}");
        assert_eq!((row.dkim_aligned, row.spf_aligned), (false, false), "{policy}");
    }
}

#[tokio::test]
async fn what_nobody_asks_for_or_comes_again_is_not_counted() {
    assert_eq!(rows(dns("v=DMARC1; p=none"), VerificationSettings::default(), SIGNED).await, []);
    let silent = dns("v=DMARC1; p=none; rua=mailto:r@a.example").silent("_dmarc.a.example");
    assert_eq!(rows(silent, VerificationSettings::default(), SIGNED).await, []);
    let mut deferring = enforcing(Method::Dmarc);
    deferring.actions.set(Method::Dmarc, "reject", VerdictAction::Defer);
    let failing = DnsMap::default().txt("_dmarc.a.example", "v=DMARC1; p=reject; rua=mailto:r@a.example");
    assert_eq!(rows(failing, deferring, SIGNED).await, []);
}
