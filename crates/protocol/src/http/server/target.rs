//! The target of a request (RFC 9112 section 3.2): a path in one spelling, and a query.
//!
//! A path begins with a slash, and has no empty segment, no `.` or `..`, and no control character.
//! Escapes are decoded before it is divided into segments, so `%2F` separates like a slash, and
//! `%2e%2e` goes up. A path that goes up from the root is invalid.

use std::fmt::Write as _;

use memchr::{memchr, memrchr};

/// A valid target.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) path: Box<[u8]>,
    /// After the question mark, as received.
    pub(super) query: Option<Box<[u8]>>,
}

/// Parses a target in origin form (`/page?query`) or absolute form (`http://host/page`).
pub(super) fn parse(target: &[u8]) -> Option<Target> {
    let origin = if target.starts_with(b"/") { target } else { strip_authority(target)? };
    // A fragment is never sent (RFC 9112 section 3.2).
    if memchr(b'#', origin).is_some() {
        return None;
    }
    let (path, query) = match memchr(b'?', origin) {
        Some(place) => (&origin[..place], Some(origin[place + 1..].into())),
        None => (origin, None),
    };
    Some(Target { path: resolve(path)?.into(), query })
}

/// A path as it is written in a link or in Location, the inverse of decoding.
pub fn encode_path(path: &[u8]) -> String {
    let mut text = String::with_capacity(path.len());
    for &octet in path {
        if octet.is_ascii_alphanumeric() || b"/-._~".contains(&octet) {
            text.push(char::from(octet));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(text, "%{octet:02X}");
        }
    }
    text
}

/// What follows the host of an absolute form; may be empty.
fn strip_authority(target: &[u8]) -> Option<&[u8]> {
    let strip = |scheme: &[u8]| {
        let (start, rest) = target.split_at_checked(scheme.len())?;
        start.eq_ignore_ascii_case(scheme).then_some(rest)
    };
    let rest = strip(b"http://").or_else(|| strip(b"https://"))?;
    let end = rest.iter().position(|octet| matches!(octet, b'/' | b'?' | b'#')).unwrap_or(rest.len());
    is_host(&rest[..end]).then(|| &rest[end..]).filter(|_| end > 0)
}

/// Whether this has only characters of a host with a port (RFC 3986 section 3.2); may be empty.
pub(super) fn is_host(text: &[u8]) -> bool {
    text.iter().all(|octet| octet.is_ascii_alphanumeric() || b"-._~:[]%!$&'()*+,;=".contains(octet))
}

/// The path in its only spelling.
fn resolve(path: &[u8]) -> Option<Vec<u8>> {
    let mut resolved = Vec::with_capacity(path.len().max(1));
    resolved.push(b'/');
    let mut octets = path.iter().copied();
    while let Some(octet) = octets.next() {
        let decoded = if octet == b'%' { hex(octets.next()?)? << 4 | hex(octets.next()?)? } else { octet };
        match decoded {
            b'/' => end_segment(&mut resolved, false)?,
            _ if decoded.is_ascii_control() => return None,
            _ => resolved.push(decoded),
        }
    }
    end_segment(&mut resolved, true)?;
    Some(resolved)
}

/// Ends the segment after the last slash.
fn end_segment(resolved: &mut Vec<u8>, is_last: bool) -> Option<()> {
    let start = memrchr(b'/', resolved)? + 1;
    match &resolved[start..] {
        b"" => {}
        b"." => resolved.truncate(start),
        b".." => {
            resolved.truncate(start - 1);
            // Above the root there is nothing.
            let parent = memrchr(b'/', resolved)?;
            resolved.truncate(parent + 1);
        }
        _ if is_last => {}
        _ => resolved.push(b'/'),
    }
    Some(())
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|digit| digit as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(target: &str) -> Option<String> {
        parse(target.as_bytes()).map(|target| String::from_utf8_lossy(&target.path).into_owned())
    }

    #[test]
    fn a_path_has_one_spelling() {
        for (target, expected) in [
            ("/", "/"),
            ("/a/b.html", "/a/b.html"),
            ("//a///b//", "/a/b/"),
            ("/a/./b/.", "/a/b/"),
            ("/a/b/..", "/a/"),
            ("/a/../b", "/b"),
            ("/a/b/../../c", "/c"),
            ("/a/%2e%2E/b", "/b"),
            ("/a%2F..%2fb", "/b"),
            ("/a/..%2f", "/"),
            ("/...", "/..."),
            ("/a/..b/.c", "/a/..b/.c"),
            ("/a%20b%25", "/a b%"),
            ("/%C3%A4", "/ä"),
            ("/a?b=/../c", "/a"),
            ("http://host/a", "/a"),
            ("HTTPS://host:1", "/"),
            ("http://host?x", "/"),
        ] {
            assert_eq!(path(target).as_deref(), Some(expected), "{target}");
        }
    }

    #[test]
    fn nothing_is_above_the_root_and_nothing_is_hidden_in_a_name() {
        for target in [
            "/..",
            "/../",
            "/a/../..",
            "/%2e%2e/etc/passwd",
            "/..%2fetc/passwd",
            "/.%2e/etc/passwd",
            "/%2e.%2Fetc/passwd",
            "/a/%2e%2e/%2e%2e/b",
            "/a%00b",
            "/a%0d%0ab",
            "/%7f",
            "/%",
            "/%4",
            "/%zz",
            "/%+1",
            "/a#b",
            "*",
            "",
            "a",
            "host:80",
            "http://",
            "http:///a",
            "http://user@host/",
            "ftp://host/a",
        ] {
            assert_eq!(path(target), None, "{target}");
        }
    }

    #[test]
    fn a_query_is_kept_as_it_is() {
        let query = |target: &str| parse(target.as_bytes()).unwrap().query;
        assert_eq!(query("/a?b%00=c?d").as_deref(), Some(&b"b%00=c?d"[..]));
        assert_eq!(query("http://host?").as_deref(), Some(&b""[..]));
        assert_eq!(query("/a"), None);
    }

    #[test]
    fn an_encoded_path_decodes_to_itself() {
        let all: Vec<u8> =
            b"/".iter().copied().chain(0x20..0x7f).chain(0x80..=0xff).filter(|&octet| octet != b'.').collect();
        assert_eq!(&*parse(encode_path(&all).as_bytes()).unwrap().path, resolve_plain(&all));
    }

    /// Without the empty segments that two slashes make.
    fn resolve_plain(path: &[u8]) -> Vec<u8> {
        let text = path.to_vec();
        text.iter()
            .enumerate()
            .filter(|(place, octet)| **octet != b'/' || *place == 0 || text[place - 1] != b'/')
            .map(|(_, octet)| *octet)
            .collect()
    }
}
