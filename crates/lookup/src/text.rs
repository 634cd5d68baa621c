//! Text tables: one entry a line, a key, white space, then values parted by commas. Kept in memory.
//!
//! ```text
//! # who stands for whom
//! sales@example.org       bob@example.org, carol@example.net
//! "a b"@example.org       "a, b"@example.net
//! dave@example.org
//! ```
//!
//! Lines that begin with `#` are comments. White space and commas within double quotes part nothing. An entry never
//! goes on in the next line, and a key comes only once; whatever else looks odd is an error with its line number,
//! since a table that is read otherwise than it was meant sends mail astray.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::io;
use std::path::{Path, PathBuf};

use crate::{Answer, Answers, Table, answer_now, fold};

/// A table in memory. It stays as it was loaded; load another to see changes.
#[derive(Debug)]
pub struct Text {
    name: String,
    entries: HashMap<String, Vec<String>>,
}

/// Why a file is no table.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// It cannot be read.
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A line is not an entry.
    #[error("{}:{line}: {mistake}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line's number, from 1.
        line: usize,
        /// What is wrong with it.
        mistake: Mistake,
    },
}

/// What is wrong with a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mistake {
    /// The bytes are no text.
    #[error("the line is not UTF-8")]
    Encoding,
    /// Other programs continue an entry this way.
    #[error("the line begins with white space; an entry is one line, with its key first")]
    Indented,
    /// Other programs write a key this way.
    #[error("the key ends in a colon; write 'key value'")]
    Colon,
    /// A quote opens and does not close.
    #[error("a double quote is not closed")]
    Quote,
    /// Nothing between two commas, or after the last.
    #[error("a value is empty: there is a comma too many")]
    EmptyValue,
    /// Each key comes once.
    #[error("the key '{key}' is in line {first} already; write all its values there, parted by commas")]
    Duplicate {
        /// The key, folded.
        key: String,
        /// Where it was.
        first: usize,
    },
}

/// One line, parsed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) values: Vec<String>,
}

impl Text {
    /// Reads the table `name` from a file.
    pub fn load(name: &str, path: &Path) -> Result<Self, TextError> {
        let entries = read(path)?.into_iter().map(|entry| (entry.key, entry.values)).collect();
        Ok(Text { name: name.to_owned(), entries })
    }

    /// Whether it has a key, which is folded.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.entries.contains_key(key)
    }

    /// How many keys it has.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it has no keys.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl Table for Text {
    fn name(&self) -> &str {
        &self.name
    }

    fn lookup<'a>(&'a self, keys: &'a [&'a str]) -> Answers<'a> {
        answer_now(keys, |key| self.entries.get(key).cloned().map_or(Answer::NotFound, Answer::Found))
    }
}

/// All entries of a file, in its order.
pub(crate) fn read(path: &Path) -> Result<Vec<Entry>, TextError> {
    let bytes = std::fs::read(path).map_err(|source| TextError::Unreadable { path: path.into(), source })?;
    parse(&bytes).map_err(|(line, mistake)| TextError::Line { path: path.into(), line, mistake })
}

fn parse(bytes: &[u8]) -> Result<Vec<Entry>, (usize, Mistake)> {
    let mut entries = Vec::new();
    let mut lines: HashMap<String, usize> = HashMap::new();
    for (number, bytes) in (1..).zip(bytes.split(|&byte| byte == b'\n')) {
        let Some(entry) = parse_line(bytes).map_err(|mistake| (number, mistake))? else { continue };
        match lines.entry(entry.key.clone()) {
            Slot::Occupied(first) => {
                return Err((number, Mistake::Duplicate { key: entry.key, first: *first.get() }));
            }
            Slot::Vacant(slot) => slot.insert(number),
        };
        entries.push(entry);
    }
    Ok(entries)
}

