//! The names of a client: what its PTR records say, believed only of names that have its address
//! (RFC 7208 section 5.5, RFC 8601 section 3).

use std::net::IpAddr;

use dns::{DnsAnswer, QueryType, reverse_name};

use crate::DnsLookup;

/// What the PTR records of a client say.
pub(crate) enum ReverseNames {
    /// The first [`NAMES_MAX`] of its names; none is confirmed. Empty if none is a host name.
    Named(Vec<Box<str>>),
    /// It has no PTR records.
    Unnamed,
    /// The DNS did not answer.
    Unanswered,
}

/// Looks up the names of a client.
pub(crate) async fn reverse_names(dns: &dyn DnsLookup, client: IpAddr) -> ReverseNames {
    match dns.lookup(&reverse_name(client), QueryType::Ptr).await.answer {
        DnsAnswer::Names(names) => ReverseNames::Named(names.iter().take(NAMES_MAX).cloned().collect()),
        DnsAnswer::Unanswered(_) => ReverseNames::Unanswered,
        _ => ReverseNames::Unnamed,
    }
}

/// Whether a name has the address of a client. None: the DNS did not answer.
pub(crate) async fn has_address(dns: &dyn DnsLookup, name: &str, client: IpAddr) -> Option<bool> {
    match dns.lookup(name, address_query(client)).await.answer {
        DnsAnswer::Addresses(addresses) => Some(addresses.contains(&client.to_canonical())),
        DnsAnswer::Unanswered(_) => None,
        _ => Some(false),
    }
}

/// The type of the records that can have the address of a client.
pub(crate) fn address_query(client: IpAddr) -> QueryType {
    if client.to_canonical().is_ipv4() { QueryType::A } else { QueryType::Aaaa }
}

/// How many names of a client are used (RFC 7208 section 4.6.4).
const NAMES_MAX: usize = 10;
