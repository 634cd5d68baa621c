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

use super::Config;
use super::connection::{Entry, Search};
use super::result::is_part;
use super::schema::{Rule, Schema, is_plain};
use super::search::{Ending, Searcher, Trouble};
use super::slot::Slot;
use crate::Answer;

/// Concurrent searches on a connection. OpenLDAP closes an unbound connection at 100.
pub(super) const PIPELINE: usize = 16;

/// A request on one connection.
pub(super) struct Asking<'a> {
    pub(super) config: &'a Config,
    pub(super) searcher: Searcher<'a>,
    pub(super) schema: &'a Schema,
    /// The answers so far, in the order of the keys. They remain valid if the request fails.
    pub(super) answers: &'a RefCell<Vec<Option<Answer>>>,
}

/// The result of a search for several keys.
enum Batch {
    /// All keys are answered.
    Answered,
    /// Some entries were found, but none for these keys; the others are answered.
    Unclaimed(Vec<usize>),
    /// The entries cannot be matched to keys for certain: search each key alone.
    Doubtful,
    /// Too many keys for one search.
    TooMany,
    /// No key can be answered; the reason.
    Faulty(String),
}

impl<'a> Asking<'a> {
    /// Answers all keys that have no answer yet.
    pub(super) async fn answer(&self, keys: &[Box<str>]) -> Result<(), Trouble> {
        let mut slots: Vec<Slot> = keys.iter().map(|_| Slot::default()).collect();
        let mut singly: Vec<usize> = (0..keys.len()).filter(|&place| self.answers.borrow()[place].is_none()).collect();
        let mut parts: Vec<Vec<usize>> = Vec::new();
        let rules = self.rules();
        if rules.is_some() {
            let (together, alone) = singly.into_iter().partition(|&place| can_share(&keys[place]));
            parts.push(together);
            singly = alone;
        }
        while let (Some(part), Some(rules)) = (parts.pop(), &rules) {
            if part.len() < 2 {
                singly.extend(part);
                continue;
            }
            match self.batch(&part, keys, rules, &mut slots).await? {
                Batch::Answered => self.settle(&part, &mut slots).await?,
                Batch::Unclaimed(unclaimed) => {
                    let claimed: Vec<usize> = part.into_iter().filter(|place| !unclaimed.contains(place)).collect();
                    self.settle(&claimed, &mut slots).await?;
                    match self.finds_any(&unclaimed, keys).await? {
                        true => singly.extend(unclaimed),
                        false => self.settle(&unclaimed, &mut slots).await?,
                    }
                }
                Batch::Faulty(why) => {
                    part.iter().for_each(|&place| slots[place] = Slot::faulty(&why));
                    self.settle(&part, &mut slots).await?;
                }
                Batch::Doubtful => {
                    part.iter().for_each(|&place| slots[place] = Slot::default());
                    singly.extend(part);
                }
                Batch::TooMany => {
                    part.iter().for_each(|&place| slots[place] = Slot::default());
                    let (one, other) = part.split_at(part.len() / 2);
                    parts.extend([other.to_vec(), one.to_vec()]);
                }
            }
        }
        self.one_by_one(&singly, keys, &mut slots).await
    }

