//! The path of a message after its 250. One thread schedules; other threads deliver to local
//! mailboxes and to other hosts. The spool records each outcome before the queue learns of it.
//!
//! ```text
//! spool --Committed--> scheduler --attempt--> local deliverer > delivery::local  > mailbox
//!   ^                   |  ^  ^ \             SMTP deliverer  > delivery::remote > next hop
//!   |                   |  |  |  \            pipe deliverer  > delivery::pipe   > launcher > program
//!   |  [DSN sender] <---'  |  |  `--query---> route resolver  > route
//!   '---- submit ----------'  |                   |
//!          Recorded           '------ Routed -----'     deliverers answer with Ended
//! ```
//!
//! The parts send [`SchedulerMsg`]s to the scheduler, which alone owns the queues. Work that may
//! wait for a disk or a directory has threads of its own: the classifier, for messages whose
//! envelope does not determine the queue, and the DSN sender, for attempts that may need a notice.

mod classifier;
mod classifier_worker;
mod delivery_route;
mod drain_watch;
mod dsn_sender;
mod lane_fence;
mod local_deliverer;
mod message_cache;
mod message_route;
mod next_hop_sharing;
mod outcome_counters;
mod outcome_handler;
mod outcome_writer;
mod pipe_deliverer;
mod queue_rules;
mod reclassification;
mod redirects;
mod route_resolver;
mod scheduler;
mod smtp_deliverer;
mod transport_entry;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use delivery::DeliveryResult;
use delivery::bounce::SubmittedNotice;
use delivery::pipe::LauncherSocket;
use delivery::remote::NextHop;
use load::AllowedDeliveries;
use lookup::Table;
use lookup::directory::RecipientDirectory;
use mail::{MailEvent, Timestamp, TlsProof, TlsSessionLog};
use parking_lot::Mutex;
use queue::{ContactResult, DestinationId, GrantedDepartures, NextHopRoute, RecipientVerdict};
use spool::{CommitError, LiveMessage, ReadError, Spool};

use mail::LogLevel;
use mail::ServerLog;

pub use classifier::ClassifierRules;
use classifier::{ClassifiedMessage, Classifier};
use classifier_worker::ClassifierWorker;
pub use delivery_route::DeliveryRoute;
use drain_watch::DrainWatch;
use dsn_sender::DsnConfig;
pub use dsn_sender::NoticeConfig;
use lane_fence::AttemptFence;
pub use lane_fence::LaneFence;
use local_deliverer::LocalDeliverer;
pub use local_deliverer::LocalTransport;
use message_cache::{CachedMessage, MessageCache};
pub use message_route::{MessageRoute, MessageRoutes, RouteChoice, RoutedRecipient, TransportTraits};
pub use next_hop_sharing::NextHopSharing;
pub use outcome_counters::{OutcomeCounters, TransportCounts};
use outcome_handler::OutcomeHandler;
use outcome_writer::OutcomeWriter;
use pipe_deliverer::PipeDeliverer;
pub use queue_rules::{HeaderRule, InvalidQueueRule, SenderRule};
pub use redirects::{RedirectSource, RedirectTable, Redirects};
use route_resolver::RouterFactory;
pub use route_resolver::{NextHopOverride, TransportConfig, TransportMethod, Transports};
use scheduler::{Scheduler, SchedulerWorkers};
use smtp_deliverer::SmtpDeliverers;

/// The queues; each destination carries its route.
pub type Queues = queue::Queues<Arc<DeliveryRoute>>;
type Attempt = queue::Attempt<Arc<DeliveryRoute>>;

/// Blocking threads of each SMTP delivery thread. Bodies may need all disk reads that the process
/// allows; a permit without a thread would block other readers. The extra threads read messages, so
/// that these need not wait for bodies.
const BLOCKING_THREADS_MAX: usize = net::DISK_READS_MAX + 8;
/// At shutdown, attempts in progress may take this long to finish.
const STOP_TIME_MAX: Duration = Duration::from_secs(30);

