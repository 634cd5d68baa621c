//! The text of an SMTP TLS report (RFC 8460 section 4.4). Rows of the same policy are one entry, with the
//! sessions that went well and details about those that did not. `mx-host` has the patterns of an MTA-STS
//! policy, and for other policies the hosts that were used.

use std::collections::BTreeMap;
use std::time::Duration;

use mail::Timestamp;
use serde_json::{Value, json};

use super::counts::CollectedReport;
use super::observation::{ReportRow, TlsRow};
use super::reporter::Reporter;

/// The sessions with one policy.
#[derive(Default)]
struct PolicySessions<'a> {
    hosts: Vec<&'a str>,
    successes: u64,
    failures: Vec<(&'a TlsRow, &'a str, u64)>,
}

/// The report as JSON.
pub(super) fn tls_json(report: &CollectedReport, reporter: &Reporter) -> Value {
    let mut policies: BTreeMap<(&str, &[Box<str>]), PolicySessions<'_>> = BTreeMap::new();
    for (row, count) in &report.rows {
        let ReportRow::Tls(row) = row else { continue };
        let sessions = policies.entry((&row.policy_type, &row.policy_strings)).or_default();
        if !row.mx_host.is_empty() && !sessions.hosts.contains(&&*row.mx_host) {
            sessions.hosts.push(&row.mx_host);
        }
        match &row.failure {
            None => sessions.successes += count,
            Some(failure) => sessions.failures.push((row, failure, *count)),
        }
    }
    let policies: Vec<Value> =
        policies.into_iter().map(|(policy, sessions)| policy_json(report, policy, &sessions)).collect();
    json!({
        "organization-name": reporter.organization,
        "date-range": { "start-datetime": date_time(report.begin), "end-datetime": date_time(report.end) },
        "contact-info": reporter.contact.as_str(),
        "report-id": format!("{}@{}", report.local_id(), reporter.hostname),
        "policies": policies,
    })
}

fn policy_json(
    report: &CollectedReport,
    (policy_type, strings): (&str, &[Box<str>]),
    sessions: &PolicySessions<'_>,
) -> Value {
    let mut policy = json!({ "policy-type": policy_type, "policy-domain": report.subject.domain });
    if !strings.is_empty() {
        policy["policy-string"] = json!(strings);
    }
    let patterns: Vec<&str> = strings.iter().filter_map(|line| line.strip_prefix("mx: ")).collect();
    let hosts = if policy_type == "sts" { &patterns } else { &sessions.hosts };
    if !hosts.is_empty() {
        policy["mx-host"] = json!(hosts);
    }
    let failed: u64 = sessions.failures.iter().map(|(.., count)| count).sum();
    let summary =
        json!({ "total-successful-session-count": sessions.successes, "total-failure-session-count": failed });
    let mut entry = json!({ "policy": policy, "summary": summary });
    if !sessions.failures.is_empty() {
        entry["failure-details"] = sessions.failures.iter().map(failure_json).collect();
    }
    entry
}

fn failure_json((row, result, count): &(&TlsRow, &str, u64)) -> Value {
    let mut details = json!({ "result-type": result, "failed-session-count": count });
    if !row.mx_host.is_empty() {
        details["receiving-mx-hostname"] = json!(row.mx_host);
    }
    if let Some(address) = row.receiving_ip {
        details["receiving-ip"] = json!(address);
    }
    if let Some(reason) = &row.reason {
        details["failure-reason-code"] = json!(reason);
    }
    details
}

/// A time as RFC 3339 has it, in whole seconds.
fn date_time(second: u64) -> String {
    let time = (Timestamp::default() + Duration::from_secs(second)).to_rfc3339();
    format!("{}Z", time.get(..19).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reports::{ReportKind, ReportSubject};

    #[test]
    fn rows_of_one_policy_are_one_entry() {
        let sts = || vec!["mode: enforce".into(), "mx: *.a.example".into()];
        let row = |policy_type: &str, host: &str, failure: Option<&str>| {
            ReportRow::Tls(TlsRow {
                policy_type: policy_type.into(),
                policy_strings: if policy_type == "sts" { sts() } else { Vec::new() },
                mx_host: host.into(),
                receiving_ip: "192.0.2.1".parse().ok(),
                failure: failure.map(Into::into),
                reason: failure.filter(|_| host.is_empty()).map(|_| "no answer".into()),
            })
        };
        let report = CollectedReport {
            subject: ReportSubject { kind: ReportKind::Tls, domain: "a.example".into() },
            policy: None,
            rows: vec![
                (row("sts", "mx1.a.example", None), 5),
                (row("sts", "mx\"2", Some("certificate-expired")), 2),
                (row("sts", "", Some("sts-policy-fetch-error")), 1),
                (row("no-policy-found", "mx1.a.example", None), 1),
            ],
            begin: 1_795_392_000,
            end: 1_795_478_399,
        };
        let reporter = Reporter {
            organization: "Example".into(),
            contact: "tls@mx.example.org".parse().unwrap(),
            hostname: "mx.example.org".into(),
        };
        let json = tls_json(&report, &reporter);
        assert_eq!(json["date-range"]["start-datetime"], "2026-11-23T00:00:00Z");
        assert_eq!(json["date-range"]["end-datetime"], "2026-11-23T23:59:59Z");
        let policies = json["policies"].as_array().unwrap();
        assert_eq!(policies.len(), 2);
        assert_eq!(policies[0]["policy"]["policy-type"], "no-policy-found");
        let sts = &policies[1];
        assert_eq!(sts["summary"], json!({"total-successful-session-count": 5, "total-failure-session-count": 3}));
        assert_eq!(sts["policy"]["policy-string"], json!(["mode: enforce", "mx: *.a.example"]));
        assert_eq!(sts["policy"]["mx-host"], json!(["*.a.example"]));
        assert_eq!(policies[0]["policy"]["mx-host"], json!(["mx1.a.example"]));
        assert_eq!(sts["failure-details"][0]["result-type"], "certificate-expired");
        assert_eq!(sts["failure-details"][0]["receiving-ip"], "192.0.2.1");
        assert_eq!(sts["failure-details"][1]["failure-reason-code"], "no answer");
        assert_eq!(sts["failure-details"][1].get("receiving-mx-hostname"), None);
    }
}
