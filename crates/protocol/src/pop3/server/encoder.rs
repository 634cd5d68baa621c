//! Encodes a stored message for RETR and TOP (RFC 1939 sections 3, 5 and 7): lines end in CRLF, a
//! line that begins with a dot gets another one, and CRLF `.` CRLF is the end.
//!
//! A line of the stored message ends at an LF, whether a CR is before it or not. Another CR is
//! content like any other byte. Everything between two changes is copied at once: a message with
//! CRLF line ends costs a search per line and one copy.
//!
//! The message may come in pieces of any size; the result is the same.

use memchr::{memchr, memchr_iter};

/// The encoding of one message.
#[derive(Debug)]
pub(super) struct ContentEncoder {
    /// None for a complete message.
    top: Option<TopLimit>,
    line: LineSoFar,
    /// Octets that the client removes again: the dots.
    stuffed_octets: u64,
}

/// What is known of the line that is not complete yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineSoFar {
    Empty,
    /// It ends in CR, and has nothing else.
    OnlyCr,
    /// It ends in CR, after something else.
    EndsInCr,
    Other,
}

impl ContentEncoder {
    /// For a complete message, or for its header with this many lines of its body.
    pub(super) fn new(body_lines: Option<u32>) -> ContentEncoder {
        let top = body_lines.map(|lines| TopLimit { is_in_body: false, lines });
        ContentEncoder { top, line: LineSoFar::Empty, stuffed_octets: 0 }
    }

    /// Appends the encoded piece to `out`. Returns whether all the lines that are wanted are there;
    /// then the rest of the message must not follow.
    pub(super) fn encode(&mut self, piece: &[u8], out: &mut Vec<u8>) -> bool {
        let taken = self.top.as_mut().map_or(piece.len(), |top| top.take(self.line, piece));
        self.encode_all(&piece[..taken], out);
        self.top.as_ref().is_some_and(TopLimit::is_reached)
    }

    /// Appends the end. A last line without a line end gets one.
    pub(super) fn finish(self, out: &mut Vec<u8>) {
        let end: &[u8] = if self.line == LineSoFar::Empty { b".\r\n" } else { b"\r\n.\r\n" };
        out.extend_from_slice(end);
    }

    /// The octets of the encoded message that the client removes again, besides the final line.
    pub(super) fn stuffed_octets(&self) -> u64 {
        self.stuffed_octets
    }

    fn encode_all(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        // Most messages need few changes; what is missing is reserved when they do.
        out.reserve(piece.len() + piece.len() / 16);
        if self.line == LineSoFar::Empty && piece.first() == Some(&b'.') {
            self.stuff(out);
        }
        let mut copied = 0;
        for feed in memchr_iter(b'\n', piece) {
            if !self.has_cr_before(feed, piece) {
                out.extend_from_slice(&piece[copied..feed]);
                out.extend_from_slice(b"\r\n");
                copied = feed + 1;
            }
            if piece.get(feed + 1) == Some(&b'.') {
                out.extend_from_slice(&piece[copied..=feed]);
                self.stuff(out);
                copied = feed + 1;
            }
        }
        out.extend_from_slice(&piece[copied..]);
        self.line = self.line.after(piece);
    }

    fn has_cr_before(&self, feed: usize, piece: &[u8]) -> bool {
        match feed {
            0 => matches!(self.line, LineSoFar::OnlyCr | LineSoFar::EndsInCr),
            _ => piece[feed - 1] == b'\r',
        }
    }

    fn stuff(&mut self, out: &mut Vec<u8>) {
        self.stuffed_octets += 1;
        out.push(b'.');
    }
}

impl LineSoFar {
    /// With these further bytes.
    fn after(self, piece: &[u8]) -> LineSoFar {
        match piece {
            [] => self,
            [.., b'\n'] => LineSoFar::Empty,
            [.., b'\n', b'\r'] => LineSoFar::OnlyCr,
            [b'\r'] if self == LineSoFar::Empty => LineSoFar::OnlyCr,
            [.., b'\r'] => LineSoFar::EndsInCr,
            _ => LineSoFar::Other,
        }
    }

    /// Whether a line that continues and ends with `rest`, without its LF, is empty.
    fn is_empty_with(self, rest: &[u8]) -> bool {
        match self {
            LineSoFar::Empty => rest.is_empty() || rest == b"\r",
            LineSoFar::OnlyCr => rest.is_empty(),
            LineSoFar::EndsInCr | LineSoFar::Other => false,
        }
    }
}

/// Finds the end of what TOP wants: the header, the empty line after it, and some lines.
#[derive(Debug)]
struct TopLimit {
    is_in_body: bool,
    /// Of the body, still to come.
    lines: u32,
}

impl TopLimit {
    fn is_reached(&self) -> bool {
        self.is_in_body && self.lines == 0
    }

