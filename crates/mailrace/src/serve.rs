//! `mailrace serve`: opens everything in the order in which it can fail without loss, becomes the configured
//! user after binding, works until SIGTERM or SIGINT, and closes everything in the opposite order; told a second
//! time, it ends at once. SIGKILL at any moment is as correct, only less polite. SIGHUP opens the log's file again.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use anyhow::Context;
use intake::{Answers, BodyMemory, Counter, Desk, Handshakes, Networks, Refusals, Troubles};
use load::{Machine, Monitor};
use lookup::directory::Directory;
use mail::Journal;
use net::{Acceptor, Gate, GateLimits, Inherited, RATED_CLIENTS_MAX, Rate, Stop, Stopper};
use protocol::smtp::server::{self as smtp, Flavor};
use spool::{Disk, Folder, Live, Spool};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::config::{self, Config, Durability, Loaded, LogTarget, Protocol, Source, TableKind, TransportKind};
use crate::exit;
use crate::flow::{self, DropDesk, DropFolder, Emptier, Flow, Mailbag, Notes, Parts, Queues};
use crate::line::Level;
use crate::log::Log;
use crate::metrics::Attempts;
use crate::privileges::{self, Identity, PrivilegesError};
use crate::say::say;
use crate::service::{Manager, State};
use crate::tables::{self, Tables};
use crate::{admin, certificates, check, maildrop, plan};

/// Sessions that are in the middle of a message when the server stops have so long to end it.
const STOP_TIME_MAX: Duration = Duration::from_secs(30);
/// Threads of each worker that may wait for a disk.
const BLOCKING_THREADS_MAX: usize = 16;

/// Serves until it is told to stop.
pub fn run(loaded: &Loaded) -> anyhow::Result<()> {
    abort_on_panic();
    let config = &loaded.config;
    let manager = Manager::of_environment();
    let runtime = runtime().context("starting")?;
    let files = privileges::prepare_process()?;
    let sessions_max =
        privileges::sessions(config.limits.sessions_max, plan::connections(config, threads(config)), files)?;
    let identity = Identity::of(loaded)?;
    // Keys are root's to read, so this comes before its rights are given up.
    let doubts = config::examine(loaded, SystemTime::now())?;
    let acceptor = plan::acceptor(config)?.map(Arc::new);
    let doors = open_doors(config, Inherited::from_environment()?)?;
    make_places(config, &identity)?;
    let log = Arc::new(Log::open(&config.log)?);
    identity.assume()?;
    warn(config, &identity, sessions_max, &log);
    doubts.iter().for_each(|doubt| log.event(Level::Warning, doubt, &[]));
    let mut signals = runtime.block_on(async { Signals::hear() })?;
    let house = House::open(config, log.clone())?;
    let monitor = monitor(config, house.mailbag.clone(), log.clone());
    let desk = Arc::new(house.desk(config, sessions_max, monitor.watch())?);
    let gauges = monitor.start(config.load.every)?;
    let House { spool, tables, directory, flow, mailbag, attempts, log: _ } = house;
    let admin = admin::Server::start(config, mailbag, desk.clone(), tables, log.clone(), attempts)?;
    drop(directory);

    let emptier = Emptier::start(drop_folder(config, &desk, &log)?).context("starting")?;
    let (stopper, stop) = Stopper::new();
    let (ender, end) = Stopper::new();
    let workers = start_workers(config, &doors, &desk, acceptor.as_ref(), &stop, &end)?;
    drop(stop);
    announce(loaded, &doors, &log);
    tell(&manager, State::Ready, &log);
    // From here on the workers alone hold the listening sockets: who comes after they stopped is not left waiting.
    drop(doors);
    if let Some(acceptor) = acceptor {
        // It works as long as this thread waits for the word.
        runtime.spawn(certificates::keep_fresh(acceptor, config.tls.reload_every, log.clone()));
    }
    runtime.block_on(until_told_to_stop(&mut signals, &log));

    log.event(Level::Info, "stopping", &[]);
    tell(&manager, State::Stopping, &log);
    end_at_once_if_told_again(signals)?;
    stopper.stop();
    let all_gone = runtime.block_on(async { tokio::time::timeout(STOP_TIME_MAX, stopper.all_gone()).await.is_ok() });
    if !all_gone {
        log.event(Level::Warning, "sessions were cut off: they took too long", &[]);
    }
    ender.stop();
    drop(end);
    workers.into_iter().for_each(|worker| drop(worker.join()));
    emptier.stop();
    if !flow.stop() {
        log.event(Level::Warning, "deliveries were cut off: they took too long", &[]);
    }
    admin.stop();
    drop((desk, gauges));
    close(spool, &log);
    log.event(Level::Info, "stopped", &[]);
    log.close();
    Ok(())
}

