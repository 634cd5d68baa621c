//! The client side of an HTTP/1.1 connection. [`HttpClient`] handles the framing of responses:
//! where the head ends, how long the body is, whether the connection can be reused. It passes on
//! the bytes of a body once, in order and without copying, and its events do not depend on how the
//! input is split. Ambiguous framing is rejected. No error here is fatal: a server that violates
//! the protocol is disconnected. The driver handles timeouts; all other limits are here.
//!
//! # States
//!
//! | state  | waits for                  | then                                                                     |
//! |--------|----------------------------|--------------------------------------------------------------------------|
//! | Idle   | the driver                 | a request: Head. Input: violation                                        |
//! | Head   | CRLF CRLF                  | 1xx: Head again; else [`HttpEvent::Head`] and Body                           |
//! | Body   | its length, its last chunk | [`HttpEvent::End`]; Idle where the connection is kept, else Closed           |
//! |        | or the end                 |                                                                          |
//! | Closed | nothing                    | the end; further input is dropped                                        |
//!
//! A protocol violation leads to Closed from every state, as does the end of the connection.

mod head;
mod request;
#[cfg(test)]
mod tests;

use memchr::memmem;

pub use super::Method;
pub use super::chunked::FRAMING_OCTETS_MAX;
pub use head::{FIELDS_MAX, ResponseHead};
pub use request::{HttpRequest, InvalidHttpRequest, Persistence, TARGET_OCTETS_MAX};

use super::chunked::{InvalidChunk, Piece, split};
use super::field;
use head::Framing;

/// Octets of a head, including the empty line that ends it.
pub const HEAD_OCTETS_MAX: usize = 16 << 10;
/// Interim responses (1xx) before the final one.
pub const INTERIM_HEADS_MAX: u32 = 8;

/// Limits on what a server may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpResponseLimits {
    /// Octets of a body.
    pub body_octets_max: u64,
}

impl Default for HttpResponseLimits {
    fn default() -> Self {
        HttpResponseLimits { body_octets_max: 1 << 30 }
    }
}

/// What was received, in order: for each request one head, any number of body pieces, one end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HttpEvent<'a> {
    /// The head of the response.
    Head(ResponseHead),
    /// The next octets of the body, without chunk framing. Never empty.
    Body(&'a [u8]),
    /// The response is complete.
    End,
}

/// How the server violated the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HttpViolation {
    /// Bytes without a request.
    #[error("unsolicited bytes received")]
    Unsolicited,
    /// Exceeds [`HEAD_OCTETS_MAX`].
    #[error("response head too long")]
    HeadTooLong,
    /// Not a head of HTTP/1.0 or 1.1, or more than [`FIELDS_MAX`] fields.
    #[error("invalid HTTP/1.1 response head")]
    NoHead,
    /// Exceeds [`INTERIM_HEADS_MAX`].
    #[error("too many interim responses")]
    TooManyInterim,
    /// An unsolicited 101 response.
    #[error("unsolicited protocol upgrade")]
    Upgrade,
    /// The length of the body is not given in exactly one way (RFC 9112 section 6.3).
    #[error("ambiguous body length")]
    Length,
    /// Exceeds [`HttpResponseLimits::body_octets_max`].
    #[error("body too long")]
    BodyTooLong,
    /// Invalid chunk framing, or more than [`FRAMING_OCTETS_MAX`].
    #[error("invalid chunk framing")]
    Chunk,
    /// The connection was closed too early.
    #[error("connection closed before the end of the reply")]
    ConnectionClosed,
}

impl From<InvalidChunk> for HttpViolation {
    fn from(_: InvalidChunk) -> Self {
        HttpViolation::Chunk
    }
}

/// One connection to one server, with one request at a time.
#[derive(Debug)]
pub struct HttpClient {
    limits: HttpResponseLimits,
    state: State,
    /// The beginning of an incomplete head.
    partial: Vec<u8>,
}

#[derive(Debug)]
enum State {
    Idle,
    Head { method: Method, interim: u32 },
    Body(BodyState),
    Closed,
}

/// The rest of a body.
#[derive(Debug)]
struct BodyState {
    framing: Framing,
    /// The octets it may still have under our own limit.
    octets_max: u64,
    /// Whether the connection can be reused.
    is_kept: bool,
}

impl HttpClient {
    /// A new connection.
    pub fn new(limits: HttpResponseLimits) -> Self {
        HttpClient { limits, state: State::Idle, partial: Vec::new() }
    }

