//! Copies in mailboxes that a POP3 server gives out. The name of the user is the place, and a recipient's where it is
//! their address; what cannot be read is a fault.

use std::path::Path;
use std::sync::Arc;

use super::{Found, Holding};
use crate::pop3::{Accounts, walk};
use crate::{Fault, Target};

/// Where the mailboxes are, and whose.
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
