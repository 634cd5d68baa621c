//! The keys of an address in tables that rewrite or copy mail: the whole address, the address without its
//! tag, and `@domain`. A table of patterns is only asked for the whole address.

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
}
