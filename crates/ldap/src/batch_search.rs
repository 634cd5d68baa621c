//! A request: how keys share searches on one connection, and how entries are matched to keys.
//!
//! If filter and schema allow it, keys share a search by an OR of their equalities. The search also
//! returns the compared attributes, and the key that an entry belongs to is the one equal to their
//! values. This comparison is reliable for printable ASCII. If an entry has other values there, or
//! none equal to a key, the result is ambiguous and each key gets its own search.
//!
//! A server may match values that we may not read, so an entry matched to one key may belong to
//! another as well. Keys without entries are therefore searched once more without the others. If
//! that finds nothing they do not exist; otherwise each gets its own search.
//!
//! Keys beyond printable ASCII are always searched alone. Servers match more than the exact
//! spelling, such as a full-width `bob` for the plain one (RFC 4518 section 2.3), so such a key
//! exists only if a visible value equals it.

use std::borrow::Cow;
use std::cell::RefCell;

use futures_util::StreamExt;

use super::LdapConfig;
use super::connection::{SearchEntry, SearchRequest};
use super::key_result::KeyResult;
use super::result::is_partial_range;
use super::schema::{EqualityRule, Schema, is_printable_ascii};
use super::search::{SearchEnd, SearchError, Searcher};
use lookup::LookupAnswer;

/// Concurrent searches on a connection. OpenLDAP closes an unbound connection at 100.
pub(super) const PIPELINE_MAX: usize = 16;

/// A request on one connection.
pub(super) struct BatchSearch<'a> {
    pub(super) config: &'a LdapConfig,
    pub(super) searcher: Searcher<'a>,
    pub(super) schema: &'a Schema,
    /// The answers so far, in the order of the keys. They remain valid if the request fails.
    pub(super) answers: &'a RefCell<Vec<Option<LookupAnswer>>>,
}

/// The result of a search for several keys.
enum BatchResult {
    /// All keys are answered.
    Answered,
    /// Some entries were found, but none for these keys; the others are answered.
    Unmatched(Vec<usize>),
    /// The entries cannot be matched to keys for certain: search each key alone.
    Ambiguous,
    /// Too many keys for one search.
    TooMany,
    /// No key can be answered; the reason.
    Failed(String),
}

impl<'a> BatchSearch<'a> {
    /// Answers all keys that have no answer yet.
    pub(super) async fn answer(&self, keys: &[Box<str>]) -> Result<(), SearchError> {
        let mut results: Vec<KeyResult> = keys.iter().map(|_| KeyResult::default()).collect();
        let mut single: Vec<usize> = (0..keys.len()).filter(|&place| self.answers.borrow()[place].is_none()).collect();
        let mut parts: Vec<Vec<usize>> = Vec::new();
        let rules = self.rules();
        if rules.is_some() {
            let (together, alone) = single.into_iter().partition(|&place| can_share_search(&keys[place]));
            parts.push(together);
            single = alone;
        }
        while let (Some(part), Some(rules)) = (parts.pop(), &rules) {
            if part.len() < 2 {
                single.extend(part);
                continue;
            }
            match self.search_together(&part, keys, rules, &mut results).await? {
                BatchResult::Answered => self.finish_keys(&part, &mut results).await?,
                BatchResult::Unmatched(unclaimed) => {
                    let claimed: Vec<usize> = part.into_iter().filter(|place| !unclaimed.contains(place)).collect();
                    self.finish_keys(&claimed, &mut results).await?;
                    match self.finds_any(&unclaimed, keys).await? {
                        true => single.extend(unclaimed),
                        false => self.finish_keys(&unclaimed, &mut results).await?,
                    }
                }
                BatchResult::Failed(why) => {
                    part.iter().for_each(|&place| results[place] = KeyResult::failed(&why));
                    self.finish_keys(&part, &mut results).await?;
                }
                BatchResult::Ambiguous => {
                    part.iter().for_each(|&place| results[place] = KeyResult::default());
                    single.extend(part);
                }
                BatchResult::TooMany => {
                    part.iter().for_each(|&place| results[place] = KeyResult::default());
                    let (one, other) = part.split_at(part.len() / 2);
                    parts.extend([other.to_vec(), one.to_vec()]);
                }
            }
        }
        self.one_by_one(&single, keys, &mut results).await
    }

