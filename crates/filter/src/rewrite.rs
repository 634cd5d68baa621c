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
//! A key is the whole address, the address without its tag, or `@domain`; a table of patterns is only
//! asked for the whole address. A value is an address, a name at the domain of the site, or `@domain`, which
//! keeps the local part. The tag is kept if the key had none.

mod check;
mod header_addresses;
mod masquerade;

use std::sync::Arc;

use lookup::directory::RecipientDirectory;
use lookup::{LookupAnswer, Table};
use mail::{Address, Networks};

pub use check::HeaderRewriting;
pub use masquerade::{MasqueradeDomain, MasqueradeSettings};

use crate::address_keys::AddressKeys;

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
            let mut keys = Vec::with_capacity(concerned.len());
            for number in &concerned {
                keys.push(AddressKeys::of(&addresses[*number].0, &**table, &self.directory).await);
            }
            let texts: Vec<&str> = keys.iter().flat_map(|keys| keys.texts.iter().map(String::as_str)).collect();
            let answers = if texts.is_empty() { Vec::new() } else { table.lookup(&texts).await };
            let mut answers = answers.into_iter();
            for (number, keys) in concerned.into_iter().zip(keys) {
                let own: Vec<LookupAnswer> = answers.by_ref().take(keys.texts.len()).collect();
                if let Some(found) = self.canonical(&addresses[number].0, &keys, own)? {
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

    /// The address that the first key found gives. What is no address changes nothing.
    fn canonical(
        &self,
        address: &Address,
        keys: &AddressKeys,
        answers: Vec<LookupAnswer>,
    ) -> Result<Option<Address>, String> {
        for (number, answer) in answers.into_iter().enumerate() {
            match answer {
                LookupAnswer::NotFound => {}
                LookupAnswer::Unavailable(why) | LookupAnswer::Unconfirmed(why) => return Err(why),
                LookupAnswer::Found(values) => {
                    let tag = if keys.untagged == Some(number) { &*keys.tag } else { "" };
                    return Ok(values.first().and_then(|value| self.value_address(address, value.trim(), tag)));
                }
            }
        }
        Ok(None)
    }

    fn value_address(&self, address: &Address, value: &str, tag: &str) -> Option<Address> {
        if let Some(domain) = value.strip_prefix('@') {
            return Address::new(&address.unquoted_local_part(), domain).ok();
        }
        let found = Address::parse_lenient(value, Some(&self.origin)).ok()?;
        match tag {
            "" => Some(found),
            tag => Address::new(&(found.unquoted_local_part() + tag), found.domain()).ok(),
        }
    }
}
