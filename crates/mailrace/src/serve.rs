//! `mailrace serve`: opens everything in an order in which failures lose nothing, drops privileges
//! after binding, runs until SIGTERM or SIGINT, and closes everything in reverse order. A second
//! signal, or one during the start, ends the process at once. SIGKILL is safe at any time. SIGUSR1
//! reopens the log file; SIGHUP does too, and reloads the configuration ([`crate::reload`]).
//!
//! With `--drain-only` it takes nothing in, and also ends when nothing but held mail is left.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use config::{self, Config, ConfigSource, LoadedConfig, TableKind, TransportKind};
use control::api::Api;
use control::redirects::REDIRECT_FILE;
use control::tokens::TokenFile;
use control::{
    ClusterOperator, ControlHandler, ControlParts, ControlServer, DrainSender, LiveMonitor, RedirectStore,
    ReloadSender, SharedControlState,
};
use delivery::pipe::LauncherSocket;
use dispatch::{OutcomeCounters, SchedulerHandle};
use intake::drop_folder::DropFolderScanner;
use intake::{CommitNotifier, IntakeContext};
use load::{LoadMonitor, MachineGaugeReader};
use mail::{LogLevel, ServerLog, Timestamp};
use net::{BoundListener, InheritedSockets, ListenerSocket, SessionWorkers, session_runtime};
use sender_auth::reports::ReportCollector;
use spool::{Durability, Spool};
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::certificates::{self, PreparedCertificates, RunningCertificates};
use crate::cluster::RunningCluster;
use crate::exit::ExitError;
use crate::listeners::{self, SessionParts};
use crate::logins::{self, ServerSecret};
use crate::mail_flow::{FlowInputs, StartedFlow, start_flow};
use crate::pipe_launcher::{self, LauncherProcess};
use crate::privileges::{self, PrivilegesError, ProcessUser};
use crate::reload::RunningServer;
use crate::report_sender::{ReportSenderParts, RunningReports};
use crate::server_parts::{self, ProcessLimits, ServerParts};
use crate::service::{ServiceManager, ServiceState};
use crate::signals::{ServerCommand, next_command, start_signal_thread};
use crate::signing::SigningParts;
use crate::stderr::print_stderr;
use crate::sys::ProgramPages;
use crate::tables::{self, OpenTables};
use crate::{check, exit, from_config, intake_context};
use server_log::{Log, LogTarget};

/// At shutdown, sessions in the middle of a message may take this long to finish it.
const STOP_TIME_MAX: Duration = Duration::from_secs(30);

/// Runs the server until it is told to stop, or with `drain_only` until its queue is drained.
///
/// # Errors
///
/// The server cannot be started; or with `drain_only`, mail is left in the queue.
pub fn run(loaded: &LoadedConfig, drain_only: bool) -> anyhow::Result<()> {
    abort_on_panic();
    let pages = ProgramPages::find();
    let config = &loaded.config;
    let manager = ServiceManager::from_environment();
    let is_serving = Arc::new(AtomicBool::new(false));
    let (command_sender, mut commands) = unbounded_channel();
    start_signal_thread(is_serving.clone(), command_sender.clone()).context("starting")?;
    let runtime = session_runtime().context("starting")?;
    let files = privileges::set_umask_and_rlimit()?;
    let limits = ProcessLimits { files, threads: threads(config) };
    let sessions = server_parts::session_limits(config, limits)?;
    let identity = ProcessUser::resolve(loaded)?;
    // Only root may be able to read the keys, so this comes before dropping privileges.
    let tls = PreparedCertificates::load(loaded)?;
    let sockets = open_sockets(config, limits, drain_only)?;
    create_folders(config, &identity)?;
    let log = Arc::new(Log::open(&config.log)?);
    let (launcher_process, launcher) = pipe_launcher::start(config, &identity)?.unzip();
    identity.drop_privileges()?;
    if identity == ProcessUser::ImplicitRoot {
        log.event(LogLevel::Warning, "running as root; set `user` to drop privileges after binding", &[]);
    }
    server_parts::log_config_warnings(config, sessions, &log);
    let tls = tls.start(config, &log)?;
    log_doubts(&config::check_secret_files(loaded)?, &log);
    let secret = logins::load_or_create_secret(config)?;
    let (reload_sender, mut reload_requests) = unbounded_channel();
    let stop_server = stop_order(command_sender.clone());
    let orders = OperatorOrders {
        reload: reload_sender,
        drain: drain_order(command_sender.clone(), drain_only),
        redirects: open_redirects(config)?,
    };
    let inputs = StartInputs { sockets, tls, secret, limits, launcher, orders, stop_server, drain_only };
    let mut running = start(loaded, inputs, log.clone())?;
    is_serving.store(true, Relaxed);
    running.certificates.obtain(config, drain_only);
    announce(loaded, &running.workers.listeners(), &log);
    notify_manager(&manager, ServiceState::Ready, &log);
    if drain_only {
        start_drain(&running, command_sender.clone(), &log);
    }
    // This runs while the thread waits for a command.
    runtime.spawn(certificates::watch(running.certificates.watch.clone(), log.clone()));
    loop {
        // The code of the start, or of a reload, is not needed for long.
        pages.release();
        let command = runtime.block_on(next_command(&mut commands, &mut reload_requests));
        if !carry_out(command, &mut running, &runtime, &command_sender, &manager, &log) {
            break;
        }
    }
    // Callers that wait for a reload learn that there is no answer.
    drop(reload_requests);
    log.event(LogLevel::Info, "stopping", &[]);
    notify_manager(&manager, ServiceState::Stopping, &log);
    let left = stop(running, &runtime, &log);
    launcher_process.into_iter().for_each(LauncherProcess::wait);
    log.event(LogLevel::Info, "stopped", &[]);
    log.close();
    match left {
        1.. if drain_only => {
            Err(ExitError { code: exit::MAIL_LEFT, text: format!("messages left in the queue: {left}") }.into())
        }
        _ => Ok(()),
    }
}