    /// Sets the answers of these keys after following group members.
    async fn finish_keys(&self, places: &[usize], results: &mut [KeyResult]) -> Result<(), SearchError> {
        let server = self.searcher.session.url().to_string();
        for &place in places {
            let mut result = std::mem::take(&mut results[place]);
            match self.follow_members(&mut result).await {
                Err(SearchError::Refused(failure)) => result.set_error(failure.what),
                followed => followed?,
            }
            self.answers.borrow_mut()[place] = Some(result.into_answer(self.config, &server));
        }
        Ok(())
    }

    /// The attributes of results and members.
    pub(super) fn result_attributes(&self) -> Vec<&'a str> {
        let mut names = Vec::new();
        add_names(&mut names, self.config.result_names());
        names
    }

    /// The attributes compared with keys and their equality rules; None if keys cannot share a
    /// search.
    fn rules(&self) -> Option<Vec<(&'a str, EqualityRule)>> {
        let attributes = self.config.filter.key_attributes()?;
        attributes.into_iter().map(|attribute| Some((attribute, self.schema.rule(attribute)?))).collect()
    }

    async fn search_together(
        &self,
        part: &[usize],
        keys: &[Box<str>],
        rules: &[(&'a str, EqualityRule)],
        results: &mut [KeyResult],
    ) -> Result<BatchResult, SearchError> {
        let asked: Vec<&str> = part.iter().map(|&place| &*keys[place]).collect();
        let filter = self.config.filter.for_any_of(&asked);
        let mut attributes = self.result_attributes();
        add_names(&mut attributes, rules.iter().map(|(attribute, _)| *attribute));
        let index = KeyIndex::new(rules, self.schema, &asked);
        let mut is_ambiguous = false;
        let mut is_matched = vec![false; part.len()];
        let mut owners = Vec::new();
        let take = &mut |entry: &SearchEntry| {
            owners.clear();
            is_ambiguous |= !index.owners(entry, &mut owners);
            for &owner in &owners {
                is_matched[owner] = true;
                results[part[owner]].add_found(entry, self.config, self.schema);
            }
            true
        };
        Ok(match self.searcher.run(&self.search(&filter, &attributes), take).await? {
            SearchEnd::Complete if is_ambiguous => BatchResult::Ambiguous,
            SearchEnd::Complete if is_matched.contains(&true) && is_matched.contains(&false) => {
                let unclaimed = part.iter().zip(is_matched).filter(|(_, is_claimed)| !is_claimed);
                BatchResult::Unmatched(unclaimed.map(|(&place, _)| place).collect())
            }
            SearchEnd::Complete => BatchResult::Answered,
            SearchEnd::KeysRejected(_) => BatchResult::TooMany,
            SearchEnd::NoBase(words) => BatchResult::Failed(self.no_base_error(&words)),
        })
    }

    /// Whether any of these keys may have an entry; false is certain.
    async fn finds_any(&self, places: &[usize], keys: &[Box<str>]) -> Result<bool, SearchError> {
        // A single key can be searched for its answer instead.
        if places.len() < 2 {
            return Ok(true);
        }
        let asked: Vec<&str> = places.iter().map(|&place| &*keys[place]).collect();
        let filter = self.config.filter.for_any_of(&asked);
        let mut is_found = false;
        let take = &mut |_: &SearchEntry| {
            is_found = true;
            false
        };
        let ending = self.searcher.run(&self.search(&filter, &[]), take).await?;
        Ok(is_found || ending != SearchEnd::Complete)
    }

    async fn one_by_one(
        &self,
        places: &[usize],
        keys: &[Box<str>],
        results: &mut [KeyResult],
    ) -> Result<(), SearchError> {
        let attributes = self.result_attributes();
        let asked = places.iter().map(|&place| (place, &*keys[place]));
        let questions = asked.map(|(place, key)| (place, self.search_one(key, &attributes)));
        let answers = questions.map(async |(place, answer)| (place, answer.await));
        let mut answers = futures_util::stream::iter(answers).buffer_unordered(PIPELINE_MAX);
        let (mut refused, mut groups) = (Vec::new(), Vec::new());
        let mut is_answered = self.answers.borrow().iter().any(Option::is_some);
        while let Some((place, result)) = answers.next().await {
            match result {
                Ok(result) => {
                    is_answered = true;
                    let is_group = !result.members.is_empty();
                    results[place] = result;
                    // Reading members runs concurrently too, so finish groups one after another.
                    if is_group { groups.push(place) } else { self.finish_keys(&[place], results).await? }
                }
                Err(SearchError::Refused(failure)) => refused.push((place, failure)),
                Err(SearchError::TimedOut(failure)) if is_answered => {
                    results[place] = KeyResult::failed(failure.what);
                    self.finish_keys(&[place], results).await?;
                }
                Err(trouble) => return Err(trouble),
            }
        }
        // If all searches are refused, the keys are not the cause.
        if let (false, Some((_, failure))) = (is_answered, refused.last()) {
            return Err(SearchError::Refused(failure.clone()));
        }
        for (place, failure) in refused {
            results[place] = KeyResult::failed(failure.what);
            self.finish_keys(&[place], results).await?;
        }
        self.finish_keys(&groups, results).await
    }

    async fn search_one(&self, key: &str, attributes: &[&str]) -> Result<KeyResult, SearchError> {
        let mut result = KeyResult::default();
        let Some(filter) = self.config.filter.for_key(key) else { return Ok(result) };
        let mut attributes = attributes.to_vec();
        let spelling = self.spelling(key);
        add_names(&mut attributes, spelling.iter().flat_map(|spelling| spelling.attributes.iter().copied()));
        let mut is_ambiguous = false;
        let take = &mut |entry: &SearchEntry| {
            let likeness = |spelling: &KeySpelling| spelling.compare(entry, self.config, self.schema);
            match spelling.as_ref().map_or(KeyMatch::Same, likeness) {
                KeyMatch::Same => result.add_found(entry, self.config, self.schema),
                KeyMatch::Other => {}
                KeyMatch::Unknown => is_ambiguous = true,
            }
            !result.has_error()
        };
        Ok(match self.searcher.run(&self.search(&filter, &attributes), take).await? {
            SearchEnd::Complete if is_ambiguous => {
                result.set_error("the server found an entry, but does not show how it is spelled");
                result
            }
            SearchEnd::Complete => result,
            SearchEnd::KeysRejected(words) => KeyResult::failed(words),
            SearchEnd::NoBase(words) => KeyResult::failed(self.no_base_error(&words)),
        })
    }

    /// How to recognize the key's spelling in an entry; None if every match of the server counts.
    fn spelling(&self, key: &str) -> Option<KeySpelling<'a>> {
        let attributes = self.config.filter.key_attributes().filter(|_| !is_printable_ascii(key.as_bytes()))?;
        Some(KeySpelling { attributes, form: normalized(key) })
    }

    fn search<'s>(&'s self, filter: &'s [u8], attributes: &'s [&'s str]) -> SearchRequest<'s> {
        SearchRequest { base: &self.config.base, scope: self.config.scope, filter, attributes, controls: &[] }
    }

    fn no_base_error(&self, words: &str) -> String {
        format!("base '{}': {words}", self.config.base)
    }
}

/// Whether we know for certain which values the server considers equal to the key.
fn can_share_search(key: &str) -> bool {
    is_printable_ascii(key.as_bytes()) && !key.trim().is_empty()
}

/// A key for which the server may match other spellings.
struct KeySpelling<'a> {
    attributes: Vec<&'a str>,
    form: String,
}

