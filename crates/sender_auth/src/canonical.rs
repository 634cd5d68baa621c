//! Canonicalization of header fields and bodies for DKIM and ARC (RFC 6376 section 3.4): the bytes
//! that a signature covers, whatever white space was changed on the way.
//!
//! | | simple | relaxed |
//! |---|---|---|
//! | field | unchanged | name in lower case, unfolded, white space reduced |
//! | line of the body | unchanged | white space reduced, none at its end |
//! | empty lines at the end of the body | removed | removed, also those with only white space |
//! | empty body | CRLF | nothing |
//!
//! A non-empty canonical body ends in CRLF. White space is space and tab; only CRLF ends a line, and
//! any other CR or LF is an octet like others. Nothing here fails or waits.

/// CRLFs to copy from, for bodies with many empty lines.
const LINE_ENDS: [u8; 512] = {
    let mut octets = [b'\n'; 512];
    let mut place = 0;
    while place < octets.len() {
        octets[place] = b'\r';
        place += 2;
    }
    octets
};

/// An algorithm of RFC 6376 section 3.4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canonicalization {
    /// Almost no change is tolerated.
    Simple,
    /// Changes of white space and folding are tolerated.
    Relaxed,
}

impl Canonicalization {
    /// The name in the `c=` tag.
    pub fn as_str(self) -> &'static str {
        match self {
            Canonicalization::Simple => "simple",
            Canonicalization::Relaxed => "relaxed",
        }
    }

    /// Appends a header field, given as it is in the message, with or without its final CRLF. The
    /// canonical field ends in CRLF; for the field of the signature itself the caller removes it
    /// (RFC 6376 section 3.7).
    pub fn write_field(self, field: &[u8], canonical: &mut Vec<u8>) {
        let field = field.strip_suffix(b"\r\n").unwrap_or(field);
        match self {
            Canonicalization::Simple => canonical.extend_from_slice(field),
            Canonicalization::Relaxed => write_relaxed_field(field, canonical),
        }
        canonical.extend_from_slice(b"\r\n");
    }
}

/// RFC 6376 section 3.4.2.
fn write_relaxed_field(field: &[u8], canonical: &mut Vec<u8>) {
    let colon = field.iter().position(|octet| *octet == b':').unwrap_or(field.len());
    let (name, value) = field.split_at(colon);
    canonical.extend(name.trim_ascii_end().iter().map(u8::to_ascii_lowercase));
    canonical.extend(value.first());
    let start = canonical.len();
    let mut rest = value.get(1..).unwrap_or_default();
    let mut space_pending = false;
    while let Some((&octet, after)) = rest.split_first() {
        rest = match rest.strip_prefix(b"\r\n") {
            Some(unfolded) => unfolded,
            None if is_white_space(octet) => {
                space_pending = true;
                after
            }
            None => {
                if std::mem::take(&mut space_pending) && canonical.len() > start {
                    canonical.push(b' ');
                }
                canonical.push(octet);
                after
            }
        };
    }
}

fn is_white_space(octet: u8) -> bool {
    octet == b' ' || octet == b'\t'
}

/// Canonicalizes a body that comes in chunks of any size.
#[derive(Clone, Debug)]
pub struct BodyCanonicalizer {
    algorithm: Canonicalization,
    /// CRLFs that are only written if something other follows.
    line_ends_pending: u64,
    /// White space that is only written, as one space, if its line goes on. Relaxed only.
    space_pending: bool,
    /// The last chunk ended in a CR.
    cr_pending: bool,
    is_empty: bool,
}

impl BodyCanonicalizer {
    /// At the start of a body, after the empty line that ends the header.
    pub fn new(algorithm: Canonicalization) -> BodyCanonicalizer {
        BodyCanonicalizer { algorithm, line_ends_pending: 0, space_pending: false, cr_pending: false, is_empty: true }
    }

