//! Conditions that ask a table: whether it has the value of a field or an address in it, a line of the body,
//! or the name of an attachment or its end. All fields, lines and attachments of a message that one table is
//! asked about are looked up together, `KEYS_AT_ONCE` in one request to the table.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::future::join_all;
use lookup::{LookupAnswer, Table};

use super::CompiledContentRule;
use super::attachment::ATTACHMENT_NAMES_MAX;
use super::field_text::{addresses, name_and_value};
use super::findings::{TableAttachment, TableLine, VALUE_OCTETS_MAX};

/// Addresses of a field that are looked up.
const ADDRESSES_MAX: usize = 100;
/// Keys of one message that a table is asked for at the same time. More would fill its queue, which all
/// messages share.
const KEYS_AT_ONCE: usize = 1000;
/// So few attachments have no more keys: a name and its end.
const ATTACHMENTS_AT_ONCE: usize = KEYS_AT_ONCE / (2 * ATTACHMENT_NAMES_MAX);

/// What one table is asked for; each key once.
struct TableBatch<'t> {
    table: &'t Arc<dyn Table>,
    keys: Vec<String>,
    numbers: HashMap<String, usize>,
    /// Each line with the numbers of its keys.
    lines: Vec<(TableLine, Vec<usize>)>,
}

impl<'t> TableBatch<'t> {
    fn new(table: &'t Arc<dyn Table>) -> TableBatch<'t> {
        TableBatch { table, keys: Vec::new(), numbers: HashMap::new(), lines: Vec::new() }
    }

    fn add(&mut self, line: TableLine) {
        let keys = if line.is_body { vec![line.text.clone()] } else { keys(&line.text, self.table.whole_keys_only()) };
        let mut number = |key: String| {
            *self.numbers.entry(key).or_insert_with_key(|key| {
                self.keys.push(key.clone());
                self.keys.len() - 1
            })
        };
        let numbers = keys.into_iter().map(&mut number).collect();
        self.lines.push((line, numbers));
    }

    /// The lines of which the table has a key.
    async fn look_up(self) -> Result<Vec<TableLine>, String> {
        let mut answers = Vec::with_capacity(self.keys.len());
        for keys in self.keys.chunks(KEYS_AT_ONCE) {
            let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
            answers.extend(self.table.lookup(&keys).await);
            // Other sessions of the thread go on between two requests.
            tokio::task::yield_now().await;
        }
        let mut found = Vec::new();
        for (line, numbers) in self.lines {
            if is_found(numbers.iter().filter_map(|number| answers.get(*number)))? {
                found.push(line);
            }
        }
        Ok(found)
    }
}

/// Keeps the lines that the tables of their rules have.
///
/// # Errors
///
/// The reason why a table cannot say it.
pub(super) async fn found_in_tables(
    rules: &[CompiledContentRule],
    lines: Vec<TableLine>,
) -> Result<Vec<TableLine>, String> {
    let mut batches: Vec<TableBatch<'_>> = Vec::new();
    for line in lines {
        let Some(table) = rules[line.rule].table.as_ref() else { continue };
        match batches.iter_mut().find(|batch| Arc::ptr_eq(batch.table, table)) {
            Some(batch) => batch.add(line),
            None => {
                let mut batch = TableBatch::new(table);
                batch.add(line);
                batches.push(batch);
            }
        }
    }
    let found: Result<Vec<Vec<TableLine>>, String> =
        join_all(batches.into_iter().map(TableBatch::look_up)).await.into_iter().collect();
    Ok(found?.into_iter().flatten().collect())
}

async fn has_one_of(table: &Arc<dyn Table>, keys: &[String]) -> Result<bool, String> {
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    is_found(table.lookup(&keys).await.iter())
}

/// Whether the first answer that is not NotFound is Found.
fn is_found<'a>(mut answers: impl Iterator<Item = &'a LookupAnswer>) -> Result<bool, String> {
    match answers.find(|answer| **answer != LookupAnswer::NotFound) {
        None | Some(LookupAnswer::NotFound) => Ok(false),
        Some(LookupAnswer::Found(_)) => Ok(true),
        Some(LookupAnswer::Unavailable(why) | LookupAnswer::Unconfirmed(why)) => Err(why.clone()),
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
    let mut asked = attachments.into_iter().filter_map(|it| Some((rules[it.rule].attachment_table.as_ref()?, it)));
    let mut found = Vec::new();
    loop {
        let some =
            asked.by_ref().take(ATTACHMENTS_AT_ONCE).map(|(table, TableAttachment { rule, names })| async move {
                let keys = attachment_keys(&names, table.whole_keys_only());
                (has_one_of(table, &keys).await, rule, names.into_iter().next().unwrap_or_default())
            });
        let answered = join_all(some).await;
        if answered.is_empty() {
            return Ok(found);
        }
        for (is_found, rule, name) in answered {
            if is_found? {
                found.push((rule, name));
            }
        }
    }
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
