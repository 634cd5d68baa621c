//! A table of the TOML document, read key by key. Each method removes one key and records an error
//! if its value is invalid. Reading goes on, so that all errors are reported together.
//!
//! When a [`Section`] is dropped, the keys that are left are unknown: also errors, with the nearest
//! known key as a hint.

use std::cell::RefCell;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::ConfigError;
use super::hint;
use super::value_kind::{self, ValueKind};

/// What was found so far, shared by all sections.
#[derive(Default)]
pub(super) struct Diagnostics {
    /// The errors.
    pub(super) errors: RefCell<Vec<ConfigError>>,
    /// Parts of the text that must not appear in error messages.
    pub(super) secrets: RefCell<Vec<Range<usize>>>,
}

/// The words that a key accepts.
pub(super) struct Keywords<T: 'static> {
    /// The words and their meaning.
    pub(super) supported: &'static [(&'static str, T)],
    /// Words that are reserved for later versions.
    pub(super) planned: &'static [&'static str],
}

/// A table whose keys are being read.
pub(super) struct Section<'f, 'i> {
    name: String,
    span: Range<usize>,
    entries: DeTable<'i>,
    known_keys: Vec<&'static str>,
    skipped: bool,
    hides_unknown_values: bool,
    diagnostics: &'f Diagnostics,
}

impl<'f, 'i> Section<'f, 'i> {
    /// The document itself.
    pub(super) fn document(entries: DeTable<'i>, diagnostics: &'f Diagnostics) -> Self {
        Section::new(String::new(), 0..0, entries, diagnostics)
    }

    fn new(name: String, place: Range<usize>, entries: DeTable<'i>, diagnostics: &'f Diagnostics) -> Self {
        Section {
            name,
            span: place,
            entries,
            known_keys: Vec::new(),
            skipped: false,
            hides_unknown_values: false,
            diagnostics,
        }
    }

    /// The span of its header.
    pub(super) fn span(&self) -> Range<usize> {
        self.span.clone()
    }

    /// Whether the key is given and not yet read.
    pub(super) fn has(&self, key: &str) -> bool {
        self.entries.contains_key(key)
    }

    /// Whether the value of the key is a table.
    pub(super) fn is_table(&self, key: &str) -> bool {
        self.entries.get(key).is_some_and(|value| value.get_ref().is_table())
    }

    /// The value of `key`, if it is there and valid.
    pub(super) fn take<T>(&mut self, key: &'static str, kind: &ValueKind<T>) -> Option<T> {
        self.take_spanned(key, kind).map(Spanned::into_inner)
    }

    /// The same, with a default.
    pub(super) fn take_or<T>(&mut self, key: &'static str, kind: &ValueKind<T>, default: T) -> T {
        self.take(key, kind).unwrap_or(default)
    }

    /// The same, with its span.
    pub(super) fn take_spanned<T>(&mut self, key: &'static str, kind: &ValueKind<T>) -> Option<Spanned<T>> {
        let value = self.take_entry(key)?.1;
        self.read(key, &value, kind)
    }

    /// The same for a mandatory key.
    pub(super) fn take_required<T>(&mut self, key: &'static str, kind: &ValueKind<T>) -> Option<Spanned<T>> {
        self.report_if_missing(key, kind.expected);
        self.take_spanned(key, kind)
    }

    /// A list whose elements are all of this kind.
    pub(super) fn list<T>(&mut self, key: &'static str, kind: &ValueKind<T>) -> Option<Vec<Spanned<T>>> {
        let value = self.take_entry(key)?.1;
        match value.get_ref() {
            DeValue::Array(elements) => elements.iter().map(|element| self.read(key, element, kind)).collect(),
            other => {
                let label =
                    format!("found {}, expected a list; each element: {}", value_kind::describe(other), kind.expected);
                self.report(value.span(), key, "is not a list", label);
                None
            }
        }
    }

    /// The same, or a single value without a list.
    pub(super) fn one_or_list<T>(&mut self, key: &'static str, kind: &ValueKind<T>) -> Option<Vec<Spanned<T>>> {
        match self.entries.get(key).map(Spanned::get_ref) {
            Some(DeValue::Array(_)) => self.list(key, kind),
            _ => self.take_spanned(key, kind).map(|it| vec![it]),
        }
    }

