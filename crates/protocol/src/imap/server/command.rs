//! The syntax of commands before login: where a command ends, with literals in it, and what its
//! arguments are (RFC 9051 section 9).

use memchr::memchr;
use zeroize::Zeroizing;

use super::ImapLimits;

/// Octets of a tag. Clients use fewer than ten.
const TAG_OCTETS_MAX: usize = 64;
/// Strings in the list of ID: names and values of 30 fields (RFC 2971 section 3.3).
const ID_STRINGS_MAX: usize = 60;

/// How far a command has arrived.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CommandScan {
    /// All of it.
    Complete {
        /// Its length, with the CRLF.
        octets: usize,
        /// Its synchronizing literals.
        invitations: usize,
    },
    /// A part of it.
    Incomplete {
        /// The synchronizing literals that have been announced so far.
        invitations: usize,
    },
    /// It cannot be a command, or exceeds a limit.
    Invalid {
        /// What the client is told.
        reason: &'static str,
        /// The synchronizing literals before.
        invitations: usize,
    },
}

/// Finds the end of the command at the start of the input.
pub(super) fn scan(input: &[u8], limits: &ImapLimits) -> CommandScan {
    let (mut place, mut invitations) = (0, 0);
    let window = &input[..input.len().min(limits.command_octets_max)];
    let invalid = |reason, invitations| CommandScan::Invalid { reason, invitations };
    let too_long = |invitations| invalid("The command is too long", invitations);
    loop {
        let Some(length) = memchr(b'\n', &window[place..]) else {
            let is_full = window.len() == limits.command_octets_max;
            return if is_full { too_long(invitations) } else { CommandScan::Incomplete { invitations } };
        };
        let end = place + length + 1;
        let Some(line) = window[place..end].strip_suffix(b"\r\n") else {
            return invalid("Lines must end in CRLF", invitations);
        };
        if line.iter().any(|octet| matches!(octet, 0 | b'\r')) {
            return invalid("Invalid character in a command", invitations);
        }
        let Some(literal) = LiteralStart::at_end_of(line) else {
            return CommandScan::Complete { octets: end, invitations };
        };
        if literal.octets > limits.literal_octets_max {
            return invalid("The literal is too long", invitations);
        }
        place = end + literal.octets;
        if place >= limits.command_octets_max {
            return too_long(invitations);
        }
        invitations += usize::from(literal.is_synchronizing);
        if place > window.len() {
            return CommandScan::Incomplete { invitations };
        }
    }
}

/// `{n}` or `{n+}` at the end of a line.
struct LiteralStart {
    octets: usize,
    is_synchronizing: bool,
}

impl LiteralStart {
    /// None if the line does not end like a literal. A number that is too large for the machine is
    /// also too large for the limit.
    fn at_end_of(line: &[u8]) -> Option<LiteralStart> {
        let inside = line.strip_suffix(b"}")?;
        let is_synchronizing = !inside.ends_with(b"+");
        let inside = inside.strip_suffix(b"+").unwrap_or(inside);
        let digits = &inside[inside.iter().rposition(|octet| !octet.is_ascii_digit())? + 1..];
        let is_literal = !digits.is_empty() && inside[..inside.len() - digits.len()].ends_with(b"{");
        let octets = || str::from_utf8(digits).ok()?.parse().ok();
        is_literal.then(|| LiteralStart { octets: octets().unwrap_or(usize::MAX), is_synchronizing })
    }
}

/// Reads the arguments of a complete command, one after the other. None: not what was expected.
pub(super) struct ArgumentReader<'a> {
    rest: &'a [u8],
}

impl<'a> ArgumentReader<'a> {
    pub(super) fn new(command: &'a [u8]) -> Self {
        ArgumentReader { rest: command }
    }

