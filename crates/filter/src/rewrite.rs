//! Address rewriting: canonical addresses from tables, and masquerading, which removes the names of hosts
//! from domains. As in Postfix's canonical(5) and masquerade_domains.
//!
//! | address | rewritten |
//! |---|---|
//! | recipients of the envelope | when they are resolved, before aliases, for all mail |
//! | the sender of the envelope | at the end of the message, for all mail |
//! | addresses in the header | at the end of the message, for mail of local programs and of the clients that the settings name |
//!
//! Each address goes through the tables for its class once, in order, then through masquerading: a
//! table whose entries lead in a circle does no harm. An address in the header without a domain gets the
//! domain of the site. If a table is unavailable, the message is deferred.
//!
//! `address_table.rs` has the keys and values of a table. `generic.rs` rewrites addresses on the way out.

mod address_table;
mod check;
mod generic;
mod header_addresses;
mod masquerade;

use std::sync::Arc;

use lookup::Table;
use lookup::directory::RecipientDirectory;
use mail::{Address, Networks};

pub use check::HeaderRewriting;
pub use generic::{GenericMessage, GenericTable};
pub use masquerade::{MasqueradeDomain, MasqueradeSettings};

use address_table::{AddressTable, TableKind};

/// What an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressClass {
    /// The sender of the envelope.
    EnvelopeSender,
    /// A recipient of the envelope.
    EnvelopeRecipient,
    /// An address in From, Sender or Reply-To, or their Resent- forms.
    HeaderSender,
    /// An address in To, Cc or Bcc, or their Resent- forms.
    HeaderRecipient,
}

/// A table of canonical addresses in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CanonicalTable {
    /// The name of the table.
    pub table: Box<str>,
    /// The addresses that it rewrites.
    pub classes: Vec<AddressClass>,
}

/// The settings of address rewriting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RewriteSettings {
    /// The tables, in order.
    pub canonical: Vec<CanonicalTable>,
    /// The domains that replace their subdomains.
    pub masquerade: MasqueradeSettings,
    /// Clients in whose messages the header is rewritten, beside local programs.
    pub header_clients: Networks,
    /// Also in messages of users who have logged in.
    pub header_users: bool,
}

/// Rewrites addresses.
pub struct AddressRewriter {
    tables: Vec<(Arc<dyn Table>, Vec<AddressClass>)>,
    masquerade: MasqueradeSettings,
    /// Recognises address tags.
    directory: Arc<RecipientDirectory>,
    /// The domain of addresses without one.
    origin: Box<str>,
}

impl AddressRewriter {
    /// Finds the tables by name.
    pub fn new<'t>(
        settings: &RewriteSettings,
        find_table: impl Fn(&str) -> Option<&'t Arc<dyn Table>>,
        directory: Arc<RecipientDirectory>,
        origin: Box<str>,
    ) -> AddressRewriter {
        let table = |named: &CanonicalTable| Some((find_table(&named.table)?.clone(), named.classes.clone()));
        let tables = settings.canonical.iter().filter_map(table).collect();
        AddressRewriter { tables, masquerade: settings.masquerade.clone(), directory, origin }
    }

    /// The address as it is rewritten; the same if nothing applies.
    ///
    /// # Errors
    ///
    /// The reason why a table is unavailable.
    pub async fn rewrite(&self, address: &Address, class: AddressClass) -> Result<Address, String> {
        let mut addresses = vec![(address.clone(), class)];
        self.rewrite_all(&mut addresses).await?;
        Ok(addresses.pop().map_or_else(|| address.clone(), |(rewritten, _)| rewritten))
    }

    /// Rewrites addresses of any class; each table is asked once.
    pub(crate) async fn rewrite_all(&self, addresses: &mut [(Address, AddressClass)]) -> Result<(), String> {
        for (table, classes) in &self.tables {
            let concerned: Vec<usize> =
                (0..addresses.len()).filter(|number| classes.contains(&addresses[*number].1)).collect();
            let asked: Vec<&Address> = concerned.iter().map(|number| &addresses[*number].0).collect();
            let table = AddressTable {
                table: &**table,
                kind: TableKind::Canonical,
                directory: &self.directory,
                origin: &self.origin,
            };
            for (number, found) in concerned.into_iter().zip(table.look_up(&asked).await?) {
                if let Some(found) = found {
                    addresses[number].0 = found;
                }
            }
        }
        for (address, class) in addresses {
            if let Some(masked) = self.masquerade.apply(address, *class) {
                *address = masked;
            }
        }
        Ok(())
    }
}
