//! A server on its own port, with a real spool in its own folder, and a client for it.

use std::collections::HashMap;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use filter::access::{AccessCheck, AccessRules, CompiledRule};
use filter::{CheckChain, CheckFactory};
use intake::{BodyMemoryBudget, CommitNotifier, GreetingPolicy, IntakeContext, ListenerContext, ThrottledLog};
use load::policy::{Gauge, GaugeReading};
use load::{GaugeReader, LoadMonitor};
use lookup::directory::{self, LocalDomain, RecipientDirectory};
use lookup::{LookupAnswer, Table};
use mail::{EventLog, LoggedHeader, MailEvent, Networks, QueueId, Timestamp};
use net::{ConnectionLimiter, ConnectionLimits, GreetingDelays, RATED_CLIENTS_MAX, StopSender};
use protocol::TlsMode;
use protocol::sasl::{self, Mechanism};
use protocol::smtp::server::{AuthConfig, MailProtocol, SessionLimits, SmtpServerConfig as Machine, TolerancePolicy};
use spool::{Disk, FolderDisk, SpooledMessage};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// Longer than any reply takes.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A server that runs until it is dropped.
pub(crate) struct Server {
    pub(crate) context: Arc<IntakeContext>,
    pub(crate) stopper: StopSender,
    /// The lines logged for the operator.
    pub(crate) log_lines: Arc<Mutex<Vec<String>>>,
    /// The events logged.
    pub(crate) events: Arc<TestEventLog>,
    pub(crate) folder: TempDir,
    address: SocketAddr,
    gauges: Gauges,
    monitor: Mutex<LoadMonitor>,
}

/// Limits for the gauges that tests set.
pub(crate) const LOAD_LIMITS: load::LoadLimits = load::LoadLimits {
    queue_only_above: None,
    no_delivery_above: None,
    refuse_above: Some(20.0),
    cpu_pressure_max: None,
    memory_pressure_max: None,
    io_pressure_max: None,
    memory_min: Some(1000),
    space_min: 1000,
    inodes_min: 100,
    margin: 0.1,
};
/// The session limits, as low as tests allow.
pub(crate) const GATE_LIMITS: ConnectionLimits = ConnectionLimits {
    sessions_max: 4,
    sessions_per_client_max: 2,
    connections_per_client: None,
    messages_per_client: None,
    rated_clients_max: RATED_CLIENTS_MAX,
};

/// Makes access rules the only check. They use the directory that the context has now.
pub(crate) fn set_access_rules(context: &mut IntakeContext, rules: Vec<CompiledRule>) {
    let (directory, log) = (context.directory.clone(), context.operator_log.clone());
    let check = |rules| Arc::new(AccessCheck { rules: Arc::new(rules), directory, log }) as Arc<dyn CheckFactory>;
    context.checks = CheckChain::new(AccessRules::new(rules).map(check).into_iter().collect());
}

/// All addresses.
pub(crate) fn everyone() -> Networks {
    "0.0.0.0/0 ::/0".parse().unwrap()
}

impl Server {
    /// Starts a server with changes to what its sessions share.
    pub(crate) fn start(change: impl FnOnce(&mut IntakeContext)) -> Server {
        Server::start_with(None, Networks::default(), change)
    }

    /// The same, with changed protocol settings.
    pub(crate) fn start_as(
        change_machine: impl FnOnce(&mut Machine),
        change: impl FnOnce(&mut IntakeContext),
    ) -> Server {
        Server::start_changed(Networks::default(), change_machine, change)
    }

    /// A server for mail submission by users, in clear text.
    pub(crate) fn for_users(change: impl FnOnce(&mut IntakeContext)) -> Server {
        Server::start_with(Some(Server::auth(true)), Networks::default(), change)
    }

    /// A server that also lets users log in, in clear text.
    pub(crate) fn for_all(change: impl FnOnce(&mut IntakeContext)) -> Server {
        Server::start_with(Some(Server::auth(false)), Networks::default(), change)
    }

