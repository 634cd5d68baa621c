//! Dot unstuffing of DATA (RFC 5321 section 4.5.2): removes the dot that begins a line, and finds
//! the end of the data.
//!
//! The end is CRLF `.` CRLF and nothing else; for an empty message, the first CRLF is that of the
//! DATA command. A line begins only after CRLF, so a dot after a bare CR or LF is an ordinary byte.
//! Only a dot and the CR after it are ever held back; the output does not depend on how the input
//! is split.
//!
//! | place     | `.`       | CR             | LF        | other     |
//! |-----------|-----------|----------------|-----------|-----------|
//! | LineStart | Dot       | Cr             | Line      | Line      |
//! | Line      | Line      | Cr             | Line      | Line      |
//! | Cr        | Line      | Cr             | LineStart | Line      |
//! | Dot       | Line      | DotCr          | Line      | Line      |
//! | DotCr     | Line + CR | Cr + CR        | the end   | Line + CR |
//!
//! A byte is passed on unless it leads to Dot, DotCr or the end; `+ CR` passes on the CR that was
//! held back.
//!
//! If bare newlines are converted to CRLF, the client has also stuffed the lines after them. There,
//! one of two dots is removed and no other: a lone dot stays, and nothing there ends the data.
//!
//! | place     | `.`        | CR        | LF        | other    |
//! |-----------|------------|-----------|-----------|----------|
//! | Line      | Line       | Cr        | BareStart | Line     |
//! | Cr        | BareDot    | Cr        | LineStart | Line     |
//! | BareStart | BareDot    | Cr        | BareStart | Line     |
//! | BareDot   | Line + `.` | Cr + `.`  | BareStart + `.` | Line + `.` |
//!
//! BareDot holds its dot back; `+ .` passes it on, and of two dots only that one.

use memchr::{memchr_iter, memmem};

/// Decodes the data of one message.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DotDecoder {
    position: LinePosition,
    /// A bare CR or LF also ends a line, but never the data.
    repairs: bool,
}

/// The position of the next byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LinePosition {
    /// After CRLF.
    #[default]
    LineStart,
    /// Inside a line.
    Line,
    /// After a CR within a line.
    Cr,
    /// After a dot at the start of a line.
    Dot,
    /// After such a dot and a CR.
    DotCr,
    /// After a bare LF.
    BareStart,
    /// After a dot at the start of a line that follows a bare CR or LF.
    BareDot,
}

/// The meaning of a piece of input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece<'a> {
    /// Bytes of the message.
    Bytes(&'a [u8]),
    /// The message is complete; the rest of the input comes after it.
    End,
}

impl DotDecoder {
    /// Starts at the beginning of the data. With `repairs`, lines may end in a bare CR or LF, which
    /// the caller converts to CRLF.
    pub(super) fn new(repairs: bool) -> Self {
        DotDecoder { position: LinePosition::LineStart, repairs }
    }

