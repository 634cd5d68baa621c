//! The text of a DMARC aggregate report (RFC 9990 section 3.1 and appendix A). All text from outside is
//! escaped; characters that XML cannot have are left out.

use std::fmt::Write;

use super::counts::CollectedReport;
use super::observation::{DmarcRow, OverrideReason, ReportRow};
use super::reporter::Reporter;
use crate::dmarc::record::{Policy, PublishedPolicy};

/// The report as XML.
pub(super) fn dmarc_xml(report: &CollectedReport, reporter: &Reporter) -> String {
    let mut xml = XmlText::default();
    xml.text.push_str("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    xml.open_with("feedback", " xmlns=\"urn:ietf:params:xml:ns:dmarc-2.0\"");
    xml.element("version", "1.0");
    write_metadata(&mut xml, report, reporter);
    report.policy.iter().for_each(|policy| write_policy(&mut xml, &report.subject.domain, policy));
    for (row, count) in &report.rows {
        if let ReportRow::Dmarc(row) = row {
            write_record(&mut xml, row, *count);
        }
    }
    xml.close("feedback");
    xml.text
}

fn write_metadata(xml: &mut XmlText, report: &CollectedReport, reporter: &Reporter) {
    xml.open("report_metadata");
    xml.element("org_name", &reporter.organization);
    xml.element("email", reporter.contact.as_str());
    xml.element("report_id", &format!("{}@{}", report.local_id(), reporter.hostname));
    xml.open("date_range");
    xml.element("begin", &report.begin.to_string());
    xml.element("end", &report.end.to_string());
    xml.close("date_range");
    xml.element("generator", concat!("Mailrace ", env!("CARGO_PKG_VERSION")));
    xml.close("report_metadata");
}

fn write_policy(xml: &mut XmlText, domain: &str, policy: &PublishedPolicy) {
    let alignment = |is_strict: bool| if is_strict { "s" } else { "r" };
    xml.open("policy_published");
    xml.element("domain", domain);
    xml.element("discovery_method", "treewalk");
    xml.element("p", policy.policy.as_str());
    policy.subdomain_policy.map(Policy::as_str).iter().for_each(|word| xml.element("sp", word));
    policy.nonexistent_policy.map(Policy::as_str).iter().for_each(|word| xml.element("np", word));
    xml.element("adkim", alignment(policy.strict_dkim));
    xml.element("aspf", alignment(policy.strict_spf));
    xml.element("testing", if policy.is_testing { "y" } else { "n" });
    xml.close("policy_published");
}

fn write_record(xml: &mut XmlText, row: &DmarcRow, count: u64) {
    let result = |is_aligned: bool| if is_aligned { "pass" } else { "fail" };
    xml.open("record");
    xml.open("row");
    xml.element("source_ip", &row.source.to_string());
    xml.element("count", &count.to_string());
    xml.open("policy_evaluated");
    xml.element("disposition", row.disposition.as_str());
    xml.element("dkim", result(row.dkim_aligned));
    xml.element("spf", result(row.spf_aligned));
    row.reason.iter().for_each(|reason| write_reason(xml, *reason));
    xml.close("policy_evaluated");
    xml.close("row");
    xml.open("identifiers");
    xml.element("header_from", &row.header_from);
    xml.element("envelope_from", &row.envelope_from);
    xml.close("identifiers");
    write_results(xml, row);
    xml.close("record");
}

fn write_reason(xml: &mut XmlText, reason: OverrideReason) {
    let comment = match reason {
        OverrideReason::TrustedSeal => "accepted by the ARC seal of a trusted forwarder",
        OverrideReason::LocalPolicy => "the policy is not enforced here",
    };
    xml.open("reason");
    xml.element("type", "local_policy");
    xml.element("comment", comment);
    xml.close("reason");
}

fn write_results(xml: &mut XmlText, row: &DmarcRow) {
    xml.open("auth_results");
    for signature in &row.dkim {
        xml.open("dkim");
        xml.element("domain", &signature.domain);
        xml.element("selector", &signature.selector);
        xml.element("result", &signature.result);
        xml.close("dkim");
    }
    if let Some(spf) = &row.spf {
        xml.open("spf");
        xml.element("domain", &spf.domain);
        xml.element("scope", "mfrom");
        xml.element("result", &spf.result);
        xml.close("spf");
    }
    xml.close("auth_results");
}

/// XML as it grows, indented.
#[derive(Default)]
struct XmlText {
    text: String,
    depth: usize,
}

impl XmlText {
    fn open(&mut self, name: &str) {
        self.open_with(name, "");
    }

