//! Connections to a directory: which servers there are, how one introduces itself, and searches as streams of what comes.
//!
//! A [`Session`] is one connection that is bound. It can have many searches under way; a task of the runtime it was made
//! on reads and writes for all of them and ends with the last handle. What comes is checked before it is handed on: a
//! message that is malformed or longer than 16 MiB, as well as a connection that is lost, ends every search of the session
//! with a [`Failure`], and the session is of no more use. Anything that a server says in due form, be it an error, is
//! [`Response::Done`] and no failure here.
//!
//! A search has a buffer of its own; one that is full stops the reading for the whole connection, so that memory stays
//! bounded. Whoever has a search under way must read it or drop it; dropping it abandons it. There are no time-outs here
//! but those of connecting and binding: those who wait bound their wait, by [`Servers::timeout`].

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use tokio_rustls::TlsConnector;

use super::message;
use super::transport::{self, Messages, TrustError, Wire};
use super::{LdapError, Url};
use crate::backend::Failure;

pub(crate) use super::message::{Control, Done, Entry, Response, Search};

/// Messages of one search that wait to be read.
const WAITING_MAX: usize = 256;
/// Requests that are written together.
const REQUESTS_MAX: usize = 64;
/// Message numbers go up to here (RFC 4511 section 4.1.1.1) and then begin again.
const ID_MAX: u32 = i32::MAX as u32;

/// How to get a connection.
#[derive(Clone, Debug, PartialEq)]
pub struct Servers {
    /// The servers; the first one that answers is asked.
    pub urls: Vec<Url>,
    /// Whether `ldap://` goes on in TLS before anything is said (RFC 4511 section 4.14).
    pub starttls: bool,
    /// Certificates of authorities in PEM that servers are checked by; None: the system's.
    pub ca_file: Option<PathBuf>,
    /// As whom we ask.
    pub bind: Bind,
    /// How long connecting to one server may take, TLS included.
    pub connect_timeout: Duration,
    /// How long one operation may take.
    pub timeout: Duration,
}

impl Servers {
    /// How long connecting may take, unless the configuration says otherwise.
    pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
    /// How long an operation may take, unless the configuration says otherwise.
    pub const TIMEOUT: Duration = Duration::from_secs(10);
}

/// As whom we ask (RFC 4513 section 5).
#[derive(Clone, PartialEq, Eq)]
pub enum Bind {
    /// As nobody.
    Anonymous,
    /// By a password.
    Simple {
        /// Who.
        dn: Box<str>,
        /// Must not be empty: servers take that for a bind as nobody, and let it succeed (RFC 4513 section 5.1.2).
        password: Box<str>,
    },
    /// As whom the connection itself shows: our user, over a socket of this machine.
    External,
}

impl fmt::Debug for Bind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bind::Anonymous => f.write_str("Anonymous"),
            Bind::Simple { dn, .. } => f.debug_struct("Simple").field("dn", dn).finish_non_exhaustive(),
            Bind::External => f.write_str("External"),
        }
    }
}

/// Makes connections to the servers of a configuration.
#[derive(Debug)]
pub(crate) struct Connector {
    servers: Servers,
    tls: OnceLock<Tls>,
}

/// What TLS needs.
struct Tls(TlsConnector);

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

impl Connector {
    /// Checks what can be checked without a server, and loads the certificates of authorities where they are needed.
    pub(crate) fn new(servers: Servers) -> Result<Connector, LdapError> {
        if servers.urls.is_empty() {
            return Err(LdapError::NoServer);
        }
        if matches!(&servers.bind, Bind::Simple { password, .. } if password.is_empty()) {
            return Err(LdapError::EmptyPassword);
        }
        let connector = Connector { servers, tls: OnceLock::new() };
        let starttls = connector.servers.starttls;
        if connector.servers.urls.iter().any(|url| matches!(url, Url::Tcp { tls, .. } if *tls || starttls)) {
            connector.tls()?;
        }
        Ok(connector)
    }

    /// The configuration.
    pub(crate) fn servers(&self) -> &Servers {
        &self.servers
    }

    /// Connects to the first server that answers, and binds. The failure is that of the last one.
    pub(crate) async fn connect(&self) -> Result<Session, Failure> {
        let mut last = None;
        for url in &self.servers.urls {
            match self.connect_to(url).await {
                Ok(session) => return Ok(session),
                Err(failure) => last = Some(failure),
            }
        }
        Err(last.expect("there is a server, or there would be no connector"))
    }

