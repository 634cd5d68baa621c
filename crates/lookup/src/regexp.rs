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
//! (off), `x` ignores white space, also in classes, and comments in the pattern (off), `U` makes repetition lazy
//! (off). Keys are in lower case, so capital letters match nothing after the flag `i`.
//!
//! Entries cannot continue on the next line, and anything unexpected is an error with its line
//! number. Patterns are those of the `regex` crate: no back-references or look-around, and matching
//! takes linear time.

use std::io;
use std::path::{Path, PathBuf};

use regex::{Captures, Regex, RegexBuilder};

use crate::text::{self, TextLineError as ValuesMistake};
use crate::{LookupAnswer, LookupFuture, Table, ready_answers};

/// Memory limit of one compiled pattern, in octets.
const PATTERN_OCTETS_MAX: usize = 4 * 1024 * 1024;

/// A regular expression table in memory. It does not follow changes of its file; load it again for
/// that.
#[derive(Debug)]
pub struct RegexpTable {
    name: String,
    rules: Vec<Rule>,
}

/// Why a table cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum RegexpTableError {
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
        mistake: RegexpLineError,
    },
}

/// An error in a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegexpLineError {
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
    UnclosedPattern(char),
    /// An unknown flag.
    #[error("unknown flag '{0}': use i, m, s, x or U")]
    Flag(char),
    /// The pattern does not compile.
    #[error("{0}")]
    Pattern(String),
    /// Text after a condition or `endif`.
    #[error("unexpected text after the pattern of an if, or after endif")]
    TrailingText,
    /// An `endif` without `if`.
    #[error("endif without if")]
    EndifWithoutIf,
    /// An `if` without `endif`.
    #[error("if without endif")]
    IfWithoutEndif,
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
type Value = Vec<ValuePart>;

/// A literal or a group number.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ValuePart {
    Text(String),
    Group(usize),
}

impl RegexpTable {
    /// Loads the table `name` from a file.
    pub fn load(name: &str, path: &Path) -> Result<Self, RegexpTableError> {
        let bytes = std::fs::read(path).map_err(|source| RegexpTableError::Unreadable { path: path.into(), source })?;
        let rules =
            parse(&bytes).map_err(|(line, mistake)| RegexpTableError::Line { path: path.into(), line, mistake })?;
        Ok(RegexpTable { name: name.to_owned(), rules })
    }

    /// Looks up a folded key.
    fn find(&self, key: &str) -> LookupAnswer {
        let mut next = 0;
        while let Some(rule) = self.rules.get(next) {
            next += 1;
            match rule {
                Rule::If(condition, behind) if !condition.applies_to(key) => next = *behind,
                Rule::If(..) => {}
                Rule::Values(condition, values) if condition.negated => {
                    if condition.applies_to(key) {
                        return LookupAnswer::Found(fill_values(values, None));
                    }
                }
                Rule::Values(condition, values) => {
                    if let Some(groups) = condition.pattern.captures(key) {
                        return LookupAnswer::Found(fill_values(values, Some(&groups)));
                    }
                }
            }
        }
        LookupAnswer::NotFound
    }
}

impl Table for RegexpTable {
    fn name(&self) -> &str {
        &self.name
    }

    fn lookup<'a>(&'a self, keys: &'a [&'a str]) -> LookupFuture<'a> {
        ready_answers(keys, |key| self.find(key))
    }

    fn whole_keys_only(&self) -> bool {
        true
    }
}

impl Condition {
    fn applies_to(&self, key: &str) -> bool {
        self.pattern.is_match(key) != self.negated
    }

    /// The number of groups that values may use; None if the pattern is negated.
    fn groups(&self) -> Option<usize> {
        (!self.negated).then(|| self.pattern.captures_len() - 1)
    }
}

/// Inserts the matched groups into the values and drops empty results.
fn fill_values(values: &[Value], groups: Option<&Captures<'_>>) -> Vec<String> {
    let part = |part: &ValuePart| match part {
        ValuePart::Text(text) => text.clone(),
        ValuePart::Group(number) => {
            groups.and_then(|groups| groups.get(*number)).map_or("", |group| group.as_str()).into()
        }
    };
    let values = values.iter().map(|value| value.iter().map(part).collect::<String>());
    values.filter(|value| !value.is_empty()).collect()
}

fn parse(bytes: &[u8]) -> Result<Vec<Rule>, (usize, RegexpLineError)> {
    let mut rules = Vec::new();
    // Line number and rule index of each open `if`.
    let mut open: Vec<(usize, usize)> = Vec::new();
    for (number, bytes) in (1..).zip(bytes.split(|&byte| byte == b'\n')) {
        match parse_line(bytes).map_err(|mistake| (number, mistake))? {
            ParsedLine::Nothing => {}
            ParsedLine::Endif => {
                let (_, place) = open.pop().ok_or((number, RegexpLineError::EndifWithoutIf))?;
                let end = rules.len();
                if let Some(Rule::If(_, behind)) = rules.get_mut(place) {
                    *behind = end;
                }
            }
            ParsedLine::Rule(rule) => {
                if let Rule::If(..) = rule {
                    open.push((number, rules.len()));
                }
                rules.push(rule);
            }
        }
    }
    match open.pop() {
        Some((number, _)) => Err((number, RegexpLineError::IfWithoutEndif)),
        None => Ok(rules),
    }
}

