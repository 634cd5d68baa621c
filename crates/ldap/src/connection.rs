//! Connections to LDAP servers: server selection, binding, and searches as streams of responses.
//!
//! A [`LdapSession`] is a bound connection that can run many searches. A task on the current
//! runtime reads and writes for it and ends with the last handle. Responses are checked as they
//! arrive. A lost connection, or a message that is malformed or over 16 MiB, ends all searches with
//! a [`BackendFailure`] and closes the session. A well-formed error response is
//! [`LdapResponse::Done`], not a failure.
//!
//! Each search has a buffer. A full one stops reading from the connection, which bounds memory, so
//! callers must read or drop their searches; dropping one abandons it. Only connecting and binding
//! have timeouts here; callers apply [`LdapConnectionConfig::timeout`] to everything else.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use tokio_rustls::TlsConnector;

use super::message;
use super::transport::{self, MessageReader};
use super::{LdapConfigError, LdapUrl};
use lookup::backend::BackendFailure;
use lookup::{ByteStream, CaCertificatesError};

pub(crate) use super::message::{LdapControl, LdapResponse, LdapResult, SearchEntry, SearchRequest};

/// Buffered responses per search.
const WAITING_MAX: usize = 256;
/// Requests written at once.
const REQUESTS_MAX: usize = 64;
/// The largest message ID (RFC 4511 section 4.1.1.1); after it they start again.
const ID_MAX: u32 = i32::MAX as u32;

/// How to connect and bind.
#[derive(Clone, Debug, PartialEq)]
pub struct LdapConnectionConfig {
    /// The servers; the first one that answers is used.
    pub urls: Vec<LdapUrl>,
    /// Whether to use StartTLS on `ldap://` (RFC 4511 section 4.14).
    pub starttls: bool,
    /// CA certificates in PEM to verify servers; None: those of the system.
    pub ca_file: Option<PathBuf>,
    /// How to authenticate.
    pub bind: LdapBindMethod,
    /// Timeout for connecting to one server, including TLS.
    pub connect_timeout: Duration,
    /// Timeout for one operation.
    pub timeout: Duration,
}

impl LdapConnectionConfig {
    /// The default of `connect_timeout`.
    pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
    /// The default of `timeout`.
    pub const TIMEOUT: Duration = Duration::from_secs(10);
}

/// How to authenticate (RFC 4513 section 5).
#[derive(Clone, PartialEq, Eq)]
pub enum LdapBindMethod {
    /// Without authentication.
    Anonymous,
    /// With a DN and a password.
    Simple {
        /// The DN.
        dn: Box<str>,
        /// The password. Must not be empty: servers would treat the bind as anonymous and accept it
        /// (RFC 4513 section 5.1.2).
        password: Box<str>,
    },
    /// SASL EXTERNAL: the server identifies our user by the connection, such as a Unix socket.
    External,
}

impl fmt::Debug for LdapBindMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LdapBindMethod::Anonymous => f.write_str("Anonymous"),
            LdapBindMethod::Simple { dn, .. } => f.debug_struct("Simple").field("dn", dn).finish_non_exhaustive(),
            LdapBindMethod::External => f.write_str("External"),
        }
    }
}

/// Connects to the configured servers.
#[derive(Debug)]
pub struct Connector {
    servers: LdapConnectionConfig,
    tls: OnceLock<Tls>,
}

/// The TLS configuration.
struct Tls(TlsConnector);

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

impl Connector {
    /// Checks the configuration and loads the CA certificates if any server needs them.
    pub fn new(servers: LdapConnectionConfig) -> Result<Connector, LdapConfigError> {
        if servers.urls.is_empty() {
            return Err(LdapConfigError::NoServer);
        }
        if matches!(&servers.bind, LdapBindMethod::Simple { password, .. } if password.is_empty()) {
            return Err(LdapConfigError::EmptyPassword);
        }
        let connector = Connector { servers, tls: OnceLock::new() };
        let starttls = connector.servers.starttls;
        if connector.servers.urls.iter().any(|url| matches!(url, LdapUrl::Tcp { tls, .. } if *tls || starttls)) {
            connector.tls()?;
        }
        Ok(connector)
    }

    /// The configuration.
    pub fn servers(&self) -> &LdapConnectionConfig {
        &self.servers
    }

    /// Connects to the first server that answers, and binds. Fails with the error of the last one.
    pub async fn connect(&self) -> Result<LdapSession, BackendFailure> {
        let mut last = None;
        for url in &self.servers.urls {
            match self.connect_to(url).await {
                Ok(session) => return Ok(session),
                Err(failure) => last = Some(failure),
            }
        }
        Err(last.expect("a connector has at least one server"))
    }

