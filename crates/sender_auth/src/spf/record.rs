//! An SPF record (RFC 7208 sections 3 to 6), parsed strictly: a syntax error anywhere makes the whole
//! record invalid (section 4.6). Only modifiers that we do not know are skipped, if they are well
//! formed.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use super::SpfResult;
use super::macros::{MacroPlace, MacroString};

/// A record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SpfRecord {
    /// In order; the first that matches decides.
    pub(super) directives: Vec<Directive>,
    /// The domain whose record decides if no directive matches.
    pub(super) redirect: Option<MacroString>,
    /// Where the explanation is.
    pub(super) explanation: Option<MacroString>,
}

/// A mechanism, and the result if it matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Directive {
    pub(super) result: SpfResult,
    pub(super) mechanism: Mechanism,
}

/// What is compared with the client (section 5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mechanism {
    All,
    /// `ip4` and `ip6`.
    Network(IpAddr, PrefixLengths),
    /// What the DNS says about a domain; if none is named, about the one whose record this is.
    Lookup(LookupKind, Option<MacroString>),
}

/// What is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LookupKind {
    Include,
    Address(PrefixLengths),
    Mx(PrefixLengths),
    Ptr,
    Exists,
}

/// How many leading bits of an address count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PrefixLengths {
    v4: u8,
    v6: u8,
}

/// The record is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SyntaxError;

impl SpfRecord {
    /// Parses a text that is an SPF record by its version.
    pub(crate) fn parse(text: &[u8]) -> Result<SpfRecord, SyntaxError> {
        let text = str::from_utf8(text).ok().filter(|text| text.bytes().all(is_printable)).ok_or(SyntaxError)?;
        let mut record = SpfRecord { directives: Vec::new(), redirect: None, explanation: None };
        let terms = text.get(VERSION.len()..).unwrap_or_default();
        for term in terms.split(' ').filter(|term| !term.is_empty()) {
            record.parse_term(term)?;
        }
        Ok(record)
    }

    fn parse_term(&mut self, term: &str) -> Result<(), SyntaxError> {
        match term.split_once('=') {
            Some((name, value)) if is_name(name) => self.parse_modifier(name, value),
            _ => {
                self.directives.push(Directive::parse(term)?);
                Ok(())
            }
        }
    }

    /// Section 6: each of the two that are known at most once; others are ignored.
    fn parse_modifier(&mut self, name: &str, value: &str) -> Result<(), SyntaxError> {
        let place = match name.to_ascii_lowercase().as_str() {
            "redirect" => &mut self.redirect,
            "exp" => &mut self.explanation,
            _ => return MacroString::parse(value, MacroPlace::Explanation).map(drop).ok_or(SyntaxError),
        };
        match place.replace(parse_domain(value)?) {
            None => Ok(()),
            Some(_) => Err(SyntaxError),
        }
    }
}

impl Directive {
    fn parse(term: &str) -> Result<Directive, SyntaxError> {
        let (result, mechanism) = match term.as_bytes().first() {
            Some(b'+') => (SpfResult::Pass, &term[1..]),
            Some(b'-') => (SpfResult::Fail, &term[1..]),
            Some(b'~') => (SpfResult::SoftFail, &term[1..]),
            Some(b'?') => (SpfResult::Neutral, &term[1..]),
            _ => (SpfResult::Pass, term),
        };
        Ok(Directive { result, mechanism: Mechanism::parse(mechanism)? })
    }
}

impl Mechanism {
    fn parse(text: &str) -> Result<Mechanism, SyntaxError> {
        let (name, rest) = text.split_at(text.find([':', '/']).unwrap_or(text.len()));
        let argument = rest.strip_prefix(':').ok_or(SyntaxError);
        match name.to_ascii_lowercase().as_str() {
            "all" if rest.is_empty() => Ok(Mechanism::All),
            "ip4" => parse_network::<Ipv4Addr>(argument?, 32),
            "ip6" => parse_network::<Ipv6Addr>(argument?, 128),
            "include" => Ok(Mechanism::Lookup(LookupKind::Include, Some(parse_domain(argument?)?))),
            "exists" => Ok(Mechanism::Lookup(LookupKind::Exists, Some(parse_domain(argument?)?))),
            "ptr" if rest.is_empty() => Ok(Mechanism::Lookup(LookupKind::Ptr, None)),
            "ptr" => Ok(Mechanism::Lookup(LookupKind::Ptr, Some(parse_domain(argument?)?))),
            "a" => parse_hosts(rest, LookupKind::Address),
            "mx" => parse_hosts(rest, LookupKind::Mx),
            _ => Err(SyntaxError),
        }
    }
}

impl PrefixLengths {
    /// Whole addresses.
    const WHOLE: PrefixLengths = PrefixLengths { v4: 32, v6: 128 };

