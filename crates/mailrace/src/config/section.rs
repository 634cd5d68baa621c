//! A table of the document, read key by key. Each method takes one key out and states a fault where the value
//! is not what it should be, so that reading goes on and all faults come out at once.
//!
//! When a [`Section`] goes out of scope, keys that nobody asked for are unknown keys: faults too, with the
//! nearest key that somebody did ask for as advice.

use std::cell::RefCell;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::fault::Fault;
use super::hint;
use super::key::{self, Kind};

/// What was found so far; sections share it.
#[derive(Default)]
pub(super) struct Findings {
    /// What is wrong.
    pub(super) faults: RefCell<Vec<Fault>>,
    /// Where the text has what must not be shown with a fault.
    pub(super) secrets: RefCell<Vec<Range<usize>>>,
}

/// Words of which a key may have one.
pub(super) struct Choice<T: 'static> {
    /// Those there are.
    pub(super) built: &'static [(&'static str, T)],
    /// Those that the design has and this version has not.
    pub(super) later: &'static [&'static str],
}

/// A table whose keys are being taken out.
pub(super) struct Section<'f, 'i> {
    name: String,
    place: Range<usize>,
    entries: DeTable<'i>,
    asked: Vec<&'static str>,
    skipped: bool,
    discreet: bool,
    findings: &'f Findings,
}

impl<'f, 'i> Section<'f, 'i> {
    /// The document itself.
    pub(super) fn document(entries: DeTable<'i>, findings: &'f Findings) -> Self {
        Section::new(String::new(), 0..0, entries, findings)
    }

    fn new(name: String, place: Range<usize>, entries: DeTable<'i>, findings: &'f Findings) -> Self {
        Section { name, place, entries, asked: Vec::new(), skipped: false, discreet: false, findings }
    }

    /// Where its header is.
    pub(super) fn place(&self) -> Range<usize> {
        self.place.clone()
    }

    /// The value of `key`, if it is there and of that kind.
    pub(super) fn take<T>(&mut self, key: &'static str, kind: &Kind<T>) -> Option<T> {
        self.placed(key, kind).map(Spanned::into_inner)
    }

    /// The same, with what stands in for it.
    pub(super) fn take_or<T>(&mut self, key: &'static str, kind: &Kind<T>, or: T) -> T {
        self.take(key, kind).unwrap_or(or)
    }

    /// The same, with its place.
    pub(super) fn placed<T>(&mut self, key: &'static str, kind: &Kind<T>) -> Option<Spanned<T>> {
        let value = self.entry(key)?.1;
        self.read(key, &value, kind)
    }

    /// The same for a key that has to be there.
    pub(super) fn required<T>(&mut self, key: &'static str, kind: &Kind<T>) -> Option<Spanned<T>> {
        self.demand(key, kind.expected);
        self.placed(key, kind)
    }

    /// A list whose elements are all of that kind.
    pub(super) fn list<T>(&mut self, key: &'static str, kind: &Kind<T>) -> Option<Vec<Spanned<T>>> {
        let value = self.entry(key)?.1;
        match value.get_ref() {
            DeValue::Array(elements) => elements.iter().map(|element| self.read(key, element, kind)).collect(),
            other => {
                let label = format!("found {}, expected a list; each element: {}", key::found(other), kind.expected);
                self.state(value.span(), key, "is not a list", label);
                None
            }
        }
    }

    /// The same, or one such value without a list around it.
    pub(super) fn one_or_list<T>(&mut self, key: &'static str, kind: &Kind<T>) -> Option<Vec<Spanned<T>>> {
        match self.entries.get(key).map(Spanned::get_ref) {
            Some(DeValue::Array(_)) => self.list(key, kind),
            _ => self.placed(key, kind).map(|it| vec![it]),
        }
    }

