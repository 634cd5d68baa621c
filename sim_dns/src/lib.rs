//! A name server for tests, with a zone in text form and configurable faults.
//!
//! A line is `name ttl type data`, for MX, A, AAAA, CNAME, PTR, TLSA (the data is text) and TXT
//! (words are strings, and long ones several), or `name ! fault`. A name without lines does not exist,
//! unless another name ends in it. Aliases are followed within the zone, as a
//! resolver does. Negative answers have a SOA with a TTL of [`NEGATIVE_TTL`] seconds.
//!
//! | fault      | response to queries for the name                              |
//! |------------|---------------------------------------------------------------|
//! | `SERVFAIL` | this code; likewise `REFUSED`                                 |
//! | `HANG`     | none                                                          |
//! | `HOLD`     | the answer, once released                                     |
//! | `REFER`    | a referral to other servers                                   |
//! | `LIE`      | records of another name                                       |
//! | `GLUE`     | a referral with the name's own records as glue                |
//! | `APART`    | the usual answer, but aliases to it are answered without it   |
//! | `NO_AAAA`  | SERVFAIL for AAAA, as some load balancers send                |
//! | `NO_CNAME` | the same for CNAME                                            |
//! | `FORMERR`  | this code for queries with EDNS (RFC 6891); likewise `NOTIMP` |
//! | `BADVERS`  | this code for queries with EDNS, with EDNS in the response    |
//! | `DROPS`    | none for queries with EDNS                                    |
//! | `SIGNED`   | the usual answer; with the AD bit, if all its names have this |
//! | `SIGNED_A` | the same for queries of type A                                |
//! | `UNASKED`  | the AD bit for queries without it too                         |
//! | `CUT`      | the usual answer, marked as truncated even over TCP           |

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::{HashMap, HashSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hickory_server::Server;
use hickory_server::net::runtime::Time;
use hickory_server::net::xfer::Protocol;
use hickory_server::proto::op::{Edns, Metadata, ResponseCode};
use hickory_server::proto::rr::rdata::{A, AAAA, CNAME, MX, NS, PTR, SOA, TLSA, TXT};
use hickory_server::proto::rr::{Name, RData, Record, RecordType};
use hickory_server::server::{Request, RequestHandler, ResponseHandler, ResponseInfo};
use hickory_server::zone_handler::MessageResponseBuilder;
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::watch;

/// The TTL of negative answers, in seconds.
pub const NEGATIVE_TTL: u32 = 60;

/// A server that runs until it is dropped.
pub struct TestNameServer {
    /// Its address, for UDP and TCP.
    pub address: SocketAddr,
    state: Arc<State>,
    _server: Server<ZoneHandler>,
}

struct State {
    records: HashMap<Name, Vec<Record>>,
    faults: HashMap<Name, Vec<String>>,
    released: watch::Sender<bool>,
    queries: watch::Sender<QueryLog>,
}

/// The queries received. A retransmitted query counts once.
#[derive(Default)]
struct QueryLog {
    asked: HashSet<(String, u16)>,
    over_tcp: usize,
    with_ad: usize,
    held: HashSet<(String, u16)>,
    held_max: usize,
}

struct ZoneHandler(Arc<State>);

#[derive(Default)]
struct Sections {
    code: Option<ResponseCode>,
    answers: Vec<Record>,
    authorities: Vec<Record>,
    additionals: Vec<Record>,
}

impl TestNameServer {
    /// Serves these lines.
    pub async fn serve(lines: &str) -> TestNameServer {
        let state = Arc::new(State::parse(lines));
        let mut server = Server::new(ZoneHandler(state.clone()));
        let (udp, tcp) = sockets().await;
        let address = udp.local_addr().unwrap();
        server.register_socket(udp);
        server.register_listener(tcp, Duration::from_secs(60), 64);
        TestNameServer { address, state, _server: server }
    }

    /// The number of queries for a name and type, as in `mx1.example.org A`.
    pub fn query_count(&self, question: &str) -> usize {
        self.state.queries.borrow().asked.iter().filter(|(asked, _)| asked == question).count()
    }

    /// The number of queries.
    pub fn query_count_total(&self) -> usize {
        self.state.queries.borrow().asked.len()
    }

    /// The number of queries over TCP.
    pub fn over_tcp(&self) -> usize {
        self.state.queries.borrow().over_tcp
    }

    /// The number of queries with the AD bit.
    pub fn with_ad(&self) -> usize {
        self.state.queries.borrow().with_ad
    }

    /// Waits until this many queries are held.
    pub async fn wait_until_held(&self, count: usize) {
        let mut questions = self.state.queries.subscribe();
        questions.wait_for(|questions| questions.held.len() >= count).await.unwrap();
    }

    /// The maximum number of queries held at the same time.
    pub fn held_max(&self) -> usize {
        self.state.queries.borrow().held_max
    }

    /// Releases all held queries, and holds no more.
    pub fn release_held(&self) {
        self.state.released.send_replace(true);
    }
}

/// A UDP socket and a TCP listener on the same port.
async fn sockets() -> (UdpSocket, TcpListener) {
    loop {
        let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        if let Ok(udp) = UdpSocket::bind(tcp.local_addr().unwrap()).await {
            return (udp, tcp);
        }
    }
}

impl State {
    fn parse(lines: &str) -> Self {
        let (mut records, mut faults) = (HashMap::<_, Vec<_>>::new(), HashMap::<_, Vec<_>>::new());
        for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            match fields[..] {
                [owner, "!", fault] => faults.entry(name(owner)).or_default().push(fault.to_owned()),
                [owner, ttl, ref data @ ..] => {
                    let record = Record::from_rdata(name(owner), ttl.parse().unwrap(), rdata(data));
                    records.entry(name(owner)).or_default().push(record);
                }
                _ => panic!("not a zone line: {line}"),
            }
        }
        State { records, faults, released: watch::Sender::new(false), queries: watch::Sender::default() }
    }

    fn has_fault(&self, name: &Name, fault: &str) -> bool {
        self.faults.get(name).is_some_and(|faults| faults.iter().any(|has| has == fault))
    }

    fn exists(&self, name: &Name) -> bool {
        self.records.keys().any(|owner| name.zone_of(owner))
    }

    fn records_of(&self, name: &Name, kind: RecordType) -> Vec<Record> {
        let records = self.records.get(name).into_iter().flatten();
        records.filter(|record| record.record_type() == kind).cloned().collect()
    }

    /// Waits if the name has such a fault.
    async fn wait_for_release(&self, asked: &Name, question: &(String, u16)) {
        if self.has_fault(asked, "HANG") {
            std::future::pending::<()>().await;
        }
        if self.has_fault(asked, "HOLD") {
            self.queries.send_modify(|questions| {
                questions.held.insert(question.clone());
                questions.held_max = questions.held_max.max(questions.held.len());
            });
            self.released.subscribe().wait_for(|open| *open).await.unwrap();
            self.queries.send_modify(|questions| {
                questions.held.remove(question);
            });
        }
    }

    fn answer(&self, asked: &Name, kind: RecordType) -> Sections {
        let code = |code| Sections { code: Some(code), ..Sections::default() };
        let broken = self.has_fault(asked, "NO_AAAA") && kind == RecordType::AAAA
            || self.has_fault(asked, "NO_CNAME") && kind == RecordType::CNAME;
        if self.has_fault(asked, "SERVFAIL") || broken {
            return code(ResponseCode::ServFail);
        }
        if self.has_fault(asked, "REFUSED") {
            return code(ResponseCode::Refused);
        }
        if self.has_fault(asked, "REFER") || self.has_fault(asked, "GLUE") {
            let other = Record::from_rdata(asked.clone(), 300, RData::NS(NS(name("ns.elsewhere.example"))));
            let glue = self.records_of(asked, kind);
            return Sections { authorities: vec![other], additionals: glue, ..Sections::default() };
        }
        if self.has_fault(asked, "LIE") {
            let lie = Record::from_rdata(name("liar.example"), 300, RData::A(A::new(192, 0, 2, 66)));
            return Sections { answers: vec![lie], ..Sections::default() };
        }
        self.resolve(asked, kind)
    }

    fn resolve(&self, asked: &Name, kind: RecordType) -> Sections {
        let mut sections = Sections::default();
        let mut at = asked.clone();
        for _ in 0..4 {
            let found = self.records_of(&at, kind);
            if !found.is_empty() {
                sections.answers.extend(found);
                return sections;
            }
            let Some(alias) = self.records_of(&at, RecordType::CNAME).pop() else { break };
            if let RData::CNAME(target) = &alias.data {
                at = target.0.clone();
            }
            sections.answers.push(alias);
            if self.has_fault(&at, "APART") {
                return sections;
            }
        }
        if self.records_of(&at, RecordType::CNAME).is_empty() {
            let soa = SOA::new(name("ns.example"), name("dns.example"), 1, 3600, 600, 86400, NEGATIVE_TTL);
            sections.authorities = vec![Record::from_rdata(name("example"), 3600, RData::SOA(soa))];
            sections.code = (!self.exists(&at)).then_some(ResponseCode::NXDomain);
        }
        sections
    }
}

