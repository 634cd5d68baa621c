//! `mailrace serve`: opens everything in an order in which failures lose nothing, drops privileges
//! after binding, runs until SIGTERM or SIGINT, and closes everything in reverse order. A second
//! signal, or one during the start, ends the process at once. SIGKILL is safe at any time. SIGUSR1
//! reopens the log file; SIGHUP does too, and reloads the configuration ([`crate::reload`]).

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use intake::{Desk, Logins, Room};
use load::{Machine, Monitor};
use lookup::directory::Directory;
use net::{Acceptor, Inherited};
use spool::{Disk, Folder, Live, Spool};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::admin::{self, Clerk, Guide};
use crate::certificates::{self, Fresh, Watched};
use crate::config::{self, Config, Durability, Loaded, LogTarget, Source, TableKind, TransportKind};
use crate::desk::{self, Policy};
use crate::exit;
use crate::flow::{self, DropDesk, DropFolder, Emptier, Flow, Mailbag, Notes, Parts, Queues};
use crate::line::Level;
use crate::log::Log;
use crate::logins::{self, Secret};
use crate::metrics::Attempts;
use crate::plan::Lists;
use crate::privileges::{self, Identity, PrivilegesError};
use crate::quota::{self, Rooms};
use crate::reload::{self, Orders, Running, Wish};
use crate::say::say;
use crate::service::{Manager, State};
use crate::tables::{self, Tables};
use crate::workers::{self, Door, Doorman, Shift, Workers, runtime};
use crate::{check, maildrop, plan};

/// At shutdown, sessions in the middle of a message may take this long to finish it.
const STOP_TIME_MAX: Duration = Duration::from_secs(30);

/// Runs the server until it is told to stop.
pub fn run(loaded: &Loaded) -> anyhow::Result<()> {
    abort_on_panic();
    let config = &loaded.config;
    let manager = Manager::of_environment();
    let works = Arc::new(AtomicBool::new(false));
    let mut heard = hear_signals(works.clone()).context("starting")?;
    let runtime = runtime().context("starting")?;
    let files = privileges::prepare_process()?;
    let sessions_max =
        privileges::sessions(config.limits.sessions_max, plan::connections(config, threads(config)), files)?;
    let identity = Identity::of(loaded)?;
    // Only root may be able to read the keys, so this comes before dropping privileges.
    let doubts = config::examine(loaded, SystemTime::now())?;
    let acceptor = plan::acceptor(config)?.map(Arc::new);
    let inherited = Inherited::from_environment()?;
    let mut doors = Doorman { before: Vec::new(), inherited, workers: threads(config) }.open(config)?;
    make_places(config, &identity)?;
    let log = Arc::new(Log::open(&config.log)?);
    identity.assume()?;
    if identity == Identity::UnaskedRoot {
        log.event(Level::Warning, "running as root; set `user` to drop privileges after binding", &[]);
    }
    warn(config, sessions_max, &log);
    doubts.iter().for_each(|doubt| log.event(Level::Warning, doubt, &[]));
    let secret = logins::secret(config)?;
    workers::let_log_in(&mut doors, config, secret);
    let house = House::open(config, secret, log.clone())?;
    let (orders, mut ordered) = unbounded_channel();
    let mut running = house.live_in(loaded, Entry { doors, acceptor, files, sessions_max, orders })?;
    works.store(true, Relaxed);
    announce(loaded, &running.workers.shift().doors, &log);
    tell(&manager, State::Ready, &log);
    // This runs while the thread waits for a command.
    runtime.spawn(certificates::keep_fresh(running.watched.clone(), log.clone()));
    loop {
        match runtime.block_on(next_word(&mut heard, &mut ordered)) {
            Word::Stop => break,
            Word::OpenLog => reopen(&log),
            Word::Reload(order) => {
                if order.is_none() {
                    reopen(&log);
                }
                tell(&manager, State::reloading(), &log);
                let answer = running.reload();
                tell(&manager, State::Ready, &log);
                order.into_iter().for_each(|order| order.answer(answer.clone()));
            }
        }
    }
    // Callers that wait for a reload learn that there is no answer.
    drop(ordered);
    log.event(Level::Info, "stopping", &[]);
    tell(&manager, State::Stopping, &log);
    stop(running, &runtime, &log);
    log.event(Level::Info, "stopped", &[]);
    log.close();
    Ok(())
}

