//! What happened to mail, one fact a log line. Rooms state facts; the binary decides how they are written.

use std::net::IpAddr;
use std::time::Duration;

use crate::{Address, QueueId, Reply, Security, Timestamp};

/// Fields of a message's header that the log shows: unfolded and cut to [`LoggedHeader::VALUE_OCTETS_MAX`], otherwise as the
/// client wrote them. They may hold any character.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoggedHeader {
    /// The first Message-ID (RFC 5322 section 3.6.4).
    pub message_id: Option<Box<str>>,
    /// The first Subject, with RFC 2047 words still encoded; None also where subjects are not logged.
    pub subject: Option<Box<str>>,
}

impl LoggedHeader {
    /// Octets of a field's value that are logged. A longer value is cut at a character and ends in `...`.
    pub const VALUE_OCTETS_MAX: usize = 256;
}

/// One fact about mail.
#[derive(Clone, Debug)]
pub enum Fact {
    /// A message was accepted: it is durable, and the 2xx is on its way.
    Received {
        /// Its name.
        id: QueueId,
        /// Who sent it; None if it was made here.
        client: Option<IpAddr>,
        /// What the client called itself.
        helo: Box<str>,
        /// The reverse-path.
        sender: Option<Address>,
        /// Final recipients.
        recipients: usize,
        /// Bytes of the stored message.
        size: u64,
        /// `ESMTP`, `LMTP`, `bounce`: the protocol as in Received (RFC 3848).
        protocol: &'static str,
        /// What TLS it came by; None in clear text.
        security: Option<Security>,
        /// Who had logged in; None where nobody had.
        user: Option<Box<str>>,
        /// What its header says of it.
        header: LoggedHeader,
    },
    /// A client tried to log in (RFC 4954).
    Login {
        /// Who it was.
        client: Option<IpAddr>,
        /// What it called itself.
        helo: Box<str>,
        /// Who it said it is; empty where it did not come so far.
        user: Box<str>,
        /// By what: `PLAIN`, `SCRAM-SHA-256`...
        mechanism: &'static str,
        /// `ok`, `refused`, `throttled`, `unavailable`, `malformed` or `cancelled`.
        result: &'static str,
    },
    /// A client's handshake of TLS failed; the session is over.
    Insecure {
        /// Who it was.
        client: Option<IpAddr>,
        /// What the client called itself, if it did.
        helo: Box<str>,
        /// In the words of TLS.
        reason: Box<str>,
    },
    /// A recipient has it.
    Delivered {
        /// The message.
        id: QueueId,
        /// The reverse-path; None is the null sender.
        sender: Option<Address>,
        /// Who has it.
        recipient: Address,
        /// The transport that brought it.
        transport: Box<str>,
        /// The host that took it and what it answered, where it went to another one.
        relay: Option<(Box<str>, Reply)>,
        /// From acceptance until now.
        delay: Duration,
    },
    /// A recipient waits for another attempt.
    Deferred {
        /// The message.
        id: QueueId,
        /// The reverse-path; None is the null sender.
        sender: Option<Address>,
        /// Who waits.
        recipient: Address,
        /// The transport that tried; `none` where no attempt could be made.
        transport: Box<str>,
        /// The host that answered, where one did.
        relay: Option<Box<str>>,
        /// Why.
        reason: Reply,
        /// When the next attempt is due.
        until: Timestamp,
    },
    /// A recipient will not get it.
    Bounced {
        /// The message.
        id: QueueId,
        /// The reverse-path; None is the null sender.
        sender: Option<Address>,
        /// Who does not get it.
        recipient: Address,
        /// The transport that tried; `none` where no attempt could be made.
        transport: Box<str>,
        /// The host that answered, where one did.
        relay: Option<Box<str>>,
        /// Why.
        reason: Reply,
        /// The bounce that tells the sender; None where nobody is told (null sender, NOTIFY=NEVER).
        bounce: Option<QueueId>,
    },
    /// A recipient is not tried until the operator releases it.
    Held {
        /// The message.
        id: QueueId,
        /// Who waits.
        recipient: Address,
    },
    /// The operator released a recipient who was held; it is due now.
    Released {
        /// The message.
        id: QueueId,
        /// Who is due.
        recipient: Address,
    },
    /// The operator took a recipient out of the queue; nobody is told.
    Removed {
        /// The message.
        id: QueueId,
        /// Who does not get it.
        recipient: Address,
    },
    /// A client was told 4xx or 5xx.
    Refused {
        /// The client.
        client: Option<IpAddr>,
        /// What it called itself; empty before HELO.
        helo: Box<str>,
        /// The verb or moment: `connect`, `MAIL`, `RCPT`, `DATA`, `message`, `idle`...
        stage: &'static str,
        /// The address in question, where there is one.
        address: Option<Address>,
        /// The access rule that said no, where one did.
        rule: Option<Box<str>>,
        /// What it was told.
        reply: Reply,
    },
    /// Bytes of the spool could not be read back; what is left of them was kept aside for the operator.
    SetAside {
        /// The message, if its name could still be read.
        id: Option<QueueId>,
        /// What was wrong, and where.
        what: String,
    },
}

/// Where facts go. Writing one never blocks; what cannot be taken is dropped and counted.
pub trait Journal: Send + Sync {
    /// Takes one fact.
    fn write(&self, fact: Fact);
}