    /// The tag: an atom without `+`, but possibly with `]`.
    pub(super) fn tag(&mut self) -> Option<&'a str> {
        let tag = self.take_while(|octet| is_atom_char(octet) && octet != b'+' || octet == b']')?;
        Some(tag).filter(|tag| tag.len() <= TAG_OCTETS_MAX)
    }

    /// A space, and an atom.
    pub(super) fn space_and_atom(&mut self) -> Option<&'a str> {
        self.take(b" ")?;
        self.take_while(is_atom_char)
    }

    /// A space, and the rest without spaces in it, such as base64.
    pub(super) fn space_and_rest(&mut self) -> Option<&'a [u8]> {
        self.take(b" ")?;
        Some(std::mem::take(&mut self.rest)).filter(|rest| !rest.is_empty() && !rest.contains(&b' '))
    }

    /// A space, and an astring: an atom, a quoted string or a literal.
    pub(super) fn space_and_astring(&mut self) -> Option<Zeroizing<Vec<u8>>> {
        self.take(b" ")?;
        self.string().or_else(|| {
            // Clients send passwords unquoted with characters that no atom has.
            let end = memchr(b' ', self.rest).unwrap_or(self.rest.len());
            let (word, rest) = self.rest.split_at(end);
            let is_word = !word.is_empty() && !word.iter().any(|octet| octet.is_ascii_control() || *octet == b'"');
            is_word.then(|| {
                self.rest = rest;
                Zeroizing::new(word.to_vec())
            })
        })
    }

    /// Whether nothing is left.
    pub(super) fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    /// Whether the rest is what ID takes: ` NIL`, or a list of strings, of which values may be NIL.
    pub(super) fn is_id(&mut self) -> bool {
        self.take_id().is_some() && self.is_at_end()
    }

    fn take_id(&mut self) -> Option<()> {
        self.take(b" ")?;
        if self.take(b"(").is_none() {
            return self.nil();
        }
        for count in 0..=ID_STRINGS_MAX {
            if self.take(b")").is_some() {
                return Some(());
            }
            if count > 0 {
                self.take(b" ")?;
            }
            self.string().map(drop).or_else(|| self.nil())?;
        }
        None
    }

    fn nil(&mut self) -> Option<()> {
        let (word, rest) = self.rest.split_at_checked(3)?;
        word.eq_ignore_ascii_case(b"NIL").then(|| self.rest = rest)
    }

    /// A quoted string or a literal.
    fn string(&mut self) -> Option<Zeroizing<Vec<u8>>> {
        if self.rest.starts_with(b"\"") { self.quoted() } else { self.literal() }
    }

    fn quoted(&mut self) -> Option<Zeroizing<Vec<u8>>> {
        let mut text = Zeroizing::new(Vec::with_capacity(self.rest.len()));
        let mut octets = self.rest[1..].iter();
        loop {
            match *octets.next()? {
                b'"' => break,
                b'\\' => text.push(*octets.next().filter(|octet| matches!(**octet, b'"' | b'\\'))?),
                b'\n' => return None,
                octet => text.push(octet),
            }
        }
        self.rest = octets.as_slice();
        Some(text)
    }

    /// A literal, whose octets have all arrived.
    fn literal(&mut self) -> Option<Zeroizing<Vec<u8>>> {
        let line = self.rest[..memchr(b'\n', self.rest)?].strip_suffix(b"\r")?;
        let is_alone = line.iter().rposition(|octet| *octet == b'{') == Some(0);
        let literal = LiteralStart::at_end_of(line).filter(|_| is_alone)?;
        let (text, rest) = self.rest.get(line.len() + 2..)?.split_at_checked(literal.octets)?;
        self.rest = rest;
        Some(Zeroizing::new(text.to_vec()))
    }

    fn take(&mut self, prefix: &[u8]) -> Option<()> {
        self.rest = self.rest.strip_prefix(prefix)?;
        Some(())
    }

    /// The octets, at least one, for which this is true. They must be ASCII.
    fn take_while(&mut self, is_part: impl Fn(u8) -> bool) -> Option<&'a str> {
        let end = self.rest.iter().position(|octet| !is_part(*octet)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        str::from_utf8(word).ok().filter(|word| !word.is_empty())
    }
}

/// `ATOM-CHAR` of RFC 9051 section 9.
fn is_atom_char(octet: u8) -> bool {
    octet.is_ascii_graphic() && !matches!(octet, b'(' | b')' | b'{' | b'%' | b'*' | b'"' | b'\\' | b']')
}
