//! Regular expression tables in Postfix's format (pcre_table(5), regexp_table(5)), kept in memory.
//!
//! ```text
//! # the first matching line applies
//! /^(.+)-(owner|request)@lists\.example\.org$/   lists+$2=${1}@example.org
//! if /@old\.example\.org$/
//! /^(postmaster|abuse)@/                         admin@example.org, log@example.org
//! !/^sales-/                                     rest@example.org
//! endif
//! ```
//!
//! | line                            | meaning                                                            |
//! |---------------------------------|--------------------------------------------------------------------|
//! | `/pattern/flags values`         | the values of matching keys, comma-separated as in a text table    |
//! | `!/pattern/flags values`        | the values of keys that do not match                               |
//! | `if /pattern/`, `if !/pattern/` | lines up to the matching `endif` apply to these keys only; can nest |
//!
//! Any other punctuation may replace the slashes; a backslash escapes it. In values, `$1`, `${1}`
//! and `$(1)` insert a group and `$$` is a dollar sign. Values are split before groups are
//! inserted, so a key cannot add values; empty results are dropped. A flag inverts a default: `i`
//! ignores case (on), `s` lets a dot match a newline (on), `m` lets `^` and `$` match at line ends
//! (off), `x` ignores white space and comments in the pattern (off), `U` makes repetition lazy
//! (off). Keys are in lower case, so capital letters match nothing after the flag `i`.
//!
//! Entries cannot continue on the next line, and anything unexpected is an error with its line
//! number. Patterns are those of the `regex` crate: no back-references or look-around, and matching
//! takes linear time.

use std::io;
use std::path::{Path, PathBuf};

use regex::{Captures, Regex, RegexBuilder};

use crate::text::{self, Mistake as ValuesMistake};
use crate::{Answer, Answers, Table, answer_now};

/// Memory limit of one compiled pattern, in octets.
const PATTERN_OCTETS_MAX: usize = 4 * 1024 * 1024;

/// A regular expression table in memory. It does not follow changes of its file; load it again for
/// that.
#[derive(Debug)]
pub struct Regexp {
    name: String,
    rules: Vec<Rule>,
}

/// Why a table cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum RegexpError {
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
        mistake: Mistake,
    },
}

/// An error in a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mistake {
    /// Invalid UTF-8.
    #[error("the line is not UTF-8")]
    Encoding,
    /// The line begins with white space, which other programs take as a continuation.
    #[error("the line begins with white space; write each entry on one line, also between if and endif")]
    Indented,
    /// The line does not begin with a pattern, `if` or `endif`.
    #[error("expected /pattern/flags value, if /pattern/flags, or endif")]
    Form,
    /// The pattern has no end.
    #[error("unclosed pattern: missing '{0}'")]
    Open(char),
    /// An unknown flag.
    #[error("unknown flag '{0}': use i, m, s, x or U")]
    Flag(char),
    /// The pattern does not compile.
    #[error("{0}")]
    Pattern(String),
    /// Text after a condition or `endif`.
    #[error("unexpected text after the pattern of an if, or after endif")]
    Behind,
    /// An `endif` without `if`.
    #[error("endif without if")]
    Endif,
    /// An `if` without `endif`.
    #[error("if without endif")]
    If,
    /// An error in the list of values.
    #[error(transparent)]
    Values(#[from] ValuesMistake),
    /// A dollar sign without a group number.
    #[error("expected a group number after '$': write $1, ${{1}} or $(1), or $$ for a dollar sign")]
    Dollar,
    /// A group that the pattern does not have.
    #[error("no group {group}: the pattern has {groups}")]
    Group {
        /// The group number in the value.
        group: usize,
        /// The number of groups.
        groups: usize,
    },
    /// A group in the value of a negated pattern.
    #[error("a value cannot use groups of a negated pattern")]
    NegatedGroup,
}

/// A parsed rule.
#[derive(Debug)]
enum Rule {
    /// The values of keys that meet the condition.
    Values(Condition, Vec<Value>),
    /// Skips to this rule, after the `endif`, for keys that do not meet the condition.
    If(Condition, usize),
}

/// The keys that a rule applies to.
#[derive(Debug)]
struct Condition {
    pattern: Regex,
    negated: bool,
}

/// A value with groups to insert.
type Value = Vec<Part>;

/// A literal or a group number.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Group(usize),
}

