//! The dots of DATA (RFC 5321 section 4.5.2): takes away the one that begins a line, and finds the end.
//!
//! The end is CRLF `.` CRLF and nothing else, the first CRLF being that of the DATA command where the message is empty.
//! A line begins after CRLF only, so that a dot after a bare CR or LF is a byte like others. No byte is held back but a
//! dot and the CR after it; whatever the input's pieces, the bytes given out are the same.
//!
//! | place     | `.`       | CR             | LF        | other     |
//! |-----------|-----------|----------------|-----------|-----------|
//! | LineStart | Dot       | Cr             | Line      | Line      |
//! | Line      | Line      | Cr             | Line      | Line      |
//! | Cr        | Line      | Cr             | LineStart | Line      |
//! | Dot       | Line      | DotCr          | Line      | Line      |
//! | DotCr     | Line + CR | Cr + CR        | the end   | Line + CR |
//!
//! A byte is given out unless it leads to Dot, DotCr or the end; `+ CR` gives out the CR that was held back before it.

use memchr::memmem;

/// Where in the data the next byte stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum DotDecoder {
    /// After CRLF.
    #[default]
    LineStart,
    /// Inside a line.
    Line,
    /// After a CR inside a line.
    Cr,
    /// After a dot that began a line.
    Dot,
    /// After such a dot and a CR.
    DotCr,
}

/// What a stretch of input means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece<'a> {
    /// Bytes of the message.
    Bytes(&'a [u8]),
    /// The message is complete; what is left of the input comes after it.
    End,
}

impl DotDecoder {
    /// The next piece of `input`, which is cut by what was used of it; None when all was used.
    pub(super) fn next_piece<'a>(&mut self, input: &mut &'a [u8]) -> Option<Piece<'a>> {
        while let Some((&byte, rest)) = input.split_first() {
            *self = match (*self, byte) {
                (DotDecoder::LineStart, b'.') => DotDecoder::Dot,
                (DotDecoder::Dot, b'\r') => DotDecoder::DotCr,
                (DotDecoder::DotCr, b'\n') => {
                    *input = rest;
                    *self = DotDecoder::LineStart;
                    return Some(Piece::End);
                }
                (DotDecoder::DotCr, _) => {
                    *self = DotDecoder::Cr;
                    return Some(Piece::Bytes(b"\r"));
                }
                (DotDecoder::LineStart | DotDecoder::Line | DotDecoder::Cr | DotDecoder::Dot, _) => {
                    return Some(Piece::Bytes(self.next_run(input)));
                }
            };
            *input = rest;
        }
        None
    }

    /// Takes all up to the next line that begins with a dot.
    fn next_run<'a>(&mut self, input: &mut &'a [u8]) -> &'a [u8] {
        let length = match memmem::find(input, b"\r\n.") {
            // The CR was in an earlier piece of the input.
            _ if *self == DotDecoder::Cr && input[0] == b'\n' => 1,
            Some(place) => place + 2,
            None => input.len(),
        };
        let (run, rest) = input.split_at(length);
        *input = rest;
        *self = match run {
            [b'\n'] if *self == DotDecoder::Cr => DotDecoder::LineStart,
            [.., b'\r', b'\n'] => DotDecoder::LineStart,
            [.., b'\r'] => DotDecoder::Cr,
            _ => DotDecoder::Line,
        };
        run
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The decoded bytes, and what is left after the end if there is one.
    fn decode(pieces: &[&[u8]]) -> (Vec<u8>, Option<Vec<u8>>) {
        let mut decoder = DotDecoder::default();
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
        for cut in 0..=input.len() {
            let (found, rest) = decode(&[&input[..cut], &input[cut..]]);
            assert_eq!((&found[..], rest.as_deref()), (bytes, after), "{} cut at {cut}", input.escape_ascii());
        }
        let single: Vec<&[u8]> = input.chunks(1).collect();
        assert_eq!(decode(&single), (bytes.to_vec(), after.map(<[u8]>::to_vec)));
    }

    #[test]
    fn the_end_is_a_dot_between_two_crlf() {
        check(b".\r\nNOOP\r\n", b"", Some(b"NOOP\r\n"));
        check(b"a\r\n.\r\n", b"a\r\n", Some(b""));
        check(b"a\r\n\r\n.\r\nQUIT", b"a\r\n\r\n", Some(b"QUIT"));
    }

    #[test]
    fn the_first_dot_of_a_line_goes_and_no_other() {
        check(b"..\r\na.b\r\n..c\r\n.d\r\n...\r\n.\r\n", b".\r\na.b\r\n.c\r\nd\r\n..\r\n", Some(b""));
    }

    #[test]
    fn nothing_like_the_end_ends_the_data() {
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
}
