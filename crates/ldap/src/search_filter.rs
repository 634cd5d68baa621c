//! Templates of search filters (RFC 4515) with `{key}`, `{local}`, `{domain}` and `{label1}` to
//! `{label9}` in values.
//!
//! A template is parsed once and then encoded for each request. Keys are inserted into the encoded
//! filter, never into its text, so a key cannot change what the filter means.
//!
//! | placeholder | for `bob@example.org` | for `bob`                  |
//! |-------------|-----------------------|----------------------------|
//! | `{key}`     | `bob@example.org`     | `bob`                      |
//! | `{local}`   | `bob`                 | `bob`                      |
//! | `{domain}`  | `example.org`         | none: finds nothing        |
//! | `{label1}`  | `org`                 | none: finds nothing        |
//!
//! Keys can share a search if the filter has the form `K` or `(&(const)..(K))` with constant parts,
//! where `K` is an equality `(attr={key})` or an OR of these.

use std::fmt;
use std::str::FromStr;

use lookup::key_part::KeyPart;

use super::ber::{BerWriter, OCTETS, SEQUENCE};

/// Maximum nesting of filters.
const DEPTH_MAX: usize = 16;

/// A filter template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterTemplate {
    text: Box<str>,
    node: FilterNode,
}

/// Why a text is not a filter template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// A syntax error.
    #[error("invalid filter '{filter}' (RFC 4515): expected {expected} at '{rest}'")]
    Syntax {
        /// The filter.
        filter: Box<str>,
        /// The expected syntax.
        expected: &'static str,
        /// The filter from the error on.
        rest: Box<str>,
    },
    /// The filter has no placeholder, so all keys would find the same.
    #[error("filter '{0}' does not use the key: expected {{key}}, {{local}} or {{domain}} in a value")]
    NoKey(Box<str>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum FilterNode {
    And(Vec<FilterNode>),
    Or(Vec<FilterNode>),
    Not(Box<FilterNode>),
    Present(Box<str>),
    /// Tag (equality, greater or equal, less or equal, approximate), attribute, value.
    Compare(u8, Box<str>, ValueTemplate),
    Substrings(Box<str>, Vec<ValueTemplate>),
    /// Matching rule, attribute, value, and whether attributes of the DN count.
    Extensible(Option<Box<str>>, Option<Box<str>>, ValueTemplate, bool),
}

const AND: u8 = 0xa0;
const OR: u8 = 0xa1;
const NOT: u8 = 0xa2;
const EQUALITY: u8 = 0xa3;
const SUBSTRINGS: u8 = 0xa4;
const GREATER: u8 = 0xa5;
const LESS: u8 = 0xa6;
const PRESENT: u8 = 0x87;
const APPROXIMATE: u8 = 0xa8;
const EXTENSIBLE: u8 = 0xa9;

type ValueTemplate = Vec<ValuePart>;

#[derive(Clone, Debug, PartialEq, Eq)]
enum ValuePart {
    Octets(Vec<u8>),
    Key(KeyPart),
}

/// What to insert for equalities with the key.
#[derive(Clone, Copy)]
enum KeyFill<'a> {
    Key(&'a str),
    Keys(&'a [&'a str]),
    Present,
}

impl FilterTemplate {
    /// The encoded filter for one key. None if a part of the key that the filter needs is empty, so
    /// that nothing can match.
    pub fn for_key(&self, key: &str) -> Option<Vec<u8>> {
        let mut writer = BerWriter::default();
        self.node.write(KeyFill::Key(key), &mut writer).then(|| writer.into_octets())
    }

    /// The attributes compared with the key; None if keys cannot share a search. The rest of the
    /// filter is then the same for all keys.
    pub fn key_attributes(&self) -> Option<Vec<&str>> {
        let FilterNode::And(parts) = &self.node else { return self.node.key_attributes() };
        let mut with_key = parts.iter().filter(|part| part.has_key());
        match (with_key.next(), with_key.next()) {
            (Some(part), None) => part.key_attributes(),
            _ => None,
        }
    }

    /// The encoded filter that matches any of these keys. Requires
    /// [`key_attributes`](Self::key_attributes).
    pub(crate) fn for_any_of(&self, keys: &[&str]) -> Vec<u8> {
        let mut writer = BerWriter::default();
        self.node.write(KeyFill::Keys(keys), &mut writer);
        writer.into_octets()
    }

