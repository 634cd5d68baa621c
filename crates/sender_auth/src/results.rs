//! The field Authentication-Results (RFC 8601): what this server found, and which fields only claim
//! to be its own.

pub(crate) mod forged;

use std::fmt::Write;

use crate::arc::ArcCheck;
use crate::dkim::DkimCheck;
use crate::dmarc::DmarcCheck;
use crate::dmarc::record::Policy;

/// The most octets of one value; domains have at most 253.
const VALUE_OCTETS_MAX: usize = 260;

/// The value of the field, as it grows.
pub(crate) struct ResultsField {
    value: String,
    is_empty: bool,
}

impl ResultsField {
    /// Begins with the name of this server.
    pub(crate) fn new(authserv_id: &str) -> ResultsField {
        let mut field = ResultsField { value: String::with_capacity(512), is_empty: true };
        field.push_value(authserv_id);
        field
    }

    /// The complete value.
    pub(crate) fn finish(mut self) -> String {
        if self.is_empty {
            self.value.push_str("; none");
        }
        self.value
    }

    /// SPF, for one identity: `mailfrom` or `helo`.
    pub(crate) fn push_spf(&mut self, result: &str, identity: &str, value: &str) {
        self.begin("spf", result);
        self.push_property(&format!("smtp.{identity}"), value);
    }

    /// One signature.
    pub(crate) fn push_dkim(&mut self, check: &DkimCheck) {
        self.begin("dkim", check.result.as_str());
        self.push_comment(check.reason);
        let label = &check.label;
        let properties = [
            ("header.d", &label.domain),
            ("header.i", &label.identity),
            ("header.s", &label.selector),
            ("header.a", &label.algorithm),
            ("header.b", &label.start),
        ];
        for (name, value) in properties {
            value.iter().for_each(|value| self.push_property(name, value));
        }
    }

    /// The result of DKIM as a whole, if there are no signatures or more than are checked.
    pub(crate) fn push_dkim_rest(&mut self, result: &str, unchecked: usize) {
        self.begin("dkim", result);
        if unchecked > 0 {
            let _ = write!(self.value, " (too many signatures: {unchecked} not checked)");
        }
    }

    /// DMARC. `sealer`: why a failure has no consequences.
    pub(crate) fn push_dmarc(&mut self, check: &DmarcCheck, sealer: Option<&str>) {
        self.begin("dmarc", check.result.as_str());
        self.push_comment(check.reason);
        let policy = check.policy.map(Policy::as_str);
        policy.iter().for_each(|policy| self.value.push_str(&format!(" (p={policy})")));
        sealer.iter().for_each(|sealer| self.value.push_str(&format!(" (accepted by the seal of {sealer})")));
        check.author_domain.iter().for_each(|domain| self.push_property("header.from", domain));
    }

    /// ARC.
    pub(crate) fn push_arc(&mut self, check: &ArcCheck) {
        self.begin("arc", check.result.as_str());
        self.push_comment(check.reason);
        if let Some(newest) = check.sealers.last() {
            let _ = write!(self.value, " (i={})", check.sealers.len());
            self.push_property("header.d", newest);
        }
    }

    /// The name of the client.
    pub(crate) fn push_iprev(&mut self, result: &str, client: &str, name: Option<&str>) {
        self.begin("iprev", result);
        name.iter().for_each(|name| self.value.push_str(&format!(" ({})", comment_text(name))));
        self.push_property("policy.iprev", client);
    }

    fn begin(&mut self, method: &str, result: &str) {
        self.is_empty = false;
        let _ = write!(self.value, ";\r\n\t{method}={result}");
    }

    fn push_comment(&mut self, text: Option<&str>) {
        text.iter().for_each(|text| self.value.push_str(&format!(" ({})", comment_text(text))));
    }

    fn push_property(&mut self, name: &str, value: &str) {
        self.value.push_str("\r\n\t ");
        self.value.push_str(name);
        self.value.push('=');
        self.push_value(value);
    }