    /// Sets the answers of these keys after following group members.
    async fn settle(&self, places: &[usize], slots: &mut [Slot]) -> Result<(), Trouble> {
        let server = self.searcher.session.url().to_string();
        for &place in places {
            let mut slot = std::mem::take(&mut slots[place]);
            match self.follow_members(&mut slot).await {
                Err(Trouble::Refused(failure)) => slot.set_fault(failure.what),
                followed => followed?,
            }
            self.answers.borrow_mut()[place] = Some(slot.into_answer(self.config, &server));
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
    fn rules(&self) -> Option<Vec<(&'a str, Rule)>> {
        let attributes = self.config.filter.key_attributes()?;
        attributes.into_iter().map(|attribute| Some((attribute, self.schema.rule(attribute)?))).collect()
    }

    async fn batch(
        &self,
        part: &[usize],
        keys: &[Box<str>],
        rules: &[(&'a str, Rule)],
        slots: &mut [Slot],
    ) -> Result<Batch, Trouble> {
        let asked: Vec<&str> = part.iter().map(|&place| &*keys[place]).collect();
        let filter = self.config.filter.any_of(&asked);
        let mut attributes = self.result_attributes();
        add_names(&mut attributes, rules.iter().map(|(attribute, _)| *attribute));
        let index = Index::new(rules, self.schema, &asked);
        let mut is_doubtful = false;
        let mut is_claimed = vec![false; part.len()];
        let mut whose = Vec::new();
        let take = &mut |entry: &Entry| {
            whose.clear();
            is_doubtful |= !index.owners(entry, &mut whose);
            for &owner in &whose {
                is_claimed[owner] = true;
                slots[part[owner]].add(entry, self.config, self.schema);
            }
            true
        };
        Ok(match self.searcher.run(&self.search(&filter, &attributes), take).await? {
            Ending::Complete if is_doubtful => Batch::Doubtful,
            Ending::Complete if is_claimed.contains(&true) && is_claimed.contains(&false) => {
                let unclaimed = part.iter().zip(is_claimed).filter(|(_, is_claimed)| !is_claimed);
                Batch::Unclaimed(unclaimed.map(|(&place, _)| place).collect())
            }
            Ending::Complete => Batch::Answered,
            Ending::Keys(_) => Batch::TooMany,
            Ending::NoBase(words) => Batch::Faulty(self.no_base(&words)),
        })
    }

    /// Whether any of these keys may have an entry; false is certain.
    async fn finds_any(&self, places: &[usize], keys: &[Box<str>]) -> Result<bool, Trouble> {
        // A single key can be searched for its answer instead.
        if places.len() < 2 {
            return Ok(true);
        }
        let asked: Vec<&str> = places.iter().map(|&place| &*keys[place]).collect();
        let filter = self.config.filter.any_of(&asked);
        let mut is_found = false;
        let take = &mut |_: &Entry| {
            is_found = true;
            false
        };
        let ending = self.searcher.run(&self.search(&filter, &[]), take).await?;
        Ok(is_found || ending != Ending::Complete)
    }

    async fn one_by_one(&self, places: &[usize], keys: &[Box<str>], slots: &mut [Slot]) -> Result<(), Trouble> {
        let attributes = self.result_attributes();
        let asked = places.iter().map(|&place| (place, &*keys[place]));
        let questions = asked.map(|(place, key)| (place, self.one(key, &attributes)));
        let answers = questions.map(async |(place, answer)| (place, answer.await));
        let mut answers = futures_util::stream::iter(answers).buffer_unordered(PIPELINE);
        let (mut refused, mut groups) = (Vec::new(), Vec::new());
        let mut is_answered = self.answers.borrow().iter().any(Option::is_some);
        while let Some((place, slot)) = answers.next().await {
            match slot {
                Ok(slot) => {
                    is_answered = true;
                    let is_group = !slot.members.is_empty();
                    slots[place] = slot;
                    // Reading members runs concurrently too, so finish groups one after another.
                    if is_group { groups.push(place) } else { self.settle(&[place], slots).await? }
                }
                Err(Trouble::Refused(failure)) => refused.push((place, failure)),
                Err(Trouble::Late(failure)) if is_answered => {
                    slots[place] = Slot::faulty(failure.what);
                    self.settle(&[place], slots).await?;
                }
                Err(trouble) => return Err(trouble),
            }
        }
        // If all searches are refused, the keys are not the cause.
        if let (false, Some((_, failure))) = (is_answered, refused.last()) {
            return Err(Trouble::Refused(failure.clone()));
        }
        for (place, failure) in refused {
            slots[place] = Slot::faulty(failure.what);
            self.settle(&[place], slots).await?;
        }
        self.settle(&groups, slots).await
    }

    async fn one(&self, key: &str, attributes: &[&str]) -> Result<Slot, Trouble> {
        let mut slot = Slot::default();
        let Some(filter) = self.config.filter.one(key) else { return Ok(slot) };
        let mut attributes = attributes.to_vec();
        let spelling = self.spelling(key);
        add_names(&mut attributes, spelling.iter().flat_map(|spelling| spelling.attributes.iter().copied()));
        let mut is_dubious = false;
        let take = &mut |entry: &Entry| {
            let likeness = |spelling: &Spelling| spelling.likeness(entry, self.config, self.schema);
            match spelling.as_ref().map_or(Likeness::Same, likeness) {
                Likeness::Same => slot.add(entry, self.config, self.schema),
                Likeness::Other => {}
                Likeness::Unknown => is_dubious = true,
            }
            !slot.is_faulty()
        };
        Ok(match self.searcher.run(&self.search(&filter, &attributes), take).await? {
            Ending::Complete if is_dubious => {
                slot.set_fault("the server found an entry, but does not show how it is spelled");
                slot
            }
            Ending::Complete => slot,
            Ending::Keys(words) => Slot::faulty(words),
            Ending::NoBase(words) => Slot::faulty(self.no_base(&words)),
        })
    }

    /// How to recognize the key's spelling in an entry; None if every match of the server counts.
    fn spelling(&self, key: &str) -> Option<Spelling<'a>> {
        let attributes = self.config.filter.key_attributes().filter(|_| !is_plain(key.as_bytes()))?;
        Some(Spelling { attributes, form: spelled(key) })
    }

    fn search<'s>(&'s self, filter: &'s [u8], attributes: &'s [&'s str]) -> Search<'s> {
        Search { base: &self.config.base, scope: self.config.scope, filter, attributes, controls: &[] }
    }

    fn no_base(&self, words: &str) -> String {
        format!("base '{}': {words}", self.config.base)
    }
}

/// Whether we know for certain which values the server considers equal to the key.
fn can_share(key: &str) -> bool {
    is_plain(key.as_bytes()) && !key.trim().is_empty()
}

/// A key for which the server may match other spellings.
struct Spelling<'a> {
    attributes: Vec<&'a str>,
    form: String,
}

/// Whether an entry belongs to a key.
enum Likeness {
    /// A value equals the key.
    Same,
    /// All compared values are visible and differ.
    Other,
    /// Some compared values are not visible.
    Unknown,
}

impl Spelling<'_> {
    fn likeness(&self, entry: &Entry, config: &Config, schema: &Schema) -> Likeness {
        let mut shown = vec![false; self.attributes.len()];
        for (name, values) in entry.attributes() {
            match self.attributes.iter().position(|attribute| schema.is_same(attribute, name)) {
                Some(place) => shown[place] |= !is_part(name),
                // An attribute that was not requested by this name is a subtype of a compared one.
                None if config.result_names().any(|result| schema.is_same(result, name)) => continue,
                None => {}
            }
            let mut texts = values.filter_map(|value| str::from_utf8(value).ok());
            if texts.any(|text| spelled(text) == self.form) {
                return Likeness::Same;
            }
        }
        if shown.contains(&false) { Likeness::Unknown } else { Likeness::Other }
    }
}

/// Normalizes a key or value by case and number of spaces.
fn spelled(text: &str) -> String {
    Rule::Exact.form(&crate::fold(text)).into_owned()
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
struct Index<'a> {
    rules: &'a [(&'a str, Rule)],
    schema: &'a Schema,
    keys: &'a [&'a str],
    /// The keys in lower case, sorted, with their indexes.
    forms: Vec<(Cow<'a, str>, usize)>,
}