/// Carries out a command; false: the server is to stop.
fn carry_out(
    command: ServerCommand,
    running: &mut RunningServer,
    runtime: &Runtime,
    commands: &UnboundedSender<ServerCommand>,
    manager: &ServiceManager,
    log: &Log,
) -> bool {
    match command {
        ServerCommand::Stop => return false,
        ServerCommand::StopDrained { held } => {
            log_drained(held, log);
            return false;
        }
        ServerCommand::StopIdle { left } => {
            let text = "drain finished: nothing else is due before its deadline";
            log.event(LogLevel::Info, text, &[("messages", &left)]);
            return false;
        }
        ServerCommand::Drain { within } => begin_drain(running, runtime, within, commands, log),
        ServerCommand::OpenLog => reopen(log),
        ServerCommand::Reload(request) => {
            if request.is_none() {
                reopen(log);
            }
            notify_manager(manager, ServiceState::reloading(), log);
            let answer = running.reload();
            notify_manager(manager, ServiceState::Ready, log);
            request.into_iter().for_each(|order| order.reply(answer.clone()));
        }
    }
    true
}

fn log_doubts(doubts: &[String], log: &Log) {
    doubts.iter().for_each(|doubt| log.event(LogLevel::Warning, doubt, &[]));
}

/// Orders the server to stop.
fn stop_order(commands: UnboundedSender<ServerCommand>) -> Box<dyn Fn() + Send + Sync> {
    // Only fails at shutdown.
    Box::new(move || drop(commands.send(ServerCommand::Stop)))
}

/// Orders the server to drain its queue and to stop; once.
fn drain_order(commands: UnboundedSender<ServerCommand>, drains_already: bool) -> DrainSender {
    let is_ordered = AtomicBool::new(drains_already);
    Arc::new(move |within| {
        let is_first = !is_ordered.swap(true, Relaxed);
        if is_first {
            // Only fails at shutdown.
            drop(commands.send(ServerCommand::Drain { within }));
        }
        is_first
    })
}

/// Refuses all clients but those of the API, and stops the server when nothing else can be delivered
/// within this time.
fn begin_drain(
    running: &RunningServer,
    runtime: &Runtime,
    within: Duration,
    commands: &UnboundedSender<ServerCommand>,
    log: &Log,
) {
    running.intake.load.refuse_all_clients();
    let messages = running.intake.spool.stats().messages_live;
    let text = "draining the queue: the server accepts no mail, and stops when nothing else can be delivered in time";
    log.event(LogLevel::Info, text, &[("messages", &messages), ("seconds", &within.as_secs())]);
    let (idle, over) = (commands.clone(), commands.clone());
    let until = Timestamp::from(SystemTime::now()) + within;
    // Both only fail at shutdown.
    running.flow.notify_when_idle(until, move |left| drop(idle.send(ServerCommand::StopIdle { left })));
    runtime.spawn(async move {
        tokio::time::sleep(within).await;
        drop(over.send(ServerCommand::Stop));
    });
}

