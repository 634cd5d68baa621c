//! A report as a message: a text for people, and the report as a file, compressed by gzip.
//!
//! | report | message | file | named by |
//! |---|---|---|---|
//! | DMARC | multipart/mixed | application/gzip, `.xml.gz` | RFC 9990 section 3.3 |
//! | TLS | multipart/report | application/tlsrpt+gzip, `.json.gz` | RFC 8460 sections 5.1 to 5.3 |

use std::fmt::Write as _;
use std::io::{self, Write as _};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::GzEncoder;
use mail::{Address, QueueId, Timestamp};

use super::counts::CollectedReport;
use super::dmarc_xml::dmarc_xml;
use super::observation::ReportKind;
use super::reporter::Reporter;
use super::tls_json::tls_json;
use super::utc_day::UtcDay;

/// Octets in a line of base64 (RFC 2045 section 6.8).
const BASE64_LINE_OCTETS: usize = 76;

/// The report as a compressed file.
///
/// # Errors
///
/// Never, since it is written into memory.
pub fn report_content(report: &CollectedReport, reporter: &Reporter) -> io::Result<Vec<u8>> {
    let text = match report.subject.kind {
        ReportKind::Dmarc => dmarc_xml(report, reporter),
        ReportKind::Tls => tls_json(report, reporter).to_string(),
    };
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text.as_bytes())?;
    encoder.finish()
}

/// The message with this file, in 7 bits.
pub fn compose_report(
    report: &CollectedReport,
    reporter: &Reporter,
    content: &[u8],
    to: &Address,
    id: QueueId,
    now: Timestamp,
) -> Vec<u8> {
    let boundary = format!("={id}=report");
    let mut text = String::new();
    let mut line = |words: std::fmt::Arguments<'_>| {
        // Writing into a string cannot fail.
        let _ = write!(text, "{words}\r\n");
    };
    let (domain, host) = (&report.subject.domain, &reporter.hostname);
    line(format_args!("Date: {}", now.to_rfc5322()));
    line(format_args!("From: {}<{}>", display_name(&reporter.organization), reporter.contact));
    line(format_args!("To: <{to}>"));
    line(format_args!(
        "Subject: Report Domain: {domain}\r\n Submitter: {host}\r\n Report-ID: <{}@{host}>",
        report.local_id()
    ));
    line(format_args!("Message-ID: <{id}@{host}>"));
    // RFC 3834 section 5: automatic responders do not answer this.
    line(format_args!("Auto-Submitted: auto-generated"));
    line(format_args!("MIME-Version: 1.0"));
    let (message_type, file_type, extension) = match report.subject.kind {
        ReportKind::Dmarc => ("multipart/mixed", "application/gzip", "xml.gz"),
        ReportKind::Tls => ("multipart/report; report-type=\"tlsrpt\"", "application/tlsrpt+gzip", "json.gz"),
    };
    if report.subject.kind == ReportKind::Tls {
        line(format_args!("TLS-Report-Domain: {domain}"));
        line(format_args!("TLS-Report-Submitter: {}", reporter.contact.domain()));
    }
    line(format_args!("Content-Type: {message_type};\r\n\tboundary=\"{boundary}\"\r\n"));
    line(format_args!("--{boundary}\r\nContent-Type: text/plain; charset=us-ascii\r\n"));
    let day = UtcDay::of(Timestamp::default() + std::time::Duration::from_secs(report.begin));
    let about = match report.subject.kind {
        ReportKind::Dmarc => "mail in the name of",
        ReportKind::Tls => "TLS with the mail hosts of",
    };
    line(format_args!("This is a report by the mail server {host}\r\nabout {about}\r\n{domain}\r\non {day} (UTC)."));
    line(format_args!("\r\n--{boundary}\r\nContent-Type: {file_type}\r\nContent-Transfer-Encoding: base64"));
    let period = format!("{}!{}", report.begin, report.end);
    line(format_args!("Content-Disposition: attachment;\r\n\tfilename=\"{host}!{domain}!{period}.{extension}\"\r\n"));
    for chunk in STANDARD.encode(content).as_bytes().chunks(BASE64_LINE_OCTETS) {
        line(format_args!("{}", String::from_utf8_lossy(chunk)));
    }
    line(format_args!("--{boundary}--"));
    text.into_bytes()
}

/// The name before an address, with a space after it; nothing if it cannot be written in ASCII.
fn display_name(organization: &str) -> String {
    let is_plain = organization.chars().all(|c| (' '..='~').contains(&c) && !matches!(c, '"' | '\\'));
    if is_plain && organization.len() <= 100 { format!("\"{organization}\" ") } else { String::new() }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::read::GzDecoder;

    use super::*;
    use crate::reports::ReportSubject;

    fn report(kind: ReportKind) -> CollectedReport {
        let subject = ReportSubject { kind, domain: "a.example".into() };
        CollectedReport { subject, policy: None, rows: Vec::new(), begin: 1_795_392_000, end: 1_795_478_399 }
    }

    fn compose(kind: ReportKind, organization: &str) -> String {
        let reporter = Reporter {
            organization: organization.into(),
            contact: "reports@example.org".parse().unwrap(),
            hostname: "mx.example.org".into(),
        };
        let report = report(kind);
        let content = report_content(&report, &reporter).unwrap();
        let to = "r@a.example".parse().unwrap();
        let id = "7-0-1".parse().unwrap();
        let message = compose_report(&report, &reporter, &content, &to, id, Timestamp::default());
        String::from_utf8(message).unwrap()
    }

    #[test]
    fn the_file_of_a_report_can_be_read_again() {
        for (kind, expected) in [(ReportKind::Dmarc, "<feedback"), (ReportKind::Tls, "\"policies\":[]")] {
            let message = compose(kind, "Example");
            let body = message.split("\r\n\r\n").nth(4).unwrap();
            let base64: String = body.split("\r\n--").next().unwrap().lines().collect();
            let mut text = String::new();
            GzDecoder::new(&*STANDARD.decode(base64).unwrap()).read_to_string(&mut text).unwrap();
            assert!(text.contains(expected), "{text}");
        }
    }

    #[test]
    fn a_report_is_named_as_its_readers_expect() {
        let message = compose(ReportKind::Dmarc, "Example \"\r\nX: y");
        for expected in [
            "From: <reports@example.org>\r\n",
            "Subject: Report Domain: a.example\r\n Submitter: mx.example.org\r\n Report-ID: <1795392000.dmarc.a.example@mx.example.org>\r\n",
            "Content-Type: application/gzip\r\n",
            "filename=\"mx.example.org!a.example!1795392000!1795478399.xml.gz\"\r\n",
        ] {
            assert!(message.contains(expected), "{expected}: {message}");
        }
        assert!(message.is_ascii() && message.lines().all(|line| line.len() < 998));
        assert!(!message.replace("\r\n", "").contains(['\r', '\n']));
        let message = compose(ReportKind::Tls, "Example");
        for expected in [
            "From: \"Example\" <reports@example.org>\r\n",
            "TLS-Report-Domain: a.example\r\n",
            "TLS-Report-Submitter: example.org\r\n",
            "Content-Type: multipart/report; report-type=\"tlsrpt\";\r\n",
            "Content-Type: application/tlsrpt+gzip\r\n",
        ] {
            assert!(message.contains(expected), "{expected}: {message}");
        }
    }
}
