//! What can be asked of the DNS, and what the records of an answer say.
//!
//! Names in records are those of hosts: in lower case, with A-labels, and left out if they are
//! invalid. The number of records that are used is limited; of more, always the same ones are used.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

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
    /// Texts.
    Txt,
    /// The names of an address; see [`reverse_name`](crate::reverse_name).
    Ptr,
    /// The name for which it is an alias.
    Cname,
    /// The certificates of a service (RFC 6698).
    Tlsa,
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
    /// Its texts; the strings of each record are joined (RFC 7208 section 3.3, RFC 6376 section
    /// 3.6.2.2).
    Texts(Arc<[Box<[u8]>]>),
    /// The names that it points to. Empty if none of them is valid.
    Names(Arc<[Box<str>]>),
    /// Its certificates.
    Tlsa(Arc<[TlsaRecord]>),
    /// It has no records of this type.
    NoRecords,
    /// It does not exist.
    NoSuchName,
    /// No answer; the reason.
    Unanswered(Box<str>),
}

/// An MX host of a domain.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MxHost {
    /// Lower is better.
    pub preference: u16,
    /// In lower case and with A-labels.
    pub name: Box<str>,
}

/// A TLSA record (RFC 6698 section 2.1), as it was published: nothing of it is checked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TlsaRecord {
    /// The certificate usage.
    pub usage: u8,
    /// The selector: certificate or public key.
    pub selector: u8,
    /// The matching type: in full or a hash.
    pub matching: u8,
    /// The certificate association data.
    pub data: Box<[u8]>,
}

/// Its data as in a zone file.
impl fmt::Display for TlsaRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {} ", self.usage, self.selector, self.matching)?;
        self.data.iter().try_for_each(|octet| write!(f, "{octet:02x}"))
    }
}

impl QueryType {
    pub(crate) fn record_type(self) -> RecordType {
        match self {
            QueryType::Mx => RecordType::MX,
            QueryType::A => RecordType::A,
            QueryType::Aaaa => RecordType::AAAA,
            QueryType::Txt => RecordType::TXT,
            QueryType::Ptr => RecordType::PTR,
            QueryType::Cname => RecordType::CNAME,
            QueryType::Tlsa => RecordType::TLSA,
        }
    }
}

impl DnsAnswer {
    pub(crate) fn unanswered(why: &str) -> Self {
        DnsAnswer::Unanswered(why.into())
    }

    /// What an answer of the queried type says. `records` are not empty.
    pub(crate) fn from_records(records: &[&Record], kind: QueryType) -> Self {
        match kind {
            QueryType::Mx => mx_answer(records),
            QueryType::A | QueryType::Aaaa => {
                DnsAnswer::Addresses(collect(records, RECORDS_MAX, |data| data.ip_addr()))
            }
            QueryType::Txt => DnsAnswer::Texts(collect(records, TEXTS_MAX, text)),
            QueryType::Ptr => DnsAnswer::Names(collect(records, RECORDS_MAX, |data| match data {
                RData::PTR(name) => host_name(&name.0),
                _ => None,
            })),
            QueryType::Cname => DnsAnswer::Names(collect(records, 1, |data| match data {
                RData::CNAME(name) => host_name(&name.0),
                _ => None,
            })),
            QueryType::Tlsa => DnsAnswer::Tlsa(collect(records, RECORDS_MAX, tlsa_record)),
        }
    }

    /// The memory that its records take, approximately.
    pub(crate) fn octets(&self) -> usize {
        match self {
            DnsAnswer::MxHosts(hosts) => hosts.iter().map(|host| size_of::<MxHost>() + host.name.len()).sum(),
            DnsAnswer::Addresses(addresses) => size_of_val::<[IpAddr]>(addresses),
            DnsAnswer::Texts(texts) => texts.iter().map(|text| size_of::<Box<[u8]>>() + text.len()).sum(),
            DnsAnswer::Names(names) => names.iter().map(|name| size_of::<Box<str>>() + name.len()).sum(),
            DnsAnswer::Tlsa(records) => records.iter().map(|one| size_of::<TlsaRecord>() + one.data.len()).sum(),
            DnsAnswer::Unanswered(why) => why.len(),
            DnsAnswer::NullMx | DnsAnswer::NoRecords | DnsAnswer::NoSuchName => 0,
        }
    }
}

/// A null MX beside other MX records, which RFC 7505 section 3 forbids, is ignored.
fn mx_answer(records: &[&Record]) -> DnsAnswer {
    let is_null = |record: &&Record| matches!(&record.data, RData::MX(mx) if mx.exchange.is_root());
    if records.iter().all(is_null) {
        return DnsAnswer::NullMx;
    }
    let mx_host = |mx: &MX| Some(MxHost { preference: mx.preference, name: host_name(&mx.exchange)? });
    DnsAnswer::MxHosts(collect(records, RECORDS_MAX, |data| match data {
        RData::MX(mx) => mx_host(mx),
        _ => None,
    }))
}

fn text(data: &RData) -> Option<Box<[u8]>> {
    match data {
        RData::TXT(text) => Some(text.txt_data.concat().into()),
        _ => None,
    }
}

fn tlsa_record(data: &RData) -> Option<TlsaRecord> {
    match data {
        RData::TLSA(tlsa) => Some(TlsaRecord {
            usage: tlsa.cert_usage.into(),
            selector: tlsa.selector.into(),
            matching: tlsa.matching.into(),
            data: tlsa.cert_data.as_slice().into(),
        }),
        _ => None,
    }
}

/// What the records say, in the order of the answer. Of more than `max`, always the same part is
/// kept, so that a next hop and a verdict stay the same.
fn collect<T: Ord>(records: &[&Record], max: usize, read: impl Fn(&RData) -> Option<T>) -> Arc<[T]> {
    let mut found: Vec<T> = records.iter().filter_map(|record| read(&record.data)).collect();
    if found.len() > max {
        found.sort_unstable();
        found.truncate(max);
    }
    found.into()
}

/// The name of a host; None for the root, for an invalid name, and for an address, which some zones
/// have in place of a name (RFC 1035 section 3.3.9).
fn host_name(name: &Name) -> Option<Box<str>> {
    let text = to_ascii(&name.to_ascii())?;
    text.parse::<Ipv4Addr>().is_err().then_some(text)
}

/// The maximum number of records used from one answer.
const RECORDS_MAX: usize = 100;
/// The same for texts, of which some domains have many: each service that they use wants one.
const TEXTS_MAX: usize = 500;
