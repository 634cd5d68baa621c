//! A POP3 server on its own port, with Maildirs in its own folder, and a client for it.

use std::fmt;
use std::fs::{self, File};
use std::future::pending;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use credentials::{CredentialChecker, CredentialCheckerSettings, CredentialSource};
use futures_util::future::BoxFuture;
use load::policy::GaugeReading;
use load::{GaugeReader, LoadLimits, LoadMonitor};
use lookup::{LookupAnswer, Table};
use mail::{EventLog, LogLevel, MailEvent, Networks, OperatorLog, ServerLog};
use mailbox::maildrop::MaildropSettings;
use net::{
    BoundListener, ConnectionLimiter, ConnectionLimits, InheritedSockets, ListenerOpener, SessionWorkers, TlsServer,
    TlsVersion,
};
use protocol::TlsMode;
use protocol::pop3::server::{Pop3AuthConfig, Pop3Limits, Pop3ServerConfig};
use protocol::sasl::{Mechanism, SaslConfig};
use retrieval::pop3::{Pop3Protocol, Pop3Settings};
use retrieval::{MailboxHome, MailboxLocator, RetrievalContext, RetrievalListener};
use rustls::pki_types::ServerName;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::tls_peer;

/// Longer than any step of these tests.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// What tests change.
pub(crate) struct Options {
    pub(crate) tls: TlsMode,
    pub(crate) sendfile: bool,
    pub(crate) limits: Pop3Limits,
    pub(crate) connections: ConnectionLimits,
}

/// A server with one worker.
pub(crate) struct Server {
    pub(crate) context: Arc<RetrievalContext>,
    pub(crate) log: Arc<TestLog>,
    pub(crate) workers: SessionWorkers,
    tls: TlsMode,
    address: SocketAddr,
    folder: TempDir,
}

impl Server {
    pub(crate) fn start(change: impl FnOnce(&mut Options)) -> Server {
        let (limits, connections) = (Pop3Limits::default(), ConnectionLimits::default());
        let mut options = Options { tls: TlsMode::Offered, sendfile: true, limits, connections };
        change(&mut options);
        let folder = TempDir::new().unwrap();
        let log = Arc::new(TestLog::default());
        let context = Arc::new(context(&folder, &log, options.connections));
        let files = tls_peer::issue(folder.path(), "a", &["mx.example.org"], |_| {});
        let auth = Pop3AuthConfig {
            mechanisms: Mechanism::ADVERTISED.into(),
            clear_text: true,
            sasl: SaslConfig { secret: [7; 32] },
        };
        let hostname = "mx.example.org".into();
        let config = Pop3ServerConfig { hostname, tls: options.tls, auth, limits: options.limits };
        let maildrop = MaildropSettings::default();
        let settings = Pop3Settings { maildrop, sendfile: options.sendfile, dot_lines: Arc::default() };
        let listener = RetrievalListener {
            context: Arc::clone(&context),
            protocol: Pop3Protocol::new(config, settings),
            tls_server: Some(Arc::new(TlsServer::new(vec![files], TlsVersion::V1_2, PATIENCE).unwrap())),
            has_implicit_tls: options.tls == TlsMode::Implicit,
            proxy_networks: Networks::default(),
        };
        let mut opener = ListenerOpener {
            previous: Vec::new(),
            inherited: InheritedSockets::default(),
            workers: 1,
            refuses_until_served: false,
        };
        let socket = opener.open((Ipv4Addr::LOCALHOST, 0).into(), 16).unwrap();
        opener.finish().unwrap();
        let address = socket.address();
        let listeners = vec![BoundListener::new(socket, "pop3", [listener])];
        let workers = SessionWorkers::start(listeners, [pending()], &log).unwrap();
        Server { context, log, workers, tls: options.tls, address, folder }
    }

    /// Where the files of a user's mailbox are.
    pub(crate) fn messages(&self, user: &str) -> PathBuf {
        let folder = self.folder.path().join("mail").join(user);
        ["tmp", "new", "cur"].iter().for_each(|part| fs::create_dir_all(folder.join(part)).unwrap());
        folder.join("new")
    }

