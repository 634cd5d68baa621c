//! Commands, and how to parse their replies. Arguments are checked so that they cannot inject
//! another command.

use std::fmt;

use super::{Event, Misbehaviour};
use crate::text::printable;

/// Octets of a command with its CRLF (RFC 2449 section 4).
pub const COMMAND_OCTETS_MAX: usize = 255;
/// Octets of a unique id (RFC 1939 section 7).
const UNIQUE_ID_OCTETS_MAX: usize = 70;

/// A POP3 command.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Command<'a> {
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
pub enum Unsayable {
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
pub(super) enum Answer {
    Banner,
    Plain,
    Stat,
    Sizes,
    Uniques,
    Capabilities,
    Message,
    Quit,
}

impl Command<'_> {
    /// The command name.
    pub fn verb(&self) -> &'static str {
        match self {
            Command::User(_) => "USER",
            Command::Pass(_) => "PASS",
            Command::Capa => "CAPA",
            Command::Stat => "STAT",
            Command::List => "LIST",
            Command::Uidl => "UIDL",
            Command::Retr(_) => "RETR",
            Command::Dele(_) => "DELE",
            Command::Quit => "QUIT",
        }
    }

    /// Whether the command is valid.
    pub fn check(&self) -> Result<(), Unsayable> {
        self.write(&mut Vec::new())
    }

    /// Appends the command line.
    pub(super) fn write(&self, out: &mut Vec<u8>) -> Result<(), Unsayable> {
        match self {
            Command::User(argument) | Command::Pass(argument) => write_line(out, &[self.verb(), " ", argument]),
            Command::Retr(number) | Command::Dele(number) => write_line(out, &[self.verb(), " ", &number.to_string()]),
            _ => write_line(out, &[self.verb()]),
        }
    }

    pub(super) fn answer(self) -> Answer {
        match self {
            Command::User(_) | Command::Pass(_) | Command::Dele(_) => Answer::Plain,
            Command::Capa => Answer::Capabilities,
            Command::Stat => Answer::Stat,
            Command::List => Answer::Sizes,
            Command::Uidl => Answer::Uniques,
            Command::Retr(_) => Answer::Message,
            Command::Quit => Answer::Quit,
        }
    }
}

/// Hides the argument, which may be a password.
impl fmt::Debug for Command<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.verb())
    }
}

impl Answer {
    /// Parses the first line of a reply (RFC 1939 section 3), without its CRLF.
    pub(super) fn reply(self, line: &[u8]) -> Result<Event<'static>, Misbehaviour> {
        if let Some(text) = after_word(line, b"-ERR") {
            return Ok(Event::Refused(printable(text).into()));
        }
        let text = after_word(line, b"+OK").ok_or(Misbehaviour::NoReply)?;
        if self != Answer::Stat {
            return Ok(Event::Accepted);
        }
        let (messages, octets) = numbers(text).ok_or(Misbehaviour::NoAnswer)?;
        Ok(Event::Stat { messages, octets })
    }

    /// Parses a further line, without its CRLF.
    pub(super) fn list_line(self, line: &[u8]) -> Result<Event<'static>, Misbehaviour> {
        if line == b"." {
            return Ok(Event::End);
        }
        let line = line.strip_prefix(b".").unwrap_or(line);
        let event = match self {
            Answer::Sizes => numbers(line).map(|(number, octets)| Event::Size { number, octets }),
            Answer::Uniques => unique(line),
            _ => Some(Event::Capability(printable(line).into())),
        };
        event.ok_or(Misbehaviour::NoAnswer)
    }
}

fn write_line(out: &mut Vec<u8>, words: &[&str]) -> Result<(), Unsayable> {
    if words.iter().any(|word| word.chars().any(char::is_control)) {
        return Err(Unsayable::ControlCharacter);
    }
    if words.iter().map(|word| word.len()).sum::<usize>() + "\r\n".len() > COMMAND_OCTETS_MAX {
        return Err(Unsayable::TooLong);
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
fn unique(line: &[u8]) -> Option<Event<'static>> {
    let (number, id) = str::from_utf8(line).ok()?.split_once(' ')?;
    let is_sound = number.bytes().all(|byte| byte.is_ascii_digit())
        && (1..=UNIQUE_ID_OCTETS_MAX).contains(&id.len())
        && id.bytes().all(|byte| byte.is_ascii_graphic());
    is_sound.then(|| Some(Event::Unique { number: number.parse().ok()?, id: id.into() }))?
}
