//! Conditions that ask a table: whether it has the value of a field or an address in it, or the name of an
//! attachment or its end. All fields of a message are looked up at the same time, and all attachments.

use std::sync::Arc;

use futures_util::future::join_all;
use lookup::{LookupAnswer, Table};

use super::CompiledContentRule;
use super::field_text::{addresses, name_and_value};
use super::findings::{TableAttachment, TableLine};

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
    has_one_of(table, &keys).await
}

async fn has_one_of(table: &Arc<dyn Table>, keys: &[String]) -> Result<bool, String> {
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let answers = table.lookup(&keys).await;
    match answers.into_iter().find(|answer| *answer != LookupAnswer::NotFound) {
        None | Some(LookupAnswer::NotFound) => Ok(false),
        Some(LookupAnswer::Found(_)) => Ok(true),
        Some(LookupAnswer::Unavailable(why) | LookupAnswer::Unconfirmed(why)) => Err(why),
    }
}

/// The rules whose tables have an attachment, with a name of it.
///
/// # Errors
///
/// The reason why a table cannot say it.
pub(super) async fn attachments_in_tables(
    rules: &[CompiledContentRule],
    attachments: Vec<TableAttachment>,
) -> Result<Vec<(usize, String)>, String> {
    let asked = attachments.into_iter().filter_map(|it| Some((rules[it.rule].attachment_table.as_ref()?, it)));
    let answered = join_all(asked.map(|(table, TableAttachment { rule, names })| async move {
        let keys = attachment_keys(&names, table.whole_keys_only());
        (has_one_of(table, &keys).await, rule, names.into_iter().next().unwrap_or_default())
    }));
    let mut found = Vec::new();
    for (is_found, rule, name) in answered.await {
        if is_found? {
            found.push((rule, name));
        }
    }
    Ok(found)
}

/// Each name in lower case, and its end from the last dot on; pattern tables only get whole names.
fn attachment_keys(names: &[String], whole_only: bool) -> Vec<String> {
    let mut keys = Vec::new();
    for name in names.iter().map(|name| name.to_lowercase()).filter(|name| name.len() <= VALUE_OCTETS_MAX) {
        let end = name.rfind('.').filter(|_| !whole_only).map(|dot| name[dot..].to_owned());
        keys.push(name);
        keys.extend(end);
    }
    keys
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