/// A message to the scheduler.
enum SchedulerMsg {
    /// Messages that are now durable in the spool.
    Committed(Vec<LiveMessage>),
    /// A message whose envelope was not enough, classified by these rules.
    Classified(Arc<ClassifierRules>, ClassifiedMessage),
    /// The recipients of this attempt belong elsewhere by these rules; the attempt is void.
    Reclassified(Arc<ClassifierRules>, Attempt, ClassifiedMessage),
    /// The route of a destination, by this edition of the routing.
    Routed(u32, DestinationId, NextHopRoute<Arc<DeliveryRoute>>),
    /// Finished attempts.
    Ended(Vec<EndedAttempt>),
    /// An attempt at this next hop has waited a long time for an answer.
    NextHopSlow(Arc<NextHop>),
    /// The spool's answer to a record of outcomes.
    Recorded(Vec<AttemptOutcome>, Result<(), CommitError>),
    /// Outcomes that cannot be recorded now, and why.
    Unrecorded(Vec<AttemptOutcome>, &'static str),
    /// The message of this attempt is gone or set aside: nothing is recorded.
    MessageGone(Attempt),
    /// The message of this attempt cannot be read now, and why.
    ReadFailed(Attempt, String),
    /// Which deliveries may start, by load.
    SetDelivery(AllowedDeliveries),
    /// Runs on the scheduler's thread, to read or change the queues.
    WithQueues(Box<dyn FnOnce(&mut Queues) + Send>),
    /// Departures to this next hop were granted.
    Granted(Box<str>, GrantedDepartures),
    /// How many attempts may be made to this next hop at a time.
    GrantedSlots(Box<str>, usize),
    /// Another server has found this next hop to be lame.
    LameElsewhere(Box<str>),
    /// Reports when nothing is left to deliver.
    WatchDrain(DrainWatch),
    /// Switches to another configuration.
    Reconfigure(Box<scheduler::SchedulerChange>),
    /// Stops; sent at this time.
    Stop(Timestamp),
}

/// A finished attempt.
struct EndedAttempt {
    attempt: Attempt,
    /// None if it could not be read.
    message: Option<Arc<CachedMessage>>,
    ending: DeliveryResult,
    contact: ContactResult,
    /// The host that answered.
    peer: Option<Box<str>>,
    /// How the connection to it was protected.
    proof: Option<TlsProof>,
}

/// A finished attempt with a verdict for each recipient.
struct AttemptOutcome {
    attempt: Attempt,
    /// None if it has not been read yet.
    message: Option<Arc<CachedMessage>>,
    verdicts: Vec<RecipientVerdict>,
    /// Set if a delay notice is due: when we stop retrying.
    will_retry_until: Option<Timestamp>,
    /// The host that answered.
    peer: Option<Box<str>>,
    /// How the connection to it was protected.
    proof: Option<TlsProof>,
    /// The notice to the sender.
    submitted_notice: Option<SubmittedNotice>,
    /// Progress of the notice, which may take several tries.
    notice_progress: NoticeProgress,
}

/// The tries to send a notice.
#[derive(Default)]
struct NoticeProgress {
    /// Since when the sender's address cannot be resolved.
    sender_unresolved_since: Option<Instant>,
    /// Whether the notice is sent, once decided.
    is_allowed: Option<bool>,
}

/// A handle to the scheduler.
#[derive(Clone)]
pub struct SchedulerHandle(Sender<SchedulerMsg>);

/// The messages for the scheduler, kept until it starts.
pub struct SchedulerReceiver(Receiver<SchedulerMsg>);

/// Recipients that are delivered to Maildirs together, unless one message has more. A larger batch shares its syncs better,
/// but each message waits longer.
pub const MAILDIR_BATCH_MAX: usize = 1000;

/// What the flow starts with.
pub struct DispatcherParts {
    /// The messages.
    pub spool: Arc<Spool>,
    /// The queues, with the recovered messages already in them.
    pub queues: Queues,
    /// The first configuration.
    pub config: DispatcherConfig,
    /// Threads that deliver to other hosts.
    pub smtp_threads: usize,
    /// The launcher of programs; None: mail for programs waits.
    pub launcher: Option<LauncherSocket>,
    /// Counters of outcomes.
    pub outcome_counters: Arc<OutcomeCounters>,
    /// Takes how TLS went with the hosts of other domains; None: nobody wants to know.
    pub tls_sessions: Option<Arc<dyn TlsSessionLog>>,
    /// Says whose mail may be delivered; None: all of it.
    pub lane_fence: Option<Arc<dyn LaneFence>>,
    /// Where the operator redirects mail to.
    pub redirects: Redirects,
    /// Other servers that deliver to the same next hops; None: there are none.
    pub next_hop_sharing: Option<Arc<dyn NextHopSharing>>,
    /// The log.
    pub log: Arc<dyn ServerLog>,
}

/// The part of the configuration that can change while mail is being delivered
/// ([`Dispatcher::prepare_change`]).
pub struct DispatcherConfig {
    /// Resolves addresses and names the host of each mailbox.
    pub directory: Arc<RecipientDirectory>,
    /// The tables that the routing rules use.
    pub tables: Vec<Arc<dyn Table>>,
    /// The rules that choose the queue of a message.
    pub rules: Arc<ClassifierRules>,
    /// How mail is routed.
    pub router: route::Config,
    /// All transports.
    pub transports: Transports,
    /// The local (Maildir) transports.
    pub local_transports: Vec<LocalTransport>,
    /// When senders get notices.
    pub notices: NoticeConfig,
    /// The hostname of this server.
    pub hostname: Box<str>,
}

/// What a new configuration changes.
#[derive(Clone, Copy, Debug)]
pub struct DispatcherDifference {
    /// Routes or transport settings differ. Otherwise the router stays, with its cache.
    pub routes: bool,
    /// The limit on notices differs. Otherwise the notices already sent still count.
    pub notice_limit: bool,
}

/// A configuration that is ready to apply; applying it cannot fail.
pub struct PreparedChange(Box<scheduler::SchedulerChange>);

/// The running threads.
pub struct Dispatcher {
    scheduler: SchedulerHandle,
    worker_factory: WorkerFactory,
    /// Every thread holds a sender; the channel closes when the last thread ends.
    ended: Receiver<()>,
}

/// What it takes to start more threads.
struct WorkerFactory {
    messages: MessageCache,
    fence: AttemptFence,
    router_factory: RouterFactory,
    alive: Sender<()>,
    outcome_counters: Arc<OutcomeCounters>,
}

/// The channel to the scheduler. It is created first, because the spool needs the sender before the
/// queues are recovered.
pub fn scheduler_channel() -> (SchedulerHandle, SchedulerReceiver) {
    let (sender, receiver) = mpsc::channel();
    (SchedulerHandle(sender), SchedulerReceiver(receiver))
}

/// Adds a recovered message to the queues, or leaves it to the classifier.
pub fn enqueue_recovered_message(
    queues: &mut Queues,
    rules: &Arc<ClassifierRules>,
    scheduler: &SchedulerHandle,
    message: LiveMessage,
) {
    let (classifier, now) = (Classifier::new(rules.clone()), SystemTime::now().into());
    match classifier.needs_only_envelope(&message) {
        true => classifier.enqueue(queues, &ClassifiedMessage::by_envelope(message), now, now),
        false => scheduler.send(SchedulerMsg::Committed(vec![message])),
    }
}

impl Dispatcher {
    /// Starts the threads.
    pub fn start(
        parts: DispatcherParts,
        scheduler: SchedulerHandle,
        receiver: SchedulerReceiver,
    ) -> io::Result<Dispatcher> {
        let DispatcherParts {
            spool,
            queues,
            config,
            smtp_threads,
            launcher,
            lane_fence,
            next_hop_sharing,
            redirects,
            ..
        } = parts;
        let (attempts, tls_sessions, log) = (parts.outcome_counters, parts.tls_sessions, parts.log);
        let DispatcherConfig { directory, tables, rules, router, transports, local_transports, notices, hostname } =
            config;
        let (alive, ended) = mpsc::channel();
        let messages = MessageCache::new(spool.clone());
        let (route_resolver, router_factory) =
            route_resolver::start(router, &tables, (transports, redirects), scheduler.clone(), alive.clone())?;
        let fence = AttemptFence(lane_fence);
        let worker_factory = WorkerFactory {
            messages: messages.clone(),
            fence: fence.clone(),
            router_factory,
            alive: alive.clone(),
            outcome_counters: attempts.clone(),
        };
        let local_deliverers = worker_factory.start_local_deliverers(local_transports, &hostname, &scheduler)?;
        let outcome_writer = OutcomeWriter { spool, scheduler: scheduler.clone() };
        let delay_notices = notices.delay_notices(queues.config());
        let dsn_sender_parts = dsn_sender::DsnSenderParts {
            outcome_writer: outcome_writer.clone(),
            messages: messages.clone(),
            directory: directory.clone(),
            rules: rules.clone(),
            outcome_counters: attempts.clone(),
        };
        let dsn_sender = dsn_sender_parts.start(notices, hostname.clone(), log.clone(), alive.clone())?;
        let workers = SchedulerWorkers {
            local_deliverers,
            smtp_deliverers: worker_factory.start_smtp_deliverers(smtp_threads, &scheduler, tls_sessions.as_ref())?,
            pipe_deliverer: worker_factory.start_pipe_deliverer(launcher, &scheduler)?,
            route_resolver,
            classifier_worker: ClassifierWorker::start(
                rules.clone(),
                messages,
                directory,
                scheduler.clone(),
                alive.clone(),
            )?,
            outcome_handler: OutcomeHandler::new(outcome_writer, dsn_sender, hostname, attempts, log, tls_sessions),
            delay_notices,
            fence,
            next_hop_sharing,
        };
        let scheduler_loop = Scheduler::new(queues, Classifier::new(rules), workers);
        let run = move || {
            scheduler_loop.run(&receiver.0);
            drop((receiver, alive));
        };
        thread::Builder::new().name("scheduler".into()).spawn(run)?;
        Ok(Dispatcher { scheduler, worker_factory, ended })
    }