    /// A value as it is, if it is a token or an address of tokens, else as a quoted string. What is
    /// not printable ASCII becomes `?`.
    fn push_value(&mut self, value: &str) {
        let value: String = value.chars().take(VALUE_OCTETS_MAX).map(printable_or_mark).collect();
        let mut parts = value.split('@');
        let is_address = parts.by_ref().take(2).all(is_token_text) && parts.next().is_none();
        if is_address {
            self.value.push_str(&value);
            return;
        }
        self.value.push('"');
        for c in value.chars() {
            if matches!(c, '"' | '\\') {
                self.value.push('\\');
            }
            self.value.push(c);
        }
        self.value.push('"');
    }
}

fn printable_or_mark(c: char) -> char {
    if (' '..='~').contains(&c) { c } else { '?' }
}

/// RFC 2045 section 5.1: without the characters that need quoting.
fn is_token_text(text: &str) -> bool {
    let is_token = |octet: u8| octet.is_ascii_graphic() && !b"()<>@,;:\\\"/[]?=".contains(&octet);
    !text.is_empty() && text.bytes().all(is_token)
}

/// Text that cannot end a comment.
fn comment_text(text: &str) -> String {
    let plain = |c: char| if matches!(c, '(' | ')' | '\\') { '?' } else { printable_or_mark(c) };
    text.chars().take(VALUE_OCTETS_MAX).map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cfws::words;
    use crate::dkim::DkimResult;
    use crate::dkim::signature::SignatureLabel;
    use crate::dmarc::DmarcResult;

    #[test]
    fn the_field_names_what_was_found() {
        let mut field = ResultsField::new("mx.example.org");
        field.push_spf("pass", "mailfrom", "ann@a.example");
        let label = SignatureLabel {
            domain: Some("a.example".into()),
            selector: Some("s1".into()),
            algorithm: Some("rsa-sha256".into()),
            start: Some("ab/c=".into()),
            identity: None,
        };
        field.push_dkim(&DkimCheck { result: DkimResult::Fail, reason: Some("the body has changed"), label });
        let author_domain = Some("a.example".into());
        let dmarc = DmarcCheck {
            result: DmarcResult::Pass,
            reason: None,
            author_domain,
            policy: Some(Policy::Reject),
            is_oversized: false,
            reported: None,
        };
        field.push_dmarc(&dmarc, None);
        field.push_iprev("pass", "2001:db8::1", Some("mail.a.example"));
        let expected = "mx.example.org;\r\n\tspf=pass\r\n\t smtp.mailfrom=ann@a.example;\
            \r\n\tdkim=fail (the body has changed)\r\n\t header.d=a.example\r\n\t header.s=s1\
            \r\n\t header.a=rsa-sha256\r\n\t header.b=\"ab/c=\";\
            \r\n\tdmarc=pass (p=reject)\r\n\t header.from=a.example;\
            \r\n\tiprev=pass (mail.a.example)\r\n\t policy.iprev=\"2001:db8::1\"";
        assert_eq!(field.finish(), expected);
        assert_eq!(ResultsField::new("mx").finish(), "mx; none");
    }

    /// Nothing from outside can add a result, end a comment, or end the field.
    #[test]
    fn values_from_outside_stay_values() {
        for hostile in ["a; dkim=pass", "a\"; dkim=pass", "a\\", "a\r\nX: y", "(", ")", "\u{fc}\0", "", "a@b@c", "a=b"]
        {
            let mut field = ResultsField::new("mx");
            field.push_spf("fail", "helo", hostile);
            field.push_iprev("pass", "192.0.2.1", Some(hostile));
            let value = field.finish();
            assert!(filter::Field::new("Authentication-Results", &value).is_ok() && value.is_ascii(), "{value}");
            let words = words(value.as_bytes()).unwrap_or_else(|| panic!("{value}"));
            let ends = words.iter().filter(|word| word.kind == crate::cfws::WordKind::Special(b';')).count();
            assert_eq!(ends, 2, "{value}");
        }
    }
}
