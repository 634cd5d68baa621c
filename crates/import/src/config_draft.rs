//! The new configuration under construction: its sections, the outcome of each parameter of
//! the old configuration, and the files that go with it. In the end every parameter has an outcome, and `render`
//! writes all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// A file that the new configuration names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewFile {
    /// Its path.
    pub path: PathBuf,
    /// Its contents.
    pub text: String,
    /// Whether only the server may read it.
    pub secret: bool,
}

/// The outcome of a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ParameterOutcome {
    /// Translated.
    Mapped,
    /// Not needed: the server does this anyway.
    NotNeeded(String),
    /// Not supported; why, and what to do.
    Unsupported(String),
}

/// A section.
#[derive(Clone, Debug, Default)]
pub(crate) struct TomlSection {
    pub(crate) header: String,
    /// Comment lines above it.
    pub(crate) comments: Vec<String>,
    /// Key, value in TOML, and the parameter that it comes from.
    pub(crate) keys: Vec<(String, String, String)>,
}

impl TomlSection {
    pub(crate) fn new(header: &str) -> Self {
        TomlSection { header: header.to_owned(), ..TomlSection::default() }
    }

    pub(crate) fn comment(mut self, line: impl Into<String>) -> Self {
        self.comments.push(line.into());
        self
    }

    pub(crate) fn key(mut self, key: &str, value: impl Into<String>, from: &str) -> Self {
        self.set(key, value.into(), from);
        self
    }

    pub(crate) fn set(&mut self, key: &str, value: String, from: &str) {
        self.keys.retain(|(known, ..)| known != key);
        self.keys.push((key.to_owned(), value, from.to_owned()));
    }
}

/// The whole configuration.
#[derive(Debug, Default)]
pub(crate) struct ConfigDraft {
    pub(crate) sections: Vec<TomlSection>,
    pub(crate) outcomes: BTreeMap<String, ParameterOutcome>,
    /// Parts of parameters, service overrides and table settings that are not supported: what, and
    /// why.
    pub(crate) unsupported: Vec<(String, String)>,
    /// Services of master.cf that no mail uses.
    pub(crate) idle_services: Vec<String>,
    /// Restrictions and their outcomes.
    pub(crate) rules: Vec<(String, String)>,
    pub(crate) files: Vec<NewFile>,
    /// How mail is handled differently than by the other server.
    pub(crate) behavior_changes: Vec<String>,
    /// Other points to review first.
    pub(crate) review_first: Vec<String>,
    /// The names of the files that were read.
    pub(crate) sources: BTreeSet<String>,
}

impl ConfigDraft {
    /// Sets a key in the only section with this header; the empty header is for keys above all
    /// sections.
    pub(crate) fn set(&mut self, header: &str, key: &str, value: impl Into<String>, from: &str) {
        self.mapped(from);
        self.section(header).set(key, value.into(), from);
    }

    /// The one section with this header.
    pub(crate) fn section(&mut self, header: &str) -> &mut TomlSection {
        let place = self.sections.iter().position(|block| block.header == header).unwrap_or_else(|| {
            self.sections.push(TomlSection::new(header));
            self.sections.len() - 1
        });
        &mut self.sections[place]
    }

    pub(crate) fn add(&mut self, block: TomlSection) {
        self.sections.push(block);
    }

    pub(crate) fn mapped(&mut self, name: &str) {
        self.outcomes.insert(name.to_owned(), ParameterOutcome::Mapped);
    }

    pub(crate) fn not_needed(&mut self, name: &str, why: &str) {
        self.outcomes.insert(name.to_owned(), ParameterOutcome::NotNeeded(why.to_owned()));
    }

    pub(crate) fn unsupported(&mut self, name: &str, why: impl Into<String>) {
        self.outcomes.insert(name.to_owned(), ParameterOutcome::Unsupported(why.into()));
    }

    pub(crate) fn add_unsupported(&mut self, what: impl Into<String>, why: impl Into<String>) {
        let loss = (what.into(), why.into());
        if !self.unsupported.contains(&loss) {
            self.unsupported.push(loss);
        }
    }

    /// Adds a difference in how mail is handled, unless it is already listed.
    pub(crate) fn add_behavior_change(&mut self, what: impl Into<String>) {
        let what = what.into();
        if !self.behavior_changes.contains(&what) {
            self.behavior_changes.push(what);
        }
    }

    /// Adds a point to review, unless it is already listed.
    pub(crate) fn add_review_note(&mut self, what: impl Into<String>) {
        let what = what.into();
        if !self.review_first.contains(&what) {
            self.review_first.push(what);
        }
    }
}

/// A string in TOML.
pub(crate) fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

/// The header of the section of a transport. Names of other servers may have any characters.
pub(crate) fn transport_header(name: &str) -> String {
    let is_bare = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
    if is_bare { format!("[transport.{name}]") } else { format!("[transport.{}]", quoted(name)) }
}

/// A list of strings in TOML.
pub(crate) fn quoted_list<'t>(texts: impl IntoIterator<Item = &'t str>) -> String {
    let texts: Vec<String> = texts.into_iter().map(quoted).collect();
    format!("[{}]", texts.join(", "))
}

#[cfg(test)]
mod header_tests {
    use super::*;

    #[test]
    fn names_of_transports_are_keys_of_toml() {
        assert_eq!(transport_header("smtp-amavis"), "[transport.smtp-amavis]");
        for name in ["smtp.relay", "smtp'", "a\"b", "\u{e4}", ""] {
            let read: toml::Table = transport_header(name).parse().unwrap();
            let named = read["transport"].as_table().and_then(|transports| transports.get(name));
            assert!(named.is_some(), "{name}: {read}");
        }
    }
}