/// Stops everything, from the listeners to the spool.
fn stop(running: Running, runtime: &Runtime, log: &Log) {
    let Running { workers, flow, clerks, counter, emptier, gauges, .. } = running;
    let spool = workers.shift().desk.spool.clone();
    workers.close();
    let all_gone = runtime.block_on(async { tokio::time::timeout(STOP_TIME_MAX, workers.all_gone()).await.is_ok() });
    if !all_gone {
        log.event(Level::Warning, "closed sessions that took too long to finish", &[]);
    }
    workers.end();
    emptier.stop();
    if !flow.stop() {
        log.event(Level::Warning, "cut off deliveries that took too long to finish", &[]);
    }
    clerks.stop();
    drop((counter, gauges));
    close(spool, log);
}

/// A server with half of its threads could accept mail and not deliver it, or worse. An aborted one
/// is restarted and has lost nothing.
fn abort_on_panic() {
    std::panic::set_hook(Box::new(|panic| {
        let thread = thread::current();
        say(format_args!("mailrace: thread {}: {panic}", thread.name().unwrap_or("without a name")));
        std::process::abort();
    }));
}

/// Reports the state to the service manager; a failure is only logged.
fn tell(manager: &Manager, state: State, log: &Log) {
    if let Err(error) = manager.tell(state) {
        log.event(Level::Warning, "cannot notify the service manager", &[("error", &error)]);
    }
}

/// Creates folders and files that may need root, for the user of the server.
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

/// The files of LDAP replicas.
fn copies(config: &Config) -> impl Iterator<Item = &Path> {
    config.tables.iter().filter_map(|table| match &table.kind {
        TableKind::Ldap(ldap) => ldap.replica.as_ref().map(|replica| replica.file.as_path()),
        _ => None,
    })
}

/// Logs warnings about settings that are valid, but that the operator should know of.
pub fn warn(config: &Config, sessions_max: usize, log: &Log) {
    let allowed = config.limits.sessions_max;
    if sessions_max < allowed {
        let text = "limits.sessions exceeds what the limit on open files (RLIMIT_NOFILE) allows";
        log.event(Level::Warning, text, &[("limit", &allowed), ("sessions", &sessions_max)]);
    }
    check::cautions(config).iter().for_each(|caution| log.event(Level::Warning, caution, &[]));
}

/// All users of the spool have ended, unless a disk hangs.
fn close(spool: Arc<Spool>, log: &Log) {
    match Arc::into_inner(spool) {
        Some(spool) => spool.close(),
        None => log.event(Level::Error, "the spool is still in use and was not closed", &[]),
    }
}

/// The spool with its queue, and the threads of the flow.
struct House {
    spool: Arc<Spool>,
    tables: Tables,
    queues: queue::Config,
    directory: Arc<Directory>,
    logins: Option<Logins>,
    rooms: Option<Arc<Rooms>>,
    quota_counter: Option<quota::Counter>,
    flow: Flow,
    mailbag: Mailbag,
    attempts: Arc<Attempts>,
    log: Arc<Log>,
}

/// What was opened before privileges were dropped.
struct Entry {
    doors: Vec<Door>,
    acceptor: Option<Arc<Acceptor>>,
    files: u64,
    sessions_max: usize,
    orders: Orders,
}

