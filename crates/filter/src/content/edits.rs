//! What rules change in a message, as edits. Of several changes of one line, that of the first rule counts.

use mail::{DsnNotify, FILTER_FIELD, QUEUE_FIELD};

use super::findings::{LinePosition, RuleFindings};
use super::{ContentAction, ContentRule};
use crate::edit::{Edit, Field, ReplacedOctets};

/// A longer field is folded (RFC 5322 section 2.1.1).
const FOLDED_OCTETS_MAX: usize = 900;

/// The edits of all rules that apply.
#[derive(Default)]
pub(super) struct ContentEdits {
    changes: Vec<ReplacedOctets>,
    /// Changes of fields before the content: name, number, new field.
    prefix: Vec<(Box<str>, usize, Option<Field>)>,
    /// In the order of the rules.
    others: Vec<Edit>,
}

/// The new text of a field is no field.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NotAField(pub(super) String);

impl ContentEdits {
    /// Adds what a rule changes. A field that cannot be made is not changed.
    pub(super) fn add(&mut self, rule: &ContentRule, found: RuleFindings) -> Result<(), NotAField> {
        match &rule.action {
            ContentAction::Redirect(address) => self.others.push(Edit::Redirect(address.clone())),
            ContentAction::Bcc(address) => {
                let (address, notify) = (address.clone(), DsnNotify::NEVER);
                self.others.push(Edit::AddRecipient { address, notify, orcpt: None });
            }
            ContentAction::Prepend(template) => {
                let filled = found.line.and_then(|line| line.filled);
                self.others.push(Edit::PrependField(field(filled.as_deref().unwrap_or(template))?));
            }
            ContentAction::Queue(name) => {
                self.others.push(Edit::PrependField(field(&format!("{QUEUE_FIELD}: {name}"))?))
            }
            ContentAction::Filter(destination) => {
                self.others.push(Edit::PrependField(field(&format!("{FILTER_FIELD}: {destination}"))?))
            }
            ContentAction::Replace(_) | ContentAction::Remove => {
                found.changes.into_iter().try_for_each(|(position, text)| self.change(position, text.as_deref()))?;
            }
            ContentAction::Accept
            | ContentAction::Refuse(_)
            | ContentAction::Defer(_)
            | ContentAction::Hold
            | ContentAction::Discard
            | ContentAction::Warn => {}
        }
        Ok(())
    }

    /// Replaces a line, or removes it.
    fn change(&mut self, position: LinePosition, text: Option<&str>) -> Result<(), NotAField> {
        match position {
            LinePosition::Prefix(name, number) => self.prefix.push((name, number, text.map(field).transpose()?)),
            LinePosition::Field(place) => {
                let new = text.map(field).transpose()?.map_or_else(Vec::new, |field| field.wire().into());
                self.changes.push((place, new));
            }
            LinePosition::Line(place, end) => {
                let new = text.map_or_else(Vec::new, |text| [one_line(text).as_bytes(), end].concat());
                self.changes.push((place, new));
            }
        }
        Ok(())
    }

    /// All edits: first those whose places are counted in the message as it is.
    pub(super) fn into_edits(mut self) -> Vec<Edit> {
        self.changes.sort_by_key(|(place, _)| place.start);
        self.changes.dedup_by_key(|(place, _)| place.start);
        self.prefix.sort_by(|one, other| (&one.0, one.1).cmp(&(&other.0, other.1)));
        self.prefix.dedup_by(|second, first| second.1 == first.1 && second.0 == first.0);
        let changes = (!self.changes.is_empty()).then(|| Edit::ReplaceOctets { changes: self.changes.into() });
        // From the bottom to the top, so that the numbers stay right.
        let prefix = self.prefix.into_iter().rev();
        let prefix = prefix.map(|(name, occurrence, field)| Edit::ReplaceField { name, occurrence, field });
        changes.into_iter().chain(prefix).chain(self.others).collect()
    }
}

/// The field that a text is, folded.
fn field(text: &str) -> Result<Field, NotAField> {
    let line = one_line(text);
    let (name, value) = line.split_once(':').ok_or_else(|| NotAField(line.clone()))?;
    Field::new(name.trim_end(), &folded(value.trim(), name.len())).map_err(|_| NotAField(line.clone()))
}

fn one_line(text: &str) -> String {
    text.replace(['\r', '\n', '\0'], " ")
}

/// The value with line breaks before words, so that no line is too long unless a word is.
fn folded(value: &str, name_len: usize) -> String {
    let (mut folded, mut column) = (String::with_capacity(value.len()), name_len);
    for (number, word) in value.split(' ').enumerate() {
        if number > 0 && !word.is_empty() && column + word.len() > FOLDED_OCTETS_MAX {
            folded.push_str("\r\n ");
            column = 0;
        } else if number > 0 {
            folded.push(' ');
        }
        folded.push_str(word);
        column += 1 + word.len();
    }
    folded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_field_is_folded_between_words() {
        let text = format!("X-Long: {}", "word ".repeat(1000));
        let made = field(&text).unwrap();
        assert!(made.wire().split("\r\n").all(|line| line.len() <= FOLDED_OCTETS_MAX + 2), "{made}");
        assert_eq!(made.wire().replace("\r\n", ""), text.trim_end());
        assert_eq!(field("no colon"), Err(NotAField("no colon".to_owned())));
        assert_eq!(field("X: a\r\nBcc: b").unwrap().wire(), "X: a  Bcc: b\r\n");
    }

    #[test]
    fn the_first_rule_changes_a_line_and_numbers_stay_right() {
        let mut edits = ContentEdits::default();
        edits.change(LinePosition::Field(10..20), Some("A: 1")).unwrap();
        edits.change(LinePosition::Line(30..40, b"\r\n"), None).unwrap();
        edits.change(LinePosition::Field(10..20), None).unwrap();
        edits.change(LinePosition::Line(2..5, b"\r\n"), Some("x")).unwrap();
        edits.change(LinePosition::Prefix("X".into(), 1), None).unwrap();
        edits.change(LinePosition::Prefix("X".into(), 2), None).unwrap();
        let changes = [(2..5, b"x\r\n".to_vec()), (10..20, b"A: 1\r\n".to_vec()), (30..40, Vec::new())];
        let prefix = |occurrence| Edit::ReplaceField { name: "X".into(), occurrence, field: None };
        assert_eq!(edits.into_edits(), [Edit::ReplaceOctets { changes: changes.into() }, prefix(2), prefix(1)]);
    }
}
