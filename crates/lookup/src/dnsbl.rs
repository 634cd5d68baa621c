//! DNS blocklists (RFC 5782); each zone is a backend. A key is an IP address as text; the values
//! are the zone's codes for it, addresses in 127.0.0.0/8. An unlisted address is NotFound.
//!
//! Any other address in the reply means that the domain was sold or that someone else answers for
//! it (section 5), and 127.255.255.0/24 means that the list refuses our queries. Both are reported
//! as Unavailable and list no address.
//!
//! A query tries the name servers one after another. A request fails if none of its queries gets a
//! reply.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolverOpts};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::{Message, Query, ResponseCode};
use hickory_resolver::proto::rr::{Name, RData, RecordType};
use hickory_resolver::system_conf::read_system_conf;
use hickory_resolver::{PoolContext, TlsConfig};

use crate::LookupAnswer;
use crate::backend::{AskFuture, Backend, BackendFailure, ProbeFuture};
use crate::dns::{self, NameServer};

/// Codes kept per address.
const CODES_MAX: usize = 32;
/// The test entry that every list contains (RFC 5782 section 5).
const TEST_ENTRY: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

/// Configuration of a zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The zone's name, in A-labels.
    pub zone: Box<str>,
    /// The name servers; if empty, those of `/etc/resolv.conf`.
    pub servers: Vec<SocketAddr>,
    /// Timeout of one query to one server.
    pub timeout: Duration,
    /// How often each server is tried.
    pub attempts: usize,
}

/// No name servers are known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no name servers: {0}")]
pub struct NoNameServers(String);

/// The backend for one zone.
pub struct Dnsbl {
    config: Config,
    /// One pool per server: a pool of several servers ends a query at the first error.
    servers: Vec<NameServer>,
}

impl Dnsbl {
    /// Creates the backend without sending any query.
    ///
    /// # Errors
    ///
    /// The configuration names no servers, and neither does the system.
    pub fn new(config: Config) -> Result<Dnsbl, NoNameServers> {
        let tls = TlsConfig::new().map_err(|error| NoNameServers(error.to_string()))?;
        let mut options = ResolverOpts::default();
        options.timeout = config.timeout;
        let context = Arc::new(PoolContext::new(options, tls));
        let pool = |server| NameServer::from_config([server], context.clone(), TokioRuntimeProvider::default());
        let servers = name_servers(&config.servers)?.into_iter().map(pool).collect();
        Ok(Dnsbl { config, servers })
    }

    async fn find(&self, key: &str) -> LookupAnswer {
        let Ok(address) = key.parse::<IpAddr>() else {
            return LookupAnswer::Unavailable(format!("{key:?} is not an IP address"));
        };
        match self.codes(address).await {
            Ok(codes) if codes.is_empty() => LookupAnswer::NotFound,
            Ok(codes) => LookupAnswer::Found(codes.iter().map(ToString::to_string).collect()),
            Err(why) => LookupAnswer::Unavailable(format!("{}: {why}", self.config.zone)),
        }
    }

    async fn codes(&self, address: IpAddr) -> Result<Vec<Ipv4Addr>, String> {
        let text = format!("{}.{}.", reversed(address), self.config.zone.trim_end_matches('.'));
        let name = Name::from_ascii(&text).map_err(|error| error.to_string())?;
        let mut first = None;
        for attempt in 0..self.servers.len() * self.config.attempts.max(1) {
            // After the first round, retry without EDNS: a silent server may drop queries that have
            // it.
            let with_edns = attempt < self.servers.len();
            match query_codes(&self.servers[attempt % self.servers.len()], &name, with_edns).await {
                Ok(codes) => return check_codes(codes),
                Err(error) => first = first.or(Some(error)),
            }
        }
        Err(first.unwrap_or_else(|| "no name servers".into()))
    }
}

impl Backend for Dnsbl {
    fn ask<'a>(&'a self, keys: &'a [Box<str>]) -> AskFuture<'a> {
        Box::pin(async move {
            let answers = join_all(keys.iter().map(|key| self.find(key))).await;
            match answers.first() {
                Some(LookupAnswer::Unavailable(why)) if answers.iter().all(is_unavailable) => {
                    Err(BackendFailure::new(self.config.zone.clone(), why))
                }
                _ => Ok(answers),
            }
        })
    }

