//! What was found in a message for each rule, and how lists share its lines.

use std::collections::BTreeMap;
use std::ops::Range;

use super::attachment::Attachment;
use super::{CompiledContentRule, ContentAction, ContentLimits};

/// Lines that are replaced or removed in one message.
pub(super) const CHANGES_MAX: usize = 1000;
/// Fields of one message that are looked up in tables, counted for each rule.
pub(super) const TABLE_LINES_MAX: usize = 1000;
/// Attachments of one message whose names are looked up in tables, counted for each rule.
pub(super) const TABLE_ATTACHMENTS_MAX: usize = 1000;
/// Octets of a value or a line that is looked up as a whole.
pub(super) const VALUE_OCTETS_MAX: usize = 1000;
/// Characters of a line that the log has.
const LOGGED_CHARS_MAX: usize = 200;

/// Where a line is in the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LinePosition {
    /// A field before the content: of its name, the number from the top, from 1.
    Prefix(Box<str>, usize),
    /// A field of the content, with its line end.
    Field(Range<u64>),
    /// A line of the body, with its line end, if it has one.
    Line(Range<u64>, &'static [u8]),
}

/// Whether a line of the body can be a key. Databases cannot look up a NUL.
fn is_key(text: &str) -> bool {
    !text.is_empty() && text.len() <= VALUE_OCTETS_MAX && !text.contains('\0')
}

/// What was found for one rule.
#[derive(Debug, Default)]
pub(super) struct RuleFindings {
    /// The first line that matches.
    pub(super) line: Option<FoundLine>,
    /// The first attachment that matches, by its name or type.
    pub(super) attachment: Option<Box<str>>,
    /// The lines to replace or remove, with the new text.
    pub(super) changes: Vec<(LinePosition, Option<String>)>,
}

/// A line that matches, as far as it is needed.
#[derive(Debug)]
pub(super) struct FoundLine {
    /// For the log, cut.
    pub(super) text: Box<str>,
    /// The text of the rule with the groups of the match.
    pub(super) filled: Option<String>,
}

/// A line that a rule matches if its table has the value of the field, or the line of the body.
#[derive(Debug)]
pub(super) struct TableLine {
    pub(super) rule: usize,
    pub(super) is_body: bool,
    pub(super) text: String,
    pub(super) position: Option<LinePosition>,
}

/// An attachment that a rule matches if its table has one of the names.
#[derive(Debug)]
pub(super) struct TableAttachment {
    pub(super) rule: usize,
    pub(super) names: Vec<String>,
}

/// What was found for all rules.
pub(super) struct Findings<'r> {
    rules: &'r [CompiledContentRule],
    /// Which rules are about this message.
    in_scope: Vec<bool>,
    /// By the number of the rule: most rules find nothing.
    found: BTreeMap<usize, RuleFindings>,
    pub(super) table_lines: Vec<TableLine>,
    pub(super) table_attachments: Vec<TableAttachment>,
    /// [`TABLE_ATTACHMENTS_MAX`] or [`TABLE_LINES_MAX`] is exceeded.
    pub(super) has_too_many_lookups: bool,
    /// The fields among the lines that are looked up.
    table_fields: usize,
    /// How many more octets of lines of the body may be looked up.
    body_lookup_octets_left: u64,
    changes: usize,
}

/// [`CHANGES_MAX`] is exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooManyChanges;

