//! Mail addresses as SMTP defines them (RFC 5321 section 4.1.2, RFC 6531 section 3.3), parsed once,
//! at the edge.
//!
//! An [`Address`] is in canonical form: the domain in lower case, the local part as written but
//! without unnecessary quotes. Equal addresses have equal text.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// RFC 5321 section 4.5.3.1.1.
pub const LOCAL_PART_OCTETS_MAX: usize = 64;
/// RFC 5321 section 4.5.3.1.2.
pub const DOMAIN_OCTETS_MAX: usize = 255;
/// RFC 5321 section 4.5.3.1.3, without the angle brackets.
pub const PATH_OCTETS_MAX: usize = 254;

/// `local@domain`; neither side is ever empty.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    text: Box<str>,
    at: u16,
}

/// Why a text is not an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// The local part is empty, or has characters that need quotes.
    #[error("the local part is not a dot-atom or a quoted string")]
    Local,
    /// The domain is empty, or there is no `@`.
    #[error("the domain is missing")]
    NoDomain,
    /// A label of the domain has characters other than letters, digits and inner hyphens.
    #[error("the domain is not a host name or an address literal")]
    Domain,
    /// A part exceeds a limit of RFC 5321 section 4.5.3.1.
    #[error("the address is too long")]
    TooLong,
}

impl Address {
    /// Joins a local part (unquoted; quotes are added if it needs them) and a domain.
    pub fn new(local: &str, domain: &str) -> Result<Self, AddressError> {
        if local.is_empty() || local.chars().any(char::is_control) {
            return Err(AddressError::Local);
        }
        let domain = lower_case(domain);
        if local.len() > LOCAL_PART_OCTETS_MAX || domain.len() > DOMAIN_OCTETS_MAX {
            return Err(AddressError::TooLong);
        }
        check_domain(&domain)?;
        let mut text = String::with_capacity(local.len() + domain.len() + 1);
        if is_dot_atom(local) {
            text.push_str(local);
        } else {
            push_quoted(&mut text, local);
        }
        let at = u16::try_from(text.len()).map_err(|_| AddressError::TooLong)?;
        text.push('@');
        text.push_str(&domain);
        if text.len() > PATH_OCTETS_MAX {
            return Err(AddressError::TooLong);
        }
        Ok(Address { text: text.into(), at })
    }

    /// Parses an address as programs and clients write it: removes a final dot from the domain, and
    /// appends `origin` if there is no domain.
    ///
    /// # Errors
    ///
    /// Returns the error of strict parsing if this does not give an address either.
    pub fn parse_lenient(text: &str, origin: Option<&str>) -> Result<Self, AddressError> {
        let strict = text.parse();
        let lenient: Result<Address, _> = match (&strict, text.strip_suffix('.'), origin) {
            (Err(AddressError::Domain), Some(undotted), _) => undotted.parse(),
            (Err(AddressError::NoDomain), None, Some(origin)) => format!("{text}@{origin}").parse(),
            _ => return strict,
        };
        lenient.or(strict)
    }

    /// The local part as written, including any quotes.
    pub fn local_part(&self) -> &str {
        &self.text[..usize::from(self.at)]
    }

    /// The local part without quotes and backslashes: the mailbox name.
    pub fn unquoted_local_part(&self) -> String {
        match self.local_part().strip_prefix('"').and_then(|l| l.strip_suffix('"')) {
            Some(quoted) => unquote(quoted),
            None => self.local_part().to_owned(),
        }
    }

    /// The domain, in lower case.
    pub fn domain(&self) -> &str {
        &self.text[usize::from(self.at) + 1..]
    }

    /// The whole address.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether it can be sent without SMTPUTF8.
    pub fn is_ascii(&self) -> bool {
        self.text.is_ascii()
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if text.starts_with('"') {
            let end = closing_quote(text).ok_or(AddressError::Local)?;
            let domain = text[end + 1..].strip_prefix('@').ok_or(AddressError::NoDomain)?;
            return Address::new(&unquote(&text[1..end]), domain);
        }
        let (local, domain) = text.split_once('@').ok_or(AddressError::NoDomain)?;
        if !is_dot_atom(local) {
            return Err(AddressError::Local);
        }
        Address::new(local, domain)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{}>", self.text)
    }
}

fn is_dot_atom(local: &str) -> bool {
    !local.is_empty() && local.split('.').all(|atom| !atom.is_empty() && atom.chars().all(is_atext))
}

fn is_atext(c: char) -> bool {
    c.is_ascii_alphanumeric() || "!#$%&'*+-/=?^_`{|}~".contains(c) || (!c.is_ascii() && !c.is_control())
}

fn check_domain(domain: &str) -> Result<(), AddressError> {
    if domain.is_empty() {
        return Err(AddressError::NoDomain);
    }
    let fine = match domain.strip_prefix('[').and_then(|d| d.strip_suffix(']')) {
        Some(literal) => is_literal(literal),
        None => domain.split('.').all(is_label),
    };
    fine.then_some(()).ok_or(AddressError::Domain)
}