    /// The encoded filter that matches all possible keys. Requires
    /// [`key_attributes`](Self::key_attributes).
    pub(crate) fn for_all(&self) -> Vec<u8> {
        let mut writer = BerWriter::default();
        self.node.write(KeyFill::Present, &mut writer);
        writer.into_octets()
    }
}

impl FromStr for FilterTemplate {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Self, FilterError> {
        let mut parser = Parser { text, rest: text };
        let node = parser.filter(0)?;
        if !parser.rest.is_empty() {
            return Err(parser.expected("the end"));
        }
        match node.has_key() {
            true => Ok(FilterTemplate { text: text.into(), node }),
            false => Err(FilterError::NoKey(text.into())),
        }
    }
}

impl fmt::Display for FilterTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FilterNode {
    fn has_key(&self) -> bool {
        let in_value = |value: &ValueTemplate| value.iter().any(|piece| !matches!(piece, ValuePart::Octets(_)));
        match self {
            FilterNode::And(nodes) | FilterNode::Or(nodes) => nodes.iter().any(FilterNode::has_key),
            FilterNode::Not(node) => node.has_key(),
            FilterNode::Present(_) => false,
            FilterNode::Compare(_, _, value) | FilterNode::Extensible(_, _, value, _) => in_value(value),
            FilterNode::Substrings(_, values) => values.iter().any(in_value),
        }
    }

    /// The attribute that must equal the key, if the filter is only that equality.
    fn key_attribute(&self) -> Option<&str> {
        match self {
            // With options it is another attribute, which the schema does not describe.
            FilterNode::Compare(EQUALITY, attribute, value) if !attribute.contains(';') => {
                (value[..] == [ValuePart::Key(KeyPart::Key)]).then_some(&**attribute)
            }
            _ => None,
        }
    }

    fn key_attributes(&self) -> Option<Vec<&str>> {
        match self {
            FilterNode::Or(nodes) => nodes.iter().map(FilterNode::key_attribute).collect(),
            node => node.key_attribute().map(|attribute| vec![attribute]),
        }
    }

    /// Writes the filter. Returns false if a needed part of the key is empty.
    fn write(&self, fill: KeyFill<'_>, writer: &mut BerWriter) -> bool {
        if let (Some(attribute), false) = (self.key_attribute(), matches!(fill, KeyFill::Key(_))) {
            write_equality(attribute, fill, writer);
            return true;
        }
        let mut is_whole = true;
        match self {
            FilterNode::And(nodes) | FilterNode::Or(nodes) => {
                let tag = if matches!(self, FilterNode::And(_)) { AND } else { OR };
                writer.nested(tag, |writer| is_whole = nodes.iter().all(|node| node.write(fill, writer)));
            }
            FilterNode::Not(node) => writer.nested(NOT, |writer| is_whole = node.write(fill, writer)),
            FilterNode::Present(attribute) => writer.octets(PRESENT, attribute.as_bytes()),
            FilterNode::Compare(tag, attribute, value) => writer.nested(*tag, |writer| {
                writer.octets(OCTETS, attribute.as_bytes());
                is_whole = write_value(OCTETS, value, fill, writer);
            }),
            FilterNode::Substrings(attribute, parts) => writer.nested(SUBSTRINGS, |writer| {
                writer.octets(OCTETS, attribute.as_bytes());
                writer.nested(SEQUENCE, |writer| is_whole = write_substrings(parts, fill, writer));
            }),
            FilterNode::Extensible(rule, attribute, value, with_dn) => writer.nested(EXTENSIBLE, |writer| {
                if let Some(rule) = rule {
                    writer.octets(0x81, rule.as_bytes());
                }
                if let Some(attribute) = attribute {
                    writer.octets(0x82, attribute.as_bytes());
                }
                is_whole = write_value(0x83, value, fill, writer);
                if *with_dn {
                    writer.boolean(0x84, true);
                }
            }),
        }
        is_whole
    }
}