    /// Connects to this server, which need not be one of the configuration, and binds.
    pub(crate) async fn connect_to(&self, url: &Url) -> Result<Session, Failure> {
        let at = || url.to_string();
        let opening = transport::open(url, self.servers.starttls, || self.tls());
        let wire = match tokio::time::timeout(self.servers.connect_timeout, opening).await {
            Ok(opened) => opened.map_err(|error| Failure::new(at(), format!("cannot connect: {error}")))?,
            Err(_) => return Err(Failure::new(at(), "cannot connect: timed out")),
        };
        let session = Session::start(url.clone(), wire);
        let answer = match tokio::time::timeout(self.servers.timeout, self.bind(&session)).await {
            Ok(answer) => answer?,
            Err(_) => return Err(Failure::new(at(), "bind: timed out")),
        };
        match answer.code {
            0 => Ok(session),
            _ => Err(Failure::new(at(), format!("bind: {answer}"))),
        }
    }

    async fn bind(&self, session: &Session) -> Result<Done, Failure> {
        match &self.servers.bind {
            // A connection that has not bound is anonymous (RFC 4513 section 4).
            Bind::Anonymous => Ok(Done::default()),
            Bind::Simple { dn, password } => session.end_of(|id| message::simple_bind(id, dn, password)).await,
            Bind::External => session.end_of(message::external_bind).await,
        }
    }

    fn tls(&self) -> Result<TlsConnector, TrustError> {
        if let Some(Tls(tls)) = self.tls.get() {
            return Ok(tls.clone());
        }
        let tls = transport::trust(self.servers.ca_file.as_deref())?;
        Ok(self.tls.get_or_init(|| Tls(tls)).0.clone())
    }
}

/// A connection.
pub(crate) struct Session {
    url: Url,
    requests: mpsc::UnboundedSender<Vec<u8>>,
    shared: Arc<Shared>,
}

/// What a session and its task have in common.
struct Shared {
    state: Mutex<State>,
    id_last: AtomicU32,
}

enum State {
    /// It works; who waits for what comes, by message number.
    Open(HashMap<u32, mpsc::Sender<Response>>),
    /// It does not, and why.
    Closed(Failure),
}

impl Session {
    /// Who is at the other end.
    pub(crate) fn url(&self) -> &Url {
        &self.url
    }

    /// Whether it is of no more use.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(*self.shared.state(), State::Closed(_))
    }

    /// Begins a search.
    pub(crate) fn search(&self, search: &Search<'_>) -> Result<Stream, Failure> {
        self.begin(|id| message::search(id, search))
    }

    /// Binds as `dn`, whoever the session was before. Nothing else may be under way on it (RFC 4511 section 4.2.1), and
    /// an empty password must not come here: servers take that for a bind as nobody, and let it succeed (RFC 4513
    /// section 5.1.2).
    pub(crate) async fn bind(&self, dn: &str, password: &str) -> Result<Done, Failure> {
        if dn.is_empty() || password.is_empty() {
            return Err(Failure::new(self.url.to_string(), "bind: no DN or no password"));
        }
        self.end_of(|id| message::simple_bind(id, dn, password)).await
    }

    /// A session over a wire that is open.
    fn start(url: Url, wire: Box<dyn Wire>) -> Session {
        let (requests, requested) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared { state: Mutex::new(State::Open(HashMap::new())), id_last: AtomicU32::new(0) });
        tokio::spawn(drive(url.clone(), wire, requested, shared.clone()));
        Session { url, requests, shared }
    }

    fn begin(&self, request: impl FnOnce(u32) -> Vec<u8>) -> Result<Stream, Failure> {
        let (sender, responses) = mpsc::channel(WAITING_MAX);
        let id = self.shared.id_next();
        match &mut *self.shared.state() {
            State::Open(waiting) => waiting.insert(id, sender),
            State::Closed(failure) => return Err(failure.clone()),
        };
        let stream =
            Stream { id, responses, requests: self.requests.clone(), shared: self.shared.clone(), is_done: false };
        // Where the task has just ended nobody takes it, and the stream will say why.
        let _ = self.requests.send(request(id));
        Ok(stream)
    }

    /// How the operation ends.
    async fn end_of(&self, request: impl FnOnce(u32) -> Vec<u8>) -> Result<Done, Failure> {
        let mut stream = self.begin(request)?;
        loop {
            if let Response::Done(done) = stream.next().await? {
                return Ok(done);
            }
        }
    }
}