#[async_trait::async_trait]
impl RequestHandler for ZoneHandler {
    async fn handle_request<R: ResponseHandler, T: Time>(&self, request: &Request, mut handle: R) -> ResponseInfo {
        let info = request.request_info().unwrap();
        let (asked, kind) = (Name::from(info.query.name().clone()), info.query.query_type());
        let question = (format!("{} {kind}", asked.to_ascii().trim_end_matches('.')), info.metadata.id);
        self.0.queries.send_modify(|questions| {
            questions.asked.insert(question.clone());
            questions.over_tcp += usize::from(info.protocol == Protocol::Tcp);
            questions.with_ad += usize::from(info.metadata.authentic_data);
        });
        self.0.wait_for_release(&asked, &question).await;
        let mut sections = self.0.answer(&asked, kind);
        if request.edns.is_some() {
            if self.0.has_fault(&asked, "DROPS") {
                std::future::pending::<()>().await;
            }
            let codes = [
                ("FORMERR", ResponseCode::FormErr),
                ("NOTIMP", ResponseCode::NotImp),
                ("BADVERS", ResponseCode::BADVERS),
            ];
            if let Some((_, code)) = codes.into_iter().find(|(fault, _)| self.0.has_fault(&asked, fault)) {
                sections = Sections { code: Some(code), ..Sections::default() };
            }
        }
        let is_bad_version = sections.code == Some(ResponseCode::BADVERS);
        let mut metadata = Metadata::response_from_request(&request.metadata);
        metadata.recursion_available = true;
        metadata.response_code = sections.code.unwrap_or(ResponseCode::NoError);
        let signed_a = kind == RecordType::A && self.0.has_fault(&asked, "SIGNED_A");
        let is_signed = |record: &Record| signed_a || self.0.has_fault(&record.name, "SIGNED");
        let asks = request.metadata.authentic_data || self.0.has_fault(&asked, "UNASKED");
        metadata.authentic_data = asks && !sections.answers.is_empty() && sections.answers.iter().all(is_signed);
        metadata.truncation = self.0.has_fault(&asked, "CUT");
        let none: [Record; 0] = [];
        let edns = Edns::new();
        let response = MessageResponseBuilder::new(&request.queries, is_bad_version.then_some(&edns)).build(
            metadata,
            &sections.answers,
            &sections.authorities,
            &none,
            &sections.additionals,
        );
        handle.send_response(response).await.unwrap()
    }
}

fn name(text: &str) -> Name {
    let labels = text.split('.').filter(|label| !label.is_empty());
    Name::from_labels(labels.map(str::as_bytes)).unwrap()
}

fn rdata(fields: &[&str]) -> RData {
    match fields {
        ["MX", preference, host] => RData::MX(MX::new(preference.parse().unwrap(), name(host))),
        ["A", address] => RData::A(A(address.parse().unwrap())),
        ["AAAA", address] => RData::AAAA(AAAA(address.parse().unwrap())),
        ["TXT", words @ ..] => {
            RData::TXT(TXT::from_bytes(words.iter().flat_map(|word| word.as_bytes().chunks(255)).collect()))
        }
        ["TLSA", usage, selector, matching, data] => {
            let number = |text: &str| text.parse::<u8>().unwrap();
            let (usage, selector, matching) = (number(usage), number(selector), number(matching));
            RData::TLSA(TLSA::new(usage.into(), selector.into(), matching.into(), data.as_bytes().into()))
        }
        ["CNAME", target] => RData::CNAME(CNAME(name(target))),
        ["PTR", target] => RData::PTR(PTR(name(target))),
        _ => panic!("not record data: {fields:?}"),
    }
}