    /// Returns the next piece and advances `input` past it; None at the end of the input.
    pub(super) fn next_piece<'a>(&mut self, input: &mut &'a [u8]) -> Option<Piece<'a>> {
        while let Some((&byte, rest)) = input.split_first() {
            self.position = match (self.position, byte) {
                (LinePosition::LineStart, b'.') => LinePosition::Dot,
                (LinePosition::Dot, b'\r') => LinePosition::DotCr,
                (LinePosition::DotCr, b'\n') => {
                    *input = rest;
                    self.position = LinePosition::LineStart;
                    return Some(Piece::End);
                }
                (LinePosition::DotCr, _) => {
                    self.position = LinePosition::Cr;
                    return Some(Piece::Bytes(b"\r"));
                }
                (LinePosition::BareStart, b'.') => LinePosition::BareDot,
                (LinePosition::Cr, b'.') if self.repairs => LinePosition::BareDot,
                (LinePosition::BareDot, _) => {
                    // Pass on one dot: the first, or the second of two.
                    *input = if byte == b'.' { rest } else { *input };
                    self.position = LinePosition::Line;
                    return Some(Piece::Bytes(b"."));
                }
                (
                    LinePosition::LineStart
                    | LinePosition::Line
                    | LinePosition::Cr
                    | LinePosition::Dot
                    | LinePosition::BareStart,
                    _,
                ) => {
                    return Some(Piece::Bytes(self.next_run(input)));
                }
            };
            *input = rest;
        }
        None
    }

    /// Takes everything up to the next line that begins with a dot.
    fn next_run<'a>(&mut self, input: &mut &'a [u8]) -> &'a [u8] {
        let length = match self.next_dot_line(input) {
            // The CR was in an earlier input.
            _ if self.position == LinePosition::Cr && input[0] == b'\n' => 1,
            Some(place) => place,
            None => input.len(),
        };
        let (run, rest) = input.split_at(length);
        *input = rest;
        self.position = match run {
            [b'\n'] if self.position == LinePosition::Cr => LinePosition::LineStart,
            [.., b'\r', b'\n'] => LinePosition::LineStart,
            [.., b'\r'] => LinePosition::Cr,
            [.., b'\n'] if self.repairs => LinePosition::BareStart,
            _ => LinePosition::Line,
        };
        run
    }

    /// The index of the first dot that begins a line in `input`.
    fn next_dot_line(&self, input: &[u8]) -> Option<usize> {
        if self.repairs {
            memchr_iter(b'.', input).find(|&place| place > 0 && matches!(input[place - 1], b'\r' | b'\n'))
        } else {
            memmem::find(input, b"\r\n.").map(|place| place + 2)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The decoded bytes, and the rest of the input after the end, if found.
    fn decode(pieces: &[&[u8]], repairs: bool) -> (Vec<u8>, Option<Vec<u8>>) {
        let mut decoder = DotDecoder::new(repairs);
        let (mut bytes, mut after) = (Vec::new(), None::<Vec<u8>>);
        for mut input in pieces.iter().copied() {
            while after.is_none() {
                match decoder.next_piece(&mut input) {
                    Some(Piece::Bytes(run)) => bytes.extend_from_slice(run),
                    Some(Piece::End) => after = Some(Vec::new()),
                    None => break,
                }
            }
            if let Some(after) = &mut after {
                after.extend_from_slice(input);
            }
        }
        (bytes, after)
    }

    fn check(input: &[u8], bytes: &[u8], after: Option<&[u8]>) {
        check_with(false, input, bytes, after);
    }

    fn check_with(repairs: bool, input: &[u8], bytes: &[u8], after: Option<&[u8]>) {
        for cut in 0..=input.len() {
            let (found, rest) = decode(&[&input[..cut], &input[cut..]], repairs);
            assert_eq!((&found[..], rest.as_deref()), (bytes, after), "{} cut at {cut}", input.escape_ascii());
        }
        let single: Vec<&[u8]> = input.chunks(1).collect();
        assert_eq!(decode(&single, repairs), (bytes.to_vec(), after.map(<[u8]>::to_vec)));
    }

    #[test]
    fn the_end_is_a_dot_between_two_crlf() {
        check(b".\r\nNOOP\r\n", b"", Some(b"NOOP\r\n"));
        check(b"a\r\n.\r\n", b"a\r\n", Some(b""));
        check(b"a\r\n\r\n.\r\nQUIT", b"a\r\n\r\n", Some(b"QUIT"));
    }

    #[test]
    fn only_the_first_dot_of_a_line_is_removed() {
        check(b"..\r\na.b\r\n..c\r\n.d\r\n...\r\n.\r\n", b".\r\na.b\r\n.c\r\nd\r\n..\r\n", Some(b""));
    }

    #[test]
    fn similar_sequences_do_not_end_the_data() {
        for (input, bytes) in [
            (&b"a\n.\nb"[..], &b"a\n.\nb"[..]),
            (b"a\n.\r\nb", b"a\n.\r\nb"),
            (b"a\r\n.\nb", b"a\r\n\nb"),
            (b"a\r.\rb", b"a\r.\rb"),
            (b"a\r.\r\nb", b"a\r.\r\nb"),
            (b"a\r\n.\rb", b"a\r\n\rb"),
            (b"a\r\n.\r\r\nb", b"a\r\n\r\r\nb"),
            (b"a\r\n.\0\r\nb", b"a\r\n\0\r\nb"),
            (b"a\r\n\0.\r\nb", b"a\r\n\0.\r\nb"),
            (b"a\r\0\n.\r\nb", b"a\r\0\n.\r\nb"),
            (b"\n.\r\nb", b"\n.\r\nb"),
            (b"\r.\r\nb", b"\r.\r\nb"),
            (b".\nb", b"\nb"),
            (b".\rb", b"\rb"),
            (b".\r\r\nb", b"\r\r\nb"),
            (b"\r\r\n.\r.\r\nb", b"\r\r\n\r.\r\nb"),
        ] {
            check(input, bytes, None);
        }
    }

    /// Regression: a client that ends lines in LF also stuffs the lines after them, and its dots
    /// stayed doubled.
    #[test]
    fn after_a_repaired_bare_newline_one_of_two_dots_is_removed() {
        for (input, bytes) in [
            (&b"a\n..foo\nb"[..], &b"a\n.foo\nb"[..]),
            (b"a\r..foo\rb", b"a\r.foo\rb"),
            (b"\n...\n..\n.b", b"\n..\n.\n.b"),
            (b"a\n.foo", b"a\n.foo"),
            (b"a\n.", b"a\n"),
            (b"a\r\n..b\n\r..c", b"a\r\n.b\n\r.c"),
            (b"\r\n.\n..b", b"\r\n\n.b"),
        ] {
            check_with(true, input, bytes, None);
            check_with(true, &[input, b"\r\n.\r\nQUIT"].concat(), &repaired_whole(bytes, input), Some(b"QUIT"));
        }
    }

    /// Bytes held back at the end of `input` are passed on once the data continues.
    fn repaired_whole(bytes: &[u8], input: &[u8]) -> Vec<u8> {
        let held: &[u8] = if input.ends_with(b"\n.") { b"." } else { b"" };
        [bytes, held, b"\r\n"].concat()
    }

    #[test]
    fn similar_sequences_do_not_end_repaired_data() {
        for input in
            ["\n.\n", "\n.\r\n", "\r\n.\n", "\r.\r", "\r.\r\n", "\r\n.\r", "\r\n.\r\r\n", "\n..\r\n", "\r..\r\n"]
        {
            let (_, after) = decode(&[b"a", input.as_bytes(), b"RSET\r\n"], true);
            assert_eq!(after, None, "{}", input.escape_default());
        }
    }
}
