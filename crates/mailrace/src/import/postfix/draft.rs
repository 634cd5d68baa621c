//! The new configuration while it is made: sections with their keys, what became of each parameter of main.cf, and the
//! files that go with it. Every parameter has a fate in the end, and `render` writes down each.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// A file that the new configuration names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewFile {
    /// Where it has to be.
    pub path: PathBuf,
    /// What is in it.
    pub text: String,
    /// Whether nobody but the server may read it.
    pub secret: bool,
}

/// What becomes of a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It stands in the new file.
    Mapped,
    /// Nothing has to be said: this is what the server does by itself.
    Same(String),
    /// Nothing in the new file stands for it; why, and what to do.
    Lost(String),
}

/// One section.
#[derive(Clone, Debug, Default)]
pub(super) struct Block {
    pub(super) header: String,
    /// Lines above it.
    pub(super) comments: Vec<String>,
    /// Key, value as TOML, and which parameter it is from.
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

/// The whole.
#[derive(Debug, Default)]
pub(super) struct Draft {
    pub(super) blocks: Vec<Block>,
    pub(super) fates: BTreeMap<String, Fate>,
    /// Parts of parameters, overrides of services and settings of tables that are lost: what, and why.
    pub(super) losses: Vec<(String, String)>,
    /// Restrictions, and what becomes of each.
    pub(super) rules: Vec<(String, String)>,
    pub(super) files: Vec<NewFile>,
    /// What becomes of mail that Postfix treated otherwise.
    pub(super) alarms: Vec<String>,
    /// What else to look at first.
    pub(super) first: Vec<String>,
    /// Names of the files that were read.
    pub(super) sources: BTreeSet<String>,
}

impl Draft {
    /// Puts a key into the one section with this header; the empty header is for what stands above all sections.
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

    /// Tells, once, what becomes of mail that Postfix treated otherwise.
    pub(super) fn alarm(&mut self, what: impl Into<String>) {
        let what = what.into();
        if !self.alarms.contains(&what) {
            self.alarms.push(what);
        }
    }

    /// Tells it among what to look at first, once.
    pub(super) fn look_at(&mut self, what: impl Into<String>) {
        let what = what.into();
        if !self.first.contains(&what) {
            self.first.push(what);
        }
    }
}

/// A text as TOML has it.
pub(super) fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

/// A list of texts as TOML has it.
pub(super) fn quoted_list<'t>(texts: impl IntoIterator<Item = &'t str>) -> String {
    let texts: Vec<String> = texts.into_iter().map(quoted).collect();
    format!("[{}]", texts.join(", "))
}