    /// The same as [`Server::start`], behind balancers.
    pub(crate) fn start_behind(balancers: Networks, change: impl FnOnce(&mut IntakeContext)) -> Server {
        Server::start_with(None, balancers, change)
    }

    fn auth(required: bool) -> AuthConfig {
        let exchanges = sasl::SaslConfig { secret: [7; 32] };
        AuthConfig { mechanisms: Mechanism::ADVERTISED.into(), clear_text: true, required, sasl: exchanges }
    }

    fn start_with(auth: Option<AuthConfig>, balancers: Networks, change: impl FnOnce(&mut IntakeContext)) -> Server {
        Server::start_changed(balancers, |machine| machine.auth = auth, change)
    }

    fn start_changed(
        balancers: Networks,
        change_machine: impl FnOnce(&mut Machine),
        change: impl FnOnce(&mut IntakeContext),
    ) -> Server {
        let folder = TempDir::new().unwrap();
        let (log_lines, events, gauges) = (Arc::default(), Arc::<TestEventLog>::default(), Gauges::default());
        let monitor = LoadMonitor::new(gauges.clone(), LOAD_LIMITS, |_, _| {});
        let mut context = context(&folder, Arc::clone(&log_lines), events.clone(), monitor.handle());
        change(&mut context);
        let (context, answers) = (Arc::new(context), CommitNotifier::default());
        tokio::spawn(answers.clone().run());
        let mut machine = Machine {
            hostname: "mx.example.org".into(),
            flavor: MailProtocol::Smtp,
            tls: TlsMode::Never,
            auth: None,
            tolerance: TolerancePolicy::default(),
            limits: SessionLimits::default(),
        };
        change_machine(&mut machine);
        let completes = machine.auth.as_ref().is_some_and(|auth| auth.required);
        let (desk_of_all, machine) = (context.clone(), Arc::new(machine));
        let listener_context = ListenerContext {
            intake: desk_of_all,
            address: (Ipv4Addr::LOCALHOST, 0).into(),
            counters: Arc::default(),
            smtp_config: machine,
            commit_notifier: answers,
            acceptor: None,
            is_from_content_filter: false,
            proxy_protocol_networks: balancers,
            adds_missing_headers: completes,
            greeting: GreetingPolicy::default(),
        };
        let listener = net::bind((Ipv4Addr::LOCALHOST, 0).into(), 16).unwrap();
        let address = listener.local_addr().unwrap();
        let (stopper, stop) = StopSender::new();
        let session_stop = stop.clone();
        let serve = move |stream, peer: SocketAddr| {
            let session = net::serve_connection(listener_context.clone(), stream, peer, session_stop.clone());
            drop(tokio::spawn(session));
        };
        tokio::spawn(net::accept_connections(listener, stop, serve));
        Server { context, stopper, log_lines, events, folder, address, gauges, monitor: Mutex::new(monitor) }
    }

    /// Sets the gauges, and lets the monitor read them.
    pub(crate) fn set_gauges(&self, readings: &[(Gauge, f64)]) {
        let reading =
            |(gauge, value): &(Gauge, f64)| GaugeReading { gauge: gauge.clone(), source: "told", value: Some(*value) };
        *self.gauges.0.lock().unwrap() = readings.iter().map(reading).collect();
        self.monitor.lock().unwrap().sample_once(Timestamp(0));
    }

    /// Connects without reading the banner.
    pub(crate) async fn connect_without_reading(&self) -> Client {
        Client(BufReader::new(TcpStream::connect(self.address).await.unwrap()))
    }

    /// Connects and sends before the server can reply.
    pub(crate) fn connect_and_send(&self, early: &[u8]) -> Client {
        let mut stream = std::net::TcpStream::connect(self.address).unwrap();
        stream.write_all(early).unwrap();
        stream.set_nonblocking(true).unwrap();
        Client(BufReader::new(TcpStream::from_std(stream).unwrap()))
    }