    /// Takes the next chunk and appends what is certain by now. `canonical` grows by the length of
    /// the chunk at most, plus empty lines that earlier chunks ended in.
    pub fn update(&mut self, chunk: &[u8], canonical: &mut Vec<u8>) {
        let mut rest = chunk;
        if self.cr_pending && !rest.is_empty() {
            self.cr_pending = false;
            rest = self.take_after_cr(rest, canonical);
        }
        while let Some((&octet, after)) = rest.split_first() {
            rest = match octet {
                b'\r' if after.is_empty() => {
                    self.cr_pending = true;
                    after
                }
                b'\r' => self.take_after_cr(after, canonical),
                b' ' | b'\t' if self.algorithm == Canonicalization::Relaxed => {
                    self.space_pending = true;
                    after
                }
                _ => {
                    let (unchanged, after) = rest.split_at(self.unchanged_len(rest));
                    self.write(unchanged, canonical);
                    after
                }
            };
        }
    }

    /// The end of the body.
    pub fn finish(mut self, canonical: &mut Vec<u8>) {
        if self.cr_pending {
            self.write(b"\r", canonical);
        }
        if !self.is_empty || self.algorithm == Canonicalization::Simple {
            canonical.extend_from_slice(b"\r\n");
        }
    }

    /// What follows a CR: the line ends, or the CR is an octet of it.
    fn take_after_cr<'a>(&mut self, after: &'a [u8], canonical: &mut Vec<u8>) -> &'a [u8] {
        match after.strip_prefix(b"\n") {
            Some(next_line) => {
                self.space_pending = false;
                self.line_ends_pending += 1;
                next_line
            }
            None => {
                self.write(b"\r", canonical);
                after
            }
        }
    }

    /// The length of the first octets that are the same in canonical form, at least 1.
    fn unchanged_len(&self, octets: &[u8]) -> usize {
        let is_last_of_run = |place: usize, octet: u8| match octet {
            b'\r' => true,
            b' ' | b'\t' if self.algorithm == Canonicalization::Simple => false,
            b'\t' => true,
            b' ' => octets.get(place + 1).is_none_or(|next| matches!(next, b' ' | b'\t' | b'\r')),
            _ => false,
        };
        let end = octets.iter().enumerate().skip(1).find(|(place, octet)| is_last_of_run(*place, **octet));
        end.map_or(octets.len(), |(place, _)| place)
    }

    /// Appends octets that are not white space at the end of a line, after what they make certain.
    fn write(&mut self, octets: &[u8], canonical: &mut Vec<u8>) {
        let mut line_ends = std::mem::take(&mut self.line_ends_pending);
        while line_ends > 0 {
            let count = line_ends.min(LINE_ENDS.len() as u64 / 2);
            canonical.extend_from_slice(&LINE_ENDS[..count as usize * 2]);
            line_ends -= count;
        }
        if std::mem::take(&mut self.space_pending) {
            canonical.push(b' ');
        }
        canonical.extend_from_slice(octets);
        self.is_empty = false;
    }
}

#[cfg(test)]
mod tests {
    use super::Canonicalization::{Relaxed, Simple};
    use super::*;

    fn field(algorithm: Canonicalization, field: &str) -> String {
        let mut canonical = Vec::new();
        algorithm.write_field(field.as_bytes(), &mut canonical);
        String::from_utf8(canonical).unwrap()
    }

    /// The canonical body, from chunks of this size.
    fn body_in_chunks(algorithm: Canonicalization, body: &[u8], size: usize) -> Vec<u8> {
        let (mut canonicalizer, mut canonical) = (BodyCanonicalizer::new(algorithm), Vec::new());
        body.chunks(size).for_each(|chunk| canonicalizer.update(chunk, &mut canonical));
        canonicalizer.finish(&mut canonical);
        canonical
    }

    fn assert_body(algorithm: Canonicalization, body: &str, expected: &str) {
        for size in 1..=body.len().max(1) {
            let canonical = body_in_chunks(algorithm, body.as_bytes(), size);
            assert_eq!(String::from_utf8(canonical).unwrap(), expected, "{algorithm:?} {body:?} by {size}");
        }
    }

    /// RFC 6376 section 3.4.5, examples 1 and 2.
    #[test]
    fn the_examples_of_the_rfc() {
        let (first, second) = ("A: X\r\n", "B : Y\t\r\n\tZ  \r\n");
        assert_eq!(field(Relaxed, first), "a:X\r\n");
        assert_eq!(field(Relaxed, second), "b:Y Z\r\n");
        assert_eq!(field(Simple, first), first);
        assert_eq!(field(Simple, second), second);
        let body = " C \r\nD \t E\r\n\r\n\r\n";
        assert_body(Relaxed, body, " C\r\nD E\r\n");
        assert_body(Simple, body, " C \r\nD \t E\r\n");
    }