/// A server with half of its threads would take mail and not deliver it, or worse; one that is gone is started
/// again, and has lost nothing.
fn abort_on_panic() {
    std::panic::set_hook(Box::new(|panic| {
        let thread = thread::current();
        say(format_args!("mailrace: thread {}: {panic}", thread.name().unwrap_or("without a name")));
        std::process::abort();
    }));
}

/// Whoever started the server waits for this; where it does not hear, mail goes on.
fn tell(manager: &Manager, state: State, log: &Log) {
    if let Err(error) = manager.tell(state) {
        log.event(Level::Warning, "the service manager could not be told", &[("error", &error)]);
    }
}

/// Each listener takes the socket that was passed for its address, or binds.
fn open_doors(config: &Config, mut inherited: Inherited) -> anyhow::Result<Vec<Door>> {
    let doors = config.listeners.iter().map(|listener| Door::open(config, listener, &mut inherited));
    let doors = doors.collect::<anyhow::Result<Vec<_>>>()?;
    inherited.none_left()?;
    Ok(doors)
}

/// Makes what only root may be able to make, and the user is to have.
fn make_places(config: &Config, identity: &Identity) -> Result<(), PrivilegesError> {
    let log = match &config.log.to {
        LogTarget::File(path) => Some(path.as_path()),
        LogTarget::Stderr => None,
    };
    identity.make_drop(&config.data_dir)?;
    let files = log.into_iter().chain([config.admin.socket.as_path()]).chain(copies(config));
    let folders = [&config.data_dir].into_iter().chain(&config.spool.lanes).map(PathBuf::as_path);
    for folder in folders.chain(files.filter_map(Path::parent)) {
        identity.make_folder(folder)?;
    }
    log.map_or(Ok(()), |log| identity.make_file(log))
}

/// The files in which copies of directories are kept.
fn copies(config: &Config) -> impl Iterator<Item = &Path> {
    config.tables.iter().filter_map(|table| match &table.kind {
        TableKind::Ldap(ldap) => ldap.replica.as_ref().map(|replica| replica.file.as_path()),
        _ => None,
    })
}

fn warn(config: &Config, identity: &Identity, sessions_max: usize, log: &Log) {
    if *identity == Identity::UnaskedRoot {
        log.event(Level::Warning, "running as root; set `user` to become somebody else after binding", &[]);
    }
    let allowed = config.limits.sessions_max;
    if sessions_max < allowed {
        let text = "limits.sessions is more than the open files (RLIMIT_NOFILE) suffice for";
        log.event(Level::Warning, text, &[("limit", &allowed), ("sessions", &sessions_max)]);
    }
    check::cautions(config).iter().for_each(|caution| log.event(Level::Warning, caution, &[]));
}

/// Everybody who used it has come to an end, unless a disk hangs.
fn close(spool: Arc<Spool>, log: &Log) {
    match Arc::into_inner(spool) {
        Some(spool) => spool.close(),
        None => log.event(Level::Error, "the spool is in use after the end and was not closed", &[]),
    }
}

/// A listening socket and what is spoken there.
struct Door {
    listener: TcpListener,
    address: SocketAddr,
    protocol: &'static str,
    machine: Arc<smtp::Config>,
    balancers: Option<Networks>,
}