    /// Connects and reads the first line.
    pub(crate) async fn connect(&self) -> (Client, String) {
        let mut client = self.connect_without_reading().await;
        let banner = client.reply().await;
        (client, banner)
    }

    /// A client after HELO.
    pub(crate) async fn client(&self) -> Client {
        let (mut client, banner) = self.connect().await;
        assert!(banner.starts_with("220 "), "{banner}");
        client.expect("HELO client.example", "250").await;
        client
    }

    /// A client after EHLO.
    pub(crate) async fn user(&self) -> Client {
        let (mut client, _) = self.connect().await;
        client.send(b"EHLO client.example\r\n").await;
        while client.reply().await.starts_with("250-") {}
        client
    }

    /// The only message in the spool.
    pub(crate) fn message(&self) -> SpooledMessage {
        let ids = self.context.spool.ids();
        assert_eq!(ids.len(), 1, "{ids:?}");
        self.context.spool.message(ids[0]).unwrap()
    }
}

/// The bytes of a message after its Received line.
pub(crate) fn body_after_received(message: &SpooledMessage) -> Vec<u8> {
    let mut bytes = vec![0; message.body.len() as usize];
    assert_eq!(message.body.read_at(&mut bytes, 0).unwrap(), bytes.len());
    assert!(bytes.starts_with(b"Received: from client.example ([127.0.0.1])\r\n\tby mx.example.org"));
    let date_ends = bytes.windows(8).position(|window| window == b" +0000\r\n").unwrap() + 8;
    bytes.split_off(date_ends)
}

/// A client that waits for each reply.
pub(crate) struct Client(BufReader<TcpStream>);

impl Client {
    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).await.unwrap();
    }

    /// The next line.
    pub(crate) async fn reply(&mut self) -> String {
        let mut line = String::new();
        tokio::time::timeout(TIMEOUT, self.0.read_line(&mut line)).await.unwrap().unwrap();
        line.trim_end().to_owned()
    }

    /// Sends a command, and expects a reply that begins so.
    pub(crate) async fn expect(&mut self, command: &str, start: &str) {
        self.send(format!("{command}\r\n").as_bytes()).await;
        let reply = self.reply().await;
        assert!(reply.starts_with(start), "{command}: expected {start}, found {reply:?}");
    }

    /// Sends MAIL, RCPT and DATA.
    pub(crate) async fn begin(&mut self, recipients: &[&str]) {
        self.expect("MAIL FROM:<a@client.example>", "250").await;
        for recipient in recipients {
            self.expect(&format!("RCPT TO:<{recipient}>"), "250").await;
        }
        self.expect("DATA", "354").await;
    }

    /// Sends a whole short message.
    pub(crate) async fn deliver(&mut self, recipients: &[&str]) {
        self.begin(recipients).await;
        self.expect("Subject: x\r\n\r\nx\r\n.", "250 2.0.0").await;
    }

    /// Shuts down this side, and waits until the server closes the connection.
    pub(crate) async fn end(mut self) -> String {
        self.0.get_mut().shutdown().await.unwrap();
        self.until_closed().await
    }

    /// Reads until the server closes the connection.
    pub(crate) async fn until_closed(&mut self) -> String {
        let mut rest = String::new();
        tokio::time::timeout(TIMEOUT, self.0.read_to_string(&mut rest)).await.unwrap().unwrap();
        rest
    }
}