fn write_equality(attribute: &str, fill: KeyFill<'_>, writer: &mut BerWriter) {
    let equality = |writer: &mut BerWriter, key: &str| {
        writer.nested(EQUALITY, |writer| {
            writer.octets(OCTETS, attribute.as_bytes());
            writer.octets(OCTETS, key.as_bytes());
        });
    };
    match fill {
        KeyFill::Key(key) | KeyFill::Keys(&[key]) => equality(writer, key),
        KeyFill::Keys(keys) => writer.nested(OR, |writer| keys.iter().for_each(|key| equality(writer, key))),
        KeyFill::Present => writer.octets(PRESENT, attribute.as_bytes()),
    }
}

/// Writes the parts between asterisks: a non-empty first part is a prefix, a non-empty last part a
/// suffix.
fn write_substrings(parts: &[ValueTemplate], fill: KeyFill<'_>, writer: &mut BerWriter) -> bool {
    let last = parts.len() - 1;
    parts.iter().enumerate().filter(|(_, part)| !part.is_empty()).all(|(place, part)| {
        let tag = match place {
            0 => 0x80,
            _ if place == last => 0x82,
            _ => 0x81,
        };
        write_value(tag, part, fill, writer)
    })
}

fn write_value(tag: u8, value: &ValueTemplate, fill: KeyFill<'_>, writer: &mut BerWriter) -> bool {
    let key = if let KeyFill::Key(key) = fill { key } else { "" };
    let mut octets = Vec::new();
    for piece in value {
        match piece {
            ValuePart::Octets(fixed) => octets.extend_from_slice(fixed),
            ValuePart::Key(part) => match part.of(key) {
                Some(part) => octets.extend_from_slice(part.as_bytes()),
                // Without a part the filter would match more than intended.
                None => return false,
            },
        }
    }
    writer.octets(tag, &octets);
    true
}

/// The encoded filter for all entries with this attribute.
pub(crate) fn present(attribute: &str) -> Vec<u8> {
    let mut writer = BerWriter::default();
    writer.octets(PRESENT, attribute.as_bytes());
    writer.into_octets()
}

/// The encoded filter for all entries of this object class.
pub(crate) fn object_class(class: &str) -> Vec<u8> {
    let mut writer = BerWriter::default();
    write_equality("objectClass", KeyFill::Key(class), &mut writer);
    writer.into_octets()
}

struct Parser<'a> {
    text: &'a str,
    rest: &'a str,
}

impl<'a> Parser<'a> {
    fn filter(&mut self, depth: usize) -> Result<FilterNode, FilterError> {
        if depth > DEPTH_MAX {
            return Err(self.expected("fewer nested filters"));
        }
        self.expect_char('(', "'('")?;
        let node = match self.rest.chars().next() {
            Some('&') => FilterNode::And(self.filters(depth)?),
            Some('|') => FilterNode::Or(self.filters(depth)?),
            Some('!') => {
                self.rest = &self.rest[1..];
                FilterNode::Not(Box::new(self.filter(depth + 1)?))
            }
            _ => self.item()?,
        };
        self.expect_char(')', "')'")?;
        Ok(node)
    }

    fn filters(&mut self, depth: usize) -> Result<Vec<FilterNode>, FilterError> {
        self.rest = &self.rest[1..];
        let mut filters = vec![self.filter(depth + 1)?];
        while self.rest.starts_with('(') {
            filters.push(self.filter(depth + 1)?);
        }
        Ok(filters)
    }

    fn item(&mut self) -> Result<FilterNode, FilterError> {
        let attribute = self.take_while(|c| c.is_ascii_alphanumeric() || "-.;".contains(c));
        if self.rest.starts_with(':') {
            return self.extensible(attribute);
        }
        if !is_attribute(attribute) {
            self.rest = &self.text[self.text.len() - self.rest.len() - attribute.len()..];
            return Err(self.expected("'&', '|', '!' or an attribute name"));
        }
        for (sign, tag) in [(">=", GREATER), ("<=", LESS), ("~=", APPROXIMATE)] {
            if let Some(rest) = self.rest.strip_prefix(sign) {
                self.rest = rest;
                return Ok(FilterNode::Compare(tag, attribute.into(), self.value()?));
            }
        }
        self.expect_char('=', "'=', '>=', '<=', '~=' or ':'")?;
        let mut parts = vec![self.value()?];
        while let Some(rest) = self.rest.strip_prefix('*') {
            self.rest = rest;
            parts.push(self.value()?);
        }
        let is_void = |parts: &[ValueTemplate]| parts.iter().any(Vec::is_empty);
        match &parts[..] {
            [_] => Ok(FilterNode::Compare(EQUALITY, attribute.into(), parts.remove(0))),
            [first, last] if first.is_empty() && last.is_empty() => Ok(FilterNode::Present(attribute.into())),
            [_, between @ .., _] if is_void(between) => Err(self.expected("a value between two '*'")),
            _ => Ok(FilterNode::Substrings(attribute.into(), parts)),
        }
    }

