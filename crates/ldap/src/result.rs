//! The values of an answer: attributes of an entry, or templates with attributes.
//!
//! An attribute contributes all its values. A template such as `{mailMessageStore}/Maildir/` gives
//! one value per combination of its attributes' values, and none if an attribute is missing.

use std::fmt;
use std::str::FromStr;

use super::message::SearchEntry;
use super::schema::Schema;
use super::search_filter::is_attribute;

/// An attribute or template for values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResultTemplate {
    text: Box<str>,
    pieces: Vec<TemplatePart>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum TemplatePart {
    Text(Box<str>),
    Attribute(Box<str>),
}

/// Why a text is not a result template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResultTemplateError {
    /// No attribute.
    #[error("invalid result '{0}': expected an attribute name or a template with {{attribute}}")]
    NoAttribute(Box<str>),
    /// An unbalanced brace.
    #[error("invalid result '{0}': unbalanced brace")]
    Brace(Box<str>),
    /// Invalid text in braces.
    #[error("invalid result '{template}': '{name}' is not an attribute name")]
    Attribute {
        /// The template.
        template: Box<str>,
        /// The text in braces.
        name: Box<str>,
    },
}

/// Values that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ValueError {
    /// A value is not UTF-8.
    #[error("a value of '{attribute}' of '{dn}' is not UTF-8")]
    NotText {
        /// The attribute, as the server names it.
        attribute: Box<str>,
        /// The DN of the entry.
        dn: Box<str>,
    },
    /// The server returned only some of the values (Active Directory's range retrieval).
    #[error("'{dn}' has more values than the server returned: '{attribute}'")]
    Partial {
        /// The attribute, as the server names it.
        attribute: Box<str>,
        /// The DN of the entry.
        dn: Box<str>,
    },
}

impl ResultTemplate {
    /// The attributes in the template.
    pub(crate) fn attributes(&self) -> impl Iterator<Item = &str> {
        self.pieces.iter().filter_map(|piece| match piece {
            TemplatePart::Attribute(name) => Some(&**name),
            TemplatePart::Text(_) => None,
        })
    }

    /// Passes the values for an entry to `take` until it returns false.
    pub(crate) fn values(
        &self,
        entry: &SearchEntry,
        schema: &Schema,
        take: &mut impl FnMut(String) -> bool,
    ) -> Result<(), ValueError> {
        let mut parts = Vec::with_capacity(self.pieces.len());
        for piece in &self.pieces {
            parts.push(match piece {
                TemplatePart::Text(text) => vec![&**text],
                TemplatePart::Attribute(name) => text_values(entry, name, schema)?,
            });
        }
        combine(&parts, String::new(), take);
        Ok(())
    }
}

/// Combines the values of all parts, varying the last one first. Returns false when no more are
/// wanted.
fn combine(parts: &[Vec<&str>], so_far: String, take: &mut impl FnMut(String) -> bool) -> bool {
    let [first, rest @ ..] = parts else { return take(so_far) };
    // An empty part leaves no combinations.
    rest.iter().any(Vec::is_empty) || first.iter().all(|text| combine(rest, format!("{so_far}{text}"), take))
}

/// The values of an attribute under all its names, with any options.
pub(crate) fn text_values<'a>(
    entry: &'a SearchEntry,
    attribute: &str,
    schema: &Schema,
) -> Result<Vec<&'a str>, ValueError> {
    let mut texts = Vec::new();
    for (name, values) in entry.attributes().filter(|(name, _)| schema.is_same_attribute(attribute, name)) {
        let (attribute, dn) = (|| name.into(), || entry.dn().into());
        if is_partial_range(name) {
            return Err(ValueError::Partial { attribute: attribute(), dn: dn() });
        }
        for value in values {
            let text = str::from_utf8(value);
            texts.push(text.map_err(|_| ValueError::NotText { attribute: attribute(), dn: dn() })?);
        }
    }
    Ok(texts)
}

/// Whether the description has a range option that leaves out values, such as
/// `member;range=0-1499`. The last range ends in `*`.
pub(crate) fn is_partial_range(name: &str) -> bool {
    name.split(';').skip(1).any(|option| {
        let is_range = option.get(..6).is_some_and(|start| start.eq_ignore_ascii_case("range="));
        is_range && !(option[6..].starts_with("0-") && option.ends_with('*'))
    })
}