impl Door {
    fn open(config: &Config, listener: &config::Listener, inherited: &mut Inherited) -> anyhow::Result<Door> {
        let bound = match inherited.take(listener.address) {
            Some(socket) => socket,
            None => net::bind(listener.address, config.limits.backlog)
                .with_context(|| format!("listening on {}", listener.address))?,
        };
        let (flavor, protocol) = match listener.protocol {
            Protocol::Smtp => (Flavor::Smtp, "smtp"),
            Protocol::Lmtp => (Flavor::Lmtp, "lmtp"),
        };
        let machine = smtp::Config {
            hostname: config.hostname.clone(),
            flavor,
            tls: plan::session_tls(listener),
            limits: plan::session_limits(config),
        };
        let balancers = (!listener.proxies.is_empty()).then(|| plan::networks(&listener.proxies));
        Ok(Door { address: bound.local_addr()?, listener: bound, protocol, machine: Arc::new(machine), balancers })
    }
}

/// The spool with the queue that was in it, and the threads of the flow.
struct House {
    spool: Arc<Spool>,
    tables: Tables,
    directory: Arc<Directory>,
    flow: Flow,
    mailbag: Mailbag,
    attempts: Arc<Attempts>,
    log: Arc<Log>,
}

impl House {
    fn open(config: &Config, log: Arc<Log>) -> anyhow::Result<House> {
        let (mailbag, notes): (Mailbag, Notes) = flow::mailbag();
        let mut queues = Queues::new(plan::queues(config), random());
        let tables = Tables::open(config, tables::tell(log.clone()))?;
        let rules = Arc::new(plan::rules(config, &tables));
        let mut admit = |message| flow::admit(&mut queues, &rules, &mailbag, message);
        let spool = Arc::new(open_spool(config, flow::hear(mailbag.clone(), log.clone()), &mut admit)?);
        log.event(Level::Info, "the spool is open", &[("messages", &queues.messages()), ("recipients", &queues.len())]);
        let directory = Arc::new(plan::directory(config, &tables));
        let attempts = Arc::new(Attempts::default());
        let parts = Parts {
            spool: spool.clone(),
            directory: directory.clone(),
            tables: tables.clone(),
            queues,
            rules,
            router: plan::routes(config),
            fleet: plan::fleet(config)?,
            transports: plan::maildirs(config, &tables),
            carriers: threads(config),
            notices: plan::notices(config, random()),
            hostname: config.hostname.clone(),
            attempts: attempts.clone(),
            log: log.clone(),
        };
        let flow = Flow::start(parts, mailbag.clone(), notes)?;
        Ok(House { spool, tables, directory, flow, mailbag, attempts, log })
    }

    fn desk(&self, config: &Config, sessions_max: usize, load: load::Watch) -> anyhow::Result<Desk> {
        let limits = &config.limits;
        let rate = |rate: config::Rate| Rate { count: rate.count, per: rate.per };
        let gate = Gate::new(GateLimits {
            sessions_max,
            sessions_per_client_max: limits.sessions_per_client_max,
            connections_per_client: limits.connections_per_client.map(rate),
            messages_per_client: limits.messages_per_client.map(rate),
            rated_clients_max: RATED_CLIENTS_MAX,
        });
        Ok(Desk {
            spool: self.spool.clone(),
            directory: self.directory.clone(),
            journal: self.log.clone() as Arc<dyn Journal>,
            troubles: troubles(self.log.clone()),
            load,
            gate,
            refusals: Refusals::default(),
            handshakes: Handshakes::default(),
            reserved: plan::networks(&config.load.reserve),
            relays: plan::networks(&config.relay.networks),
            normalised: plan::networks(&config.smtp.normalise_bare_newlines_from),
            proxies: plan::networks(&config.smtp.xclient_from),
            access: plan::access(config, &self.tables, &tables::tell(self.log.clone()))?,
            memory: BodyMemory::new(limits.body_memory_max, limits.spill_above),
            expanded_recipients_max: limits.expanded_recipients_max,
            message_wait_max: limits.message_wait_max,
            postmaster: plan::postmaster(config)?,
            routed: plan::routed(config),
            hostname: config.hostname.clone(),
        })
    }
}

