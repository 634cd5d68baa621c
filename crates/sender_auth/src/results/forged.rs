//! Fields that strangers send in the name of this server (RFC 8601 section 5).
//!
//! Who reads a field may be lenient, so this is strict: whatever could be taken for our name, before
//! the first result, makes the field forged: in any case, folded, quoted, with comments in it, after a
//! version, or in a field that cannot be read.

use std::ops::Range;

use crate::cfws::{WordKind, words};
use crate::message_header::MessageHeader;

/// The places of the forged fields in the header.
pub(crate) fn forged_fields(header: &MessageHeader, authserv_id: &str) -> Vec<Range<usize>> {
    let is_forged = |(_, field): &(usize, crate::message_header::HeaderField<'_>)| {
        field.resembles(b"authentication-results") && claims_id(field.value, authserv_id)
    };
    header.fields().filter(is_forged).map(|(number, _)| header.place(number)).collect()
}

/// Whether the value of a field claims to be of this server.
pub(crate) fn claims_id(value: &[u8], authserv_id: &str) -> bool {
    let id = authserv_id.trim_end_matches('.').to_ascii_lowercase();
    let Some(words) = words(value) else { return contains_name(value, &id) };
    let mut claimed = Vec::with_capacity(64);
    let mut parts = Vec::with_capacity(64);
    for word in &words {
        let octets: &[u8] = match &word.kind {
            WordKind::Special(b';') => break,
            WordKind::Special(octet) => std::slice::from_ref(octet),
            WordKind::Atom(octets) | WordKind::Quoted(octets) => octets,
        };
        claimed.extend(octets.iter().filter(|octet| octet.is_ascii_graphic()));
        if word.is_spaced {
            parts.push(b' ');
        }
        parts.extend_from_slice(octets);
    }
    let claimed = claimed.strip_suffix(b".").unwrap_or(&claimed);
    let digits = claimed.iter().take_while(|octet| octet.is_ascii_digit()).count();
    let without_version = &claimed[digits..];
    claimed.eq_ignore_ascii_case(id.as_bytes())
        || without_version.eq_ignore_ascii_case(id.as_bytes())
        || contains_name(&parts, &id)
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
        ] {
            assert!(!claims_id(value.as_bytes(), "mx.example.org"), "{value:?}");
        }
    }

    #[test]
    fn the_places_of_forged_fields_are_found() {
        let text = "Received: x\r\nAuthentication-Results: mx;\r\n spf=pass\r\nauthentication-results : b\r\n\
            Authentication-\0Results: mx\r\nFrom: a@b\r\n";
        let header = MessageHeader::parse(text.as_bytes().to_vec());
        let found: Vec<&str> = forged_fields(&header, "mx").into_iter().map(|place| &text[place]).collect();
        assert_eq!(found, ["Authentication-Results: mx;\r\n spf=pass\r\n", "Authentication-\0Results: mx\r\n"]);
    }
}
