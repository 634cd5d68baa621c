//! The events of a client, and the reasons for its failures.

use std::fmt;

use mail::Reply;

use crate::sasl::client::{SaslViolation, ScramWork};

/// What happened, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SmtpClientEvent {
    /// The server replied. Reports every reply, including those that also cause another event.
    Replied {
        /// What the reply is for.
        stage: SmtpStage,
        /// The reply.
        reply: Reply,
    },
    /// Perform the TLS handshake, then call `handle_tls_established`; if it fails, close the
    /// connection.
    StartTls,
    /// Compute this on a thread on which nothing else waits, then call `handle_proof`.
    ComputeProof(Box<ScramWork>),
    /// A transaction may begin.
    Ready,
    /// The transaction is over; the results are in the order of its recipients.
    Finished(Vec<RecipientOutcome>),
    /// The session is over. An open transaction was finished before.
    Closed(CloseReason),
}

/// What a reply is for, or what the client is waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SmtpStage {
    /// The connection is open.
    Banner,
    /// EHLO, LHLO or HELO.
    Hello,
    /// STARTTLS, and the following handshake.
    StartTls,
    /// AUTH and its steps.
    Auth,
    /// No transaction is open.
    Idle,
    /// XFORWARD, before MAIL.
    Xforward,
    /// MAIL.
    Mail,
    /// RCPT for the recipient with this index.
    Rcpt(usize),
    /// DATA.
    Data,
    /// The message, after DATA or BDAT; with LMTP for the recipient with this index.
    Message(Option<usize>),
    /// RSET.
    Rset,
    /// QUIT.
    Quit,
}

/// A name for operators, and for senders in notices.
impl fmt::Display for SmtpStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SmtpStage::Banner => "connection",
            SmtpStage::Hello => "EHLO",
            SmtpStage::StartTls => "STARTTLS",
            SmtpStage::Auth => "AUTH",
            SmtpStage::Idle => "between messages",
            SmtpStage::Xforward => "XFORWARD",
            SmtpStage::Mail => "MAIL",
            SmtpStage::Rcpt(_) => "RCPT",
            SmtpStage::Data => "DATA",
            SmtpStage::Message(_) => "message",
            SmtpStage::Rset => "RSET",
            SmtpStage::Quit => "QUIT",
        })
    }
}

/// The result for one recipient.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecipientOutcome {
    /// The server has accepted the message.
    Accepted(Reply),
    /// The server refused it with 4xx or 5xx.
    Refused {
        /// What the reply was for.
        stage: SmtpStage,
        /// The reply.
        reply: Reply,
    },
    /// The session ended before the message was sent completely: the server cannot have it.
    NotSent,
    /// The session ended after the last byte of the message and before the reply: the server may
    /// have it.
    InDoubt,
}

/// Why a session is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// We sent QUIT.
    Quit,
    /// The server sent 421.
    Shutdown(Reply),
    /// The server refused something the session requires, or a message before it was complete.
    Refused {
        /// What the reply was for.
        stage: SmtpStage,
        /// The reply.
        reply: Reply,
    },
    /// The server lacks a required extension.
    Lacks(MissingCapability),
    /// The server closed the connection.
    Ended(SmtpStage),
    /// The server was silent for too long.
    TimedOut(SmtpStage),
    /// The server violated the protocol.
    ProtocolViolation(SmtpViolation),
}

/// A requirement that the server does not offer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MissingCapability {
    /// RFC 3207.
    #[error("TLS is required but not offered")]
    StartTls,
    /// The login needs TLS, which the server does not offer or has refused.
    #[error("the login needs TLS, which is not offered")]
    LoginTls,
    /// RFC 4954.
    #[error("no supported authentication mechanism: need {wanted}, server offers {offered:?}")]
    Mechanism {
        /// The mechanisms that may be used, in words.
        wanted: Box<str>,
        /// The mechanisms that the server offers.
        offered: Box<str>,
    },
}

/// How the server violated the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SmtpViolation {
    /// A line is not a reply: three digits and a space or hyphen.
    #[error("a line is not a reply")]
    NotAReply,
    /// A line has a CR without LF or an LF without CR.
    #[error("a reply has a bare CR or LF")]
    BareNewline,
    /// The lines of one reply have different codes.
    #[error("the lines of a reply have different codes")]
    CodesDiffer,
    /// Exceeds [`LINE_OCTETS_MAX`](super::LINE_OCTETS_MAX).
    #[error("a line of a reply is too long")]
    LineTooLong,
    /// Exceeds [`REPLY_LINES_MAX`](super::REPLY_LINES_MAX) or
    /// [`REPLY_OCTETS_MAX`](super::REPLY_OCTETS_MAX).
    #[error("a reply is too long")]
    ReplyTooLong,
    /// A reply without a command, or before its command was sent.
    #[error("a reply came before its command was sent")]
    Early,
    /// A reply with an unexpected code.
    #[error("unexpected reply {code}")]
    Unexpected {
        /// What the reply was for.
        stage: SmtpStage,
        /// The code.
        code: u16,
    },
    /// In the exchange of a login.
    #[error("login: {0}")]
    Login(SaslViolation),
    /// Clear text after STARTTLS was accepted; it may have been injected.
    #[error("clear text received after STARTTLS")]
    ClearText,
}

/// Why a transaction did not begin. Nothing was sent, and the session is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BeginTransactionError {
    /// The session is not ready; its events say why.
    #[error("the session is not ready")]
    NotReady,
    /// There are no recipients.
    #[error("the transaction has no recipients")]
    NoRecipients,
    /// The message exceeds the server's SIZE (RFC 1870).
    #[error("the server accepts messages of up to {octets_max} octets")]
    TooBig {
        /// The server's limit.
        octets_max: u64,
    },
    /// The message is 8-bit, and the server lacks 8BITMIME (RFC 6152).
    #[error("the server does not accept 8-bit messages")]
    EightBit,
    /// The server lacks SMTPUTF8 (RFC 6531), or an address needs it and the transaction does not
    /// request it.
    #[error("SMTPUTF8 is required but not offered or not requested")]
    Smtputf8,
}
