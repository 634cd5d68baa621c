//! The chunked transfer coding (RFC 9112 section 7.1): passes on the chunk data, and drops sizes,
//! extensions and the trailer. Lines end only in CRLF.
//!
//! | state     | byte                  | then                            |
//! |-----------|-----------------------|---------------------------------|
//! | Size      | a digit               | Size                            |
//! |           | `;`, space, tab       | Extension, after a digit        |
//! |           | CR                    | SizeLf, after a digit           |
//! | Extension | CR                    | SizeLf                          |
//! |           | any but LF            | Extension                       |
//! | SizeLf    | LF                    | Data; TrailerLine if size is 0  |
//! | Data      | the last octet        | DataCr                          |
//! | DataCr    | CR                    | DataLf                          |
//! | DataLf    | LF                    | Size                            |
//! | TrailerLine | CR                  | LastLf                          |
//! |           | any but LF            | Trailer                         |
//! | Trailer   | CR                    | TrailerLf                       |
//! |           | any but LF            | Trailer                         |
//! | TrailerLf | LF                    | TrailerLine                     |
//! | LastLf    | LF                    | Ended                           |

/// Octets between two pieces of data; also octets of the trailer with the line before it.
pub const FRAMING_OCTETS_MAX: usize = 8 << 10;
/// Hex digits of a chunk size; they fit into u64.
const SIZE_DIGITS_MAX: u32 = 15;

/// Invalid framing, or more than [`FRAMING_OCTETS_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InvalidChunk;

/// A piece of the body.
pub(super) enum Piece<'a> {
    Body(&'a [u8]),
    End,
}

/// The decoder.
#[derive(Debug, Default)]
pub(super) struct ChunkedDecoder {
    state: State,
    /// Octets since the last piece of data.
    framing_octets: usize,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Size { octets: u64, digits: u32 },
    Extension { octets: u64 },
    SizeLf { octets: u64 },
    Data { octets: u64 },
    DataCr,
    DataLf,
    TrailerLine,
    Trailer,
    TrailerLf,
    LastLf,
    Ended,
}

impl Default for State {
    fn default() -> Self {
        State::Size { octets: 0, digits: 0 }
    }
}

impl ChunkedDecoder {
    /// Returns the next piece and advances `input` past it; None at the end of the input.
    pub(super) fn next<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Piece<'a>>, InvalidChunk> {
        while let Some((&byte, rest)) = input.split_first() {
            if let State::Data { octets } = self.state {
                let piece = split(input, octets);
                let octets = octets - piece.len() as u64;
                self.state = if octets == 0 { State::DataCr } else { State::Data { octets } };
                self.framing_octets = 0;
                return Ok(Some(Piece::Body(piece)));
            }
            *input = rest;
            self.framing_octets += 1;
            self.state =
                after(self.state, byte).filter(|_| self.framing_octets <= FRAMING_OCTETS_MAX).ok_or(InvalidChunk)?;
            if matches!(self.state, State::Ended) {
                return Ok(Some(Piece::End));
            }
        }
        Ok(None)
    }
}

/// The state after a byte of framing; None if the byte is invalid.
fn after(state: State, byte: u8) -> Option<State> {
    Some(match (state, byte) {
        (State::Size { octets, digits }, _) if byte.is_ascii_hexdigit() && digits < SIZE_DIGITS_MAX => {
            State::Size { octets: octets * 16 + u64::from(char::from(byte).to_digit(16)?), digits: digits + 1 }
        }
        (State::Size { octets, digits: 1.. }, b';' | b' ' | b'\t') => State::Extension { octets },
        (State::Size { octets, digits: 1.. } | State::Extension { octets }, b'\r') => State::SizeLf { octets },
        (State::Extension { octets }, _) if byte != b'\n' => State::Extension { octets },
        (State::SizeLf { octets: 0 }, b'\n') => State::TrailerLine,
        (State::SizeLf { octets }, b'\n') => State::Data { octets },
        (State::DataCr, b'\r') => State::DataLf,
        (State::DataLf, b'\n') => State::default(),
        (State::TrailerLine, b'\r') => State::LastLf,
        (State::Trailer, b'\r') => State::TrailerLf,
        (State::TrailerLine | State::Trailer, _) if byte != b'\n' => State::Trailer,
        (State::TrailerLf, b'\n') => State::TrailerLine,
        (State::LastLf, b'\n') => State::Ended,
        _ => return None,
    })
}

/// Takes at most `octets_max` octets from the front.
pub(super) fn split<'a>(input: &mut &'a [u8], octets_max: u64) -> &'a [u8] {
    let octets = usize::try_from(octets_max).map_or(input.len(), |octets_max| octets_max.min(input.len()));
    let (piece, rest) = input.split_at(octets);
    *input = rest;
    piece
}
