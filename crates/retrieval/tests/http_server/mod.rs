//! A running server of files, and a client that takes responses apart by itself.

use std::fmt::Arguments;
use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use credentials::{CredentialChecker, CredentialCheckerSettings, CredentialSource};
use futures_util::future::{BoxFuture, ready};
use load::policy::GaugeReading;
use load::{GaugeReader, LoadLimits, LoadMonitor};
use lookup::{LookupAnswer, LookupFuture, Table};
use mail::{EventLog, LogLevel, MailEvent, Networks, OperatorLog, ServerLog};
use net::{
    BoundListener, ChallengeStore, ConnectionLimiter, ConnectionLimits, InheritedSockets, ListenerOpener,
    SessionWorkers, TlsServer, TlsVersion,
};
use retrieval::http::{ContentSettings, FileSettings, HttpProtocol, HttpSettings, MailboxSettings};
use retrieval::{MailboxHome, MailboxLocator, RetrievalContext, RetrievalListener};
use rustls::pki_types::ServerName;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::tls_peer;

/// Longer than any step of these tests.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A running server with two workers.
pub(crate) struct Server {
    folder: TempDir,
    pub(crate) workers: SessionWorkers,
    address: SocketAddr,
    has_tls: bool,
    pub(crate) limiter: Arc<ConnectionLimiter>,
    pub(crate) challenges: Arc<ChallengeStore>,
    pub(crate) log: Arc<TestLog>,
}

/// What was logged.
#[derive(Default)]
pub(crate) struct TestLog(Mutex<Vec<String>>);

struct NoGauges;

/// Maildirs in a folder, named as their users.
struct Mailboxes(PathBuf);

/// The password of all users is `secret`; the table is unavailable for `down`.
struct Passwords;

impl Server {
    /// Serves a new folder in clear text.
    pub(crate) fn start(change: impl FnOnce(&mut HttpSettings)) -> Server {
        Server::start_with(false, change)
    }

    /// The same, with TLS from the first byte or none.
    pub(crate) fn start_with(has_tls: bool, change: impl FnOnce(&mut HttpSettings)) -> Server {
        let folder = TempDir::new().unwrap();
        let root = folder.path().join("root");
        fs::create_dir(&root).unwrap();
        let mut settings = HttpSettings::new(ContentSettings::Files(FileSettings::new(root)));
        change(&mut settings);
        Server::serve(has_tls, settings, folder)
    }

    /// Serves mailboxes, also to users who log in in clear text.
    pub(crate) fn start_mailboxes(has_tls: bool, change: impl FnOnce(&mut HttpSettings)) -> Server {
        let mut settings = HttpSettings::new(ContentSettings::Mailboxes(MailboxSettings::default()));
        settings.clear_text_logins = true;
        change(&mut settings);
        Server::serve(has_tls, settings, TempDir::new().unwrap())
    }

    fn serve(has_tls: bool, settings: HttpSettings, folder: TempDir) -> Server {
        let log = Arc::<TestLog>::default();
        let files = tls_peer::issue(folder.path(), "a", &["files.example.org"], |_| {});
        let limits = ConnectionLimits { sessions_per_client_max: 500, ..ConnectionLimits::default() };
        let limiter = ConnectionLimiter::new(limits);
        let mailboxes = Mailboxes(folder.path().join("mail"));
        let context = context(&log, limiter.clone(), mailboxes);
        let challenges = context.challenges.clone();
        let listener = RetrievalListener {
            context: Arc::new(context),
            protocol: HttpProtocol::new(settings).unwrap(),
            tls_server: Some(Arc::new(TlsServer::new(vec![files], TlsVersion::V1_2, PATIENCE).unwrap())),
            has_implicit_tls: has_tls,
            proxy_networks: Networks::default(),
        };
        let mut opener = ListenerOpener {
            previous: Vec::new(),
            inherited: InheritedSockets::default(),
            workers: 2,
            refuses_until_served: false,
        };
        let socket = opener.open((Ipv4Addr::LOCALHOST, 0).into(), 256).unwrap();
        let address = socket.address();
        let listeners = vec![BoundListener::new(socket, "http", [listener.clone(), listener])];
        let workers = SessionWorkers::start(listeners, [ready(()), ready(())], &log).unwrap();
        Server { folder, workers, address, has_tls, limiter, challenges, log }
    }

