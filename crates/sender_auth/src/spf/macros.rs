//! Macros in domains and explanations (RFC 7208 section 7): parsed once, expanded with the values of
//! a check.
//!
//! What an expansion can take is bounded, however often a record repeats a macro: of a name only the
//! end counts (section 7.3), of an explanation only the beginning.

use std::borrow::Cow;
use std::net::IpAddr;

use dns::reversed_labels;

/// Text with macros.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MacroString {
    parts: Box<[MacroPart]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum MacroPart {
    Literal(Box<str>),
    /// `%%`, `%_` or `%-`.
    Escape(&'static str),
    Macro(Macro),
}

/// `%{letter transformers delimiters}`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Macro {
    letter: MacroLetter,
    /// An upper-case letter: the value is URL-escaped (section 7.3).
    is_url_escaped: bool,
    /// How many right-hand parts are used.
    parts_max: usize,
    is_reversed: bool,
    /// What separates the parts; empty: dots.
    delimiters: Box<str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MacroLetter {
    Sender,
    LocalPart,
    SenderDomain,
    Domain,
    Address,
    ValidatedName,
    ReverseZone,
    Helo,
    ReadableAddress,
    Receiver,
    Timestamp,
}

/// Where a text stands, which decides what may be in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MacroPlace {
    /// In a record: neither spaces nor the letters `c`, `r` and `t`.
    Record,
    /// In an explanation.
    Explanation,
}

/// What the macros stand for (section 7.2).
#[derive(Clone, Copy, Debug)]
pub(super) struct MacroValues<'a> {
    /// `%{l}`.
    pub(super) local_part: &'a str,
    /// `%{o}`.
    pub(super) sender_domain: &'a str,
    /// `%{d}`: the domain whose record this is.
    pub(super) domain: &'a str,
    /// `%{i}` and `%{c}`. IPv4 as IPv4.
    pub(super) client: IpAddr,
    /// `%{p}`.
    pub(super) validated_name: &'a str,
    /// `%{h}`.
    pub(super) helo: &'a str,
    /// `%{r}`: our name.
    pub(super) hostname: &'a str,
    /// `%{t}`: seconds since 1970.
    pub(super) unix_seconds: u64,
}

impl MacroString {
    /// None: it is not a `macro-string`, or not an `explain-string`.
    pub(super) fn parse(text: &str, place: MacroPlace) -> Option<MacroString> {
        let (mut parts, mut rest) = (Vec::new(), text);
        while !rest.is_empty() {
            let (part, after) = parse_part(rest, place)?;
            parts.push(part);
            rest = after;
        }
        Some(MacroString { parts: parts.into() })
    }

    /// Whether it ends in a macro or in a dot and a top-level label, as a `domain-spec` must.
    pub(super) fn ends_as_domain(&self) -> bool {
        match self.parts.last() {
            Some(MacroPart::Literal(text)) => {
                let undotted = text.strip_suffix('.').unwrap_or(text);
                undotted.rsplit_once('.').is_some_and(|(_, label)| is_top_label(label))
            }
            Some(MacroPart::Escape(_) | MacroPart::Macro(_)) => true,
            None => false,
        }
    }

    /// Whether the local part of the sender is in it.
    pub(super) fn has_local_part(&self) -> bool {
        self.has(MacroLetter::LocalPart) || self.has(MacroLetter::Sender)
    }

    /// Whether [`MacroValues::validated_name`] is in it, which takes queries to find out.
    pub(super) fn has_validated_name(&self) -> bool {
        self.has(MacroLetter::ValidatedName)
    }

    /// The name of a query: in lower case, without a trailing dot, and shortened on the left to
    /// [`NAME_OCTETS_MAX`] octets. None: not a name that the DNS can have.
    pub(super) fn expand_name(&self, values: &MacroValues<'_>) -> Option<Box<str>> {
        let mut name = String::new();
        for part in &self.parts {
            name.push_str(&part.expand(values));
            if name.len() > EXPANDED_OCTETS_MAX {
                let excess = name.len() - EXPANDED_OCTETS_MAX / 2;
                name.drain(..name.ceil_char_boundary(excess));
            }
        }
        query_name(&name)
    }

    /// The first octets of the text, up to `octets_max`.
    pub(super) fn expand_text(&self, values: &MacroValues<'_>, octets_max: usize) -> String {
        let mut text = String::new();
        for part in &self.parts {
            text.push_str(&part.expand(values));
            if text.len() > octets_max {
                text.truncate(text.floor_char_boundary(octets_max));
                break;
            }
        }
        text
    }

