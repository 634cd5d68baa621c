//! A server on its own port, with a real spool in its own folder, and a client for it.

use std::collections::HashMap;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use intake::{Answers, BodyMemory, Counter, Desk, Networks, Troubles};
use load::policy::{Gauge, Reading};
use load::{Monitor, Sources};
use lookup::directory::{self, Directory, Domain};
use lookup::{Answer, Table};
use mail::{Fact, Journal, LoggedHeader, Timestamp};
use net::{Gate, GateLimits, RATED_CLIENTS_MAX, Stopper};
use protocol::sasl::{self, Mechanism};
use protocol::smtp::server::{Auth, Config as Machine, Flavor, Limits, Tls, Tolerance};
use spool::{Disk, Folder, Stored};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// Longer than any reply takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// A server that runs until it is dropped.
pub(crate) struct Server {
    pub(crate) desk: Arc<Desk>,
    pub(crate) stopper: Stopper,
    /// The lines logged for the operator.
    pub(crate) heard: Arc<Mutex<Vec<String>>>,
    /// The events logged.
    pub(crate) facts: Arc<Facts>,
    pub(crate) folder: TempDir,
    address: SocketAddr,
    gauges: Gauges,
    monitor: Mutex<Monitor>,
}

/// Limits for the gauges that tests set.
pub(crate) const LOAD_LIMITS: load::Limits = load::Limits {
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
pub(crate) const GATE_LIMITS: GateLimits = GateLimits {
    sessions_max: 4,
    sessions_per_client_max: 2,
    connections_per_client: None,
    messages_per_client: None,
    rated_clients_max: RATED_CLIENTS_MAX,
};

impl Server {
    /// Starts a server with changes to what its sessions share.
    pub(crate) fn start(change: impl FnOnce(&mut Desk)) -> Server {
        Server::start_with(None, None, change)
    }

    /// The same, with changed protocol settings.
    pub(crate) fn start_as(change_machine: impl FnOnce(&mut Machine), change: impl FnOnce(&mut Desk)) -> Server {
        Server::start_changed(None, change_machine, change)
    }

    /// A server for mail submission by users, in clear text.
    pub(crate) fn for_users(change: impl FnOnce(&mut Desk)) -> Server {
        Server::start_with(Some(Server::auth(true)), None, change)
    }

    /// A server that also lets users log in, in clear text.
    pub(crate) fn for_all(change: impl FnOnce(&mut Desk)) -> Server {
        Server::start_with(Some(Server::auth(false)), None, change)
    }

    /// The same as [`Server::start`], behind balancers.
    pub(crate) fn start_behind(balancers: Option<Networks>, change: impl FnOnce(&mut Desk)) -> Server {
        Server::start_with(None, balancers, change)
    }

    fn auth(required: bool) -> Auth {
        let exchanges = sasl::Config { secret: [7; 32] };
        Auth { mechanisms: Mechanism::ADVERTISED.into(), clear_text: true, required, exchanges }
    }

    fn start_with(auth: Option<Auth>, balancers: Option<Networks>, change: impl FnOnce(&mut Desk)) -> Server {
        Server::start_changed(balancers, |machine| machine.auth = auth, change)
    }

    fn start_changed(
        balancers: Option<Networks>,
        change_machine: impl FnOnce(&mut Machine),
        change: impl FnOnce(&mut Desk),
    ) -> Server {
        let folder = TempDir::new().unwrap();
        let (heard, facts, gauges) = (Arc::default(), Arc::<Facts>::default(), Gauges::default());
        let monitor = Monitor::new(gauges.clone(), LOAD_LIMITS, |_, _| {});
        let mut desk = desk(&folder, Arc::clone(&heard), facts.clone(), monitor.watch());
        change(&mut desk);
        let (desk, answers) = (Arc::new(desk), Answers::default());
        tokio::spawn(answers.clone().hand_on());
        let mut machine = Machine {
            hostname: "mx.example.org".into(),
            flavor: Flavor::Smtp,
            tls: Tls::Never,
            auth: None,
            tolerance: Tolerance::default(),
            limits: Limits::default(),
        };
        change_machine(&mut machine);
        let completes = machine.auth.as_ref().is_some_and(|auth| auth.required);
        let (desk_of_all, machine) = (desk.clone(), Arc::new(machine));
        let counter = Counter { desk: desk_of_all, machine, answers, acceptor: None, balancers, completes };
        let listener = net::bind((Ipv4Addr::LOCALHOST, 0).into(), 16).unwrap();
        let address = listener.local_addr().unwrap();
        let (stopper, stop) = Stopper::new();
        let session_stop = stop.clone();
        let session =
            move |stream, peer: SocketAddr| intake::serve(counter.clone(), stream, peer.ip(), session_stop.clone());
        tokio::spawn(net::accept(listener, stop, session));
        Server { desk, stopper, heard, facts, folder, address, gauges, monitor: Mutex::new(monitor) }
    }

    /// Sets the gauges, and lets the monitor read them.
    pub(crate) fn sense(&self, readings: &[(Gauge, f64)]) {
        let reading =
            |(gauge, value): &(Gauge, f64)| Reading { gauge: gauge.clone(), source: "told", value: Some(*value) };
        *self.gauges.0.lock().unwrap() = readings.iter().map(reading).collect();
        self.monitor.lock().unwrap().look(Timestamp(0));
    }

    /// Connects without reading the banner.
    pub(crate) async fn come(&self) -> Client {
        Client(BufReader::new(TcpStream::connect(self.address).await.unwrap()))
    }

    /// Connects and sends before the server can reply.
    pub(crate) fn come_talking(&self, early: &[u8]) -> Client {
        let mut stream = std::net::TcpStream::connect(self.address).unwrap();
        stream.write_all(early).unwrap();
        stream.set_nonblocking(true).unwrap();
        Client(BufReader::new(TcpStream::from_std(stream).unwrap()))
    }

    /// Connects and reads the first line.
    pub(crate) async fn connect(&self) -> (Client, String) {
        let mut client = self.come().await;
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
    pub(crate) fn message(&self) -> Stored {
        let ids = self.desk.spool.ids();
        assert_eq!(ids.len(), 1, "{ids:?}");
        self.desk.spool.message(ids[0]).unwrap()
    }
}

/// The bytes of a message after its Received line.
pub(crate) fn text_of(message: &Stored) -> Vec<u8> {
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
        tokio::time::timeout(PATIENCE, self.0.read_line(&mut line)).await.unwrap().unwrap();
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
        tokio::time::timeout(PATIENCE, self.0.read_to_string(&mut rest)).await.unwrap().unwrap();
        rest
    }
}

fn desk(folder: &TempDir, heard: Arc<Mutex<Vec<String>>>, facts: Arc<Facts>, load: load::Watch) -> Desk {
    let disk: Arc<dyn Disk> = Arc::new(Folder::open(folder.path()).unwrap());
    let config = spool::Config { segment_bytes: 4 << 20, spare_segments: 0, ..spool::Config::default() };
    Desk {
        spool: Arc::new(spool::open(vec![disk], config, 7, &mut |_| {}).unwrap()),
        directory: directory(),
        journal: facts,
        troubles: Arc::new(Troubles::new(move |what, _| heard.lock().unwrap().push(what.to_owned()))),
        load,
        gate: Gate::new(GATE_LIMITS),
        refusals: Arc::default(),
        handshakes: Arc::default(),
        logins: None,
        reserved: Arc::new(|_| false),
        relays: Arc::new(|_| false),
        relaying_is_deferred: false,
        normalised: Arc::new(|_| false),
        logs_subjects: true,
        proxies: Arc::new(|_| false),
        access: None,
        memory: BodyMemory::new(1 << 20, 256 << 10),
        expanded_recipients_max: 10,
        message_wait_max: Duration::ZERO,
        postmaster: "postmaster@example.org".parse().unwrap(),
        routed: Arc::new(|domain| domain == "backup"),
        room: None,
        hostname: "mx.example.org".into(),
    }
}

/// An event log that tests can read.
#[derive(Default)]
pub(crate) struct Facts(Mutex<Vec<Fact>>);

impl Facts {
    /// The refusals, by stage and code.
    pub(crate) fn refused(&self) -> Vec<(&'static str, u16)> {
        let refused = |fact: &Fact| match fact {
            Fact::Refused { stage, reply, .. } => Some((*stage, reply.code)),
            _ => None,
        };
        self.0.lock().unwrap().iter().filter_map(refused).collect()
    }

    /// The clients that were refused.
    pub(crate) fn clients_refused(&self) -> Vec<Option<std::net::IpAddr>> {
        let client = |fact: &Fact| match fact {
            Fact::Refused { client, .. } => Some(*client),
            _ => None,
        };
        self.0.lock().unwrap().iter().filter_map(client).collect()
    }

    /// The access rules that refused, by stage.
    pub(crate) fn denied(&self) -> Vec<(&'static str, Option<Box<str>>)> {
        let denied = |fact: &Fact| match fact {
            Fact::Refused { stage, rule, .. } => Some((*stage, rule.clone())),
            _ => None,
        };
        self.0.lock().unwrap().iter().filter_map(denied).collect()
    }
}

impl Facts {
    /// The logged header fields of each message.
    pub(crate) fn headers(&self) -> Vec<LoggedHeader> {
        let header = |fact: &Fact| match fact {
            Fact::Received { header, .. } => Some(header.clone()),
            _ => None,
        };
        self.0.lock().unwrap().iter().filter_map(header).collect()
    }

    /// The login attempts: user, mechanism and result.
    pub(crate) fn logins(&self) -> Vec<(String, &'static str, &'static str)> {
        let login = |fact: &Fact| match fact {
            Fact::Login { user, mechanism, result, .. } => Some((user.to_string(), *mechanism, *result)),
            _ => None,
        };
        self.0.lock().unwrap().iter().filter_map(login).collect()
    }
}

impl Journal for Facts {
    fn write(&self, fact: Fact) {
        self.0.lock().unwrap().push(fact);
    }
}

#[derive(Clone, Default)]
struct Gauges(Arc<Mutex<Vec<Reading>>>);

impl Sources for Gauges {
    fn read(&mut self) -> Vec<Reading> {
        self.0.lock().unwrap().clone()
    }
}

/// Bob and Carol have mailboxes at example.org; down.example is unavailable. We relay for
/// onward.example, and for listed.example, where we know that `a%b` exists.
fn directory() -> Arc<Directory> {
    let people = |prefix: &str, count: u32| (0..count).map(|n| format!("{prefix}{n}@open.example")).collect();
    let found = |values: &[&str]| Answer::Found(values.iter().map(|&value| value.to_owned()).collect());
    let aliases = HashMap::from([
        ("postmaster@example.org", found(&["admin@elsewhere.example"])),
        ("postmaster@open.example", found(&["admin@elsewhere.example", "root@open.example"])),
        ("bob@example.org", found(&["bob@example.org"])),
        ("robert@example.org", found(&["bob@example.org"])),
        ("away@example.org", found(&["away@elsewhere.example"])),
        ("six@example.org", Answer::Found(people("six", 6))),
        ("way@example.org", found(&["a%b@onward.example"])),
        ("here@example.org", found(&["there@example.org"])),
        ("there@example.org", found(&["here@example.org"])),
        ("eleven@example.org", Answer::Found(people("eleven", 11))),
    ]);
    let mailboxes = HashMap::from([("bob@example.org", found(&[])), ("carol@example.org", found(&[]))]);
    let aliases: Option<Arc<dyn Table>> = Some(Arc::new(Told("aliases", aliases)));
    let down = Told("down", HashMap::from([("x@down.example", Answer::Unavailable("no cable".to_owned()))]));
    let domain = |name: &str, mailboxes, aliases| Domain {
        name: name.into(),
        mailboxes,
        aliases,
        catch_all: None,
        hosts: None,
        delimiter: None,
        transport: "maildir".into(),
        is_final: true,
    };
    let listed = Told("listed", HashMap::from([("a%b@listed.example", found(&[])), ("a@listed.example", found(&[]))]));
    let onward =
        |name: &str, mailboxes| Domain { is_final: false, delimiter: Some('+'), ..domain(name, mailboxes, None) };
    let domains = vec![
        domain("example.org", Some(Arc::new(Told("mailboxes", mailboxes)) as Arc<dyn Table>), aliases.clone()),
        domain("open.example", None, aliases),
        domain("down.example", Some(Arc::new(down)), None),
        domain("例子.example", None, None),
        onward("onward.example", None),
        onward("listed.example", Some(Arc::new(listed))),
    ];
    Arc::new(Directory::new(domains, directory::Limits::default()))
}

/// A table with fixed answers.
pub(crate) struct Told(pub(crate) &'static str, pub(crate) HashMap<&'static str, Answer>);

impl Table for Told {
    fn name(&self) -> &str {
        self.0
    }

    fn lookup<'a>(&'a self, keys: &'a [&'a str]) -> lookup::Answers<'a> {
        let answers = keys.iter().map(|key| self.1.get(key).cloned().unwrap_or(Answer::NotFound)).collect();
        Box::pin(std::future::ready(answers))
    }
}
