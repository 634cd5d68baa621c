//! Templates of search filters (RFC 4515) with `{key}`, `{local}` and `{domain}` in values.
//!
//! A template is parsed once and then encoded for each request. Keys are inserted into the encoded
//! filter, never into its text, so a key cannot change what the filter means.
//!
//! | placeholder | for `bob@example.org` | for `bob`                  |
//! |-------------|-----------------------|----------------------------|
//! | `{key}`     | `bob@example.org`     | `bob`                      |
//! | `{local}`   | `bob`                 | `bob`                      |
//! | `{domain}`  | `example.org`         | empty: finds nothing       |
//!
//! Keys can share a search if the filter has the form `K` or `(&(const)..(K))` with constant parts,
//! where `K` is an equality `(attr={key})` or an OR of these.

use std::fmt;
use std::str::FromStr;

use super::ber::{OCTETS, SEQUENCE, Writer};

/// Maximum nesting of filters.
const DEPTH_MAX: usize = 16;

/// A filter template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    text: Box<str>,
    node: Node,
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
enum Node {
    And(Vec<Node>),
    Or(Vec<Node>),
    Not(Box<Node>),
    Present(Box<str>),
    /// Tag (equality, greater or equal, less or equal, approximate), attribute, value.
    Compare(u8, Box<str>, Value),
    Substrings(Box<str>, Vec<Value>),
    /// Matching rule, attribute, value, and whether attributes of the DN count.
    Extensible(Option<Box<str>>, Option<Box<str>>, Value, bool),
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

type Value = Vec<Piece>;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Octets(Vec<u8>),
    Key,
    Local,
    Domain,
}

/// What to insert for equalities with the key.
#[derive(Clone, Copy)]
enum Fill<'a> {
    Key(&'a str),
    Keys(&'a [&'a str]),
    Present,
}

impl Filter {
    /// The encoded filter for one key. None if a part of the key that the filter needs is empty, so
    /// that nothing can match.
    pub(crate) fn one(&self, key: &str) -> Option<Vec<u8>> {
        let mut writer = Writer::default();
        self.node.write(Fill::Key(key), &mut writer).then(|| writer.into_octets())
    }

    /// The attributes compared with the key; None if keys cannot share a search. The rest of the
    /// filter is then the same for all keys.
    pub(crate) fn key_attributes(&self) -> Option<Vec<&str>> {
        let Node::And(parts) = &self.node else { return self.node.key_attributes() };
        let mut with_key = parts.iter().filter(|part| part.has_key());
        match (with_key.next(), with_key.next()) {
            (Some(part), None) => part.key_attributes(),
            _ => None,
        }
    }

    /// The encoded filter that matches any of these keys. Requires
    /// [`key_attributes`](Self::key_attributes).
    pub(crate) fn any_of(&self, keys: &[&str]) -> Vec<u8> {
        let mut writer = Writer::default();
        self.node.write(Fill::Keys(keys), &mut writer);
        writer.into_octets()
    }

    /// The encoded filter that matches all possible keys. Requires
    /// [`key_attributes`](Self::key_attributes).
    pub(crate) fn all(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        self.node.write(Fill::Present, &mut writer);
        writer.into_octets()
    }
}