impl<'r> Findings<'r> {
    pub(super) fn new(rules: &'r [CompiledContentRule], in_scope: Vec<bool>, limits: ContentLimits) -> Findings<'r> {
        Findings {
            rules,
            in_scope,
            found: BTreeMap::new(),
            table_lines: Vec::new(),
            table_attachments: Vec::new(),
            has_too_many_lookups: false,
            table_fields: 0,
            body_lookup_octets_left: limits.body_lookup_octets_max,
            changes: 0,
        }
    }

    /// Whether a rule about this message meets the test.
    pub(super) fn any_rule(&self, is_met: impl Fn(&CompiledContentRule) -> bool) -> bool {
        self.rules.iter().zip(&self.in_scope).any(|(rule, in_scope)| *in_scope && is_met(rule))
    }

    /// Whether nothing was found for any rule.
    pub(super) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Takes a field that the conditions of these rules match, which are in order, each with the form of
    /// the field that it matches.
    pub(super) fn take_field(
        &mut self,
        matching: &[(usize, &str)],
        position: Option<&LinePosition>,
    ) -> Result<(), TooManyChanges> {
        let may_look_up = self.table_fields < TABLE_LINES_MAX;
        let waiting = self.table_lines.len();
        let wanted = self.take_line(matching, position, may_look_up, false)?;
        self.table_fields += self.table_lines.len() - waiting;
        self.has_too_many_lookups |= wanted && !may_look_up;
        Ok(())
    }

    /// Takes a line of the body that the conditions of these rules match, which are in order. A line
    /// without a position is a decoded form that is not in the message.
    pub(super) fn take_body_line(
        &mut self,
        rules: &[usize],
        text: &str,
        position: Option<&LinePosition>,
    ) -> Result<(), TooManyChanges> {
        let matching: Vec<(usize, &str)> = rules.iter().map(|rule| (*rule, text)).collect();
        // The line end counts, so that short lines cannot make many lookups.
        let octets = text.len() as u64 + 2;
        let may_look_up = octets <= self.body_lookup_octets_left;
        let wanted = self.take_line(&matching, position, may_look_up && is_key(text), true)?;
        if wanted {
            self.body_lookup_octets_left = if may_look_up { self.body_lookup_octets_left - octets } else { 0 };
        }
        Ok(())
    }

    /// Takes a line. Returns whether a table has to be asked about it.
    fn take_line(
        &mut self,
        matching: &[(usize, &str)],
        position: Option<&LinePosition>,
        may_look_up: bool,
        is_body: bool,
    ) -> Result<bool, TooManyChanges> {
        let mut wants_lookup = false;
        let mut taken: Vec<&str> = Vec::new();
        for &(number, text) in matching {
            let CompiledContentRule { rule, table, .. } = &self.rules[number];
            if !self.in_scope[number] {
                continue;
            }
            if let Some(list) = rule.list.as_deref() {
                if taken.contains(&list) {
                    continue;
                }
                taken.push(list);
            }
            wants_lookup |= table.is_some();
            match table {
                Some(_) if may_look_up => {
                    let (text, position) = (text.to_owned(), position.cloned());
                    self.table_lines.push(TableLine { rule: number, is_body, text, position });
                }
                Some(_) => {}
                None => self.add_line(number, text, position)?,
            }
        }
        Ok(wants_lookup)
    }

    /// A line matches all conditions of a rule on lines.
    pub(super) fn add_line(
        &mut self,
        number: usize,
        text: &str,
        position: Option<&LinePosition>,
    ) -> Result<(), TooManyChanges> {
        let rule = &self.rules[number].rule;
        let fill = |template: &str| {
            let first = rule.lines.as_ref().and_then(|lines| lines.matches.first());
            first.map_or_else(|| template.to_owned(), |pattern| pattern.fill(template, text))
        };
        let filled = match &rule.action {
            ContentAction::Prepend(template) | ContentAction::Replace(template) => Some(fill(template)),
            _ => None,
        };
        let found = self.found.entry(number).or_default();
        let is_change = matches!(rule.action, ContentAction::Replace(_) | ContentAction::Remove);
        if let Some(position) = position.filter(|_| is_change) {
            self.changes += 1;
            if self.changes > CHANGES_MAX {
                return Err(TooManyChanges);
            }
            found.changes.push((position.clone(), filled.clone()));
        }
        found.line.get_or_insert_with(|| FoundLine { text: cut(text), filled });
        Ok(())
    }

    /// Takes an attachment, which is complete.
    pub(super) fn take_attachment(&mut self, attachment: &Attachment) {
        for (number, (rule, _)) in self.rules.iter().zip(&self.in_scope).enumerate().filter(|(_, (_, is_in))| **is_in) {
            if !rule.rule.attachment.as_ref().is_some_and(|condition| condition.includes(attachment)) {
                continue;
            }
            match rule.attachment_table {
                Some(_) if self.table_attachments.len() < TABLE_ATTACHMENTS_MAX => {
                    self.table_attachments.push(TableAttachment { rule: number, names: attachment.names.clone() });
                }
                Some(_) => self.has_too_many_lookups = true,
                None => {
                    let name = attachment.names.first().unwrap_or(&attachment.media_type);
                    self.found.entry(number).or_default().attachment.get_or_insert_with(|| cut(name));
                }
            }
        }
    }

    /// The table of a rule has the name of an attachment.
    pub(super) fn add_attachment(&mut self, number: usize, name: &str) {
        self.found.entry(number).or_default().attachment.get_or_insert_with(|| cut(name));
    }

    /// The rules that apply, in order, with what was found for them.
    pub(super) fn applying(mut self) -> impl Iterator<Item = (&'r CompiledContentRule, RuleFindings)> {
        let rules = self.rules.iter().zip(self.in_scope).enumerate();
        rules.filter_map(move |(number, (rule, in_scope))| {
            let found = match self.found.remove(&number) {
                None if rule.rule.is_conditional() => return None,
                found => found.unwrap_or_default(),
            };
            let has_line = rule.rule.lines.is_none() || found.line.is_some();
            let has_attachment = rule.rule.attachment.is_none() || found.attachment.is_some();
            (in_scope && has_line && has_attachment).then_some((rule, found))
        })
    }
}

fn cut(text: &str) -> Box<str> {
    text.chars().take(LOGGED_CHARS_MAX).collect::<String>().into()
}
