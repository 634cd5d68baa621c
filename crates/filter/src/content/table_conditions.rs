//! Conditions that ask a table: whether it has the value of a field, or an address in it. All fields of
//! a message are looked up at the same time.

use std::sync::Arc;

use futures_util::future::join_all;
use lookup::{LookupAnswer, Table};

use super::CompiledContentRule;
use super::field_text::{addresses, name_and_value};
use super::findings::TableLine;

/// Octets of a value that is looked up as a whole.
const VALUE_OCTETS_MAX: usize = 1000;
/// Addresses of a field that are looked up.
const ADDRESSES_MAX: usize = 100;

/// Keeps the lines that the tables of their rules have.
///
/// # Errors
///
/// The reason why a table cannot say it.
pub(super) async fn found_in_tables(
    rules: &[CompiledContentRule],
    lines: Vec<TableLine>,
) -> Result<Vec<TableLine>, String> {
    let asked = lines.into_iter().filter_map(|line| Some((rules[line.rule].table.as_ref()?, line)));
    let answered = join_all(asked.map(|(table, line)| async move { (has_line(table, &line).await, line) })).await;
    let mut found = Vec::new();
    for (is_found, line) in answered {
        if is_found? {
            found.push(line);
        }
    }
    Ok(found)
}

async fn has_line(table: &Arc<dyn Table>, line: &TableLine) -> Result<bool, String> {
    let keys = keys(&line.text, table.whole_keys_only());
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let answers = table.lookup(&keys).await;
    match answers.into_iter().find(|answer| *answer != LookupAnswer::NotFound) {
        None | Some(LookupAnswer::NotFound) => Ok(false),
        Some(LookupAnswer::Found(_)) => Ok(true),
        Some(LookupAnswer::Unavailable(why) | LookupAnswer::Unconfirmed(why)) => Err(why),
    }
}

/// The value, then each address in it and its domain; pattern tables get no domains.
fn keys(text: &str, whole_only: bool) -> Vec<String> {
    let value = name_and_value(text).map_or("", |(_, value)| value);
    let mut keys: Vec<String> = (value.len() <= VALUE_OCTETS_MAX).then(|| value.to_owned()).into_iter().collect();
    for address in addresses(value).into_iter().take(ADDRESSES_MAX) {
        let domain = address.rsplit_once('@').map(|(_, domain)| domain.to_owned()).filter(|_| !whole_only);
        keys.push(address);
        keys.extend(domain);
    }
    keys
}