impl FromStr for Filter {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Self, FilterError> {
        let mut parser = Parser { text, rest: text };
        let node = parser.filter(0)?;
        if !parser.rest.is_empty() {
            return Err(parser.expected("the end"));
        }
        match node.has_key() {
            true => Ok(Filter { text: text.into(), node }),
            false => Err(FilterError::NoKey(text.into())),
        }
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Node {
    fn has_key(&self) -> bool {
        let in_value = |value: &Value| value.iter().any(|piece| !matches!(piece, Piece::Octets(_)));
        match self {
            Node::And(nodes) | Node::Or(nodes) => nodes.iter().any(Node::has_key),
            Node::Not(node) => node.has_key(),
            Node::Present(_) => false,
            Node::Compare(_, _, value) | Node::Extensible(_, _, value, _) => in_value(value),
            Node::Substrings(_, values) => values.iter().any(in_value),
        }
    }

    /// The attribute that must equal the key, if the filter is only that equality.
    fn key_attribute(&self) -> Option<&str> {
        match self {
            // With options it is another attribute, which the schema does not describe.
            Node::Compare(EQUALITY, attribute, value) if !attribute.contains(';') => {
                (value[..] == [Piece::Key]).then_some(&**attribute)
            }
            _ => None,
        }
    }

    fn key_attributes(&self) -> Option<Vec<&str>> {
        match self {
            Node::Or(nodes) => nodes.iter().map(Node::key_attribute).collect(),
            node => node.key_attribute().map(|attribute| vec![attribute]),
        }
    }

    /// Writes the filter. Returns false if a needed part of the key is empty.
    fn write(&self, fill: Fill<'_>, writer: &mut Writer) -> bool {
        if let (Some(attribute), false) = (self.key_attribute(), matches!(fill, Fill::Key(_))) {
            write_equality(attribute, fill, writer);
            return true;
        }
        let mut is_whole = true;
        match self {
            Node::And(nodes) | Node::Or(nodes) => {
                let tag = if matches!(self, Node::And(_)) { AND } else { OR };
                writer.within(tag, |writer| is_whole = nodes.iter().all(|node| node.write(fill, writer)));
            }
            Node::Not(node) => writer.within(NOT, |writer| is_whole = node.write(fill, writer)),
            Node::Present(attribute) => writer.octets(PRESENT, attribute.as_bytes()),
            Node::Compare(tag, attribute, value) => writer.within(*tag, |writer| {
                writer.octets(OCTETS, attribute.as_bytes());
                is_whole = write_value(OCTETS, value, fill, writer);
            }),
            Node::Substrings(attribute, parts) => writer.within(SUBSTRINGS, |writer| {
                writer.octets(OCTETS, attribute.as_bytes());
                writer.within(SEQUENCE, |writer| is_whole = write_substrings(parts, fill, writer));
            }),
            Node::Extensible(rule, attribute, value, with_dn) => writer.within(EXTENSIBLE, |writer| {
                if let Some(rule) = rule {
                    writer.octets(0x81, rule.as_bytes());
                }
                if let Some(attribute) = attribute {
                    writer.octets(0x82, attribute.as_bytes());
                }
                is_whole = write_value(0x83, value, fill, writer);
                if *with_dn {
                    writer.truth(0x84, true);
                }
            }),
        }
        is_whole
    }
}

fn write_equality(attribute: &str, fill: Fill<'_>, writer: &mut Writer) {
    let equality = |writer: &mut Writer, key: &str| {
        writer.within(EQUALITY, |writer| {
            writer.octets(OCTETS, attribute.as_bytes());
            writer.octets(OCTETS, key.as_bytes());
        });
    };
    match fill {
        Fill::Key(key) | Fill::Keys(&[key]) => equality(writer, key),
        Fill::Keys(keys) => writer.within(OR, |writer| keys.iter().for_each(|key| equality(writer, key))),
        Fill::Present => writer.octets(PRESENT, attribute.as_bytes()),
    }
}

/// Writes the parts between asterisks: a non-empty first part is a prefix, a non-empty last part a
/// suffix.
fn write_substrings(parts: &[Value], fill: Fill<'_>, writer: &mut Writer) -> bool {
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

fn write_value(tag: u8, value: &Value, fill: Fill<'_>, writer: &mut Writer) -> bool {
    let key = if let Fill::Key(key) = fill { key } else { "" };
    let (local, domain) = key.rsplit_once('@').unwrap_or((key, ""));
    let mut octets = Vec::new();
    for piece in value {
        let part = match piece {
            Piece::Octets(fixed) => {
                octets.extend_from_slice(fixed);
                continue;
            }
            Piece::Key => key,
            Piece::Local => local,
            Piece::Domain => domain,
        };
        // With an empty part the filter would match more than intended.
        if part.is_empty() {
            return false;
        }
        octets.extend_from_slice(part.as_bytes());
    }
    writer.octets(tag, &octets);
    true
}

/// The encoded filter for all entries with this attribute.
pub(crate) fn present(attribute: &str) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.octets(PRESENT, attribute.as_bytes());
    writer.into_octets()
}

/// The encoded filter for all entries of this object class.
pub(crate) fn of_class(class: &str) -> Vec<u8> {
    let mut writer = Writer::default();
    write_equality("objectClass", Fill::Key(class), &mut writer);
    writer.into_octets()
}

struct Parser<'a> {
    text: &'a str,
    rest: &'a str,
}

impl<'a> Parser<'a> {
    fn filter(&mut self, depth: usize) -> Result<Node, FilterError> {
        if depth > DEPTH_MAX {
            return Err(self.expected("fewer nested filters"));
        }
        self.take('(', "'('")?;
        let node = match self.rest.chars().next() {
            Some('&') => Node::And(self.filters(depth)?),
            Some('|') => Node::Or(self.filters(depth)?),
            Some('!') => {
                self.rest = &self.rest[1..];
                Node::Not(Box::new(self.filter(depth + 1)?))
            }
            _ => self.item()?,
        };
        self.take(')', "')'")?;
        Ok(node)
    }

