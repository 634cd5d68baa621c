//! The interface between a session and its driver: actions out, answers in.

use std::net::IpAddr;

use mail::{Address, BodyFlags, BodyType, DsnNotify, DsnReturn, Reply};

use super::replies;
use crate::sasl::{Mechanism, Nonce, PasswordVerdict, SaslOutcome, ScramKeysAnswer, Secret};

/// Receives the decoded bytes of a message: CRLF line ends, not dot-stuffed.
pub trait BodySink {
    /// Appends the next bytes of the message.
    fn append(&mut self, bytes: &[u8]);
}

impl BodySink for Vec<u8> {
    fn append(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// What the driver must do, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionAction {
    /// Find the answer and pass it to `handle_driver_answer`. Until then, the session processes
    /// nothing.
    Ask(SessionQuestion),
    /// The transaction ended without a message: drop its state and its bytes.
    Abandon,
    /// For the log: the peer got a 4xx or 5xx reply.
    Refused {
        /// The verb or stage: `MAIL`, `RCPT`, `message`, `idle`...
        stage: &'static str,
        /// The address concerned, if any.
        address: Option<Address>,
        /// The reply.
        reply: Reply,
    },
    /// An authentication attempt has ended (RFC 4954). The peer got its reply; there is no
    /// [`SessionAction::Refused`] for it.
    Login {
        /// The mechanism.
        mechanism: Mechanism,
        /// The user name that the peer gave; empty if it did not get that far.
        user: Box<str>,
        /// The result.
        outcome: SaslOutcome,
    },
}

/// A decision or lookup that the session needs from its driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionQuestion {
    /// May a peer with this HELO name continue? Only if the session was told to ask
    /// ([`with_hello_check`](super::SmtpSession::with_hello_check)).
    Hello(Box<str>),
    /// A command line that the session does not know, without its CRLF: is there a reply other than the
    /// one of the session? Only if the session was told to ask
    /// ([`with_unknown_command_check`](super::SmtpSession::with_unknown_command_check)).
    UnknownCommand(Box<[u8]>),
    /// May the client continue that the peer speaks for (XCLIENT)? If so, it replaces the peer; if
    /// not, the session ends. Only for trusted peers.
    Identity(XclientIdentity),
    /// May this transaction begin?
    Mail(Box<MailRequest>),
    /// May this recipient be added to it?
    Recipient(RcptRequest),
    /// May the message be sent? Asked before the 354, or before the first byte of the first chunk
    /// is passed on.
    Data,
    /// The message is complete and all its bytes are in the sink: is it accepted?
    Message(MessageEnd),
    /// Is this the user's password? The answer is [`SessionAnswer::Verdict`].
    Login(LoginRequest),
    /// Which SCRAM keys are stored for the user? The answer is [`SessionAnswer::Keys`];
    /// [`SessionAction::Login`] reports the result of the exchange, unless the session ends before.
    Keys(ScramKeysRequest),
}

/// The driver's answer to the pending [`SessionQuestion`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionAnswer {
    /// Yes; the session chooses the reply.
    Accept,
    /// No, with this reply. The session closes after a 421.
    Refuse(Reply),
    /// The result of a message: 2xx if accepted. LMTP repeats it for each accepted recipient.
    Done(Reply),
    /// The result of a password check.
    Verdict(PasswordVerdict),
    /// The result of a SCRAM key lookup.
    Keys {
        /// The stored keys.
        keys: ScramKeysAnswer,
        /// The server nonce, from fresh random octets.
        nonce: Nonce,
    },
}

impl SessionAnswer {
    /// The refusal, if the answer is one.
    pub(super) fn refusal(self) -> Option<Reply> {
        match self {
            SessionAnswer::Accept => None,
            SessionAnswer::Refuse(reply) => Some(reply),
            SessionAnswer::Done(reply) => (!reply.is_success()).then_some(reply),
            // An answer to another kind of question is treated as a failure.
            SessionAnswer::Verdict(_) | SessionAnswer::Keys { .. } => Some(replies::UNANSWERED),
        }
    }
}

/// XCLIENT attributes: the client that the peer speaks for. The outer None means not given and
/// unchanged; the inner None means unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct XclientIdentity {
    /// The client's IP address.
    pub address: Option<Option<IpAddr>>,
    /// The client's port; 0 if it is unknown.
    pub port: Option<u16>,
    /// The address of this host that the client connected to.
    pub own_address: Option<Option<IpAddr>>,
    /// The client's HELO name.
    pub helo: Option<Option<Box<str>>>,
}

/// The parameters of MAIL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MailRequest {
    /// The reverse-path; None is the null sender `<>`.
    pub sender: Option<Address>,
    /// SIZE= (RFC 1870), never over the limit.
    pub size: Option<u64>,
    /// BODY= (RFC 6152).
    pub body_type: BodyType,
    /// SMTPUTF8 (RFC 6531).
    pub smtputf8: bool,
    /// RET= (RFC 3461).
    pub ret: Option<DsnReturn>,
    /// ENVID= (RFC 3461) as received: valid xtext that decodes to printable ASCII.
    pub envid: Option<Box<str>>,
    /// AUTH= (RFC 4954 section 5), decoded. Nothing confirms it.
    pub auth: Option<Box<str>>,
}

/// A password sent by a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginRequest {
    /// The user name that the client gave.
    pub user: Box<str>,
    /// The password.
    pub password: Secret,
}

/// A client that is about to prove that it knows a password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScramKeysRequest {
    /// The user name that the client gave.
    pub user: Box<str>,
}

/// The parameters of RCPT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RcptRequest {
    /// The forward-path; `<postmaster>` is replaced by postmaster at the server's host name.
    pub address: Address,
    /// NOTIFY= (RFC 3461).
    pub notify: DsnNotify,
    /// ORCPT= (RFC 3461) as received: a type, a semicolon, and valid xtext without control
    /// characters.
    pub orcpt: Option<Box<str>>,
}

/// The end of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageEnd {
    /// The properties of the bytes appended.
    pub flags: BodyFlags,
    /// The number of bytes appended.
    pub octets: u64,
}
