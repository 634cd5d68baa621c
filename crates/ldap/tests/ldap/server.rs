//! A test LDAP server in this process, on a free port. It answers searches from its entries and can
//! misbehave. Messages are read and written by hand, so that responses can be invalid in any way.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

/// An element with this tag and content.
pub(crate) fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut octets = vec![tag];
    match content.len() {
        length @ 0..0x80 => octets.push(length as u8),
        length => octets.extend([&[0x84][..], &(length as u32).to_be_bytes()].concat()),
    }
    octets.extend(content);
    octets
}

/// A message with this ID.
pub(crate) fn message(id: u32, operation: &[u8]) -> Vec<u8> {
    element(0x30, &[element(2, &id.to_be_bytes()), operation.to_vec()].concat())
}

/// The result of an operation.
pub(crate) fn done(tag: u8, code: u8, text: &str, referrals: &[String]) -> Vec<u8> {
    let mut content = [element(0x0a, &[code]), element(4, b""), element(4, text.as_bytes())].concat();
    if !referrals.is_empty() {
        let urls: Vec<u8> = referrals.iter().flat_map(|url| element(4, url.as_bytes())).collect();
        content.extend(element(0xa3, &urls));
    }
    element(tag, &content)
}

/// The elements in `octets`.
fn elements(mut octets: &[u8]) -> Vec<(u8, &[u8])> {
    let mut elements = Vec::new();
    while octets.len() >= 2 {
        let (head, length) = head(octets).unwrap();
        elements.push((octets[0], &octets[head..head + length]));
        octets = &octets[head + length..];
    }
    elements
}

fn head(octets: &[u8]) -> Option<(usize, usize)> {
    match *octets.get(1)? {
        length @ 0..0x80 => Some((2, length.into())),
        form => {
            let count = usize::from(form & 0x7f);
            let length = octets.get(2..2 + count)?.iter().fold(0, |length, &octet| length << 8 | usize::from(octet));
            Some((2 + count, length))
        }
    }
}

/// A request of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Bind { dn: String, password: String },
    External,
    Unbind,
    Abandon,
    Extended,
    Search { base: String, scope: u8, filter: Filter, attributes: Vec<String> },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Filter {
    And(Vec<Filter>),
    Or(Vec<Filter>),
    Equal(String, String),
    Present(String),
}

impl Filter {
    fn read((tag, content): (u8, &[u8])) -> Filter {
        let parts = || elements(content);
        match tag {
            0xa0 => Filter::And(parts().into_iter().map(Filter::read).collect()),
            0xa1 => Filter::Or(parts().into_iter().map(Filter::read).collect()),
            0xa3 => Filter::Equal(text(parts()[0].1), text(parts()[1].1)),
            0x87 => Filter::Present(text(content)),
            _ => panic!("a filter of the tag {tag:#x}"),
        }
    }

    fn asks_for(&self, key: &str) -> bool {
        match self {
            Filter::And(parts) | Filter::Or(parts) => parts.iter().any(|part| part.asks_for(key)),
            Filter::Equal(_, wanted) => wanted.starts_with(key),
            Filter::Present(_) => false,
        }
    }

    fn finds(&self, entry: &Entry) -> bool {
        match self {
            Filter::And(parts) => parts.iter().all(|part| part.finds(entry)),
            Filter::Or(parts) => parts.iter().any(|part| part.finds(entry)),
            Filter::Equal(name, wanted) if name == "objectClass" => {
                entry.values("objectClass").contains(&bytes(wanted))
            }
            Filter::Equal(name, wanted) => entry.values(name).iter().any(|value| form(&text(value)) == form(wanted)),
            Filter::Present(name) => name == "objectClass" || !entry.values(name).is_empty(),
        }
    }
}

