//! Parses destinations.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use dns::to_ascii;

use crate::route_key::RouteKey;

/// A parsed destination.
pub(crate) enum Destination<'a> {
    /// A host that stores mailboxes, from the directory.
    MailHost(&'a str),
    /// A transport and perhaps its next hop, chosen by more than the domain.
    Route {
        /// The transport and the next hop.
        key: RouteKey,
        /// The recipient's domain.
        domain: &'a str,
    },
    /// An address literal.
    Literal(IpAddr),
    /// A domain, in lower case and with A-labels.
    Domain(Box<str>),
    /// Not a valid destination.
    Invalid,
}

impl<'a> Destination<'a> {
    pub(crate) fn parse(text: &'a str) -> Self {
        if let Some((host, domain)) = text.rsplit_once('!') {
            return match RouteKey::parse(host) {
                Some(key) => Destination::Route { key, domain },
                None => Destination::MailHost(host),
            };
        }
        match (text.starts_with('['), parse_literal(text), to_ascii(text)) {
            (true, Some(address), _) => Destination::Literal(address),
            (false, _, Some(domain)) => Destination::Domain(domain),
            _ => Destination::Invalid,
        }
    }
}

/// The address in `[192.0.2.1]`, `[IPv6:2001:db8::1]` (RFC 5321 section 4.1.3) or, as people write
/// it, `[2001:db8::1]`.
pub(crate) fn parse_literal(text: &str) -> Option<IpAddr> {
    let inner = text.strip_prefix('[')?.strip_suffix(']')?;
    let address = match inner.get(..5) {
        Some(tag) if tag.eq_ignore_ascii_case("IPv6:") => &inner[5..],
        _ => inner,
    };
    let v6 = || address.parse::<Ipv6Addr>().ok().map(IpAddr::from);
    address.parse::<Ipv4Addr>().ok().map(IpAddr::from).or_else(v6)
}

/// The address in a text with or without brackets. An IPv4-mapped address becomes an IPv4 address.
pub(crate) fn parse_address(text: &str) -> Option<IpAddr> {
    parse_literal(text).or_else(|| text.parse().ok()).map(|address| address.to_canonical())
}