    /// A text that is not to be told, not even where it is at fault.
    pub(super) fn secret(&mut self, key: &'static str) -> Option<Spanned<String>> {
        let (_, value) = self.entry(key)?;
        let read = (key::TEXT.read)(value.get_ref());
        if read.is_none() {
            self.state(value.span(), key, "has a wrong value", format!("expected {}", key::TEXT.expected));
        }
        read.map(|it| Spanned::new(value.span(), it))
    }

    /// Keeps the values of unknown keys from being shown: one of them could be a misspelt secret.
    pub(super) fn be_discreet(&mut self) {
        self.discreet = true;
    }

    /// The table under `key`, which may be `false` instead: then the inner one is None. None where the key is not there.
    pub(super) fn section_or_false(&mut self, key: &'static str) -> Option<Option<Section<'f, 'i>>> {
        let (place, value) = self.entry(key)?;
        let path = self.path(key);
        match value.get_ref() {
            DeValue::Boolean(false) => Some(None),
            _ => Some(self.sub(path, place, value, format!("expected a table: [{key}], or false"))),
        }
    }

    /// Where `key` is said; without it, the section's header.
    pub(super) fn place_of(&self, key: &str) -> Range<usize> {
        self.entries.get_key_value(key).map_or(self.place(), |(name, _)| name.span())
    }

    /// Takes out `key`, which has no place in this section, and states that with what was expected instead.
    pub(super) fn refuse(&mut self, key: &'static str, label: &str) {
        if let Some((name, _)) = self.entries.remove_entry(key) {
            self.state(name.span(), key, "means nothing here", label.to_owned());
        }
    }

    /// One of some words. None also where the word is one that is not built yet; then the rest of the section,
    /// which would be about that, is not looked at.
    pub(super) fn choice<T: Copy>(&mut self, key: &'static str, choice: &Choice<T>) -> Option<T> {
        let (_, value) = self.entry(key)?;
        let words = || choice.built.iter().map(|(word, _)| *word);
        let word = value.get_ref().as_str().unwrap_or_default();
        let meant = choice.built.iter().find(|(built, _)| *built == word).map(|(_, meant)| *meant);
        if meant.is_none() && choice.later.contains(&word) {
            let label = format!("not built yet; this version has {}", quoted(words()));
            self.state(value.span(), key, "asks for something that is not built yet", label);
            self.skip();
        } else if meant.is_none() {
            let label = format!("found {}, expected {}", key::found(value.get_ref()), quoted(words()));
            let fault = Fault::new(value.span(), format!("`{}` has a wrong value", self.path(key)), label);
            self.state_fault(fault.with_help(hint::word(word, words())));
        }
        meant
    }

    /// The same for a key that has to be there.
    pub(super) fn required_choice<T: Copy>(&mut self, key: &'static str, choice: &Choice<T>) -> Option<T> {
        self.demand(key, &quoted(choice.built.iter().map(|(word, _)| *word)));
        self.choice(key, choice)
    }

    /// The table under `key`.
    pub(super) fn section(&mut self, key: &'static str) -> Option<Section<'f, 'i>> {
        let (place, value) = self.entry(key)?;
        let path = self.path(key);
        self.sub(path, place, value, format!("expected a table: [{key}]"))
    }

    /// The tables under `key` by their names: `[key.NAME]`.
    pub(super) fn named_sections(&mut self, key: &'static str) -> Vec<(Spanned<String>, Section<'f, 'i>)> {
        let Some(mut all) = self.section(key) else { return Vec::new() };
        let mut sections = Vec::new();
        for (name, value) in std::mem::take(&mut all.entries) {
            let path = format!("{key}.{}", name.get_ref());
            let expected = format!("expected a table: [{path}]");
            if let Some(section) = self.sub(path, name.span(), value, expected) {
                sections.push((Spanned::new(name.span(), name.into_inner().into_owned()), section));
            }
        }
        sections
    }