    /// Prepares another configuration without using it yet. Dropping the result undoes it.
    ///
    /// # Errors
    ///
    /// A thread cannot be started, or the system configures no DNS servers.
    pub fn prepare_change(
        &self,
        queues: queue::SchedulerConfig,
        config: DispatcherConfig,
        differs: DispatcherDifference,
    ) -> io::Result<PreparedChange> {
        let DispatcherConfig { directory, tables, rules, router, transports, local_transports, notices, hostname } =
            config;
        let routing = differs
            .routes
            .then(|| self.worker_factory.router_factory.routing(router, &tables, transports))
            .transpose()?;
        let local_deliverers =
            self.worker_factory.start_local_deliverers(local_transports, &hostname, &self.scheduler)?;
        let delay_notices = notices.delay_notices(&queues);
        let (keeps_cap, directory_of_terms) = (!differs.notice_limit, directory.clone());
        let dsn_config = DsnConfig {
            notices,
            keeps_limiter: keeps_cap,
            rules: rules.clone(),
            directory: directory_of_terms,
            hostname,
        };
        let change = scheduler::SchedulerChange {
            queues,
            rules,
            directory,
            local_deliverers,
            routing,
            delay_notices,
            dsn_config,
        };
        Ok(PreparedChange(Box::new(change)))
    }