    #[test]
    fn fields_in_relaxed_form() {
        for (raw, expected) in [
            ("Subject:x", "subject:x\r\n"),
            ("SUBJECT \t:\t x  y\t\r\n", "subject:x y\r\n"),
            ("Subject:\r\n x\r\n", "subject:x\r\n"),
            ("Subject: x\r\n\t\r\n y\r\n", "subject:x y\r\n"),
            ("Subject:\r\n", "subject:\r\n"),
            ("Subject: \t \r\n", "subject:\r\n"),
            ("Subject: a:b : c\r\n", "subject:a:b : c\r\n"),
            ("Subject: Gr\u{fc}\u{df}e\r\n", "subject:Gr\u{fc}\u{df}e\r\n"),
            ("Subject: x\ry\nz\r\n", "subject:x\ry\nz\r\n"),
            ("no colon \r\n", "no colon\r\n"),
            ("", "\r\n"),
        ] {
            assert_eq!(field(Relaxed, raw), expected, "{raw:?}");
        }
    }

    #[test]
    fn fields_in_simple_form_are_unchanged() {
        for raw in ["Subject: x\r\n", "SUBJECT \t:\t x  y\t\r\n", "Subject:\r\n x\r\n\t \r\n"] {
            assert_eq!(field(Simple, raw), raw);
        }
        assert_eq!(field(Simple, "Subject: x"), "Subject: x\r\n");
    }

    /// RFC 6376 sections 3.4.3 and 3.4.4.
    #[test]
    fn empty_bodies() {
        for body in ["", "\r\n", "\r\n\r\n\r\n"] {
            assert_body(Simple, body, "\r\n");
            assert_body(Relaxed, body, "");
        }
        for body in [" ", "\t\r\n", " \r\n\t \r\n\r\n", "\r\n ", " \t "] {
            assert_body(Relaxed, body, "");
        }
    }

    /// A line of white space is an empty line in relaxed form, and ends the body like one.
    #[test]
    fn lines_of_white_space_at_the_end() {
        for end in ["", "\r\n", "\r\n\r\n", "\r\n \r\n", "\r\n\t\r\n \r\n", " \r\n\r\n \t\r\n ", "\r\n "] {
            assert_body(Relaxed, &format!("text{end}"), "text\r\n");
        }
        assert_body(Relaxed, "a\r\n \r\n\r\nb\r\n", "a\r\n\r\n\r\nb\r\n");
        assert_body(Simple, "text\r\n \r\n\r\n", "text\r\n \r\n");
        assert_body(Simple, "text\r\n ", "text\r\n \r\n");
        assert_body(Simple, "text", "text\r\n");
    }

    #[test]
    fn white_space_within_lines() {
        assert_body(Relaxed, "a  b\tc \t d\t\r\n\te\r\n", "a b c d\r\n e\r\n");
        assert_body(Relaxed, "  a\r\n", " a\r\n");
        assert_body(Simple, "a  b\tc \t d\t\r\n", "a  b\tc \t d\t\r\n");
    }

    #[test]
    fn only_crlf_ends_a_line() {
        assert_body(Relaxed, "a \r b\n\r\r\nc\r", "a \r b\n\r\r\nc\r\r\n");
        assert_body(Simple, "a \r b\n\r\r\nc\r", "a \r b\n\r\r\nc\r\r\n");
        assert_body(Relaxed, "\r", "\r\r\n");
        assert_body(Relaxed, " \r", " \r\r\n");
    }

    #[test]
    fn many_empty_lines_are_kept_if_text_follows() {
        let body = format!("a{}b\r\n{}", "\r\n".repeat(2_000), "\r\n".repeat(3_000));
        let expected = format!("a{}b\r\n", "\r\n".repeat(2_000));
        for (algorithm, size) in [(Simple, 1), (Simple, 700), (Relaxed, 1), (Relaxed, 701), (Relaxed, 20_000)] {
            let canonical = body_in_chunks(algorithm, body.as_bytes(), size);
            assert!(canonical == expected.as_bytes(), "{algorithm:?} by {size}");
        }
    }
}
