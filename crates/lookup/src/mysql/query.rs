//! A query with named parts of the key, and the statements made of it: with `?` in place of the
//! names, for one key or for several.
//!
//! Names in quotes, in backquotes and in comments are text. That is only a convenience: the server
//! parses the statement itself, and its number of parameters must be ours. Keys are never part of a
//! statement.

use std::fmt;
use std::str::FromStr;

use crate::key_part::KeyPart;

/// A query for one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MysqlQuery {
    text: Box<str>,
    /// The query with `?` in place of the names.
    statement: Box<str>,
    /// The part of the key for each `?`; at least one.
    parts: Box<[KeyPart]>,
}

/// Why a text cannot be the query of a table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MysqlQueryError {
    /// All keys would get the same answer.
    #[error("the query does not contain the key: expected :key, :local, :domain or :label1 to :label9")]
    NoKey,
    /// An unknown name after a colon.
    #[error(":{0} is not a part of the key: expected :key, :local, :domain or :label1 to :label9")]
    Part(Box<str>),
    /// A positional parameter.
    #[error("the query contains '?': expected :key, :local, :domain or :label1 to :label9 instead")]
    Positional,
    /// A text without its closing quote, or a comment without its end.
    #[error("a text or comment in the query is not closed")]
    Unclosed,
}

impl MysqlQuery {
    /// Whether a key has all parts that the query names. Otherwise it must not be asked.
    pub(super) fn has_parts(&self, key: &str) -> bool {
        self.parts.iter().all(|part| part.of(key).is_some())
    }

    /// The values for the parameters of a statement for these keys, which have all parts.
    pub(super) fn parameters<'k>(&self, keys: &[&'k str]) -> Vec<&'k str> {
        keys.iter().flat_map(|key| self.parts.iter().map(|part| part.of(key).unwrap_or_default())).collect()
    }

    /// The number of parameters for one key.
    pub(super) fn parameter_count(&self) -> usize {
        self.parts.len()
    }

    /// The statement for one key.
    pub(super) fn statement(&self) -> &str {
        &self.statement
    }

    /// The statement for several keys, whose first column is the number of the key.
    pub(super) fn statement_for(&self, keys: usize) -> String {
        // The query may end in a comment.
        let one = |number: usize| format!("SELECT {number}, q.* FROM ({}\n) AS q", self.statement);
        (0..keys).map(one).collect::<Vec<_>>().join(" UNION ALL ")
    }
}

impl FromStr for MysqlQuery {
    type Err = MysqlQueryError;

    fn from_str(text: &str) -> Result<Self, MysqlQueryError> {
        let trimmed = text.trim().trim_end_matches(';').trim_end();
        let (mut statement, mut parts, mut rest) = (String::new(), Vec::new(), trimmed);
        while let Some(first) = rest.chars().next() {
            let taken = match first {
                '?' => return Err(MysqlQueryError::Positional),
                ':' if rest[1..].starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') => {
                    let behind = &rest[1..];
                    let end = behind.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(behind.len());
                    let name = &behind[..end];
                    parts.push(KeyPart::parse(name).ok_or_else(|| MysqlQueryError::Part(name.into()))?);
                    statement.push('?');
                    rest = &behind[end..];
                    continue;
                }
                _ => literal_length(rest, first).ok_or(MysqlQueryError::Unclosed)?,
            };
            statement.push_str(&rest[..taken]);
            rest = &rest[taken..];
        }
        match parts.is_empty() {
            true => Err(MysqlQueryError::NoKey),
            false => Ok(MysqlQuery { text: text.into(), statement: statement.into(), parts: parts.into() }),
        }
    }
}

/// The length of the text, comment or character at the start; None if it does not end.
fn literal_length(rest: &str, first: char) -> Option<usize> {
    let line_end = || Some(rest.find('\n').unwrap_or(rest.len()));
    match first {
        '\'' | '"' | '`' => quoted_length(rest, first),
        '#' => line_end(),
        '-' if rest.starts_with("-- ") => line_end(),
        '/' if rest.starts_with("/*") => rest[2..].find("*/").map(|end| end + 4),
        _ => Some(first.len_utf8()),
    }
}

/// A backslash keeps the next character, except in backquotes. A doubled quote is two texts.
fn quoted_length(rest: &str, quote: char) -> Option<usize> {
    let mut chars = rest.char_indices().skip(1);
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' if quote != '`' => drop(chars.next()),
            _ if c == quote => return Some(at + 1),
            _ => {}
        }
    }
    None
}

impl fmt::Display for MysqlQuery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn query(text: &str) -> MysqlQuery {
        text.parse().unwrap()
    }

    #[test]
    fn parts_of_the_key_become_parameters() {
        let one = query(" SELECT a FROM t WHERE b = :key AND c=:domain AND d=:label2 OR e=:key ; ");
        assert_eq!(one.statement(), "SELECT a FROM t WHERE b = ? AND c=? AND d=? OR e=?");
        assert_eq!(one.parameters(&["b@x.org"]), ["b@x.org", "x.org", "x", "b@x.org"]);
        assert_eq!(one.parameter_count(), 4);
        assert!(one.has_parts("b@x.org") && !one.has_parts("b@org") && !one.has_parts("b"));
    }

    #[test]
    fn several_keys_share_a_statement() {
        let one = query("SELECT a FROM t WHERE b = :local -- why");
        let twice = "SELECT 0, q.* FROM (SELECT a FROM t WHERE b = ? -- why\n) AS q UNION ALL \
                     SELECT 1, q.* FROM (SELECT a FROM t WHERE b = ? -- why\n) AS q";
        assert_eq!(one.statement_for(2), twice);
        assert_eq!(one.parameters(&["b@x", "c"]), ["b", "c"]);
    }

    #[test]
    fn names_in_texts_and_comments_stay() {
        for kept in [
            "':key'",
            "'it''s :key'",
            r"'\':key'",
            "\":key\"",
            "`:key`",
            r"`\`",
            "/* :key ? */",
            "# :key ?\n",
            "-- ?\n",
            "a := 1",
            "'12:30'",
        ] {
            let one = query(&format!("SELECT {kept}, :key"));
            assert_eq!(one.statement(), format!("SELECT {kept}, ?"));
            assert_eq!(one.parameter_count(), 1);
        }
    }

    #[test]
    fn what_is_no_query_is_told() {
        for (text, expected) in [
            ("SELECT 1", MysqlQueryError::NoKey),
            ("SELECT ':key'", MysqlQueryError::NoKey),
            ("SELECT ?", MysqlQueryError::Positional),
            ("SELECT :kye", MysqlQueryError::Part("kye".into())),
            ("SELECT :keys", MysqlQueryError::Part("keys".into())),
            ("SELECT :key, 'a", MysqlQueryError::Unclosed),
            ("SELECT :key /* a", MysqlQueryError::Unclosed),
        ] {
            assert_eq!(text.parse::<MysqlQuery>(), Err(expected), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in "[a:?'\"`\\\\#/*\n ü-]{0,20}(:key)?[a:'\"\\\\ ]{0,9}") {
            if let Ok(query) = text.parse::<MysqlQuery>() {
                prop_assert_eq!(query.parameters(&["a@b"]).len(), query.parameter_count());
            }
        }
    }
}
