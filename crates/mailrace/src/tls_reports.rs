//! Sessions with the hosts of other domains, as rows of SMTP TLS reports (RFC 8460).

use std::sync::Arc;
use std::time::SystemTime;

use config::Config;
use dns::TlsaRecord;
use mail::{DaneRecord, DomainTlsPolicy, TlsFailure, TlsSession, TlsSessionLog};
use sender_auth::reports::{Observation, ReportCollector, ReportKind, ReportRow, ReportSubject, TlsRow};

/// What takes sessions; None if they are not reported.
pub(crate) fn session_log(config: &Config, collector: Option<&ReportCollector>) -> Option<Arc<dyn TlsSessionLog>> {
    let collector = collector.filter(|_| config.reports.tls)?;
    Some(Arc::new(TlsReports(collector.clone())))
}

/// Has sessions counted.
struct TlsReports(ReportCollector);

impl TlsSessionLog for TlsReports {
    fn record(&self, session: TlsSession) {
        if let Some(observation) = observation(session) {
            self.0.submit(SystemTime::now().into(), observation);
        }
    }
}

/// None: the domain is none that could want a report, such as an address literal.
fn observation(session: TlsSession) -> Option<Observation> {
    let TlsSession { domain, host, address, policy, failure, reason } = session;
    // TLSA records that cannot be used leave only the demand that there is TLS.
    let unusable = (policy == DomainTlsPolicy::Tlsa(None)).then_some(TlsFailure::TlsaInvalid);
    let (policy_type, policy_strings) = policy_text(&policy);
    let row = TlsRow {
        policy_type: policy_type.into(),
        policy_strings,
        mx_host: host.unwrap_or_default(),
        receiving_ip: address,
        failure: failure.or(unusable).map(|failure| failure.as_str().into()),
        reason,
    };
    let subject = ReportSubject { kind: ReportKind::Tls, domain: dns::to_ascii(&domain)? };
    Some(Observation { subject, policy: None, row: ReportRow::Tls(row) })
}

/// The type of a policy and its text (RFC 8460 section 4.4).
fn policy_text(policy: &DomainTlsPolicy) -> (&'static str, Vec<Box<str>>) {
    match policy {
        DomainTlsPolicy::Tlsa(Some(policy)) => ("tlsa", policy.records.iter().map(tlsa_text).collect()),
        DomainTlsPolicy::Tlsa(None) => ("tlsa", Vec::new()),
        DomainTlsPolicy::Sts(lines) => ("sts", lines.as_deref().unwrap_or_default().to_vec()),
        DomainTlsPolicy::None => ("no-policy-found", Vec::new()),
    }
}

/// A TLSA record as in a zone file.
fn tlsa_text(record: &DaneRecord) -> Box<str> {
    let (usage, selector, matching) = record.numbers();
    TlsaRecord { usage, selector, matching, data: record.data.clone() }.to_string().into()
}

#[cfg(test)]
mod tests {
    use mail::{DanePolicy, HostTls, StsRule};

    use super::*;

    fn session(domain: &str, policy: DomainTlsPolicy, failure: Option<TlsFailure>) -> TlsSession {
        TlsSession {
            domain: domain.into(),
            host: Some("mx1.example".into()),
            address: "192.0.2.1".parse().ok(),
            policy,
            failure,
            reason: None,
        }
    }

    fn row(policy: DomainTlsPolicy, failure: Option<TlsFailure>) -> TlsRow {
        let observation = observation(session("B\u{fc}cher.example", policy, failure)).unwrap();
        assert_eq!(&*observation.subject.domain, "xn--bcher-kva.example");
        let ReportRow::Tls(row) = observation.row else { panic!("a row about TLS") };
        row
    }

    #[test]
    fn a_session_is_reported_by_the_policy_of_its_domain() {
        let record = DaneRecord::new(3, 1, 1, &[0xab; 32]).unwrap();
        let dane = DanePolicy { records: vec![record], base_domain: "mx1.example".into(), names: Vec::new() };
        let of_dane = DomainTlsPolicy::of_host(&HostTls::Dane(Arc::new(dane)), None);
        let row_of_dane = row(of_dane, None);
        assert_eq!((&*row_of_dane.policy_type, row_of_dane.failure), ("tlsa", None));
        assert_eq!(&*row_of_dane.policy_strings[0], format!("3 1 1 {}", "ab".repeat(32)));
        let rule = StsRule { policy: vec!["version: STSv1".into()].into(), test: None };
        let expired = row(DomainTlsPolicy::of_host(&HostTls::Transport, Some(&rule)), Some(TlsFailure::Expired));
        assert_eq!((&*expired.policy_type, expired.failure.as_deref()), ("sts", Some("certificate-expired")));
        assert_eq!(expired.policy_strings, ["version: STSv1".into()]);
        let own = row(DomainTlsPolicy::of_host(&HostTls::Transport, None), None);
        assert_eq!((&*own.policy_type, own.policy_strings), ("no-policy-found", Vec::new()));
        let unusable = DomainTlsPolicy::of_host(&HostTls::Encrypted, Some(&rule));
        assert_eq!(row(unusable, None).failure.as_deref(), Some("tlsa-invalid"));
        let failed = row(DomainTlsPolicy::Tlsa(None), Some(TlsFailure::DnssecInvalid));
        assert_eq!(failed.failure.as_deref(), Some("dnssec-invalid"));
    }

    #[test]
    fn an_address_literal_gets_no_report() {
        assert!(observation(session("[192.0.2.1]", DomainTlsPolicy::None, None)).is_none());
    }
}
