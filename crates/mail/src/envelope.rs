//! Who sends a message to whom, and what was asked of us with it.

use std::net::IpAddr;

use crate::{Address, Timestamp};

/// All that came with a message except its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The reverse-path; None is the null sender `<>`, to whom nothing is ever bounced.
    pub sender: Option<Address>,
    /// Final recipients, aliases already expanded. Their place in this list is the recipient's *ordinal*.
    pub recipients: Vec<Recipient>,
    /// When the message was accepted.
    pub accepted_at: Timestamp,
    /// Who handed it to us.
    pub client: Client,
    /// BODY= of RFC 6152.
    pub body_type: BodyType,
    /// SMTPUTF8 was asked for (RFC 6531).
    pub smtputf8: bool,
    /// RET= of RFC 3461.
    pub ret: Option<Return>,
    /// ENVID= of RFC 3461, as it came (xtext).
    pub envid: Option<Box<str>>,
}

/// One final recipient.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipient {
    /// Where the message goes.
    pub address: Address,
    /// What RCPT named, where an alias led elsewhere.
    pub original: Option<Address>,
    /// NOTIFY= of RFC 3461.
    pub notify: Notify,
    /// ORCPT= of RFC 3461, as it came (`type;xtext`).
    pub orcpt: Option<Box<str>>,
}

/// The peer that handed a message to us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// Its address; None for messages made here (bounces) or over a unix socket.
    pub address: Option<IpAddr>,
    /// What it called itself in HELO, EHLO or LHLO.
    pub helo: Box<str>,
    /// It is in a relay network, has logged in, or is a program on this machine. Of anyone else the sender's address may be
    /// forged, so that notices to it are limited. A notice has this from the message that it is about.
    pub trusted: bool,
}

/// BODY= of RFC 6152.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyType {
    /// 7BIT, and what is meant when nothing is said.
    #[default]
    SevenBit,
    /// 8BITMIME.
    EightBitMime,
}

/// RET= of RFC 3461: how much of the message a bounce brings back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Return {
    /// All of it.
    Full,
    /// Its header only.
    Headers,
}

/// NOTIFY= of RFC 3461. [`Notify::UNSET`] (nothing asked) means: failures, and delays if we like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Notify(u8);

impl Notify {
    /// Nothing was asked.
    pub const UNSET: Notify = Notify(0);
    /// NEVER.
    pub const NEVER: Notify = Notify(1);
    /// SUCCESS.
    pub const SUCCESS: Notify = Notify(2);
    /// FAILURE.
    pub const FAILURE: Notify = Notify(4);
    /// DELAY.
    pub const DELAY: Notify = Notify(8);

    /// From the bits that [`Notify::bits`] gave; unknown bits are dropped.
    pub fn from_bits(bits: u8) -> Self {
        Notify(bits & 15)
    }

    /// For storing.
    pub fn bits(self) -> u8 {
        self.0
    }

    /// Both wishes together.
    pub fn with(self, other: Notify) -> Self {
        Notify(self.0 | other.0)
    }

    /// Whether a failure is to be reported to the sender (RFC 3461 section 4.1: yes where nothing was asked).
    pub fn wants_failure(self) -> bool {
        self == Notify::UNSET || self.0 & Notify::FAILURE.0 != 0
    }

    /// Whether `other` was asked for explicitly.
    pub fn contains(self, other: Notify) -> bool {
        self.0 & other.0 == other.0 && other.0 != 0
    }
}
