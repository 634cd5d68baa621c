//! Copies in the mailboxes of a POP3 server. The place of a copy is the recipient with the user's
//! name as address, else the mailbox. A mailbox that cannot be read is a fault.

use std::path::Path;
use std::sync::Arc;

use super::{Comparer, FoundCopy};
use crate::pop3::{Accounts, walk};
use crate::{BenchError, TargetServer};

/// The server and its mailboxes.
#[derive(Clone, Debug)]
pub(crate) struct Pop3Mailboxes {
    pub(crate) target: TargetServer,
    pub(crate) accounts: Arc<Accounts>,
}

impl Pop3Mailboxes {
    /// Finds every copy in every mailbox.
    pub(super) fn scan(&self, comparer: &mut Comparer<'_>) -> Result<(), BenchError> {
        walk(&self.target, &self.accounts, |user, seen| match seen {
            Some(seen) => {
                let place = comparer.place_of_mailbox(Path::new(user), &[user]);
                comparer.add(FoundCopy::new(seen, place), user);
            }
            None => comparer.add_foreign(),
        })
    }
}