    /// Whether a request may be sent.
    pub fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle)
    }

    /// Call it when a request with this method is sent. Ignored unless the connection is idle.
    pub fn handle_request_sent(&mut self, method: Method) {
        if self.is_idle() {
            self.state = State::Head { method, interim: 0 };
        }
    }

    /// Returns the next event and advances `input` past it; None at the end of the input. After an
    /// error, the connection is unusable.
    pub fn handle_input<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<HttpEvent<'a>>, HttpViolation> {
        let taken = match &mut self.state {
            State::Idle if input.is_empty() => Ok(None),
            State::Idle => Err(HttpViolation::Unsolicited),
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

    /// The server closed its side, or the connection broke. This completes a body without any other
    /// end.
    pub fn handle_disconnect(&mut self) -> Result<Option<HttpEvent<'static>>, HttpViolation> {
        let ended = match &self.state {
            State::Idle | State::Closed => Ok(None),
            State::Body(BodyState { framing: Framing::UntilEnd, .. }) => Ok(Some(HttpEvent::End)),
            State::Head { .. } | State::Body(_) => Err(HttpViolation::ConnectionClosed),
        };
        self.close();
        ended
    }
}

impl HttpClient {
    fn take_head(&mut self, input: &mut &[u8]) -> Result<Option<HttpEvent<'static>>, HttpViolation> {
        while let Some(parsed) = self.next_head(input)? {
            let State::Head { method, interim } = self.state else { return Err(HttpViolation::Unsolicited) };
            match parsed.status {
                101 => return Err(HttpViolation::Upgrade),
                100..=199 if interim == INTERIM_HEADS_MAX => return Err(HttpViolation::TooManyInterim),
                100..=199 => self.state = State::Head { method, interim: interim + 1 },
                _ => return self.begin_body(parsed, method).map(Some),
            }
        }
        Ok(None)
    }

    /// The next head, which ends at the first CRLF CRLF and nowhere else. Copied only if it arrives
    /// in pieces.
    fn next_head(&mut self, input: &mut &[u8]) -> Result<Option<head::ParsedHead>, HttpViolation> {
        let known = self.partial.len();
        if known == 0
            && let Some(place) = memmem::find(input, field::HEAD_END)
        {
            let (head, rest) = input.split_at(place + field::HEAD_END.len());
            *input = rest;
            return head::parse(head).map(Some);
        }
        self.partial.extend_from_slice(&input[..input.len().min(HEAD_OCTETS_MAX + 1 - known)]);
        let from = known.saturating_sub(field::HEAD_END.len() - 1);
        let Some(place) = memmem::find(&self.partial[from..], field::HEAD_END) else {
            *input = &[];
            let is_too_long = self.partial.len() > HEAD_OCTETS_MAX;
            return if is_too_long { Err(HttpViolation::HeadTooLong) } else { Ok(None) };
        };
        let end = from + place + field::HEAD_END.len();
        *input = &input[end - known..];
        let head = std::mem::take(&mut self.partial);
        head::parse(&head[..end]).map(Some)
    }

    fn begin_body(&mut self, parsed: head::ParsedHead, method: Method) -> Result<HttpEvent<'static>, HttpViolation> {
        let octets_max = self.limits.body_octets_max;
        let framing = parsed.framing_after(method);
        if matches!(framing, Framing::Length(octets) if octets > octets_max) {
            return Err(HttpViolation::BodyTooLong);
        }
        let is_kept = parsed.is_kept && !matches!(framing, Framing::UntilEnd);
        self.state = State::Body(BodyState { framing, octets_max, is_kept });
        Ok(HttpEvent::Head(ResponseHead { status: parsed.status, length: parsed.length, is_kept }))
    }

    fn take_body<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<HttpEvent<'a>>, HttpViolation> {
        let State::Body(body) = &mut self.state else { return Ok(None) };
        let event = body.next(input)?;
        if matches!(event, Some(HttpEvent::End)) {
            self.state = if body.is_kept { State::Idle } else { State::Closed };
        }
        Ok(event)
    }

    fn close(&mut self) {
        self.state = State::Closed;
        self.partial = Vec::new();
    }
}

impl BodyState {
    fn next<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<HttpEvent<'a>>, HttpViolation> {
        let piece = match &mut self.framing {
            Framing::Length(0) => return Ok(Some(HttpEvent::End)),
            Framing::Length(octets) => {
                let piece = split(input, *octets);
                *octets -= piece.len() as u64;
                piece
            }
            Framing::UntilEnd => std::mem::take(input),
            Framing::Chunked(chunked) => match chunked.next(input)? {
                None => return Ok(None),
                Some(Piece::End) => return Ok(Some(HttpEvent::End)),
                Some(Piece::Body(piece)) => piece,
            },
        };
        self.octets_max = self.octets_max.checked_sub(piece.len() as u64).ok_or(HttpViolation::BodyTooLong)?;
        Ok((!piece.is_empty()).then_some(HttpEvent::Body(piece)))
    }
}