    /// Returns how much of a piece is wanted. `line` is what came before it in its first line.
    fn take(&mut self, mut line: LineSoFar, piece: &[u8]) -> usize {
        let mut taken = 0;
        while !self.is_reached() {
            let Some(octets) = memchr(b'\n', &piece[taken..]) else { return piece.len() };
            if self.is_in_body {
                self.lines -= 1;
            } else {
                self.is_in_body = line.is_empty_with(&piece[taken..taken + octets]);
            }
            line = LineSoFar::Empty;
            taken += octets + 1;
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Encodes the pieces; None if TOP wants no more than was there before the last piece.
    fn encode<'a>(lines: Option<u32>, pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
        let (mut encoder, mut out) = (ContentEncoder::new(lines), Vec::new());
        for piece in pieces {
            if encoder.encode(piece, &mut out) {
                break;
            }
        }
        encoder.finish(&mut out);
        out
    }

    fn check(lines: Option<u32>, message: &[u8], expected: &[u8]) {
        let whole = encode(lines, [message]);
        assert_eq!(whole.escape_ascii().to_string(), expected.escape_ascii().to_string());
        for cut in 0..=message.len() {
            let (head, tail) = message.split_at(cut);
            assert_eq!(encode(lines, [head, tail]), whole, "{} cut at {cut}", message.escape_ascii());
        }
        assert_eq!(encode(lines, message.chunks(1)), whole, "{} byte by byte", message.escape_ascii());
    }

    #[test]
    fn lines_end_in_crlf_and_dots_are_doubled() {
        check(None, b"", b".\r\n");
        check(None, b"a\r\nb\r\n", b"a\r\nb\r\n.\r\n");
        check(None, b"a\nb\n", b"a\r\nb\r\n.\r\n");
        check(None, b"a\n\n\nb\r\n", b"a\r\n\r\n\r\nb\r\n.\r\n");
        check(None, b".\r\n..\n.a.\n", b"..\r\n...\r\n..a.\r\n.\r\n");
        check(None, b"\n.\n", b"\r\n..\r\n.\r\n");
    }

    #[test]
    fn a_last_line_without_an_end_gets_one() {
        check(None, b"a", b"a\r\n.\r\n");
        check(None, b"a\n.", b"a\r\n..\r\n.\r\n");
        check(None, b"a\r", b"a\r\r\n.\r\n");
        check(None, b"\r", b"\r\r\n.\r\n");
    }

    #[test]
    fn a_bare_cr_is_content() {
        check(None, b"a\rb\r\r\n\r.\r\n", b"a\rb\r\r\n\r.\r\n.\r\n");
        check(None, b"\r\r\n.\n", b"\r\r\n..\r\n.\r\n");
    }

    #[test]
    fn top_is_the_header_the_empty_line_and_some_lines() {
        let message = b"Subject: x\r\n y\r\n\r\na\r\n.b\r\n\r\nd";
        check(Some(0), message, b"Subject: x\r\n y\r\n\r\n.\r\n");
        check(Some(1), message, b"Subject: x\r\n y\r\n\r\na\r\n.\r\n");
        check(Some(3), message, b"Subject: x\r\n y\r\n\r\na\r\n..b\r\n\r\n.\r\n");
        check(Some(u32::MAX), message, b"Subject: x\r\n y\r\n\r\na\r\n..b\r\n\r\nd\r\n.\r\n");
        check(Some(0), b"a: b\n\nc\n", b"a: b\r\n\r\n.\r\n");
        check(Some(1), b"\nc\nd\n", b"\r\nc\r\n.\r\n");
        check(Some(1), b"\r\nc", b"\r\nc\r\n.\r\n");
        // These lines are not empty.
        check(Some(0), b"a\r\n\r\r\n \n\nb\n", b"a\r\n\r\r\n \r\n\r\n.\r\n");
    }

    /// The same in the simplest way.
    fn simple_encode(lines: Option<u32>, message: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut left = None;
        for line in message.split_inclusive(|&byte| byte == b'\n') {
            if left == Some(0) {
                break;
            }
            let text = line.strip_suffix(b"\n").map_or(line, |text| text.strip_suffix(b"\r").unwrap_or(text));
            if line.starts_with(b".") {
                out.push(b'.');
            }
            out.extend(text);
            out.extend(b"\r\n");
            left = match left {
                Some(left) => Some(left - 1),
                None if text.is_empty() && line.ends_with(b"\n") => lines,
                None => None,
            };
        }
        out.extend(b".\r\n");
        out
    }

    proptest! {
        #[test]
        fn it_matches_a_simple_implementation(
            message in "[.\r\na]{0,40}",
            lines in proptest::option::of(0..6_u32),
            size in 1..9_usize,
        ) {
            let expected = simple_encode(lines, message.as_bytes());
            prop_assert_eq!(&encode(lines, [message.as_bytes()]), &expected);
            prop_assert_eq!(&encode(lines, message.as_bytes().chunks(size)), &expected);
        }

        #[test]
        fn what_the_client_sees_is_counted(message in "[.\r\na]{0,40}") {
            let (mut encoder, mut out) = (ContentEncoder::new(None), Vec::new());
            encoder.encode(message.as_bytes(), &mut out);
            let stuffed = encoder.stuffed_octets() as usize;
            encoder.finish(&mut out);
            let lines: Vec<_> = out.strip_suffix(b".\r\n").unwrap().split_inclusive(|&byte| byte == b'\n').collect();
            let seen: usize = lines.iter().map(|line| line.strip_prefix(b".").unwrap_or(line).len()).sum();
            prop_assert_eq!(seen, out.len() - stuffed - b".\r\n".len());
        }
    }
}
