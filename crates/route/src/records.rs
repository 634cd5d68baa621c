//! Interprets the answer of a name server for one name, without trusting it.
//!
//! Only records of the queried name, and of the names its aliases lead to, are used. An answer with
//! other records, or a referral, is treated as no answer, never as a denial.
//!
//! | answer section               | code     | further       | result                            |
//! |------------------------------|----------|---------------|-----------------------------------|
//! | records of the final name    |          |               | these records                     |
//! | aliases only                 | NXDOMAIN |               | no such name (RFC 6604 section 3) |
//! | aliases only                 | NOERROR  | SOA           | no records of this type           |
//! | aliases only                 | NOERROR  |               | query the final name              |
//! | others, or a loop of aliases |          |               | invalid                           |
//! | empty                        | NXDOMAIN |               | no such name                      |
//! | empty                        | NOERROR  | NS and no SOA | referral (RFC 2308 section 2.2)   |
//! | empty                        | NOERROR  |               | no records of this type           |

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use hickory_resolver::net::NoRecords;
use hickory_resolver::proto::op::{Message, ResponseCode};
use hickory_resolver::proto::rr::rdata::MX;
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};

use crate::destination::to_ascii;

/// The type of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// MX hosts.
    Mx,
    /// IPv4 addresses.
    A,
    /// IPv6 addresses.
    Aaaa,
}

/// The answer for a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// Its MX hosts, in the order of the answer. Empty if none of the names is valid.
    Exchangers(Arc<[Exchanger]>),
    /// It accepts no mail (RFC 7505).
    NullMx,
    /// Its addresses.
    Addresses(Arc<[IpAddr]>),
    /// It has no records of this type.
    Nothing,
    /// It does not exist.
    NoSuchName,
    /// No answer; the reason.
    Unanswered(Box<str>),
}

/// An MX host of a domain.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Exchanger {
    /// Lower is better.
    pub(crate) preference: u16,
    /// In lower case and with A-labels.
    pub(crate) name: Box<str>,
}

/// The meaning of one response, and its TTL in seconds if it has one.
pub(crate) enum Reading {
    /// The final answer.
    Final(Said, Option<u32>),
    /// The name is an alias, and the response has no records for its target.
    Alias(Name, Option<u32>),
}

impl Reading {
    /// No answer, for this reason.
    pub(crate) fn unanswered(why: &str) -> Self {
        Reading::Final(Said::Unanswered(why.into()), None)
    }

    /// Whether another server may have an answer.
    pub(crate) fn is_unanswered(&self) -> bool {
        matches!(self, Reading::Final(Said::Unanswered(_), _))
    }
}

impl Kind {
    pub(crate) fn record_type(self) -> RecordType {
        match self {
            Kind::Mx => RecordType::MX,
            Kind::A => RecordType::A,
            Kind::Aaaa => RecordType::AAAA,
        }
    }
}

/// Parses a response that has records.
pub(crate) fn read(answer: &Message, name: &Name, kind: Kind) -> Reading {
    let (mut at, mut ttl) = (name.clone(), None);
    for _ in 0..=ALIASES_MAX {
        let records = || answer.answers.iter().filter(|record| record.name == at);
        let found: Vec<&Record> = records().filter(|record| record.record_type() == kind.record_type()).collect();
        if !found.is_empty() {
            let least = found.iter().map(|record| record.ttl).chain(ttl).min();
            return Reading::Final(said(&found, kind), least);
        }
        let alias = records().find_map(|record| match &record.data {
            RData::CNAME(target) => Some((target.0.clone(), record.ttl)),
            _ => None,
        });
        let Some((target, seconds)) = alias else { return read_end(answer, name, at, ttl) };
        ttl = Some(seconds).into_iter().chain(ttl).min();
        at = target;
    }
    Reading::unanswered(CIRCLE)
}

/// Parses a response without records of the queried type; the aliases end at `at`.
fn read_end(answer: &Message, name: &Name, at: Name, ttl: Option<u32>) -> Reading {
    let soa = answer.authorities.iter().find_map(|record| match &record.data {
        RData::SOA(soa) => Some(record.ttl.min(soa.minimum)),
        _ => None,
    });
    let least = soa.into_iter().chain(ttl).min();
    let refers = soa.is_none() && answer.authorities.iter().any(|record| record.record_type() == RecordType::NS);
    match answer.response_code {
        ResponseCode::NXDomain => Reading::Final(Said::NoSuchName, least),
        ResponseCode::NoError if at != *name && soa.is_none() => Reading::Alias(at, ttl),
        ResponseCode::NoError if at == *name && !answer.answers.is_empty() => Reading::unanswered(ANOTHER_QUESTION),
        ResponseCode::NoError if refers => Reading::unanswered(REFERRAL),
        ResponseCode::NoError => Reading::Final(Said::Nothing, least),
        _ => Reading::unanswered("a name server returned an unexpected response code"),
    }
}

/// Parses a negative response.
pub(crate) fn read_denial(denial: &NoRecords) -> Reading {
    let said = match denial.response_code {
        ResponseCode::NXDomain => Said::NoSuchName,
        _ if denial.soa.is_none() && denial.ns.is_some() => Said::Unanswered(REFERRAL.into()),
        _ => Said::Nothing,
    };
    Reading::Final(said, denial.negative_ttl)
}

fn said(records: &[&Record], kind: Kind) -> Said {
    match kind {
        Kind::Mx => exchangers(records),
        Kind::A | Kind::Aaaa => {
            Said::Addresses(records.iter().filter_map(|record| record.data.ip_addr()).take(RECORDS_MAX).collect())
        }
    }
}

/// A null MX beside other MX records, which RFC 7505 section 3 forbids, is ignored.
fn exchangers(records: &[&Record]) -> Said {
    let hosts = || {
        records.iter().filter_map(|record| match &record.data {
            RData::MX(mx) => Some(mx),
            _ => None,
        })
    };
    if hosts().all(|mx| mx.exchange.is_root()) {
        return Said::NullMx;
    }
    let exchanger = |mx: &MX| Some(Exchanger { preference: mx.preference, name: host_name(&mx.exchange)? });
    let mut exchangers: Vec<Exchanger> = hosts().filter_map(exchanger).collect();
    if exchangers.len() > RECORDS_MAX {
        // Always keeps the same part of a large set, so that the next hop stays the same.
        exchangers.sort_unstable();
        exchangers.truncate(RECORDS_MAX);
    }
    Said::Exchangers(exchangers.into())
}

/// The name of an MX host; None for the root, for an invalid name, and for an address, which some
/// zones have in place of a name (RFC 1035 section 3.3.9).
fn host_name(name: &Name) -> Option<Box<str>> {
    let text = to_ascii(&name.to_ascii())?;
    text.parse::<Ipv4Addr>().is_err().then_some(text)
}

/// The aliases form a loop.
pub(crate) const CIRCLE: &str = "CNAME loop";
const ANOTHER_QUESTION: &str = "a name server answered a different question";
const REFERRAL: &str = "a name server returned a referral";

/// The maximum number of aliases in a chain; more count as a loop.
pub(crate) const ALIASES_MAX: usize = 8;
/// The maximum number of records used from one answer.
const RECORDS_MAX: usize = 100;
