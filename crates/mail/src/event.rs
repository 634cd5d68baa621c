//! What happens to mail: one event for each log line. Other crates emit events; the binary decides
//! how to write them.

use std::fmt::{self, Display};
use std::net::IpAddr;
use std::time::Duration;

use crate::{Address, LoggedHeader, QueueId, Reply, Timestamp, TlsInfo, TlsProof};

/// An event in the life of a message or a session.
#[derive(Clone, Debug)]
pub enum MailEvent {
    /// A message was accepted: it is durable, and the 2xx reply is being sent.
    Received {
        /// Its queue id.
        id: QueueId,
        /// The client's IP address; None if the message was generated here.
        client: Option<IpAddr>,
        /// The client's HELO name.
        helo: Box<str>,
        /// The reverse-path.
        sender: Option<Address>,
        /// The number of final recipients.
        recipients: usize,
        /// The size of the stored message, in bytes.
        size: u64,
        /// `ESMTP`, `LMTP`, `bounce`: the protocol as in Received (RFC 3848).
        protocol: &'static str,
        /// The TLS parameters; None in clear text.
        security: Option<TlsInfo>,
        /// The user who logged in, if any.
        user: Option<Box<str>>,
        /// The logged header fields.
        header: LoggedHeader,
        /// What checks found about the sender: `spf=pass dkim=none`. None: nothing was checked.
        auth: Option<Box<str>>,
    },
    /// A client attempted to log in (RFC 4954).
    Login {
        /// The client's IP address.
        client: Option<IpAddr>,
        /// The client's HELO name.
        helo: Box<str>,
        /// The user name that the client gave; empty if it did not get that far.
        user: Box<str>,
        /// The mechanism: `PLAIN`, `SCRAM-SHA-256`...
        mechanism: &'static str,
        /// `ok`, `refused`, `throttled`, `unavailable`, `malformed` or `cancelled`.
        result: &'static str,
    },
    /// A TLS handshake with a client failed; the session is over.
    TlsFailed {
        /// The client's IP address.
        client: Option<IpAddr>,
        /// The client's HELO name; empty before HELO.
        helo: Box<str>,
        /// The error of the TLS library.
        reason: Box<str>,
    },
    /// A message was delivered to a recipient.
    Delivered {
        /// The message.
        id: QueueId,
        /// The reverse-path; None is the null sender.
        sender: Option<Address>,
        /// The recipient.
        recipient: Address,
        /// The transport that delivered it.
        transport: Box<str>,
        /// The host that accepted it and its reply, if it was relayed.
        relay: Option<(Box<str>, Reply)>,
        /// How the connection to that host was protected.
        tls: Option<TlsProof>,
        /// The time since the message was accepted.
        delay: Duration,
    },
    /// Delivery to a recipient was deferred; another attempt follows.
    Deferred {
        /// The message.
        id: QueueId,
        /// The reverse-path; None is the null sender.
        sender: Option<Address>,
        /// The recipient.
        recipient: Address,
        /// The transport of the attempt; `none` if no attempt was possible.
        transport: Box<str>,
        /// The host that replied, if any.
        relay: Option<Box<str>>,
        /// The reason.
        reason: Reply,
        /// The time of the next attempt.
        until: Timestamp,
    },
    /// Delivery to a recipient failed for good.
    Bounced {
        /// The message.
        id: QueueId,
        /// The reverse-path; None is the null sender.
        sender: Option<Address>,
        /// The recipient.
        recipient: Address,
        /// The transport of the attempt; `none` if no attempt was possible.
        transport: Box<str>,
        /// The host that replied, if any.
        relay: Option<Box<str>>,
        /// The reason.
        reason: Reply,
        /// The bounce to the sender; None if none is sent (null sender, NOTIFY=NEVER).
        bounce: Option<QueueId>,
    },
    /// A check discarded a message: the client got a 2xx reply, and nobody gets the message.
    Discarded {
        /// The queue id in the reply.
        id: QueueId,
        /// The client's IP address; None for a local program.
        client: Option<IpAddr>,
        /// The client's HELO name.
        helo: Box<str>,
        /// The reverse-path; None is the null sender.
        sender: Option<Address>,
        /// The rule or check.
        check: Box<str>,
    },
    /// A recipient is held until the operator releases it.
    Held {
        /// The message.
        id: QueueId,
        /// The recipient.
        recipient: Address,
    },
    /// The operator released a held recipient; delivery is due now.
    Released {
        /// The message.
        id: QueueId,
        /// The recipient.
        recipient: Address,
    },
    /// The operator removed a recipient from the queue, without a bounce.
    Removed {
        /// The message.
        id: QueueId,
        /// The recipient.
        recipient: Address,
    },
    /// A client got a 4xx or 5xx reply.
    Refused {
        /// The client's IP address.
        client: Option<IpAddr>,
        /// The client's HELO name; empty before HELO.
        helo: Box<str>,
        /// The SMTP command or stage: `connect`, `MAIL`, `RCPT`, `DATA`, `message`, `idle`...
        stage: &'static str,
        /// The address concerned, if any.
        address: Option<Address>,
        /// The access rule that refused it, if any.
        rule: Option<Box<str>>,
        /// The reply.
        reply: Reply,
    },
    /// Damaged bytes of the spool were set aside for the operator.
    SetAside {
        /// The queue id, if it could still be read.
        id: Option<QueueId>,
        /// What was damaged, and where.
        detail: String,
    },
}

/// Receives mail events. Writing an event never blocks; an event that cannot be taken is dropped
/// and counted.
pub trait EventLog: Send + Sync {
    /// Writes one event.
    fn write(&self, event: MailEvent);
}

/// The severity of a line about the server itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// Normal operation.
    Info,
    /// The operator may have to act.
    Warning,
    /// Something is broken.
    Error,
}

/// Receives lines about failures whose cause clients are not told. An outage affects every session,
/// so not every line is written.
pub trait OperatorLog: Send + Sync {
    /// Writes a line, without blocking for long.
    fn log_line(&self, line: fmt::Arguments<'_>);
}

/// Sees the lines of a log as they are written.
pub trait LogObserver: Send + Sync {
    /// Whether it wants lines at present.
    fn is_watching(&self) -> bool;

    /// Takes a line, a JSON object with its line end, in the order of the log. Must not block.
    fn observe(&self, line: &str);
}

/// Receives mail events, and lines about the server itself.
pub trait ServerLog: EventLog {
    /// Writes a line about the server itself, under the rules of [`EventLog::write`].
    fn event(&self, level: LogLevel, text: &str, fields: &[(&'static str, &dyn Display)]);

    /// Waits until a line has room, at most for this time; false: it has none. Ask before an act whose line
    /// must not be lost.
    fn wait_for_room(&self, _longest: Duration) -> bool {
        true
    }

    /// Writes a line about an act of an operator: there is always room for it, since acts are few.
    fn audit(&self, level: LogLevel, text: &str, fields: &[(&'static str, &dyn Display)]) {
        self.event(level, text, fields);
    }

    /// The lines lost so far, for lack of memory or because the target failed.
    fn lines_dropped(&self) -> u64;
}