    /// `attr:dn:rule:=value`; `:dn` is optional, and either the attribute or the rule.
    fn extensible(&mut self, attribute: &str) -> Result<FilterNode, FilterError> {
        let with_dn = [":dn:", ":DN:"].iter().find_map(|dn| self.rest.strip_prefix(dn));
        if let Some(rest) = with_dn {
            self.rest = &self.rest[self.rest.len() - rest.len() - 1..];
        }
        let mut rule = None;
        if !self.rest.starts_with(":=") {
            self.expect_char(':', "':='")?;
            rule = Some(self.take_while(|c| c.is_ascii_alphanumeric() || "-.".contains(c)));
        }
        let rest = self.rest.strip_prefix(":=").ok_or_else(|| self.expected("':='"))?;
        let attribute = Some(attribute).filter(|attribute| !attribute.is_empty());
        if !attribute.or(rule).is_some_and(is_attribute) || !rule.is_none_or(is_attribute) {
            return Err(self.expected("the name of an attribute or matching rule"));
        }
        self.rest = rest;
        Ok(FilterNode::Extensible(rule.map(Into::into), attribute.map(Into::into), self.value()?, with_dn.is_some()))
    }

    fn value(&mut self) -> Result<ValueTemplate, FilterError> {
        let mut value = ValueTemplate::new();
        loop {
            let fixed = self.take_while(|c| !"\\()*\0{".contains(c));
            push_octets(&mut value, fixed.as_bytes());
            match self.rest.chars().next() {
                Some('\\') => {
                    let digits = self.rest.get(1..3).filter(|digits| digits.bytes().all(|d| d.is_ascii_hexdigit()));
                    let octet = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
                    push_octets(
                        &mut value,
                        &[octet.ok_or_else(|| self.expected("two hexadecimal digits after '\\'"))?],
                    );
                    self.rest = &self.rest[3..];
                }
                Some('{') => value.push(self.placeholder()?),
                _ => return Ok(value),
            }
        }
    }

    fn placeholder(&mut self) -> Result<ValuePart, FilterError> {
        let named = self.rest.strip_prefix('{').and_then(|rest| rest.split_once('}'));
        if let Some((name, rest)) = named
            && let Some(part) = KeyPart::parse(name)
        {
            self.rest = rest;
            return Ok(ValuePart::Key(part));
        }
        Err(self.expected("{key}, {local}, {domain} or {label1} to {label9} (write a literal brace as \\7b)"))
    }

    fn take_while(&mut self, belongs: impl Fn(char) -> bool) -> &'a str {
        let end = self.rest.find(|c| !belongs(c)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        taken
    }

    fn expect_char(&mut self, sign: char, expected: &'static str) -> Result<(), FilterError> {
        self.rest = self.rest.strip_prefix(sign).ok_or_else(|| self.expected(expected))?;
        Ok(())
    }

    fn expected(&self, expected: &'static str) -> FilterError {
        FilterError::Syntax { filter: self.text.into(), expected, rest: self.rest.into() }
    }
}

fn push_octets(value: &mut ValueTemplate, octets: &[u8]) {
    match value.last_mut() {
        _ if octets.is_empty() => {}
        Some(ValuePart::Octets(fixed)) => fixed.extend_from_slice(octets),
        _ => value.push(ValuePart::Octets(octets.to_vec())),
    }
}

