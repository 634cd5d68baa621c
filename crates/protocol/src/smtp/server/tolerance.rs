//! What a session does with input that RFC 5321 does not allow, but that clients send.
//!
//! An operator chooses how much of it is taken. Nothing here changes where a message ends or who may relay.

use super::command::Verb;
use super::path::Grammar;
use super::{Session, replies};

/// What the sessions of a listener take beyond RFC 5321.
#[derive(Clone, Debug, Default)]
pub struct Tolerance {
    /// Paths need angle brackets, and addresses a domain without a dot at its end (501).
    pub strict_addresses: bool,
    /// The domain of addresses without one, where the client may leave it out; None: the host name.
    pub origin: Option<Box<str>>,
    /// What is done about a NUL in a message.
    pub nul: NulPolicy,
    /// A client that sends its message before the reply to DATA is told 554, and the session ends (RFC 2920 section 3.1).
    /// Users and clients that may relay are exempt.
    pub enforces_sync: bool,
}

/// What is done about a NUL in a message (RFC 5321 section 4.1.1.4 allows none).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NulPolicy {
    /// It is a byte like others.
    #[default]
    Keep,
    /// It is taken out.
    Strip,
    /// The message is refused (550 5.6.0).
    Refuse,
}

impl Session {
    /// Whether the client is one of ours: it may relay, or has logged in.
    pub(super) fn is_trusted(&self) -> bool {
        self.peer.may_relay || self.user.is_some()
    }

    /// How this client may write addresses.
    pub(super) fn grammar(&self) -> Grammar<'_> {
        let Tolerance { strict_addresses: strict, origin, .. } = &self.config.tolerance;
        let origin = origin.as_ref().unwrap_or(&self.config.hostname);
        Grammar { strict: *strict, origin: (!strict && self.is_trusted()).then_some(origin) }
    }

    /// Whether the session ends where `has_more` bytes have come behind the line of DATA before its reply. DATA is the last
    /// command of a group (RFC 2920 section 3.1), so these bytes are a message, and commands only if DATA is refused.
    pub(super) fn breaks_sync(&self, has_more: bool) -> bool {
        has_more && self.config.tolerance.enforces_sync && !self.is_trusted()
    }

    /// Ends the session of a client that sent its message before the reply to DATA.
    pub(super) fn close_out_of_sync(&mut self) {
        self.close(Verb::Data.stage(), replies::OUT_OF_SYNC);
    }
}