/// A parsed line.
enum ParsedLine {
    Nothing,
    Rule(Rule),
    Endif,
}

fn parse_line(bytes: &[u8]) -> Result<ParsedLine, RegexpLineError> {
    let line = str::from_utf8(bytes).map_err(|_| RegexpLineError::Encoding)?.trim_end();
    if line.is_empty() || line.trim_start().starts_with('#') {
        return Ok(ParsedLine::Nothing);
    }
    if line.starts_with(char::is_whitespace) {
        return Err(RegexpLineError::Indented);
    }
    if let Some(behind) = keyword(line, "endif") {
        return if behind.is_empty() { Ok(ParsedLine::Endif) } else { Err(RegexpLineError::TrailingText) };
    }
    if let Some(condition) = keyword(line, "if") {
        let (condition, behind) = parse_condition(condition)?;
        // The target is set at the `endif`.
        return if behind.is_empty() {
            Ok(ParsedLine::Rule(Rule::If(condition, 0)))
        } else {
            Err(RegexpLineError::TrailingText)
        };
    }
    let (condition, values) = parse_condition(line)?;
    let values = text::parse_values(values)?;
    let values = values.iter().map(|value| parse_value(value, condition.groups())).collect::<Result<_, _>>()?;
    Ok(ParsedLine::Rule(Rule::Values(condition, values)))
}

/// The rest of the line if it begins with this word. As in Postfix, `if` and the pattern need no
/// space between them.
fn keyword<'a>(line: &'a str, word: &str) -> Option<&'a str> {
    let (begin, behind) = line.split_at_checked(word.len())?;
    let is_word = begin.eq_ignore_ascii_case(word) && !behind.starts_with(char::is_alphanumeric);
    is_word.then(|| behind.trim_start())
}

/// Parses a condition and returns the text after it.
fn parse_condition(text: &str) -> Result<(Condition, &str), RegexpLineError> {
    let (negated, text) = match text.strip_prefix('!') {
        Some(text) => (true, text.trim_start()),
        None => (false, text),
    };
    let mark = text.chars().next().filter(|&c| !c.is_alphanumeric() && !c.is_whitespace() && c != '\\');
    let mark = mark.ok_or(RegexpLineError::Form)?;
    let text = &text[mark.len_utf8()..];
    let end = closing_delimiter(text, mark).ok_or(RegexpLineError::UnclosedPattern(mark))?;
    let behind = &text[end + mark.len_utf8()..];
    let (flags, behind) = behind.split_at(behind.find(char::is_whitespace).unwrap_or(behind.len()));
    Ok((Condition { pattern: parse_pattern(&text[..end], flags)?, negated }, behind.trim()))
}

/// The end of the pattern: the next unescaped delimiter.
fn closing_delimiter(text: &str, mark: char) -> Option<usize> {
    let mut escaped = false;
    text.char_indices().find_map(|(place, c)| {
        let ends = c == mark && !escaped;
        escaped = c == '\\' && !escaped;
        ends.then_some(place)
    })
}

fn parse_pattern(pattern: &str, flags: &str) -> Result<Regex, RegexpLineError> {
    let (mut any_case, mut all_lines, mut each_line, mut spaced, mut lazy) = (true, true, false, false, false);
    for flag in flags.chars() {
        let turned = match flag {
            'i' => &mut any_case,
            's' => &mut all_lines,
            'm' => &mut each_line,
            'x' => &mut spaced,
            'U' => &mut lazy,
            _ => return Err(RegexpLineError::Flag(flag)),
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
        .map_err(|error| RegexpLineError::Pattern(last_line(&error.to_string())))
}

/// The last line of regex's error has the message; the lines before it show the position.
fn last_line(error: &str) -> String {
    error.lines().last().unwrap_or(error).trim().trim_start_matches("error: ").to_owned()
}

/// Parses a value; `groups` is the number of groups it may use, None if it may use none.
fn parse_value(mut text: &str, groups: Option<usize>) -> Result<Value, RegexpLineError> {
    let mut value = Vec::new();
    while let Some((before, behind)) = text.split_once('$') {
        value.push(ValuePart::Text(before.to_owned()));
        if let Some(behind) = behind.strip_prefix('$') {
            value.push(ValuePart::Text("$".to_owned()));
            text = behind;
            continue;
        }
        let (group, behind) = parse_group(behind).ok_or(RegexpLineError::Dollar)?;
        match groups {
            None => return Err(RegexpLineError::NegatedGroup),
            Some(groups) if group == 0 || group > groups => return Err(RegexpLineError::Group { group, groups }),
            Some(_) => value.push(ValuePart::Group(group)),
        }
        text = behind;
    }
    value.push(ValuePart::Text(text.to_owned()));
    value.retain(|part| *part != ValuePart::Text(String::new()));
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