    fn has(&self, letter: MacroLetter) -> bool {
        self.parts.iter().any(|part| matches!(part, MacroPart::Macro(part) if part.letter == letter))
    }
}

impl MacroPlace {
    fn allows_literal(self, byte: u8) -> bool {
        byte.is_ascii_graphic() || (byte == b' ' && self == MacroPlace::Explanation)
    }
}

impl MacroPart {
    fn expand<'a>(&'a self, values: &MacroValues<'a>) -> Cow<'a, str> {
        match self {
            MacroPart::Literal(text) => Cow::Borrowed(text),
            MacroPart::Escape(text) => Cow::Borrowed(text),
            MacroPart::Macro(part) => part.expand(values),
        }
    }
}

impl Macro {
    /// Parses what is between the braces.
    fn parse(text: &str, place: MacroPlace) -> Option<Macro> {
        let letter = text.chars().next()?;
        let rest = &text[letter.len_utf8()..];
        let digits = &rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())];
        let after = &rest[digits.len()..];
        let (is_reversed, delimiters) = match after.strip_prefix(['r', 'R']) {
            Some(delimiters) => (true, delimiters),
            None => (false, after),
        };
        let parts_max = match digits {
            "" => usize::MAX,
            // More than fits is more than there are.
            digits => digits.parse().unwrap_or(usize::MAX),
        };
        let is_valid = parts_max > 0 && delimiters.chars().all(|c| DELIMITERS.contains(c));
        is_valid.then_some(Macro {
            letter: MacroLetter::parse(letter, place)?,
            is_url_escaped: letter.is_ascii_uppercase(),
            parts_max,
            is_reversed,
            delimiters: delimiters.into(),
        })
    }

    fn expand<'a>(&self, values: &MacroValues<'a>) -> Cow<'a, str> {
        let mut value = values.value(self.letter);
        if self.is_reversed || self.parts_max < usize::MAX || !self.delimiters.is_empty() {
            value = Cow::Owned(self.transform(&value));
        }
        match self.is_url_escaped {
            true => Cow::Owned(url_escape(&value)),
            false => value,
        }
    }

    /// Section 7.3: splits, reverses, takes the right-hand parts, and joins them with dots.
    fn transform(&self, value: &str) -> String {
        let delimiters: &str = if self.delimiters.is_empty() { "." } else { &self.delimiters };
        let mut parts: Vec<&str> = value.split(|c: char| delimiters.contains(c)).collect();
        if self.is_reversed {
            parts.reverse();
        }
        parts[parts.len().saturating_sub(self.parts_max)..].join(".")
    }
}

impl MacroLetter {
    fn parse(letter: char, place: MacroPlace) -> Option<MacroLetter> {
        let is_explanation = place == MacroPlace::Explanation;
        Some(match letter.to_ascii_lowercase() {
            's' => MacroLetter::Sender,
            'l' => MacroLetter::LocalPart,
            'o' => MacroLetter::SenderDomain,
            'd' => MacroLetter::Domain,
            'i' => MacroLetter::Address,
            'p' => MacroLetter::ValidatedName,
            'v' => MacroLetter::ReverseZone,
            'h' => MacroLetter::Helo,
            'c' if is_explanation => MacroLetter::ReadableAddress,
            'r' if is_explanation => MacroLetter::Receiver,
            't' if is_explanation => MacroLetter::Timestamp,
            _ => return None,
        })
    }
}

impl<'a> MacroValues<'a> {
    fn value(&self, letter: MacroLetter) -> Cow<'a, str> {
        match letter {
            MacroLetter::Sender => Cow::Owned(format!("{}@{}", self.local_part, self.sender_domain)),
            MacroLetter::LocalPart => Cow::Borrowed(self.local_part),
            MacroLetter::SenderDomain => Cow::Borrowed(self.sender_domain),
            MacroLetter::Domain => Cow::Borrowed(self.domain),
            MacroLetter::Address => Cow::Owned(dotted(self.client)),
            MacroLetter::ValidatedName => Cow::Borrowed(self.validated_name),
            MacroLetter::ReverseZone => Cow::Borrowed(if self.client.is_ipv4() { "in-addr" } else { "ip6" }),
            MacroLetter::Helo => Cow::Borrowed(self.helo),
            MacroLetter::ReadableAddress => Cow::Owned(self.client.to_string()),
            MacroLetter::Receiver => Cow::Borrowed(self.hostname),
            MacroLetter::Timestamp => Cow::Owned(self.unix_seconds.to_string()),
        }
    }
}

