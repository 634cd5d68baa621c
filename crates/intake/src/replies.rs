//! Replies that intake sends itself.

use mail::{Address, EnhancedCode, QueueId, Reply, ReturnRefusal};
use spool::CommitError;

pub(crate) const STOPPING: Reply =
    Reply::constant(421, EnhancedCode(4, 3, 2), "Server is shutting down, try again later");
pub(crate) const LOAD_HIGH: Reply = Reply::constant(421, EnhancedCode(4, 3, 2), "Load too high, try again later");
pub(crate) const SESSIONS_FULL: Reply =
    Reply::constant(421, EnhancedCode(4, 3, 2), "Too many sessions, try again later");
pub(crate) const CLIENT_SESSIONS_FULL: Reply =
    Reply::constant(421, EnhancedCode(4, 7, 0), "Too many sessions from your address, try again later");
pub(crate) const CLIENT_CONNECTIONS: Reply = Reply::constant(
    421,
    EnhancedCode(4, 7, 0),
    "Too many connections from your address in a short time, try again later",
);
/// RFC 5321 section 3.1: the server speaks first.
pub(crate) const TALKED_EARLY: Reply = Reply::constant(554, EnhancedCode(5, 5, 1), "You talked before the greeting");
pub(crate) const CLIENT_MESSAGES: Reply =
    Reply::constant(451, EnhancedCode(4, 7, 1), "Too many messages from your address in a short time, try again later");
pub(crate) const DISK_SHORT: Reply =
    Reply::constant(452, EnhancedCode(4, 3, 1), "Not enough disk space, try again later");
pub(crate) const MEMORY_SHORT: Reply =
    Reply::constant(452, EnhancedCode(4, 3, 1), "Not enough memory, try again later");
pub(crate) const RELAY_DENIED: Reply = Reply::constant(550, EnhancedCode(5, 7, 1), "Relaying denied");
/// For a migration, while the operator does not yet know which clients must relay.
pub(crate) const RELAY_DEFERRED: Reply = Reply::constant(454, EnhancedCode(4, 7, 1), "Relaying temporarily denied");
pub(crate) const SOURCE_ROUTE_DENIED: Reply =
    Reply::constant(550, EnhancedCode(5, 7, 1), "Relaying of source-routed addresses denied");
pub(crate) const NOT_QUALIFIED: Reply =
    Reply::constant(550, EnhancedCode(5, 1, 2), "A fully qualified domain name is required");
pub(crate) const DIRECTORY_UNAVAILABLE: Reply =
    Reply::constant(451, EnhancedCode(4, 3, 0), "Directory unavailable, try again later");
/// The error is in the directory, and may be corrected before the client gives up.
pub(crate) const ALIAS_TOO_DEEP: Reply = Reply::constant(451, EnhancedCode(4, 4, 6), "Alias loop");
pub(crate) const ALIAS_TOO_MANY: Reply =
    Reply::constant(452, EnhancedCode(4, 5, 3), "Alias expands to too many addresses");
pub(crate) const RECIPIENTS_FULL: Reply =
    Reply::constant(452, EnhancedCode(4, 5, 3), "Too many recipients after alias expansion");
/// The commit step of the spool is behind.
pub(crate) const SPOOL_BUSY: Reply =
    Reply::constant(451, EnhancedCode(4, 3, 1), "Too many messages wait for storage, try again later");
pub(crate) const HEADER_NOT_EDITED: Reply =
    Reply::constant(552, EnhancedCode(5, 3, 4), "Header too large to be edited");
pub(crate) const BODY_NOT_EDITED: Reply =
    Reply::constant(451, EnhancedCode(4, 3, 0), "Body edited to lines that do not end in CRLF");
pub(crate) const TOO_MANY_FIELDS: Reply =
    Reply::constant(451, EnhancedCode(4, 3, 0), "Too many fields added to the message");
pub(crate) const BODY_UNWRITABLE: Reply = Reply::constant(451, EnhancedCode(4, 3, 0), "Message could not be stored");

pub(crate) fn unknown_user(address: &Address) -> Reply {
    Reply::new(550, EnhancedCode(5, 1, 1), format!("<{address}>: no such user here"))
}

/// The address may be a rewritten sender of another host, or an old one.
pub(crate) fn not_returned(address: &Address, refusal: ReturnRefusal) -> Reply {
    let why = match refusal {
        ReturnRefusal::Forged => "not an SRS address of this host",
        ReturnRefusal::Expired => "the SRS address has expired",
    };
    Reply::new(550, EnhancedCode(5, 1, 1), format!("<{address}>: {why}"))
}

/// Mail with a sender, to the rewritten sender of another message.
pub(crate) fn only_notices(address: &Address) -> Reply {
    let text = format!("<{address}>: SRS addresses are only for bounces, with the sender <>");
    Reply::new(550, EnhancedCode(5, 7, 1), text)
}

/// RFC 6409 section 6.1.
pub(crate) fn not_owned(sender: &Address, user: &str) -> Reply {
    let text = format!("<{sender}>: Sender address rejected: not owned by user {user}");
    Reply::new(553, EnhancedCode(5, 7, 1), text)
}

pub(crate) const MAILBOX_FULL: Reply = Reply::constant(452, EnhancedCode(4, 2, 2), "Mailbox full");

/// The mailbox has no room for this message.
pub(crate) fn mailbox_full(address: &Address, for_good: bool) -> Reply {
    let (code, enhanced) = if for_good { (552, EnhancedCode(5, 2, 2)) } else { (452, EnhancedCode(4, 2, 2)) };
    Reply::new(code, enhanced, format!("<{address}>: {}", MAILBOX_FULL.text))
}

pub(crate) fn queued(id: QueueId) -> Reply {
    Reply::new(250, EnhancedCode(2, 0, 0), format!("Ok: queued as {id}"))
}

/// A body could not be written to its file.
pub(crate) fn body_unwritable(error: &std::io::Error) -> Reply {
    commit_failed(&CommitError::from(error))
}

/// After these a client may try again, and the message may arrive twice (RFC 1047).
pub(crate) fn commit_failed(error: &CommitError) -> Reply {
    match error {
        CommitError::Full => DISK_SHORT,
        CommitError::Failed(_) | CommitError::StepFailed(_) | CommitError::StepAway => BODY_UNWRITABLE,
        CommitError::StepBacklog => SPOOL_BUSY,
        CommitError::TooLarge => Reply::constant(552, EnhancedCode(5, 3, 4), "Envelope is too large"),
        CommitError::Closed => STOPPING,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A spool that waits for a second copy, or did not get it, may take the message later.
    #[test]
    fn a_client_tries_again_when_the_commit_step_is_behind_or_fails() {
        for error in [CommitError::StepBacklog, CommitError::StepAway, CommitError::StepFailed("no answer".into())] {
            assert_eq!(commit_failed(&error).code, 451, "{error}");
        }
        assert_eq!(commit_failed(&CommitError::StepBacklog).enhanced, Some(EnhancedCode(4, 3, 1)));
    }
}
