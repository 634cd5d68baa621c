//! Access rules and the notations in them.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::str::FromStr;

use filter::Stage;
use filter::access::{HeloFault, ReverseNameState, RhsblSubject, RuleAction, SenderFault};
use mail::{Address, Network};
use route::DomainPattern;
use sender_auth::Method;

/// An access rule. Empty lists are no conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessRule {
    /// Its name, which is unique.
    pub name: Box<str>,
    /// Its list: `accept` skips only the other rules of this list. All rules of a list have the
    /// same stage.
    pub list: Option<Box<str>>,
    /// Its class: it is evaluated only after a table of an earlier rule of its stage has had this name
    /// as its value.
    pub class: Option<Box<str>>,
    /// The stage at which it is checked, when everything in its conditions is known.
    pub stage: Stage,
    /// Whether it also applies to users who have logged in, and on listeners that require a login.
    pub users: bool,
    /// The session is on one of these listeners; none: on any.
    pub listeners: Vec<SocketAddr>,
    /// The client's address is in one of these networks.
    pub clients: Vec<Network>,
    /// The table contains the client's address.
    pub clients_in: Option<Box<str>>,
    /// The table contains the client's confirmed name, or its address.
    pub client_names_in: Option<Box<str>>,
    /// The table contains the client's name, confirmed or not.
    pub reverse_names_in: Option<Box<str>>,
    /// The client's HELO name matches one of these.
    pub helos: Vec<DomainPattern>,
    /// The table contains the client's HELO name.
    pub helos_in: Option<Box<str>>,
    /// The sender matches one of these.
    pub senders: Vec<EnvelopePattern>,
    /// The table contains the sender.
    pub senders_in: Option<Box<str>>,
    /// The recipient matches one of these.
    pub recipients: Vec<EnvelopePattern>,
    /// The table contains the recipient.
    pub recipients_in: Option<Box<str>>,
    /// The client's address is on this DNS list.
    pub dnsbl: Option<DnsblZone>,
    /// The weights of the DNS lists that have the client's address add up to a score.
    pub dnsbl_score: Option<DnsblScoreSettings>,
    /// One of these names is on this DNS list of domains.
    pub rhsbl: Option<(DnsblZone, Box<[RhsblSubject]>)>,
    /// The client's name in the DNS is in one of these states.
    pub reverse_name: Vec<ReverseNameState>,
    /// The client's HELO name has one of these faults.
    pub helo_faults: Vec<HeloFault>,
    /// The domain of the sender has one of these faults.
    pub sender_faults: Vec<SenderFault>,
    /// The client talked before the greeting.
    pub early_talker: bool,
    /// The message has at least this many recipients.
    pub recipients_min: Option<usize>,
    /// These methods have one of these results.
    pub verdicts: Vec<(Method, Box<[&'static str]>)>,
    /// A domain that matches one of these has signed the message.
    pub dkim_domains: Vec<DomainPattern>,
    /// Its table may name content filters.
    pub chooses_filters: bool,
    /// The action. If the table decides, the rule has exactly one table.
    pub action: RuleAction,
}

impl AccessRule {
    /// The DNS list of the rule and the one of domains.
    pub fn dns_lists(&self) -> impl Iterator<Item = &DnsblZone> {
        let weighed = self.dnsbl_score.iter().flat_map(|score| &score.lists).map(|(zone, _)| zone);
        self.dnsbl.iter().chain(weighed).chain(self.rhsbl.iter().map(|(zone, _)| zone))
    }

    /// The tables that have names of clients.
    pub fn client_name_tables(&self) -> impl Iterator<Item = &str> {
        self.client_names_in.iter().chain(&self.reverse_names_in).map(|name| &**name)
    }

    /// The tables of the rule.
    pub fn tables(&self) -> impl Iterator<Item = &str> {
        let others = [&self.clients_in, &self.helos_in, &self.senders_in, &self.recipients_in];
        others.into_iter().flatten().map(|name| &**name).chain(self.client_name_tables())
    }

    /// Whether the rule asks the DNS for names of clients or greetings.
    pub fn needs_host_names(&self) -> bool {
        self.rhsbl.is_some()
            || self.client_name_tables().next().is_some()
            || !self.reverse_name.is_empty()
            || self.helo_faults.contains(&HeloFault::Unknown)
            || self.sender_faults.contains(&SenderFault::Unknown)
    }

    /// Whether a condition is about strangers: users have addresses and machines of every kind.
    pub(super) fn is_for_strangers(&self) -> bool {
        self.dns_lists().next().is_some()
            || self.client_name_tables().next().is_some()
            || !self.reverse_name.is_empty()
            || !self.helo_faults.is_empty()
            || !self.sender_faults.is_empty()
            || self.early_talker
    }
}

/// A DNS list of addresses, or of domains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsblZone {
    /// Its domain.
    pub zone: Box<str>,
    /// The answers that match; none: all.
    pub codes: Vec<RangeInclusive<Ipv4Addr>>,
}

