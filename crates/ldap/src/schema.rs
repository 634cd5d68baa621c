//! The part of a server's schema that a table needs (RFC 4512 section 4.1.2): other names of its
//! attributes, and their equality rules.
//!
//! Keys may share a search only if their attributes have an equality rule that we implement, and no
//! subtypes, whose values would appear under other names. Attributes missing from the schema are
//! unknown; then each key has its own search. This never causes a wrong answer.

use std::borrow::Cow;
use std::collections::HashMap;

/// Equality of values in printable ASCII (RFC 4517 section 4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EqualityRule {
    /// Ignores case and repeated spaces: caseIgnoreMatch, caseIgnoreIA5Match.
    IgnoreCase,
    /// Ignores repeated spaces: caseExactMatch, caseExactIA5Match.
    Exact,
}

impl EqualityRule {
    /// The normalized form of a value: equal values have equal forms. Only for printable ASCII (see
    /// [`is_printable_ascii`]); servers apply further rules to other text (RFC 4518).
    pub fn normalize<'a>(self, value: &'a str) -> Cow<'a, str> {
        let value = value.trim_matches(' ');
        let squeezed = match value.contains("  ") {
            true => Cow::Owned(value.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")),
            false => Cow::Borrowed(value),
        };
        match self {
            EqualityRule::IgnoreCase if squeezed.bytes().any(|octet| octet.is_ascii_uppercase()) => {
                Cow::Owned(squeezed.to_ascii_lowercase())
            }
            _ => squeezed,
        }
    }

    fn of(name: &str) -> Option<EqualityRule> {
        // Rules may also appear by their OIDs from RFC 4517.
        match name.to_ascii_lowercase().as_str() {
            "caseignorematch" | "2.5.13.2" => Some(EqualityRule::IgnoreCase),
            "caseignoreia5match" | "1.3.6.1.4.1.1466.109.114.2" => Some(EqualityRule::IgnoreCase),
            "caseexactmatch" | "2.5.13.5" => Some(EqualityRule::Exact),
            "caseexactia5match" | "1.3.6.1.4.1.1466.109.114.1" => Some(EqualityRule::Exact),
            _ => None,
        }
    }
}

/// Whether a text is printable ASCII, whose equality we know.
pub fn is_printable_ascii(octets: &[u8]) -> bool {
    octets.iter().all(|octet| (0x20..0x7f).contains(octet))
}

/// The known attributes by their configured names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Schema {
    attributes: Vec<Attribute>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Attribute {
    /// The configured name.
    name: Box<str>,
    /// All names, including the OID.
    names: Vec<Box<str>>,
    rule: Option<EqualityRule>,
}

impl Schema {
    /// Reads these attributes from `attributeTypes` descriptions.
    pub(crate) fn read<'a>(descriptions: impl Iterator<Item = &'a str>, names: &[&str]) -> Schema {
        let types: Vec<AttributeType> = descriptions.filter_map(AttributeType::parse).collect();
        let mut by_name = HashMap::new();
        for (place, one) in types.iter().enumerate() {
            for name in one.all_names() {
                by_name.insert(name.to_ascii_lowercase(), place);
            }
        }
        let place_of = |name: &str| by_name.get(&name.to_ascii_lowercase()).copied();
        let mut attributes = Vec::new();
        for name in names {
            let Some(place) = place_of(name) else { continue };
            let known = &types[place];
            let names: Vec<Box<str>> = known.all_names().map(Into::into).collect();
            let is_known_as = |name: &str| names.iter().any(|other| other.eq_ignore_ascii_case(name));
            let has_subtypes = types.iter().any(|other| other.supertype.is_some_and(is_known_as));
            let rule = if has_subtypes { None } else { rule_of(known, &types, place_of) };
            attributes.push(Attribute { name: (*name).into(), names, rule });
        }
        Schema { attributes }
    }

    /// The equality rule of an attribute; None if unknown or not implemented.
    pub(crate) fn rule(&self, attribute: &str) -> Option<EqualityRule> {
        self.attributes.iter().find(|known| *known.name == *attribute)?.rule
    }

    /// Whether `description`, from an entry, means this attribute: by any of its names, with any
    /// options unless the configuration has options.
    pub(crate) fn is_same_attribute(&self, attribute: &str, description: &str) -> bool {
        if attribute.eq_ignore_ascii_case(description) {
            return true;
        }
        let (name, _) = description.split_once(';').unwrap_or((description, ""));
        let known = self.attributes.iter().find(|known| *known.name == *attribute);
        attribute.eq_ignore_ascii_case(name)
            || known.is_some_and(|known| known.names.iter().any(|other| other.eq_ignore_ascii_case(name)))
    }
}

/// The equality rule of an attribute type, possibly inherited.
fn rule_of(
    one: &AttributeType<'_>,
    types: &[AttributeType<'_>],
    place_of: impl Fn(&str) -> Option<usize>,
) -> Option<EqualityRule> {
    let mut one = one;
    // A chain of supertypes longer than the schema is a loop.
    for _ in 0..types.len() {
        if let Some(equality) = one.equality {
            return EqualityRule::of(equality);
        }
        one = &types[place_of(one.supertype?)?];
    }
    None
}

/// The used parts of an attribute type description.
struct AttributeType<'a> {
    oid: &'a str,
    names: Vec<&'a str>,
    supertype: Option<&'a str>,
    equality: Option<&'a str>,
}

