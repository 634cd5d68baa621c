//! The keys of an address in tables that rewrite or copy mail: the whole address, the address without its
//! tag, and `@domain`. Where names count too, those of own addresses stand before `@domain`. A table of
//! patterns is only asked for the whole address.

use lookup::Table;
use lookup::directory::RecipientDirectory;
use mail::Address;

/// The keys of an address, most specific first.
pub(crate) struct AddressKeys {
    pub(crate) texts: Vec<String>,
    /// Which key is without the tag, if the address has one.
    pub(crate) untagged: Option<usize>,
    /// With its delimiter.
    pub(crate) tag: String,
}

impl AddressKeys {
    pub(crate) async fn of(address: &Address, table: &dyn Table, directory: &RecipientDirectory) -> AddressKeys {
        let mut keys = AddressKeys { texts: vec![address.to_string()], untagged: None, tag: String::new() };
        if table.whole_keys_only() {
            return keys;
        }
        if let Some(untagged) = directory.strip_tag(address).await {
            let local = address.unquoted_local_part();
            keys.tag = local.get(untagged.unquoted_local_part().len()..).unwrap_or_default().to_owned();
            keys.untagged = Some(keys.texts.len());
            keys.texts.push(untagged.to_string());
        }
        keys.texts.push(format!("@{}", address.domain()));
        keys
    }

    /// The same with the name alone, with and without its tag, if the address is at `origin` or in a domain
    /// whose mail is stored here.
    ///
    /// # Errors
    ///
    /// The reason why a table of domains is unavailable.
    pub(crate) async fn with_names(
        address: &Address,
        table: &dyn Table,
        directory: &RecipientDirectory,
        origin: &str,
    ) -> Result<AddressKeys, String> {
        let mut keys = AddressKeys::of(address, table, directory).await;
        let Some(domain_key) = keys.texts.len().checked_sub(1).filter(|_| !table.whole_keys_only()) else {
            return Ok(keys);
        };
        let is_own = address.domain() == origin
            || directory.domain(address.domain()).await?.is_some_and(|domain| domain.is_final);
        if is_own {
            let name = address.unquoted_local_part();
            let untagged = name.strip_suffix(&keys.tag).filter(|_| keys.untagged.is_some()).map(str::to_owned);
            keys.texts.splice(domain_key..domain_key, std::iter::once(name.clone()).chain(untagged));
        }
        Ok(keys)
    }
}