    /// Applies the prepared configuration. Attempts in progress finish with the old one.
    pub fn apply_change(&self, change: PreparedChange) {
        self.scheduler.send(SchedulerMsg::Reconfigure(change.0));
    }

    /// Calls `report` once, on the scheduler's thread, as soon as the spool has only messages that
    /// are held for all remaining recipients, with their number. For a server that takes nothing
    /// in: what is committed later is not waited for.
    pub fn notify_when_drained(&self, report: impl FnOnce(usize) + Send + 'static) {
        self.watch_drain(None, report);
    }

    /// The same, and also as soon as nothing else can be delivered before `until`: reports the number
    /// of all messages that are left.
    pub fn notify_when_idle(&self, until: Timestamp, report: impl FnOnce(usize) + Send + 'static) {
        self.watch_drain(Some(until), report);
    }

    fn watch_drain(&self, until: Option<Timestamp>, report: impl FnOnce(usize) + Send + 'static) {
        let watch = DrainWatch::new(self.worker_factory.messages.clone(), until, report);
        self.scheduler.send(SchedulerMsg::WatchDrain(watch));
    }

    /// Finishes the attempts in progress and starts no others. Returns false on timeout: a disk or
    /// a mailbox hangs, and the threads that wait for it are abandoned.
    pub fn stop(self) -> bool {
        let Dispatcher { scheduler, worker_factory, ended } = self;
        drop(worker_factory);
        scheduler.send(SchedulerMsg::Stop(SystemTime::now().into()));
        ended.recv_timeout(STOP_TIME_MAX * 2) == Err(RecvTimeoutError::Disconnected)
    }
}

impl WorkerFactory {
    fn start_smtp_deliverers(
        &self,
        threads: usize,
        scheduler: &SchedulerHandle,
        tls_sessions: Option<&Arc<dyn TlsSessionLog>>,
    ) -> io::Result<SmtpDeliverers> {
        SmtpDeliverers::start(threads, (&self.messages, &self.fence), scheduler, &self.alive, tls_sessions)
    }

    fn start_pipe_deliverer(
        &self,
        launcher: Option<LauncherSocket>,
        scheduler: &SchedulerHandle,
    ) -> io::Result<PipeDeliverer> {
        let messages = (self.messages.clone(), self.fence.clone());
        PipeDeliverer::start(launcher, messages, scheduler.clone(), self.alive.clone())
    }

    /// Starts a thread for each local transport.
    fn start_local_deliverers(
        &self,
        local_transports: Vec<LocalTransport>,
        hostname: &str,
        scheduler: &SchedulerHandle,
    ) -> io::Result<HashMap<Box<str>, Sender<Attempt>>> {
        let start = |transport| {
            let shared = (self.alive.clone(), self.outcome_counters.clone());
            let messages = || (self.messages.clone(), self.fence.clone());
            LocalDeliverer::start(transport, hostname, messages(), scheduler.clone(), shared)
        };
        local_transports.into_iter().map(start).collect()
    }
}

impl SchedulerHandle {
    fn send(&self, msg: SchedulerMsg) {
        // Only fails after the flow has ended, when nothing needs the message.
        drop(self.0.send(msg));
    }