impl Regexp {
    /// Loads the table `name` from a file.
    pub fn load(name: &str, path: &Path) -> Result<Self, RegexpError> {
        let bytes = std::fs::read(path).map_err(|source| RegexpError::Unreadable { path: path.into(), source })?;
        let rules = parse(&bytes).map_err(|(line, mistake)| RegexpError::Line { path: path.into(), line, mistake })?;
        Ok(Regexp { name: name.to_owned(), rules })
    }

    /// Looks up a folded key.
    fn find(&self, key: &str) -> Answer {
        let mut next = 0;
        while let Some(rule) = self.rules.get(next) {
            next += 1;
            match rule {
                Rule::If(condition, behind) if !condition.holds(key) => next = *behind,
                Rule::If(..) => {}
                Rule::Values(condition, values) if condition.negated => {
                    if condition.holds(key) {
                        return Answer::Found(filled(values, None));
                    }
                }
                Rule::Values(condition, values) => {
                    if let Some(groups) = condition.pattern.captures(key) {
                        return Answer::Found(filled(values, Some(&groups)));
                    }
                }
            }
        }
        Answer::NotFound
    }
}

impl Table for Regexp {
    fn name(&self) -> &str {
        &self.name
    }

    fn lookup<'a>(&'a self, keys: &'a [&'a str]) -> Answers<'a> {
        answer_now(keys, |key| self.find(key))
    }

    fn is_asked_whole(&self) -> bool {
        true
    }
}

impl Condition {
    fn holds(&self, key: &str) -> bool {
        self.pattern.is_match(key) != self.negated
    }

    /// The number of groups that values may use; None if the pattern is negated.
    fn groups(&self) -> Option<usize> {
        (!self.negated).then(|| self.pattern.captures_len() - 1)
    }
}

/// Inserts the matched groups into the values and drops empty results.
fn filled(values: &[Value], groups: Option<&Captures<'_>>) -> Vec<String> {
    let part = |part: &Part| match part {
        Part::Text(text) => text.clone(),
        Part::Group(number) => groups.and_then(|groups| groups.get(*number)).map_or("", |group| group.as_str()).into(),
    };
    let values = values.iter().map(|value| value.iter().map(part).collect::<String>());
    values.filter(|value| !value.is_empty()).collect()
}

fn parse(bytes: &[u8]) -> Result<Vec<Rule>, (usize, Mistake)> {
    let mut rules = Vec::new();
    // Line number and rule index of each open `if`.
    let mut open: Vec<(usize, usize)> = Vec::new();
    for (number, bytes) in (1..).zip(bytes.split(|&byte| byte == b'\n')) {
        match parse_line(bytes).map_err(|mistake| (number, mistake))? {
            Line::Nothing => {}
            Line::Endif => {
                let (_, place) = open.pop().ok_or((number, Mistake::Endif))?;
                let end = rules.len();
                if let Some(Rule::If(_, behind)) = rules.get_mut(place) {
                    *behind = end;
                }
            }
            Line::Rule(rule) => {
                if let Rule::If(..) = rule {
                    open.push((number, rules.len()));
                }
                rules.push(rule);
            }
        }
    }
    match open.pop() {
        Some((number, _)) => Err((number, Mistake::If)),
        None => Ok(rules),
    }
}

/// A parsed line.
enum Line {
    Nothing,
    Rule(Rule),
    Endif,
}

fn parse_line(bytes: &[u8]) -> Result<Line, Mistake> {
    let line = str::from_utf8(bytes).map_err(|_| Mistake::Encoding)?.trim_end();
    if line.is_empty() || line.trim_start().starts_with('#') {
        return Ok(Line::Nothing);
    }
    if line.starts_with(char::is_whitespace) {
        return Err(Mistake::Indented);
    }
    if let Some(behind) = keyword(line, "endif") {
        return if behind.is_empty() { Ok(Line::Endif) } else { Err(Mistake::Behind) };
    }
    if let Some(condition) = keyword(line, "if") {
        let (condition, behind) = parse_condition(condition)?;
        // The target is set at the `endif`.
        return if behind.is_empty() { Ok(Line::Rule(Rule::If(condition, 0))) } else { Err(Mistake::Behind) };
    }
    let (condition, values) = parse_condition(line)?;
    let values = text::parse_values(values)?;
    let values = values.iter().map(|value| parse_value(value, condition.groups())).collect::<Result<_, _>>()?;
    Ok(Line::Rule(Rule::Values(condition, values)))
}