    fn filters(&mut self, depth: usize) -> Result<Vec<Node>, FilterError> {
        self.rest = &self.rest[1..];
        let mut filters = vec![self.filter(depth + 1)?];
        while self.rest.starts_with('(') {
            filters.push(self.filter(depth + 1)?);
        }
        Ok(filters)
    }

    fn item(&mut self) -> Result<Node, FilterError> {
        let attribute = self.taken_while(|c| c.is_ascii_alphanumeric() || "-.;".contains(c));
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
                return Ok(Node::Compare(tag, attribute.into(), self.value()?));
            }
        }
        self.take('=', "'=', '>=', '<=', '~=' or ':'")?;
        let mut parts = vec![self.value()?];
        while let Some(rest) = self.rest.strip_prefix('*') {
            self.rest = rest;
            parts.push(self.value()?);
        }
        let is_void = |parts: &[Value]| parts.iter().any(Vec::is_empty);
        match &parts[..] {
            [_] => Ok(Node::Compare(EQUALITY, attribute.into(), parts.remove(0))),
            [first, last] if first.is_empty() && last.is_empty() => Ok(Node::Present(attribute.into())),
            [_, between @ .., _] if is_void(between) => Err(self.expected("a value between two '*'")),
            _ => Ok(Node::Substrings(attribute.into(), parts)),
        }
    }

    /// `attr:dn:rule:=value`; `:dn` is optional, and either the attribute or the rule.
    fn extensible(&mut self, attribute: &str) -> Result<Node, FilterError> {
        let with_dn = [":dn:", ":DN:"].iter().find_map(|dn| self.rest.strip_prefix(dn));
        if let Some(rest) = with_dn {
            self.rest = &self.rest[self.rest.len() - rest.len() - 1..];
        }
        let mut rule = None;
        if !self.rest.starts_with(":=") {
            self.take(':', "':='")?;
            rule = Some(self.taken_while(|c| c.is_ascii_alphanumeric() || "-.".contains(c)));
        }
        let rest = self.rest.strip_prefix(":=").ok_or_else(|| self.expected("':='"))?;
        let attribute = Some(attribute).filter(|attribute| !attribute.is_empty());
        if !attribute.or(rule).is_some_and(is_attribute) || !rule.is_none_or(is_attribute) {
            return Err(self.expected("the name of an attribute or matching rule"));
        }
        self.rest = rest;
        Ok(Node::Extensible(rule.map(Into::into), attribute.map(Into::into), self.value()?, with_dn.is_some()))
    }

    fn value(&mut self) -> Result<Value, FilterError> {
        let mut value = Value::new();
        loop {
            let fixed = self.taken_while(|c| !"\\()*\0{".contains(c));
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

    fn placeholder(&mut self) -> Result<Piece, FilterError> {
        for (name, piece) in [("{key}", Piece::Key), ("{local}", Piece::Local), ("{domain}", Piece::Domain)] {
            if let Some(rest) = self.rest.strip_prefix(name) {
                self.rest = rest;
                return Ok(piece);
            }
        }
        Err(self.expected("{key}, {local} or {domain} (write a literal brace as \\7b)"))
    }

    fn taken_while(&mut self, belongs: impl Fn(char) -> bool) -> &'a str {
        let end = self.rest.find(|c| !belongs(c)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        taken
    }

    fn take(&mut self, sign: char, expected: &'static str) -> Result<(), FilterError> {
        self.rest = self.rest.strip_prefix(sign).ok_or_else(|| self.expected(expected))?;
        Ok(())
    }

    fn expected(&self, expected: &'static str) -> FilterError {
        FilterError::Syntax { filter: self.text.into(), expected, rest: self.rest.into() }
    }
}

fn push_octets(value: &mut Value, octets: &[u8]) {
    match value.last_mut() {
        _ if octets.is_empty() => {}
        Some(Piece::Octets(fixed)) => fixed.extend_from_slice(octets),
        _ => value.push(Piece::Octets(octets.to_vec())),
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

    fn filter(text: &str) -> Filter {
        text.parse().unwrap()
    }

    /// The filter as encoded by another implementation.
    fn encoded_by_ldap3(text: &str) -> Vec<u8> {
        let mut writer = Writer::default();
        write_tree(&ldap3::parse_filter(text).unwrap().into_structure(), &mut writer);
        writer.into_octets()
    }

    fn write_tree(tree: &StructureTag, writer: &mut Writer) {
        let tag = (tree.class as u8) << 6 | tree.id as u8;
        match &tree.payload {
            PL::P(octets) => writer.octets(tag, octets),
            PL::C(trees) => writer.within(tag | 0x20, |writer| trees.iter().for_each(|tree| write_tree(tree, writer))),
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
                let one = filter(template).one(key);
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
            assert_eq!(filter(template).one(key), None, "{template} {key}");
        }
        assert_eq!(filter("(a={local})").one("bob"), Some(encoded_by_ldap3("(a=bob)")));
        assert_eq!(filter("(a={local})").one("a@b@c"), Some(encoded_by_ldap3("(a=a@b)")));
        assert_eq!(filter("(|(a={key})(b={domain}))").one("bob"), None);
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
            let any = filter(template).any_of(&["k*1", "k2"]);
            let together = template
                .replace("(mail={key})", "(|(mail=k\\2a1)(mail=k2))")
                .replace("(alias={key})", "(|(alias=k\\2a1)(alias=k2))");
            assert_eq!(any, encoded_by_ldap3(&together), "{template}");
            assert_eq!(Some(filter(template).any_of(&["k"])), filter(template).one("k"));
            assert_eq!(filter(template).all(), encoded_by_ldap3(&template.replace("{key}", "*")));
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
            ("(mail={user})", "expected {key}, {local} or {domain} (write a literal brace as \\7b) at '{user})'"),
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
            let error = text.parse::<Filter>().unwrap_err().to_string();
            assert!(error.contains(message), "{error}\n{message}");
        }
        let deep = format!("{}(a={{key}}){}", "(!".repeat(1000), ")".repeat(1000));
        assert!(deep.parse::<Filter>().is_err());
    }

    proptest! {
        #[test]
        fn no_key_changes_what_a_filter_asks(key in "\\PC{1,40}|[*()\\\\\\x00{}@=&|!]{1,9}", place in 0..TEMPLATES.len()) {
            let template = TEMPLATES[place];
            let (local, domain) = key.rsplit_once('@').unwrap_or((&key, ""));
            let is_whole = !(template.contains("{local}") && local.is_empty() || template.contains("{domain}") && domain.is_empty());
            prop_assert_eq!(filter(template).one(&key), is_whole.then(|| encoded_by_ldap3(&filled(template, &key))));
        }

        #[test]
        fn any_text_is_parsed_or_refused(text in "[(){}&|!=<>~:*\\\\a-f0-9;.key]{0,24}") {
            if let Ok(filter) = text.parse::<Filter>() {
                prop_assert_eq!(filter.to_string(), text);
                filter.one("a@b");
            }
        }
    }
}
