//! Sessions with the hosts of other domains, as rows of SMTP TLS reports (RFC 8460).

use std::sync::Arc;
use std::time::SystemTime;

use config::Config;
use dns::TlsaRecord;
use mail::{DaneRecord, HostTls, TlsFailure, TlsSession, TlsSessionLog, VerifiedBy};
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
    let (policy_type, policy_strings) = policy(&session.demand);
    // TLSA records that cannot be used leave only the demand that there is TLS.
    let unusable = (session.demand == HostTls::Encrypted).then_some(TlsFailure::TlsaInvalid);
    let row = TlsRow {
        policy_type: policy_type.into(),
        policy_strings,
        mx_host: session.host,
        receiving_ip: session.address,
        failure: session.failure.or(unusable).map(|failure| failure.as_str().into()),
    };
    let subject = ReportSubject { kind: ReportKind::Tls, domain: dns::to_ascii(&session.domain)? };
    Some(Observation { subject, policy: None, row: ReportRow::Tls(row) })
}

/// The policy of the domain by RFC 8460 section 4.4, and what is known of its text. What only the settings of
/// this server demand is no policy of the domain.
fn policy(demand: &HostTls) -> (&'static str, Vec<Box<str>>) {
    match demand {
        HostTls::Dane(policy) => ("tlsa", policy.records.iter().map(tlsa_text).collect()),
        HostTls::Encrypted => ("tlsa", Vec::new()),
        HostTls::Verified(names) if names.by == VerifiedBy::MtaSts => {
            ("sts", vec!["version: STSv1".into(), "mode: enforce".into()])
        }
        HostTls::Verified(_) | HostTls::Transport => ("no-policy-found", Vec::new()),
    }
}

/// A TLSA record as in a zone file.
fn tlsa_text(record: &DaneRecord) -> Box<str> {
    let (usage, selector, matching) = record.numbers();
    TlsaRecord { usage, selector, matching, data: record.data.clone() }.to_string().into()
}

#[cfg(test)]
mod tests {
    use mail::{DanePolicy, VerifiedNames};

    use super::*;

    fn row(demand: HostTls, failure: Option<TlsFailure>) -> TlsRow {
        let session = TlsSession {
            domain: "B\u{fc}cher.example".into(),
            host: "mx1.example".into(),
            address: "192.0.2.1".parse().ok(),
            demand,
            failure,
        };
        let observation = observation(session).unwrap();
        assert_eq!(&*observation.subject.domain, "xn--bcher-kva.example");
        let ReportRow::Tls(row) = observation.row else { panic!("a row about TLS") };
        row
    }

    #[test]
    fn a_session_is_reported_by_the_policy_of_its_domain() {
        let record = DaneRecord::new(3, 1, 1, &[0xab; 32]).unwrap();
        let dane = DanePolicy { records: vec![record], base_domain: "mx1.example".into(), names: Vec::new() };
        let row_of_dane = row(HostTls::Dane(Arc::new(dane)), None);
        assert_eq!((&*row_of_dane.policy_type, row_of_dane.failure), ("tlsa", None));
        assert_eq!(&*row_of_dane.policy_strings[0], format!("3 1 1 {}", "ab".repeat(32)));
        let names = |by| HostTls::Verified(Arc::new(VerifiedNames { names: vec!["mx1.example".into()], by }));
        let expired = row(names(VerifiedBy::MtaSts), Some(TlsFailure::Expired));
        assert_eq!((&*expired.policy_type, expired.failure.as_deref()), ("sts", Some("certificate-expired")));
        let own = row(names(VerifiedBy::Transport), None);
        assert_eq!((&*own.policy_type, own.policy_strings), ("no-policy-found", Vec::new()));
        let clear = row(HostTls::Transport, Some(TlsFailure::NotSupported));
        assert_eq!(clear.failure.as_deref(), Some("starttls-not-supported"));
        assert_eq!(row(HostTls::Encrypted, None).failure.as_deref(), Some("tlsa-invalid"));
    }

    #[test]
    fn an_address_literal_gets_no_report() {
        let session = TlsSession {
            domain: "[192.0.2.1]".into(),
            host: "192.0.2.1".into(),
            address: None,
            demand: HostTls::Transport,
            failure: None,
        };
        assert!(observation(session).is_none());
    }
}