/// DNS lists whose weights are added up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsblScoreSettings {
    /// The lists with their weights.
    pub lists: Vec<(DnsblZone, i32)>,
    /// The sum from which on the rule matches.
    pub at_least: i32,
}

/// The text is not in the expected notation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not in the expected notation")]
pub struct NotationError;

/// Answers of a DNS list, as a range: `127.0.0.2` or `127.0.0.4/30`.
pub(super) fn parse_dnsbl_codes(text: &str) -> Option<RangeInclusive<Ipv4Addr>> {
    let network: Network = text.parse().ok()?;
    let (first, last) = network.range_v4()?;
    let is_code = |address: Ipv4Addr| address.octets()[0] == 127;
    (is_code(first) && is_code(last)).then_some(first..=last)
}

/// A pattern for senders or recipients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EnvelopePattern {
    /// `<>`: the null sender.
    Null,
    /// `news@example.org`: this address.
    Address(Address),
    /// `@example.org`, `@*.example.org`: these domains.
    Domain(DomainPattern),
}

impl EnvelopePattern {
    /// Whether an address matches; None is the null sender. Case is ignored, and domains match in
    /// Unicode or as A-labels (RFC 5890).
    pub fn matches(&self, address: Option<&Address>) -> bool {
        match (self, address) {
            (EnvelopePattern::Null, who) => who.is_none(),
            (_, None) => false,
            (EnvelopePattern::Address(pattern), Some(who)) => {
                same_local_part(pattern.local_part(), who.local_part()) && same_domain(pattern.domain(), who.domain())
            }
            (EnvelopePattern::Domain(pattern), Some(who)) => pattern.matches(who.domain()),
        }
    }
}

fn same_local_part(one: &str, other: &str) -> bool {
    let is_plain = one.is_ascii() && other.is_ascii();
    one.eq_ignore_ascii_case(other) || !is_plain && lookup::fold_key(one) == lookup::fold_key(other)
}

fn same_domain(one: &str, other: &str) -> bool {
    one == other || one.parse().is_ok_and(|one: DomainPattern| one.matches(other))
}

impl FromStr for EnvelopePattern {
    type Err = NotationError;

    fn from_str(text: &str) -> Result<Self, NotationError> {
        match text.strip_prefix('@') {
            _ if text == "<>" => Ok(EnvelopePattern::Null),
            // It would be a valid local part, but that is never what the operator means.
            None if text.starts_with('*') => Err(NotationError),
            Some(domain) => domain.parse().map(EnvelopePattern::Domain).map_err(|_| NotationError),
            None => text.parse().map(EnvelopePattern::Address).map_err(|_| NotationError),
        }
    }
}

impl fmt::Display for EnvelopePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EnvelopePattern::Null => f.write_str("<>"),
            EnvelopePattern::Address(address) => f.write_str(address.as_str()),
            EnvelopePattern::Domain(pattern) => write!(f, "@{pattern}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_an_address_domains_or_nobody() {
        let sender: Address = "News@Lists.example.org".parse().unwrap();
        for (pattern, fits, fits_nobody) in [
            ("news@lists.example.org", true, false),
            ("old@lists.example.org", false, false),
            ("@lists.example.org", true, false),
            ("@*.example.org", true, false),
            ("@example.org", false, false),
            ("@*", true, false),
            ("<>", false, true),
        ] {
            let pattern: EnvelopePattern = pattern.parse().unwrap();
            assert_eq!((pattern.matches(Some(&sender)), pattern.matches(None)), (fits, fits_nobody), "{pattern}");
        }
        for (pattern, who) in [
            ("bob@bücher.example", "Bob@xn--bcher-kva.example"),
            ("bob@xn--bcher-kva.example", "bob@Bücher.example"),
            ("@bücher.example", "bob@xn--bcher-kva.example"),
            ("jürgen@bücher.example", "JÜRGEN@xn--bcher-kva.example"),
            ("bob@[ipv6:2001:db8::1]", "bob@[IPv6:2001:db8:0::1]"),
        ] {
            let (pattern, who): (EnvelopePattern, Address) = (pattern.parse().unwrap(), who.parse().unwrap());
            assert!(pattern.matches(Some(&who)), "{pattern} {who}");
        }
        for text in ["", "news", "@", "example.org", "*@example.org", "<a@b.example>"] {
            assert_eq!(text.parse::<EnvelopePattern>(), Err(NotationError), "{text}");
        }
    }

    #[test]
    fn codes_are_addresses_of_the_loopback() {
        let codes = |text: &str| parse_dnsbl_codes(text).map(|codes| format!("{codes:?}"));
        assert_eq!(codes("127.0.0.2").unwrap(), "127.0.0.2..=127.0.0.2");
        assert_eq!(codes("127.0.0.4/30").unwrap(), "127.0.0.4..=127.0.0.7");
        for text in ["", "2", "192.0.2.1", "127.0.0.2/30", "126.0.0.0/7", "::1"] {
            assert_eq!(codes(text), None, "{text}");
        }
    }
}
