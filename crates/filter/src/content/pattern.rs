//! Regular expressions of content rules: those of the crate `regex`, without back-references and
//! look-around, so that a search takes linear time. Case is ignored unless the pattern begins with
//! `(?-i)`.

use std::fmt;
use std::str::FromStr;

use regex::{Captures, Regex, RegexBuilder};

/// The memory of one compiled pattern, in octets.
const PATTERN_OCTETS_MAX: usize = 4 << 20;

/// A regular expression.
#[derive(Clone, Debug)]
pub struct Pattern {
    regex: Regex,
}

/// The text is not a regular expression that can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidPattern(String);

impl InvalidPattern {
    pub(super) fn too_large_together() -> InvalidPattern {
        InvalidPattern("the regular expressions of the content rules are too large together".to_owned())
    }
}

impl Pattern {
    /// The pattern of a whole name, in which `*` stands for any text and `?` for one character.
    ///
    /// # Errors
    ///
    /// The name is too long.
    pub fn from_name(name: &str) -> Result<Pattern, InvalidPattern> {
        let mut pattern = String::from("^");
        for character in name.chars() {
            match character {
                '*' => pattern.push_str("(?s:.*)"),
                '?' => pattern.push_str("(?s:.)"),
                other => pattern.push_str(&regex::escape(other.encode_utf8(&mut [0; 4]))),
            }
        }
        pattern.push('$');
        pattern.parse()
    }

    /// The expression as it was written.
    pub fn as_str(&self) -> &str {
        self.regex.as_str()
    }

    /// The number of groups.
    pub fn groups(&self) -> usize {
        self.regex.captures_len() - 1
    }

    pub(super) fn is_match(&self, text: &str) -> bool {
        self.regex.is_match(text)
    }

    /// The template with the groups of the first match; as it is if there is none.
    pub(super) fn fill(&self, template: &str, text: &str) -> String {
        let mut filled = String::new();
        match self.regex.captures(text) {
            Some(groups) => Captures::expand(&groups, template, &mut filled),
            None => filled.push_str(template),
        }
        filled
    }
}

impl FromStr for Pattern {
    type Err = InvalidPattern;

    fn from_str(text: &str) -> Result<Pattern, InvalidPattern> {
        let built = RegexBuilder::new(text).case_insensitive(true).size_limit(PATTERN_OCTETS_MAX).build();
        let regex = built.map_err(|error| InvalidPattern(last_line(&error.to_string())))?;
        Ok(Pattern { regex })
    }
}

/// The last line of the error has the message; the lines before it show the place.
fn last_line(error: &str) -> String {
    error.lines().last().unwrap_or(error).trim().trim_start_matches("error: ").to_owned()
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Pattern) -> bool {
        self.as_str() == other.as_str()
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_as_a_whole_and_in_any_case() {
        let matches = |name: &str, text: &str| Pattern::from_name(name).unwrap().is_match(text);
        assert!(matches("*.exe", "Invoice.EXE") && matches("a?c.[x]", "abc.[x]") && matches("\u{e4}*", "\u{c4}b"));
        assert!(!matches("*.exe", "x.exe.txt") && !matches("a?c", "ac") && !matches("*.exe", "xexe"));
    }

    #[test]
    fn groups_are_filled_in() {
        let pattern: Pattern = "^Subject: (.*) from (\\w+)$".parse().unwrap();
        assert_eq!(pattern.fill("X-S: ${2}s, $1 $$", "subject: hello from bob"), "X-S: bobs, hello $");
        assert_eq!(pattern.fill("X: $1", "To: x"), "X: $1");
        assert_eq!(pattern.groups(), 2);
        assert!("(?=x)".parse::<Pattern>().is_err() && "(".parse::<Pattern>().is_err());
    }
}