    /// A string that must not be shown, not even in an error.
    pub(super) fn secret(&mut self, key: &'static str) -> Option<Spanned<String>> {
        let (_, value) = self.take_entry(key)?;
        let read = (value_kind::TEXT.parse)(value.get_ref());
        if read.is_none() {
            self.report(value.span(), key, "has an invalid value", format!("expected {}", value_kind::TEXT.expected));
        }
        read.map(|it| Spanned::new(value.span(), it))
    }

    /// Hides the values of unknown keys: one of them could be a misspelled secret.
    pub(super) fn hide_unknown_values(&mut self) {
        self.hides_unknown_values = true;
    }

    /// The table under `key`; None if there is no such key, `Some(None)` if it is `false` instead.
    pub(super) fn section_or_false(&mut self, key: &'static str) -> Option<Option<Section<'f, 'i>>> {
        let (place, value) = self.take_entry(key)?;
        let path = self.path(key);
        match value.get_ref() {
            DeValue::Boolean(false) => Some(None),
            _ => Some(self.subsection(path, place, value, format!("expected a table: [{key}], or false"))),
        }
    }

    /// The span of `key`, or of the section's header without it.
    pub(super) fn span_of(&self, key: &str) -> Range<usize> {
        self.entries.get_key_value(key).map_or(self.span(), |(name, _)| name.span())
    }

    /// Removes `key`, which is not allowed here, and reports it with what was expected instead.
    pub(super) fn reject(&mut self, key: &'static str, label: &str) {
        if let Some((name, _)) = self.entries.remove_entry(key) {
            self.report(name.span(), key, "is not allowed here", label.to_owned());
        }
    }

    /// One of several words. Also None for a word that is not supported yet; then the rest of the
    /// section is not read, since it would be about that.
    pub(super) fn choice<T: Copy>(&mut self, key: &'static str, choice: &Keywords<T>) -> Option<T> {
        let (_, value) = self.take_entry(key)?;
        let words = || choice.supported.iter().map(|(word, _)| *word);
        let word = value.get_ref().as_str().unwrap_or_default();
        let meant = choice.supported.iter().find(|(built, _)| *built == word).map(|(_, meant)| *meant);
        if meant.is_none() && choice.planned.contains(&word) {
            let label = format!("not supported yet; this version supports {}", quoted_choices(words()));
            self.report(value.span(), key, "is not supported yet", label);
            self.skip_rest();
        } else if meant.is_none() {
            let label =
                format!("found {}, expected {}", value_kind::describe(value.get_ref()), quoted_choices(words()));
            let error = ConfigError::new(value.span(), format!("`{}` has an invalid value", self.path(key)), label);
            self.report_error(error.with_help(hint::suggest_word(word, words())));
        }
        meant
    }

    /// The same for a mandatory key.
    pub(super) fn take_required_choice<T: Copy>(&mut self, key: &'static str, choice: &Keywords<T>) -> Option<T> {
        self.report_if_missing(key, &quoted_choices(choice.supported.iter().map(|(word, _)| *word)));
        self.choice(key, choice)
    }

    /// The table under `key`.
    pub(super) fn section(&mut self, key: &'static str) -> Option<Section<'f, 'i>> {
        let (place, value) = self.take_entry(key)?;
        let path = self.path(key);
        self.subsection(path, place, value, format!("expected a table: [{key}]"))
    }

    /// The tables under `key` with their names: `[key.NAME]`.
    pub(super) fn named_sections(&mut self, key: &'static str) -> Vec<(Spanned<String>, Section<'f, 'i>)> {
        let Some(mut all) = self.section(key) else { return Vec::new() };
        let mut sections = Vec::new();
        for (name, value) in std::mem::take(&mut all.entries) {
            let path = format!("{key}.{}", name.get_ref());
            let expected = format!("expected a table: [{path}]");
            if let Some(section) = self.subsection(path, name.span(), value, expected) {
                sections.push((Spanned::new(name.span(), name.into_inner().into_owned()), section));
            }
        }
        sections
    }

