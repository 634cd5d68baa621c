//! The value of a Content-Type field (RFC 2045 section 5.1): the type, and the boundary of a
//! multipart. It is lenient: a value with errors gives what can be understood of it.

/// Octets of a boundary. RFC 2046 section 5.1.1 allows 70.
const BOUNDARY_OCTETS_MAX: usize = 256;

/// What is used of the field; names are in lower case.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ContentType {
    pub(super) main: Vec<u8>,
    pub(super) sub: Vec<u8>,
    /// None if it is missing, empty or too long.
    pub(super) boundary: Option<Box<[u8]>>,
    /// There is a boundary that is too long, or written in a way that is not understood (RFC 2231
    /// sections 3 and 4).
    pub(super) has_unknown_boundary: bool,
}

/// Where a parameter for the boundary is.
enum BoundaryParameter {
    Missing,
    Unknown,
    Found(Box<[u8]>),
}

impl ContentType {
    pub(super) fn parse(value: &[u8]) -> ContentType {
        #[cfg(test)]
        tests::PARSED.set(tests::PARSED.get() + 1);
        let mut rest = Cursor(value);
        let main = rest.word().to_ascii_lowercase();
        let sub = if rest.skip(b'/') { rest.word().to_ascii_lowercase() } else { Vec::new() };
        let parameter = rest.boundary();
        let has_unknown_boundary = matches!(parameter, BoundaryParameter::Unknown);
        let boundary = match parameter {
            BoundaryParameter::Found(boundary) => Some(boundary),
            BoundaryParameter::Missing | BoundaryParameter::Unknown => None,
        };
        ContentType { main, sub, boundary, has_unknown_boundary }
    }
}

/// The first word of a field, after comments (RFC 2045 section 6.1, RFC 822 section 3.4.3).
pub(super) fn first_word(value: &[u8]) -> &[u8] {
    let mut rest = Cursor(value);
    rest.skip_space();
    rest.take_until(|octet| octet.is_ascii_whitespace() || matches!(octet, b';' | b'('))
}

/// The part of the value that was not read yet.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn boundary(&mut self) -> BoundaryParameter {
        let mut unknown = BoundaryParameter::Missing;
        while self.skip_past_semicolon() {
            let name = self.word();
            if !self.skip(b'=') {
                continue;
            }
            let value = self.parameter_value();
            if name.eq_ignore_ascii_case(b"boundary") {
                // It cannot end in white space, which is padding behind a delimiter.
                let boundary = value.trim_ascii_end();
                return match boundary.len() {
                    0 => BoundaryParameter::Missing,
                    1..=BOUNDARY_OCTETS_MAX => BoundaryParameter::Found(boundary.into()),
                    _ => BoundaryParameter::Unknown,
                };
            }
            if name.get(..9).is_some_and(|start| start.eq_ignore_ascii_case(b"boundary*")) {
                unknown = BoundaryParameter::Unknown;
            }
        }
        unknown
    }

    /// Skips white space and comments, which may be nested.
    fn skip_space(&mut self) {
        let mut depth = 0_usize;
        while let [first, rest @ ..] = self.0 {
            match first {
                b'(' => depth += 1,
                b')' if depth > 0 => depth -= 1,
                b' ' | b'\t' | b'\r' | b'\n' => {}
                _ if depth > 0 => {}
                _ => return,
            }
            self.0 = rest;
        }
    }

    fn skip(&mut self, expected: u8) -> bool {
        self.skip_space();
        match self.0 {
            [first, rest @ ..] if *first == expected => {
                self.0 = rest;
                true
            }
            _ => false,
        }
    }

    /// Skips what cannot be understood, too.
    fn skip_past_semicolon(&mut self) -> bool {
        while !self.skip(b';') {
            match self.0 {
                [] => return false,
                [b'"', ..] => drop(self.quoted_string()),
                [_, rest @ ..] => self.0 = rest,
            }
        }
        true
    }

    fn word(&mut self) -> &'a [u8] {
        self.skip_space();
        self.take_until(|octet| octet.is_ascii_whitespace() || matches!(octet, b';' | b'=' | b'/' | b'(' | b'"'))
    }

    /// A value that should be quoted and is not may contain `=`, `/` and other special characters.
    fn parameter_value(&mut self) -> Vec<u8> {
        self.skip_space();
        match self.0 {
            [b'"', ..] => self.quoted_string(),
            _ => self.take_until(|octet| octet.is_ascii_whitespace() || octet == b';').to_vec(),
        }
    }

    fn quoted_string(&mut self) -> Vec<u8> {
        let mut text = Vec::new();
        self.0 = &self.0[1..];
        while let [first, rest @ ..] = self.0 {
            self.0 = rest;
            match (first, rest) {
                (b'"', _) => break,
                (b'\\', [quoted, rest @ ..]) => {
                    text.push(*quoted);
                    self.0 = rest;
                }
                _ => text.push(*first),
            }
        }
        text
    }

    fn take_until(&mut self, is_end: impl Fn(u8) -> bool) -> &'a [u8] {
        let count = self.0.iter().position(|octet| is_end(*octet)).unwrap_or(self.0.len());
        let (word, rest) = self.0.split_at(count);
        self.0 = rest;
        word
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        /// How many values were parsed on this thread.
        pub(in super::super) static PARSED: Cell<usize> = const { Cell::new(0) };
    }

    fn parsed(value: &str) -> (String, Option<String>) {
        let found = ContentType::parse(value.as_bytes());
        let name = [found.main, found.sub].map(|name| String::from_utf8(name).unwrap()).join("/");
        (name, found.boundary.map(|boundary| String::from_utf8(boundary.into()).unwrap()))
    }

    #[test]
    fn types_and_boundaries_are_found() {
        for (value, name, boundary) in [
            (" text/plain", "text/plain", None),
            ("Text/HTML; charset=utf-8", "text/html", None),
            ("multipart/mixed; boundary=abc", "multipart/mixed", Some("abc")),
            ("multipart/mixed;\tBoundary = \"a b;c \\\"d \"", "multipart/mixed", Some("a b;c \"d")),
            ("multipart/mixed; boundary=----=_Part/1:2; type=x", "multipart/mixed", Some("----=_Part/1:2")),
            ("multipart (a (b) c)/mixed (;boundary=no); x=\";boundary=no\"; boundary=y", "multipart/mixed", Some("y")),
            ("multipart/mixed; garbage here; boundary=z", "multipart/mixed", Some("z")),
            ("multipart/mixed; boundary=\"\"", "multipart/mixed", None),
            ("multipart/mixed; boundary=\"open", "multipart/mixed", Some("open")),
            ("multipart/mixed; boundary", "multipart/mixed", None),
            ("", "/", None),
            ("text", "text/", None),
        ] {
            assert_eq!(parsed(value), (name.to_owned(), boundary.map(str::to_owned)), "{value}");
        }
        let unknown = |value: &str| ContentType::parse(value.as_bytes()).has_unknown_boundary;
        assert!(
            unknown("multipart/mixed; boundary*0=\"a\"; Boundary*1=b") && unknown("multipart/mixed; boundary*=''a")
        );
        assert!(!unknown("multipart/mixed; boundary*0=a; boundary=b") && !unknown("multipart/mixed; boundary=\"\""));
        let long = format!("multipart/mixed; boundary={}", "x".repeat(BOUNDARY_OCTETS_MAX + 1));
        assert_eq!((parsed(&long).1, unknown(&long)), (None, true));
    }
}