fn open_spool(
    config: &Config,
    events: impl Fn(spool::Event) + Send + Sync + 'static,
    sink: &mut dyn FnMut(Live),
) -> anyhow::Result<Spool> {
    let open = |path| Ok(Arc::new(Folder::open(path)?) as Arc<dyn Disk>);
    let lanes = config.spool.lanes.iter().map(|path| {
        let lane: io::Result<Arc<dyn Disk>> = open(path);
        lane.with_context(|| format!("opening the lane {}", path.display()))
    });
    let settings = spool::Config {
        segment_bytes: config.spool.segment_octets,
        spare_segments: config.spool.spare_segments,
        durability: match config.spool.durability {
            Durability::Commit => spool::Durability::Commit,
            Durability::Relaxed { sync_every } => spool::Durability::Relaxed { sync_every },
        },
        events: Arc::new(events),
        ..spool::Config::default()
    };
    let lanes = lanes.collect::<anyhow::Result<Vec<_>>>()?;
    spool::open(lanes, settings, random(), sink).context("opening the spool")
}

/// Where local programs leave mail, and what is done with it.
fn drop_folder(config: &Config, desk: &Arc<Desk>, log: &Arc<Log>) -> anyhow::Result<DropFolder> {
    let desk = DropDesk {
        desk: desk.clone(),
        runtime: runtime()?,
        spill_above: config.limits.spill_above,
        received_max: config.limits.received_max,
        double_bounces_to: config.bounce.double_bounces_to.clone(),
        log: log.clone(),
    };
    Ok(DropFolder {
        folder: maildrop::folder(&config.data_dir),
        rejected: maildrop::rejected(&config.data_dir),
        message_octets_max: config.limits.message_octets_max,
        desk,
        log: log.clone(),
    })
}

/// Tells of what went wrong for clients as warnings.
fn troubles(log: Arc<Log>) -> Troubles {
    Troubles::new(move |what, left_out| log.event(Level::Warning, what, &[("left_out", &left_out)]))
}

/// Looks at the machine and at the disks of the lanes and of `data_dir`, and tells the scheduler and the operator of each
/// limit that comes into force or is left.
fn monitor(config: &Config, mailbag: Mailbag, log: Arc<Log>) -> Monitor {
    let disks = plan::disks(config);
    Monitor::new(Machine::open(&disks), plan::load_limits(config), move |before, after| {
        mailbag.set_delivery(after.measures().delivery);
        for reason in after.entered(before) {
            log.event(Level::Warning, "a load limit is in force", &[("reason", &reason)]);
        }
        for reason in after.left(before) {
            log.event(Level::Info, "a load limit is left", &[("reason", &reason)]);
        }
    })
}

/// One thread and one runtime a worker: a session never leaves its thread, and its wake-ups are cheap.
fn start_workers(
    config: &Config,
    doors: &[Door],
    desk: &Arc<Desk>,
    acceptor: Option<&Arc<Acceptor>>,
    stop: &Stop,
    end: &Stop,
) -> anyhow::Result<Vec<JoinHandle<()>>> {
    (0..threads(config)).map(|number| start_worker(number, doors, desk, acceptor, stop, end)).collect()
}

/// Threads that drive sessions, and as many that bring mail to other hosts.
fn threads(config: &Config) -> usize {
    match config.threads {
        // The spool, the scheduler and the network itself need processors too.
        0 => thread::available_parallelism().map_or(1, |count| count.get().div_ceil(2)),
        count => count,
    }
}

