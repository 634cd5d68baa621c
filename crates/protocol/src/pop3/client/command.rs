//! What a client says, and how what comes back is read. Whatever goes into a line was looked at before, so that no
//! command can carry another one.

use super::{Event, Misbehaviour};
use crate::text::printable;

/// Octets of a command with its CRLF (RFC 2449 section 4).
pub const COMMAND_OCTETS_MAX: usize = 255;
/// Octets of a unique id (RFC 1939 section 7).
const UNIQUE_ID_OCTETS_MAX: usize = 70;

/// One command.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Command<'a> {
    /// Whose mailbox.
    User(&'a str),
    /// The password, in clear text.
    Pass(&'a str),
    /// What the server can do (RFC 2449).
    Capa,
    /// How many messages there are.
    Stat,
    /// Their sizes.
    List,
    /// Their unique ids.
    Uidl,
    /// A message.
    Retr(u32),
    /// A message is to be deleted when the session ends by QUIT.
    Dele(u32),
    /// The end.
    Quit,
}

/// Why a command cannot be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsayable {
    /// The reply to the one before is not complete, or the session is over.
    #[error("it is not the client's turn")]
    NotReady,
    /// A control character is in it.
    #[error("a user's name and password can have no control characters")]
    ControlCharacter,
    /// Over [`COMMAND_OCTETS_MAX`].
    #[error("a command has at most {COMMAND_OCTETS_MAX} octets")]
    TooLong,
}

/// What a command's reply is read as.
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
    /// Appends its line.
    pub(super) fn write(self, out: &mut Vec<u8>) -> Result<(), Unsayable> {
        match self {
            Command::User(user) => write_line(out, "USER ", user),
            Command::Pass(password) => write_line(out, "PASS ", password),
            Command::Capa => write_line(out, "CAPA", ""),
            Command::Stat => write_line(out, "STAT", ""),
            Command::List => write_line(out, "LIST", ""),
            Command::Uidl => write_line(out, "UIDL", ""),
            Command::Retr(number) => write_line(out, "RETR ", &number.to_string()),
            Command::Dele(number) => write_line(out, "DELE ", &number.to_string()),
            Command::Quit => write_line(out, "QUIT", ""),
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

/// The argument may be a password.
impl std::fmt::Debug for Command<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Command::User(user) => write!(f, "USER {user:?}"),
            Command::Pass(_) => f.write_str("PASS ..."),
            Command::Capa => f.write_str("CAPA"),
            Command::Stat => f.write_str("STAT"),
            Command::List => f.write_str("LIST"),
            Command::Uidl => f.write_str("UIDL"),
            Command::Retr(number) => write!(f, "RETR {number}"),
            Command::Dele(number) => write!(f, "DELE {number}"),
            Command::Quit => f.write_str("QUIT"),
        }
    }
}

impl Answer {
    /// Reads the first line of a reply (RFC 1939 section 3), without its CRLF.
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

    /// Reads a further line, without its CRLF.
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

fn write_line(out: &mut Vec<u8>, verb: &str, argument: &str) -> Result<(), Unsayable> {
    if argument.chars().any(char::is_control) {
        return Err(Unsayable::ControlCharacter);
    }
    if verb.len() + argument.len() + 2 > COMMAND_OCTETS_MAX {
        return Err(Unsayable::TooLong);
    }
    for text in [verb, argument, "\r\n"] {
        out.extend_from_slice(text.as_bytes());
    }
    Ok(())
}

/// What follows a word and a space.
fn after_word<'a>(line: &'a [u8], word: &[u8]) -> Option<&'a [u8]> {
    match line.strip_prefix(word)? {
        [b' ', text @ ..] => Some(text),
        [] => Some(&[]),
        _ => None,
    }
}

/// Two numbers; what a server may add is not looked at (RFC 1939 section 5, scan listing).
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