    /// Sets which deliveries may start.
    pub fn set_allowed_deliveries(&self, delivery: AllowedDeliveries) {
        self.send(SchedulerMsg::SetDelivery(delivery));
    }

    /// Adds messages that became durable without being submitted here, such as those of an adopted
    /// lane.
    pub fn admit(&self, messages: Vec<LiveMessage>) {
        self.send(SchedulerMsg::Committed(messages));
    }

    /// Answers a request for departures ([`NextHopSharing`]): the first one is after this time.
    pub fn grant_departures(&self, next_hop: &str, first_in: Duration, interval: Duration, count: u32) {
        let first = Timestamp::from(SystemTime::now()) + first_in;
        self.send(SchedulerMsg::Granted(next_hop.into(), GrantedDepartures { first, interval, count }));
    }

    /// Sets how many attempts may be made to a next hop with a shared concurrency at a time.
    pub fn grant_slots(&self, next_hop: &str, slots: usize) {
        self.send(SchedulerMsg::GrantedSlots(next_hop.into(), slots));
    }

    /// Another server has found a next hop to be lame.
    pub fn report_lame_elsewhere(&self, next_hop: &str) {
        self.send(SchedulerMsg::LameElsewhere(next_hop.into()));
    }

    /// Runs `question` on the scheduler's thread, which waits for it. None if the flow has stopped.
    pub fn with_queues<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Queues) -> T + Send + 'static,
    ) -> Option<T> {
        let (sender, receiver) = mpsc::channel();
        // The caller may be gone.
        self.send(SchedulerMsg::WithQueues(Box::new(move |queues| drop(sender.send(question(queues))))));
        receiver.recv().ok()
    }
}

impl SchedulerMsg {
    /// The message for an attempt whose message could not be read.
    fn read_failed(attempt: Attempt, error: ReadError) -> SchedulerMsg {
        match error {
            ReadError::Unknown => SchedulerMsg::MessageGone(attempt),
            ReadError::Unavailable(why) => SchedulerMsg::ReadFailed(attempt, why),
            ReadError::Damaged { what } => SchedulerMsg::Ended(vec![EndedAttempt {
                attempt,
                message: None,
                ending: DeliveryResult::Damaged(what),
                contact: ContactResult::Unknown,
                peer: None,
                proof: None,
            }]),
        }
    }
}

impl AttemptOutcome {
    /// Whether a notice may be due, or the message has to be read to find out.
    fn may_need_notice(&self) -> bool {
        let Some(message) = &self.message else { return true };
        let envelope = &message.envelope;
        let wants_success = |ordinal: u32| {
            envelope
                .recipients
                .get(ordinal as usize)
                .is_some_and(|found| found.notify.contains(mail::DsnNotify::SUCCESS))
        };
        self.attempt.recipients.iter().zip(&self.verdicts).any(|(ordinal, verdict)| match verdict {
            RecipientVerdict::Failed { .. } => true,
            RecipientVerdict::Deferred { .. } => self.will_retry_until.is_some(),
            RecipientVerdict::Delivered | RecipientVerdict::Relayed { .. } => wants_success(*ordinal),
            RecipientVerdict::Held | RecipientVerdict::Removed => false,
        })
    }
}

/// Forwards the spool's events to the scheduler and to the log.
pub fn spool_event_handler(
    scheduler: SchedulerHandle,
    log: Arc<dyn ServerLog>,
) -> impl Fn(spool::SpoolEvent) + Send + Sync {
    // An mpsc sender is used by one thread at a time; the spool has several.
    let scheduler = Mutex::new(scheduler);
    move |event| match event {
        spool::SpoolEvent::Committed(messages) => {
            let scheduler = scheduler.lock();
            scheduler.send(SchedulerMsg::Committed(messages));
        }
        spool::SpoolEvent::SetAside { id, what } => log.write(MailEvent::SetAside { id, detail: what }),
        spool::SpoolEvent::BatchFailed { lane, segment, error } => log.event(
            LogLevel::Error,
            "writing to the spool failed; nothing in the batch was acknowledged",
            &[("lane", &lane), ("segment", &segment), ("error", &error)],
        ),
        spool::SpoolEvent::NoSegment { lane, error } => {
            log.event(LogLevel::Error, "the spool is full", &[("lane", &lane), ("error", &error)]);
        }
    }
}