/// RFC 5321 section 4.1.3.
fn is_literal(literal: &str) -> bool {
    match literal.get(..5) {
        Some(tag) if tag.eq_ignore_ascii_case("IPv6:") => literal[5..].parse::<Ipv6Addr>().is_ok(),
        _ => literal.parse::<Ipv4Addr>().is_ok(),
    }
}

/// A label of RFC 1123, also with the underscores that real hosts use, or non-ASCII letters (RFC
/// 6531).
fn is_label(label: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_' || (!c.is_ascii() && c.is_alphanumeric());
    !label.is_empty()
        && label.len() <= 63
        && !label.starts_with('-')
        && !label.ends_with('-')
        && label.chars().all(allowed)
}

/// Maps each character on its own, so that a second call changes nothing. The few characters whose
/// lower case is more than one character stay unchanged.
fn lower_case(domain: &str) -> String {
    // Most domains are ASCII, and each address of a message has one.
    if domain.is_ascii() {
        return domain.to_ascii_lowercase();
    }
    let lower = |c: char| {
        let mut letters = c.to_lowercase();
        letters.next().filter(|_| letters.next().is_none()).unwrap_or(c)
    };
    domain.chars().map(lower).collect()
}

fn push_quoted(text: &mut String, local: &str) {
    text.push('"');
    for c in local.chars() {
        if matches!(c, '"' | '\\') {
            text.push('\\');
        }
        text.push(c);
    }
    text.push('"');
}

fn unquote(quoted: &str) -> String {
    let mut plain = String::with_capacity(quoted.len());
    let mut chars = quoted.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => plain.extend(chars.next()),
            _ => plain.push(c),
        }
    }
    plain
}

/// The index of the quote that closes the one at index 0.
fn closing_quote(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.bytes().enumerate().skip(1).find_map(|(place, byte)| {
        let closes = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        closes.then_some(place)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Address, AddressError> {
        text.parse()
    }

    #[test]
    fn equal_addresses_have_the_same_text() {
        for (text, canonical) in [
            ("bob@Example.ORG", "bob@example.org"),
            ("\"bob\"@example.org", "bob@example.org"),
            ("\"b\\o\\b\"@example.org", "bob@example.org"),
            ("\"b b\"@example.org", "\"b b\"@example.org"),
            ("\"b@b\\\"\"@example.org", "\"b@b\\\"\"@example.org"),
            ("Bob+tag@example.org", "Bob+tag@example.org"),
            ("x@[127.0.0.1]", "x@[127.0.0.1]"),
            ("x@[IPv6:::1]", "x@[ipv6:::1]"),
            ("jürgen@Müller.example", "jürgen@müller.example"),
            ("x@İ.example", "x@İ.example"),
        ] {
            let address = parse(text).unwrap();
            assert_eq!(address.as_str(), canonical);
            assert_eq!(parse(canonical).unwrap(), address);
        }
    }

    #[test]
    fn a_mailbox_name_has_no_quotes() {
        assert_eq!(parse("\"b \\\" b\"@example.org").unwrap().unquoted_local_part(), "b \" b");
        assert_eq!(parse("bob@example.org").unwrap().unquoted_local_part(), "bob");
    }

    #[test]
    fn a_final_dot_is_removed_and_a_missing_domain_added() {
        let origin = Some("here.example");
        for (text, origin, expected) in [
            ("bob@example.org", origin, Ok("bob@example.org")),
            ("bob@example.org.", None, Ok("bob@example.org")),
            ("bob@backup.", origin, Ok("bob@backup")),
            ("bob", origin, Ok("bob@here.example")),
            ("\"b b\"", origin, Ok("\"b b\"@here.example")),
            ("bob", None, Err(AddressError::NoDomain)),
            ("bob@", origin, Err(AddressError::NoDomain)),
            ("bob@.", origin, Err(AddressError::Domain)),
            ("bob@example.org..", origin, Err(AddressError::Domain)),
            ("bob@[192.0.2.1].", None, Ok("bob@[192.0.2.1]")),
            ("bob.", origin, Err(AddressError::NoDomain)),
            ("", origin, Err(AddressError::NoDomain)),
            ("b b", origin, Err(AddressError::NoDomain)),
        ] {
            let expected = expected.map(|address: &str| address.parse().unwrap());
            assert_eq!(Address::parse_lenient(text, origin), expected, "{text}");
        }
    }

    #[test]
    fn an_invalid_address_is_refused_with_the_invalid_part() {
        use AddressError::*;
        let long = "x".repeat(65);
        for (text, error) in [
            ("bob", NoDomain),
            ("bob@", NoDomain),
            ("@example.org", Local),
            ("a..b@example.org", Local),
            (".a@example.org", Local),
            ("a b@example.org", Local),
            ("a\r@example.org", Local),
            ("\"a\r\n\"@example.org", Local),
            ("\"ab@example.org", Local),
            ("\"ab\"example.org", NoDomain),
            ("a@b@c", Domain),
            ("a@-b", Domain),
            ("a@b..c", Domain),
            ("a@b/../c", Domain),
            ("a@[1.2.3]", Domain),
            ("a@[IPv6:zz]", Domain),
            (&format!("{long}@example.org"), TooLong),
            (&format!("a@{}", "x.".repeat(140) + "x"), TooLong),
        ] {
            assert_eq!(parse(text), Err(error), "{text}");
        }
    }
}
