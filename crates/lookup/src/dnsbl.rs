//! DNS blocklists (RFC 5782); each zone is a backend. A key is an IP address as text, or a domain in
//! A-labels for a list of domains; the values are the zone's codes for it, addresses in 127.0.0.0/8. What is not
//! listed is NotFound, and so is a domain that the DNS cannot be asked for.
//!
//! Any other address in the reply means that the domain was sold or that someone else answers for
//! it (section 5), and 127.255.255.0/24 means that the list refuses our queries. Both are reported
//! as Unavailable and list no address.
//!
//! A request fails if none of its queries gets a reply.

use std::net::{IpAddr, Ipv4Addr};

use dns::{DnsAnswer, NameServers, NameServersError, QueryConfig, QueryType, reversed_labels};
use futures_util::future::join_all;

use crate::LookupAnswer;
use crate::backend::{Backend, BackendFailure, BackendFuture, ProbeFuture};

/// Codes kept per address.
const CODES_MAX: usize = 32;
/// The longest name in the DNS, as text (RFC 1035 section 2.3.4).
const NAME_OCTETS_MAX: usize = 253;
/// The longest label.
const LABEL_OCTETS_MAX: usize = 63;
/// The test entry that every list of addresses contains (RFC 5782 section 5). A list of domains has an
/// answer for it, too: that it is not there.
const TEST_ENTRY: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

/// Configuration of a zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsblConfig {
    /// The zone's name, in A-labels.
    pub zone: Box<str>,
    /// How its name servers are queried.
    pub query: QueryConfig,
}

/// The backend for one zone.
pub struct Dnsbl {
    /// Without a trailing dot.
    zone: Box<str>,
    servers: NameServers,
}

impl Dnsbl {
    /// Creates the backend without sending any query.
    ///
    /// # Errors
    ///
    /// The configuration names no servers, and neither does the system.
    pub fn new(config: &DnsblConfig) -> Result<Dnsbl, NameServersError> {
        Ok(Dnsbl { zone: config.zone.trim_end_matches('.').into(), servers: NameServers::new(&config.query)? })
    }

    async fn find(&self, key: &str) -> LookupAnswer {
        let Some(name) = self.query_name(key) else { return LookupAnswer::NotFound };
        match self.codes(&name).await {
            Ok(codes) if codes.is_empty() => LookupAnswer::NotFound,
            Ok(codes) => LookupAnswer::Found(codes.iter().map(ToString::to_string).collect()),
            Err(why) => LookupAnswer::Unavailable(format!("{}: {why}", self.zone)),
        }
    }

    /// The name of an entry. None: no entry can have it.
    fn query_name(&self, key: &str) -> Option<String> {
        let labels = match key.parse() {
            Ok(address) => reversed_labels(address),
            Err(_) => key.to_owned(),
        };
        let name = format!("{labels}.{}", self.zone);
        let is_label = |label: &str| (1..=LABEL_OCTETS_MAX).contains(&label.len());
        (name.len() <= NAME_OCTETS_MAX && name.split('.').all(is_label)).then_some(name)
    }

    async fn codes(&self, name: &str) -> Result<Vec<Ipv4Addr>, String> {
        match self.servers.lookup(name, QueryType::A).await.answer {
            DnsAnswer::Addresses(codes) => check_codes(codes.iter().filter_map(ipv4).take(CODES_MAX).collect()),
            DnsAnswer::Unanswered(why) => Err(why.into()),
            _ => Ok(Vec::new()),
        }
    }
}

impl Backend for Dnsbl {
    fn ask<'a>(&'a self, keys: &'a [Box<str>]) -> BackendFuture<'a> {
        Box::pin(async move {
            let answers = join_all(keys.iter().map(|key| self.find(key))).await;
            match answers.first() {
                Some(LookupAnswer::Unavailable(why)) if answers.iter().all(is_unavailable) => {
                    Err(BackendFailure::new(self.zone.clone(), why))
                }
                _ => Ok(answers),
            }
        })
    }

    fn probe(&self) -> ProbeFuture<'_> {
        Box::pin(async move {
            let codes = self.codes(&format!("{}.{}", reversed_labels(TEST_ENTRY), self.zone)).await;
            codes.map(drop).map_err(|why| BackendFailure::new(self.zone.clone(), why))
        })
    }
}