fn context(
    folder: &TempDir,
    log_lines: Arc<Mutex<Vec<String>>>,
    events: Arc<TestEventLog>,
    load: load::LoadMonitorHandle,
) -> IntakeContext {
    let disk: Arc<dyn Disk> = Arc::new(FolderDisk::open(folder.path()).unwrap());
    let config = spool::Config { segment_bytes: 4 << 20, spare_segments: 0, ..spool::Config::default() };
    IntakeContext {
        spool: Arc::new(spool::open(vec![disk], config, 7, &mut |_| {}).unwrap()),
        directory: Arc::new(directory()),
        event_log: events,
        operator_log: Arc::new(ThrottledLog::new(move |what, _| log_lines.lock().unwrap().push(what.to_owned()))),
        load,
        connection_limiter: ConnectionLimiter::new(GATE_LIMITS),
        greeting_delays: Arc::new(GreetingDelays::new(100)),
        refusals: Arc::default(),
        commit_micros: Arc::default(),
        tls_handshakes: Arc::default(),
        listeners: Arc::default(),
        logins: None,
        reserved_networks: Networks::default(),
        relay_networks: Networks::default(),
        relaying_is_deferred: false,
        normalized_networks: Networks::default(),
        logs_subjects: true,
        proxy_networks: Networks::default(),
        checks: CheckChain::default(),
        rate_limits: None,
        rewriter: None,
        greylist: None,
        body_memory: BodyMemoryBudget::new(1 << 20, 256 << 10),
        expanded_recipients_max: 10,
        message_wait_max: Duration::ZERO,
        postmaster: "postmaster@example.org".parse().unwrap(),
        routed_domains: Arc::new(|domain| domain == "backup"),
        rewritten_senders: None,
        quota_check: None,
        hostname: "mx.example.org".into(),
    }
}

/// An event log that tests can read.
#[derive(Default)]
pub(crate) struct TestEventLog(Mutex<Vec<MailEvent>>);

impl TestEventLog {
    /// Whether an event like this was logged.
    pub(crate) fn any(&self, is_like: impl Fn(&MailEvent) -> bool) -> bool {
        self.0.lock().unwrap().iter().any(is_like)
    }

    /// The refusals, by stage and code.
    pub(crate) fn refused(&self) -> Vec<(&'static str, u16)> {
        let refused = |event: &MailEvent| match event {
            MailEvent::Refused { stage, reply, .. } => Some((*stage, reply.code)),
            _ => None,
        };
        self.0.lock().unwrap().iter().filter_map(refused).collect()
    }

    /// The clients that were refused.
    pub(crate) fn clients_refused(&self) -> Vec<Option<std::net::IpAddr>> {
        let client = |event: &MailEvent| match event {
            MailEvent::Refused { client, .. } => Some(*client),
            _ => None,
        };
        self.0.lock().unwrap().iter().filter_map(client).collect()
    }

    /// The access rules that refused, by stage.
    pub(crate) fn denied(&self) -> Vec<(&'static str, Option<Box<str>>)> {
        let denied = |event: &MailEvent| match event {
            MailEvent::Refused { stage, rule, .. } => Some((*stage, rule.clone())),
            _ => None,
        };
        self.0.lock().unwrap().iter().filter_map(denied).collect()
    }
}

impl TestEventLog {
    /// The logged header fields of each message.
    pub(crate) fn headers(&self) -> Vec<LoggedHeader> {
        let header = |event: &MailEvent| match event {
            MailEvent::Received { header, .. } => Some(header.clone()),
            _ => None,
        };
        self.0.lock().unwrap().iter().filter_map(header).collect()
    }

    /// The recipients that bounced, with the codes of the replies.
    pub(crate) fn bounced(&self) -> Vec<(String, String)> {
        let bounced = |event: &MailEvent| match event {
            MailEvent::Bounced { recipient, reason, .. } => {
                Some((recipient.to_string(), reason.to_string()[..9].into()))
            }
            _ => None,
        };
        self.0.lock().unwrap().iter().filter_map(bounced).collect()
    }

    /// The message of a local program.
    pub(crate) fn received_locally(&self) -> Option<QueueId> {
        let local = |event: &MailEvent| match event {
            MailEvent::Received { id, protocol: "local", .. } => Some(*id),
            _ => None,
        };
        self.0.lock().unwrap().iter().find_map(local)
    }

    /// The login attempts: user, mechanism and result.
    pub(crate) fn logins(&self) -> Vec<(String, &'static str, &'static str)> {
        let login = |event: &MailEvent| match event {
            MailEvent::Login { user, mechanism, result, .. } => Some((user.to_string(), *mechanism, *result)),
            _ => None,
        };
        self.0.lock().unwrap().iter().filter_map(login).collect()
    }
}

