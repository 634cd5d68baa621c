//! The connection of a node to the servers.
//!
//! There is one for all lanes of a node. It is opened once, checks what it finds (version, JetStream,
//! rights), and then reconnects by itself, for ever. While it is away, requests fail at once instead
//! of waiting: what they would have said is old when it is back. A server that is too old counts as none at
//! each connection, not only at the first one. Only servers that the configuration names are used, never
//! those that other servers announce.

use std::collections::BTreeMap;
use std::future::{Ready, ready};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_nats::jetstream::context::{ContextBuilder, RequestError, RequestErrorKind};
use async_nats::jetstream::response::Response;
use async_nats::jetstream::{self, ErrorCode};
use async_nats::{
    Client, ConnectErrorKind, ConnectOptions, Event, ReconnectToServer, Server, ServerInfo, Subscriber,
    connection::State,
};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::config::ClusterConfig;
use crate::credentials::{CredentialsError, connect_options, has_expired};
use crate::lane::PUBLISHES_IN_FLIGHT_MAX;

/// The first version whose servers check `Nats-Expected-Last-Sequence` for pipelined publishes as
/// this crate needs it. Older ones were not tried.
const SERVER_VERSION_MIN: [u32; 3] = [2, 9, 10];

/// Servers of earlier versions can lose records that a purge was to leave, if they are killed soon after it: seen
/// with 2.9.10, and not with 2.15.2. What is between was not tried, except that 2.9 ends here.
const LOSSLESS_VERSION_MIN: [u32; 3] = [2, 10, 0];

/// How long an answer of the servers may take.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// The most answers to records that are awaited at a time. Beyond it, async-nats sends nothing, so lanes would wait for one
/// another, also with their signs of life. A lane awaits [`PUBLISHES_IN_FLIGHT_MAX`], and everything else a few: this is
/// enough for 65,536 lanes, for whose threads no process has room. What is not used needs no memory.
const ANSWERS_AWAITED_MAX: usize = 65_536 * PUBLISHES_IN_FLIGHT_MAX as usize;

/// How long a server may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// The time between pings. The third one without an answer ends the connection.
const PING_INTERVAL: Duration = Duration::from_secs(1);

/// What the error contains if a server refuses this node, or if the answer to it cannot be made.
const REFUSALS: [&str; 2] = ["authorization violation", "failed signing nonce"];

/// The longest time between attempts to reconnect.
const RECONNECT_DELAY_MAX: Duration = Duration::from_secs(1);

/// An open connection; clones share it.
#[derive(Clone)]
pub struct Connection {
    shared: Arc<ConnectionShared>,
}

struct ConnectionShared {
    client: Client,
    context: jetstream::Context,
    config: ClusterConfig,
    /// Counts disconnections.
    disconnections: watch::Receiver<u64>,
    /// Why the last attempt to connect has failed, or the connection broke.
    last_error: Arc<Mutex<Option<String>>>,
    /// Streams for which there were too few servers or too little room at the last attempt, and what was said.
    without_place: Mutex<BTreeMap<String, String>>,
}

/// Notes what becomes of a connection.
struct ConnectionEvents {
    disconnections: watch::Sender<u64>,
    last_error: Arc<Mutex<Option<String>>>,
}

impl ConnectionEvents {
    fn handle(&self, event: Event) {
        match event {
            Event::Disconnected => self.disconnections.send_modify(|count| *count += 1),
            Event::Connected => *self.last_error.lock() = None,
            Event::ServerError(error) => *self.last_error.lock() = Some(error.to_string()),
            Event::ClientError(error) => *self.last_error.lock() = Some(error.to_string()),
            _ => {}
        }
    }
}

/// Why a connection could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file of credentials cannot be used.
    #[error("cannot use the credentials in {}: {error}", path.display())]
    Credentials {
        /// The file.
        path: PathBuf,
        /// Why.
        error: CredentialsError,
    },
    /// A server does not let this node in.
    #[error("the NATS servers refuse this node: check `cluster.credentials_file` ({0})")]
    Refused(String),
    /// The same, and the reason is known.
    #[error("the NATS servers refuse this node: the user JWT in {} has expired; make a new one with nsc", .0.display())]
    Expired(PathBuf),
    /// The certificates cannot be used.
    #[error("cannot set up TLS for the NATS servers: {0}")]
    Tls(String),
    /// The server is older than this crate can use safely.
    #[error("NATS server {server} has version {version}; versions from 2.9.10 on can fence a lane")]
    TooOld {
        /// Its name.
        server: String,
        /// Its version.
        version: String,
    },
    /// The servers store nothing.
    #[error("JetStream is not enabled on NATS server {server}: set `jetstream {{}}` in its configuration")]
    NoJetStream {
        /// The name of the server.
        server: String,
    },
    /// No server answers now; one may do so later.
    #[error("no NATS server can be used now: {0}")]
    Unreachable(String),
}