fn is_unavailable(answer: &LookupAnswer) -> bool {
    matches!(answer, LookupAnswer::Unavailable(_))
}

/// Rejects codes that no list uses.
fn check_codes(codes: Vec<Ipv4Addr>) -> Result<Vec<Ipv4Addr>, String> {
    match codes.iter().find(|code| code.octets()[0] != 127 || code.octets()[..3] == [127, 255, 255]) {
        Some(code) if code.octets()[0] == 127 => Err(format!("the list refuses our queries ({code})")),
        Some(code) => Err(format!("unexpected address {code}, not in 127.0.0.0/8")),
        None => Ok(codes),
    }
}

fn ipv4(code: &IpAddr) -> Option<Ipv4Addr> {
    match code {
        IpAddr::V4(v4) => Some(*v4),
        IpAddr::V6(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_codes_list_no_address() {
        let codes = |text: &str| check_codes(text.split(' ').map(|code| code.parse().unwrap()).collect());
        assert_eq!(codes("127.0.0.2 127.0.0.4").map(|codes| codes.len()), Ok(2));
        assert!(codes("127.0.0.2 203.0.113.1").unwrap_err().contains("unexpected address"));
        assert!(codes("127.255.255.254").unwrap_err().contains("refuses our queries"));
    }

    /// A zone on a name server that returns these addresses for every name.
    async fn zone(codes: &'static [[u8; 4]]) -> Dnsbl {
        const QUESTION_AT: usize = 12;
        let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let servers = vec![socket.local_addr().unwrap()];
        tokio::spawn(async move {
            let mut query = [0; 512];
            while let Ok((count, from)) = socket.recv_from(&mut query).await {
                let name = query[QUESTION_AT..count].iter().position(|octet| *octet == 0).unwrap();
                let question = &query[QUESTION_AT..QUESTION_AT + name + 5];
                // A valid reply: one question, then the answers, each for that name with a TTL of a
                // minute.
                let head = [query[0], query[1], 0x81, 0x80, 0, 1, 0, codes.len() as u8, 0, 0, 0, 0];
                let answers =
                    codes.iter().flat_map(|code| [&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4], &code[..]].concat());
                let reply: Vec<u8> = head.into_iter().chain(question.iter().copied()).chain(answers).collect();
                socket.send_to(&reply, from).await.unwrap();
            }
        });
        let query = QueryConfig { servers, attempts: 1, ..QueryConfig::default() };
        Dnsbl::new(&DnsblConfig { zone: "list.test".into(), query }).unwrap()
    }

    #[tokio::test]
    async fn a_domain_is_asked_as_it_is_and_what_no_list_can_have_is_not_asked() {
        let list = zone(&[[127, 0, 1, 2]]).await;
        assert_eq!(list.query_name("bad.example").unwrap(), "bad.example.list.test");
        let long = "a".repeat(64);
        for name in ["", "a..b", &format!("{long}.example"), &"abc.".repeat(63)] {
            assert_eq!(list.query_name(name), None, "{name}");
        }
        let keys = ["bad.example".into(), "a..b".into()];
        let found = list.ask(&keys).await.unwrap();
        assert_eq!(found, [LookupAnswer::Found(vec!["127.0.1.2".into()]), LookupAnswer::NotFound]);
    }

    #[tokio::test]
    async fn answers_outside_127_list_no_address() {
        let keys = ["192.0.2.1".into()];
        let listed = zone(&[[127, 0, 0, 2], [127, 9, 8, 7]]).await.ask(&keys).await.unwrap();
        assert_eq!(listed, [LookupAnswer::Found(vec!["127.0.0.2".into(), "127.9.8.7".into()])]);
        assert_eq!(zone(&[]).await.ask(&keys).await.unwrap(), [LookupAnswer::NotFound]);
        let sold: [&'static [[u8; 4]]; 4] =
            [&[[203, 0, 113, 1]], &[[127, 0, 0, 2], [126, 0, 0, 2]], &[[128, 0, 0, 1]], &[[127, 255, 255, 254]]];
        for codes in sold {
            let list = zone(codes).await;
            assert!(list.ask(&keys).await.is_err(), "{codes:?}");
            assert!(list.probe().await.is_err(), "{codes:?}: the probe succeeded");
        }
    }
}
