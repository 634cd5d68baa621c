//! Serves the files of a folder by HTTP on 127.0.0.1, to be compared with other servers by a load
//! generator.
//!
//! `serve_files FOLDER PORT [THREADS] [copy]`; with `copy`, without sendfile. Run it with `--release`.

use std::fmt::{Arguments, Display};
use std::future::pending;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, ready};
use load::policy::GaugeReading;
use load::{GaugeReader, LoadLimits, LoadMonitor};
use mail::{EventLog, LogLevel, MailEvent, Networks, OperatorLog, ServerLog};
use net::{BoundListener, ConnectionLimiter, ConnectionLimits, InheritedSockets, ListenerOpener, SessionWorkers};
use retrieval::http::{ContentSettings, FileSettings, HttpProtocol, HttpSettings};
use retrieval::{MailboxHome, MailboxLocator, RetrievalContext, RetrievalListener};

/// More than any load generator opens.
const SESSIONS_MAX: usize = 100_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, port, options @ ..] = &arguments[..] else {
        return Err("usage: serve_files FOLDER PORT [THREADS] [copy]".into());
    };
    let threads = options.first().map_or(Ok(1), |threads| threads.parse())?;
    let mut settings = HttpSettings::new(ContentSettings::Files(FileSettings::new(folder.into())));
    settings.sendfile = !options.iter().any(|option| option == "copy");
    let listener = RetrievalListener {
        context: Arc::new(context()),
        protocol: HttpProtocol::new(settings)?,
        tls_server: None,
        has_implicit_tls: false,
        proxy_networks: Networks::default(),
    };
    let mut opener = ListenerOpener {
        previous: Vec::new(),
        inherited: InheritedSockets::default(),
        workers: threads,
        refuses_until_served: false,
    };
    let socket = opener.open((Ipv4Addr::LOCALHOST, port.parse()?).into(), 4096)?;
    println!("http://{}", socket.address());
    let listeners = vec![BoundListener::new(socket, "http", vec![listener; threads])];
    let _workers = SessionWorkers::start(listeners, (0..threads).map(|_| pending()), &Arc::new(StderrLog))?;
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

fn context() -> RetrievalContext {
    let limits = ConnectionLimits {
        sessions_max: SESSIONS_MAX,
        sessions_per_client_max: SESSIONS_MAX,
        ..ConnectionLimits::default()
    };
    RetrievalContext {
        hostname: "localhost".into(),
        credentials: None,
        mailboxes: Arc::new(NoMailboxes),
        load: LoadMonitor::new(NoGauges, LoadLimits::default(), |_, _| {}).handle(),
        connection_limiter: ConnectionLimiter::new(limits),
        counters: Arc::default(),
        tls_handshakes: Arc::default(),
        challenges: Arc::default(),
        reserved_networks: Networks::default(),
        trusted_networks: Networks::default(),
        event_log: Arc::new(StderrLog),
        operator_log: Arc::new(StderrLog),
    }
}

struct StderrLog;

impl EventLog for StderrLog {
    fn write(&self, event: MailEvent) {
        eprintln!("{event:?}");
    }
}

impl OperatorLog for StderrLog {
    fn log_line(&self, line: Arguments<'_>) {
        eprintln!("{line}");
    }
}

impl ServerLog for StderrLog {
    fn event(&self, _level: LogLevel, text: &str, _fields: &[(&'static str, &dyn Display)]) {
        eprintln!("{text}");
    }

    fn lines_dropped(&self) -> u64 {
        0
    }
}

struct NoGauges;

impl GaugeReader for NoGauges {
    fn read(&mut self) -> Vec<GaugeReading> {
        Vec::new()
    }
}

struct NoMailboxes;

impl MailboxLocator for NoMailboxes {
    fn locate<'a>(&'a self, _user: &'a str) -> BoxFuture<'a, MailboxHome> {
        Box::pin(ready(MailboxHome::Unknown))
    }
}
