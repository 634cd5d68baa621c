//! The entries found for one key so far, and the answer made from them.

use std::collections::HashSet;

use super::LdapConfig;
use super::message::SearchEntry;
use super::result::ResultTemplate;
use super::schema::Schema;
use lookup::LookupAnswer;

/// Up to this number of values, duplicates are found by comparing all.
const LINEAR_SCAN_MAX: usize = 16;

/// The results for one key.
#[derive(Debug, Default)]
pub(super) struct KeyResult {
    /// Entries found by the search itself.
    entries: usize,
    values: Vec<String>,
    /// The values again, if they are many.
    seen: HashSet<String>,
    /// DNs of the entries found by the search itself.
    pub(super) dns: Vec<String>,
    /// DNs of members not yet read.
    pub(super) members: Vec<String>,
    /// Why the key cannot be answered.
    error: Option<String>,
}

impl KeyResult {
    /// A key that cannot be answered, with the reason.
    pub(super) fn failed(why: impl ToString) -> KeyResult {
        KeyResult { error: Some(why.to_string()), ..KeyResult::default() }
    }

    /// Marks the key as failed. The first reason is kept.
    pub(super) fn set_error(&mut self, why: impl ToString) {
        self.error.get_or_insert_with(|| why.to_string());
    }

    /// Whether the key has failed, so that more entries do not matter.
    pub(super) fn has_error(&self) -> bool {
        self.error.is_some()
    }

    /// Adds an entry that the search itself has found.
    pub(super) fn add_found(&mut self, entry: &SearchEntry, config: &LdapConfig, schema: &Schema) {
        self.entries += 1;
        if let Some(most) = config.entries_max.filter(|most| self.entries > *most) {
            self.set_error(format!("more than {most} entries"));
        }
        self.add(entry, config, schema);
    }

    /// Adds an entry.
    pub(super) fn add(&mut self, entry: &SearchEntry, config: &LdapConfig, schema: &Schema) {
        if self.has_error() {
            return;
        }
        let Some(members) = config.members.as_ref().filter(|_| config.asks_values()) else {
            self.add_results(&config.results, entry, config, schema);
            return;
        };
        self.dns.push(entry.dn().to_owned());
        if self.dns.len() > config.group_entries_max() {
            self.set_error(format!("more than {} groups", config.group_entries_max()));
        }
        if self.add_results(&members.terminal_results, entry, config, schema) {
            return;
        }
        self.add_results(&config.results, entry, config, schema);
        if !self.add_members(&members.attributes, entry, schema) {
            self.add_results(&members.leaf_results, entry, config, schema);
        }
    }

    /// Adds these results of an entry. Returns whether it has any.
    fn add_results(
        &mut self,
        results: &[ResultTemplate],
        entry: &SearchEntry,
        config: &LdapConfig,
        schema: &Schema,
    ) -> bool {
        let mut has_values = false;
        for template in results {
            let added = template.values(entry, schema, &mut |value| {
                has_values = true;
                self.add_value(value, config.values_max)
            });
            if let Err(unusable) = added {
                self.set_error(unusable);
            }
        }
        has_values
    }

    /// Adds the members of an entry. Returns whether it has any.
    fn add_members(&mut self, attributes: &[Box<str>], entry: &SearchEntry, schema: &Schema) -> bool {
        let mut has_members = false;
        for attribute in attributes {
            match super::result::text_values(entry, attribute, schema) {
                Ok(dns) => {
                    has_members |= !dns.is_empty();
                    self.members.extend(dns.into_iter().map(str::to_owned));
                }
                Err(unusable) => self.set_error(unusable),
            }
        }
        has_members
    }

    /// The answer. An entry without values counts as not found, unless only existence matters.
    pub(super) fn into_answer(self, config: &LdapConfig, server: &str) -> LookupAnswer {
        match self.error {
            Some(fault) => LookupAnswer::Unavailable(format!("{server}: {fault}")),
            None if self.entries > 0 && (!config.asks_values() || !self.values.is_empty()) => {
                LookupAnswer::Found(self.values)
            }
            None => LookupAnswer::NotFound,
        }
    }

    /// Adds a value. Returns false when no more are wanted.
    fn add_value(&mut self, value: String, values_max: usize) -> bool {
        let is_double = match self.values.len() {
            0..LINEAR_SCAN_MAX => self.values.contains(&value),
            LINEAR_SCAN_MAX => {
                self.seen = self.values.iter().cloned().collect();
                self.seen.contains(&value)
            }
            _ => self.seen.contains(&value),
        };
        if is_double {
            return true;
        }
        if self.values.len() == values_max {
            self.set_error(format!("more than {values_max} values"));
            return false;
        }
        if self.values.len() >= LINEAR_SCAN_MAX {
            self.seen.insert(value.clone());
        }
        self.values.push(value);
        true
    }
}
