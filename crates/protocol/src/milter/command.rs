//! What a milter is told: the commands, and the bits by which it says that it does not want one, or
//! does not answer it.

use std::net::SocketAddr;

use super::frame::{push_frame, push_pieces, push_string};

/// Octets of the body in one command.
pub const BODY_CHUNK_OCTETS_MAX: usize = 65_535;
/// Octets of the value of a header field; the rest of a longer one is not sent. libmilter reads no
/// longer frames.
const FIELD_VALUE_OCTETS_MAX: usize = 65_000;

/// A kind of command. The order is that of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MilterStep {
    /// A client has connected.
    Connect,
    /// HELO or EHLO.
    Helo,
    /// MAIL.
    Mail,
    /// RCPT.
    Rcpt,
    /// DATA.
    Data,
    /// A header field.
    Header,
    /// The end of the header.
    EndOfHeader,
    /// A part of the body.
    Body,
    /// The end of the message. It is always sent, and always answered.
    EndOfBody,
    /// A command that the server does not know, at any point of a session.
    Unknown,
}

/// A command with its arguments.
#[derive(Clone, Copy, Debug)]
pub enum MilterCommand<'a> {
    /// A client has connected.
    Connect {
        /// Its confirmed name, or `unknown`.
        name: &'a str,
        /// None if the address is unknown.
        address: Option<SocketAddr>,
    },
    /// HELO or EHLO, with the name.
    Helo(&'a str),
    /// MAIL.
    Mail {
        /// With angle brackets.
        path: &'a str,
        /// ESMTP parameters: `SIZE=100`.
        parameters: &'a [String],
    },
    /// RCPT.
    Rcpt {
        /// With angle brackets.
        path: &'a str,
        /// ESMTP parameters: `NOTIFY=NEVER`.
        parameters: &'a [String],
    },
    /// DATA.
    Data,
    /// A header field.
    Header {
        /// The name.
        name: &'a [u8],
        /// All that follows the colon, folded with CRLF, without the final CRLF.
        value: &'a [u8],
    },
    /// The end of the header.
    EndOfHeader,
    /// At most [`BODY_CHUNK_OCTETS_MAX`] of the body, with CRLF.
    Body(&'a [u8]),
    /// The end of the message.
    EndOfBody,
    /// A command that the server does not know: the line, without its CRLF.
    Unknown(&'a [u8]),
}

impl MilterStep {
    /// The code of its command.
    pub(super) fn code(self) -> u8 {
        match self {
            MilterStep::Connect => b'C',
            MilterStep::Helo => b'H',
            MilterStep::Mail => b'M',
            MilterStep::Rcpt => b'R',
            MilterStep::Data => b'T',
            MilterStep::Header => b'L',
            MilterStep::EndOfHeader => b'N',
            MilterStep::Body => b'B',
            MilterStep::EndOfBody => b'E',
            MilterStep::Unknown => b'U',
        }
    }

    /// The bit by which a milter says that it does not want the command.
    pub(super) fn unwanted_bit(self) -> u32 {
        match self {
            MilterStep::Connect => 0x1,
            MilterStep::Helo => 0x2,
            MilterStep::Mail => 0x4,
            MilterStep::Rcpt => 0x8,
            MilterStep::Body => 0x10,
            MilterStep::Header => 0x20,
            MilterStep::EndOfHeader => 0x40,
            MilterStep::Unknown => 0x100,
            MilterStep::Data => 0x200,
            MilterStep::EndOfBody => 0,
        }
    }

    /// The bit by which a milter says that it does not answer the command.
    pub(super) fn unanswered_bit(self) -> u32 {
        match self {
            MilterStep::Header => 0x80,
            MilterStep::Connect => 0x1000,
            MilterStep::Helo => 0x2000,
            MilterStep::Mail => 0x4000,
            MilterStep::Rcpt => 0x8000,
            MilterStep::Data => 0x1_0000,
            MilterStep::Unknown => 0x2_0000,
            MilterStep::EndOfHeader => 0x4_0000,
            MilterStep::Body => 0x8_0000,
            MilterStep::EndOfBody => 0,
        }
    }

    /// The first version of the protocol that has the command.
    pub(super) fn version_min(self) -> u32 {
        match self {
            MilterStep::Unknown => 3,
            MilterStep::Data => 4,
            _ => 2,
        }
    }
}

impl MilterCommand<'_> {
    /// Its kind.
    pub fn step(&self) -> MilterStep {
        match self {
            MilterCommand::Connect { .. } => MilterStep::Connect,
            MilterCommand::Helo(_) => MilterStep::Helo,
            MilterCommand::Mail { .. } => MilterStep::Mail,
            MilterCommand::Rcpt { .. } => MilterStep::Rcpt,
            MilterCommand::Data => MilterStep::Data,
            MilterCommand::Header { .. } => MilterStep::Header,
            MilterCommand::EndOfHeader => MilterStep::EndOfHeader,
            MilterCommand::Body(_) => MilterStep::Body,
            MilterCommand::EndOfBody => MilterStep::EndOfBody,
            MilterCommand::Unknown(_) => MilterStep::Unknown,
        }
    }

    /// Appends its frame. `keeps_space`: the value of a field begins right after the colon.
    pub(super) fn push(&self, out: &mut Vec<u8>, keeps_space: bool) {
        push_frame(out, self.step().code(), |out| match *self {
            MilterCommand::Connect { name, address } => push_client(out, name, address),
            MilterCommand::Helo(name) => push_string(out, name.as_bytes()),
            MilterCommand::Mail { path, parameters } | MilterCommand::Rcpt { path, parameters } => {
                push_string(out, path.as_bytes());
                parameters.iter().for_each(|parameter| push_string(out, parameter.as_bytes()));
            }
            MilterCommand::Header { name, value } => {
                push_string(out, name);
                push_field_value(out, value, keeps_space);
            }
            MilterCommand::Unknown(line) => push_string(out, line),
            MilterCommand::Body(chunk) => out.extend_from_slice(chunk),
            MilterCommand::Data | MilterCommand::EndOfHeader | MilterCommand::EndOfBody => {}
        });
    }
}

/// The name, the family of the address, the port, and the address.
fn push_client(out: &mut Vec<u8>, name: &str, address: Option<SocketAddr>) {
    push_string(out, name.as_bytes());
    let Some(address) = address else {
        out.push(b'U');
        return;
    };
    out.push(if address.is_ipv4() { b'4' } else { b'6' });
    out.extend_from_slice(&address.port().to_be_bytes());
    push_string(out, address.ip().to_string().as_bytes());
}

/// Lines of a value end in LF; the white space at its start is only sent if the milter wants it. A NUL
/// would end it.
fn push_field_value(out: &mut Vec<u8>, value: &[u8], keeps_space: bool) {
    let value = if keeps_space { value } else { value.trim_ascii_start() };
    let start = out.len();
    push_pieces(out, value, memchr::memchr2_iter(b'\r', 0, value));
    out.truncate(start + FIELD_VALUE_OCTETS_MAX);
    out.push(0);
}
