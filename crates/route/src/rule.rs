//! Rules: domains with a route other than their MX.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use crate::FixedHop;
use dns::to_ascii;

use crate::destination::parse_address;

/// A route for some domains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteRule {
    /// The domains.
    pub pattern: DomainPattern,
    /// The transport.
    pub transport: Box<str>,
    /// The next hop; None: the MX of the domain.
    pub next_hop: Option<FixedHop>,
    /// A table of next hops by domain; the rule then applies only to domains in the table. It is
    /// queried for `a.example.org`, then `.example.org`, then `.org`. An entry without a value uses
    /// [`next_hop`](Self::next_hop).
    pub next_hop_table: Option<Box<str>>,
}

/// A pattern of domains: `example.com`, `*.example.com` (all subdomains, not the domain itself),
/// `[192.0.2.1]` or `*`. Names are in lower case and have A-labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DomainPattern {
    /// This domain.
    Exact(Box<str>),
    /// This address, in any notation.
    Literal(IpAddr),
    /// The subdomains of this domain.
    Subdomains(Box<str>),
    /// Everything, including address literals.
    Any,
}

/// Not a pattern of domains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a domain, '*.' and a domain, an address in brackets, or '*'")]
pub struct DomainPatternError;

impl DomainPattern {
    /// Whether a name, in upper or lower case, matches: a domain, an address literal, or the bare
    /// address of a host without a name. Non-ASCII names are converted to A-labels first.
    pub fn matches(&self, domain: &str) -> bool {
        if !domain.is_ascii() {
            return *self == DomainPattern::Any || to_ascii(domain).is_some_and(|domain| self.matches(&domain));
        }
        match self {
            DomainPattern::Exact(name) => name.eq_ignore_ascii_case(domain),
            DomainPattern::Literal(own) => parse_address(domain).is_some_and(|address| address == *own),
            DomainPattern::Subdomains(parent) => {
                let parts = domain.len().checked_sub(parent.len()).map(|place| domain.split_at(place));
                parts.is_some_and(|(front, end)| {
                    front.len() > 1 && front.ends_with('.') && end.eq_ignore_ascii_case(parent)
                })
            }
            DomainPattern::Any => true,
        }
    }
}

impl FromStr for DomainPattern {
    type Err = DomainPatternError;

    fn from_str(text: &str) -> Result<Self, DomainPatternError> {
        if text == "*" {
            return Ok(DomainPattern::Any);
        }
        // A bare IPv4 address would otherwise be read as a name.
        if let Some(address) = parse_address(text) {
            return Ok(DomainPattern::Literal(address));
        }
        match text.strip_prefix("*.") {
            Some(parent) => Ok(DomainPattern::Subdomains(to_ascii(parent).ok_or(DomainPatternError)?)),
            None => Ok(DomainPattern::Exact(to_ascii(text).ok_or(DomainPatternError)?)),
        }
    }
}

impl fmt::Display for DomainPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DomainPattern::Exact(name) => f.write_str(name),
            DomainPattern::Literal(address) => write!(f, "[{address}]"),
            DomainPattern::Subdomains(parent) => write!(f, "*.{parent}"),
            DomainPattern::Any => f.write_str("*"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_fits_its_domains() {
        for (pattern, fits, fits_not) in [
            ("Example.com", &["example.com", "EXAMPLE.com"][..], &["a.example.com", "xample.com"][..]),
            (
                "*.example.com",
                &["a.example.com", "b.a.example.com", "A.EXAMPLE.com"],
                &["example.com", "anexample.com", ".example.com", "com"],
            ),
            ("*.müller.example", &["a.xn--mller-kva.example"], &["xn--mller-kva.example"]),
            ("[192.0.2.1]", &["[192.0.2.1]", "192.0.2.1", "[::ffff:192.0.2.1]"], &["[192.0.2.2]", "192.0.2.1.example"]),
            ("192.0.2.1", &["[192.0.2.1]", "192.0.2.1"], &["192.0.2.10"]),
            ("[IPv6:2001:DB8::1]", &["[ipv6:2001:db8::1]", "[2001:db8:0::1]", "2001:db8::1"], &["[ipv6:2001:db8::2]"]),
            ("[2001:db8::1]", &["[ipv6:2001:db8::1]", "2001:db8::1"], &["[ipv6:2001:db8::2]", "example.com"]),
            ("*", &["example.com", "[192.0.2.1]"], &[]),
        ] {
            let pattern: DomainPattern = pattern.parse().unwrap();
            assert_eq!(pattern.to_string().parse(), Ok(pattern.clone()));
            fits.iter().for_each(|domain| assert!(pattern.matches(domain), "{pattern} {domain}"));
            fits_not.iter().for_each(|domain| assert!(!pattern.matches(domain), "{pattern} {domain}"));
        }
    }

    #[test]
    fn what_no_destination_can_be_is_no_pattern() {
        let brackets = ["[anything]", "[]", "[192.0.2.300]", "[IPv6:1]", "[192.0.2.1", "*.[192.0.2.1]"];
        let stars = ["*.", "*x.example", "a.*.example", "**"];
        for text in brackets.into_iter().chain(stars).chain(["", "a b"]) {
            assert_eq!(text.parse::<DomainPattern>(), Err(DomainPatternError), "{text}");
        }
    }
}
