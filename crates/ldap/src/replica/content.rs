//! The copied part of an entry: its keys and values.

use std::fmt::Write;

use super::ReplicaError;
use super::answer_index::is_indexable;
use crate::connection::{LdapControl, SearchEntry, SearchRequest};
use crate::schema::{EqualityRule, Schema};
use crate::{FilterTemplate, LdapConfig, ResultTemplate, SearchScope};

/// The definition of what to copy.
#[derive(Clone, Debug)]
pub(super) struct ReplicaContent {
    base: Box<str>,
    scope: SearchScope,
    filter: FilterTemplate,
    results: Vec<ResultTemplate>,
    values_max: usize,
    key_attributes: Vec<Box<str>>,
    /// The encoded filter for all entries.
    all: Vec<u8>,
}

impl ReplicaContent {
    /// The content for a table. Fails if a copy could not answer its lookups.
    pub(super) fn new(config: &LdapConfig) -> Result<Self, ReplicaError> {
        if config.members.is_some() {
            return Err(ReplicaError::Members);
        }
        if config.entries_max.is_some() {
            return Err(ReplicaError::EntriesMax);
        }
        if config.referrals {
            return Err(ReplicaError::Referrals);
        }
        let filter = config.filter.clone();
        let attributes = filter.key_attributes().ok_or_else(|| ReplicaError::Filter(filter.to_string().into()))?;
        let key_attributes = attributes.into_iter().map(Into::into).collect();
        let all = filter.for_all();
        let (results, values_max) = (config.results.clone(), config.values_max);
        Ok(ReplicaContent {
            base: config.base.clone(),
            scope: config.scope,
            filter,
            results,
            values_max,
            key_attributes,
            all,
        })
    }

    /// Identifies the content. Servers are not part of it, because all have the same content.
    pub(super) fn identity(&self) -> String {
        let mut identity = format!("{}\n{}\n{}\n{}", self.base, self.scope, self.filter, self.values_max);
        for result in &self.results {
            // Results come last, and no line break in one can be mistaken for this separator.
            let _ = write!(identity, "\n{result}");
        }
        identity
    }

    /// The attributes to read.
    pub(super) fn attributes(&self) -> Vec<&str> {
        let results = self.results.iter().flat_map(ResultTemplate::attributes);
        let mut attributes: Vec<&str> = Vec::new();
        for name in self.key_attributes.iter().map(|name| &**name).chain(results) {
            if !attributes.iter().any(|other| other.eq_ignore_ascii_case(name)) {
                attributes.push(name);
            }
        }
        attributes
    }

    /// The search for all entries.
    pub(super) fn search<'a>(&'a self, attributes: &'a [&'a str], controls: &'a [LdapControl]) -> SearchRequest<'a> {
        SearchRequest { base: &self.base, scope: self.scope, filter: &self.all, attributes, controls }
    }

    /// The equality rules of the key attributes. The error is the first attribute without a known
    /// rule.
    pub(super) fn rules(&self, schema: &Schema) -> Result<Vec<EqualityRule>, &str> {
        self.key_attributes.iter().map(|name| schema.rule(name).ok_or(&**name)).collect()
    }

    /// The keys and values of an entry. No keys if the entry has no values although results are
    /// configured; values of None if only the LDAP server can give them, because they are not text
    /// or too many.
    pub(super) fn read(
        &self,
        entry: &SearchEntry,
        schema: &Schema,
        rules: &[EqualityRule],
    ) -> (Vec<String>, Option<Vec<String>>) {
        let values = self.values(entry, schema);
        if values.as_ref().is_some_and(|values| values.is_empty() && !self.results.is_empty()) {
            return (Vec::new(), values);
        }
        let mut keys = Vec::new();
        for (attribute, rule) in self.key_attributes.iter().zip(rules) {
            for (_, found) in entry.attributes().filter(|(name, _)| schema.is_same_attribute(attribute, name)) {
                for text in found.filter_map(|value| str::from_utf8(value).ok()) {
                    let key = rule.normalize(text);
                    if is_indexable(&key) && !keys.iter().any(|other| *other == key) {
                        keys.push(key.into_owned());
                    }
                }
            }
        }
        (keys, values)
    }

    fn values(&self, entry: &SearchEntry, schema: &Schema) -> Option<Vec<String>> {
        let mut values: Vec<String> = Vec::new();
        for result in &self.results {
            let made = result.values(entry, schema, &mut |value| {
                values.push(value);
                values.len() <= self.values_max
            });
            if made.is_err() || values.len() > self.values_max {
                return None;
            }
        }
        Some(values)
    }
}