/// Whether an entry belongs to a key.
enum KeyMatch {
    /// A value equals the key.
    Same,
    /// All compared values are visible and differ.
    Other,
    /// Some compared values are not visible.
    Unknown,
}

impl KeySpelling<'_> {
    fn compare(&self, entry: &SearchEntry, config: &LdapConfig, schema: &Schema) -> KeyMatch {
        let mut shown = vec![false; self.attributes.len()];
        for (name, values) in entry.attributes() {
            match self.attributes.iter().position(|attribute| schema.is_same_attribute(attribute, name)) {
                Some(place) => shown[place] |= !is_partial_range(name),
                // An attribute that was not requested by this name is a subtype of a compared one.
                None if config.result_names().any(|result| schema.is_same_attribute(result, name)) => continue,
                None => {}
            }
            let mut texts = values.filter_map(|value| str::from_utf8(value).ok());
            if texts.any(|text| normalized(text) == self.form) {
                return KeyMatch::Same;
            }
        }
        if shown.contains(&false) { KeyMatch::Unknown } else { KeyMatch::Other }
    }
}

/// Normalizes a key or value by case and number of spaces.
fn normalized(text: &str) -> String {
    EqualityRule::Exact.normalize(&lookup::fold_key(text)).into_owned()
}

/// Adds names, ignoring those already there in another case.
fn add_names<'a>(names: &mut Vec<&'a str>, more: impl Iterator<Item = &'a str>) {
    for name in more {
        if !names.iter().any(|other| other.eq_ignore_ascii_case(name)) {
            names.push(name);
        }
    }
}

