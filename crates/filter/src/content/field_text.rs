//! Fields as text: without line ends, with encoded words decoded (RFC 2047), and the file names in their
//! parameters (RFC 2231).

use std::borrow::Cow;

use mail_parser::HeaderValue;
use mail_parser::parsers::MessageStream;
use memchr::{memchr, memchr_iter, memchr2};

use super::parameter_names::parameter_names;

/// Octets of a decoded value, before it is decoded.
const ENCODED_OCTETS_MAX: usize = 4 << 10;

/// A field on one line: its line ends are removed, so that the white space of the folds remains. Octets
/// that are not UTF-8 are replaced.
pub(super) fn unfolded(field: &[u8]) -> Cow<'_, str> {
    let field = field.trim_ascii_end();
    let Some(mut line_end) = memchr2(b'\r', b'\n', field) else {
        // Checks ASCII faster than the conversion that replaces octets.
        return str::from_utf8(field).map_or_else(|_| String::from_utf8_lossy(field), Cow::Borrowed);
    };
    let (mut octets, mut rest) = (Vec::with_capacity(field.len()), field);
    loop {
        octets.extend_from_slice(&rest[..line_end]);
        rest = rest.get(line_end + 1..).unwrap_or_default();
        match memchr2(b'\r', b'\n', rest) {
            Some(next) => line_end = next,
            None => break octets.extend_from_slice(rest),
        }
    }
    Cow::Owned(String::from_utf8(octets).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

/// The name and the value of an unfolded field; None if it is none.
pub(super) fn name_and_value(text: &str) -> Option<(&str, &str)> {
    let colon = memchr(b':', text.as_bytes())?;
    Some((text[..colon].trim_ascii_end(), text[colon + 1..].trim_ascii()))
}

/// Whether the field is about the content of a part (RFC 2045).
pub(super) fn is_mime_field(name: &str) -> bool {
    name.eq_ignore_ascii_case("MIME-Version")
        || name.get(..8).is_some_and(|start| start.eq_ignore_ascii_case("Content-"))
}

/// An unfolded field as readers see it: with its encoded words decoded, and without white space before the colon
/// (RFC 5322 section 4.5). None if it is the same.
pub(super) fn as_read(text: &str) -> Option<String> {
    let colon = memchr(b':', text.as_bytes())?;
    let (name, value) = (&text[..colon], &text[colon + 1..]);
    let bare = name.trim_ascii_end();
    let decoded = if has_encoded_word(value) { decoded_words(value) } else { None };
    match decoded {
        Some(decoded) => Some(format!("{bare}: {decoded}")),
        None => (bare.len() < name.len()).then(|| format!("{bare}:{value}")),
    }
}

/// Whether an encoded word may begin somewhere.
fn has_encoded_word(text: &str) -> bool {
    // There are few question marks.
    memchr_iter(b'?', text.as_bytes()).any(|position| text.as_bytes()[..position].ends_with(b"="))
}

fn decoded_words(value: &str) -> Option<String> {
    let line = line_of(value)?;
    match MessageStream::new(line.as_bytes()).parse_unstructured() {
        HeaderValue::Text(text) => Some(text.replace(['\r', '\n', '\0'], " ")),
        _ => None,
    }
}

/// The type in a Content-Type field or the word in Content-Disposition, in lower case, and the file names
/// in the parameters. None: too long to be read.
pub(super) fn type_and_names(value: &str) -> Option<(String, Vec<String>)> {
    let line = line_of(value)?;
    let others: Vec<String> = parameter_names(value).iter().map(|name| file_name(name)).collect();
    let HeaderValue::ContentType(found) = MessageStream::new(line.as_bytes()).parse_content_type() else {
        return Some((String::new(), others));
    };
    let main = found.ctype().to_ascii_lowercase();
    let media_type = match found.subtype() {
        Some(subtype) => format!("{main}/{}", subtype.to_ascii_lowercase()),
        None => main,
    };
    let named = found.attributes().unwrap_or_default().iter();
    let names = named.filter(|it| it.name.eq_ignore_ascii_case("filename") || it.name.eq_ignore_ascii_case("name"));
    let mut names: Vec<String> = names.map(|it| file_name(&it.value)).collect();
    names.extend(others.into_iter().filter(|other| !names.contains(other)).collect::<Vec<_>>());
    Some((media_type, names))
}

/// The addresses in the value of a field; none if it has no address, or is too long to be read.
pub(super) fn addresses(value: &str) -> Vec<String> {
    let Some(line) = line_of(value).filter(|_| value.contains('@')) else { return Vec::new() };
    match MessageStream::new(line.as_bytes()).parse_address() {
        HeaderValue::Address(found) => found.iter().filter_map(|it| it.address().map(str::to_owned)).collect(),
        _ => Vec::new(),
    }
}

/// Encoded words do not belong into parameters, but many programs write them there. Windows ignores dots
/// and white space at the end.
fn file_name(name: &str) -> String {
    let decoded = if has_encoded_word(name) { decoded_words(name) } else { None };
    let name = decoded.as_deref().unwrap_or(name);
    name.trim_end_matches(|character: char| character == '.' || character.is_whitespace()).to_owned()
}

/// With the line end that the parser expects.
fn line_of(value: &str) -> Option<String> {
    (value.len() <= ENCODED_OCTETS_MAX).then(|| format!("{value}\r\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_words_are_decoded() {
        assert_eq!(
            as_read("Subject: =?utf-8?B?w6RiYw==?= =?iso-8859-1?q?d=E9?= e").as_deref(),
            Some("Subject: \u{e4}bcd\u{e9} e")
        );
        assert_eq!(as_read("Subject: plain"), None);
        assert_eq!(as_read("Subject \t: plain").as_deref(), Some("Subject: plain"));
        assert!(as_read("Subject: =?utf-8?Q?a=0D=0Ab?=").is_some_and(|text| !text.contains('\n')));
    }

    #[test]
    fn file_names_are_found_in_every_notation() {
        for (value, expected) in [
            ("attachment; filename=\"a b.exe\"", "a b.exe"),
            ("attachment; filename=a.exe", "a.exe"),
            ("attachment; filename*=UTF-8''%C3%A4.exe", "\u{e4}.exe"),
            ("attachment; filename*0=\"a\"; filename*1=\".exe\"", "a.exe"),
            ("attachment; filename*0*=UTF-8''%C3%A4; filename*1=\".exe\"", "\u{e4}.exe"),
            ("application/x; name=\"=?utf-8?B?w6QuZXhl?=\"", "\u{e4}.exe"),
            ("application/x; name=\"a.exe. \"", "a.exe"),
        ] {
            assert_eq!(type_and_names(value).unwrap().1[0], expected, "{value}");
        }
        assert_eq!(type_and_names("Text/HTML; charset=x").unwrap(), ("text/html".to_owned(), Vec::new()));
        assert_eq!(type_and_names(&"x".repeat(5000)), None);
    }

    #[test]
    fn addresses_are_found_in_a_field() {
        assert_eq!(addresses("\"x, y\" <a@b.example>, list: c@d.example;"), ["a@b.example", "c@d.example"]);
        assert!(addresses("no address").is_empty());
    }

    #[test]
    fn a_field_is_on_one_line() {
        assert_eq!(unfolded(b"Subject: a\r\n\tb\r\n"), "Subject: a\tb");
        assert_eq!(unfolded(b"X: \xe9\r\n"), "X: \u{fffd}");
        assert_eq!(name_and_value("A b : c: d "), Some(("A b", "c: d")));
        assert!(is_mime_field("content-type") && is_mime_field("Mime-Version") && !is_mime_field("Subject"));
    }
}