    /// The tables in the list under `key`: `[[key]]`. None if there is no such key.
    pub(super) fn sections(&mut self, key: &'static str) -> Option<Vec<Section<'f, 'i>>> {
        let (place, value) = self.take_entry(key)?;
        let expected = || format!("expected tables: [[{key}]]");
        match value.into_inner() {
            DeValue::Array(elements) if elements.is_empty() => {
                self.report(place, key, "is empty", expected());
                Some(Vec::new())
            }
            DeValue::Array(elements) => Some(
                elements
                    .into_iter()
                    .filter_map(|element| self.subsection(self.path(key), element.span(), element, expected()))
                    .collect(),
            ),
            other => {
                let label = format!("found {}, {}", value_kind::describe(&other), expected());
                self.report(place, key, "is not a list of tables", label);
                Some(Vec::new())
            }
        }
    }

    /// Ignores the rest of the section, including missing keys.
    pub(super) fn skip_rest(&mut self) {
        self.skipped = true;
        self.entries.clear();
    }

    /// Reports an error in this section's `key`.
    pub(super) fn report(&self, place: Range<usize>, key: &str, matter: &str, label: String) {
        self.report_error(ConfigError::new(place, format!("`{}` {matter}", self.path(key)), label));
    }

    /// Reports an error with its own title.
    pub(super) fn report_error(&self, error: ConfigError) {
        self.diagnostics.errors.borrow_mut().push(error);
    }

    /// Reports `key` as missing if it is.
    pub(super) fn report_if_missing(&self, key: &str, expected: &str) {
        if !self.skipped && !self.entries.contains_key(key) {
            let title = format!("`{}` is missing", self.path(key));
            self.report_error(ConfigError::new(self.span(), title, format!("expected here: {expected}")));
        }
    }

    /// Hides this part of the text in error messages.
    fn hide(&self, place: Range<usize>) {
        self.diagnostics.secrets.borrow_mut().push(place);
    }

    fn take_entry(&mut self, key: &'static str) -> Option<(Range<usize>, Spanned<DeValue<'i>>)> {
        self.known_keys.push(key);
        let (name, value) = self.entries.remove_entry(key)?;
        Some((name.span(), value))
    }

    fn read<T>(&self, key: &str, value: &Spanned<DeValue<'i>>, kind: &ValueKind<T>) -> Option<Spanned<T>> {
        let read = (kind.parse)(value.get_ref());
        if read.is_none() {
            let label = format!("found {}, expected {}", value_kind::describe(value.get_ref()), kind.expected);
            let error = ConfigError::new(value.span(), format!("`{}` has an invalid value", self.path(key)), label);
            self.report_error(error.with_help(hint::suggest_value(value.get_ref(), kind)));
        }
        read.map(|it| Spanned::new(value.span(), it))
    }

    fn subsection(
        &self,
        name: String,
        place: Range<usize>,
        value: Spanned<DeValue<'i>>,
        expected: String,
    ) -> Option<Section<'f, 'i>> {
        let span = value.span();
        match value.into_inner() {
            DeValue::Table(entries) => Some(Section::new(name, place, entries, self.diagnostics)),
            other => {
                let label = format!("found {}, {expected}", value_kind::describe(&other));
                self.report_error(ConfigError::new(span, format!("`{name}` is not a table"), label));
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
        self.known_keys.sort_unstable();
        self.known_keys.dedup();
        for (name, value) in &self.entries {
            if self.hides_unknown_values {
                self.hide(value.span());
            }
            let known = self.known_keys.iter().copied();
            let title = format!("unknown key `{}`", self.path(name.get_ref()));
            let error = ConfigError::new(name.span(), title, format!("expected one of: {}", comma_list(known.clone())));
            self.report_error(error.with_help(hint::did_you_mean(name.get_ref(), known)));
        }
    }
}

fn comma_list<'a>(words: impl Iterator<Item = &'a str>) -> String {
    words.collect::<Vec<_>>().join(", ")
}

pub(super) fn quoted_choices<'a>(words: impl Iterator<Item = &'a str>) -> String {
    words.map(|word| format!("{word:?}")).collect::<Vec<_>>().join(" or ")
}