/// The sockets of all listeners. A server that only drains its queue has none, and closes those that
/// it has inherited: nobody is to wait on them for a reply.
fn open_sockets(config: &Config, limits: ProcessLimits, drain_only: bool) -> anyhow::Result<Vec<Arc<ListenerSocket>>> {
    let inherited = InheritedSockets::from_environment()?;
    match drain_only {
        true => Ok(Vec::new()),
        false => listeners::open_sockets(config, &[], inherited, limits.threads),
    }
}

/// Logs that nothing is accepted, and sends a command when only held messages are left.
fn start_drain(running: &RunningServer, commands: UnboundedSender<ServerCommand>, log: &Log) {
    let messages = running.intake.spool.stats().messages_live;
    let text = "draining the queue: the server accepts no mail, and ends when the queue is empty";
    log.event(LogLevel::Info, text, &[("messages", &messages)]);
    // Only fails at shutdown.
    running.flow.notify_when_drained(move |held| drop(commands.send(ServerCommand::StopDrained { held })));
}

/// Logs why draining ends; `held` messages are left.
fn log_drained(held: usize, log: &Log) {
    match held {
        0 => log.event(LogLevel::Info, "the queue is empty", &[]),
        _ => log.event(LogLevel::Warning, "only held messages are left in the queue", &[("messages", &held)]),
    }
}

/// Stops everything, from the listeners to the spool. Returns the number of messages in the spool.
fn stop(running: RunningServer, runtime: &Runtime, log: &Log) -> u64 {
    let RunningServer {
        intake,
        reports,
        workers,
        flow,
        control_server,
        control_context,
        api,
        cluster,
        drop_scanner,
        gauges,
        certificates,
        ..
    } = running;
    certificates.renewer.stop();
    let spool = intake.spool.clone();
    drop(intake);
    // Sessions of the API are waited for, and these wait for their handlers.
    control_server.stop_handlers();
    if !runtime.block_on(workers.drain(STOP_TIME_MAX)) {
        log.event(LogLevel::Warning, "closed sessions that took too long to finish", &[]);
    }
    workers.abort();
    drop_scanner.into_iter().for_each(DropFolderScanner::stop);
    reports.into_iter().for_each(RunningReports::stop);
    let are_deliveries_over = flow.stop();
    if !are_deliveries_over {
        log.event(LogLevel::Warning, "cut off deliveries that took too long to finish", &[]);
    }
    control_server.stop();
    drop((control_context, api, gauges));
    let left = spool.stats().messages_live;
    close(spool, log);
    // Others may have its lanes from now on.
    cluster.iter().for_each(|cluster| cluster.stop(are_deliveries_over));
    left
}

/// A server with half of its threads could accept mail and not deliver it, or worse. An aborted one
/// is restarted and has lost nothing.
fn abort_on_panic() {
    std::panic::set_hook(Box::new(|panic| {
        let thread = thread::current();
        print_stderr(format_args!("mailrace: thread {}: {panic}", thread.name().unwrap_or("without a name")));
        std::process::abort();
    }));
}

/// Reports the state to the service manager; a failure is only logged.
fn notify_manager(manager: &ServiceManager, state: ServiceState, log: &Log) {
    if let Err(error) = manager.notify(state) {
        log.event(LogLevel::Warning, "cannot notify the service manager", &[("error", &error)]);
    }
}

/// Creates folders and files that may need root, for the user of the server.
fn create_folders(config: &Config, identity: &ProcessUser) -> Result<(), PrivilegesError> {
    let log = match &config.log.to {
        LogTarget::File(path) => Some(path.as_path()),
        LogTarget::Stderr => None,
    };
    identity.make_drop_folder(&config.data_dir)?;
    let files = log.into_iter().chain([config.admin.socket.as_path()]).chain(replica_files(config));
    let acme = config.acme.as_ref().map(|acme| &acme.folder);
    let folders = [&config.data_dir].into_iter().chain(&config.spool.lanes).chain(acme).map(PathBuf::as_path);
    for folder in folders.chain(files.filter_map(Path::parent)) {
        identity.make_folder(folder)?;
    }
    log.map_or(Ok(()), |log| identity.make_file(log))
}

/// The files of LDAP replicas.
fn replica_files(config: &Config) -> impl Iterator<Item = &Path> {
    config.tables.iter().filter_map(|table| match &table.kind {
        TableKind::Ldap(ldap) => ldap.replica.as_ref().map(|replica| replica.file.as_path()),
        _ => None,
    })
}

/// All users of the spool have ended, unless a disk hangs.
fn close(spool: Arc<Spool>, log: &Log) {
    match Arc::into_inner(spool) {
        Some(spool) => spool.close(),
        None => log.event(LogLevel::Error, "the spool is still in use and was not closed", &[]),
    }
}