/// What comes for one search. Dropped before its end, it abandons the search.
pub(crate) struct Stream {
    id: u32,
    responses: mpsc::Receiver<Response>,
    requests: mpsc::UnboundedSender<Vec<u8>>,
    shared: Arc<Shared>,
    is_done: bool,
}

impl Stream {
    /// What comes next; nothing comes behind [`Response::Done`]. A failure is that of the connection.
    pub(crate) async fn next(&mut self) -> Result<Response, Failure> {
        match self.responses.recv().await {
            Some(response) => {
                self.is_done |= matches!(response, Response::Done(_));
                Ok(response)
            }
            None => match &*self.shared.state() {
                State::Closed(failure) => Err(failure.clone()),
                State::Open(_) => Err(Failure::new("", "the search has ended")),
            },
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        if let State::Open(waiting) = &mut *self.shared.state() {
            waiting.remove(&self.id);
            let _ = self.requests.send(message::abandon(self.shared.id_next(), self.id));
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// 0 is the server's, for what nobody asked for.
    fn id_next(&self) -> u32 {
        self.id_last.fetch_add(1, Ordering::Relaxed) % ID_MAX + 1
    }

    /// Nothing more comes for anyone.
    fn close(&self, failure: Failure) {
        let mut state = self.state();
        if matches!(*state, State::Open(_)) {
            *state = State::Closed(failure);
        }
    }
}

/// Reads and writes until the connection ends or nobody needs it any more.
async fn drive(url: Url, wire: Box<dyn Wire>, requested: mpsc::UnboundedReceiver<Vec<u8>>, shared: Arc<Shared>) {
    // Also where the task is dropped with its runtime.
    let _closing = Closing { url: &url, shared: &shared };
    let (reading, writing) = tokio::io::split(wire);
    let why = tokio::select! {
        why = read(reading, &shared) => why,
        why = write(writing, requested, &shared) => why,
    };
    shared.close(Failure::new(url.to_string(), why));
}

struct Closing<'a> {
    url: &'a Url,
    shared: &'a Shared,
}

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.shared.close(Failure::new(self.url.to_string(), "the connection was given up"));
    }
}

/// Hands on what comes; returns why nothing comes any more.
async fn read(mut from: ReadHalf<Box<dyn Wire>>, shared: &Shared) -> String {
    let mut messages = Messages::default();
    loop {
        let message = match messages.next(&mut from).await {
            Ok(Some(message)) => message,
            Ok(None) => return "the server closed the connection".to_owned(),
            Err(error) => return format!("connection lost: {error}"),
        };
        let (id, response) = match message::decode(message) {
            Ok((id, Some(response))) => (id, response),
            Ok((_, None)) => return "malformed message: of a kind that nobody asked for".to_owned(),
            Err(malformed) => return malformed.to_string(),
        };
        match response {
            // The server tells that it is about to close the connection (RFC 4511 section 4.4.1).
            Response::Done(done) if id == 0 => return format!("the server ends the connection: {done}"),
            response => hand_on(id, response, shared).await,
        }
    }
}

async fn hand_on(id: u32, response: Response, shared: &Shared) {
    let is_last = matches!(response, Response::Done(_));
    let waiting = match &mut *shared.state() {
        State::Open(waiting) if is_last => waiting.remove(&id),
        State::Open(waiting) => waiting.get(&id).cloned(),
        State::Closed(_) => None,
    };
    // What was abandoned still comes for a while, and nobody takes it.
    if let Some(waiting) = waiting {
        let _ = waiting.send(response).await;
    }
}

/// Writes requests, those that wait together; returns why none are written any more.
async fn write(
    mut to: WriteHalf<Box<dyn Wire>>,
    mut requested: mpsc::UnboundedReceiver<Vec<u8>>,
    shared: &Shared,
) -> String {
    let mut requests = Vec::new();
    while requested.recv_many(&mut requests, REQUESTS_MAX).await > 0 {
        let octets = match requests.len() {
            1 => requests.pop().unwrap_or_default(),
            _ => requests.concat(),
        };
        requests.clear();
        let written = async {
            to.write_all(&octets).await?;
            to.flush().await
        };
        if let Err(error) = written.await {
            return format!("connection lost: {error}");
        }
    }
    // Nobody waits for an error that could come of this.
    let _ = to.write_all(&message::unbind(shared.id_next())).await;
    let _ = to.shutdown().await;
    "the connection is no longer needed".to_owned()
}