/// Normalizes like caseIgnoreMatch, with one of the mappings of RFC 4518.
fn form(value: &str) -> String {
    let value = value.replace('\u{ff42}', "b");
    value.to_lowercase().split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

fn text(octets: &[u8]) -> String {
    String::from_utf8_lossy(octets).into_owned()
}

fn bytes(text: &str) -> Vec<u8> {
    text.as_bytes().to_vec()
}

/// An entry.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) dn: String,
    pub(crate) attributes: Vec<(String, Vec<Vec<u8>>)>,
}

impl Entry {
    pub(crate) fn new(dn: &str, attributes: &[(&str, &str)]) -> Entry {
        let mut entry = Entry { dn: dn.to_owned(), attributes: Vec::new() };
        for (name, value) in attributes {
            match entry.attributes.iter_mut().find(|(other, _)| other == name) {
                Some((_, values)) => values.push(bytes(value)),
                None => entry.attributes.push(((*name).to_owned(), vec![bytes(value)])),
            }
        }
        entry
    }

    /// Values of `!mail` are values of `mail` that can be searched but not read.
    fn values(&self, name: &str) -> Vec<Vec<u8>> {
        let base = |other: &str| {
            let other = other.split(';').next().unwrap_or_default();
            other.trim_start_matches('!').eq_ignore_ascii_case(name)
        };
        self.attributes.iter().filter(|(other, _)| base(other)).flat_map(|(_, values)| values.clone()).collect()
    }

    fn encoded(&self, wanted: &[String]) -> Vec<u8> {
        let is_wanted = |name: &str| {
            let name = name.split(';').next().unwrap_or_default();
            wanted.iter().any(|wanted| wanted.eq_ignore_ascii_case(name))
        };
        let mut attributes = Vec::new();
        for (name, values) in self.attributes.iter().filter(|(name, _)| is_wanted(name)) {
            let values: Vec<u8> = values.iter().flat_map(|value| element(4, value)).collect();
            attributes.extend(element(0x30, &[element(4, name.as_bytes()), element(0x31, &values)].concat()));
        }
        element(0x64, &[element(4, self.dn.as_bytes()), element(0x30, &attributes)].concat())
    }
}