/// Finds the keys that an entry belongs to.
struct KeyIndex<'a> {
    rules: &'a [(&'a str, EqualityRule)],
    schema: &'a Schema,
    keys: &'a [&'a str],
    /// The keys in lower case, sorted, with their indexes.
    forms: Vec<(Cow<'a, str>, usize)>,
}

impl<'a> KeyIndex<'a> {
    fn new(rules: &'a [(&'a str, EqualityRule)], schema: &'a Schema, keys: &'a [&'a str]) -> KeyIndex<'a> {
        let forms = keys.iter().enumerate().map(|(place, key)| (EqualityRule::IgnoreCase.normalize(key), place));
        let mut forms: Vec<_> = forms.collect();
        forms.sort_unstable();
        KeyIndex { rules, schema, keys, forms }
    }

    /// Adds the indexes of the entry's keys to `owners`, each once. Returns false if there may be
    /// more.
    fn owners(&self, entry: &SearchEntry, owners: &mut Vec<usize>) -> bool {
        let mut is_certain = true;
        for (name, values) in entry.attributes() {
            let Some(&(_, rule)) =
                self.rules.iter().find(|(attribute, _)| self.schema.is_same_attribute(attribute, name))
            else {
                continue;
            };
            is_certain &= !is_partial_range(name);
            for value in values {
                match str::from_utf8(value) {
                    Ok(value) if is_printable_ascii(value.as_bytes()) => self.owners_by(value, rule, owners),
                    _ => is_certain = false,
                }
            }
        }
        is_certain && !owners.is_empty()
    }

    fn owners_by(&self, value: &str, rule: EqualityRule, owners: &mut Vec<usize>) {
        let form = EqualityRule::IgnoreCase.normalize(value);
        let first = self.forms.partition_point(|(other, _)| *other < form);
        for (_, place) in self.forms[first..].iter().take_while(|(other, _)| *other == form) {
            let is_equal =
                rule == EqualityRule::IgnoreCase || rule.normalize(self.keys[*place]) == rule.normalize(value);
            if is_equal && !owners.contains(place) {
                owners.push(*place);
            }
        }
    }
}