impl FromStr for ResultTemplate {
    type Err = ResultTemplateError;

    fn from_str(text: &str) -> Result<Self, ResultTemplateError> {
        if is_attribute(text) {
            return Ok(ResultTemplate { text: text.into(), pieces: vec![TemplatePart::Attribute(text.into())] });
        }
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some((before, behind)) = rest.split_once('{') {
            let (name, behind) = behind.split_once('}').ok_or_else(|| ResultTemplateError::Brace(text.into()))?;
            if before.contains('}') {
                return Err(ResultTemplateError::Brace(text.into()));
            }
            if !is_attribute(name) {
                return Err(ResultTemplateError::Attribute { template: text.into(), name: name.into() });
            }
            if !before.is_empty() {
                pieces.push(TemplatePart::Text(before.into()));
            }
            pieces.push(TemplatePart::Attribute(name.into()));
            rest = behind;
        }
        if rest.contains('}') {
            return Err(ResultTemplateError::Brace(text.into()));
        }
        if pieces.is_empty() {
            return Err(ResultTemplateError::NoAttribute(text.into()));
        }
        if !rest.is_empty() {
            pieces.push(TemplatePart::Text(rest.into()));
        }
        Ok(ResultTemplate { text: text.into(), pieces })
    }
}

impl fmt::Display for ResultTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::tests::entry;
    use super::*;

    fn values(template: &str, entry: &SearchEntry) -> Vec<String> {
        let mut values = Vec::new();
        let template: ResultTemplate = template.parse().unwrap();
        template
            .values(entry, &Schema::default(), &mut |value| {
                values.push(value);
                values.len() < 5
            })
            .unwrap();
        values
    }

    #[test]
    fn each_value_counts_and_what_is_lacking_gives_none() {
        let entry = entry(
            "cn=x",
            &[("mail", &[b"a@b", b"c@d"]), ("UID", &[b"u"]), ("big", &[b"1", b"2", b"3"]), ("void", &[])],
        );
        assert_eq!(values("Mail", &entry), ["a@b", "c@d"]);
        assert_eq!(values("{mail}", &entry), ["a@b", "c@d"]);
        assert_eq!(values("/{uid}/{mail}/", &entry), ["/u/a@b/", "/u/c@d/"]);
        assert_eq!(values("{mail}{big}", &entry), ["a@b1", "a@b2", "a@b3", "c@d1", "c@d2"]);
        assert!(values("{mail}{none}", &entry).is_empty());
        assert!(values("{none}{mail}", &entry).is_empty());
        assert!(values("{void}/", &entry).is_empty());
    }

    #[test]
    fn values_that_are_no_text_or_not_all_are_told() {
        let entry = entry(
            "cn=x",
            &[("a", &[b"ok", &[0xff]]), ("b;range=0-9", &[b"1"]), ("c;Range=0-*", &[b"2"]), ("d;range=5-*", &[b"3"])],
        );
        let fails = |template: &str| {
            let template: ResultTemplate = template.parse().unwrap();
            template.values(&entry, &Schema::default(), &mut |_| true).err().map(|error| error.to_string())
        };
        assert_eq!(fails("a"), Some("a value of 'a' of 'cn=x' is not UTF-8".to_owned()));
        assert_eq!(fails("b"), Some("'cn=x' has more values than the server returned: 'b;range=0-9'".to_owned()));
        assert_eq!(fails("c"), None);
        assert!(fails("d").is_some());
    }

    #[test]
    fn what_is_no_result_says_what_was_expected() {
        for text in ["mail", "2.5.4.3", "cn;lang-de", "{a}", "x{a}y{b}", "{2.5.4.3}/ü"] {
            let template: ResultTemplate = text.parse().unwrap();
            assert_eq!(template.to_string(), text);
        }
        for (text, error) in [
            ("", "expected an attribute name or a template with {attribute}"),
            ("/var/mail", "expected an attribute name or a template with {attribute}"),
            ("{a", "unbalanced brace"),
            ("a}{b}", "unbalanced brace"),
            ("{b}}", "unbalanced brace"),
            ("{}", "'' is not an attribute name"),
            ("{a b}", "'a b' is not an attribute name"),
        ] {
            let found = text.parse::<ResultTemplate>().unwrap_err().to_string();
            assert!(found.contains(error), "{found}");
        }
    }
}