/// Whether a text is an attribute description: a name or OID with options (RFC 4512 section 2.5).
pub(crate) fn is_attribute(text: &str) -> bool {
    let mut parts = text.split(';');
    let name = parts.next().unwrap_or_default();
    let is_word = |word: &str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic()) && is_word(name);
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    (is_name || name.contains('.') && name.split('.').all(is_number)) && parts.all(is_word)
}

#[cfg(test)]
mod tests {
    use ldap3::asn1::{ASNTag, PL, StructureTag};
    use proptest::prelude::*;

    use super::*;

    fn filter(text: &str) -> FilterTemplate {
        text.parse().unwrap()
    }

    /// The filter as encoded by another implementation.
    fn encoded_by_ldap3(text: &str) -> Vec<u8> {
        let mut writer = BerWriter::default();
        write_tree(&ldap3::parse_filter(text).unwrap().into_structure(), &mut writer);
        writer.into_octets()
    }

    fn write_tree(tree: &StructureTag, writer: &mut BerWriter) {
        let tag = (tree.class as u8) << 6 | tree.id as u8;
        match &tree.payload {
            PL::P(octets) => writer.octets(tag, octets),
            PL::C(trees) => writer.nested(tag | 0x20, |writer| trees.iter().for_each(|tree| write_tree(tree, writer))),
        }
    }

    /// The filter with the key inserted, escaped as in RFC 4515 section 3.
    fn filled(template: &str, key: &str) -> String {
        let (local, domain) = key.rsplit_once('@').unwrap_or((key, ""));
        let escaped = |text: &str| -> String { text.bytes().map(|octet| format!("\\{octet:02x}")).collect() };
        template
            .replace("{key}", &escaped(key))
            .replace("{local}", &escaped(local))
            .replace("{domain}", &escaped(domain))
    }

    const TEMPLATES: &[&str] = &[
        "(mail={key})",
        "(&(objectClass=person)(|(mail={key})(alias={key})))",
        "(&(objectClass=*)(!(off=TRUE))(uid={local})(dc={domain}))",
        "(|(mail=smtp:{key})(mail={local}*)(mail=a*{local}*b*{domain})(mail=*@{domain}))",
        "(&(a>={key})(b<=x{local}y)(c~={domain}))",
        "(|(cn:dn:2.4.6.8.10:={key})(o:dn:={domain})(:1.2.3:={local})(sn:caseExactMatch:=\\28{key}\\29))",
        "(2.5.4.3;lang-de=\\c3\\bc {key} ü{local})",
    ];

    #[test]
    fn filters_are_encoded_as_others_encode_them() {
        for template in TEMPLATES {
            for key in ["bob@example.org", "*@)(uid=*", "a\\2a@\\", "\0@\0\0", "ü ß@例え"] {
                let one = filter(template).for_key(key);
                assert_eq!(one, Some(encoded_by_ldap3(&filled(template, key))), "{template} {key}");
            }
            assert_eq!(filter(template).to_string(), *template);
        }
    }

    #[test]
    fn a_part_that_the_key_has_not_finds_nothing() {
        for (template, key) in
            [("(a={domain})", "bob"), ("(a=x{domain})", "bob@"), ("(a={local})", "@x"), ("(a={key})", "")]
        {
            assert_eq!(filter(template).for_key(key), None, "{template} {key}");
        }
        assert_eq!(filter("(a={label2})").for_key("b@x"), None);
        assert_eq!(filter("(a={label2})").for_key("b@y.x"), Some(encoded_by_ldap3("(a=y)")));
        assert_eq!(filter("(a={local})").for_key("bob"), Some(encoded_by_ldap3("(a=bob)")));
        assert_eq!(filter("(a={local})").for_key("a@b@c"), Some(encoded_by_ldap3("(a=a@b)")));
        assert_eq!(filter("(|(a={key})(b={domain}))").for_key("bob"), None);
    }

