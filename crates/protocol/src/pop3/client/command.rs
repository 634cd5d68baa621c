//! Commands, and how to parse their replies. Arguments are checked so that they cannot inject
//! another command.

use std::fmt;

use super::{Pop3Event, Pop3Violation};
use crate::text::printable;

/// Octets of a command with its CRLF (RFC 2449 section 4).
pub const COMMAND_OCTETS_MAX: usize = 255;
/// Octets of a unique id (RFC 1939 section 7).
const UNIQUE_ID_OCTETS_MAX: usize = 70;

/// A POP3 command.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Pop3Command<'a> {
    /// The user name.
    User(&'a str),
    /// The password, in clear text.
    Pass(&'a str),
    /// List the server's capabilities (RFC 2449).
    Capa,
    /// Get the number of messages.
    Stat,
    /// List the sizes of the messages.
    List,
    /// List the unique ids of the messages.
    Uidl,
    /// Get a message.
    Retr(u32),
    /// Delete a message when the session ends by QUIT.
    Dele(u32),
    /// End the session.
    Quit,
}

/// Why a command cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Pop3CommandError {
    /// A reply is pending, or the session is over.
    #[error("a reply is pending or the session is over")]
    NotReady,
    /// An argument contains a control character.
    #[error("user name and password must not contain control characters")]
    ControlCharacter,
    /// Exceeds [`COMMAND_OCTETS_MAX`].
    #[error("a command has at most {COMMAND_OCTETS_MAX} octets")]
    TooLong,
}

/// How to parse the reply to a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyKind {
    Banner,
    Plain,
    Stat,
    Sizes,
    UniqueIds,
    Capabilities,
    Message,
    Quit,
}

impl Pop3Command<'_> {
    /// The command name.
    pub fn verb(&self) -> &'static str {
        match self {
            Pop3Command::User(_) => "USER",
            Pop3Command::Pass(_) => "PASS",
            Pop3Command::Capa => "CAPA",
            Pop3Command::Stat => "STAT",
            Pop3Command::List => "LIST",
            Pop3Command::Uidl => "UIDL",
            Pop3Command::Retr(_) => "RETR",
            Pop3Command::Dele(_) => "DELE",
            Pop3Command::Quit => "QUIT",
        }
    }

    /// Whether the command is valid.
    pub fn check(&self) -> Result<(), Pop3CommandError> {
        self.write(&mut Vec::new())
    }

    /// Appends the command line.
    pub(super) fn write(&self, out: &mut Vec<u8>) -> Result<(), Pop3CommandError> {
        match self {
            Pop3Command::User(argument) | Pop3Command::Pass(argument) => write_line(out, &[self.verb(), " ", argument]),
            Pop3Command::Retr(number) | Pop3Command::Dele(number) => {
                write_line(out, &[self.verb(), " ", &number.to_string()])
            }
            _ => write_line(out, &[self.verb()]),
        }
    }

    pub(super) fn reply_kind(self) -> ReplyKind {
        match self {
            Pop3Command::User(_) | Pop3Command::Pass(_) | Pop3Command::Dele(_) => ReplyKind::Plain,
            Pop3Command::Capa => ReplyKind::Capabilities,
            Pop3Command::Stat => ReplyKind::Stat,
            Pop3Command::List => ReplyKind::Sizes,
            Pop3Command::Uidl => ReplyKind::UniqueIds,
            Pop3Command::Retr(_) => ReplyKind::Message,
            Pop3Command::Quit => ReplyKind::Quit,
        }
    }
}

/// Hides the argument, which may be a password.
impl fmt::Debug for Pop3Command<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.verb())
    }
}

impl ReplyKind {
    /// Parses the first line of a reply (RFC 1939 section 3), without its CRLF.
    pub(super) fn parse_status(self, line: &[u8]) -> Result<Pop3Event<'static>, Pop3Violation> {
        if let Some(text) = after_word(line, b"-ERR") {
            return Ok(Pop3Event::Refused(printable(text).into()));
        }
        let text = after_word(line, b"+OK").ok_or(Pop3Violation::NotAReply)?;
        if self != ReplyKind::Stat {
            return Ok(Pop3Event::Accepted);
        }
        let (messages, octets) = numbers(text).ok_or(Pop3Violation::InvalidReply)?;
        Ok(Pop3Event::Stat { messages, octets })
    }

    /// Parses a further line, without its CRLF.
    pub(super) fn parse_list_line(self, line: &[u8]) -> Result<Pop3Event<'static>, Pop3Violation> {
        if line == b"." {
            return Ok(Pop3Event::End);
        }
        let line = line.strip_prefix(b".").unwrap_or(line);
        let event = match self {
            ReplyKind::Sizes => numbers(line).map(|(number, octets)| Pop3Event::Size { number, octets }),
            ReplyKind::UniqueIds => parse_unique_id(line),
            _ => Some(Pop3Event::Capability(printable(line).into())),
        };
        event.ok_or(Pop3Violation::InvalidReply)
    }
}

fn write_line(out: &mut Vec<u8>, words: &[&str]) -> Result<(), Pop3CommandError> {
    if words.iter().any(|word| word.chars().any(char::is_control)) {
        return Err(Pop3CommandError::ControlCharacter);
    }
    if words.iter().map(|word| word.len()).sum::<usize>() + "\r\n".len() > COMMAND_OCTETS_MAX {
        return Err(Pop3CommandError::TooLong);
    }
    for text in words.iter().copied().chain(["\r\n"]) {
        out.extend_from_slice(text.as_bytes());
    }
    Ok(())
}

/// The text after a word and a space.
fn after_word<'a>(line: &'a [u8], word: &[u8]) -> Option<&'a [u8]> {
    match line.strip_prefix(word)? {
        [b' ', text @ ..] => Some(text),
        [] => Some(&[]),
        _ => None,
    }
}

/// Two numbers; anything after them is ignored (RFC 1939 section 5, scan listing).
fn numbers(line: &[u8]) -> Option<(u32, u64)> {
    let mut words = str::from_utf8(line).ok()?.split(' ');
    let mut word = || words.next().filter(|word| word.bytes().all(|byte| byte.is_ascii_digit()));
    Some((word()?.parse().ok()?, word()?.parse().ok()?))
}

/// A number and an id of visible ASCII.
fn parse_unique_id(line: &[u8]) -> Option<Pop3Event<'static>> {
    let (number, id) = str::from_utf8(line).ok()?.split_once(' ')?;
    let is_sound = number.bytes().all(|byte| byte.is_ascii_digit())
        && (1..=UNIQUE_ID_OCTETS_MAX).contains(&id.len())
        && id.bytes().all(|byte| byte.is_ascii_graphic());
    is_sound.then(|| Some(Pop3Event::UniqueId { number: number.parse().ok()?, id: id.into() }))?
}
