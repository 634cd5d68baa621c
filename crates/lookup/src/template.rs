//! Texts with placeholders in braces, such as `mail:{key}`. A literal brace is doubled.

use std::fmt;
use std::str::FromStr;

use crate::key_part::KeyPart;

/// A piece of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TemplatePiece<P> {
    Text(Box<str>),
    Placeholder(P),
}

/// Why a text is not a template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// A brace without its partner.
    #[error("unbalanced brace: write a literal one twice, as {{{{ or }}}}")]
    Brace,
    /// An unknown name in braces.
    #[error("{{{name}}} is not known: expected {expected}")]
    Placeholder {
        /// The name.
        name: Box<str>,
        /// The names that are known.
        expected: Box<str>,
    },
}

/// Splits a text into its pieces. `placeholder` knows the names, which `expected` lists for errors.
pub(crate) fn pieces<P>(
    text: &str,
    placeholder: impl Fn(&str) -> Option<P>,
    expected: &str,
) -> Result<Vec<TemplatePiece<P>>, TemplateError> {
    let (mut pieces, mut literal, mut rest) = (Vec::new(), String::new(), text);
    while let Some(at) = rest.find(['{', '}']) {
        literal.push_str(&rest[..at]);
        let (brace, behind) = rest[at..].split_at(1);
        if let Some(behind) = behind.strip_prefix(brace) {
            literal.push_str(brace);
            rest = behind;
            continue;
        }
        let (name, behind) = behind.split_once('}').filter(|_| brace == "{").ok_or(TemplateError::Brace)?;
        let unknown = || TemplateError::Placeholder { name: name.into(), expected: expected.into() };
        let part = placeholder(name).ok_or_else(unknown)?;
        if !literal.is_empty() {
            pieces.push(TemplatePiece::Text(std::mem::take(&mut literal).into()));
        }
        pieces.push(TemplatePiece::Placeholder(part));
        rest = behind;
    }
    literal.push_str(rest);
    if !literal.is_empty() {
        pieces.push(TemplatePiece::Text(literal.into()));
    }
    Ok(pieces)
}

/// A template of parts of the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyTemplate {
    text: Box<str>,
    pieces: Vec<TemplatePiece<KeyPart>>,
}

impl KeyTemplate {
    /// Whether the text is the same for all keys.
    pub fn is_constant(&self) -> bool {
        self.pieces.iter().all(|piece| matches!(piece, TemplatePiece::Text(_)))
    }

    /// The text for a key; None if the key lacks a part.
    pub fn fill(&self, key: &str) -> Option<String> {
        let mut filled = String::new();
        for piece in &self.pieces {
            filled.push_str(match piece {
                TemplatePiece::Text(text) => text,
                TemplatePiece::Placeholder(part) => part.of(key)?,
            });
        }
        Some(filled)
    }
}

impl FromStr for KeyTemplate {
    type Err = TemplateError;

    fn from_str(text: &str) -> Result<Self, TemplateError> {
        Ok(KeyTemplate { text: text.into(), pieces: pieces(text, KeyPart::parse, KeyPart::NAMES)? })
    }
}

impl fmt::Display for KeyTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_key_fills_its_template_unless_a_part_is_missing() {
        let fill = |template: &str, key: &str| template.parse::<KeyTemplate>().unwrap().fill(key);
        assert_eq!(fill("mail:{key}", "{local}@x"), Some("mail:{local}@x".into()));
        assert_eq!(fill("{domain}/{local}/{{{label1}}}", "bob@x.org"), Some("x.org/bob/{org}".into()));
        assert_eq!(fill("{domain}/{local}", "bob"), None);
        assert_eq!(fill("{{key}}", "bob"), Some("{key}".into()));
        assert!("{{key}}".parse::<KeyTemplate>().unwrap().is_constant());
        assert!(!"{key}".parse::<KeyTemplate>().unwrap().is_constant());
    }

    #[test]
    fn what_is_no_template_is_told() {
        for (text, expected) in [
            ("{key", "unbalanced brace: write a literal one twice, as {{ or }}"),
            ("key}", "unbalanced brace"),
            ("{key}}", "unbalanced brace"),
            ("{user}", "{user} is not known: expected key, local, domain or label1 to label9"),
        ] {
            let error = text.parse::<KeyTemplate>().unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in "[{}a]{0,4}(\\{key\\}|[{}a]){0,4}", key in "\\PC{1,9}") {
            if let Ok(template) = text.parse::<KeyTemplate>() {
                prop_assert!(template.is_constant() || template.fill(&key).unwrap().contains(&key));
            }
        }
    }
}
