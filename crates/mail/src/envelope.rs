//! The sender, the recipients and the requested delivery options of a message.

use std::net::IpAddr;

use crate::{Address, Timestamp};

/// The field by which a check chooses the queue of a message. It counts only before the first Received
/// field, where no sender can put it.
pub const QUEUE_FIELD: &str = "X-Mailrace-Queue";

/// The field by which a check sends a message to a content filter, `transport:next hop`, in the same
/// place.
pub const FILTER_FIELD: &str = "X-Mailrace-Filter";

/// Everything that comes with a message except its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The reverse-path; None is the null sender `<>`, which never gets a bounce.
    pub sender: Option<Address>,
    /// The final recipients, after alias expansion. A recipient's index in this list is its
    /// *ordinal*.
    pub recipients: Vec<Recipient>,
    /// When the message was accepted.
    pub accepted_at: Timestamp,
    /// The client that sent it.
    pub client: ClientInfo,
    /// BODY= (RFC 6152).
    pub body_type: BodyType,
    /// SMTPUTF8 was requested (RFC 6531).
    pub smtputf8: bool,
    /// RET= (RFC 3461).
    pub ret: Option<DsnReturn>,
    /// ENVID= (RFC 3461), in xtext as received.
    pub envid: Option<Box<str>>,
    /// All recipients get the message by way of the content filter, if there is one.
    pub content_filter: bool,
}

/// One final recipient.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipient {
    /// The address to deliver to.
    pub address: Address,
    /// The address that RCPT gave, if an alias replaced it.
    pub original: Option<Address>,
    /// NOTIFY= (RFC 3461).
    pub notify: DsnNotify,
    /// ORCPT= (RFC 3461), as received (`type;xtext`).
    pub orcpt: Option<Box<str>>,
    /// A stranger's message leaves our domains here, because an alias or a check sends it on. The
    /// next hop gets it with a rewritten sender ([`crate::SenderRewriter`]).
    pub is_forwarded: bool,
}

/// The client that sent the message to us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientInfo {
    /// Its IP address; None for messages generated here (bounces) or received over a unix socket.
    pub address: Option<IpAddr>,
    /// The name it gave in HELO, EHLO or LHLO.
    pub helo: Box<str>,
    /// The client is in a relay network, has logged in, or is a local program. The sender address
    /// of any other client may be forged, so notices to it are rate-limited. A notice inherits the
    /// value of the message that it reports on.
    pub trusted: bool,
}

/// BODY= (RFC 6152).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyType {
    /// 7BIT, the default.
    #[default]
    SevenBit,
    /// 8BITMIME.
    EightBitMime,
}

/// RET= (RFC 3461): how much of the message a bounce returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DsnReturn {
    /// All of it.
    Full,
    /// Its header only.
    Headers,
}

/// NOTIFY= (RFC 3461). [`DsnNotify::UNSET`], the default, means failures, and delays at our
/// discretion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DsnNotify(u8);

impl DsnNotify {
    /// No NOTIFY parameter.
    pub const UNSET: DsnNotify = DsnNotify(0);
    /// NEVER.
    pub const NEVER: DsnNotify = DsnNotify(1);
    /// SUCCESS.
    pub const SUCCESS: DsnNotify = DsnNotify(2);
    /// FAILURE.
    pub const FAILURE: DsnNotify = DsnNotify(4);
    /// DELAY.
    pub const DELAY: DsnNotify = DsnNotify(8);

    /// Converts the result of [`DsnNotify::bits`] back; unknown bits are dropped.
    pub fn from_bits(bits: u8) -> Self {
        DsnNotify(bits & 15)
    }

    /// The bits, for storage.
    pub fn bits(self) -> u8 {
        self.0
    }

    /// The union of both requests.
    pub fn with(self, other: DsnNotify) -> Self {
        DsnNotify(self.0 | other.0)
    }

    /// Whether to report a failure to the sender (RFC 3461 section 4.1: yes by default).
    pub fn wants_failure(self) -> bool {
        self == DsnNotify::UNSET || self.0 & DsnNotify::FAILURE.0 != 0
    }

    /// Whether `other` was requested explicitly.
    pub fn contains(self, other: DsnNotify) -> bool {
        self.0 & other.0 == other.0 && other.0 != 0
    }
}