    /// The tables in the list under `key`: `[[key]]`. None where the key is not there.
    pub(super) fn sections(&mut self, key: &'static str) -> Option<Vec<Section<'f, 'i>>> {
        let (place, value) = self.entry(key)?;
        let expected = || format!("expected tables: [[{key}]]");
        match value.into_inner() {
            DeValue::Array(elements) if elements.is_empty() => {
                self.state(place, key, "is empty", expected());
                Some(Vec::new())
            }
            DeValue::Array(elements) => Some(
                elements
                    .into_iter()
                    .filter_map(|element| self.sub(self.path(key), element.span(), element, expected()))
                    .collect(),
            ),
            other => {
                let label = format!("found {}, {}", key::found(&other), expected());
                self.state(place, key, "is not a list of tables", label);
                Some(Vec::new())
            }
        }
    }

    /// Leaves the rest of the section unread, and misses nothing in it.
    pub(super) fn skip(&mut self) {
        self.skipped = true;
        self.entries.clear();
    }

    /// States a fault of this section's `key`.
    pub(super) fn state(&self, place: Range<usize>, key: &str, matter: &str, label: String) {
        self.state_fault(Fault::new(place, format!("`{}` {matter}", self.path(key)), label));
    }

    /// States a fault in its own words.
    pub(super) fn state_fault(&self, fault: Fault) {
        self.findings.faults.borrow_mut().push(fault);
    }

    /// States it where `key` is not there.
    pub(super) fn demand(&self, key: &str, expected: &str) {
        if !self.skipped && !self.entries.contains_key(key) {
            let title = format!("`{}` is missing", self.path(key));
            self.state_fault(Fault::new(self.place(), title, format!("expected here: {expected}")));
        }
    }

    /// Keeps what stands there from being shown with a fault.
    fn conceal(&self, place: Range<usize>) {
        self.findings.secrets.borrow_mut().push(place);
    }

    fn entry(&mut self, key: &'static str) -> Option<(Range<usize>, Spanned<DeValue<'i>>)> {
        self.asked.push(key);
        let (name, value) = self.entries.remove_entry(key)?;
        Some((name.span(), value))
    }

    fn read<T>(&self, key: &str, value: &Spanned<DeValue<'i>>, kind: &Kind<T>) -> Option<Spanned<T>> {
        let read = (kind.read)(value.get_ref());
        if read.is_none() {
            let label = format!("found {}, expected {}", key::found(value.get_ref()), kind.expected);
            let fault = Fault::new(value.span(), format!("`{}` has a wrong value", self.path(key)), label);
            self.state_fault(fault.with_help(hint::spelling(value.get_ref(), kind)));
        }
        read.map(|it| Spanned::new(value.span(), it))
    }

    fn sub(
        &self,
        name: String,
        place: Range<usize>,
        value: Spanned<DeValue<'i>>,
        expected: String,
    ) -> Option<Section<'f, 'i>> {
        let span = value.span();
        match value.into_inner() {
            DeValue::Table(entries) => Some(Section::new(name, place, entries, self.findings)),
            other => {
                let label = format!("found {}, {expected}", key::found(&other));
                self.state_fault(Fault::new(span, format!("`{name}` is not a table"), label));
                None
            }
        }
    }

    fn path(&self, key: &str) -> String {
        if self.name.is_empty() { key.to_owned() } else { format!("{}.{key}", self.name) }
    }
}

impl Drop for Section<'_, '_> {
    fn drop(&mut self) {
        self.asked.sort_unstable();
        self.asked.dedup();
        for (name, value) in &self.entries {
            if self.discreet {
                self.conceal(value.span());
            }
            let known = self.asked.iter().copied();
            let title = format!("unknown key `{}`", self.path(name.get_ref()));
            let fault = Fault::new(name.span(), title, format!("expected one of: {}", listed(known.clone())));
            self.state_fault(fault.with_help(hint::did_you_mean(name.get_ref(), known)));
        }
    }
}

fn listed<'a>(words: impl Iterator<Item = &'a str>) -> String {
    words.collect::<Vec<_>>().join(", ")
}

pub(super) fn quoted<'a>(words: impl Iterator<Item = &'a str>) -> String {
    words.map(|word| format!("{word:?}")).collect::<Vec<_>>().join(" or ")
}
