//! A DNS in memory: a zone in text form, and the queries that it got.
//!
//! A line is `name type data`, for A, AAAA, MX, PTR, CNAME and TXT (the rest of the line is the text),
//! or `name ! fault`: `SERVFAIL` is no answer, `HANG` is none ever. `\` and three digits are an octet.
//! A name without lines does not exist, unless another name ends in it. Answers have what the real
//! resolver guarantees: aliases followed, names in lower case.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Instant;

use dns::{CachedAnswer, DnsAnswer, MxHost, QueryType};
use parking_lot::Mutex;
use sender_auth::{DnsFuture, DnsLookup};

/// The zone.
#[derive(Default)]
pub(crate) struct Zone {
    records: HashMap<String, Vec<(String, Vec<u8>)>>,
    queries: Mutex<Vec<(String, QueryType)>>,
}

impl Zone {
    /// Parses lines.
    pub(crate) fn parse<'a>(lines: impl IntoIterator<Item = &'a str>) -> Zone {
        let mut zone = Zone::default();
        for line in lines.into_iter().map(str::trim_start).filter(|line| !line.is_empty()) {
            zone.add(line);
        }
        zone
    }

    /// The queries so far.
    pub(crate) fn queries(&self) -> Vec<(String, QueryType)> {
        self.queries.lock().clone()
    }

    fn add(&mut self, line: &str) {
        let (name, rest) = line.split_once(' ').unwrap_or_else(|| panic!("not a zone line: {line}"));
        let (kind, data) = rest.split_once(' ').unwrap_or((rest, ""));
        let name = String::from_utf8(unescape(name)).unwrap().to_ascii_lowercase();
        self.records.entry(name).or_default().push((kind.into(), unescape(data)));
    }

    fn answer(&self, name: &str, kind: QueryType) -> DnsAnswer {
        let mut name = name.to_owned();
        for _ in 0..8 {
            if self.data(&name, "!").next().is_some() {
                return DnsAnswer::Unanswered("a fault".into());
            }
            let Some(target) = self.data(&name, "CNAME").next() else { return self.records(&name, kind) };
            name = host(target);
        }
        DnsAnswer::Unanswered("CNAME loop".into())
    }

    fn records(&self, name: &str, kind: QueryType) -> DnsAnswer {
        let texts = |of: &str| -> Vec<String> {
            self.data(name, of).map(|data| String::from_utf8(data.to_vec()).unwrap()).collect()
        };
        let addresses = |of: &str| DnsAnswer::Addresses(texts(of).iter().map(|one| one.parse().unwrap()).collect());
        let answer = match kind {
            QueryType::A => addresses("A"),
            QueryType::Aaaa => addresses("AAAA"),
            QueryType::Txt => DnsAnswer::Texts(self.data(name, "TXT").map(Into::into).collect()),
            QueryType::Ptr => DnsAnswer::Names(self.data(name, "PTR").map(|data| host(data).into()).collect()),
            QueryType::Mx if texts("MX") == ["0 ."] => return DnsAnswer::NullMx,
            QueryType::Mx => DnsAnswer::MxHosts(texts("MX").iter().map(|data| mx_host(data)).collect()),
            other => panic!("nothing here asks for {other:?}"),
        };
        match answer.clone() {
            DnsAnswer::Addresses(none) if none.is_empty() => self.denial(name),
            DnsAnswer::Texts(none) if none.is_empty() => self.denial(name),
            DnsAnswer::Names(none) if none.is_empty() => self.denial(name),
            DnsAnswer::MxHosts(none) if none.is_empty() => self.denial(name),
            _ => answer,
        }
    }

    fn denial(&self, name: &str) -> DnsAnswer {
        let below = format!(".{name}");
        match self.records.keys().any(|owner| owner == name || owner.ends_with(&below)) {
            true => DnsAnswer::NoRecords,
            false => DnsAnswer::NoSuchName,
        }
    }

    fn data<'a>(&'a self, name: &str, kind: &'a str) -> impl Iterator<Item = &'a [u8]> {
        let records = self.records.get(name).into_iter().flatten();
        records.filter(move |(of, _)| of == kind).map(|(_, data)| data.as_slice())
    }
}

impl DnsLookup for Zone {
    fn cached(&self, _name: &str, _kind: QueryType) -> Option<CachedAnswer> {
        None
    }

    fn lookup<'a>(&'a self, name: &'a str, kind: QueryType) -> DnsFuture<'a> {
        assert_eq!(name, name.to_ascii_lowercase(), "names are in lower case");
        assert!(name.is_ascii() && name.len() <= 253, "not a name that can be queried: {name}");
        assert!(name.split('.').all(|label| (1..=63).contains(&label.len())), "{name}");
        self.queries.lock().push((name.into(), kind));
        Box::pin(async move {
            if self.data(name, "!").any(|fault| fault == b"HANG") {
                std::future::pending::<()>().await;
            }
            CachedAnswer { answer: self.answer(name, kind), expires_at: Instant::now(), authenticated: false }
        })
    }
}

/// An address as text.
pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap_or_else(|_| panic!("not an address: {text}"))
}

/// Octets of a text with escapes.
pub(crate) fn unescape(text: &str) -> Vec<u8> {
    let (mut octets, mut rest) = (Vec::new(), text);
    while let Some((before, after)) = rest.split_once('\\') {
        octets.extend_from_slice(before.as_bytes());
        octets.push(after[..3].parse().unwrap());
        rest = &after[3..];
    }
    octets.extend_from_slice(rest.as_bytes());
    octets
}

fn host(data: &[u8]) -> String {
    let name = str::from_utf8(data).unwrap().to_ascii_lowercase();
    name.trim_end_matches('.').to_owned()
}

fn mx_host(data: &str) -> MxHost {
    let (preference, name) = data.split_once(' ').unwrap();
    MxHost { preference: preference.parse().unwrap(), name: host(name.as_bytes()).into() }
}