/// None for a comment or an empty line.
fn parse_line(bytes: &[u8]) -> Result<Option<Entry>, Mistake> {
    let line = str::from_utf8(bytes).map_err(|_| Mistake::Encoding)?.trim_end();
    if line.is_empty() || line.trim_start().starts_with('#') {
        return Ok(None);
    }
    if line.starts_with(char::is_whitespace) {
        return Err(Mistake::Indented);
    }
    let (key, values) = split_outside_quotes(line, char::is_whitespace)?;
    if key.ends_with(':') {
        return Err(Mistake::Colon);
    }
    Ok(Some(Entry { key: fold(key), values: parse_values(values.unwrap_or_default())? }))
}

/// Values parted by commas; white space around them does not count.
pub(crate) fn parse_values(text: &str) -> Result<Vec<String>, Mistake> {
    let mut values = Vec::new();
    let mut left = Some(text).filter(|text| !text.trim().is_empty());
    while let Some(text) = left {
        let (value, rest) = split_outside_quotes(text, |c| c == ',')?;
        if value.trim().is_empty() {
            return Err(Mistake::EmptyValue);
        }
        values.push(value.trim().to_owned());
        left = rest;
    }
    Ok(values)
}

/// Splits at the first such character that no quotes enclose; within quotes a backslash takes the next one's meaning.
fn split_outside_quotes(text: &str, parts: impl Fn(char) -> bool) -> Result<(&str, Option<&str>), Mistake> {
    let (mut quoted, mut escaped) = (false, false);
    for (place, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            _ if !quoted && parts(c) => return Ok((&text[..place], Some(&text[place + c.len_utf8()..]))),
            _ => {}
        }
    }
    if quoted { Err(Mistake::Quote) } else { Ok((text, None)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: &str, values: &[&str]) -> Entry {
        Entry { key: key.into(), values: values.iter().map(|&value| value.into()).collect() }
    }

    #[test]
    fn a_line_is_a_key_and_its_values() {
        for (line, expected) in [
            ("bob@example.org", entry("bob@example.org", &[])),
            ("Bob@Example.ORG \t Carol@example.net\r", entry("bob@example.org", &["Carol@example.net"])),
            ("team a@x ,b@x,  c@x  ", entry("team", &["a@x", "b@x", "c@x"])),
            ("\"A b\"@x \"c, d\"@y, e@z", entry("\"a b\"@x", &["\"c, d\"@y", "e@z"])),
            ("\"a\\\" b\"@x \"c\\\\\"@y", entry("\"a\\\" b\"@x", &["\"c\\\\\"@y"])),
            ("JÜRGEN@x two words", entry("jürgen@x", &["two words"])),
            ("a#b@x c#d@x", entry("a#b@x", &["c#d@x"])),
        ] {
            assert_eq!(parse(line.as_bytes()), Ok(vec![expected]), "{line}");
        }
    }

    #[test]
    fn comments_and_empty_lines_are_no_entries() {
        assert_eq!(parse(b"# one\n\n \t\n  # two\n\r\nkey value"), Ok(vec![entry("key", &["value"])]));
        assert_eq!(parse(b""), Ok(Vec::new()));
    }

    #[test]
    fn a_mistake_is_told_with_its_line() {
        let duplicate = Mistake::Duplicate { key: "a".into(), first: 1 };
        let cases: [(&[u8], usize, Mistake); 9] = [
            (b"a b\nc \xff", 2, Mistake::Encoding),
            (b"a b\n  c\n", 2, Mistake::Indented),
            (b"a: b\n", 1, Mistake::Colon),
            (b"\n\n\"a b\n", 3, Mistake::Quote),
            (b"a \"b", 1, Mistake::Quote),
            (b"a b,,c", 1, Mistake::EmptyValue),
            (b"a b,", 1, Mistake::EmptyValue),
            (b"a ,", 1, Mistake::EmptyValue),
            (b"a b\n#\nA c\n", 3, duplicate),
        ];
        for (text, line, mistake) in cases {
            assert_eq!(parse(text), Err((line, mistake)), "{}", text.escape_ascii());
        }
    }
}
