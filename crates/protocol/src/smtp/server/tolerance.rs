//! How a session treats input that RFC 5321 forbids but clients send.
//!
//! The operator chooses how much of it is accepted. Nothing here changes where a message ends or
//! who may relay.

use super::command::Verb;
use super::path::PathGrammar;
use super::{SmtpSession, replies};

/// What the sessions of a listener accept beyond RFC 5321.
#[derive(Clone, Debug, Default)]
pub struct TolerancePolicy {
    /// Require angle brackets around paths, and a domain without a final dot in addresses (501).
    pub strict_addresses: bool,
    /// The domain for addresses without one, if the client may omit it; None: the host name.
    pub origin: Option<Box<str>>,
    /// How to treat a NUL in a message.
    pub nul: NulPolicy,
    /// End the session (554) of a client that sends its message before the reply to DATA (RFC 2920
    /// section 3.1). Does not apply to authenticated clients and those that may relay.
    pub enforces_sync: bool,
}

/// How to treat a NUL in a message (RFC 5321 section 4.1.1.4 forbids it).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NulPolicy {
    /// Keep it like any other byte.
    #[default]
    Keep,
    /// Remove it.
    Strip,
    /// Refuse the message (550 5.6.0).
    Refuse,
}

impl SmtpSession {
    /// Whether the client is trusted: it may relay, or has logged in.
    pub(super) fn is_trusted(&self) -> bool {
        self.peer.may_relay || self.authenticated_user.is_some()
    }

    /// How this client may write addresses.
    pub(super) fn grammar(&self) -> PathGrammar<'_> {
        let TolerancePolicy { strict_addresses: strict, origin, .. } = &self.config.tolerance;
        let origin = origin.as_ref().unwrap_or(&self.config.hostname);
        PathGrammar { strict: *strict, origin: (!strict && self.is_trusted()).then_some(origin) }
    }

    /// Whether bytes after the DATA line, before its reply, end the session (`has_more`: there are
    /// some). DATA is the last command of a group (RFC 2920 section 3.1), so these bytes are a
    /// message, and would be commands only if DATA is refused.
    pub(super) fn breaks_sync(&self, has_more: bool) -> bool {
        has_more && self.config.tolerance.enforces_sync && !self.is_trusted()
    }

    /// Ends the session of a client that sent its message before the reply to DATA.
    pub(super) fn close_out_of_sync(&mut self) {
        self.close(Verb::Data.stage(), replies::OUT_OF_SYNC);
    }
}
