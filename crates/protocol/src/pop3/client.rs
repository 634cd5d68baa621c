//! The client side of a POP3 session. [`Pop3Client`] knows which reply is due: a line, a list, a
//! message. It passes on the bytes of a message once, in order, without copying and with
//! dot-stuffing removed, and its events do not depend on how the input is split. The driver decides
//! what to send next and handles timeouts; all other limits are here. No error is fatal: a server
//! that violates the protocol is disconnected.
//!
//! # States
//!
//! | state  | waits for             | then                                                                        |
//! |--------|-----------------------|-----------------------------------------------------------------------------|
//! | Banner | `+OK`                 | Ready; `-ERR`: Closed                                                       |
//! | Ready  | the driver            | a command: Reply. Input: violation                                          |
//! | Reply  | `+OK` or `-ERR`       | Ready; after `+OK` to LIST, UIDL, CAPA: List; to RETR: Message; QUIT: Closed |
//! | List   | lines, and one of `.` | [`Pop3Event::End`], Ready                                                       |
//! | Message| CRLF `.` CRLF         | [`Pop3Event::End`], Ready                                                       |
//! | Closed | nothing               | the end; further input is dropped                                           |
//!
//! A protocol violation leads to Closed from every state, as does the end of the connection.

mod command;
mod dot;
mod line;
#[cfg(test)]
mod tests;

pub use command::{COMMAND_OCTETS_MAX, Pop3Command, Pop3CommandError};
pub use line::LINE_OCTETS_MAX;

use command::ReplyKind;
use dot::{DotDecoder, Piece};
use line::LineReader;

/// Lines of a list, and so messages of a mailbox.
pub const LIST_LINES_MAX: u32 = 1_000_000;

/// Limits on what a server may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pop3ResponseLimits {
    /// Octets of a message.
    pub message_octets_max: u64,
}

impl Default for Pop3ResponseLimits {
    fn default() -> Self {
        Pop3ResponseLimits { message_octets_max: 1 << 30 }
    }
}

/// What was received, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pop3Event<'a> {
    /// `+OK`: the banner, or the reply to a command. A list or message may follow.
    Accepted,
    /// `+OK` to STAT.
    Stat {
        /// The number of messages; they are numbered from 1.
        messages: u32,
        /// Their total size in octets.
        octets: u64,
    },
    /// `-ERR` with its text, without control characters.
    Refused(Box<str>),
    /// A line of the reply to LIST.
    Size {
        /// The message number.
        number: u32,
        /// Its size in octets.
        octets: u64,
    },
    /// A line of the reply to UIDL.
    UniqueId {
        /// The message number.
        number: u32,
        /// Its unique id, which never changes.
        id: Box<str>,
    },
    /// A line of the reply to CAPA (RFC 2449).
    Capability(Box<str>),
    /// The next octets of a message, dot-unstuffed. Never empty.
    Content(&'a [u8]),
    /// The list or the message is complete.
    End,
}

/// How the server violated the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Pop3Violation {
    /// Bytes without a command.
    #[error("unsolicited bytes received")]
    Unsolicited,
    /// A reply begins with neither `+OK` nor `-ERR`.
    #[error("a line is not a reply")]
    NotAReply,
    /// A line has a CR without LF or an LF without CR.
    #[error("a line has a bare CR or LF")]
    BareNewline,
    /// Exceeds [`LINE_OCTETS_MAX`].
    #[error("a line is too long")]
    LineTooLong,
    /// The reply to STAT or a line of a list is invalid.
    #[error("unexpected content of a reply line")]
    InvalidReply,
    /// Exceeds [`LIST_LINES_MAX`].
    #[error("a list is too long")]
    ListTooLong,
    /// Exceeds [`Pop3ResponseLimits::message_octets_max`].
    #[error("a message is too long")]
    MessageTooLong,
    /// The connection was closed too early.
    #[error("connection closed before the end of the session")]
    ConnectionClosed,
}

/// One session with one server, with one command at a time.
#[derive(Debug)]
pub struct Pop3Client {
    limits: Pop3ResponseLimits,
    state: State,
    lines: LineReader,
}

