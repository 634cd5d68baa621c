//! Fields that others send in the name of this server (RFC 8601 section 5).
//!
//! Who reads a field may be lenient, so this is strict: whatever could be taken for our name, before
//! the first result, makes the field forged: in any case, folded, quoted, with comments in it, or after
//! a version. So does a name that cannot be read, whatever it is. What is wrong with the results that
//! follow does not matter.

use std::ops::Range;

use crate::cfws::{Word, WordKind, WordReader};
use crate::message_header::MessageHeader;

/// The places of the forged fields in the header.
pub(crate) fn forged_fields(header: &MessageHeader, authserv_id: &str) -> Vec<Range<usize>> {
    let is_forged = |(_, field): &(usize, crate::message_header::HeaderField<'_>)| {
        field.resembles(b"authentication-results") && claims_id(field.value, authserv_id)
    };
    header.fields().filter(is_forged).map(|(number, _)| header.place(number)).collect()
}

/// Whether the value of a field claims to be of this server, or cannot be read.
pub(crate) fn claims_id(value: &[u8], authserv_id: &str) -> bool {
    let id = authserv_id.trim_end_matches('.').to_ascii_lowercase();
    let Some(words) = words_of_name(value) else { return true };
    let mut claimed = Vec::with_capacity(64);
    let mut parts = Vec::with_capacity(64);
    for word in &words {
        let octets: &[u8] = match &word.kind {
            WordKind::Special(octet) => std::slice::from_ref(octet),
            WordKind::Atom(octets) | WordKind::Quoted(octets) => octets,
        };
        if word.is_spaced {
            parts.push(b' ');
        }
        let graphic = octets.iter().filter(|octet| octet.is_ascii_graphic());
        parts.extend(graphic.clone());
        claimed.extend(graphic);
    }
    let claimed = claimed.strip_suffix(b".").unwrap_or(&claimed);
    let digits = claimed.iter().take_while(|octet| octet.is_ascii_digit()).count();
    let without_version = &claimed[digits..];
    without_version.eq_ignore_ascii_case(id.as_bytes()) || contains_name(claimed, &id) || contains_name(&parts, &id)
}

/// The words before the first `;`. None: not well-formed, or not read by all in the same way.
fn words_of_name(value: &[u8]) -> Option<Vec<Word>> {
    let mut reader = WordReader::new(value);
    let is_of_name = |word: &Result<Word, _>| !matches!(word, Ok(word) if word.kind == WordKind::Special(b';'));
    let words = reader.by_ref().take_while(is_of_name).collect::<Result<Vec<_>, _>>().ok()?;
    let read = reader.read_part();
    let is_plain = |octet: &u8| !octet.is_ascii_control() || b"\t\r\n".contains(octet);
    // Whoever drops or unfolds what follows a backslash sees other comments and quoted strings.
    let is_ambiguous = |pair: &[u8]| pair[0] == b'\\' && !matches!(pair[1], b' '..=b'~');
    (read.iter().all(is_plain) && !read.windows(2).any(is_ambiguous)).then_some(words)
}

/// Whether the name is in the text, and not only a part of a longer name.
fn contains_name(text: &[u8], name: &str) -> bool {
    let text = text.to_ascii_lowercase();
    let of_name = |octet: &u8| octet.is_ascii_alphanumeric() || b"-_".contains(octet);
    memchr::memmem::find_iter(&text, name.as_bytes()).any(|at| {
        let (before, after) = (&text[..at], &text[at + name.len()..]);
        let is_label_before = before.last().is_some_and(|octet| of_name(octet) || *octet == b'.');
        let is_label_after = match after {
            [b'.', next, ..] => of_name(next),
            [next, ..] => of_name(next),
            [] => false,
        };
        !is_label_before && !is_label_after
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_in_our_name_is_forged_however_it_is_written() {
        for value in [
            " mx.example.org; dkim=pass",
            "mx.example.org",
            " MX.Example.ORG 1; dkim=pass",
            " 1 mx.example.org; dkim=pass",
            " (a (b)) mx.example.org (c); dkim=pass",
            "\r\n\tmx.example.org\r\n ;\r\n dkim=pass",
            " \"mx.example.org\"; dkim=pass",
            " \"mx\\.example.org\"; dkim=pass",
            " mx.example.org.; dkim=pass",
            " mx . example . org; dkim=pass",
            " mx(x).example.org; dkim=pass",
            " mx.example.org/1; dkim=pass",
            " 1(x)mx.example.org; dkim=pass",
            " other.example, mx.example.org; dkim=pass",
            " mx.example.org=; dkim=pass",
            " mx.example.org dkim=pass",
            " mx.example.org; dkim=pass (open",
            " \"mx.example.org; dkim=pass",
            " m\u{0}x mx.example.org\u{0}; dkim=pass",
            "mx(x).example.org; dkim=pass (open",
            "\"mx\\.example.org\"; dkim=pass (",
            "mx . example . org; dkim=pass \u{1}",
            "mx.example\r\n .org; dmarc=pass (",
            "mx.exam\u{0}ple.org; dkim=pass",
            "mx.\u{7f}example.org; dkim=pass",
            "mx(\u{0}).example.org; dkim=pass",
            "(mx.example.org; dkim=pass",
            "mx.example(.org; dkim=pass",
            "other.example, mx . example . org; dkim=pass",
            "other.example, mx.\u{e9}example.org; dkim=pass",
            // A comment for us, and none for whoever drops the NUL, or unfolds.
            "(\\\u{0}\\) mx.example.org; dkim=pass) other.example; none",
            "(\\\r\n \\) mx.example.org; dkim=pass) other.example; none",
        ] {
            assert!(claims_id(value.as_bytes(), "mx.example.org"), "{value:?}");
            assert!(claims_id(value.as_bytes(), "MX.example.org."), "{value:?}");
        }
    }

    #[test]
    fn fields_of_others_stay() {
        for value in [
            " other.example; dkim=pass header.d=mx.example.org",
            " notmx.example.org; dkim=pass",
            " a.mx.example.org; dkim=pass",
            " mx.example.org.other.example; dkim=pass",
            " mx.example.organisation; dkim=pass",
            " other.example (mx.example.org); dkim=pass",
            "",
            ";",
            " other.example; none (open",
            " other.example; none \"mx.example.org; \u{0}",
            " other.example (mx.\\(example.org); none",
        ] {
            assert!(!claims_id(value.as_bytes(), "mx.example.org"), "{value:?}");
        }
    }

    #[test]
    fn the_places_of_forged_fields_are_found() {
        let text = "Received: x\r\nAuthentication-Results: mx;\r\n spf=pass\r\nauthentication-results : b\r\n\
            Authentication-\0Results: mx\r\nFrom: a@b\r\nAuthentication-Results\r\n : mx; spf=pass\r\n";
        let header = MessageHeader::parse(text.as_bytes().to_vec());
        let found: Vec<&str> = forged_fields(&header, "mx").into_iter().map(|place| &text[place]).collect();
        assert_eq!(
            found,
            [
                "Authentication-Results: mx;\r\n spf=pass\r\n",
                "Authentication-\0Results: mx\r\n",
                "Authentication-Results\r\n : mx; spf=pass\r\n"
            ]
        );
    }
}