/// What is there before the first part is built.
struct StartInputs {
    sockets: Vec<Arc<ListenerSocket>>,
    tls: RunningCertificates,
    secret: Option<ServerSecret>,
    limits: ProcessLimits,
    launcher: Option<LauncherSocket>,
    orders: OperatorOrders,
    /// Stops the server in an orderly way.
    stop_server: Box<dyn Fn() + Send + Sync>,
    drain_only: bool,
}

/// Where orders of operators to the process go.
struct OperatorOrders {
    reload: ReloadSender,
    drain: DrainSender,
    redirects: Arc<RedirectStore>,
}

/// Starts the control socket, and what answers the same requests by HTTP and of other nodes.
fn start_control_server(
    config: &Config,
    parts: ControlParts,
    context: &SharedControlState,
    cluster: Option<&RunningCluster>,
) -> anyhow::Result<(ControlServer, Api)> {
    let socket = &config.admin.socket;
    let intake = parts.intake.clone();
    let server = ControlServer::start(socket, ControlHandler::new(parts, context.clone()))
        .with_context(|| format!("the control socket {}", socket.display()))?;
    if let Some(cluster) = cluster {
        cluster.serve_others(server.handler());
        cluster.share_limits(&intake);
    }
    let api = Api::new(server.handler(), TokenFile::in_data_dir(&config.data_dir));
    Ok((server, api))
}

/// Where the operator has redirected mail to.
fn open_redirects(config: &Config) -> anyhow::Result<Arc<RedirectStore>> {
    let store = RedirectStore::open(&config.data_dir);
    let path = config.data_dir.join(REDIRECT_FILE);
    store.map(Arc::new).with_context(|| format!("reading {}: correct or remove it", path.display()))
}

/// Opens the spool and starts everything, the listeners last.
fn start(loaded: &LoadedConfig, inputs: StartInputs, log: Arc<Log>) -> anyhow::Result<RunningServer> {
    let StartInputs { sockets, tls, secret, limits, launcher, orders, stop_server, drain_only } = inputs;
    let config = &loaded.config;
    let tables = OpenTables::open(config, tables::table_event_logger(log.clone()))?;
    // A server that drains its queue makes no mail of its own.
    let collector = if drain_only { None } else { from_config::report_collector(config, &log)? };
    let ServerParts {
        tables,
        dnsbl_lists,
        queues,
        access_rules,
        quota_counter,
        sts_policies,
        senders,
        dispatcher,
        intake,
        retrieval,
        explainer,
        chosen,
    } = ServerParts::build(config, tables, secret, limits, None, collector.as_ref(), &log)?;
    let (reports, redirects) = (collector.as_ref(), orders.redirects.redirects());
    let inputs = FlowInputs { limits, launcher, reports, redirects, drain_only, stop_server };
    let StartedFlow { spool, flow, scheduler, outcome_counters, cluster } =
        start_flow(config, dispatcher, &queues, inputs, &log)?;
    let monitor = monitor(config, scheduler.clone(), log.clone());
    let intake = Arc::new(intake_context::create(config, intake, spool, monitor.handle(), log.clone()));
    let gauges = monitor.start(config.load.every)?;
    let control_context = control_context((scheduler, outcome_counters), orders, &cluster, &log);
    let rules = access_rules.clone();
    let control_parts =
        from_config::control_parts(loaded, explainer, intake.clone(), &retrieval, rules, &tables, &dnsbl_lists);
    let signing = &senders.signing;
    let reports = collector.map(|collector| start_reports(config, collector, &intake, signing, &log)).transpose()?;
    let parts = server_parts::with_counters(control_parts, chosen, &senders, reports.as_ref(), tls.control_parts());
    let (control_server, api) = start_control_server(config, parts, &control_context, cluster.as_deref())?;
    let drop_scanner = (!drain_only).then(|| start_drop_scanner(config, &intake, signing, &log)).transpose()?;
    let commit_notifiers: Box<[CommitNotifier]> = (0..limits.threads).map(|_| CommitNotifier::default()).collect();
    let parts = SessionParts {
        intake: &intake,
        retrieval: &retrieval,
        api: &api,
        certificates: &tls,
        secret,
        commit_notifiers: &commit_notifiers,
    };
    let workers = start_workers(&parts, config, sockets, &log)?;
    Ok(RunningServer {
        drain_only,
        loaded: loaded.clone(),
        limits,
        tables,
        dnsbl_lists,
        queues,
        access_rules,
        quota_counter,
        sts_policies,
        senders,
        reports,
        intake,
        retrieval,
        commit_notifiers,
        workers,
        flow,
        control_server,
        control_context,
        api,
        cluster,
        drop_scanner,
        gauges,
        certificates: tls,
        log,
    })
}