impl<'a> Index<'a> {
    fn new(rules: &'a [(&'a str, Rule)], schema: &'a Schema, keys: &'a [&'a str]) -> Index<'a> {
        let forms = keys.iter().enumerate().map(|(place, key)| (Rule::IgnoreCase.form(key), place));
        let mut forms: Vec<_> = forms.collect();
        forms.sort_unstable();
        Index { rules, schema, keys, forms }
    }

    /// Adds the indexes of the entry's keys to `owners`, each once. Returns false if there may be
    /// more.
    fn owners(&self, entry: &Entry, owners: &mut Vec<usize>) -> bool {
        let mut is_certain = true;
        for (name, values) in entry.attributes() {
            let Some(&(_, rule)) = self.rules.iter().find(|(attribute, _)| self.schema.is_same(attribute, name)) else {
                continue;
            };
            is_certain &= !is_part(name);
            for value in values {
                match str::from_utf8(value) {
                    Ok(value) if is_plain(value.as_bytes()) => self.owners_by(value, rule, owners),
                    _ => is_certain = false,
                }
            }
        }
        is_certain && !owners.is_empty()
    }

    fn owners_by(&self, value: &str, rule: Rule, owners: &mut Vec<usize>) {
        let form = Rule::IgnoreCase.form(value);
        let first = self.forms.partition_point(|(other, _)| *other < form);
        for (_, place) in self.forms[first..].iter().take_while(|(other, _)| *other == form) {
            let is_equal = rule == Rule::IgnoreCase || rule.form(self.keys[*place]) == rule.form(value);
            if is_equal && !owners.contains(place) {
                owners.push(*place);
            }
        }
    }
}
