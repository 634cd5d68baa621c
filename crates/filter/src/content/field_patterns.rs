//! Which rules match a header field. Most regular expressions begin with the names of the fields that they
//! are about (`^Subject:`), and rules may name them: a field with a name that occurs in none of these
//! rules costs one look at its name. Rules about any field are searched for apart from them.

use memchr::memchr;
use regex_syntax::hir::Look;
use regex_syntax::hir::literal::Extractor;

use super::line_patterns::LinePatterns;
use super::{ContentRule, InvalidPattern, LineCondition, LineScope};

const SCOPES: [LineScope; 3] = [LineScope::Header, LineScope::Mime, LineScope::Nested];

/// The patterns of the rules that look at fields.
pub(super) struct FieldPatterns {
    /// The names that the fields of `of_named_fields` have.
    names: FieldNames,
    of_named_fields: LinePatterns,
    of_any_field: LinePatterns,
}

impl FieldPatterns {
    /// # Errors
    ///
    /// The patterns are too large together.
    pub(super) fn new<'r>(
        rules: impl Iterator<Item = (usize, &'r ContentRule)>,
    ) -> Result<FieldPatterns, InvalidPattern> {
        let (mut names, mut named, mut others) = (FieldNames::default(), Vec::new(), Vec::new());
        for (number, rule) in rules {
            match rule.lines.as_ref().and_then(names_of_condition) {
                Some(own) => {
                    own.into_iter().for_each(|name| names.insert(name));
                    named.push((number, rule));
                }
                None => others.push((number, rule)),
            }
        }
        let of_named_fields = LinePatterns::new(named.into_iter(), &SCOPES)?;
        Ok(FieldPatterns { names, of_named_fields, of_any_field: LinePatterns::new(others.into_iter(), &SCOPES)? })
    }

    /// Whether a rule may match the field, which is as it was received: if not, it need not be read. A name
    /// with letters beyond ASCII may be equal to one without, where case is ignored.
    pub(super) fn may_match(&self, field: &[u8]) -> bool {
        if !self.of_any_field.is_empty() {
            return true;
        }
        // Names are short.
        let Some(end) = field.iter().position(|octet| *octet == b':') else { return false };
        let name = field[..end].trim_ascii_end();
        self.names.contains(name) || !name.iter().all(u8::is_ascii_graphic)
    }

    /// The rules whose condition a field of this name meets. `text` is the whole field on one line.
    pub(super) fn rules_of(&self, scopes: &[LineScope], name: &str, text: &str) -> Vec<usize> {
        let mut rules = self.of_named_fields.rules_of(scopes, Some(name), text);
        rules.extend(self.of_any_field.rules_of(scopes, Some(name), text));
        rules
    }
}

/// Names of fields by their length: few have the same.
#[derive(Default)]
struct FieldNames(Vec<Vec<Box<[u8]>>>);

impl FieldNames {
    fn insert(&mut self, name: Box<[u8]>) {
        if self.0.len() <= name.len() {
            self.0.resize_with(name.len() + 1, Vec::new);
        }
        if !self.contains(&name) {
            self.0[name.len()].push(name);
        }
    }

    /// In any case.
    fn contains(&self, name: &[u8]) -> bool {
        self.0.get(name.len()).is_some_and(|same| same.iter().any(|known| known.eq_ignore_ascii_case(name)))
    }
}

/// The names that a field must have to meet the condition; None: any.
fn names_of_condition(condition: &LineCondition) -> Option<Vec<Box<[u8]>>> {
    if condition.fields.is_empty() {
        return condition.matches.iter().find_map(|pattern| names_at_start(pattern.as_str()));
    }
    Some(condition.fields.iter().map(|name| name.as_bytes().into()).collect())
}

/// The names of fields that every match of the expression begins with; None: others are possible.
fn names_at_start(pattern: &str) -> Option<Vec<Box<[u8]>>> {
    let parsed = regex_syntax::parse(pattern).ok()?;
    if !parsed.properties().look_set_prefix().contains(Look::Start) {
        return None;
    }
    let starts = Extractor::new().extract(&parsed);
    let name = |start: &[u8]| -> Option<Box<[u8]>> {
        let name = start[..memchr(b':', start)?].trim_ascii_end();
        name.is_ascii().then(|| name.to_ascii_lowercase().into())
    };
    starts.literals()?.iter().map(|start| name(start.as_bytes())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::ContentAction;
    use crate::service_scope::ServiceScope;

    #[test]
    fn expressions_that_begin_with_names_are_only_about_these_fields() {
        let names = |pattern: &str| {
            let found = names_at_start(pattern)?;
            Some(found.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect::<Vec<_>>().join(" "))
        };
        for (pattern, expected) in [
            ("^Subject: .*sale", Some("subject")),
            ("^(From|Sender): x", Some("from sender")),
            ("^Content-(Type|Disposition):.*exe", Some("content-type content-disposition")),
            ("^X-A:|^X-B:", Some("x-a x-b")),
            ("(?-i)^To:", Some("to")),
            ("Subject:", None),
            ("^Subject", None),
            ("^X-.*: a", None),
            ("^Subject: a|b", None),
            ("(?m)^Subject: a", None),
            ("(^Subject:)?", None),
            ("^\u{17f}ubject:", None),
        ] {
            assert_eq!(names(pattern).as_deref(), expected, "{pattern}");
        }
    }

    fn patterns(expressions: &[&str]) -> FieldPatterns {
        let rule = |expression: &&str| ContentRule {
            name: "test".into(),
            list: None,
            scope: ServiceScope::default(),
            lines: Some(LineCondition {
                scopes: vec![LineScope::Header],
                matches: vec![expression.parse().unwrap()],
                ..LineCondition::default()
            }),
            attachment: None,
            action: ContentAction::Hold,
        };
        let rules: Vec<ContentRule> = expressions.iter().map(rule).collect();
        FieldPatterns::new(rules.iter().enumerate()).unwrap()
    }

    #[test]
    fn fields_that_no_rule_is_about_are_not_read() {
        let named = patterns(&["^Subject: sale", "^(From|To): x"]);
        for field in ["SUBJECT: a", "to : x", "\u{17f}ubject: a", "Sub\r\n ject: a"] {
            assert!(named.may_match(field.as_bytes()), "{field}");
        }
        for field in ["Subjects: a", "Date: To: x", "To", ""] {
            assert!(!named.may_match(field.as_bytes()), "{field}");
        }
        let mixed = patterns(&["sale", "^Subject: sale", "^To: sale"]);
        assert!(mixed.may_match(b"Date: x"));
        assert_eq!(mixed.rules_of(&[LineScope::Header], "Subject", "Subject: sale"), [1, 0]);
    }
}
