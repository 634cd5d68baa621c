//! What a server's schema says of the attributes that a table uses (RFC 4512 section 4.1.2): their other names, and how
//! values of those that keys are compared with are equal.
//!
//! It decides whether keys may share a search: only for attributes whose rule of equality is one that we compare by as the
//! server does, and that have no subtypes, whose values would be found under other names. What cannot be read, or is not
//! there, is unknown, and then each key has a search of its own; a wrong answer never comes of it.

use std::borrow::Cow;
use std::collections::HashMap;

/// How values of an attribute are equal (RFC 4517 section 4.2), for text of printable ASCII.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// In any case, and with any number of spaces where there is one: caseIgnoreMatch, caseIgnoreIA5Match.
    IgnoreCase,
    /// With any number of spaces where there is one: caseExactMatch, caseExactIA5Match.
    Exact,
}

impl Rule {
    /// The form of a value in which two equal ones are the same. For other than printable ASCII servers know more ways of
    /// being equal (RFC 4518), and this is but a part of them: see [`is_plain`].
    pub(crate) fn form<'a>(self, value: &'a str) -> Cow<'a, str> {
        let value = value.trim_matches(' ');
        let squeezed = match value.contains("  ") {
            true => Cow::Owned(value.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")),
            false => Cow::Borrowed(value),
        };
        match self {
            Rule::IgnoreCase if squeezed.bytes().any(|octet| octet.is_ascii_uppercase()) => {
                Cow::Owned(squeezed.to_ascii_lowercase())
            }
            _ => squeezed,
        }
    }

    fn of(name: &str) -> Option<Rule> {
        // With the object identifiers of RFC 4517, by which they may go as well.
        match name.to_ascii_lowercase().as_str() {
            "caseignorematch" | "2.5.13.2" => Some(Rule::IgnoreCase),
            "caseignoreia5match" | "1.3.6.1.4.1.1466.109.114.2" => Some(Rule::IgnoreCase),
            "caseexactmatch" | "2.5.13.5" => Some(Rule::Exact),
            "caseexactia5match" | "1.3.6.1.4.1.1466.109.114.1" => Some(Rule::Exact),
            _ => None,
        }
    }
}

/// Whether a text is printable ASCII, of which we know when servers take two for equal.
pub(crate) fn is_plain(octets: &[u8]) -> bool {
    octets.iter().all(|octet| (0x20..0x7f).contains(octet))
}

/// What is known of attributes, by their names in the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Schema {
    attributes: Vec<Attribute>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Attribute {
    /// As it is called in the configuration.
    name: Box<str>,
    /// All that it is called, its object identifier included.
    names: Vec<Box<str>>,
    rule: Option<Rule>,
}

impl Schema {
    /// What these descriptions, values of `attributeTypes`, say of the attributes of these names.
    pub(crate) fn read<'a>(descriptions: impl Iterator<Item = &'a str>, names: &[&str]) -> Schema {
        let types: Vec<Type> = descriptions.filter_map(Type::parse).collect();
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

    /// By which rule keys are found among the values of this attribute; None: not by one that we know.
    pub(crate) fn rule(&self, attribute: &str) -> Option<Rule> {
        self.attributes.iter().find(|known| *known.name == *attribute)?.rule
    }

    /// Whether what an entry calls `description` is this attribute: by another name, or with options (which are
    /// disregarded unless the configuration has some).
    pub(crate) fn is_same(&self, attribute: &str, description: &str) -> bool {
        if attribute.eq_ignore_ascii_case(description) {
            return true;
        }
        let (name, _) = description.split_once(';').unwrap_or((description, ""));
        let known = self.attributes.iter().find(|known| *known.name == *attribute);
        attribute.eq_ignore_ascii_case(name)
            || known.is_some_and(|known| known.names.iter().any(|other| other.eq_ignore_ascii_case(name)))
    }
}

/// The rule of an attribute, which may be that of its supertype.
fn rule_of(one: &Type<'_>, types: &[Type<'_>], place_of: impl Fn(&str) -> Option<usize>) -> Option<Rule> {
    let mut one = one;
    // A chain of supertypes is short; one that is longer is a loop.
    for _ in 0..types.len() {
        if let Some(equality) = one.equality {
            return Rule::of(equality);
        }
        one = &types[place_of(one.supertype?)?];
    }
    None
}

/// A description of an attribute type, as far as it is of use here.
struct Type<'a> {
    oid: &'a str,
    names: Vec<&'a str>,
    supertype: Option<&'a str>,
    equality: Option<&'a str>,
}

impl<'a> Type<'a> {
    fn all_names(&self) -> impl Iterator<Item = &'a str> {
        std::iter::once(self.oid).chain(self.names.iter().copied())
    }

    fn parse(description: &'a str) -> Option<Type<'a>> {
        let mut words = Words(description);
        if words.next()? != "(" {
            return None;
        }
        let mut one = Type { oid: words.next()?, names: Vec::new(), supertype: None, equality: None };
        while let Some(word) = words.next() {
            match word {
                "NAME" => match words.next()? {
                    "(" => one.names.extend(words.by_ref().take_while(|&word| word != ")")),
                    name => one.names.push(name),
                },
                "SUP" => one.supertype = words.next(),
                "EQUALITY" => one.equality = words.next(),
                // What it is for can say anything.
                "DESC" => drop(words.next()),
                _ => {}
            }
        }
        Some(one)
    }
}

/// The words of a description: parentheses, what stands in quotes, and what stands between spaces.
struct Words<'a>(&'a str);

impl<'a> Iterator for Words<'a> {
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