/// Why a stream is not there or not as it must be.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// The servers did not answer; they may do so later.
    #[error("the NATS servers do not answer: {0}")]
    Unavailable(String),
    /// Too few servers are up, or have room. That may change.
    #[error("stream {stream} needs more NATS servers or more room on them: {needed} ({reason})")]
    NoPlace {
        /// The name of the stream.
        stream: String,
        /// What it needs, by the settings of the cluster.
        needed: String,
        /// What the servers say.
        reason: String,
    },
    /// The servers refuse.
    #[error("the NATS servers refuse to make or change stream {stream}: {reason}")]
    Refused {
        /// The name of the stream.
        stream: String,
        /// What they say.
        reason: String,
    },
}

impl StreamError {
    /// Whether the same attempt may succeed later without a change of the configuration.
    pub fn is_temporary(&self) -> bool {
        !matches!(self, StreamError::Refused { .. })
    }
}

impl OpenError {
    /// Whether the same attempt may succeed later without a change of the configuration.
    pub fn is_temporary(&self) -> bool {
        matches!(self, OpenError::Unreachable(_))
    }
}

impl Connection {
    /// Connects to one of the servers, and checks it. Each server is tried once.
    pub async fn open(config: &ClusterConfig) -> Result<Connection, OpenError> {
        let connection = Connection::connect(config, std::convert::identity).await?;
        connection.check_server().await?;
        Ok(connection)
    }

    /// Connects as soon as a server answers. [`Connection::check_server`] says when that is so.
    pub(crate) async fn open_later(config: &ClusterConfig) -> Result<Connection, OpenError> {
        Connection::connect(config, ConnectOptions::retry_on_initial_connect).await
    }

    async fn connect(
        config: &ClusterConfig,
        adjust: impl FnOnce(ConnectOptions) -> ConnectOptions,
    ) -> Result<Connection, OpenError> {
        let ((sender, disconnections), last_error) = (watch::channel(0), Arc::default());
        let events = ConnectionEvents { disconnections: sender, last_error: Arc::clone(&last_error) };
        let options = adjust(options(config, events)?);
        let servers: Vec<_> = config.servers.iter().map(|server| server.address()).collect();
        let file = config.credentials_file.as_deref();
        let client = options.connect(servers).await.map_err(|error| connect_error(error, file))?;
        let context =
            ContextBuilder::new().timeout(REQUEST_TIMEOUT).max_ack_inflight(ANSWERS_AWAITED_MAX).build(client.clone());
        let (config, without_place) = (config.clone(), Mutex::default());
        let shared = ConnectionShared { client, context, config, disconnections, last_error, without_place };
        Ok(Connection { shared: Arc::new(shared) })
    }

    /// Whether a server is connected now that can be used.
    pub fn is_connected(&self) -> bool {
        self.has_server() && !is_too_old(&self.server().1)
    }

    /// The server that is connected now, if it is too old to be used.
    pub(crate) fn unusable_server(&self) -> Option<OpenError> {
        let (server, version) = self.server();
        (self.has_server() && is_too_old(&version)).then_some(OpenError::TooOld { server, version })
    }

    /// The name and the version of the server that is connected now, if it can lose records when it is killed.
    pub(crate) fn lossy_server(&self) -> Option<(String, String)> {
        let server = self.is_connected().then(|| self.server())?;
        may_lose_records(&server.1).then_some(server)
    }

    /// Leaves the server that is connected, and connects to any of those that are configured.
    pub(crate) async fn leave_server(&self) {
        // Only fails when the connection is closed.
        drop(self.client().force_reconnect().await);
    }

    fn has_server(&self) -> bool {
        self.shared.client.connection_state() == State::Connected
    }