    /// The Maildir of a user.
    pub(crate) fn maildir(&self, user: &str) -> PathBuf {
        let maildir = self.folder.path().join("mail").join(user);
        ["tmp", "new", "cur"].iter().for_each(|part| fs::create_dir_all(maildir.join(part)).unwrap());
        maildir
    }

    /// The path of a file of the server; `../x` is outside of its folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("root").join(name)
    }

    /// Writes a file, and returns its bytes.
    pub(crate) fn write(&self, name: &str, octets: usize) -> Vec<u8> {
        let bytes: Vec<u8> = (0..octets as u32).map(|place| (place.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        self.write_bytes(name, &bytes);
        bytes
    }

    pub(crate) fn write_bytes(&self, name: &str, bytes: &[u8]) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    /// Makes a file of zeros that occupies no disk, and is longer than sockets can hold.
    pub(crate) fn write_huge(&self, name: &str) -> File {
        let file = File::create(self.path(name)).unwrap();
        file.set_len(64 << 20).unwrap();
        file
    }

    pub(crate) async fn connect(&self) -> Client {
        let socket = TcpStream::connect(self.address).await.unwrap();
        if !self.has_tls {
            return Client(BufReader::new(Box::new(socket)));
        }
        let name = ServerName::try_from("files.example.org").unwrap();
        let stream = tls_peer::connector(rustls::ALL_VERSIONS).connect(name, socket).await.unwrap();
        Client(BufReader::new(Box::new(stream)))
    }

    /// The response to one GET request on a connection of its own.
    pub(crate) async fn get(&self, path: &str) -> Response {
        self.connect().await.get(path).await
    }
}

fn context(log: &Arc<TestLog>, connection_limiter: Arc<ConnectionLimiter>, mailboxes: Mailboxes) -> RetrievalContext {
    let settings = CredentialCheckerSettings { threads: 1, ..CredentialCheckerSettings::default() };
    let source = CredentialSource::Table(Arc::new(Passwords));
    RetrievalContext {
        hostname: "files.example.org".into(),
        credentials: Some(CredentialChecker::new(source, settings, [7; 32]).unwrap()),
        mailboxes: Arc::new(mailboxes),
        load: LoadMonitor::new(NoGauges, LoadLimits::default(), |_, _| {}).handle(),
        connection_limiter,
        counters: Arc::default(),
        tls_handshakes: Arc::default(),
        challenges: Arc::default(),
        reserved_networks: Networks::default(),
        trusted_networks: Networks::default(),
        event_log: log.clone(),
        operator_log: log.clone(),
    }
}

impl TestLog {
    fn add(&self, line: String) {
        self.0.lock().unwrap().push(line);
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

impl EventLog for TestLog {
    fn write(&self, event: MailEvent) {
        if let MailEvent::Login { user, mechanism, result, .. } = event {
            self.add(format!("{user} {mechanism} {result}"));
        }
    }
}

impl OperatorLog for TestLog {
    fn log_line(&self, line: Arguments<'_>) {
        self.add(line.to_string());
    }
}

impl ServerLog for TestLog {
    fn event(&self, _level: LogLevel, text: &str, _fields: &[(&'static str, &dyn std::fmt::Display)]) {
        self.add(text.to_owned());
    }

    fn lines_dropped(&self) -> u64 {
        0
    }
}

impl GaugeReader for NoGauges {
    fn read(&mut self) -> Vec<GaugeReading> {
        Vec::new()
    }
}

impl MailboxLocator for Mailboxes {
    fn locate<'a>(&'a self, user: &'a str) -> BoxFuture<'a, MailboxHome> {
        Box::pin(ready(match user {
            "elsewhere" => MailboxHome::OtherHost("mx2.example.org".into()),
            "homeless" => MailboxHome::Unknown,
            "lost" => MailboxHome::Unavailable("no cable".to_owned()),
            user => MailboxHome::Here(self.0.join(user)),
        }))
    }
}

impl Table for Passwords {
    fn name(&self) -> &str {
        "passwords"
    }

    fn lookup<'a>(&'a self, keys: &'a [&'a str]) -> LookupFuture<'a> {
        let answer = |key: &&str| match *key {
            "down" => LookupAnswer::Unavailable("no cable".to_owned()),
            _ => LookupAnswer::Found(vec!["{PLAIN}secret".to_owned()]),
        };
        Box::pin(ready(keys.iter().map(answer).collect()))
    }
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// One connection.
pub(crate) struct Client(BufReader<Box<dyn Stream>>);

/// A response.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: Vec<u8>,
}

impl Client {
    pub(crate) async fn send(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).await.unwrap();
        self.0.flush().await.unwrap();
    }

    pub(crate) async fn get(&mut self, path: &str) -> Response {
        self.get_with(path, "").await
    }

    /// With more fields, each with its CRLF.
    pub(crate) async fn get_with(&mut self, path: &str, fields: &str) -> Response {
        self.send(&format!("GET {path} HTTP/1.1\r\nHost: x\r\n{fields}\r\n")).await;
        self.response().await
    }

    pub(crate) async fn head(&mut self, path: &str) -> Response {
        self.head_with(path, "").await
    }

    /// With more fields, each with its CRLF.
    pub(crate) async fn head_with(&mut self, path: &str, fields: &str) -> Response {
        self.send(&format!("HEAD {path} HTTP/1.1\r\nHost: x\r\n{fields}\r\n")).await;
        self.response_head().await
    }

    pub(crate) async fn response(&mut self) -> Response {
        let head = self.response_head().await;
        self.body(head).await
    }

    /// The body that follows this head.
    pub(crate) async fn body(&mut self, mut response: Response) -> Response {
        let octets = response.field("content-length").map_or(0, |text| text.parse().unwrap());
        response.body = vec![0; if matches!(response.status, 204 | 304) { 0 } else { octets }];
        tokio::time::timeout(PATIENCE, self.0.read_exact(&mut response.body)).await.unwrap().unwrap();
        response
    }

    pub(crate) async fn response_head(&mut self) -> Response {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            let read = tokio::time::timeout(PATIENCE, self.0.read_line(&mut head)).await.unwrap().unwrap();
            assert!(read > 0, "the connection ended after {head:?}");
        }
        let status = head[9..12].parse().unwrap();
        Response { status, head, body: Vec::new() }
    }

    /// Reads so much of a body.
    pub(crate) async fn read(&mut self, octets: usize) -> Vec<u8> {
        let mut bytes = vec![0; octets];
        tokio::time::timeout(PATIENCE, self.0.read_exact(&mut bytes)).await.unwrap().unwrap();
        bytes
    }

    /// Reads to the end of the connection. Over TLS, an end without close_notify is an error.
    pub(crate) async fn rest(&mut self) -> (Vec<u8>, io::Result<()>) {
        let mut rest = Vec::new();
        let read = tokio::time::timeout(PATIENCE, self.0.read_to_end(&mut rest)).await.unwrap();
        (rest, read.map(drop))
    }
}

impl Response {
    /// The value of a field that occurs at most once; the name in lower case.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let fields = self.head.lines().filter_map(|line| line.split_once(": "));
        let mut values = fields.filter(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value);
        let found = values.next();
        assert!(values.next().is_none(), "{name} twice in {}", self.head);
        found
    }
}