#[derive(Debug)]
enum State {
    Banner,
    Ready,
    Reply(ReplyKind),
    List { answer: ReplyKind, lines: u32 },
    Message { dots: DotDecoder, octets: u64 },
    Closed,
}

impl Pop3Client {
    /// A session on a new connection.
    pub fn new(limits: Pop3ResponseLimits) -> Self {
        Pop3Client { limits, state: State::Banner, lines: LineReader::default() }
    }

    /// Whether a command may be sent.
    pub fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready)
    }

    /// Whether the session is over.
    pub fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed)
    }

    /// Appends the line of a command to `out`, which must be sent completely. After an error
    /// nothing was appended.
    pub fn send(&mut self, command: Pop3Command<'_>, out: &mut Vec<u8>) -> Result<(), Pop3CommandError> {
        if !self.is_ready() {
            return Err(Pop3CommandError::NotReady);
        }
        command.write(out)?;
        self.state = State::Reply(command.reply_kind());
        Ok(())
    }

    /// Returns the next event and advances `input` past it; None at the end of the input. After an
    /// error, the connection is unusable.
    pub fn handle_input<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Pop3Event<'a>>, Pop3Violation> {
        let taken = match &mut self.state {
            State::Ready if input.is_empty() => Ok(None),
            State::Ready => Err(Pop3Violation::Unsolicited),
            State::Banner => self.take_reply(ReplyKind::Banner, input),
            State::Reply(answer) => {
                let answer = *answer;
                self.take_reply(answer, input)
            }
            State::List { .. } => self.take_list_line(input),
            State::Message { .. } => self.take_content(input),
            State::Closed => {
                *input = &[];
                Ok(None)
            }
        };
        if taken.is_err() {
            self.state = State::Closed;
        }
        taken
    }

    /// The server closed its side, or the connection broke; an error unless the reply to QUIT was
    /// received.
    pub fn handle_disconnect(&mut self) -> Result<(), Pop3Violation> {
        match std::mem::replace(&mut self.state, State::Closed) {
            State::Closed => Ok(()),
            _ => Err(Pop3Violation::ConnectionClosed),
        }
    }
}

impl Pop3Client {
    fn take_reply(
        &mut self,
        answer: ReplyKind,
        input: &mut &[u8],
    ) -> Result<Option<Pop3Event<'static>>, Pop3Violation> {
        let Some(event) = self.lines.next(input, |line| answer.parse_status(line))? else { return Ok(None) };
        let is_refused = matches!(event, Pop3Event::Refused(_));
        self.state = match answer {
            ReplyKind::Banner if is_refused => State::Closed,
            ReplyKind::Quit => State::Closed,
            ReplyKind::Sizes | ReplyKind::UniqueIds | ReplyKind::Capabilities if !is_refused => {
                State::List { answer, lines: 0 }
            }
            ReplyKind::Message if !is_refused => State::Message { dots: DotDecoder::default(), octets: 0 },
            _ => State::Ready,
        };
        Ok(Some(event))
    }

    fn take_list_line(&mut self, input: &mut &[u8]) -> Result<Option<Pop3Event<'static>>, Pop3Violation> {
        let State::List { answer, lines } = &mut self.state else { return Ok(None) };
        let event = self.lines.next(input, |line| answer.parse_list_line(line))?;
        match event {
            Some(Pop3Event::End) => self.state = State::Ready,
            Some(_) if *lines == LIST_LINES_MAX => return Err(Pop3Violation::ListTooLong),
            Some(_) => *lines += 1,
            None => {}
        }
        Ok(event)
    }

    fn take_content<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Pop3Event<'a>>, Pop3Violation> {
        let State::Message { dots, octets } = &mut self.state else { return Ok(None) };
        match dots.next(input) {
            None => Ok(None),
            Some(Piece::End) => {
                self.state = State::Ready;
                Ok(Some(Pop3Event::End))
            }
            Some(Piece::Content(piece)) => {
                *octets += piece.len() as u64;
                if *octets > self.limits.message_octets_max {
                    return Err(Pop3Violation::MessageTooLong);
                }
                Ok(Some(Pop3Event::Content(piece)))
            }
        }
    }
}
