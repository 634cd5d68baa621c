//! Tables of regular expressions, written as for Postfix (pcre_table(5), regexp_table(5)). Kept in memory.
//!
//! ```text
//! # the first line that matches counts
//! /^(.+)-(owner|request)@lists\.example\.org$/   lists+$2=${1}@example.org
//! if /@old\.example\.org$/
//! /^(postmaster|abuse)@/                         admin@example.org, log@example.org
//! !/^sales-/                                     rest@example.org
//! endif
//! ```
//!
//! | line                       | means                                                                          |
//! |----------------------------|--------------------------------------------------------------------------------|
//! | `/pattern/flags values`    | a key that matches has these values, parted by commas as in a text table        |
//! | `!/pattern/flags values`   | a key that does not match has them                                              |
//! | `if /pattern/`, `if !/pattern/` | the lines down to the `endif` of this `if` are for such keys alone; they nest |
//!
//! Any mark may stand for the slashes; a backslash before it keeps its meaning. In values `$1`, `${1}` and `$(1)` are what
//! a group matched, and `$$` is a dollar. Values are parted before that, so that no key makes two values of one; one that
//! comes out empty is left out. Each flag turns a default around: `i` ignores case (on), `s` lets a dot match the end of a
//! line (on), `m` lets `^` and `$` match at each line (off), `x` ignores white space and comments in the pattern (off),
//! `U` makes repetitions take as little as they can (off). Keys are in lower case: behind the flag `i` a capital letter
//! matches nothing.
//!
//! As in text tables an entry never goes on in the next line, and whatever looks odd is an error with its line number.
//! Patterns are those of the crate `regex`: without back-references and looking around, in return a key takes time in
//! proportion to its length, whatever the pattern.

use std::io;
use std::path::{Path, PathBuf};

use regex::{Captures, Regex, RegexBuilder};

use crate::text::{self, Mistake as ValuesMistake};
use crate::{Answer, Answers, Table, answer_now};

/// Octets that one pattern may take in memory.
const PATTERN_OCTETS_MAX: usize = 4 * 1024 * 1024;

/// A table in memory. It stays as it was loaded; load another to see changes.
#[derive(Debug)]
pub struct Regexp {
    name: String,
    rules: Vec<Rule>,
}

/// Why a file is no table.
#[derive(Debug, thiserror::Error)]
pub enum RegexpError {
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
    #[error("the line begins with white space; an entry is one line, also between if and endif")]
    Indented,
    /// Something else than a pattern begins the line.
    #[error("expected is /pattern/flags value, if /pattern/flags, or endif")]
    Form,
    /// The pattern does not end.
    #[error("the pattern is not closed by a second '{0}'")]
    Open(char),
    /// What follows the pattern is no flag.
    #[error("'{0}' is no flag; there are i, m, s, x and U")]
    Flag(char),
    /// The pattern is none.
    #[error("{0}")]
    Pattern(String),
    /// More than a condition.
    #[error("nothing may stand behind the pattern of an if, or behind endif")]
    Behind,
    /// There is no `if` before it.
    #[error("this endif has no if")]
    Endif,
    /// There is no `endif` behind it.
    #[error("this if has no endif")]
    If,
    /// The values are no list.
    #[error(transparent)]
    Values(#[from] ValuesMistake),
    /// A dollar that means nothing.
    #[error("what follows '$' is no number of a group; write $1, ${{1}} or $(1), and $$ for a dollar")]
    Dollar,
    /// The pattern has not so many groups.
    #[error("there is no group {group}: the pattern has {groups}")]
    Group {
        /// What the value names.
        group: usize,
        /// What there is.
        groups: usize,
    },
    /// What does not match has no groups.
    #[error("a pattern behind '!' has no groups that a value could name")]
    NegatedGroup,
}

/// A line.
#[derive(Debug)]
enum Rule {
    /// Keys that it is for have these values.
    Values(Condition, Vec<Value>),
    /// Other keys go on at this rule, behind the `endif`.
    If(Condition, usize),
}

/// Which keys a line is for.
#[derive(Debug)]
struct Condition {
    pattern: Regex,
    negated: bool,
}

/// A value, to be filled in from what a pattern matched.
type Value = Vec<Part>;

/// A part of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Group(usize),
}

impl Regexp {
    /// Reads the table `name` from a file.
    pub fn load(name: &str, path: &Path) -> Result<Self, RegexpError> {
        let bytes = std::fs::read(path).map_err(|source| RegexpError::Unreadable { path: path.into(), source })?;
        let rules = parse(&bytes).map_err(|(line, mistake)| RegexpError::Line { path: path.into(), line, mistake })?;
        Ok(Regexp { name: name.to_owned(), rules })
    }

    /// What it has for a folded key.
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

    /// How many groups its values may name; None where there can be none.
    fn groups(&self) -> Option<usize> {
        (!self.negated).then(|| self.pattern.captures_len() - 1)
    }
}

/// The values with what the groups matched; those that come out empty are left out.
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
    // Where each `if` that is open stands, by its line and among the rules.
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

/// One line, parsed.
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
        // Where it goes on is known when its `endif` is.
        return if behind.is_empty() { Ok(Line::Rule(Rule::If(condition, 0))) } else { Err(Mistake::Behind) };
    }
    let (condition, values) = parse_condition(line)?;
    let values = text::parse_values(values)?;
    let values = values.iter().map(|value| parse_value(value, condition.groups())).collect::<Result<_, _>>()?;
    Ok(Line::Rule(Rule::Values(condition, values)))
}

/// What is behind this word, if the line begins with it. Other programs let `if` and a pattern touch each other, and so
/// do we.
fn keyword<'a>(line: &'a str, word: &str) -> Option<&'a str> {
    let (begin, behind) = line.split_at_checked(word.len())?;
    let is_word = begin.eq_ignore_ascii_case(word) && !behind.starts_with(char::is_alphanumeric);
    is_word.then(|| behind.trim_start())
}

/// A condition, and what is behind it.
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

/// Where the pattern ends: at the next mark that no backslash precedes.
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

/// The last line of an error says what is wrong; those before draw the pattern, with a mark at the place.
fn in_one_line(error: &str) -> String {
    error.lines().last().unwrap_or(error).trim().trim_start_matches("error: ").to_owned()
}

/// `groups` is how many groups may be named; None where there can be none.
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

/// The number of a group as it stands behind a dollar, and what is behind it.
fn parse_group(text: &str) -> Option<(usize, &str)> {
    let (inner, closed_by) = match text.chars().next()? {
        '{' => (&text[1..], "}"),
        '(' => (&text[1..], ")"),
        _ => (text, ""),
    };
    let (digits, behind) = inner.split_at(inner.find(|c: char| !c.is_ascii_digit()).unwrap_or(inner.len()));
    Some((digits.parse().ok()?, behind.strip_prefix(closed_by)?))
}