impl House {
    fn open(config: &Config, secret: Option<Secret>, log: Arc<Log>) -> anyhow::Result<House> {
        let (mailbag, notes): (Mailbag, Notes) = flow::mailbag();
        let numbered = plan::queues(config);
        let mut queues = Queues::new(numbered.clone(), random());
        let tables = Tables::open(config, tables::tell(log.clone()))?;
        let logins = logins::open(config, &tables, secret, None)?;
        let directory = Arc::new(plan::directory(config, &tables));
        let quota_counter = plan::counter(config, None).context("starting")?;
        let course = reload::course(config, &tables, directory.clone(), &numbered, quota_counter.as_ref())?;
        let rooms = Rooms::of(&course.transports, &directory, desk::troubles(log.clone())).map(Arc::new);
        let mut admit = |message| flow::admit(&mut queues, &course.rules, &mailbag, message);
        let spool = Arc::new(open_spool(config, flow::hear(mailbag.clone(), log.clone()), &mut admit)?);
        log.event(Level::Info, "the spool is open", &[("messages", &queues.messages()), ("recipients", &queues.len())]);
        let attempts = Arc::new(Attempts::default());
        let parts = Parts {
            spool: spool.clone(),
            queues,
            course,
            carriers: threads(config),
            attempts: attempts.clone(),
            log: log.clone(),
        };
        let flow = Flow::start(parts, mailbag.clone(), notes)?;
        let queues = numbered;
        Ok(House { spool, tables, queues, directory, logins, rooms, quota_counter, flow, mailbag, attempts, log })
    }

    /// Starts the listeners and everything around them.
    fn live_in(self, loaded: &Loaded, entry: Entry) -> anyhow::Result<Running> {
        let House { spool, tables, queues, directory, logins, rooms, quota_counter, flow, mailbag, attempts, log } =
            self;
        let Entry { doors, acceptor, files, sessions_max, orders } = entry;
        let config = &loaded.config;
        let monitor = monitor(config, mailbag.clone(), log.clone());
        let lists = Lists::open(config, &tables::tell(log.clone()))?;
        let access = plan::access(config, &tables, &lists);
        let policy = Policy {
            directory: directory.clone(),
            postmaster: plan::postmaster(config)?,
            access,
            logins,
            room: rooms.clone().map(|rooms| rooms as Arc<dyn Room>),
            sessions_max,
        };
        let desk = Arc::new(desk::first(config, policy, spool, monitor.watch(), log.clone()));
        let gauges = monitor.start(config.load.every)?;
        let guide = Guide::new(config, &tables, directory, &queues, rooms)?;
        let counter = admin::Counter { mailbag, log: log.clone(), attempts, orders, stopping: Arc::default() };
        let clerk = Clerk::new(config, counter.clone(), guide, desk.clone(), tables.clone(), lists.clone());
        let clerks = admin::Server::start(config, clerk)?;
        let folder = drop_folder(config, &desk, &log, runtime()?);
        let emptier = Emptier::start(folder).context("starting")?;
        let watched = Watched::new(Fresh { acceptor: acceptor.clone(), every: config.tls.reload_every });
        let workers = Workers::start(threads(config), Shift { desk, acceptor, doors }, &log)?;
        let (loaded, threads) = (loaded.clone(), threads(config));
        Ok(Running {
            loaded,
            files,
            tables,
            lists,
            queues,
            quota_counter,
            workers,
            threads,
            flow,
            clerks,
            counter,
            emptier,
            gauges,
            watched,
            log,
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

/// The settings of the drop folder. Lookups run on this runtime.
pub fn drop_folder(config: &Config, desk: &Arc<Desk>, log: &Arc<Log>, runtime: Runtime) -> DropFolder {
    let desk = DropDesk {
        desk: desk.clone(),
        runtime,
        spill_above: config.limits.spill_above,
        received_max: config.limits.received_max,
        nul: config.smtp.nul,
        double_bounces_to: config.bounce.double_bounces_to.clone(),
        log: log.clone(),
    };
    DropFolder {
        folder: maildrop::folder(&config.data_dir),
        rejected: maildrop::rejected(&config.data_dir),
        message_octets_max: config.limits.message_octets_max,
        desk,
        log: log.clone(),
    }
}

/// Watches the load and the disks of the lanes and of `data_dir`, and tells the scheduler and the
/// log when a limit enters or leaves force.
fn monitor(config: &Config, mailbag: Mailbag, log: Arc<Log>) -> Monitor {
    let disks = plan::disks(config);
    Monitor::new(Machine::open(&disks), plan::load_limits(config), move |before, after| {
        mailbag.set_delivery(after.measures().delivery);
        for reason in after.entered(before) {
            log.event(Level::Warning, "a load limit is in force", &[("reason", &reason)]);
        }
        for reason in after.left(before) {
            log.event(Level::Info, "a load limit is no longer in force", &[("reason", &reason)]);
        }
    })
}

/// Threads that run sessions; as many deliver to other hosts.
fn threads(config: &Config) -> usize {
    match config.threads {
        // The spool, the scheduler and the network need processors too.
        0 => thread::available_parallelism().map_or(1, |count| count.get().div_ceil(2)),
        count => count,
    }
}

/// The signals that the server handles.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    user: Signal,
}

/// A command to the main thread.
enum Word {
    Stop,
    /// With the caller that waits for the answer, if any.
    Reload(Option<Wish>),
    OpenLog,
}

impl Signals {
    /// From here on these signals do not end the process by themselves.
    fn hear() -> io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            user: signal(SignalKind::user_defined1())?,
        })
    }

