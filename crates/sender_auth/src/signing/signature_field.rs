//! The DKIM-Signature field (RFC 6376 section 3.5): its text, folded, with the signature as the last
//! tag. The text is composed first without the signature, and hashed; the signature is appended to
//! the same text, so that both are the same.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use filter::Field;
use mail::Timestamp;

use super::private_key::KeyAlgorithm;
use crate::canonical_form::CanonicalForm;
use crate::message_header::MessageHeader;

const NAME: &str = "DKIM-Signature";
/// RFC 5322 section 2.1.1 recommends 78 with the CRLF's place free.
const LINE_OCTETS_MAX: usize = 77;
/// Most fields are shorter, with a signature of 2048 bits.
const FIELD_OCTETS: usize = 1024;

/// What the tags say.
pub(super) struct SignatureTags<'a> {
    pub(super) algorithm: KeyAlgorithm,
    /// `d=`.
    pub(super) domain: &'a str,
    /// `s=`.
    pub(super) selector: &'a str,
    /// `t=`.
    pub(super) signed_at: Timestamp,
    /// `x=`.
    pub(super) expires_at: Option<Timestamp>,
    /// `h=`.
    pub(super) fields: &'a mut dyn Iterator<Item = &'static str>,
    /// `bh=`, before base64.
    pub(super) body_hash: &'a [u8],
}

/// The field without its signature.
pub(super) struct UnsignedField {
    value: FoldedText,
}

impl UnsignedField {
    pub(super) fn new(tags: SignatureTags<'_>) -> UnsignedField {
        let mut value = FoldedText::new(NAME.len() + ": ".len());
        value.append_word(&["v=1;"]);
        value.append_word(&["a=", tags.algorithm.signature_name(), ";"]);
        value.append_word(&["c=relaxed/relaxed;"]);
        value.append_word(&["d=", tags.domain, ";"]);
        value.append_word(&["s=", tags.selector, ";"]);
        value.append_word(&["t=", &tags.signed_at.seconds().to_string(), ";"]);
        if let Some(expires_at) = tags.expires_at {
            value.append_word(&["x=", &expires_at.seconds().to_string(), ";"]);
        }
        let (mut start, mut names) = ("h=", tags.fields.peekable());
        while let Some(name) = names.next() {
            let end = if names.peek().is_some() { ":" } else { ";" };
            value.append_parts(&[start, name, end], start.is_empty());
            start = "";
        }
        value.append_word(&["bh=", &BASE64_STANDARD.encode(tags.body_hash), ";"]);
        value.append_word(&["b="]);
        UnsignedField { value }
    }

    /// The field as it is hashed: in relaxed form, without CRLF (RFC 6376 section 3.7).
    pub(super) fn canonical(&self) -> Vec<u8> {
        canonical(&format!("{NAME}: {}", self.value.text))
    }

    /// The complete field. None: domain or selector are not fit for a field.
    pub(super) fn with_signature(mut self, signature: &[u8]) -> Option<Field> {
        self.value.append_letters(&BASE64_STANDARD.encode(signature));
        Field::new(NAME, &self.value.text).ok()
    }
}

fn canonical(field: &str) -> Vec<u8> {
    let (header, mut canonical) = (MessageHeader::parse(field.as_bytes().to_vec()), Vec::new());
    CanonicalForm::Relaxed.push_field(&header.field(0), &mut canonical);
    canonical
}

/// Text that is folded before it grows too wide.
struct FoldedText {
    text: String,
    /// Of the last line, in octets.
    width: usize,
}

impl FoldedText {
    /// The first line begins after this many octets.
    fn new(width: usize) -> FoldedText {
        FoldedText { text: String::with_capacity(FIELD_OCTETS), width }
    }

    /// Appends a word, given in parts, after a space, or on the next line. A word that is wider than a
    /// line is not broken.
    fn append_word(&mut self, word: &[&str]) {
        self.append_parts(word, false);
    }

    /// `joins`: without a space.
    fn append_parts(&mut self, parts: &[&str], joins: bool) {
        let gap = usize::from(!joins && !self.text.is_empty());
        let len: usize = parts.iter().map(|part| part.len()).sum();
        if self.width + gap + len > LINE_OCTETS_MAX && !self.text.is_empty() {
            self.fold();
        } else if gap > 0 {
            self.text.push(' ');
            self.width += gap;
        }
        parts.iter().for_each(|part| self.text.push_str(part));
        self.width += len;
    }

    /// Appends letters that may be broken anywhere.
    fn append_letters(&mut self, letters: &str) {
        let mut rest = letters;
        while !rest.is_empty() {
            if self.width >= LINE_OCTETS_MAX {
                self.fold();
            }
            let (line, after) = rest.split_at(rest.len().min(LINE_OCTETS_MAX - self.width));
            self.text.push_str(line);
            self.width += line.len();
            rest = after;
        }
    }

    fn fold(&mut self) {
        self.text.push_str("\r\n ");
        self.width = 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(domain: &str, names: &'static [&'static str]) -> UnsignedField {
        UnsignedField::new(SignatureTags {
            algorithm: KeyAlgorithm::Rsa,
            domain,
            selector: "mail",
            signed_at: Timestamp(1_700_000_000_999),
            expires_at: Some(Timestamp(1_700_604_800_000)),
            fields: &mut names.iter().copied(),
            body_hash: &[0; 32],
        })
    }

    #[test]
    fn the_tags_are_folded_and_the_signature_comes_last() {
        let names = &["From", "From", "Content-Transfer-Encoding", "Subject", "In-Reply-To"];
        let unsigned = field("example.org", names);
        let canonical = String::from_utf8(unsigned.canonical()).unwrap();
        let signed = unsigned.with_signature(&[255; 256]).unwrap();
        assert!(signed.wire().lines().all(|line| line.len() < 78), "{signed}");
        let tags: Vec<String> =
            signed.wire().trim_end().split(';').map(|tag| tag.replace(['\r', '\n', ' '], "")).collect();
        assert_eq!(
            tags[..8],
            [
                "DKIM-Signature:v=1",
                "a=rsa-sha256",
                "c=relaxed/relaxed",
                "d=example.org",
                "s=mail",
                "t=1700000000",
                "x=1700604800",
                "h=From:From:Content-Transfer-Encoding:Subject:In-Reply-To",
            ]
        );
        assert_eq!(tags[8], "bh=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=");
        assert_eq!(tags[9], format!("b={}", BASE64_STANDARD.encode([255; 256])));
        assert_eq!(tags.len(), 10);
        assert!(canonical.starts_with("dkim-signature:v=1; a=rsa-sha256; ") && canonical.ends_with("; b="));
    }

    /// What a verifier hashes: the field with the value of `b=` and the white space around it removed.
    #[test]
    fn what_is_hashed_is_the_field_that_is_sent() {
        for length in 1..120 {
            let domain = format!("{}.example", "x".repeat(length));
            let unsigned = field(&domain, &["From"]);
            let canonical = unsigned.canonical();
            let sent = unsigned.with_signature(&[9; 64]).unwrap();
            let (before, _) = sent.wire().split_once(" b=").unwrap();
            assert_eq!(super::canonical(&format!("{before} b=")), canonical, "{length}");
        }
    }

    #[test]
    fn a_domain_that_is_not_fit_for_a_field_gives_none() {
        assert!(field("example\r\n\r\n.org", &["From"]).with_signature(b"x").is_none());
    }
}