    /// Connects to this server, which need not be a configured one, and binds.
    pub async fn connect_to(&self, url: &LdapUrl) -> Result<LdapSession, BackendFailure> {
        let at = || url.to_string();
        let opening = transport::connect(url, self.servers.starttls, || self.tls());
        let stream = match tokio::time::timeout(self.servers.connect_timeout, opening).await {
            Ok(opened) => opened.map_err(|error| BackendFailure::new(at(), format!("cannot connect: {error}")))?,
            Err(_) => return Err(BackendFailure::new(at(), "cannot connect: timed out")),
        };
        let session = LdapSession::start(url.clone(), stream);
        let answer = match tokio::time::timeout(self.servers.timeout, self.bind(&session)).await {
            Ok(answer) => answer?,
            Err(_) => return Err(BackendFailure::new(at(), "bind: timed out")),
        };
        match answer.code {
            0 => Ok(session),
            _ => Err(BackendFailure::new(at(), format!("bind: {answer}"))),
        }
    }

    async fn bind(&self, session: &LdapSession) -> Result<LdapResult, BackendFailure> {
        match &self.servers.bind {
            // An unbound connection is anonymous (RFC 4513 section 4).
            LdapBindMethod::Anonymous => Ok(LdapResult::default()),
            LdapBindMethod::Simple { dn, password } => {
                session.await_result(|id| message::simple_bind(id, dn, password)).await
            }
            LdapBindMethod::External => session.await_result(message::external_bind).await,
        }
    }

    fn tls(&self) -> Result<TlsConnector, CaCertificatesError> {
        if let Some(Tls(tls)) = self.tls.get() {
            return Ok(tls.clone());
        }
        let tls = lookup::tls_config(self.servers.ca_file.as_deref())?;
        Ok(self.tls.get_or_init(|| Tls(Arc::new(tls).into())).0.clone())
    }
}

/// A bound connection.
pub struct LdapSession {
    url: LdapUrl,
    requests: mpsc::UnboundedSender<Vec<u8>>,
    shared: Arc<Shared>,
}

/// State shared by a session and its task.
struct Shared {
    state: Mutex<State>,
    id_last: AtomicU32,
}

enum State {
    /// Open, with the waiting operations by message ID.
    Open(HashMap<u32, mpsc::Sender<LdapResponse>>),
    /// Closed, with the reason.
    Closed(BackendFailure),
}

impl LdapSession {
    /// The server's URL.
    pub fn url(&self) -> &LdapUrl {
        &self.url
    }

    /// Whether the session is closed.
    pub fn is_closed(&self) -> bool {
        matches!(*self.shared.state.lock(), State::Closed(_))
    }

    /// Starts a search.
    pub fn search(&self, search: &SearchRequest<'_>) -> Result<ResponseStream, BackendFailure> {
        self.send_request(|id| message::search(id, search))
    }

    /// Binds as `dn`. No other operation may be running on the session (RFC 4511 section 4.2.1).
    /// Rejects empty passwords, which servers would treat as an anonymous bind and accept (RFC 4513
    /// section 5.1.2).
    pub async fn bind(&self, dn: &str, password: &str) -> Result<LdapResult, BackendFailure> {
        if dn.is_empty() || password.is_empty() {
            return Err(BackendFailure::new(self.url.to_string(), "bind: empty DN or password"));
        }
        self.await_result(|id| message::simple_bind(id, dn, password)).await
    }

    /// Starts a session on an open connection.
    fn start(url: LdapUrl, stream: Box<dyn ByteStream>) -> LdapSession {
        let (requests, requested) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared { state: Mutex::new(State::Open(HashMap::new())), id_last: AtomicU32::new(0) });
        tokio::spawn(run_connection(url.clone(), stream, requested, shared.clone()));
        LdapSession { url, requests, shared }
    }

    fn send_request(&self, request: impl FnOnce(u32) -> Vec<u8>) -> Result<ResponseStream, BackendFailure> {
        let (sender, responses) = mpsc::channel(WAITING_MAX);
        let id = self.shared.id_next();
        match &mut *self.shared.state.lock() {
            State::Open(waiting) => waiting.insert(id, sender),
            State::Closed(failure) => return Err(failure.clone()),
        };
        let stream = ResponseStream {
            id,
            responses,
            requests: self.requests.clone(),
            shared: self.shared.clone(),
            is_done: false,
        };
        // If the task has just ended, the stream will return the reason.
        let _ = self.requests.send(request(id));
        Ok(stream)
    }

    /// Sends a request and waits for its result.
    async fn await_result(&self, request: impl FnOnce(u32) -> Vec<u8>) -> Result<LdapResult, BackendFailure> {
        let mut stream = self.send_request(request)?;
        loop {
            if let LdapResponse::Done(done) = stream.next().await? {
                return Ok(done);
            }
        }
    }
}