    /// Waits for a signal. SIGHUP also reopens the log, as log rotation expects.
    async fn next(&mut self) -> Word {
        tokio::select! {
            _ = self.terminate.recv() => Word::Stop,
            _ = self.interrupt.recv() => Word::Stop,
            _ = self.hangup.recv() => Word::Reload(None),
            _ = self.user.recv() => Word::OpenLog,
        }
    }

    /// Forwards signals, forever. A second stop ends the process at once, and so does one during
    /// the start, when nothing has to be finished.
    async fn hand_on(mut self, works: &AtomicBool, words: &UnboundedSender<Word>) {
        let mut is_stopping = false;
        loop {
            let word = self.next().await;
            if matches!(word, Word::Stop) {
                if !works.load(Relaxed) {
                    say("mailrace: stopped during the start");
                    std::process::exit(0);
                }
                if is_stopping {
                    say("mailrace: stopped by a second signal");
                    std::process::exit(i32::from(exit::SOFTWARE));
                }
                is_stopping = true;
            }
            // Only fails at shutdown.
            drop(words.send(word));
        }
    }
}

/// Handles signals on a thread and a runtime of their own: the main ones may be busy or hang.
fn hear_signals(works: Arc<AtomicBool>) -> io::Result<UnboundedReceiver<Word>> {
    let runtime = runtime()?;
    let signals = runtime.block_on(async { Signals::hear() })?;
    let (words, heard) = unbounded_channel();
    let hear = move || runtime.block_on(signals.hand_on(&works, &words));
    thread::Builder::new().name("signals".into()).spawn(hear)?;
    Ok(heard)
}

/// Waits for a signal, or for a reload request on the control socket.
async fn next_word(heard: &mut UnboundedReceiver<Word>, ordered: &mut UnboundedReceiver<Wish>) -> Word {
    tokio::select! {
        Some(word) = heard.recv() => word,
        Some(order) = ordered.recv() => Word::Reload(Some(order)),
        // Never happens: the signal thread does not end, and the control socket holds a sender.
        else => Word::Stop,
    }
}

fn reopen(log: &Log) {
    match log.reopen() {
        Ok(()) => log.event(Level::Info, "reopened the log", &[]),
        Err(error) => log.event(Level::Error, "cannot reopen the log; the old file stays in use", &[("error", &error)]),
    }
}

/// Prints the listeners to standard error, and without a configuration how to send a first message.
fn announce(loaded: &Loaded, doors: &[Door], log: &Log) {
    log.event(Level::Info, "started", &[("version", &env!("CARGO_PKG_VERSION"))]);
    doors.iter().for_each(Door::announce);
    if loaded.config.spool.durability != Durability::Commit {
        let text = "durability is relaxed: a power loss may lose mail accepted since the last sync";
        log.event(Level::Warning, text, &[]);
    }
    if let (Source::BuiltIn, Some(door)) = (&loaded.source, doors.first()) {
        let folder = match loaded.config.transport(config::Transport::MAILDIR).map(|transport| &transport.kind) {
            Some(TransportKind::Maildir(maildir)) => maildir.path.folder("localhost", "you"),
            _ => PathBuf::default(),
        };
        say(first_message(door.address(), &folder.display().to_string()));
    }
}

/// The commands for a first message.
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

/// A random number that outsiders cannot guess.
pub fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}
