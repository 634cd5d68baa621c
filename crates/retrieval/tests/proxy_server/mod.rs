//! A proxy on its own port, whose users and backends a test chooses, and the peers on both sides.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use credentials::{CredentialChecker, CredentialCheckerSettings, CredentialSource};
use futures_util::future::BoxFuture;
use load::policy::GaugeReading;
use load::{GaugeReader, LoadLimits, LoadMonitor};
use lookup::fixed::StaticTable;
use mail::{EventLog, MailEvent, Networks, OperatorLog};
use net::{ConnectionLimiter, ConnectionLimits, StopSender, TlsServer};
use parking_lot::Mutex;
use protocol::TlsMode;
use protocol::backend_login::BackendLoginMethod;
use protocol::imap::server::{ImapAuthConfig, ImapLimits, ImapServerConfig};
use protocol::pop3::server::{Pop3AuthConfig, Pop3Limits, Pop3ServerConfig};
use protocol::sasl::{Mechanism, SaslConfig};
use retrieval::proxy::{
    BackendAccount, BackendHosts, BackendLimits, BackendResolver, BackendTls, ImapProxyProtocol, Pop3ProxyProtocol,
    ProxySettings,
};
use retrieval::{MailboxHome, MailboxLocator, RetrievalContext, RetrievalListener, RetrievalProtocol};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Longer than any step of these tests.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// What a test may change.
pub(crate) struct Settings {
    pub(crate) homes: HashMap<&'static str, MailboxHome>,
    pub(crate) proxy: ProxySettings,
    pub(crate) tls: TlsMode,
    pub(crate) tls_server: Option<Arc<TlsServer>>,
    pub(crate) credentials: Option<CredentialChecker>,
}

/// A proxy that runs until it is dropped. All passwords are `secret`.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    pub(crate) stopper: StopSender,
    pub(crate) limiter: Arc<ConnectionLimiter>,
    pub(crate) hosts: Arc<BackendHosts>,
    pub(crate) log: Arc<TestLog>,
}

impl Proxy {
    /// An IMAP proxy in clear text, with bob's mailbox at the backend.
    pub(crate) fn imap(backend: SocketAddr, change: impl FnOnce(&mut Settings)) -> Proxy {
        Proxy::start(backend, change, |settings| {
            let auth = ImapAuthConfig {
                mechanisms: Mechanism::ADVERTISED.into(),
                clear_text: settings.tls != TlsMode::Required,
                sasl: SaslConfig { secret: [7; 32] },
            };
            let limits = ImapLimits::default();
            let config = ImapServerConfig { hostname: "proxy.example".into(), tls: settings.tls, auth, limits };
            ImapProxyProtocol::new(config, settings.proxy.clone())
        })
    }

    /// The same for POP3.
    pub(crate) fn pop3(backend: SocketAddr, change: impl FnOnce(&mut Settings)) -> Proxy {
        Proxy::start(backend, change, |settings| {
            let auth = Pop3AuthConfig {
                mechanisms: Mechanism::ADVERTISED.into(),
                clear_text: true,
                sasl: SaslConfig { secret: [7; 32] },
            };
            let limits = Pop3Limits::default();
            let config = Pop3ServerConfig { hostname: "proxy.example".into(), tls: settings.tls, auth, limits };
            Pop3ProxyProtocol::new(config, settings.proxy.clone())
        })
    }

    fn start<P: RetrievalProtocol>(
        backend: SocketAddr,
        change: impl FnOnce(&mut Settings),
        protocol: impl FnOnce(&Settings) -> P,
    ) -> Proxy {
        let log = Arc::new(TestLog::default());
        let hosts = BackendHosts::new(Arc::new(LocalResolver), BackendLimits::default(), log.clone());
        let table = StaticTable::new("passwords", vec!["{PLAIN}secret".into()]);
        let checks = CredentialCheckerSettings { threads: 1, ..CredentialCheckerSettings::default() };
        let credentials = CredentialChecker::new(CredentialSource::Table(Arc::new(table)), checks, [7; 32]).unwrap();
        let proxy = ProxySettings {
            hosts,
            port: backend.port(),
            tls: BackendTls::Never,
            account: BackendAccount::User,
            method: BackendLoginMethod::Plain,
            on_this_host: None,
            tells_client_address: false,
            idle_time_max: PATIENCE,
        };
        let homes = HashMap::from([
            ("bob", MailboxHome::OtherHost("backend.example".into())),
            ("local", MailboxHome::Here("/nonexistent".into())),
            ("lost", MailboxHome::Unavailable("no cable".into())),
        ]);
        let mut settings =
            Settings { homes, proxy, tls: TlsMode::Never, tls_server: None, credentials: Some(credentials) };
        change(&mut settings);
        let protocol = protocol(&settings);
        let hosts = settings.proxy.hosts.clone();
        let limiter = ConnectionLimiter::new(ConnectionLimits::default());
        let context = RetrievalContext {
            hostname: "proxy.example".into(),
            credentials: settings.credentials,
            mailboxes: Arc::new(Homes(settings.homes)),
            load: LoadMonitor::new(NoGauges, LOAD_LIMITS, |_, _| {}).handle(),
            connection_limiter: limiter.clone(),
            counters: Arc::default(),
            tls_handshakes: Arc::default(),
            challenges: Arc::default(),
            reserved_networks: Networks::default(),
            trusted_networks: Networks::default(),
            event_log: log.clone(),
            operator_log: log.clone(),
        };
        let listener = RetrievalListener {
            context: Arc::new(context),
            protocol,
            tls_server: settings.tls_server,
            has_implicit_tls: settings.tls == TlsMode::Implicit,
            proxy_networks: Networks::default(),
        };
        let (stopper, stop) = StopSender::new();
        let socket = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        socket.set_nonblocking(true).unwrap();
        let address = socket.local_addr().unwrap();
        let socket = TcpListener::from_std(socket).unwrap();
        tokio::spawn(async move {
            while let Ok((stream, client)) = socket.accept().await {
                stream.set_nodelay(true).unwrap();
                tokio::spawn(net::serve_connection(listener.clone(), stream, client, stop.clone()));
            }
        });
        Proxy { address, stopper, limiter, hosts, log }
    }

