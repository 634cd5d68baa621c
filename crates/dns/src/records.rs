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

use crate::name::to_ascii;

/// The type of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QueryType {
    /// MX hosts.
    Mx,
    /// IPv4 addresses.
    A,
    /// IPv6 addresses.
    Aaaa,
}

/// The answer for a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DnsAnswer {
    /// Its MX hosts, in the order of the answer. Empty if none of the names is valid.
    MxHosts(Arc<[MxHost]>),
    /// It accepts no mail (RFC 7505).
    NullMx,
    /// Its addresses.
    Addresses(Arc<[IpAddr]>),
    /// It has no records of this type.
    NoRecords,
    /// It does not exist.
    NoSuchName,
    /// No answer; the reason.
    Unanswered(Box<str>),
}

impl DnsAnswer {
    pub(crate) fn unanswered(why: &str) -> Self {
        DnsAnswer::Unanswered(why.into())
    }
}

/// An MX host of a domain.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MxHost {
    /// Lower is better.
    pub preference: u16,
    /// In lower case and with A-labels.
    pub name: Box<str>,
}

/// The meaning of one response, and its TTL in seconds if it has one.
pub(crate) enum ParsedAnswer {
    /// The final answer.
    Complete(DnsAnswer, Option<u32>),
    /// The name is an alias, and the response has no records for its target.
    Alias(Name, Option<u32>),
}

impl ParsedAnswer {
    /// No answer, for this reason.
    pub(crate) fn unanswered(why: &str) -> Self {
        ParsedAnswer::Complete(DnsAnswer::unanswered(why), None)
    }

    /// Whether another server may have an answer.
    pub(crate) fn is_unanswered(&self) -> bool {
        matches!(self, ParsedAnswer::Complete(DnsAnswer::Unanswered(_), _))
    }
}

impl QueryType {
    pub(crate) fn record_type(self) -> RecordType {
        match self {
            QueryType::Mx => RecordType::MX,
            QueryType::A => RecordType::A,
            QueryType::Aaaa => RecordType::AAAA,
        }
    }
}

/// Parses a response that has records.
pub(crate) fn parse_answer(answer: &Message, name: &Name, kind: QueryType) -> ParsedAnswer {
    let (mut at, mut ttl) = (name.clone(), None);
    for _ in 0..=ALIASES_MAX {
        let records = || answer.answers.iter().filter(|record| record.name == at);
        let found: Vec<&Record> = records().filter(|record| record.record_type() == kind.record_type()).collect();
        if !found.is_empty() {
            let least = found.iter().map(|record| record.ttl).chain(ttl).min();
            return ParsedAnswer::Complete(answer_from_records(&found, kind), least);
        }
        let alias = records().find_map(|record| match &record.data {
            RData::CNAME(target) => Some((target.0.clone(), record.ttl)),
            _ => None,
        });
        let Some((target, seconds)) = alias else { return parse_alias_end(answer, name, at, ttl) };
        ttl = Some(seconds).into_iter().chain(ttl).min();
        at = target;
    }
    ParsedAnswer::unanswered(ALIAS_LOOP)
}

/// Parses a response without records of the queried type; the aliases end at `at`.
fn parse_alias_end(answer: &Message, name: &Name, at: Name, ttl: Option<u32>) -> ParsedAnswer {
    let soa = answer.authorities.iter().find_map(|record| match &record.data {
        RData::SOA(soa) => Some(record.ttl.min(soa.minimum)),
        _ => None,
    });
    let least = soa.into_iter().chain(ttl).min();
    let is_referral = soa.is_none() && answer.authorities.iter().any(|record| record.record_type() == RecordType::NS);
    match answer.response_code {
        ResponseCode::NXDomain => ParsedAnswer::Complete(DnsAnswer::NoSuchName, least),
        ResponseCode::NoError if at != *name && soa.is_none() => ParsedAnswer::Alias(at, ttl),
        ResponseCode::NoError if at == *name && !answer.answers.is_empty() => ParsedAnswer::unanswered(WRONG_ANSWER),
        ResponseCode::NoError if is_referral => ParsedAnswer::unanswered(REFERRAL),
        ResponseCode::NoError => ParsedAnswer::Complete(DnsAnswer::NoRecords, least),
        _ => ParsedAnswer::unanswered("a name server returned an unexpected response code"),
    }
}

/// Parses a negative response.
pub(crate) fn parse_denial(denial: &NoRecords) -> ParsedAnswer {
    let answer = match denial.response_code {
        ResponseCode::NXDomain => DnsAnswer::NoSuchName,
        _ if denial.soa.is_none() && denial.ns.is_some() => DnsAnswer::Unanswered(REFERRAL.into()),
        _ => DnsAnswer::NoRecords,
    };
    ParsedAnswer::Complete(answer, denial.negative_ttl)
}

fn answer_from_records(records: &[&Record], kind: QueryType) -> DnsAnswer {
    match kind {
        QueryType::Mx => mx_answer(records),
        QueryType::A | QueryType::Aaaa => {
            DnsAnswer::Addresses(records.iter().filter_map(|record| record.data.ip_addr()).take(RECORDS_MAX).collect())
        }
    }
}

/// A null MX beside other MX records, which RFC 7505 section 3 forbids, is ignored.
fn mx_answer(records: &[&Record]) -> DnsAnswer {
    let hosts = || {
        records.iter().filter_map(|record| match &record.data {
            RData::MX(mx) => Some(mx),
            _ => None,
        })
    };
    if hosts().all(|mx| mx.exchange.is_root()) {
        return DnsAnswer::NullMx;
    }
    let mx_host = |mx: &MX| Some(MxHost { preference: mx.preference, name: host_name(&mx.exchange)? });
    let mut exchangers: Vec<MxHost> = hosts().filter_map(mx_host).collect();
    if exchangers.len() > RECORDS_MAX {
        // Always keeps the same part of a large set, so that the next hop stays the same.
        exchangers.sort_unstable();
        exchangers.truncate(RECORDS_MAX);
    }
    DnsAnswer::MxHosts(exchangers.into())
}

/// The name of an MX host; None for the root, for an invalid name, and for an address, which some
/// zones have in place of a name (RFC 1035 section 3.3.9).
fn host_name(name: &Name) -> Option<Box<str>> {
    let text = to_ascii(&name.to_ascii())?;
    text.parse::<Ipv4Addr>().is_err().then_some(text)
}

/// The aliases form a loop.
pub(crate) const ALIAS_LOOP: &str = "CNAME loop";
const WRONG_ANSWER: &str = "a name server answered a different question";
const REFERRAL: &str = "a name server returned a referral";

/// The maximum number of aliases in a chain; more count as a loop.
pub(crate) const ALIASES_MAX: usize = 8;
/// The maximum number of records used from one answer.
const RECORDS_MAX: usize = 100;