/// The first part of a text that is not empty, and the rest.
fn parse_part(text: &str, place: MacroPlace) -> Option<(MacroPart, &str)> {
    if let Some(escaped) = text.strip_prefix('%') {
        if let Some(inside) = escaped.strip_prefix('{') {
            let (inside, after) = inside.split_once('}')?;
            return Some((MacroPart::Macro(Macro::parse(inside, place)?), after));
        }
        let (escape, expanded) = ESCAPES.into_iter().find(|(escape, _)| escaped.starts_with(*escape))?;
        return Some((MacroPart::Escape(expanded), &escaped[escape.len_utf8()..]));
    }
    let (literal, after) = text.split_at(text.find('%').unwrap_or(text.len()));
    let is_valid = literal.bytes().all(|byte| place.allows_literal(byte));
    is_valid.then(|| (MacroPart::Literal(literal.into()), after))
}

/// `toplabel`: letters, digits and inner hyphens, but not digits alone.
fn is_top_label(label: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    !label.is_empty()
        && label.bytes().all(is_allowed)
        && !label.starts_with('-')
        && !label.ends_with('-')
        && !label.bytes().all(|byte| byte.is_ascii_digit())
}

/// An expanded name as it is queried, or None if the DNS cannot have it (section 4.8 leaves to us
/// what follows). Left labels are dropped until it fits (section 7.3).
fn query_name(expanded: &str) -> Option<Box<str>> {
    let name = expanded.strip_suffix('.').unwrap_or(expanded);
    let name = match name.len().checked_sub(NAME_OCTETS_MAX + 1) {
        // The dot before the first label that remains.
        Some(earliest) => {
            let dot = name.bytes().skip(earliest).position(|byte| byte == b'.')?;
            name.get(earliest + dot + 1..)?
        }
        None => name,
    };
    let is_label = |label: &str| (1..=LABEL_OCTETS_MAX).contains(&label.len());
    (name.is_ascii() && name.split('.').all(is_label)).then(|| name.to_ascii_lowercase().into())
}

/// `%{i}`: of IPv6, each hexadecimal digit is a label.
fn dotted(address: IpAddr) -> String {
    match address {
        IpAddr::V4(v4) => v4.to_string(),
        v6 => reversed_labels(v6).chars().rev().collect(),
    }
}