fn start_worker(
    number: usize,
    doors: &[Door],
    desk: &Arc<Desk>,
    acceptor: Option<&Arc<Acceptor>>,
    stop: &Stop,
    end: &Stop,
) -> anyhow::Result<JoinHandle<()>> {
    let runtime = runtime()?;
    let accepting =
        doors.iter().map(|door| Ok((door.listener.try_clone()?, door.machine.clone(), door.balancers.clone())));
    let accepting = accepting.collect::<io::Result<Vec<_>>>()?;
    let (desk, acceptor, stop, mut end) = (desk.clone(), acceptor.cloned(), stop.clone(), end.clone());
    let work = async move {
        let answers = Answers::default();
        tokio::spawn(answers.clone().hand_on());
        for (listener, machine, balancers) in accepting {
            let counter = Counter {
                desk: desk.clone(),
                machine,
                answers: answers.clone(),
                acceptor: acceptor.clone(),
                balancers,
            };
            let session_stop = stop.clone();
            let session =
                move |stream, peer: SocketAddr| intake::serve(counter.clone(), stream, peer.ip(), session_stop.clone());
            tokio::spawn(net::accept(listener, stop.clone(), session));
        }
        drop((desk, stop));
        end.requested().await;
    };
    let named = thread::Builder::new().name(format!("worker-{number}"));
    Ok(named.spawn(move || runtime.block_on(work))?)
}

fn runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(BLOCKING_THREADS_MAX).build()
}

/// The signals that the server obeys.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    /// From here on they end the process no more.
    fn hear() -> io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for one that says stop.
    async fn stop(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Waits for the signal, and meanwhile opens the log again when told so.
async fn until_told_to_stop(signals: &mut Signals, log: &Log) {
    loop {
        tokio::select! {
            _ = signals.terminate.recv() => return,
            _ = signals.interrupt.recv() => return,
            _ = signals.hangup.recv() => reopen(log),
        }
    }
}

fn reopen(log: &Log) {
    match log.reopen() {
        Ok(()) => log.event(Level::Info, "SIGHUP: the log was opened again", &[]),
        Err(error) => log.event(Level::Error, "SIGHUP: the log goes on as it was", &[("error", &error)]),
    }
}

/// Who says it twice does not want to wait. A thread and a runtime of its own: the main ones may hang.
fn end_at_once_if_told_again(mut signals: Signals) -> io::Result<()> {
    let runtime = runtime()?;
    let wait = move || {
        runtime.block_on(signals.stop());
        say("mailrace: told to stop again: ended at once");
        std::process::exit(i32::from(exit::SOFTWARE));
    };
    thread::Builder::new().name("told-again".into()).spawn(wait).map(drop)
}

/// Says on standard error where it listens; a newcomer with no configuration is told how to send a message.
fn announce(loaded: &Loaded, doors: &[Door], log: &Log) {
    log.event(Level::Info, "started", &[("version", &env!("CARGO_PKG_VERSION"))]);
    for door in doors {
        say(format_args!("mailrace: listening protocol={} address={}", door.protocol, door.address));
    }
    if loaded.config.spool.durability != Durability::Commit {
        let text = "durability is relaxed: a power loss takes what was accepted since the last sync";
        log.event(Level::Warning, text, &[]);
    }
    if let (Source::BuiltIn, Some(door)) = (&loaded.source, doors.first()) {
        let folder = match loaded.config.transport(config::Transport::MAILDIR).map(|transport| &transport.kind) {
            Some(TransportKind::Maildir(maildir)) => maildir.path.folder("localhost", "you"),
            _ => PathBuf::default(),
        };
        say(first_message(door.address, &folder.display().to_string()));
    }
}

/// What a newcomer types next.
fn first_message(address: SocketAddr, folder: &str) -> String {
    format!(
        "\nSend a first message from another terminal, with curl or with swaks:\n\
         \n  printf 'Subject: hello\\r\\n\\r\\nIt works.\\r\\n' | curl -s smtp://{address} --mail-from me@localhost \
         --mail-rcpt you@localhost -T -\
         \n  swaks --server {address} --from me@localhost --to you@localhost\n\
         \nand find it:\n\
         \n  cat {folder}/new/*\n\
         \nControl-C stops the server.\n"
    )
}

fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}