    fn probe(&self) -> ProbeFuture<'_> {
        Box::pin(async move {
            let codes = self.codes(TEST_ENTRY).await;
            codes.map(drop).map_err(|why| BackendFailure::new(self.config.zone.clone(), why))
        })
    }
}

fn is_unavailable(answer: &LookupAnswer) -> bool {
    matches!(answer, LookupAnswer::Unavailable(_))
}

/// The labels of an address in reverse order: octets of IPv4 (RFC 5782 section 2.1), hexadecimal
/// digits of IPv6 (section 2.4).
fn reversed(address: IpAddr) -> String {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, c, d] = v4.octets();
            format!("{d}.{c}.{b}.{a}")
        }
        IpAddr::V6(v6) => {
            let digits = v6.octets().into_iter().rev().flat_map(|octet| [octet & 15, octet >> 4]);
            digits.map(|digit| format!("{digit:x}")).collect::<Vec<_>>().join(".")
        }
    }
}

/// Rejects codes that no list uses.
fn check_codes(codes: Vec<Ipv4Addr>) -> Result<Vec<Ipv4Addr>, String> {
    match codes.iter().find(|code| code.octets()[0] != 127 || code.octets()[..3] == [127, 255, 255]) {
        Some(code) if code.octets()[0] == 127 => Err(format!("the list refuses our queries ({code})")),
        Some(code) => Err(format!("unexpected address {code}, not in 127.0.0.0/8")),
        None => Ok(codes),
    }
}

async fn query_codes(server: &NameServer, name: &Name, with_edns: bool) -> Result<Vec<Ipv4Addr>, String> {
    match dns::query(server, Query::query(name.clone(), RecordType::A), with_edns).await {
        Some(Ok(answer)) => codes_in(&answer),
        Some(Err(NetError::Dns(DnsError::NoRecordsFound(denial)))) => match denial.response_code {
            ResponseCode::NXDomain | ResponseCode::NoError => Ok(Vec::new()),
            code => Err(format!("the name server returned '{code}'")),
        },
        Some(Err(NetError::Timeout)) => Err("the name server timed out".into()),
        Some(Err(error)) => Err(error.to_string()),
        None => Err("the name server did not answer".into()),
    }
}

fn codes_in(answer: &Message) -> Result<Vec<Ipv4Addr>, String> {
    let code = |data: &RData| match data {
        RData::A(address) => Some(address.0),
        _ => None,
    };
    match answer.response_code {
        ResponseCode::NoError | ResponseCode::NXDomain => {
            Ok(answer.answers.iter().filter_map(|record| code(&record.data)).take(CODES_MAX).collect())
        }
        code => Err(format!("the name server returned '{code}'")),
    }
}

fn name_servers(addresses: &[SocketAddr]) -> Result<Vec<NameServerConfig>, NoNameServers> {
    if addresses.is_empty() {
        let (system, _) = read_system_conf().map_err(|error| NoNameServers(error.to_string()))?;
        return Ok(system.name_servers);
    }
    let at = |address: &SocketAddr| {
        let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()].map(|mut connection| {
            connection.port = address.port();
            connection
        });
        NameServerConfig::new(address.ip(), true, connections.into())
    };
    Ok(addresses.iter().map(at).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_reversed_as_rfc_5782_has_them() {
        assert_eq!(reversed("192.0.2.99".parse().unwrap()), "99.2.0.192");
        let v6 = reversed("2001:db8:1:2:3:4:567:89ab".parse().unwrap());
        assert_eq!(v6, "b.a.9.8.7.6.5.0.4.0.0.0.3.0.0.0.2.0.0.0.1.0.0.0.8.b.d.0.1.0.0.2");
    }

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
        let (timeout, attempts) = (Duration::from_secs(10), 1);
        Dnsbl::new(Config { zone: "list.test".into(), servers, timeout, attempts }).unwrap()
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
