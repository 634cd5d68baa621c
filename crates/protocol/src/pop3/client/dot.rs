//! Dot unstuffing of messages: removes the dot that begins a line, and finds the end, which is CRLF
//! `.` CRLF and nothing else (RFC 1939 section 3). A bare CR or LF is content like any other byte;
//! judging it is up to the caller.
//!
//! | state     | byte      | then                                   |
//! |-----------|-----------|----------------------------------------|
//! | LineStart | `.`       | Dot; the dot is removed                |
//! |           | any other | as Within                              |
//! | Dot       | CR        | DotCr; the CR is held back             |
//! |           | any other | as Within                              |
//! | DotCr     | LF        | the end                                |
//! |           | any other | the CR was content: as AfterCr         |
//! | Within    | CR        | AfterCr                                |
//! |           | any other | Within                                 |
//! | AfterCr   | LF        | LineStart                              |
//! |           | any other | as Within                              |

use memchr::memmem;

/// A piece of the input.
pub(super) enum Piece<'a> {
    /// Never empty.
    Content(&'a [u8]),
    End,
}

/// The state of the decoder.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum DotDecoder {
    #[default]
    LineStart,
    Dot,
    DotCr,
    Within,
    AfterCr,
}

impl DotDecoder {
    /// Returns the next piece and advances `input` past it; None at the end of the input.
    pub(super) fn next<'a>(&mut self, input: &mut &'a [u8]) -> Option<Piece<'a>> {
        while let Some((&byte, rest)) = input.split_first() {
            match (*self, byte) {
                (DotDecoder::LineStart, b'.') => *self = DotDecoder::Dot,
                (DotDecoder::Dot, b'\r') => *self = DotDecoder::DotCr,
                (DotDecoder::DotCr, b'\n') => {
                    *input = rest;
                    return Some(Piece::End);
                }
                (DotDecoder::DotCr, _) => {
                    *self = DotDecoder::AfterCr;
                    return Some(Piece::Content(b"\r"));
                }
                _ => return Some(Piece::Content(self.next_run(input))),
            }
            *input = rest;
        }
        None
    }

    /// Takes everything up to the next line that begins with a dot.
    fn next_run<'a>(&mut self, input: &mut &'a [u8]) -> &'a [u8] {
        let end = match (*self, *input) {
            (DotDecoder::AfterCr, [b'\n', b'.', ..]) => 1,
            _ => memmem::find(input, b"\r\n.").map_or(input.len(), |place| place + 2),
        };
        let (content, rest) = input.split_at(end);
        *self = match (*self, content) {
            (_, [.., b'\r', b'\n']) | (DotDecoder::AfterCr, [b'\n']) => DotDecoder::LineStart,
            (_, [.., b'\r']) => DotDecoder::AfterCr,
            _ => DotDecoder::Within,
        };
        *input = rest;
        content
    }
}
