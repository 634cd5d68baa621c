//! The client's side of an HTTP/1.1 connection. [`Client`] owns the framing of what a server sends: where a head ends,
//! how long the body is, whether the connection may serve another request. It promises that the bytes of a body are
//! handed on once, in order and without being copied, and that the same comes of the input however it was cut. What
//! could be read in two ways is refused. Nothing here is fatal: a server that misbehaves is hung up on. Time is the
//! driver's; every other limit is here.
//!
//! # States
//!
//! | state  | waits for                  | then                                                                     |
//! |--------|----------------------------|--------------------------------------------------------------------------|
//! | Idle   | the driver                 | a request: Head. Input: misbehaviour                                     |
//! | Head   | CRLF CRLF                  | 1xx: Head again; else [`Event::Head`] and Body                           |
//! | Body   | its length, its last chunk | [`Event::End`]; Idle where the connection is kept, else Closed           |
//! |        | or the end                 |                                                                          |
//! | Closed | nothing                    | the end; what still comes is dropped                                     |
//!
//! Misbehaviour leads to Closed from everywhere, and so does the end of the connection.

mod chunked;
mod head;
mod request;
#[cfg(test)]
mod tests;

use memchr::memmem;

pub use super::Method;
pub use chunked::FRAMING_OCTETS_MAX;
pub use head::{FIELDS_MAX, Head};
pub use request::{Persistence, Request, TARGET_OCTETS_MAX, Unsendable};

use chunked::Piece;
use head::Framing;

/// Octets of a head, with the empty line that ends it.
pub const HEAD_OCTETS_MAX: usize = 16 << 10;
/// Heads with 1xx before the one that counts.
pub const INTERIM_HEADS_MAX: u32 = 8;

/// What a server may do at the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Octets of a body.
    pub body_octets_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { body_octets_max: 1 << 30 }
    }
}

/// What came, in order: for each request one head, any number of pieces of the body, one end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// The head of the reply.
    Head(Head),
    /// The next octets of the body, without the marks of chunks between them. Never empty.
    Body(&'a [u8]),
    /// The reply is complete.
    End,
}

/// How a server can break the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misbehaviour {
    /// Something came that no request asked for.
    #[error("unsolicited bytes received")]
    Unasked,
    /// Over [`HEAD_OCTETS_MAX`].
    #[error("response head too long")]
    HeadTooLong,
    /// It is no head of HTTP/1.0 or 1.1, or has over [`FIELDS_MAX`] fields.
    #[error("invalid HTTP/1.1 response head")]
    NoHead,
    /// Over [`INTERIM_HEADS_MAX`].
    #[error("too many interim replies")]
    TooManyInterim,
    /// 101, which nobody asked for.
    #[error("unsolicited protocol upgrade")]
    Upgrade,
    /// The length of the body is not said in exactly one way (RFC 9112 section 6.3).
    #[error("ambiguous body length")]
    Length,
    /// Over [`Limits::body_octets_max`].
    #[error("the body is too long")]
    BodyTooLong,
    /// What should be the mark of a chunk is none, or is over [`FRAMING_OCTETS_MAX`].
    #[error("invalid chunk framing")]
    Chunk,
    /// The connection ended first.
    #[error("connection closed before the end of the reply")]
    Cut,
}

/// One connection to one server. Requests go out one at a time.
#[derive(Debug)]
pub struct Client {
    limits: Limits,
    state: State,
    /// The beginning of a head.
    partial: Vec<u8>,
}

#[derive(Debug)]
enum State {
    Idle,
    Head { method: Method, interim: u32 },
    Body(Body),
    Closed,
}

/// What is still to come of a body.
#[derive(Debug)]
struct Body {
    framing: Framing,
    /// What it may still have by our own limit.
    octets_max: u64,
    /// Whether the connection may be used again.
    is_kept: bool,
}

impl Client {
    /// A connection that was just made.
    pub fn new(limits: Limits) -> Self {
        Client { limits, state: State::Idle, partial: Vec::new() }
    }

