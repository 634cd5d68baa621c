//! Text tables, kept in memory: one entry per line, a key, white space, comma-separated values.
//!
//! ```text
//! # aliases
//! sales@example.org       bob@example.org, carol@example.net
//! "a b"@example.org       "a, b"@example.net
//! dave@example.org
//! ```
//!
//! Lines that begin with `#` are comments. Quoted white space and commas do not separate. An entry
//! cannot continue on the next line, and a key may appear only once. Anything unexpected is an
//! error with its line number, because a misread table sends mail to the wrong place.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::io;
use std::path::{Path, PathBuf};

use crate::{LookupAnswer, LookupFuture, Table, fold_key, ready_answers};

/// A text table in memory. It does not follow changes of its file; load it again for that.
#[derive(Debug)]
pub struct TextTable {
    name: String,
    entries: HashMap<String, Vec<String>>,
}

/// Why a text table cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum TextTableError {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// A line has an error.
    #[error("{}:{line}: {mistake}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line number, from 1.
        line: usize,
        /// The error.
        mistake: TextLineError,
    },
}

/// An error in a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextLineError {
    /// Invalid UTF-8.
    #[error("the line is not UTF-8")]
    Encoding,
    /// The line begins with white space, which other programs take as a continuation.
    #[error("the line begins with white space; write each entry on one line, key first")]
    Indented,
    /// The key ends in a colon, as in sendmail's alias files.
    #[error("the key ends in a colon; write 'key value'")]
    Colon,
    /// An unclosed quote.
    #[error("unclosed double quote")]
    Quote,
    /// Nothing between two commas, or after the last one.
    #[error("empty value: remove the extra comma")]
    EmptyValue,
    /// A second entry for a key.
    #[error("duplicate key '{key}', first in line {first}; list all its values there, separated by commas")]
    Duplicate {
        /// The folded key.
        key: String,
        /// The line of the first entry.
        first: usize,
    },
}

/// A parsed line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TextEntry {
    pub(crate) key: String,
    pub(crate) values: Vec<String>,
}

impl TextTable {
    /// Loads the table `name` from a file.
    pub fn load(name: &str, path: &Path) -> Result<Self, TextTableError> {
        let entries = read(path)?.into_iter().map(|entry| (entry.key, entry.values)).collect();
        Ok(TextTable { name: name.to_owned(), entries })
    }

    /// Whether it has this folded key.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.entries.contains_key(key)
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl Table for TextTable {
    fn name(&self) -> &str {
        &self.name
    }

    fn lookup<'a>(&'a self, keys: &'a [&'a str]) -> LookupFuture<'a> {
        ready_answers(keys, |key| self.entries.get(key).cloned().map_or(LookupAnswer::NotFound, LookupAnswer::Found))
    }
}

/// All entries of a file, in order.
pub(crate) fn read(path: &Path) -> Result<Vec<TextEntry>, TextTableError> {
    let bytes = std::fs::read(path).map_err(|source| TextTableError::Unreadable { path: path.into(), source })?;
    parse(&bytes).map_err(|(line, mistake)| TextTableError::Line { path: path.into(), line, mistake })
}

fn parse(bytes: &[u8]) -> Result<Vec<TextEntry>, (usize, TextLineError)> {
    let mut entries = Vec::new();
    let mut lines: HashMap<String, usize> = HashMap::new();
    for (number, bytes) in (1..).zip(bytes.split(|&byte| byte == b'\n')) {
        let Some(entry) = parse_line(bytes).map_err(|mistake| (number, mistake))? else { continue };
        match lines.entry(entry.key.clone()) {
            Slot::Occupied(first) => {
                return Err((number, TextLineError::Duplicate { key: entry.key, first: *first.get() }));
            }
            Slot::Vacant(slot) => slot.insert(number),
        };
        entries.push(entry);
    }
    Ok(entries)
}

/// Parses a line; None for a comment or an empty line.
fn parse_line(bytes: &[u8]) -> Result<Option<TextEntry>, TextLineError> {
    let line = str::from_utf8(bytes).map_err(|_| TextLineError::Encoding)?.trim_end();
    if line.is_empty() || line.trim_start().starts_with('#') {
        return Ok(None);
    }
    if line.starts_with(char::is_whitespace) {
        return Err(TextLineError::Indented);
    }
    let (key, values) = split_outside_quotes(line, char::is_whitespace)?;
    if key.ends_with(':') {
        return Err(TextLineError::Colon);
    }
    Ok(Some(TextEntry { key: fold_key(key), values: parse_values(values.unwrap_or_default())? }))
}

/// Splits comma-separated values and removes the white space around them.
pub(crate) fn parse_values(text: &str) -> Result<Vec<String>, TextLineError> {
    let mut values = Vec::new();
    let mut left = Some(text).filter(|text| !text.trim().is_empty());
    while let Some(text) = left {
        let (value, rest) = split_outside_quotes(text, |c| c == ',')?;
        if value.trim().is_empty() {
            return Err(TextLineError::EmptyValue);
        }
        values.push(value.trim().to_owned());
        left = rest;
    }
    Ok(values)
}

/// Splits at the first separator outside quotes. Within quotes a backslash escapes the next
/// character.
fn split_outside_quotes(text: &str, parts: impl Fn(char) -> bool) -> Result<(&str, Option<&str>), TextLineError> {
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
    if quoted { Err(TextLineError::Quote) } else { Ok((text, None)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: &str, values: &[&str]) -> TextEntry {
        TextEntry { key: key.into(), values: values.iter().map(|&value| value.into()).collect() }
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
    fn an_error_names_its_line() {
        let duplicate = TextLineError::Duplicate { key: "a".into(), first: 1 };
        let cases: [(&[u8], usize, TextLineError); 9] = [
            (b"a b\nc \xff", 2, TextLineError::Encoding),
            (b"a b\n  c\n", 2, TextLineError::Indented),
            (b"a: b\n", 1, TextLineError::Colon),
            (b"\n\n\"a b\n", 3, TextLineError::Quote),
            (b"a \"b", 1, TextLineError::Quote),
            (b"a b,,c", 1, TextLineError::EmptyValue),
            (b"a b,", 1, TextLineError::EmptyValue),
            (b"a ,", 1, TextLineError::EmptyValue),
            (b"a b\n#\nA c\n", 3, duplicate),
        ];
        for (text, line, mistake) in cases {
            assert_eq!(parse(text), Err((line, mistake)), "{}", text.escape_ascii());
        }
    }
}