    /// Writes messages of a user; they are numbered in this order.
    pub(crate) fn write(&self, user: &str, messages: &[&[u8]]) {
        let folder = self.messages(user);
        for (number, message) in messages.iter().enumerate() {
            fs::write(folder.join(format!("{}.a.mx", 1_000_000 + number)), message).unwrap();
        }
    }

    /// Makes a message of zeros that occupies no disk.
    pub(crate) fn write_huge(&self, user: &str, octets: u64) -> File {
        let file = File::create(self.messages(user).join(format!("1.a.mx,S={octets},W={octets}"))).unwrap();
        file.set_len(octets).unwrap();
        file
    }

    /// A client in the form that the server expects first.
    pub(crate) async fn connect(&self) -> Client {
        let socket = TcpStream::connect(self.address).await.unwrap();
        let stream: Box<dyn Stream> =
            if self.tls == TlsMode::Implicit { Box::new(handshake(socket).await) } else { Box::new(socket) };
        Client { stream, received: Vec::new() }
    }

    /// A client after STLS.
    pub(crate) async fn upgrade(&self) -> Client {
        let mut socket = TcpStream::connect(self.address).await.unwrap();
        socket.write_all(b"STLS\r\n").await.unwrap();
        let mut replies = vec![0; b"+OK mx.example.org POP3 Mailrace\r\n+OK begin the TLS handshake\r\n".len()];
        socket.read_exact(&mut replies).await.unwrap();
        assert!(replies.ends_with(b"handshake\r\n"), "{}", replies.escape_ascii());
        Client { stream: Box::new(handshake(socket).await), received: Vec::new() }
    }

    /// A client that has logged in.
    pub(crate) async fn user(&self, user: &str) -> Client {
        let mut client = self.connect().await;
        assert!(client.line().await.starts_with("+OK"));
        let reply = client.log_in(user).await;
        assert!(reply.starts_with("+OK"), "{reply}");
        client
    }

    /// Waits until all sessions have ended.
    pub(crate) async fn sessions_end(&self) {
        let end = async {
            while self.context.connection_limiter.session_count() > 0 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, end).await.unwrap();
    }
}

async fn handshake(socket: TcpStream) -> TlsStream<TcpStream> {
    let name = ServerName::try_from("mx.example.org").unwrap();
    tls_peer::connector(rustls::ALL_VERSIONS).connect(name, socket).await.unwrap()
}

pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// A client.
pub(crate) struct Client {
    stream: Box<dyn Stream>,
    received: Vec<u8>,
}

impl Client {
    pub(crate) async fn send(&mut self, commands: &str) {
        self.stream.write_all(commands.as_bytes()).await.unwrap();
    }

    /// The next line.
    pub(crate) async fn line(&mut self) -> String {
        loop {
            if let Some(end) = self.received.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.received.drain(..=end).collect();
                return String::from_utf8(line).unwrap().trim_end().to_owned();
            }
            assert!(self.receive().await > 0, "closed after {}", self.received.escape_ascii());
        }
    }

    async fn receive(&mut self) -> usize {
        let read = self.stream.read_buf(&mut self.received);
        tokio::time::timeout(PATIENCE, read).await.unwrap().unwrap()
    }

    /// The reply to a command.
    pub(crate) async fn ask(&mut self, command: &str) -> String {
        self.send(&format!("{command}\r\n")).await;
        self.line().await
    }

    /// Exactly so many bytes.
    pub(crate) async fn bytes(&mut self, count: usize) -> Vec<u8> {
        while self.received.len() < count {
            assert!(self.receive().await > 0, "closed after {} octets", self.received.len());
        }
        self.received.drain(..count).collect()
    }

    /// Reads to the end of the connection.
    pub(crate) async fn rest(&mut self) -> Vec<u8> {
        let mut rest = std::mem::take(&mut self.received);
        let read = tokio::time::timeout(PATIENCE, self.stream.read_to_end(&mut rest)).await.unwrap();
        // A connection that ends in the middle may be reset, or lack its close_notify.
        let _ = read;
        rest
    }

    /// The last reply to USER and PASS.
    pub(crate) async fn log_in(&mut self, user: &str) -> String {
        self.send(&format!("USER {user}\r\nPASS secret\r\n")).await;
        assert!(self.line().await.starts_with("+OK"));
        self.line().await
    }
}

