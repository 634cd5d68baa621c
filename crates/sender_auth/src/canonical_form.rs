//! The canonical forms of header fields (RFC 6376 sections 3.4.1 and 3.4.2): those of a signature field
//! too, which covers itself without its signature.

use std::ops::Range;

use memchr::{memchr, memchr3};

use crate::message_header::HeaderField;

/// How bytes are made canonical.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum CanonicalForm {
    /// Nearly unchanged.
    #[default]
    Simple,
    /// White space and the case of field names do not matter.
    Relaxed,
}

impl CanonicalForm {
    /// The word in `c=`.
    pub(crate) fn parse(word: &str) -> Option<CanonicalForm> {
        match word {
            "simple" => Some(CanonicalForm::Simple),
            "relaxed" => Some(CanonicalForm::Relaxed),
            _ => None,
        }
    }

    /// Appends a field, without a final CRLF.
    pub(crate) fn push_field(self, field: &HeaderField<'_>, out: &mut Vec<u8>) {
        match self {
            CanonicalForm::Simple => out.extend_from_slice(field.line),
            CanonicalForm::Relaxed => push_relaxed_field(field.name, field.value, out),
        }
    }

    /// Appends a signature field with an empty `b=`, without a final CRLF (RFC 6376 section 3.7).
    pub(crate) fn push_signature_field(self, field: &HeaderField<'_>, out: &mut Vec<u8>) {
        let mut value = field.value.to_vec();
        if let Some(place) = signature_value(&value) {
            value.drain(place);
        }
        match self {
            CanonicalForm::Simple => {
                out.extend_from_slice(&field.line[..field.line.len() - field.value.len()]);
                out.extend_from_slice(&value);
            }
            CanonicalForm::Relaxed => push_relaxed_field(field.name, &value, out),
        }
    }
}

/// RFC 6376 section 3.4.2.
fn push_relaxed_field(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    out.extend(name.iter().map(u8::to_ascii_lowercase));
    out.push(b':');
    let (start, mut has_space) = (out.len(), false);
    let mut rest = value;
    while let Some(&octet) = rest.first() {
        let count = match octet {
            b' ' | b'\t' => {
                has_space = true;
                1
            }
            b'\r' if rest.get(1) == Some(&b'\n') => 2,
            _ => {
                if std::mem::take(&mut has_space) && out.len() > start {
                    out.push(b' ');
                }
                let word_len = memchr3(b' ', b'\t', b'\r', &rest[1..]).map_or(rest.len(), |at| at + 1);
                out.extend_from_slice(&rest[..word_len]);
                word_len
            }
        };
        rest = &rest[count..];
    }
}

/// The value of the tag `b`, with the white space around it.
fn signature_value(value: &[u8]) -> Option<Range<usize>> {
    let mut start = 0;
    for part in value.split(|octet| *octet == b';') {
        if let Some(equals) = memchr(b'=', part)
            && part[..equals].trim_ascii() == b"b"
        {
            return Some(start + equals + 1..start + part.len());
        }
        start += part.len() + 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message_header::MessageHeader;

    fn field(form: CanonicalForm, line: &str, is_signature: bool) -> String {
        let header = MessageHeader::parse(line.as_bytes().to_vec());
        let mut out = Vec::new();
        match is_signature {
            true => form.push_signature_field(&header.field(0), &mut out),
            false => form.push_field(&header.field(0), &mut out),
        }
        String::from_utf8(out).unwrap()
    }

    /// The examples of RFC 6376 section 3.4.5, and folded fields.
    #[test]
    fn fields_are_made_canonical() {
        for (line, simple, relaxed) in [
            ("A: X\r\n", "A: X", "a:X"),
            ("B : Y\t\r\n\tZ  \r\n", "B : Y\t\r\n\tZ  ", "b:Y Z"),
            ("Subject:\r\n", "Subject:", "subject:"),
            ("Subject: \r\n \t x\r\n", "Subject: \r\n \t x", "subject:x"),
            ("A:  x\ry \r \tz\r\r\n", "A:  x\ry \r \tz\r", "a:x\ry \r z\r"),
        ] {
            assert_eq!(field(CanonicalForm::Simple, line, false), simple);
            assert_eq!(field(CanonicalForm::Relaxed, line, false), relaxed);
        }
    }

    #[test]
    fn the_signature_is_removed_with_the_white_space_around_it() {
        let line = "DKIM-Signature: a=x; bh=b=; b = \r\n\tab\r\n cd ; z=1\r\n";
        assert_eq!(field(CanonicalForm::Simple, line, true), "DKIM-Signature: a=x; bh=b=; b =; z=1");
        assert_eq!(field(CanonicalForm::Relaxed, line, true), "dkim-signature:a=x; bh=b=; b =; z=1");
        let last = "DKIM-Signature: a=x;\r\n b=ab \r\n";
        assert_eq!(field(CanonicalForm::Simple, last, true), "DKIM-Signature: a=x;\r\n b=");
        assert_eq!(field(CanonicalForm::Relaxed, last, true), "dkim-signature:a=x; b=");
    }
}
