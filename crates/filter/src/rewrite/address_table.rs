//! Asks a table what addresses become.
//!
//! A key is the whole address, the address without its tag, or `@domain`; in generic tables also the name alone of
//! an address of this site. A table of patterns is only asked for the whole address. A value is an address, a name
//! at the domain of the site, or `@domain`, which keeps the local part.
//!
//! | table | a tag that the key did not have | a value that is no address |
//! |---|---|---|
//! | canonical | is kept | changes nothing |
//! | generic | is removed, as by Postfix's default (`propagate_unmatched_extensions`) | is an error: an inner address would leave |

use lookup::directory::RecipientDirectory;
use lookup::{LookupAnswer, Table};
use mail::Address;

use crate::address_keys::AddressKeys;

/// What a table is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TableKind {
    /// canonical(5).
    Canonical,
    /// generic(5).
    Generic,
}

/// A table of addresses, and what is needed to ask it.
pub(super) struct AddressTable<'a> {
    pub(super) table: &'a dyn Table,
    pub(super) kind: TableKind,
    /// Recognises address tags.
    pub(super) directory: &'a RecipientDirectory,
    /// The domain of values without one.
    pub(super) origin: &'a str,
}

impl AddressTable<'_> {
    /// What each address becomes; None: it stays as it is. All are looked up at once.
    ///
    /// # Errors
    ///
    /// The reason why a table is unavailable, or which value is not valid.
    pub(super) async fn look_up(&self, addresses: &[&Address]) -> Result<Vec<Option<Address>>, String> {
        let mut keys = Vec::with_capacity(addresses.len());
        for address in addresses {
            keys.push(match self.kind {
                TableKind::Canonical => AddressKeys::of(address, self.table, self.directory).await,
                TableKind::Generic => AddressKeys::with_names(address, self.table, self.directory, self.origin).await?,
            });
        }
        let texts: Vec<&str> = keys.iter().flat_map(|keys| keys.texts.iter().map(String::as_str)).collect();
        let answers = if texts.is_empty() { Vec::new() } else { self.table.lookup(&texts).await };
        let mut answers = answers.into_iter();
        let of_address = |(address, keys): (&&Address, &AddressKeys)| {
            let own: Vec<LookupAnswer> = answers.by_ref().take(keys.texts.len()).collect();
            self.first_found(address, keys, own)
        };
        addresses.iter().zip(&keys).map(of_address).collect()
    }

    /// The address that the first key found gives.
    fn first_found(
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
                    let keeps_tag = self.kind == TableKind::Canonical && keys.untagged == Some(number);
                    let tag = if keeps_tag { &*keys.tag } else { "" };
                    let found = values.first().and_then(|value| self.value_address(address, value.trim(), tag));
                    return match (found, self.kind) {
                        (None, TableKind::Generic) => Err(self.invalid_value(&keys.texts[number], &values)),
                        (found, _) => Ok(found),
                    };
                }
            }
        }
        Ok(None)
    }

    fn value_address(&self, address: &Address, value: &str, tag: &str) -> Option<Address> {
        if let Some(domain) = value.strip_prefix('@') {
            return Address::new(&address.unquoted_local_part(), domain).ok();
        }
        let found = Address::parse_lenient(value, Some(self.origin)).ok()?;
        match tag {
            "" => Some(found),
            tag => Address::new(&(found.unquoted_local_part() + tag), found.domain()).ok(),
        }
    }

    fn invalid_value(&self, key: &str, values: &[String]) -> String {
        let value = values.first().map_or("", String::as_str);
        format!("table '{}': the value of {key} is not an address: {value:?}", self.table.name())
    }
}
