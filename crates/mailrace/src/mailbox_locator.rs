//! Finds the mailboxes of users who have logged in: by the domains, tables and transports that mail
//! for them takes.

use std::collections::HashMap;

use std::sync::Arc;

use dispatch::LocalTransport;
use futures_util::future::BoxFuture;
use lookup::directory::{MailboxLocation, RecipientDirectory};
use mail::Address;
use mailbox::MailboxPathResolver;
use retrieval::{MailboxHome, MailboxLocator};

/// Finds mailboxes by user name: an address, or its local part in the default domain.
pub struct DirectoryMailboxLocator {
    /// The domain of names without one.
    origin: Box<str>,
    /// The local domains, and the hosts of their mailboxes.
    directory: Arc<RecipientDirectory>,
    /// The folders of mailboxes, by transport.
    folders: HashMap<Box<str>, MailboxPathResolver>,
}

impl DirectoryMailboxLocator {
    /// Finds mailboxes where these transports deliver.
    pub fn new(origin: Box<str>, directory: Arc<RecipientDirectory>, transports: &[LocalTransport]) -> Self {
        let folder = |transport: &LocalTransport| (transport.name.clone(), transport.mailbox_paths.clone());
        DirectoryMailboxLocator { origin, directory, folders: transports.iter().map(folder).collect() }
    }

    async fn find(&self, user: &str) -> MailboxHome {
        let address = match user.contains('@') {
            true => user.parse().ok(),
            false => Address::new(user, &self.origin).ok(),
        };
        let Some(address) = address else { return MailboxHome::Unknown };
        match self.directory.mailbox_locations(std::slice::from_ref(&address)).await.pop() {
            Some(MailboxLocation::ThisHost) => self.folder(&address).await,
            Some(MailboxLocation::OtherHost(host)) => MailboxHome::OtherHost(host),
            Some(MailboxLocation::Unavailable(why)) => MailboxHome::Unavailable(why),
            Some(MailboxLocation::NextHop) | None => MailboxHome::Unknown,
        }
    }

    /// The folder of a mailbox on this host.
    async fn folder(&self, address: &Address) -> MailboxHome {
        let domain = match self.directory.domain(address.domain()).await {
            Ok(domain) => domain,
            Err(why) => return MailboxHome::Unavailable(why),
        };
        let Some(paths) = domain.and_then(|domain| self.folders.get(&domain.transport)) else {
            return MailboxHome::Unknown;
        };
        match paths.resolve(&[address]).await.pop() {
            Some(Ok(folder)) => MailboxHome::Here(folder),
            Some(Err(why)) => MailboxHome::Unavailable(why),
            None => MailboxHome::Unknown,
        }
    }
}

impl MailboxLocator for DirectoryMailboxLocator {
    fn locate<'a>(&'a self, user: &'a str) -> BoxFuture<'a, MailboxHome> {
        Box::pin(self.find(user))
    }
}

#[cfg(test)]
mod tests {
    use lookup::directory::{AliasLimits, LocalDomain};

    use std::path::PathBuf;

    use super::*;

    fn domain(name: &str, transport: &str) -> LocalDomain {
        LocalDomain {
            name: name.into(),
            mailboxes: None,
            aliases: None,
            catch_all: None,
            wildcard_mailbox: false,
            hosts: None,
            delimiter: None,
            transport: transport.into(),
            is_final: transport == "maildir",
        }
    }

    #[tokio::test]
    async fn a_user_is_an_address_or_a_name_in_the_default_domain() {
        let domains = vec![domain("here.test", "maildir"), domain("relayed.test", "smtp")];
        let directory = Arc::new(RecipientDirectory::new(domains, AliasLimits::default()));
        let pattern = Arc::new(|address: &Address| PathBuf::from("/mail").join(&*address.unquoted_local_part()));
        let transport = LocalTransport {
            name: "maildir".into(),
            mailbox_paths: MailboxPathResolver { pattern, table: None },
            line_ends: mailbox::LineEnds::Crlf,
            quota: None,
        };
        let locator = DirectoryMailboxLocator::new("here.test".into(), directory, &[transport]);
        let bob = MailboxHome::Here("/mail/bob".into());
        assert_eq!(locator.locate("bob@here.test").await, bob);
        assert_eq!(locator.locate("bob").await, bob);
        for user in ["bob@relayed.test", "bob@elsewhere.test", "bob@", ""] {
            assert_eq!(locator.locate(user).await, MailboxHome::Unknown, "{user:?}");
        }
    }
}