impl<'a> AttributeType<'a> {
    fn all_names(&self) -> impl Iterator<Item = &'a str> {
        std::iter::once(self.oid).chain(self.names.iter().copied())
    }

    fn parse(description: &'a str) -> Option<AttributeType<'a>> {
        let mut words = SchemaTokens(description);
        if words.next()? != "(" {
            return None;
        }
        let mut one = AttributeType { oid: words.next()?, names: Vec::new(), supertype: None, equality: None };
        while let Some(word) = words.next() {
            match word {
                "NAME" => match words.next()? {
                    "(" => one.names.extend(words.by_ref().take_while(|&word| word != ")")),
                    name => one.names.push(name),
                },
                "SUP" => one.supertype = words.next(),
                "EQUALITY" => one.equality = words.next(),
                // The description may contain any word.
                "DESC" => drop(words.next()),
                _ => {}
            }
        }
        Some(one)
    }
}

/// The tokens of a description: parentheses, quoted strings, and words.
struct SchemaTokens<'a>(&'a str);

impl<'a> Iterator for SchemaTokens<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        self.0 = self.0.trim_start();
        if let Some(quoted) = self.0.strip_prefix('\'') {
            let (word, rest) = quoted.split_once('\'')?;
            self.0 = rest;
            return Some(word);
        }
        let end = match self.0.chars().next()? {
            '(' | ')' => 1,
            _ => self.0.find(|c: char| c.is_whitespace() || "()'".contains(c)).unwrap_or(self.0.len()),
        };
        let (word, rest) = self.0.split_at(end);
        self.0 = rest;
        Some(word)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TYPES: &[&str] = &[
        "( 2.5.4.0 NAME 'objectClass' DESC 'RFC4512: object classes' EQUALITY objectIdentifierMatch )",
        "( 2.5.4.41 NAME 'name' DESC 'has ( and SUP x EQUALITY y in it' EQUALITY caseIgnoreMatch )",
        "( 2.5.4.3 NAME ( 'cn' 'commonName' ) SUP NAME )",
        "( 2.5.4.4 NAME ( 'sn' 'surname') SUP 2.5.4.41 X-ORIGIN 'RFC 4519' )",
        "(0.9.2342.19200300.100.1.3 NAME ('mail' 'rfc822Mailbox')EQUALITY 1.3.6.1.4.1.1466.109.114.2 SINGLE-VALUE)",
        "( 1.1 NAME 'exact' EQUALITY CASEexactMATCH )",
        "( 1.2 NAME 'dnLike' EQUALITY distinguishedNameMatch )",
        "( 1.3 NAME 'none' SYNTAX 1.3.6.1.4.1.1466.115.121.1.15 )",
        "( 1.4 NAME 'loopA' SUP loopB )",
        "( 1.5 NAME 'loopB' SUP loopA )",
        "( 1.6 NAME 'orphan' SUP missing )",
        "( 1.7 NAME 'open",
        "( 1.8",
        "nonsense",
        "",
    ];

    #[test]
    fn rules_are_read_and_inherited() {
        let names = ["MAIL", "cn", "SurName", "exact", "dnLike", "none", "loopA", "orphan", "name", "2.5.4.3", "other"];
        let schema = Schema::read(TYPES.iter().copied(), &names);
        for (name, rule) in [
            ("MAIL", Some(EqualityRule::IgnoreCase)),
            ("cn", Some(EqualityRule::IgnoreCase)),
            ("SurName", Some(EqualityRule::IgnoreCase)),
            ("2.5.4.3", Some(EqualityRule::IgnoreCase)),
            ("exact", Some(EqualityRule::Exact)),
            ("dnLike", None),
            ("none", None),
            ("loopA", None),
            ("orphan", None),
            // It has subtypes.
            ("name", None),
            ("other", None),
        ] {
            assert_eq!(schema.rule(name), rule, "{name}");
        }
    }

    #[test]
    fn attributes_go_by_their_names_and_with_options() {
        let schema = Schema::read(TYPES.iter().copied(), &["cn", "MAIL", "mail;x-a"]);
        for other in ["CN", "commonname", "2.5.4.3", "cn;lang-de", "CommonName;lang-de;x-b"] {
            assert!(schema.is_same_attribute("cn", other), "{other}");
        }
        assert!(schema.is_same_attribute("MAIL", "rfc822mailbox"));
        assert!(schema.is_same_attribute("mail;x-a", "Mail;X-A"));
        assert!(schema.is_same_attribute("unknown", "UNKNOWN;x"));
        for (attribute, other) in [("cn", "sn"), ("cn", "c"), ("mail;x-a", "mail"), ("unknown", "cn")] {
            assert!(!schema.is_same_attribute(attribute, other), "{attribute} {other}");
        }
    }

    #[test]
    fn forms_are_the_same_for_what_is_equal() {
        assert_eq!(EqualityRule::IgnoreCase.normalize("  Big   BOSS "), "big boss");
        assert_eq!(EqualityRule::Exact.normalize("  Big   BOSS "), "Big BOSS");
        assert!(matches!(EqualityRule::IgnoreCase.normalize("bob@example.org"), Cow::Borrowed(_)));
        assert_eq!(EqualityRule::Exact.normalize("   "), "");
        assert!(
            is_printable_ascii(b"a ~")
                && !is_printable_ascii(b"a\t")
                && !is_printable_ascii("ü".as_bytes())
                && !is_printable_ascii(&[0x7f])
        );
    }

    proptest! {
        #[test]
        fn any_schema_is_read(types in proptest::collection::vec("[ ()']{0,2}|NAME|SUP|EQUALITY|\\( 1 NAME 'a' SUP [ab] .{0,9}", 0..12)) {
            let joined = types.join(" ");
            let descriptions = types.iter().map(String::as_str).chain([joined.as_str()]);
            Schema::read(descriptions, &["a", "b", "1"]);
        }
    }
}
