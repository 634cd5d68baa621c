//! The new configuration under construction: its sections, the outcome of each parameter of
//! main.cf, and the files that go with it. In the end every parameter has an outcome, and `render`
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
pub(super) enum Fate {
    /// Translated.
    Mapped,
    /// Not needed: the server does this anyway.
    Same(String),
    /// Not supported; why, and what to do.
    Lost(String),
}

/// A section.
#[derive(Clone, Debug, Default)]
pub(super) struct Block {
    pub(super) header: String,
    /// Comment lines above it.
    pub(super) comments: Vec<String>,
    /// Key, value in TOML, and the parameter that it comes from.
    pub(super) keys: Vec<(String, String, String)>,
}

impl Block {
    pub(super) fn new(header: &str) -> Self {
        Block { header: header.to_owned(), ..Block::default() }
    }

    pub(super) fn comment(mut self, line: impl Into<String>) -> Self {
        self.comments.push(line.into());
        self
    }

    pub(super) fn key(mut self, key: &str, value: impl Into<String>, from: &str) -> Self {
        self.set(key, value.into(), from);
        self
    }

    pub(super) fn set(&mut self, key: &str, value: String, from: &str) {
        self.keys.retain(|(known, ..)| known != key);
        self.keys.push((key.to_owned(), value, from.to_owned()));
    }
}

/// The whole configuration.
#[derive(Debug, Default)]
pub(super) struct Draft {
    pub(super) blocks: Vec<Block>,
    pub(super) fates: BTreeMap<String, Fate>,
    /// Parts of parameters, service overrides and table settings that are not supported: what, and
    /// why.
    pub(super) losses: Vec<(String, String)>,
    /// Restrictions and their outcomes.
    pub(super) rules: Vec<(String, String)>,
    pub(super) files: Vec<NewFile>,
    /// How mail is handled differently than by Postfix.
    pub(super) alarms: Vec<String>,
    /// Other points to review first.
    pub(super) first: Vec<String>,
    /// The names of the files that were read.
    pub(super) sources: BTreeSet<String>,
}

impl Draft {
    /// Sets a key in the only section with this header; the empty header is for keys above all
    /// sections.
    pub(super) fn set(&mut self, header: &str, key: &str, value: impl Into<String>, from: &str) {
        self.mapped(from);
        self.section(header).set(key, value.into(), from);
    }

    /// The one section with this header.
    pub(super) fn section(&mut self, header: &str) -> &mut Block {
        let place = self.blocks.iter().position(|block| block.header == header).unwrap_or_else(|| {
            self.blocks.push(Block::new(header));
            self.blocks.len() - 1
        });
        &mut self.blocks[place]
    }

    pub(super) fn add(&mut self, block: Block) {
        self.blocks.push(block);
    }

    pub(super) fn mapped(&mut self, name: &str) {
        self.fates.insert(name.to_owned(), Fate::Mapped);
    }

    pub(super) fn same(&mut self, name: &str, why: &str) {
        self.fates.insert(name.to_owned(), Fate::Same(why.to_owned()));
    }

    pub(super) fn lost(&mut self, name: &str, why: impl Into<String>) {
        self.fates.insert(name.to_owned(), Fate::Lost(why.into()));
    }

    pub(super) fn loss(&mut self, what: impl Into<String>, why: impl Into<String>) {
        let loss = (what.into(), why.into());
        if !self.losses.contains(&loss) {
            self.losses.push(loss);
        }
    }

    /// Adds a difference in how mail is handled, unless it is already listed.
    pub(super) fn alarm(&mut self, what: impl Into<String>) {
        let what = what.into();
        if !self.alarms.contains(&what) {
            self.alarms.push(what);
        }
    }

    /// Adds a point to review, unless it is already listed.
    pub(super) fn look_at(&mut self, what: impl Into<String>) {
        let what = what.into();
        if !self.first.contains(&what) {
            self.first.push(what);
        }
    }
}

/// A string in TOML.
pub(super) fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

/// A list of strings in TOML.
pub(super) fn quoted_list<'t>(texts: impl IntoIterator<Item = &'t str>) -> String {
    let texts: Vec<String> = texts.into_iter().map(quoted).collect();
    format!("[{}]", texts.join(", "))
}