    /// Parses `dual-cidr-length` (section 5.6), which may be empty.
    fn parse(text: &str) -> Result<PrefixLengths, SyntaxError> {
        let (v4, v6) = match text.split_once("//") {
            Some((v4, v6)) => (v4, parse_length(v6, 128)?),
            None => (text, PrefixLengths::WHOLE.v6),
        };
        let v4 = match v4.strip_prefix('/') {
            Some(v4) => parse_length(v4, 32)?,
            None if v4.is_empty() => PrefixLengths::WHOLE.v4,
            None => return Err(SyntaxError),
        };
        Ok(PrefixLengths { v4, v6 })
    }

    /// Whether two addresses have the same network.
    pub(super) fn are_equal(self, one: IpAddr, other: IpAddr) -> bool {
        match (one, other) {
            (IpAddr::V4(one), IpAddr::V4(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros() >= self.v4.into(),
            (IpAddr::V6(one), IpAddr::V6(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros() >= self.v6.into(),
            _ => false,
        }
    }
}

/// Whether a text is an SPF record: its version ends it or is followed by a space (section 4.5).
pub(crate) fn is_record(text: &[u8]) -> bool {
    let version = text.split(|&byte| byte == b' ').next();
    version.is_some_and(|version| version.eq_ignore_ascii_case(VERSION.as_bytes()))
}

/// What follows `a` and `mx`: `[":" domain-spec] [dual-cidr-length]`. A domain cannot end in slashes
/// and digits alone, so that these are the lengths.
fn parse_hosts(text: &str, kind: fn(PrefixLengths) -> LookupKind) -> Result<Mechanism, SyntaxError> {
    let before = text.trim_end_matches(|c: char| c == '/' || c.is_ascii_digit());
    let lengths = text[before.len()..].find('/').map_or(text.len(), |slash| before.len() + slash);
    let (domain, lengths) = text.split_at(lengths);
    let domain = match domain.strip_prefix(':') {
        Some(domain) => Some(parse_domain(domain)?),
        None if domain.is_empty() => None,
        None => return Err(SyntaxError),
    };
    Ok(Mechanism::Lookup(kind(PrefixLengths::parse(lengths)?), domain))
}

/// `domain-spec` (section 7.1).
fn parse_domain(text: &str) -> Result<MacroString, SyntaxError> {
    let domain = MacroString::parse(text, MacroPlace::Record);
    domain.filter(MacroString::ends_as_domain).ok_or(SyntaxError)
}

/// `ip4-network [ ip4-cidr-length ]`, or the same for IPv6 (section 5.6).
fn parse_network<T: FromStr + Into<IpAddr>>(argument: &str, bits: u8) -> Result<Mechanism, SyntaxError> {
    let (network, length) = match argument.split_once('/') {
        Some((network, length)) => (network, parse_length(length, bits)?),
        None => (argument, bits),
    };
    let network: T = network.parse().map_err(|_| SyntaxError)?;
    Ok(Mechanism::Network(network.into(), PrefixLengths { v4: length, v6: length }))
}

/// A number up to `max`, without leading zeros.
fn parse_length(text: &str, max: u8) -> Result<u8, SyntaxError> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    let length = text.parse().ok().filter(|length| is_number && *length <= max);
    length.ok_or(SyntaxError)
}

/// The name of a modifier (section 4.6.1): a letter, then letters, digits and `-`, `_`, `.`.
fn is_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    name.starts_with(|c: char| c.is_ascii_alphabetic()) && name.bytes().all(is_allowed)
}

fn is_printable(byte: u8) -> bool {
    byte.is_ascii_graphic() || byte == b' '
}

const VERSION: &str = "v=spf1";

#[cfg(test)]
mod tests {
    use super::*;

    /// Terms with syntax errors.
    const INVALID: &str = "
        all: all/8 all. all:x.example - +-all --all foo a: a:example a:example. a:1.2.3.4 a:x.example:25
        a:x.example/ a:x.example// a:x.example/33 a:x.example//129 a:x.example/024 a:x.example/+8
        a:x.example/8/8 a/8/8 a/ a/x a//x mx/ mx: aa include include: include:x.example/8 exists exists:
        exists:x.example/8 ptr: ptr/0 ptr:x.example/8 ip4 ip4: ip4/8 ip4:1.2.3 ip4:1.2.3.4/ ip4:1.2.3.4/33
        ip4:1.2.3.4/032 ip4:1.2.3.4//32 ip4:1.2.3.4:25 ip4:01.2.3.4 ip4:1.2.3.256 ip4:::1 ip6 ip6:1.2.3.4
        ip6:::1/129 ip6:::1//64 ip6:fe80::1%eth0 ip6:1:2:3 redirect= redirect=example exp=
        -redirect=x.example -foo=bar 1foo=bar =bar foo=% foo=%{x} exp=%{r}.example a:%{d a:%(d) a:%{d}com";

    fn parse(terms: &str) -> Result<SpfRecord, SyntaxError> {
        SpfRecord::parse(format!("v=spf1 {terms}").as_bytes())
    }

    /// The only mechanism of a record.
    fn mechanism(term: &str) -> Mechanism {
        parse(term).unwrap().directives.pop().unwrap().mechanism
    }

    #[test]
    fn a_record_is_known_by_its_version() {
        for text in ["v=spf1", "v=spf1 ", "V=sPf1 -all", "v=spf1 what?"] {
            assert!(is_record(text.as_bytes()), "{text}");
        }
        for text in ["", "v=spf", "v=spf10", "v=spf1-all", "v=spf1\t-all", " v=spf1", "v=spf2.0/pra", "\"v=spf1\""] {
            assert!(!is_record(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn terms_are_parsed_in_order_and_in_any_case() {
        let record =
            parse("  +A ?mx:x.example -INCLUDE:y.example ~exists:%{d} REDIRECT=z.example EXP=e.example ALL ").unwrap();
        let results: Vec<_> = record.directives.iter().map(|directive| directive.result.as_str()).collect();
        assert_eq!(results, ["pass", "neutral", "fail", "softfail", "pass"]);
        assert!(record.redirect.is_some() && record.explanation.is_some());
        assert_eq!(SpfRecord::parse(b"v=spf1").unwrap().directives, []);
    }

    #[test]
    fn prefix_lengths_are_told_from_the_domain() {
        for (term, domain, v4, v6) in [
            ("a", None, 32, 128),
            ("a/24", None, 24, 128),
            ("a//64", None, 32, 64),
            ("a/0//0", None, 0, 0),
            ("a:x.example", Some("x.example"), 32, 128),
            ("a:x.example1/8", Some("x.example1"), 8, 128),
            ("a:x.example//64", Some("x.example"), 32, 64),
            ("a:foo:bar/baz.example/24//64", Some("foo:bar/baz.example"), 24, 64),
            ("a:%{d}/9", Some("%{d}"), 9, 128),
        ] {
            let domain = domain.map(|domain| MacroString::parse(domain, MacroPlace::Record).unwrap());
            let kind = LookupKind::Address(PrefixLengths { v4, v6 });
            assert_eq!(mechanism(term), Mechanism::Lookup(kind, domain), "{term}");
        }
    }

    #[test]
    fn networks_are_those_of_their_family() {
        for (term, address, length) in [
            ("ip4:192.0.2.1", "192.0.2.1", 32),
            ("ip4:192.0.2.0/24", "192.0.2.0", 24),
            ("IP6:2001:db8::1/0", "2001:db8::1", 0),
            ("ip6:::1.2.3.4", "::1.2.3.4", 128),
        ] {
            let lengths = PrefixLengths { v4: length, v6: length };
            assert_eq!(mechanism(term), Mechanism::Network(address.parse().unwrap(), lengths), "{term}");
        }
    }

    #[test]
    fn a_syntax_error_anywhere_makes_the_record_invalid() {
        let invalid = [
            "redirect=x.example redirect=x.example",
            "exp=x.example exp=y.example",
            "a\t-all",
            "a\u{a0}",
            "é",
            "a:ü.example",
            "\u{7f}",
        ];
        for term in INVALID.split_whitespace().chain(invalid) {
            assert_eq!(parse(&format!("{term} -all")), Err(SyntaxError), "{term}");
            assert_eq!(parse(&format!("+all {term}")), Err(SyntaxError), "{term}");
        }
        assert_eq!(SpfRecord::parse(b"v=spf1 \xff"), Err(SyntaxError));
    }

    #[test]
    fn unknown_modifiers_are_skipped_wherever_they_stand() {
        for term in [
            "foo=bar",
            "default=pass",
            "a=x",
            "include=1.2.3.4",
            "x-y_z.1=%{d}/8:9",
            "foo=%{c}",
            "foo=",
            "ip4=1.2.3.4=5",
        ] {
            assert_eq!(parse(&format!("{term} -all")), parse("-all"), "{term}");
        }
    }

    #[test]
    fn only_the_leading_bits_of_addresses_are_compared() {
        let equal = |one: &str, other: &str, v4: u8, v6: u8| {
            PrefixLengths { v4, v6 }.are_equal(one.parse().unwrap(), other.parse().unwrap())
        };
        assert!(equal("192.0.2.129", "192.0.2.130", 30, 0) && !equal("192.0.2.131", "192.0.2.132", 30, 0));
        assert!(equal("1.2.3.4", "5.6.7.8", 0, 128) && !equal("1.2.3.4", "1.2.3.5", 32, 0));
        assert!(equal("2001:db8::", "2001:db8::ffff", 32, 112) && !equal("2001:db8::", "2001:db8::1", 0, 128));
        assert!(equal("::", "ffff::", 32, 0) && !equal("::", "0.0.0.0", 0, 0));
    }
}