/// The responses to one search. Dropping it abandons an unfinished search.
pub struct ResponseStream {
    id: u32,
    responses: mpsc::Receiver<LdapResponse>,
    requests: mpsc::UnboundedSender<Vec<u8>>,
    shared: Arc<Shared>,
    is_done: bool,
}

impl ResponseStream {
    /// The next response; nothing follows [`LdapResponse::Done`]. Fails if the connection does.
    pub async fn next(&mut self) -> Result<LdapResponse, BackendFailure> {
        match self.responses.recv().await {
            Some(response) => {
                self.is_done |= matches!(response, LdapResponse::Done(_));
                Ok(response)
            }
            None => match &*self.shared.state.lock() {
                State::Closed(failure) => Err(failure.clone()),
                State::Open(_) => Err(BackendFailure::new("", "the search has ended")),
            },
        }
    }
}

impl Drop for ResponseStream {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        if let State::Open(waiting) = &mut *self.shared.state.lock() {
            waiting.remove(&self.id);
            let _ = self.requests.send(message::abandon(self.shared.id_next(), self.id));
        }
    }
}

impl Shared {
    /// ID 0 is for unsolicited messages of the server.
    fn id_next(&self) -> u32 {
        self.id_last.fetch_add(1, Ordering::Relaxed) % ID_MAX + 1
    }

    /// Closes the session; all operations end.
    fn close(&self, failure: BackendFailure) {
        let mut state = self.state.lock();
        if matches!(*state, State::Open(_)) {
            *state = State::Closed(failure);
        }
    }
}

/// Reads and writes until the connection ends or the session is dropped.
async fn run_connection(
    url: LdapUrl,
    stream: Box<dyn ByteStream>,
    requested: mpsc::UnboundedReceiver<Vec<u8>>,
    shared: Arc<Shared>,
) {
    // Closes the session even if the task is dropped with its runtime.
    let _closing = CloseGuard { url: &url, shared: &shared };
    let (reading, writing) = tokio::io::split(stream);
    let why = tokio::select! {
        why = read(reading, &shared) => why,
        why = write(writing, requested, &shared) => why,
    };
    shared.close(BackendFailure::new(url.to_string(), why));
}

struct CloseGuard<'a> {
    url: &'a LdapUrl,
    shared: &'a Shared,
}

impl Drop for CloseGuard<'_> {
    fn drop(&mut self) {
        self.shared.close(BackendFailure::new(self.url.to_string(), "connection closed"));
    }
}

/// Dispatches incoming messages. Returns why the connection ended.
async fn read(mut from: ReadHalf<Box<dyn ByteStream>>, shared: &Shared) -> String {
    let mut messages = MessageReader::default();
    loop {
        let message = match messages.next(&mut from).await {
            Ok(Some(message)) => message,
            Ok(None) => return "the server closed the connection".to_owned(),
            Err(error) => return format!("connection lost: {error}"),
        };
        let (id, response) = match message::decode(message) {
            Ok((id, Some(response))) => (id, response),
            Ok((_, None)) => return "malformed message: unknown operation".to_owned(),
            Err(malformed) => return malformed.to_string(),
        };
        match response {
            // Notice of Disconnection (RFC 4511 section 4.4.1).
            LdapResponse::Done(done) if id == 0 => return format!("the server is closing the connection: {done}"),
            response => dispatch(id, response, shared).await,
        }
    }
}

async fn dispatch(id: u32, response: LdapResponse, shared: &Shared) {
    let is_last = matches!(response, LdapResponse::Done(_));
    let waiting = match &mut *shared.state.lock() {
        State::Open(waiting) if is_last => waiting.remove(&id),
        State::Open(waiting) => waiting.get(&id).cloned(),
        State::Closed(_) => None,
    };
    // Responses to an abandoned search are ignored.
    if let Some(waiting) = waiting {
        let _ = waiting.send(response).await;
    }
}

/// Writes requests, several at once if possible. Returns why the connection ended.
async fn write(
    mut to: WriteHalf<Box<dyn ByteStream>>,
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
    // Errors no longer matter here.
    let _ = to.write_all(&message::unbind(shared.id_next())).await;
    let _ = to.shutdown().await;
    "the connection is no longer needed".to_owned()
}
