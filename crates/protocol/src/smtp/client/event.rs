//! What a client tells its driver, and why it does what it does not do.

use std::fmt;

use mail::Reply;

/// What happened, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The server replied. Every reply comes so, also those that decide something and come again in another event.
    Replied {
        /// What it replied to.
        stage: Stage,
        /// What it said.
        reply: Reply,
    },
    /// Do the TLS handshake on this connection, then call `handle_secured`; where it fails, close.
    StartTls,
    /// A transaction may begin.
    Ready,
    /// The transaction is over; for each of its recipients, in order, what became of the message.
    Finished(Vec<Verdict>),
    /// The session is over, and so is the transaction: it was finished before.
    Closed(Closed),
}

/// What a reply answers, or what the client waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// The connection.
    Banner,
    /// EHLO, LHLO or HELO.
    Hello,
    /// STARTTLS, and the handshake after it.
    StartTls,
    /// AUTH and its steps.
    Auth,
    /// Nothing: no transaction is open.
    Idle,
    /// MAIL.
    Mail,
    /// RCPT of the recipient of this index.
    Rcpt(usize),
    /// DATA.
    Data,
    /// The whole message, after DATA or BDAT; with LMTP for the recipient of this index.
    Message(Option<usize>),
    /// RSET.
    Rset,
    /// QUIT.
    Quit,
}

/// As an operator calls it, or a sender who reads of it in a notice.
impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stage::Banner => "connection",
            Stage::Hello => "EHLO",
            Stage::StartTls => "STARTTLS",
            Stage::Auth => "AUTH",
            Stage::Idle => "between messages",
            Stage::Mail => "MAIL",
            Stage::Rcpt(_) => "RCPT",
            Stage::Data => "DATA",
            Stage::Message(_) => "message",
            Stage::Rset => "RSET",
            Stage::Quit => "QUIT",
        })
    }
}

/// What became of the message for one recipient.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The server has it.
    Accepted(Reply),
    /// The server does not want it: 4xx or 5xx.
    Refused {
        /// To what it said so.
        stage: Stage,
        /// How it said so.
        reply: Reply,
    },
    /// The session ended before the message did: the server cannot have it.
    NotSent,
    /// The session ended after the message's last byte went out and before the reply: the server may have it, or not.
    InDoubt,
}

/// Why a session is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Closed {
    /// We said QUIT.
    Quit,
    /// The server said 421.
    Shutdown(Reply),
    /// The server refused what the session needs, or a message before all of it had come.
    Refused {
        /// To what it said so.
        stage: Stage,
        /// How it said so.
        reply: Reply,
    },
    /// The server lacks what we insist on.
    Lacks(Lack),
    /// The server ended the connection.
    Ended(Stage),
    /// The server was silent for too long.
    TimedOut(Stage),
    /// The server does not speak the protocol.
    Misbehaved(Misbehaviour),
}

/// What we insist on and the server does not offer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lack {
    /// RFC 3207.
    #[error("TLS is required but not offered")]
    StartTls,
    /// RFC 4954.
    #[error("no supported authentication mechanism: need PLAIN or LOGIN, server offers {offered:?}")]
    Mechanism {
        /// The names of those that the server offers.
        offered: Box<str>,
    },
}

/// How a server can break the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misbehaviour {
    /// A line is no reply: three digits and a space or hyphen.
    #[error("a line is not a reply")]
    NoReply,
    /// A line has a CR without LF or an LF without CR.
    #[error("a reply has a bare CR or LF")]
    BareNewline,
    /// The lines of one reply bear different codes.
    #[error("the lines of a reply have different codes")]
    CodesDiffer,
    /// Over [`LINE_OCTETS_MAX`](super::LINE_OCTETS_MAX).
    #[error("a line of a reply is too long")]
    LineTooLong,
    /// Over [`REPLY_LINES_MAX`](super::REPLY_LINES_MAX) or [`REPLY_OCTETS_MAX`](super::REPLY_OCTETS_MAX).
    #[error("a reply is too long")]
    ReplyTooLong,
    /// A reply that nothing was said to, or that came before what it replies to was sent.
    #[error("a reply came before its command was sent")]
    Early,
    /// A reply whose code has no meaning here.
    #[error("unexpected reply {code}")]
    Unexpected {
        /// To what it replied.
        stage: Stage,
        /// What it said.
        code: u16,
    },
    /// Bytes in clear text after STARTTLS was granted: whoever sent them wants them taken for the server's.
    #[error("clear text received after STARTTLS")]
    ClearText,
}

/// Why a transaction did not begin. Nothing was sent, and the session is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsendable {
    /// It is not the time; what happened is among the events.
    #[error("the session is not ready")]
    NotReady,
    /// To nobody.
    #[error("the transaction has no recipients")]
    NoRecipients,
    /// Over the SIZE of the server (RFC 1870).
    #[error("the server accepts messages of up to {octets_max} octets")]
    TooBig {
        /// The server's limit.
        octets_max: u64,
    },
    /// It has 8-bit bytes, and the server no 8BITMIME (RFC 6152).
    #[error("the server does not take 8-bit messages")]
    EightBit,
    /// The server has no SMTPUTF8 (RFC 6531), or the transaction does not ask for it although an address needs it.
    #[error("SMTPUTF8 is required but not offered or not requested")]
    Smtputf8,
}