fn context(folder: &TempDir, log: &Arc<TestLog>, connections: ConnectionLimits) -> RetrievalContext {
    let settings = CredentialCheckerSettings { threads: 1, ..CredentialCheckerSettings::default() };
    let credentials = CredentialChecker::new(CredentialSource::Table(Arc::new(Passwords)), settings, [7; 32]).unwrap();
    RetrievalContext {
        hostname: "mx.example.org".into(),
        credentials: Some(credentials),
        mailboxes: Arc::new(Mailboxes(folder.path().join("mail"))),
        load: LoadMonitor::new(NoGauges, LoadLimits::default(), |_, _| {}).handle(),
        connection_limiter: ConnectionLimiter::new(connections),
        counters: Arc::default(),
        tls_handshakes: Arc::default(),
        challenges: Arc::default(),
        reserved_networks: Networks::default(),
        trusted_networks: Networks::default(),
        event_log: log.clone(),
        operator_log: log.clone(),
    }
}

/// All users except nobody have the password "secret".
struct Passwords;

impl Table for Passwords {
    fn name(&self) -> &str {
        "passwords"
    }

    fn lookup<'a>(&'a self, keys: &'a [&'a str]) -> lookup::LookupFuture<'a> {
        let answer = |key: &&str| match *key {
            "nobody" => LookupAnswer::NotFound,
            _ => LookupAnswer::Found(vec!["{PLAIN}secret".to_owned()]),
        };
        Box::pin(std::future::ready(keys.iter().map(answer).collect()))
    }
}

struct Mailboxes(PathBuf);

impl MailboxLocator for Mailboxes {
    fn locate<'a>(&'a self, user: &'a str) -> BoxFuture<'a, MailboxHome> {
        Box::pin(std::future::ready(match user {
            "elsewhere" => MailboxHome::OtherHost("mx2.example.org".into()),
            "homeless" => MailboxHome::Unknown,
            "lost" => MailboxHome::Unavailable("no cable".to_owned()),
            user => MailboxHome::Here(self.0.join(user)),
        }))
    }
}

struct NoGauges;

impl GaugeReader for NoGauges {
    fn read(&mut self) -> Vec<GaugeReading> {
        Vec::new()
    }
}

/// A log that tests can read.
#[derive(Default)]
pub(crate) struct TestLog {
    events: Mutex<Vec<MailEvent>>,
    lines: Mutex<Vec<String>>,
}

impl TestLog {
    /// The login attempts: user, mechanism and result.
    pub(crate) fn logins(&self) -> Vec<(String, &'static str, &'static str)> {
        let login = |event: &MailEvent| match event {
            MailEvent::Login { user, mechanism, result, .. } => Some((user.to_string(), *mechanism, *result)),
            _ => None,
        };
        self.events.lock().unwrap().iter().filter_map(login).collect()
    }

    /// Whether a line for the operator contains this text.
    pub(crate) fn has_line(&self, text: &str) -> bool {
        self.lines.lock().unwrap().iter().any(|line| line.contains(text))
    }
}

impl EventLog for TestLog {
    fn write(&self, event: MailEvent) {
        self.events.lock().unwrap().push(event);
    }
}

impl OperatorLog for TestLog {
    fn log_line(&self, line: fmt::Arguments<'_>) {
        self.lines.lock().unwrap().push(line.to_string());
    }
}

impl ServerLog for TestLog {
    fn event(&self, _level: LogLevel, _text: &str, _fields: &[(&'static str, &dyn fmt::Display)]) {}

    fn lines_dropped(&self) -> u64 {
        0
    }
}
