//! The CPU time of a login through the IMAP proxy: its thread, with clients and a backend on other
//! threads. Each client logs in, and its backend ends the session.
//!
//! ```sh
//! cargo run --release -p retrieval --example proxy_logins -- LOGINS
//! cargo run --release -p retrieval --example proxy_logins -- LOGINS OTHER-PROXY BACKEND-PORT
//! ```
//!
//! The second form is the same load for another proxy, whose backend is 127.0.0.1 at this port, and
//! whose CPU time must be measured from outside.

#![expect(clippy::unwrap_used, reason = "a measurement that cannot go on fails")]

use std::fmt::Arguments;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use credentials::{CredentialChecker, CredentialCheckerSettings, CredentialSource};
use futures_util::future::BoxFuture;
use load::policy::GaugeReading;
use load::{GaugeReader, LoadLimits, LoadMonitor};
use lookup::fixed::StaticTable;
use mail::{EventLog, MailEvent, Networks, OperatorLog};
use net::{ConnectionLimiter, ConnectionLimits, StopSender};
use protocol::TlsMode;
use protocol::backend_login::BackendLoginMethod;
use protocol::imap::server::{ImapAuthConfig, ImapLimits, ImapServerConfig};
use protocol::sasl::{Mechanism, SaslConfig};
use retrieval::proxy::{
    BackendAccount, BackendHosts, BackendLimits, BackendResolver, BackendTls, ImapProxyProtocol, ProxySettings,
};
use retrieval::{MailboxHome, MailboxLocator, RetrievalContext, RetrievalListener};

const CLIENTS: u32 = 4;
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

/// What the proxy needs and this does not measure.
struct Surroundings;

impl GaugeReader for Surroundings {
    fn read(&mut self) -> Vec<GaugeReading> {
        Vec::new()
    }
}

impl MailboxLocator for Surroundings {
    fn locate<'a>(&'a self, _user: &'a str) -> BoxFuture<'a, MailboxHome> {
        Box::pin(std::future::ready(MailboxHome::OtherHost("127.0.0.1".into())))
    }
}

impl BackendResolver for Surroundings {
    fn resolve<'a>(&'a self, _host: &'a str) -> BoxFuture<'a, Result<Vec<IpAddr>, String>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }
}

impl EventLog for Surroundings {
    fn write(&self, _event: MailEvent) {}
}