    /// Whether a request may go out.
    pub fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle)
    }

    /// A request with this method goes out. The connection must be idle; else there will be no event of it.
    pub fn handle_request(&mut self, method: Method) {
        if self.is_idle() {
            self.state = State::Head { method, interim: 0 };
        }
    }

    /// The next event of `input`, which is cut by what was used of it; None when all was used. After an error the
    /// connection is of no more use.
    pub fn handle_input<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Event<'a>>, Misbehaviour> {
        let taken = match &mut self.state {
            State::Idle if input.is_empty() => Ok(None),
            State::Idle => Err(Misbehaviour::Unasked),
            State::Head { .. } => self.take_head(input),
            State::Body(_) => self.take_body(input),
            State::Closed => {
                *input = &[];
                Ok(None)
            }
        };
        if taken.is_err() {
            self.close();
        }
        taken
    }

    /// The server closed its side, or the connection broke. A body that has no other end is complete by it.
    pub fn handle_end(&mut self) -> Result<Option<Event<'static>>, Misbehaviour> {
        let ended = match &self.state {
            State::Idle | State::Closed => Ok(None),
            State::Body(Body { framing: Framing::UntilEnd, .. }) => Ok(Some(Event::End)),
            State::Head { .. } | State::Body(_) => Err(Misbehaviour::Cut),
        };
        self.close();
        ended
    }
}

impl Client {
    fn take_head(&mut self, input: &mut &[u8]) -> Result<Option<Event<'static>>, Misbehaviour> {
        while let Some(parsed) = self.next_head(input)? {
            let State::Head { method, interim } = self.state else { return Err(Misbehaviour::Unasked) };
            match parsed.status {
                101 => return Err(Misbehaviour::Upgrade),
                100..=199 if interim == INTERIM_HEADS_MAX => return Err(Misbehaviour::TooManyInterim),
                100..=199 => self.state = State::Head { method, interim: interim + 1 },
                _ => return self.begin_body(parsed, method).map(Some),
            }
        }
        Ok(None)
    }

    /// The next head, which ends at the first CRLF CRLF and nowhere else. It is copied only if it comes in pieces.
    fn next_head(&mut self, input: &mut &[u8]) -> Result<Option<head::Parsed>, Misbehaviour> {
        let known = self.partial.len();
        if known == 0
            && let Some(place) = memmem::find(input, head::END)
        {
            let (head, rest) = input.split_at(place + head::END.len());
            *input = rest;
            return head::parse(head).map(Some);
        }
        self.partial.extend_from_slice(&input[..input.len().min(HEAD_OCTETS_MAX + 1 - known)]);
        let from = known.saturating_sub(head::END.len() - 1);
        let Some(place) = memmem::find(&self.partial[from..], head::END) else {
            *input = &[];
            let is_too_long = self.partial.len() > HEAD_OCTETS_MAX;
            return if is_too_long { Err(Misbehaviour::HeadTooLong) } else { Ok(None) };
        };
        let end = from + place + head::END.len();
        *input = &input[end - known..];
        let head = std::mem::take(&mut self.partial);
        head::parse(&head[..end]).map(Some)
    }

    fn begin_body(&mut self, parsed: head::Parsed, method: Method) -> Result<Event<'static>, Misbehaviour> {
        let octets_max = self.limits.body_octets_max;
        let framing = parsed.framing_after(method);
        if matches!(framing, Framing::Length(octets) if octets > octets_max) {
            return Err(Misbehaviour::BodyTooLong);
        }
        let is_kept = parsed.is_kept && !matches!(framing, Framing::UntilEnd);
        self.state = State::Body(Body { framing, octets_max, is_kept });
        Ok(Event::Head(Head { status: parsed.status, length: parsed.length, is_kept }))
    }

    fn take_body<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Event<'a>>, Misbehaviour> {
        let State::Body(body) = &mut self.state else { return Ok(None) };
        let event = body.next(input)?;
        if matches!(event, Some(Event::End)) {
            self.state = if body.is_kept { State::Idle } else { State::Closed };
        }
        Ok(event)
    }

    fn close(&mut self) {
        self.state = State::Closed;
        self.partial = Vec::new();
    }
}

impl Body {
    fn next<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Event<'a>>, Misbehaviour> {
        let piece = match &mut self.framing {
            Framing::Length(0) => return Ok(Some(Event::End)),
            Framing::Length(octets) => {
                let piece = split(input, *octets);
                *octets -= piece.len() as u64;
                piece
            }
            Framing::UntilEnd => std::mem::take(input),
            Framing::Chunked(chunked) => match chunked.next(input)? {
                None => return Ok(None),
                Some(Piece::End) => return Ok(Some(Event::End)),
                Some(Piece::Body(piece)) => piece,
            },
        };
        self.octets_max = self.octets_max.checked_sub(piece.len() as u64).ok_or(Misbehaviour::BodyTooLong)?;
        Ok((!piece.is_empty()).then_some(Event::Body(piece)))
    }
}

/// Takes at most so many octets off the front.
fn split<'a>(input: &mut &'a [u8], octets_max: u64) -> &'a [u8] {
    let octets = usize::try_from(octets_max).map_or(input.len(), |octets_max| octets_max.min(input.len()));
    let (piece, rest) = input.split_at(octets);
    *input = rest;
    piece
}