    fn open_with(&mut self, name: &str, attributes: &str) {
        // Writing into a string cannot fail, here and below.
        let _ = writeln!(self.text, "{:1$}<{name}{attributes}>", "", 2 * self.depth);
        self.depth += 1;
    }

    fn close(&mut self, name: &str) {
        self.depth -= 1;
        let _ = writeln!(self.text, "{:1$}</{name}>", "", 2 * self.depth);
    }

    fn element(&mut self, name: &str, content: &str) {
        let _ = write!(self.text, "{:1$}<{name}>", "", 2 * self.depth);
        content.chars().for_each(|c| self.push(c));
        let _ = writeln!(self.text, "</{name}>");
    }

    /// XML 1.0 section 2.2 names the characters that there are.
    fn push(&mut self, c: char) {
        match c {
            '&' => self.text.push_str("&amp;"),
            '<' => self.text.push_str("&lt;"),
            '>' => self.text.push_str("&gt;"),
            '"' => self.text.push_str("&quot;"),
            '\'' => self.text.push_str("&apos;"),
            '\u{fffe}' | '\u{ffff}' => {}
            c if c.is_control() => {}
            c => self.text.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reports::{Disposition, DkimSignatureResult, ReportKind, ReportSubject, SpfDomainResult};

    fn report(row: DmarcRow) -> CollectedReport {
        let policy = PublishedPolicy {
            reports_to: "mailto:reports@a.example".into(),
            organization: "a.example".into(),
            policy: Policy::Reject,
            subdomain_policy: Some(Policy::None),
            nonexistent_policy: None,
            strict_dkim: true,
            strict_spf: false,
            is_testing: false,
        };
        CollectedReport {
            subject: ReportSubject { kind: ReportKind::Dmarc, domain: "a.example".into() },
            policy: Some(policy),
            rows: vec![(ReportRow::Dmarc(row), 3)],
            begin: 1_795_392_000,
            end: 1_795_478_399,
        }
    }

    fn row() -> DmarcRow {
        DmarcRow {
            source: "2001:db8::1".parse().unwrap(),
            disposition: Disposition::None,
            dkim_aligned: false,
            spf_aligned: true,
            reason: Some(OverrideReason::LocalPolicy),
            header_from: "a.example".into(),
            envelope_from: "".into(),
            dkim: vec![DkimSignatureResult {
                domain: "b.example".into(),
                selector: "s1".into(),
                result: "permerror".into(),
            }],
            spf: Some(SpfDomainResult { domain: "mail.a.example".into(), result: "pass".into() }),
        }
    }

    fn reporter(organization: &str) -> Reporter {
        Reporter {
            organization: organization.into(),
            contact: "dmarc@mx.example.org".parse().unwrap(),
            hostname: "mx.example.org".into(),
        }
    }

    #[test]
    fn a_report_says_what_was_counted() {
        let xml = dmarc_xml(&report(row()), &reporter("Example"));
        let words: Vec<&str> = xml.lines().map(str::trim).collect();
        for expected in [
            "<feedback xmlns=\"urn:ietf:params:xml:ns:dmarc-2.0\">",
            "<report_id>1795392000.dmarc.a.example@mx.example.org</report_id>",
            "<begin>1795392000</begin>",
            "<p>reject</p>",
            "<sp>none</sp>",
            "<adkim>s</adkim>",
            "<source_ip>2001:db8::1</source_ip>",
            "<count>3</count>",
            "<disposition>none</disposition>",
            "<dkim>fail</dkim>",
            "<spf>pass</spf>",
            "<type>local_policy</type>",
            "<envelope_from></envelope_from>",
            "<selector>s1</selector>",
            "<result>permerror</result>",
            "<scope>mfrom</scope>",
            "</feedback>",
        ] {
            assert!(words.contains(&expected), "{expected}: {xml}");
        }
        assert!(!xml.contains("<np>"));
    }

    #[test]
    fn hostile_text_stays_text() {
        let mut hostile = row();
        hostile.dkim[0].selector = "</selector><x a='1' b=\"2\">&amp;]]>\0\u{1b}\u{ffff}\r\n\u{9f}".into();
        let xml = dmarc_xml(&report(hostile), &reporter("A & B <x>\u{fc}"));
        let expected = "&lt;/selector&gt;&lt;x a=&apos;1&apos; b=&quot;2&quot;&gt;&amp;amp;]]&gt;";
        assert!(xml.contains(&format!("<selector>{expected}</selector>")), "{xml}");
        assert!(xml.contains("<org_name>A &amp; B &lt;x&gt;\u{fc}</org_name>"));
        assert!(xml.chars().all(|c| c == '\n' || !c.is_control()));
    }
}