impl OperatorLog for Surroundings {
    fn log_line(&self, line: Arguments<'_>) {
        eprintln!("{line}");
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let logins: u32 = arguments.first().map_or(20_000, |text| text.parse().unwrap());
    let other: Option<SocketAddr> = arguments.get(1).map(|text| text.parse().unwrap());
    let port = arguments.get(2).map_or(0, |text| text.parse().unwrap());
    let backend = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
    let backend_port = backend.local_addr().unwrap().port();
    for _ in 0..CLIENTS {
        let backend = backend.try_clone().unwrap();
        std::thread::spawn(move || backend.incoming().for_each(|stream| serve(stream.unwrap())));
    }
    let started = Instant::now();
    match other {
        Some(proxy) => run_clients(proxy, logins),
        None => {
            let seconds = measure(backend_port, logins);
            println!("{:.0} logins per CPU second", f64::from(logins) / seconds);
        }
    }
    println!("{:.0} logins per second", f64::from(logins) / started.elapsed().as_secs_f64());
}

/// The CPU seconds of a proxy for this many logins.
fn measure(backend_port: u16, logins: u32) -> f64 {
    let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let proxy = socket.local_addr().unwrap();
    let (stopper, mut stop) = StopSender::new();
    let server = std::thread::spawn(move || {
        let before = thread_seconds();
        net::session_runtime().unwrap().block_on(async {
            let listener = listener(backend_port);
            socket.set_nonblocking(true).unwrap();
            let socket = tokio::net::TcpListener::from_std(socket).unwrap();
            let sessions_stop = stop.clone();
            let accept = async {
                loop {
                    let (stream, client) = socket.accept().await.unwrap();
                    stream.set_nodelay(true).unwrap();
                    tokio::spawn(net::serve_connection(listener.clone(), stream, client, sessions_stop.clone()));
                }
            };
            tokio::select! {
                () = accept => {}
                () = stop.wait_for_stop() => {}
            }
        });
        thread_seconds() - before
    });
    run_clients(proxy, logins);
    stopper.stop();
    server.join().unwrap()
}

fn listener(backend_port: u16) -> RetrievalListener<ImapProxyProtocol> {
    let table = StaticTable::new("passwords", vec!["{PLAIN}secret".into()]);
    let source = CredentialSource::Table(Arc::new(table));
    let credentials = CredentialChecker::new(source, CredentialCheckerSettings::default(), [7; 32]).unwrap();
    let log = Arc::new(Surroundings);
    let proxy = ProxySettings {
        hosts: BackendHosts::new(log.clone(), BackendLimits::default(), log.clone()),
        port: backend_port,
        tls: BackendTls::Never,
        account: BackendAccount::User,
        method: BackendLoginMethod::Plain,
        on_this_host: None,
        tells_client_address: true,
        idle_time_max: Duration::from_secs(60),
    };
    let auth = ImapAuthConfig {
        mechanisms: [Mechanism::Plain].into(),
        clear_text: true,
        sasl: SaslConfig { secret: [7; 32] },
    };
    let (tls, limits) = (TlsMode::Never, ImapLimits::default());
    let config = ImapServerConfig { hostname: "proxy.example".into(), tls, auth, limits };
    let context = RetrievalContext {
        hostname: "proxy.example".into(),
        credentials: Some(credentials),
        mailboxes: log.clone(),
        load: LoadMonitor::new(Surroundings, LOAD_LIMITS, |_, _| {}).handle(),
        connection_limiter: ConnectionLimiter::new(ConnectionLimits::default()),
        counters: Arc::default(),
        tls_handshakes: Arc::default(),
        challenges: Arc::default(),
        reserved_networks: Networks::default(),
        trusted_networks: Networks::default(),
        event_log: log.clone(),
        operator_log: log,
    };
    let (context, protocol) = (Arc::new(context), ImapProxyProtocol::new(config, proxy));
    let proxy_networks = Networks::default();
    RetrievalListener { context, protocol, tls_server: None, has_implicit_tls: false, proxy_networks }
}

/// Logs in and out again and again.
fn run_clients(proxy: SocketAddr, logins: u32) {
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(move || (0..logins / CLIENTS).for_each(|_| log_in(proxy)));
        }
    });
}

fn log_in(proxy: SocketAddr) {
    let stream = TcpStream::connect(proxy).unwrap();
    stream.set_nodelay(true).unwrap();
    let (mut lines, mut writer) = (BufReader::new(&stream), &stream);
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    writer.write_all(b"a LOGIN bob secret\r\n").unwrap();
    while !line.starts_with("a ") {
        line.clear();
        assert!(lines.read_line(&mut line).unwrap() > 0, "disconnected");
    }
    assert!(line.starts_with("a OK"), "{line}");
    writer.write_all(b"b LOGOUT\r\n").unwrap();
    while lines.read_line(&mut line).unwrap() > 0 {}
}

/// A backend that accepts every login by AUTHENTICATE.
fn serve(stream: TcpStream) {
    stream.set_nodelay(true).unwrap();
    let (lines, mut writer) = (BufReader::new(&stream), &stream);
    writer.write_all(b"* OK [CAPABILITY IMAP4rev1 SASL-IR LITERAL+ ID AUTH=PLAIN] backend\r\n").unwrap();
    for line in lines.lines() {
        let Ok(line) = line else { return };
        let mut words = line.split(' ');
        let tag = words.next().unwrap_or_default();
        let reply = match words.next() {
            Some("AUTHENTICATE" | "LOGIN") => format!("{tag} OK [CAPABILITY IMAP4rev1 IDLE] Logged in\r\n"),
            Some("ID") => format!("* ID NIL\r\n{tag} OK\r\n"),
            Some("CAPABILITY") => format!("* CAPABILITY IMAP4rev1 SASL-IR AUTH=PLAIN\r\n{tag} OK\r\n"),
            Some("LOGOUT") => format!("* BYE\r\n{tag} OK\r\n"),
            _ => format!("{tag} OK\r\n"),
        };
        if writer.write_all(reply.as_bytes()).is_err() || reply.starts_with("* BYE") {
            return;
        }
    }
}

/// The CPU time of this thread, in seconds.
fn thread_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    let nanoseconds: f64 = text.split(' ').next().unwrap().parse().unwrap();
    nanoseconds / 1e9
}