impl EventLog for TestEventLog {
    fn write(&self, event: MailEvent) {
        self.0.lock().unwrap().push(event);
    }
}

#[derive(Clone, Default)]
struct Gauges(Arc<Mutex<Vec<GaugeReading>>>);

impl GaugeReader for Gauges {
    fn read(&mut self) -> Vec<GaugeReading> {
        self.0.lock().unwrap().clone()
    }
}

/// Bob and Carol have mailboxes at example.org; down.example is unavailable. We relay for
/// onward.example, and for listed.example, where we know that `a%b` exists. The aliases of
/// loops.example form a loop.
pub(crate) fn directory() -> RecipientDirectory {
    let people = |prefix: &str, count: u32| (0..count).map(|n| format!("{prefix}{n}@open.example")).collect();
    let found = |values: &[&str]| LookupAnswer::Found(values.iter().map(|&value| value.to_owned()).collect());
    let aliases = HashMap::from([
        ("postmaster@example.org", found(&["admin@elsewhere.example"])),
        ("postmaster@open.example", found(&["admin@elsewhere.example", "root@open.example"])),
        ("bob@example.org", found(&["bob@example.org"])),
        ("robert@example.org", found(&["bob@example.org"])),
        ("away@example.org", found(&["away@elsewhere.example"])),
        ("both@example.org", found(&["bob@example.org", "both@elsewhere.example", "both@onward.example"])),
        ("six@example.org", LookupAnswer::Found(people("six", 6))),
        ("way@example.org", found(&["a%b@onward.example"])),
        ("here@example.org", found(&["there@example.org"])),
        ("there@example.org", found(&["here@example.org"])),
        ("eleven@example.org", LookupAnswer::Found(people("eleven", 11))),
        ("postmaster@loops.example", found(&["loop@loops.example"])),
        ("loop@loops.example", found(&["postmaster@loops.example"])),
    ]);
    let mailboxes = HashMap::from([("bob@example.org", found(&[])), ("carol@example.org", found(&[]))]);
    let aliases: Option<Arc<dyn Table>> = Some(Arc::new(TableStub("aliases", aliases)));
    let down = TableStub("down", HashMap::from([("x@down.example", LookupAnswer::Unavailable("no cable".to_owned()))]));
    let domain = |name: &str, mailboxes, aliases| LocalDomain {
        name: name.into(),
        mailboxes,
        aliases,
        catch_all: None,
        wildcard_mailbox: false,
        hosts: None,
        delimiter: None,
        transport: "maildir".into(),
        is_final: true,
    };
    let listed =
        TableStub("listed", HashMap::from([("a%b@listed.example", found(&[])), ("a@listed.example", found(&[]))]));
    let onward =
        |name: &str, mailboxes| LocalDomain { is_final: false, delimiter: Some('+'), ..domain(name, mailboxes, None) };
    let domains = vec![
        domain("example.org", Some(Arc::new(TableStub("mailboxes", mailboxes)) as Arc<dyn Table>), aliases.clone()),
        domain("open.example", None, aliases.clone()),
        domain("loops.example", None, aliases),
        domain("down.example", Some(Arc::new(down)), None),
        domain("例子.example", None, None),
        onward("onward.example", None),
        onward("listed.example", Some(Arc::new(listed))),
    ];
    RecipientDirectory::new(domains, directory::AliasLimits::default())
}

/// A table with fixed answers.
pub(crate) struct TableStub(pub(crate) &'static str, pub(crate) HashMap<&'static str, LookupAnswer>);

impl Table for TableStub {
    fn name(&self) -> &str {
        self.0
    }

    fn lookup<'a>(&'a self, keys: &'a [&'a str]) -> lookup::LookupFuture<'a> {
        let answers = keys.iter().map(|key| self.1.get(key).cloned().unwrap_or(LookupAnswer::NotFound)).collect();
        Box::pin(std::future::ready(answers))
    }
}
