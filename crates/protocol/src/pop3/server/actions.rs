//! The interface between a session and its driver: actions out, answers in. Messages are counted
//! from 0 here, and from 1 in the protocol.

use std::sync::Arc;

use crate::sasl::{Mechanism, SaslOutcome, Secret};

/// The messages of a maildrop when it was opened, which never change.
pub trait MaildropListing: Send + Sync {
    /// The number of messages.
    fn message_count(&self) -> usize;
    /// The size of a message with CRLF line ends.
    fn octets(&self, message: usize) -> u64;
    /// Appends the unique id of a message: 1 to 70 printable ASCII characters without spaces (RFC
    /// 1939 section 7).
    fn write_uid(&self, message: usize, out: &mut Vec<u8>);
}

/// What the driver must do, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pop3Action {
    /// Find the answer and pass it in. Until then, the session processes nothing.
    Ask(Pop3Question),
    /// An authentication attempt has ended.
    Login {
        /// The mechanism; PLAIN for USER and PASS.
        mechanism: Mechanism,
        /// The user name that the client gave; empty if it did not get that far, or was invalid.
        user: Box<str>,
        /// The result.
        outcome: SaslOutcome,
    },
    /// For the log: the server ended the session, or could not open or update a maildrop.
    Refused {
        /// The stage: `command`, `login`, `open`, `update`, `message`, `STLS`, `idle`, `session` or
        /// `shutdown`.
        stage: &'static str,
        /// The reply, or the reason if the session ended without one.
        reply: &'static str,
    },
}

/// What a session needs from its driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pop3Question {
    /// Is this the user's password? From USER and PASS, PLAIN and LOGIN. The answer is
    /// [`handle_password_verdict`](super::Pop3Server::handle_password_verdict).
    Password {
        /// The user name that the client gave.
        user: Box<str>,
        /// The password.
        password: Secret,
    },
    /// Which SCRAM keys are stored for the user? The answer is
    /// [`handle_scram_keys`](super::Pop3Server::handle_scram_keys); [`Pop3Action::Login`] reports
    /// the result of the exchange, unless the session ends before.
    ScramKeys {
        /// The user name that the client gave.
        user: Box<str>,
    },
    /// Lock and list the maildrop. The answer is
    /// [`handle_opened`](super::Pop3Server::handle_opened).
    Open {
        /// The user, who has logged in, in the spelling of the lookup table.
        user: Box<str>,
    },
    /// Open a message. The answer is [`handle_content`](super::Pop3Server::handle_content).
    Retrieve {
        /// The message.
        message: usize,
        /// TOP: only the header and this many lines are needed. None: RETR.
        lines: Option<u32>,
    },
    /// The next bytes of a [`Content::Copied`]. The answer is
    /// [`handle_chunk`](super::Pop3Server::handle_chunk), or
    /// [`handle_content_failed`](super::Pop3Server::handle_content_failed).
    More,
    /// QUIT after the login: remove these messages and unlock the maildrop. The session no longer
    /// refers to its listing. The answer is [`handle_updated`](super::Pop3Server::handle_updated).
    Update {
        /// In ascending order; often none.
        deleted: Vec<usize>,
    },
}

/// Why a maildrop was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenRefusal {
    /// Another session has locked it: `[IN-USE]`.
    InUse,
    /// It cannot be opened at present: `[SYS/TEMP]`.
    Unavailable,
    /// The user has none: `[SYS/PERM]`.
    NoMailbox,
    /// It is on another host: `[SYS/PERM]`.
    OtherHost,
}

/// A message, in the form in which the driver has it.
#[derive(Clone, Debug)]
pub enum Content<'a> {
    /// A file with CRLF line ends, of which ranges are sent. Only for RETR.
    File {
        /// The size of the file.
        octets: u64,
        /// Where lines begin with a dot: the offsets in ascending order.
        dot_lines: Arc<[u64]>,
        /// The last line has a line end.
        ends_with_newline: bool,
    },
    /// Stored bytes that follow by [`Pop3Question::More`]: with LF or CRLF line ends, and not
    /// dot-stuffed.
    Copied {
        /// The size with CRLF line ends, for the reply.
        octets: u64,
    },
    /// All stored bytes: with LF or CRLF line ends, and not dot-stuffed.
    Whole(&'a [u8]),
    /// Deleted by another program.
    Gone,
    /// It cannot be read at present.
    Unavailable,
}

/// The next bytes for the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pop3Output<'a> {
    /// These bytes; empty if there is no output.
    Bytes(&'a [u8]),
    /// These bytes, with a range of a file behind them.
    Head(&'a [u8]),
    /// A range of the [`Content::File`], at least 1 octet.
    File {
        /// Its start.
        offset: u64,
        /// Its length.
        octets: u64,
    },
}
