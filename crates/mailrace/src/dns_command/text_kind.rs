//! The kinds of TXT records of which a domain has one: which texts receivers take for one, and what is
//! wrong with it.

use sender_auth::published_records::PolicyRecord;

/// A kind of TXT record of which a domain has exactly one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextKind {
    /// SPF, DMARC or TLS reporting.
    Policy(PolicyRecord),
    /// The id of the MTA-STS policy.
    MtaSts,
}

impl TextKind {
    pub(super) const SPF: TextKind = TextKind::Policy(PolicyRecord::Spf);
    pub(super) const DMARC: TextKind = TextKind::Policy(PolicyRecord::Dmarc);
    pub(super) const TLS_REPORTING: TextKind = TextKind::Policy(PolicyRecord::TlsReporting);

    /// What the text begins with.
    pub(super) fn version(self) -> &'static str {
        match self {
            TextKind::Policy(kind) => kind.version(),
            TextKind::MtaSts => "v=STSv1",
        }
    }

    /// What is wrong with the texts, which are all that have the name.
    pub(super) fn compare(self, texts: &[Box<[u8]>]) -> TextFinding {
        let of_kind: Vec<&[u8]> = texts.iter().map(|text| &**text).filter(|text| self.is_kind_of(text)).collect();
        let faults = match of_kind[..] {
            [] => return self.compare_unread(texts),
            [only] => self.faults(only),
            _ => vec![format!("there are {} such records: receivers use none of them", of_kind.len())],
        };
        TextFinding { published: of_kind.into_iter().map(printable).collect(), faults }
    }

    /// Texts that somebody may have meant as this record.
    fn compare_unread(self, texts: &[Box<[u8]>]) -> TextFinding {
        let published: Vec<String> =
            texts.iter().filter(|text| is_similar(text, self.version())).map(|text| printable(text)).collect();
        let separator = if self == TextKind::SPF { "a space" } else { "a semicolon" };
        let fault = format!("receivers ignore it: expected {}, and then {separator}", self.version());
        let faults = if published.is_empty() { Vec::new() } else { vec![fault] };
        TextFinding { published, faults }
    }

    fn is_kind_of(self, text: &[u8]) -> bool {
        match self {
            TextKind::Policy(kind) => kind.is_kind_of(text),
            TextKind::MtaSts => mta_sts::is_policy_record(text),
        }
    }

    fn faults(self, text: &[u8]) -> Vec<String> {
        match self {
            TextKind::Policy(kind) => kind.faults(text),
            TextKind::MtaSts if mta_sts::policy_id(&[text.into()]).is_some() => Vec::new(),
            TextKind::MtaSts => vec!["`id` is not 1 to 32 letters and digits".into()],
        }
    }
}

/// The texts that are such a record or look like one, and what is wrong with them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TextFinding {
    pub(super) published: Vec<String>,
    pub(super) faults: Vec<String>,
}

/// Whether a text begins with this version but for white space, quotes and case.
fn is_similar(text: &[u8], version: &str) -> bool {
    let text = String::from_utf8_lossy(text);
    let text = text.trim_start_matches(|c: char| c == '"' || c.is_whitespace());
    let (start, rest) = text.split_at(text.floor_char_boundary(version.len()));
    start.eq_ignore_ascii_case(version) && !rest.starts_with(|c: char| c.is_ascii_alphanumeric())
}

/// A text from the DNS, for the terminal.
pub(super) fn printable(text: &[u8]) -> String {
    mail::printable(&String::from_utf8_lossy(text)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_text_of_the_kind_without_faults_is_right() {
        for (kind, texts, published, fault) in [
            (TextKind::SPF, &["x", "v=spf1 ip4:192.0.2.1 ~all"][..], 1, ""),
            (TextKind::SPF, &["V=SPF1"], 1, ""),
            (TextKind::SPF, &["v=spf10 -all", "x"], 0, ""),
            (TextKind::SPF, &[], 0, ""),
            (TextKind::SPF, &["v=spf1 a", "v=spf1 b"], 2, "there are 2 such records"),
            (TextKind::SPF, &["v=spf1 allow"], 1, "syntax is invalid"),
            (TextKind::SPF, &["v=spf1; mx -all"], 1, "expected v=spf1, and then a space"),
            (TextKind::DMARC, &["v=DMARC1; p=none"], 1, ""),
            (TextKind::DMARC, &["v=DMARC1; p=strict"], 1, "`p=strict`: expected"),
            (TextKind::DMARC, &["\"v=dmarc1; p=none\""], 1, "expected v=DMARC1, and then a semicolon"),
            (TextKind::TLS_REPORTING, &["v=TLSRPTv1; rua=mailto:a@b.example"], 1, ""),
            (TextKind::TLS_REPORTING, &["v=TLSRPTv1; ruf=x"], 1, "`rua` is missing"),
            (TextKind::MtaSts, &["v=STSv1; id=1;"], 1, ""),
            (TextKind::MtaSts, &["v=STSv1; id=a-b;"], 1, "letters and digits"),
            (TextKind::MtaSts, &["v=stsv1; id=1;"], 1, "expected v=STSv1, and then a semicolon"),
        ] {
            let texts: Vec<Box<[u8]>> = texts.iter().map(|text| text.as_bytes().into()).collect();
            let found = kind.compare(&texts);
            let faults = found.faults.join("; ");
            assert_eq!(found.published.len(), published, "{found:?}");
            assert!(faults.contains(fault) && faults.is_empty() == fault.is_empty(), "{found:?}");
        }
    }
}
