//! Replies that intake sends itself.

use std::borrow::Cow;

use mail::{Address, Enhanced, QueueId, Reply};
use spool::CommitError;

const fn fixed(code: u16, enhanced: Enhanced, text: &'static str) -> Reply {
    Reply { code, enhanced: Some(enhanced), text: Cow::Borrowed(text) }
}

pub(crate) const LOAD_HIGH: Reply = fixed(421, Enhanced(4, 3, 2), "Load too high, try again later");
pub(crate) const SESSIONS_FULL: Reply = fixed(421, Enhanced(4, 3, 2), "Too many sessions, try again later");
pub(crate) const CLIENT_SESSIONS_FULL: Reply =
    fixed(421, Enhanced(4, 7, 0), "Too many sessions from your address, try again later");
pub(crate) const CLIENT_CONNECTIONS: Reply =
    fixed(421, Enhanced(4, 7, 0), "Too many connections from your address in a short time, try again later");
pub(crate) const CLIENT_MESSAGES: Reply =
    fixed(451, Enhanced(4, 7, 1), "Too many messages from your address in a short time, try again later");
pub(crate) const DISK_SHORT: Reply = fixed(452, Enhanced(4, 3, 1), "Not enough disk space, try again later");
pub(crate) const MEMORY_SHORT: Reply = fixed(452, Enhanced(4, 3, 1), "Not enough memory, try again later");
pub(crate) const RELAY_DENIED: Reply = fixed(550, Enhanced(5, 7, 1), "Relaying denied");
/// For a migration, while the operator does not yet know which clients must relay.
pub(crate) const RELAY_DEFERRED: Reply = fixed(454, Enhanced(4, 7, 1), "Relaying temporarily denied");
pub(crate) const WAY_DENIED: Reply = fixed(550, Enhanced(5, 7, 1), "Source-routed addresses are not relayed");
pub(crate) const NOT_QUALIFIED: Reply = fixed(550, Enhanced(5, 1, 2), "A fully qualified domain name is required");
pub(crate) const DIRECTORY_DOWN: Reply = fixed(451, Enhanced(4, 3, 0), "Directory unavailable, try again later");
/// RFC 5321 section 3.1: sent instead of the banner.
pub(crate) const CLIENT_DENIED: Reply = fixed(554, Enhanced(5, 7, 1), "Access denied");
pub(crate) const DENIED: Reply = fixed(550, Enhanced(5, 7, 1), "Access denied");
pub(crate) const CLIENT_DEFERRED: Reply = fixed(421, Enhanced(4, 7, 1), "Access temporarily denied, try again later");
pub(crate) const DEFERRED: Reply = fixed(451, Enhanced(4, 7, 1), "Access temporarily denied, try again later");
pub(crate) const RECIPIENT_DEFERRED: Reply =
    fixed(450, Enhanced(4, 7, 1), "Access temporarily denied, try again later");
pub(crate) const ACCESS_DOWN: Reply = fixed(451, Enhanced(4, 3, 0), "Access rules unavailable, try again later");
/// The error is in the directory, and may be corrected before the client gives up.
pub(crate) const ALIAS_TOO_DEEP: Reply = fixed(451, Enhanced(4, 4, 6), "Alias loop");
pub(crate) const ALIAS_TOO_MANY: Reply = fixed(452, Enhanced(4, 5, 3), "Alias expands to too many addresses");
pub(crate) const RECIPIENTS_FULL: Reply = fixed(452, Enhanced(4, 5, 3), "Too many recipients after alias expansion");
pub(crate) const BODY_UNWRITABLE: Reply = fixed(451, Enhanced(4, 3, 0), "Message could not be stored");

pub(crate) fn unknown_user(address: &Address) -> Reply {
    Reply::new(550, Enhanced(5, 1, 1), format!("<{address}>: no such user here"))
}

/// RFC 6409 section 6.1.
pub(crate) fn not_owned(sender: &Address, user: &str) -> Reply {
    let text = format!("<{sender}>: Sender address rejected: not owned by user {user}");
    Reply::new(553, Enhanced(5, 7, 1), text)
}

pub(crate) const MAILBOX_FULL: Reply = fixed(452, Enhanced(4, 2, 2), "Mailbox full");

/// The mailbox has no room for this message.
pub(crate) fn mailbox_full(address: &Address, for_good: bool) -> Reply {
    let (code, enhanced) = if for_good { (552, Enhanced(5, 2, 2)) } else { (452, Enhanced(4, 2, 2)) };
    Reply::new(code, enhanced, format!("<{address}>: {}", MAILBOX_FULL.text))
}

pub(crate) fn kept(id: QueueId) -> Reply {
    Reply::new(250, Enhanced(2, 0, 0), format!("Ok: queued as {id}"))
}

/// A body could not be written to its file.
pub(crate) fn unwritable(error: &std::io::Error) -> Reply {
    not_kept(&CommitError::from(error))
}

/// After these a client may try again, and the message may arrive twice (RFC 1047).
pub(crate) fn not_kept(error: &CommitError) -> Reply {
    match error {
        CommitError::Full => DISK_SHORT,
        CommitError::Failed(_) => BODY_UNWRITABLE,
        CommitError::TooLarge => fixed(552, Enhanced(5, 3, 4), "Envelope is too large"),
        CommitError::Closed => fixed(421, Enhanced(4, 3, 2), "Server is shutting down, try again later"),
    }
}