    /// The name and the version of the server that is connected, or was last.
    pub fn server(&self) -> (String, String) {
        let info = self.shared.client.server_info();
        let name = if info.server_name.is_empty() { info.server_id } else { info.server_name };
        (name, info.version)
    }

    /// The largest message that the servers take, in bytes.
    pub fn payload_bytes_max(&self) -> usize {
        self.shared.client.max_payload()
    }

    /// The bytes that were sent to the servers and received from them.
    pub fn traffic(&self) -> (u64, u64) {
        let statistics = self.shared.client.statistics();
        (statistics.out_bytes.load(Relaxed), statistics.in_bytes.load(Relaxed))
    }

    /// How often the connection broke.
    pub fn disconnections(&self) -> u64 {
        *self.shared.disconnections.borrow()
    }

    /// Ends when the connection breaks the next time, or is closed.
    pub(crate) fn next_disconnection(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut disconnections = self.shared.disconnections.clone();
        disconnections.mark_unchanged();
        async move { drop(disconnections.changed().await) }
    }

    /// Sends what waits, and closes the connection.
    pub async fn close(&self) {
        // If it fails, it is closed already.
        drop(self.shared.client.drain().await);
    }

    pub(crate) fn client(&self) -> &Client {
        &self.shared.client
    }

    pub(crate) fn context(&self) -> &jetstream::Context {
        &self.shared.context
    }

    pub(crate) fn config(&self) -> &ClusterConfig {
        &self.shared.config
    }

    /// Notes whether the servers have a place for a stream.
    pub(crate) fn note_place(&self, stream: &str, result: Result<(), &StreamError>) {
        let mut without_place = self.shared.without_place.lock();
        match result {
            Err(error @ StreamError::NoPlace { .. }) => drop(without_place.insert(stream.into(), error.to_string())),
            Ok(()) => drop(without_place.remove(stream)),
            Err(_) => {}
        }
    }

    /// Why streams cannot be made or changed now: there are too few servers, or too little room on them.
    pub fn missing_places(&self) -> Vec<String> {
        self.shared.without_place.lock().values().cloned().collect()
    }

    /// Subscribes to a subject. When this returns, the server passes its messages on.
    pub(crate) async fn subscribe(&self, subject: String) -> Result<Subscriber, StreamError> {
        let unavailable = |error: &dyn std::fmt::Display| StreamError::Unavailable(error.to_string());
        let messages = self.client().subscribe(subject).await.map_err(|error| unavailable(&error))?;
        // A server takes what one connection sends in its order: an answer follows the subscription.
        self.ask_account().await.map_err(|error| unavailable(&error))?;
        Ok(messages)
    }

    /// Why no server is connected, as far as that is known.
    pub(crate) fn disconnection_reason(&self) -> OpenError {
        if let Some(error) = self.unusable_server() {
            return error;
        }
        match self.shared.last_error.lock().clone() {
            Some(error) if REFUSALS.iter().any(|refusal| error.contains(refusal)) => {
                refusal(error, self.config().credentials_file.as_deref())
            }
            Some(error) => OpenError::Unreachable(error),
            None => OpenError::Unreachable("none of them is connected".into()),
        }
    }

    /// What is in the answer depends on the server's version; that there is one is enough.
    async fn ask_account(&self) -> Result<Response<serde_json::Value>, RequestError> {
        self.context().request("INFO", b"").await
    }

    /// Whether the server that is connected can be used.
    pub(crate) async fn check_server(&self) -> Result<(), OpenError> {
        if !self.is_connected() {
            return Err(self.disconnection_reason());
        }
        let (server, _) = self.server();
        match self.ask_account().await {
            Ok(Response::Ok(_)) => Ok(()),
            Ok(Response::Err { error }) if is_disabled(error.error_code()) => Err(OpenError::NoJetStream { server }),
            Ok(Response::Err { error }) => Err(OpenError::Unreachable(format!("JetStream does not answer: {error}"))),
            Err(error) if error.kind() == RequestErrorKind::NoResponders => Err(OpenError::NoJetStream { server }),
            Err(error) => Err(OpenError::Unreachable(format!("JetStream does not answer: {error}"))),
        }
    }
}