/// Starts the threads that run sessions, with the listeners of a configuration.
fn start_workers(
    parts: &SessionParts<'_>,
    config: &Config,
    sockets: Vec<Arc<ListenerSocket>>,
    log: &Arc<Log>,
) -> io::Result<SessionWorkers> {
    let notifier_tasks = parts.commit_notifiers.iter().map(|notifier| notifier.clone().run());
    SessionWorkers::start(parts.listeners(config, sockets), notifier_tasks, log)
}

/// Sends reports to the owners of other domains.
fn start_reports(
    config: &Config,
    collector: ReportCollector,
    intake: &Arc<IntakeContext>,
    signing: &SigningParts,
    log: &Arc<Log>,
) -> anyhow::Result<RunningReports> {
    let context = from_config::report_context(config, intake.directory.clone(), signing, log)?;
    let parts = ReportSenderParts {
        collector,
        spool: intake.spool.clone(),
        settings: config.reports.clone(),
        log: log.clone(),
    };
    parts.start(context).context("starting the thread that sends reports")
}

/// Takes the mail of local programs.
fn start_drop_scanner(
    config: &Config,
    intake: &Arc<IntakeContext>,
    signing: &SigningParts,
    log: &Arc<Log>,
) -> anyhow::Result<DropFolderScanner> {
    let folder = server_parts::drop_folder_config(config, intake, signing, log, session_runtime()?);
    DropFolderScanner::start(folder).context("starting")
}

/// What handlers of operators' requests share.
fn control_context(
    (scheduler, outcome_counters): (SchedulerHandle, Arc<OutcomeCounters>),
    orders: OperatorOrders,
    cluster: &Option<Arc<RunningCluster>>,
    log: &Arc<Log>,
) -> SharedControlState {
    let cluster = cluster.clone().map(|cluster| cluster as Arc<dyn ClusterOperator>);
    let live = Arc::<LiveMonitor>::default();
    log.set_observer(live.clone());
    let log = log.clone();
    SharedControlState {
        scheduler,
        log,
        outcome_counters,
        reload_sender: orders.reload,
        redirects: orders.redirects,
        config_checker: check::check_text,
        drain_sender: orders.drain,
        cluster,
        stopping: Arc::default(),
        live,
    }
}

/// Watches the load and the disks of the lanes and of `data_dir`, and tells the scheduler and the
/// log when a limit enters or leaves force.
fn monitor(config: &Config, scheduler: SchedulerHandle, log: Arc<Log>) -> LoadMonitor {
    let disks = from_config::monitored_folders(config);
    LoadMonitor::new(MachineGaugeReader::open(&disks), config.load.limits.clone(), move |before, after| {
        scheduler.set_allowed_deliveries(after.restrictions().delivery);
        for reason in after.activated_since(before) {
            log.event(LogLevel::Warning, "a load limit is in force", &[("reason", &reason)]);
        }
        for reason in after.cleared_since(before) {
            log.event(LogLevel::Info, "a load limit is no longer in force", &[("reason", &reason)]);
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

fn reopen(log: &Log) {
    match log.reopen() {
        Ok(()) => log.event(LogLevel::Info, "reopened the log", &[]),
        Err(error) => {
            log.event(LogLevel::Error, "cannot reopen the log; the old file stays in use", &[("error", &error)])
        }
    }
}

/// Prints the listeners to standard error, and without a configuration how to send a first message.
fn announce(loaded: &LoadedConfig, listeners: &[BoundListener], log: &Log) {
    log.event(LogLevel::Info, "started", &[("version", &env!("CARGO_PKG_VERSION"))]);
    listeners.iter().for_each(listeners::announce);
    if loaded.config.spool.durability != Durability::Commit {
        let text = "durability is relaxed: a power loss may lose mail accepted since the last sync";
        log.event(LogLevel::Warning, text, &[]);
    }
    if let (ConfigSource::BuiltIn, Some(door)) = (&loaded.source, listeners.first()) {
        let folder = match loaded.config.transport(config::TransportSettings::MAILDIR).map(|transport| &transport.kind)
        {
            Some(TransportKind::Maildir(maildir)) => maildir.path.expand("localhost", "you"),
            _ => PathBuf::default(),
        };
        print_stderr(first_message(door.socket().address(), &folder.display().to_string()));
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
