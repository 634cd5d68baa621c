//! What a name server's answer says of one name, read with suspicion.
//!
//! Only records of the name that was asked for count, and of the names its aliases lead to. An answer that holds
//! others instead, or a referral, says nothing; it never becomes a denial.
//!
//! | answer section                     | code     | further                 | it says                                |
//! |------------------------------------|----------|-------------------------|----------------------------------------|
//! | records of the name at the end     |          |                         | these                                  |
//! | aliases only                       | NXDOMAIN |                         | no such name (RFC 6604 section 3)      |
//! | aliases only                       | NOERROR  | SOA                     | nothing of this kind                   |
//! | aliases only                       | NOERROR  |                         | ask for the name at the end            |
//! | others, or aliases in a loop       |          |                         | nonsense                               |
//! | empty                              | NXDOMAIN |                         | no such name                           |
//! | empty                              | NOERROR  | NS and no SOA           | a referral (RFC 2308 section 2.2)      |
//! | empty                              | NOERROR  |                         | nothing of this kind                   |

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use hickory_resolver::net::NoRecords;
use hickory_resolver::proto::op::{Message, ResponseCode};
use hickory_resolver::proto::rr::rdata::MX;
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};

use crate::destination::to_ascii;

/// What is asked of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// Its mail hosts.
    Mx,
    /// Its IPv4 addresses.
    A,
    /// Its IPv6 addresses.
    Aaaa,
}

/// What the DNS says of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// These are its mail hosts, in the server's order. Empty where no host can have any of the names.
    Exchangers(Arc<[Exchanger]>),
    /// It takes no mail (RFC 7505).
    NullMx,
    /// These are its addresses.
    Addresses(Arc<[IpAddr]>),
    /// It has nothing of this kind.
    Nothing,
    /// It does not exist, and has nothing of any kind.
    NoSuchName,
    /// The DNS does not say; why.
    Unanswered(Box<str>),
}

/// A host that takes mail for a domain.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Exchanger {
    /// Lower is better.
    pub(crate) preference: u16,
    /// In lower case and A-labels.
    pub(crate) name: Box<str>,
}

/// What one answer says, and for how many seconds; None where it does not tell.
pub(crate) enum Reading {
    /// All there is to say.
    Final(Said, Option<u32>),
    /// The name is another one's alias, of which it says nothing.
    Alias(Name, Option<u32>),
}

impl Reading {
    /// Nothing is said; why.
    pub(crate) fn unanswered(why: &str) -> Self {
        Reading::Final(Said::Unanswered(why.into()), None)
    }

    /// Whether another server may say more.
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

/// Reads an answer that has records.
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

/// Reads an answer that has no records of ours: the aliases end at `at`.
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

/// Reads an answer that has none.
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

/// A null MX beside others is none (RFC 7505 section 3 forbids it): those others take mail.
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
        // Always the same ones of a set that is too large, so that it stays one next hop.
        exchangers.sort_unstable();
        exchangers.truncate(RECORDS_MAX);
    }
    Said::Exchangers(exchangers.into())
}

/// The name of a host; None for the root, for what no host can be called, and for an address, which some write where
/// a name belongs (RFC 1035 section 3.3.9).
fn host_name(name: &Name) -> Option<Box<str>> {
    let text = to_ascii(&name.to_ascii())?;
    text.parse::<Ipv4Addr>().is_err().then_some(text)
}

/// Aliases have no end.
pub(crate) const CIRCLE: &str = "CNAME loop";
const ANOTHER_QUESTION: &str = "a name server answered a different question";
const REFERRAL: &str = "a name server returned a referral";

/// Aliases in a row: more are a circle.
pub(crate) const ALIASES_MAX: usize = 8;
/// Records of one answer that are kept.
const RECORDS_MAX: usize = 100;