/// Escapes all but the unreserved characters (RFC 3986 section 2.3).
fn url_escape(value: &str) -> String {
    let mut escaped = String::with_capacity(value.len());
    for byte in value.bytes() {
        match byte {
            byte if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) => escaped.push(char::from(byte)),
            byte => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

/// What may stand between the parts of a value.
const DELIMITERS: &str = ".-+,/_=";
/// What follows a `%`, and what it means.
const ESCAPES: [(char, &str); 3] = [('%', "%"), ('_', " "), ('-', "%20")];
/// RFC 7208 section 7.3.
const NAME_OCTETS_MAX: usize = 253;
/// RFC 1035 section 2.3.4.
const LABEL_OCTETS_MAX: usize = 63;
/// What is kept of a name while it is expanded; the half of it is more than a name has.
const EXPANDED_OCTETS_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of RFC 7208 section 7.4.
    const VALUES: MacroValues<'_> = MacroValues {
        local_part: "strong-bad",
        sender_domain: "email.example.com",
        domain: "email.example.com",
        client: IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 3)),
        validated_name: "mx.example.org",
        helo: "mail.example.net",
        hostname: "mx.example.org",
        unix_seconds: 1_700_000_000,
    };

    fn expand(text: &str, values: &MacroValues<'_>) -> Option<String> {
        Some(MacroString::parse(text, MacroPlace::Explanation)?.expand_text(values, 1000))
    }

    #[test]
    fn the_examples_of_the_rfc_expand_as_it_says() {
        let v6 = MacroValues { client: "2001:db8::cb01".parse().unwrap(), ..VALUES };
        for (text, values, expanded) in [
            ("%{s}", &VALUES, "strong-bad@email.example.com"),
            ("%{o}", &VALUES, "email.example.com"),
            ("%{d}", &VALUES, "email.example.com"),
            ("%{d4}", &VALUES, "email.example.com"),
            ("%{d3}", &VALUES, "email.example.com"),
            ("%{d2}", &VALUES, "example.com"),
            ("%{d1}", &VALUES, "com"),
            ("%{dr}", &VALUES, "com.example.email"),
            ("%{d2r}", &VALUES, "example.email"),
            ("%{l}", &VALUES, "strong-bad"),
            ("%{l-}", &VALUES, "strong.bad"),
            ("%{lr}", &VALUES, "strong-bad"),
            ("%{lr-}", &VALUES, "bad.strong"),
            ("%{l1r-}", &VALUES, "strong"),
            ("%{ir}.%{v}._spf.%{d2}", &VALUES, "3.2.0.192.in-addr._spf.example.com"),
            ("%{lr-}.lp._spf.%{d2}", &VALUES, "bad.strong.lp._spf.example.com"),
            ("%{lr-}.lp.%{ir}.%{v}._spf.%{d2}", &VALUES, "bad.strong.lp.3.2.0.192.in-addr._spf.example.com"),
            ("%{ir}.%{v}.%{l1r-}.lp._spf.%{d2}", &VALUES, "3.2.0.192.in-addr.strong.lp._spf.example.com"),
            ("%{d2}.trusted-domains.example.net", &VALUES, "example.com.trusted-domains.example.net"),
            (
                "%{ir}.%{v}._spf.%{d2}",
                &v6,
                "1.0.b.c.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6._spf.example.com",
            ),
        ] {
            assert_eq!(expand(text, values).as_deref(), Some(expanded), "{text}");
        }
    }

    #[test]
    fn letters_escapes_and_transformers_expand() {
        let odd = MacroValues { local_part: "jack&jill=up~a/b", client: "2001:db8::1".parse().unwrap(), ..VALUES };
        for (text, expanded) in [
            ("%{L}", "jack%26jill%3Dup~a%2Fb"),
            ("%{l=}", "jack&jill.up~a/b"),
            ("%{L2R=/}", "up~a.jack%26jill"),
            ("%{l999999999999999999999999=/}", "jack&jill.up~a.b"),
            ("%%%_%-x", "% %20x"),
            ("%{p} %{h} %{r} %{t}", "mx.example.org mail.example.net mx.example.org 1700000000"),
            ("%{c} %{v}", "2001:db8::1 ip6"),
            ("%{H}", "mail.example.net"),
            ("", ""),
        ] {
            assert_eq!(expand(text, &odd).as_deref(), Some(expanded), "{text}");
        }
    }

    #[test]
    fn what_is_no_macro_is_a_syntax_error() {
        for text in [
            "%", "%a", "%{", "%{d", "%{}", "%{x}", "%{d0}", "%{d00}", "%{d-1}", "%{dr2}", "%{d*}", "%(d)", "%{é}", "é",
            "\t",
        ] {
            assert_eq!(MacroString::parse(text, MacroPlace::Explanation), None, "{text}");
        }
        for text in ["%{c}", "%{r}", "%{t}", "%{T}", "a b"] {
            assert!(MacroString::parse(text, MacroPlace::Explanation).is_some(), "{text}");
            assert_eq!(MacroString::parse(text, MacroPlace::Record), None, "{text}");
        }
    }

    #[test]
    fn a_domain_ends_in_a_macro_or_a_top_level_label() {
        let ends = |text: &str| MacroString::parse(text, MacroPlace::Record).unwrap().ends_as_domain();
        for text in
            ["%{d}", "a.%{d}", "a.example", "a.example.", ".example", "a.1x", "a.1-2", "a.xn--p1ai", "a.x/y.com", "%%"]
        {
            assert!(ends(text), "{text}");
        }
        for text in
            ["", "example", "example.", "a.", "a..", "a.1", "a.-b", "a.b-", "%{d}com", "a.com/24", "a.com:25", "a.c_m"]
        {
            assert!(!ends(text), "{text}");
        }
    }

    #[test]
    fn an_expanded_name_loses_left_labels_until_it_fits() {
        let name = |text: &str| MacroString::parse(text, MacroPlace::Record).unwrap().expand_name(&VALUES);
        let labels = |count: usize| "abcdefgh.".repeat(count);
        assert_eq!(name("X.%{d}.").as_deref(), Some("x.email.example.com"));
        // 26 * 9 + 19 = 253.
        let fits = format!("{}abcdefghijklmnopqr.x", labels(25) + "12345678.");
        assert_eq!(fits.len(), 254);
        assert_eq!(name(&fits).unwrap().len(), 245, "the first label goes as a whole");
        assert_eq!(name(&fits[1..]).as_deref(), Some(&fits[1..]));
        assert_eq!(name(&format!("{}%{{d}}", labels(7000))).unwrap().len(), 9 * 26 + "email.example.com".len());
        assert_eq!(name(&"%{s}.".repeat(9000)).map(|name| name.len() <= NAME_OCTETS_MAX), Some(true));
        for text in ["a..%{d}", "%%.", &"x".repeat(300), &format!("{}.com", "x".repeat(64))] {
            assert_eq!(name(text), (text == "%%.").then(|| "%".into()), "{text}");
        }
    }
}