/// How the server answers searches outside its own schema, binds and StartTLS.
#[derive(Clone, Debug, Default)]
pub(crate) enum Behavior {
    /// Normally.
    #[default]
    Normal,
    /// Ends searches with this code, message and referrals.
    Code(u8, &'static str, Vec<String>),
    /// Returns at most this number of entries.
    SizeLimit(usize),
    /// Ends searches for more than one key with this code.
    Splits(u8),
    /// Ends searches that include this key with this code.
    Refuses(&'static str, u8),
    /// Does not answer.
    Silent,
    /// Does not answer searches for keys with this prefix.
    SilentTo(&'static str),
    /// Sends these octets.
    Sends(Vec<u8>),
    /// Sends these octets and closes the connection.
    SendsAndCloses(Vec<u8>),
    /// Adds these references to the entries.
    References(Vec<String>),
    /// Ends binds with this code and message.
    NoBind(u8, &'static str),
    /// Does not answer binds.
    #[allow(dead_code, reason = "used by the credentials tests only")]
    SilentToBinds,
    /// Closes the connection at a bind.
    #[allow(dead_code, reason = "the same")]
    ClosesAtBinds,
    /// Sends these octets as the answer to StartTLS.
    AnswersStartTls(Vec<u8>),
}

/// The server.
pub(crate) struct Server {
    pub(crate) url: String,
    shared: Arc<Shared>,
    task: tokio::task::JoinHandle<()>,
}

struct Shared {
    behavior: Mutex<Behavior>,
    entries: Mutex<Vec<Entry>>,
    /// The requests received, with the number of their connection.
    log: Mutex<Vec<(usize, Request)>>,
    received: Notify,
    hang_up: Notify,
}

impl Server {
    /// Starts a server with these entries and these `attributeTypes` in its schema.
    pub(crate) async fn start(entries: Vec<Entry>, types: &[&str]) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ldap://{}", listener.local_addr().unwrap());
        let mut all = entries;
        if !types.is_empty() {
            all.push(Entry::new("", &[("subschemaSubentry", "cn=Subschema")]));
            let types: Vec<_> = types.iter().map(|one| ("attributeTypes", *one)).collect();
            all.push(Entry::new("cn=Subschema", &[&types[..], &[("objectClass", "subschema")]].concat()));
        }
        let shared = Arc::new(Shared {
            behavior: Mutex::default(),
            entries: Mutex::new(all),
            log: Mutex::default(),
            received: Notify::new(),
            hang_up: Notify::new(),
        });
        let task = tokio::spawn(serve(listener, shared.clone()));
        Server { url, shared, task }
    }

    pub(crate) fn set(&self, behavior: Behavior) {
        *lock(&self.shared.behavior) = behavior;
    }

    /// Closes all connections.
    pub(crate) fn hang_up(&self) {
        self.shared.hang_up.notify_waiters();
    }

    /// Closes all connections and stops accepting new ones.
    pub(crate) async fn stop(self) {
        self.hang_up();
        self.task.abort();
        let _ = self.task.await;
    }

    /// The requests received so far, with the number of their connection.
    pub(crate) fn log(&self) -> Vec<(usize, Request)> {
        lock(&self.shared.log).clone()
    }

    /// The filters of all searches for keys so far.
    pub(crate) fn filters(&self) -> Vec<Filter> {
        let is_own = |base: &str| base.is_empty() || base == "cn=Subschema";
        let filters = self.log().into_iter().filter_map(|(_, request)| match request {
            Request::Search { base, filter, .. } if !is_own(&base) => Some(filter),
            _ => None,
        });
        filters.collect()
    }

    /// Waits until this number of searches for keys was received.
    pub(crate) async fn wait_for_searches(&self, count: usize) {
        let waiting = async {
            loop {
                let received = self.shared.received.notified();
                if self.filters().len() >= count {
                    return;
                }
                received.await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), waiting).await.expect("the searches arrive in time");
    }

    /// Waits until this request was received.
    pub(crate) async fn wait_for_request(&self, request: &Request) {
        let waiting = async {
            loop {
                let received = self.shared.received.notified();
                if self.log().iter().any(|(_, other)| other == request) {
                    return;
                }
                received.await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), waiting).await.expect("the request arrives in time");
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap()
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    for number in 0.. {
        let (stream, _) = listener.accept().await.unwrap();
        tokio::spawn(serve_connection(number, stream, shared.clone()));
    }
}

async fn serve_connection(number: usize, mut stream: TcpStream, shared: Arc<Shared>) {
    let mut buffer = Vec::new();
    loop {
        let message = loop {
            match head(&buffer) {
                Some((head, length)) if buffer.len() >= head + length => {
                    break buffer.drain(..head + length).collect::<Vec<u8>>();
                }
                _ => {}
            }
            let read = tokio::select! {
                read = stream.read_buf(&mut buffer) => read,
                () = shared.hang_up.notified() => return,
            };
            if read.unwrap_or(0) == 0 {
                return;
            }
        };
        let parts = elements(elements(&message)[0].1).into_iter().map(|(tag, content)| (tag, content.to_vec()));
        let parts: Vec<_> = parts.collect();
        let id = parts[0].1.iter().fold(0, |id, &octet| id << 8 | u32::from(octet));
        let request = read_request(&parts[1]);
        lock(&shared.log).push((number, request.clone()));
        shared.received.notify_waiters();
        let behavior = lock(&shared.behavior).clone();
        let (answer, is_last) = answer(id, &request, &behavior, &lock(&shared.entries));
        let is_lost = stream.write_all(&answer).await.is_err();
        if is_last || is_lost {
            let _ = stream.shutdown().await;
            return;
        }
    }
}

fn read_request((tag, content): &(u8, Vec<u8>)) -> Request {
    let parts = || elements(content);
    match tag {
        0x60 if parts()[2].0 == 0xa3 => Request::External,
        0x60 => Request::Bind { dn: text(parts()[1].1), password: text(parts()[2].1) },
        0x42 => Request::Unbind,
        0x50 => Request::Abandon,
        0x77 => Request::Extended,
        0x63 => Request::Search {
            base: text(parts()[0].1),
            scope: parts()[1].1[0],
            filter: Filter::read(parts()[6]),
            attributes: elements(parts()[7].1).into_iter().map(|(_, name)| text(name)).collect(),
        },
        _ => panic!("a request of the tag {tag:#x}"),
    }
}

/// The response to a request, and whether to close the connection after it.
fn answer(id: u32, request: &Request, behavior: &Behavior, entries: &[Entry]) -> (Vec<u8>, bool) {
    let say = |operation: Vec<u8>| (message(id, &operation), false);
    match (request, behavior) {
        (Request::Bind { .. } | Request::External, Behavior::NoBind(code, text)) => say(done(0x61, *code, text, &[])),
        (Request::Bind { .. }, Behavior::SilentToBinds) => (Vec::new(), false),
        (Request::Bind { .. }, Behavior::ClosesAtBinds) => (Vec::new(), true),
        (Request::Bind { .. } | Request::External, _) => say(done(0x61, 0, "", &[])),
        (Request::Abandon, _) => (Vec::new(), false),
        (Request::Unbind, _) => (Vec::new(), true),
        (Request::Extended, Behavior::AnswersStartTls(octets)) => (octets.clone(), false),
        (Request::Extended, _) => say(done(0x78, 2, "no TLS here", &[])),
        (Request::Search { base, scope, filter, attributes }, _) => {
            let under = |dn: &str| match scope {
                0 => dn.eq_ignore_ascii_case(base),
                _ => dn.to_lowercase().ends_with(&base.to_lowercase()) && !dn.is_empty(),
            };
            let is_own = base.is_empty() || base == "cn=Subschema";
            let found = entries.iter().filter(|entry| under(&entry.dn) && filter.finds(entry));
            let found: Vec<Vec<u8>> = found.map(|entry| message(id, &entry.encoded(attributes))).collect();
            if *scope == 0 && !entries.iter().any(|entry| under(&entry.dn)) {
                return say(done(0x65, 32, "not there", &[]));
            }
            match behavior {
                _ if is_own => (ended(id, found, 0, ""), false),
                Behavior::Code(code, text, referrals) => say(done(0x65, *code, text, referrals)),
                Behavior::SizeLimit(most) if found.len() > *most => {
                    (ended(id, found[..*most].to_vec(), 4, "too many"), false)
                }
                Behavior::Splits(code) if matches!(filter, Filter::Or(_)) => say(done(0x65, *code, "not these", &[])),
                Behavior::Refuses(key, code) if filter.asks_for(key) => say(done(0x65, *code, "too much", &[])),
                Behavior::SilentTo(start) if filter.asks_for(start) => (Vec::new(), false),
                Behavior::Silent => (Vec::new(), false),
                Behavior::Sends(octets) => (octets.clone(), false),
                Behavior::SendsAndCloses(octets) => (octets.clone(), true),
                Behavior::References(urls) => {
                    let urls: Vec<u8> = urls.iter().flat_map(|url| element(4, url.as_bytes())).collect();
                    let found = [vec![message(id, &element(0x73, &urls))], found].concat();
                    (ended(id, found, 0, ""), false)
                }
                _ => (ended(id, found, 0, ""), false),
            }
        }
    }
}

fn ended(id: u32, mut messages: Vec<Vec<u8>>, code: u8, text: &str) -> Vec<u8> {
    messages.push(message(id, &done(0x65, code, text, &[])));
    messages.concat()
}