    pub(crate) async fn connect(&self) -> Peer {
        Peer::new(TcpStream::connect(self.address).await.unwrap())
    }

    /// A client that has the greeting.
    pub(crate) async fn greeted(&self) -> Peer {
        let mut client = self.connect().await;
        client.line().await;
        client
    }

    /// Waits until all sessions have ended.
    pub(crate) async fn wait_until_empty(&self) {
        let wait = async {
            while self.limiter.session_count() > 0 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.unwrap();
    }
}

const LOAD_LIMITS: LoadLimits = LoadLimits {
    queue_only_above: None,
    no_delivery_above: None,
    refuse_above: None,
    cpu_pressure_max: None,
    memory_pressure_max: None,
    io_pressure_max: None,
    memory_min: None,
    space_min: 0,
    inodes_min: 0,
    margin: 0.1,
};

struct NoGauges;

impl GaugeReader for NoGauges {
    fn read(&mut self) -> Vec<GaugeReading> {
        Vec::new()
    }
}

/// The mailboxes of users; those of others do not exist.
struct Homes(HashMap<&'static str, MailboxHome>);

impl MailboxLocator for Homes {
    fn locate<'a>(&'a self, user: &'a str) -> BoxFuture<'a, MailboxHome> {
        let home = self.0.get(user).cloned().unwrap_or(MailboxHome::Unknown);
        Box::pin(std::future::ready(home))
    }
}

/// All hosts are on this one.
pub(crate) struct LocalResolver;

impl BackendResolver for LocalResolver {
    fn resolve<'a>(&'a self, host: &'a str) -> BoxFuture<'a, Result<Vec<IpAddr>, String>> {
        assert_eq!(host, "backend.example");
        Box::pin(std::future::ready(Ok(vec![Ipv4Addr::LOCALHOST.into()])))
    }
}

/// Keeps what is logged.
#[derive(Default)]
pub(crate) struct TestLog {
    pub(crate) lines: Mutex<Vec<String>>,
    pub(crate) logins: Mutex<Vec<String>>,
}

impl EventLog for TestLog {
    fn write(&self, event: MailEvent) {
        if let MailEvent::Login { user, mechanism, result, .. } = event {
            self.logins.lock().push(format!("{user} {mechanism} {result}"));
        }
    }
}

impl OperatorLog for TestLog {
    fn log_line(&self, line: std::fmt::Arguments<'_>) {
        self.lines.lock().push(line.to_string());
    }
}

/// A peer of the proxy: a client or a backend.
pub(crate) struct Peer {
    pub(crate) stream: TcpStream,
}

impl Peer {
    pub(crate) fn new(stream: TcpStream) -> Peer {
        stream.set_nodelay(true).unwrap();
        Peer { stream }
    }

    pub(crate) async fn send(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).await.unwrap();
    }

    /// The next line, without its CRLF; empty at the end of the connection.
    pub(crate) async fn line(&mut self) -> String {
        let read = async {
            let mut line = Vec::new();
            while !line.ends_with(b"\r\n") {
                let mut octet = [0];
                if self.stream.read(&mut octet).await.unwrap() == 0 {
                    break;
                }
                line.extend(octet);
            }
            String::from_utf8(line).unwrap().trim_end().to_owned()
        };
        tokio::time::timeout(PATIENCE, read).await.expect("no line in time")
    }

    /// Sends a line and expects a reply that begins so.
    pub(crate) async fn expect(&mut self, line: &str, reply: &str) {
        self.send(&format!("{line}\r\n")).await;
        let got = self.line().await;
        assert!(got.starts_with(reply), "{line:?}: {got:?} does not begin with {reply:?}");
    }

    /// Whether the connection ends here.
    pub(crate) async fn is_ended(&mut self) -> bool {
        let read = tokio::time::timeout(PATIENCE, self.stream.read(&mut [0])).await.expect("still open");
        read.is_err() || read.is_ok_and(|count| count == 0)
    }
}

/// A backend that a test plays itself.
pub(crate) struct Backend {
    listener: TcpListener,
}

impl Backend {
    pub(crate) async fn start() -> Backend {
        Backend { listener: TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap() }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.listener.local_addr().unwrap()
    }

    pub(crate) async fn accept(&self) -> Peer {
        let accepted = tokio::time::timeout(PATIENCE, self.listener.accept()).await.expect("no connection in time");
        Peer::new(accepted.unwrap().0)
    }

    /// Accepts bob's login, with these words.
    pub(crate) async fn log_in(&self, words: &str) -> Peer {
        let mut peer = self.accept().await;
        peer.send("* OK [CAPABILITY IMAP4rev1 SASL-IR] backend\r\n").await;
        assert_eq!(peer.line().await, "L AUTHENTICATE PLAIN AGJvYgBzZWNyZXQ=");
        peer.send(words).await;
        peer
    }
}
