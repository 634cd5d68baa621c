//! Copies in the mailboxes of a POP3 server. The place of a copy is the recipient with the user's
//! name as address, else the mailbox. A mailbox that cannot be read is a fault.

use std::path::Path;
use std::sync::Arc;

use super::{Found, Holding};
use crate::pop3::{Accounts, walk};
use crate::{Fault, Target};

/// The server and its mailboxes.
#[derive(Clone, Debug)]
pub(crate) struct PostOffice {
    pub(crate) target: Target,
    pub(crate) accounts: Arc<Accounts>,
}

impl PostOffice {
    /// Finds every copy in every mailbox.
    pub(super) fn look(&self, holding: &mut Holding<'_>) -> Result<(), Fault> {
        walk(&self.target, &self.accounts, |user, seen| match seen {
            Some(seen) => {
                let place = holding.mailbox(Path::new(user), &[user]);
                holding.find(Found::new(seen, place), user);
            }
            None => holding.find_foreign(),
        })
    }
}