    #[test]
    fn keys_share_a_search_by_its_shape() {
        for (template, attributes) in [
            ("(mail={key})", &["mail"][..]),
            ("(|(mail={key})(alias={key}))", &["mail", "alias"]),
            ("(&(objectClass=person)(mail={key}))", &["mail"]),
            ("(&(mail={key})(!(off=*))(|(a=1)(b>=2)))", &["mail"]),
            ("(&(objectClass=person)(|(mail={key})(alias={key})))", &["mail", "alias"]),
        ] {
            assert_eq!(filter(template).key_attributes().as_deref(), Some(attributes), "{template}");
            let any = filter(template).for_any_of(&["k*1", "k2"]);
            let together = template
                .replace("(mail={key})", "(|(mail=k\\2a1)(mail=k2))")
                .replace("(alias={key})", "(|(alias=k\\2a1)(alias=k2))");
            assert_eq!(any, encoded_by_ldap3(&together), "{template}");
            assert_eq!(Some(filter(template).for_any_of(&["k"])), filter(template).for_key("k"));
            assert_eq!(filter(template).for_all(), encoded_by_ldap3(&template.replace("{key}", "*")));
        }
        for template in [
            "(mail=smtp:{key})",
            "(mail={local})",
            "(mail={key}*)",
            "(mail>={key})",
            "(mail:2.5.13.2:={key})",
            "(mail;x-a={key})",
            "(!(mail={key}))",
            "(|(mail={key})(objectClass=person))",
            "(|(mail={key})(alias={local}))",
            "(|(&(a=1)(mail={key}))(alias={key}))",
            "(&(mail={key})(alias={key}))",
            "(&(mail={key})(!(uid={key})))",
            "(&(a=1)(&(b=2)(mail={key})))",
        ] {
            assert_eq!(filter(template).key_attributes(), None, "{template}");
        }
    }

    #[test]
    fn what_is_no_filter_says_what_was_expected() {
        for (text, message) in [
            ("mail={key}", "invalid filter 'mail={key}' (RFC 4515): expected '(' at 'mail={key}'"),
            ("(mail={key}", "invalid filter '(mail={key}' (RFC 4515): expected ')' at ''"),
            ("(mail={key}))", "invalid filter '(mail={key}))' (RFC 4515): expected the end at ')'"),
            (
                "(mail={user})",
                "expected {key}, {local}, {domain} or {label1} to {label9} (write a literal brace as \\7b) at '{user})'",
            ),
            ("(mail=\\2{key})", "expected two hexadecimal digits after '\\' at '\\2{key})'"),
            ("(ma il={key})", "expected '=', '>=', '<=', '~=' or ':' at ' il={key})'"),
            ("(={key})", "expected '&', '|', '!' or an attribute name at '={key})'"),
            ("(3a={key})", "expected '&', '|', '!' or an attribute name at '3a={key})'"),
            ("(a=x**{key})", "expected a value between two '*' at ')'"),
            ("(a:=)", "filter '(a:=)' does not use the key: expected {key}, {local} or {domain} in a value"),
            ("(:={key})", "expected the name of an attribute or matching rule at ':={key})'"),
            ("(&)", "expected '(' at ')'"),
            ("({key}=a)", "expected '&', '|', '!' or an attribute name at '{key}=a)'"),
            ("(objectClass=*)", "does not use the key"),
            ("", "expected '(' at ''"),
        ] {
            let error = text.parse::<FilterTemplate>().unwrap_err().to_string();
            assert!(error.contains(message), "{error}\n{message}");
        }
        let deep = format!("{}(a={{key}}){}", "(!".repeat(1000), ")".repeat(1000));
        assert!(deep.parse::<FilterTemplate>().is_err());
    }

    proptest! {
        #[test]
        fn no_key_changes_what_a_filter_asks(key in "\\PC{1,40}|[*()\\\\\\x00{}@=&|!]{1,9}", place in 0..TEMPLATES.len()) {
            let template = TEMPLATES[place];
            let (local, domain) = key.rsplit_once('@').unwrap_or((&key, ""));
            let is_whole = !(template.contains("{local}") && local.is_empty() || template.contains("{domain}") && domain.is_empty());
            prop_assert_eq!(filter(template).for_key(&key), is_whole.then(|| encoded_by_ldap3(&filled(template, &key))));
        }

        #[test]
        fn any_text_is_parsed_or_refused(text in "[(){}&|!=<>~:*\\\\a-f0-9;.key]{0,24}") {
            if let Ok(filter) = text.parse::<FilterTemplate>() {
                prop_assert_eq!(filter.to_string(), text);
                filter.for_key("a@b");
            }
        }
    }
}
