//! The client's side of a POP3 session. [`Client`] knows which reply is due: a line, a list, a message. It promises that
//! the bytes of a message are handed on once, in order and without being copied, its stuffed dots taken off, and that
//! the same comes of the input however it was cut. What to say next is the driver's decision, and so is time; every
//! other limit is here. Nothing is fatal: a server that misbehaves is hung up on.
//!
//! # States
//!
//! | state  | waits for             | then                                                                        |
//! |--------|-----------------------|-----------------------------------------------------------------------------|
//! | Banner | `+OK`                 | Ready; `-ERR`: Closed                                                       |
//! | Ready  | the driver            | a command: Reply. Input: misbehaviour                                       |
//! | Reply  | `+OK` or `-ERR`       | Ready; after `+OK` to LIST, UIDL, CAPA: List; to RETR: Message; QUIT: Closed |
//! | List   | lines, and one of `.` | [`Event::End`], Ready                                                       |
//! | Message| CRLF `.` CRLF         | [`Event::End`], Ready                                                       |
//! | Closed | nothing               | the end; what still comes is dropped                                        |
//!
//! Misbehaviour leads to Closed from everywhere, and so does the end of the connection.

mod command;
mod dot;
mod line;
#[cfg(test)]
mod tests;

pub use command::{COMMAND_OCTETS_MAX, Command, Unsayable};
pub use line::LINE_OCTETS_MAX;

use command::Answer;
use dot::{Dots, Piece};
use line::Lines;

/// Lines of a list: as many messages can a mailbox have.
pub const LIST_LINES_MAX: u32 = 1_000_000;

/// What a server may do at the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Octets of a message.
    pub message_octets_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { message_octets_max: 1 << 30 }
    }
}

/// What came, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// `+OK`: the banner, or the reply to the command. A list or a message follows where the command was for one.
    Accepted,
    /// `+OK` to STAT.
    Stat {
        /// How many messages there are; they are numbered from 1.
        messages: u32,
        /// How many octets they have together.
        octets: u64,
    },
    /// `-ERR`, and what was said beside it, without control characters.
    Refused(Box<str>),
    /// A line of the reply to LIST.
    Size {
        /// Which message.
        number: u32,
        /// How many octets it has.
        octets: u64,
    },
    /// A line of the reply to UIDL.
    Unique {
        /// Which message.
        number: u32,
        /// What it is called for as long as it exists.
        id: Box<str>,
    },
    /// A line of the reply to CAPA (RFC 2449).
    Capability(Box<str>),
    /// The next octets of a message, as it is. Never empty.
    Content(&'a [u8]),
    /// The list or the message is complete.
    End,
}

/// How a server can break the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misbehaviour {
    /// Something came that no command asked for.
    #[error("unsolicited bytes received")]
    Unasked,
    /// A reply begins with neither `+OK` nor `-ERR`.
    #[error("a line is not a reply")]
    NoReply,
    /// A line has a CR without LF or an LF without CR.
    #[error("a line has a bare CR or LF")]
    BareNewline,
    /// Over [`LINE_OCTETS_MAX`].
    #[error("a line is too long")]
    LineTooLong,
    /// The reply to STAT or a line of a list does not say what it should.
    #[error("unexpected content of a reply line")]
    NoAnswer,
    /// Over [`LIST_LINES_MAX`].
    #[error("a list is too long")]
    ListTooLong,
    /// Over [`Limits::message_octets_max`].
    #[error("a message is too long")]
    MessageTooLong,
    /// The connection ended first.
    #[error("connection closed before the end of the session")]
    Cut,
}

/// One session with one server. Commands go out one at a time.
#[derive(Debug)]
pub struct Client {
    limits: Limits,
    state: State,
    lines: Lines,
}

#[derive(Debug)]
enum State {
    Banner,
    Ready,
    Reply(Answer),
    List { answer: Answer, lines: u32 },
    Message { dots: Dots, octets: u64 },
    Closed,
}

impl Client {
    /// A session over a connection that was just made.
    pub fn new(limits: Limits) -> Self {
        Client { limits, state: State::Banner, lines: Lines::default() }
    }

    /// Whether a command may be said.
    pub fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready)
    }

    /// Whether the session is over.
    pub fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed)
    }

    /// Says a command: appends its line to `out`, all of which is to be sent. After an error nothing was said.
    pub fn say(&mut self, command: Command<'_>, out: &mut Vec<u8>) -> Result<(), Unsayable> {
        if !self.is_ready() {
            return Err(Unsayable::NotReady);
        }
        command.write(out)?;
        self.state = State::Reply(command.answer());
        Ok(())
    }

    /// The next event of `input`, which is cut by what was used of it; None when all was used. After an error the
    /// connection is of no more use.
    pub fn handle_input<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Event<'a>>, Misbehaviour> {
        let taken = match &mut self.state {
            State::Ready if input.is_empty() => Ok(None),
            State::Ready => Err(Misbehaviour::Unasked),
            State::Banner => self.take_reply(Answer::Banner, input),
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

    /// The server closed its side, or the connection broke. Only after QUIT was answered may it do so.
    pub fn handle_end(&mut self) -> Result<(), Misbehaviour> {
        match std::mem::replace(&mut self.state, State::Closed) {
            State::Closed => Ok(()),
            _ => Err(Misbehaviour::Cut),
        }
    }
}

impl Client {
    fn take_reply(&mut self, answer: Answer, input: &mut &[u8]) -> Result<Option<Event<'static>>, Misbehaviour> {
        let Some(event) = self.lines.next(input, |line| answer.reply(line))? else { return Ok(None) };
        let is_refused = matches!(event, Event::Refused(_));
        self.state = match answer {
            Answer::Banner if is_refused => State::Closed,
            Answer::Quit => State::Closed,
            Answer::Sizes | Answer::Uniques | Answer::Capabilities if !is_refused => State::List { answer, lines: 0 },
            Answer::Message if !is_refused => State::Message { dots: Dots::default(), octets: 0 },
            _ => State::Ready,
        };
        Ok(Some(event))
    }

    fn take_list_line(&mut self, input: &mut &[u8]) -> Result<Option<Event<'static>>, Misbehaviour> {
        let State::List { answer, lines } = &mut self.state else { return Ok(None) };
        let event = self.lines.next(input, |line| answer.list_line(line))?;
        match event {
            Some(Event::End) => self.state = State::Ready,
            Some(_) if *lines == LIST_LINES_MAX => return Err(Misbehaviour::ListTooLong),
            Some(_) => *lines += 1,
            None => {}
        }
        Ok(event)
    }

    fn take_content<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Event<'a>>, Misbehaviour> {
        let State::Message { dots, octets } = &mut self.state else { return Ok(None) };
        match dots.next(input) {
            None => Ok(None),
            Some(Piece::End) => {
                self.state = State::Ready;
                Ok(Some(Event::End))
            }
            Some(Piece::Content(piece)) => {
                *octets += piece.len() as u64;
                if *octets > self.limits.message_octets_max {
                    return Err(Misbehaviour::MessageTooLong);
                }
                Ok(Some(Event::Content(piece)))
            }
        }
    }
}