fn options(config: &ClusterConfig, events: ConnectionEvents) -> Result<ConnectOptions, OpenError> {
    let options = match &config.credentials_file {
        Some(path) => connect_options(path).map_err(|error| OpenError::Credentials { path: path.clone(), error })?,
        None => ConnectOptions::new(),
    };
    let mut options = options
        .name(format!("mailrace {} {}", config.name, config.node))
        .connection_timeout(CONNECT_TIMEOUT)
        .request_timeout(Some(REQUEST_TIMEOUT))
        .ping_interval(PING_INTERVAL)
        .reconnect_delay_callback(reconnect_delay)
        .ignore_discovered_servers()
        .reconnect_to_server_callback(next_after_too_old())
        .event_callback(move |event| {
            events.handle(event);
            std::future::ready(())
        });
    if let Some(ca_file) = &config.tls.ca_file {
        options = options.add_root_certificates(ca_file.clone());
    }
    if let Some((certificate, key)) = &config.tls.certificate {
        options = options.add_client_certificate(certificate.clone(), key.clone());
    }
    Ok(options)
}

/// Takes the servers in turn while the last one was too old: usually, the one that has failed least is preferred, which
/// would be the same again. None: as usual.
fn next_after_too_old() -> impl Fn(Vec<Server>, ServerInfo) -> Ready<Option<ReconnectToServer>> + Send + Sync {
    let turns = AtomicUsize::new(0);
    move |servers, last| {
        // Before the first connection, there is no version.
        let was_too_old = !last.version.is_empty() && is_too_old(&last.version);
        let turn = turns.fetch_add(usize::from(was_too_old), Relaxed);
        let next = servers.get(turn % servers.len().max(1)).filter(|_| was_too_old);
        ready(next.map(|server| ReconnectToServer { addr: server.addr.clone(), delay: None }))
    }
}

/// The first attempts follow at once: there may be other servers.
fn reconnect_delay(attempts: usize) -> Duration {
    let doublings = u32::try_from(attempts.saturating_sub(2)).unwrap_or(u32::MAX).min(16);
    if attempts < 2 { Duration::ZERO } else { RECONNECT_DELAY_MAX.min(Duration::from_millis(1 << doublings)) }
}

fn connect_error(error: async_nats::ConnectError, credentials: Option<&Path>) -> OpenError {
    match error.kind() {
        ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
            refusal(error.to_string(), credentials)
        }
        ConnectErrorKind::Tls => OpenError::Tls(error.to_string()),
        _ => OpenError::Unreachable(error.to_string()),
    }
}

/// Servers do not say why they refuse a node.
fn refusal(reason: String, credentials: Option<&Path>) -> OpenError {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    match credentials.filter(|path| has_expired(path, now)) {
        Some(path) => OpenError::Expired(path.to_owned()),
        None => OpenError::Refused(reason),
    }
}

fn is_disabled(code: ErrorCode) -> bool {
    matches!(code, ErrorCode::JETSTREAM_NOT_ENABLED | ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT)
}

fn is_too_old(version: &str) -> bool {
    parse_version(version).is_none_or(|version| version < SERVER_VERSION_MIN)
}

fn may_lose_records(version: &str) -> bool {
    parse_version(version).is_some_and(|version| version < LOSSLESS_VERSION_MIN)
}

/// The three numbers of a version such as "2.9.10" or "2.12.0-beta.1".
fn parse_version(version: &str) -> Option<[u32; 3]> {
    let numbers = version.trim_start_matches('v').split(['-', '+']).next()?;
    let mut numbers = numbers.split('.').map(|number| number.parse().ok());
    Some([numbers.next()??, numbers.next()??, numbers.next()??])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_number_by_number() {
        for (version, is_usable) in
            [("2.9.10", true), ("2.10.0", true), ("2.15.2-RC.1", true), ("2.9.9", false), ("1.10.10", false)]
        {
            assert_eq!(!is_too_old(version), is_usable, "{version}");
        }
        assert!(is_too_old("latest"));
        for (version, loses) in [("2.9.10", true), ("2.9.25", true), ("2.10.0", false), ("2.15.2", false)] {
            assert_eq!(may_lose_records(version), loses, "{version}");
        }
    }

    #[test]
    fn attempts_to_reconnect_become_rare_and_not_too_rare() {
        assert_eq!(reconnect_delay(1), Duration::ZERO);
        assert_eq!(reconnect_delay(2), Duration::from_millis(1));
        assert_eq!(reconnect_delay(usize::MAX), RECONNECT_DELAY_MAX);
    }
}