/// The rest of the line if it begins with this word. As in Postfix, `if` and the pattern need no
/// space between them.
fn keyword<'a>(line: &'a str, word: &str) -> Option<&'a str> {
    let (begin, behind) = line.split_at_checked(word.len())?;
    let is_word = begin.eq_ignore_ascii_case(word) && !behind.starts_with(char::is_alphanumeric);
    is_word.then(|| behind.trim_start())
}

/// Parses a condition and returns the text after it.
fn parse_condition(text: &str) -> Result<(Condition, &str), Mistake> {
    let (negated, text) = match text.strip_prefix('!') {
        Some(text) => (true, text.trim_start()),
        None => (false, text),
    };
    let mark = text.chars().next().filter(|&c| !c.is_alphanumeric() && !c.is_whitespace() && c != '\\');
    let mark = mark.ok_or(Mistake::Form)?;
    let text = &text[mark.len_utf8()..];
    let end = closing(text, mark).ok_or(Mistake::Open(mark))?;
    let behind = &text[end + mark.len_utf8()..];
    let (flags, behind) = behind.split_at(behind.find(char::is_whitespace).unwrap_or(behind.len()));
    Ok((Condition { pattern: parse_pattern(&text[..end], flags)?, negated }, behind.trim()))
}

/// The end of the pattern: the next unescaped delimiter.
fn closing(text: &str, mark: char) -> Option<usize> {
    let mut escaped = false;
    text.char_indices().find_map(|(place, c)| {
        let ends = c == mark && !escaped;
        escaped = c == '\\' && !escaped;
        ends.then_some(place)
    })
}

fn parse_pattern(pattern: &str, flags: &str) -> Result<Regex, Mistake> {
    let (mut any_case, mut all_lines, mut each_line, mut spaced, mut lazy) = (true, true, false, false, false);
    for flag in flags.chars() {
        let turned = match flag {
            'i' => &mut any_case,
            's' => &mut all_lines,
            'm' => &mut each_line,
            'x' => &mut spaced,
            'U' => &mut lazy,
            _ => return Err(Mistake::Flag(flag)),
        };
        *turned = !*turned;
    }
    RegexBuilder::new(pattern)
        .case_insensitive(any_case)
        .dot_matches_new_line(all_lines)
        .multi_line(each_line)
        .ignore_whitespace(spaced)
        .swap_greed(lazy)
        .size_limit(PATTERN_OCTETS_MAX)
        .build()
        .map_err(|error| Mistake::Pattern(in_one_line(&error.to_string())))
}

/// The last line of regex's error has the message; the lines before it show the position.
fn in_one_line(error: &str) -> String {
    error.lines().last().unwrap_or(error).trim().trim_start_matches("error: ").to_owned()
}

/// Parses a value; `groups` is the number of groups it may use, None if it may use none.
fn parse_value(mut text: &str, groups: Option<usize>) -> Result<Value, Mistake> {
    let mut value = Vec::new();
    while let Some((before, behind)) = text.split_once('$') {
        value.push(Part::Text(before.to_owned()));
        if let Some(behind) = behind.strip_prefix('$') {
            value.push(Part::Text("$".to_owned()));
            text = behind;
            continue;
        }
        let (group, behind) = parse_group(behind).ok_or(Mistake::Dollar)?;
        match groups {
            None => return Err(Mistake::NegatedGroup),
            Some(groups) if group == 0 || group > groups => return Err(Mistake::Group { group, groups }),
            Some(_) => value.push(Part::Group(group)),
        }
        text = behind;
    }
    value.push(Part::Text(text.to_owned()));
    value.retain(|part| *part != Part::Text(String::new()));
    Ok(value)
}

/// Parses the group number after a dollar sign and returns the text after it.
fn parse_group(text: &str) -> Option<(usize, &str)> {
    let (inner, closed_by) = match text.chars().next()? {
        '{' => (&text[1..], "}"),
        '(' => (&text[1..], ")"),
        _ => (text, ""),
    };
    let (digits, behind) = inner.split_at(inner.find(|c: char| !c.is_ascii_digit()).unwrap_or(inner.len()));
    Some((digits.parse().ok()?, behind.strip_prefix(closed_by)?))
}
