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

use hickory_resolver::net::NoRecords;
use hickory_resolver::proto::op::{Message, ResponseCode};
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};

use crate::name::query_name;
use crate::records::{DnsAnswer, QueryType};

/// The meaning of one response.
pub(crate) struct ParsedResponse {
    pub(crate) content: ResponseContent,
    /// The TTL in seconds, if it has one.
    pub(crate) ttl: Option<u32>,
    /// Whether the server says that it validated the response: its AD bit (RFC 4035 section 3.2.3).
    /// hickory does not show the bit of a denial, so that a denial never has it.
    pub(crate) authenticated: bool,
}

/// What a response says.
pub(crate) enum ResponseContent {
    /// The final answer.
    Answer(DnsAnswer),
    /// The name is an alias, and the response has no records for its target.
    Alias(Name),
}

impl ParsedResponse {
    /// No answer, for this reason.
    pub(crate) fn unanswered(why: &str) -> Self {
        ParsedResponse::answer(DnsAnswer::unanswered(why), None, false)
    }

    /// Whether another server may have an answer.
    pub(crate) fn is_unanswered(&self) -> bool {
        matches!(self.content, ResponseContent::Answer(DnsAnswer::Unanswered(_)))
    }

    fn answer(answer: DnsAnswer, ttl: Option<u32>, authenticated: bool) -> Self {
        ParsedResponse { content: ResponseContent::Answer(answer), ttl, authenticated }
    }
}

/// What a message of a name server says about a name. None: it is not a message, or the name is an
/// alias for a name that it says nothing about. [`NameServers`](crate::NameServers) read each message
/// like this; fuzzing starts here.
pub fn parse_message(octets: &[u8], name: &str, kind: QueryType) -> Option<DnsAnswer> {
    let message = Message::from_vec(octets).ok()?;
    match parse_answer(&message, &query_name(name)?, kind).content {
        ResponseContent::Answer(answer) => Some(answer),
        ResponseContent::Alias(_) => None,
    }
}

/// Parses a response that has records.
pub(crate) fn parse_answer(response: &Message, name: &Name, kind: QueryType) -> ParsedResponse {
    let (mut at, mut ttl) = (name.clone(), None);
    for _ in 0..=ALIASES_MAX {
        let records = || response.answers.iter().filter(|record| record.name == at);
        let found: Vec<&Record> = records().filter(|record| record.record_type() == kind.record_type()).collect();
        if !found.is_empty() {
            let least = found.iter().map(|record| record.ttl).chain(ttl).min();
            return ParsedResponse::answer(DnsAnswer::from_records(&found, kind), least, response.authentic_data);
        }
        let alias = records().find_map(|record| match &record.data {
            RData::CNAME(target) => Some((target.0.clone(), record.ttl)),
            _ => None,
        });
        let Some((target, seconds)) = alias else { return parse_alias_end(response, name, at, ttl) };
        ttl = Some(seconds).into_iter().chain(ttl).min();
        at = target;
    }
    ParsedResponse::unanswered(ALIAS_LOOP)
}

/// Parses a response without records of the queried type; the aliases end at `at`.
fn parse_alias_end(response: &Message, name: &Name, at: Name, ttl: Option<u32>) -> ParsedResponse {
    let soa = response.authorities.iter().find_map(|record| match &record.data {
        RData::SOA(soa) => Some(record.ttl.min(soa.minimum)),
        _ => None,
    });
    let least = soa.into_iter().chain(ttl).min();
    let is_referral = soa.is_none() && response.authorities.iter().any(|record| record.record_type() == RecordType::NS);
    match response.response_code {
        ResponseCode::NXDomain => ParsedResponse::answer(DnsAnswer::NoSuchName, least, false),
        ResponseCode::NoError if at != *name && soa.is_none() => {
            ParsedResponse { content: ResponseContent::Alias(at), ttl, authenticated: response.authentic_data }
        }
        ResponseCode::NoError if at == *name && !response.answers.is_empty() => {
            ParsedResponse::unanswered(WRONG_ANSWER)
        }
        ResponseCode::NoError if is_referral => ParsedResponse::unanswered(REFERRAL),
        ResponseCode::NoError => ParsedResponse::answer(DnsAnswer::NoRecords, least, false),
        _ => ParsedResponse::unanswered("a name server returned an unexpected response code"),
    }
}

/// Parses a negative response.
pub(crate) fn parse_denial(denial: &NoRecords) -> ParsedResponse {
    let answer = match denial.response_code {
        ResponseCode::NXDomain => DnsAnswer::NoSuchName,
        _ if denial.soa.is_none() && denial.ns.is_some() => DnsAnswer::Unanswered(REFERRAL.into()),
        _ => DnsAnswer::NoRecords,
    };
    ParsedResponse::answer(answer, denial.negative_ttl, false)
}

/// The aliases form a loop.
pub(crate) const ALIAS_LOOP: &str = "CNAME loop";
const WRONG_ANSWER: &str = "a name server answered a different question";
const REFERRAL: &str = "a name server returned a referral";

/// The maximum number of aliases in a chain; more count as a loop.
pub(crate) const ALIASES_MAX: usize = 8;
