//! `bench sink`: receives mail as fast as it arrives and discards it.
//!
//! It can examine each message and count sound, damaged, doubled and foreign ones, and report at
//! the end which messages of a ledger never arrived. Rules make it a slow or hostile server. It
//! ends by count, by time, or by a signal of the operator, always with a summary; open sessions have
//! [`SESSION_DRAIN_TIME_MAX`] to end. An address that cannot be bound is a fault; so are, after the
//! summary, a record that cannot be written and an empty ledger. Nothing that a client does is a
//! fault.

mod rule;
mod session;
mod state;
mod summary;
mod tally;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use net::{StopReceiver, StopSender};
use protocol::smtp::server::SmtpPeer;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

use crate::ledger::{Durability, LineWriter};
use crate::machine_usage::MachineUsage;
use crate::options::{octets, span};
use crate::runtime::runtime;
use crate::signals::Signals;
use crate::verify::Comparer;
use crate::{AcknowledgedMessages, BenchError, RunVerdict, open_files_limit, report};

use rule::RULES_MAX;
pub use rule::SinkRule;
use session::SinkSession;
use state::{SinkState, ThreadContext};
use summary::SinkSummary;
use tally::SinkTally;

/// Connections that wait to be accepted; the system may allow fewer.
const BACKLOG: u32 = 4096;
/// The default host name in the greeting.
const HOSTNAME: &str = "sink.test";
/// Recipients of a message.
const RECIPIENTS_MAX: usize = 100_000;
/// Bytes of a message.
const MESSAGE_OCTETS_MAX: u64 = 1 << 30;
/// How long a client may be idle by default. Tests keep thousands of idle connections open.
const IDLE_TIME_MAX: Duration = Duration::from_secs(60 * 60);
/// How long sessions may take to end when the sink ends.
const SESSION_DRAIN_TIME_MAX: Duration = Duration::from_secs(2);
/// How often to check whether the record can still be written.
const RECORD_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Options of `bench sink`.
#[derive(Clone, Debug, clap::Args)]
pub struct SinkOptions {
    /// Address to listen on; may be repeated; port 0 picks a free one. The output begins with
    /// `listening on` lines
    #[arg(long, value_name = "ADDRESS:PORT", required = true)]
    pub listen: Vec<SocketAddr>,
    /// Speak LMTP
    #[arg(long)]
    pub lmtp: bool,
    /// Number of threads
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub threads: u32,
    /// Examine each message and count sound, damaged, doubled and foreign ones
    ///
    /// Needs 32 to 64 bytes of memory for each copy.
    #[arg(long)]
    pub verify: bool,
    /// Report at the end which messages of this ledger never arrived; implies --verify
    #[arg(long, value_name = "FILE")]
    pub ledger: Option<PathBuf>,
    /// Write a line for each copy, for `bench verify --record`; implies --verify
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// End after this many messages
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub messages: Option<u64>,
    /// End after this time
    #[arg(long, value_name = "SPAN", value_parser = span)]
    pub duration: Option<Duration>,
    /// `[SHARE%] [*|DOMAIN] [STAGE] ACTION`: act as a slow or hostile server
    ///
    /// SHARE: apply at random to this share, as 5%. DOMAIN: the domain of a recipient, lame.test or
    /// *@lame.test. STAGE: connect, helo, mail, rcpt, data or message; the default is rcpt with a
    /// domain and connect without. ACTION: delay 10s; reject [550 TEXT]; defer [451 TEXT]; drop;
    /// garbage; slow 100B/s; stall 1s every 10s (the whole sink, only after *). May be repeated;
    /// all rules that match are applied in order until one refuses or closes the connection.
    /// Examples: '*@lame.test rcpt delay 10s', '5% message defer', '* stall 1s every 10s'
    #[arg(long = "rule", value_name = "RULE")]
    pub rules: Vec<SinkRule>,
    /// Seed of the random choices
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
    /// Host name of the sink
    #[arg(long, value_name = "NAME", default_value = HOSTNAME)]
    pub hostname: String,
    /// Recipients of a message; more are answered 452
    #[arg(long, value_name = "N", default_value_t = RECIPIENTS_MAX)]
    pub recipients_max: usize,
    /// Size of a message; larger ones are answered 552
    #[arg(long, value_name = "BYTES", default_value_t = MESSAGE_OCTETS_MAX, value_parser = octets)]
    pub message_size_max: u64,
    /// How long a client may be idle; then it is answered 421
    #[arg(long, value_name = "SPAN", default_value = "1h", value_parser = span)]
    pub idle_time_max: Duration,
    /// Print the summary as JSON
    #[arg(long)]
    pub json: bool,
}

impl SinkOptions {
    /// A sink that verifies, without rules and limits.
    pub(crate) fn verifying(listen: SocketAddr) -> SinkOptions {
        SinkOptions {
            listen: vec![listen],
            lmtp: false,
            threads: 1,
            verify: true,
            ledger: None,
            record: None,
            messages: None,
            duration: None,
            rules: Vec::new(),
            seed: 1,
            hostname: HOSTNAME.into(),
            recipients_max: RECIPIENTS_MAX,
            message_size_max: MESSAGE_OCTETS_MAX,
            idle_time_max: IDLE_TIME_MAX,
            json: false,
        }
    }
}

/// Receives until the end and prints the summary.
pub fn run(options: &SinkOptions) -> Result<RunVerdict, BenchError> {
    options.ledger.as_deref().map_or(Ok(()), AcknowledgedMessages::check_readable)?;
    let usage_meter = MachineUsage::begin();
    let sink = Sink::open(options)?;
    let signals = sink.signals()?;
    print_addresses(sink.addresses()).map_err(BenchError::system("writing to the standard output"))?;
    sink.wait(signals, options.duration);
    let received = sink.close()?;
    let acknowledged = options.ledger.as_deref().map(AcknowledgedMessages::read_nonempty).transpose();
    let ledger = acknowledged.as_ref().ok().and_then(Option::as_ref);
    let summary = SinkSummary::of(&received, &options.rules, ledger, usage_meter.end());
    report::print(&summary, options.json)?;
    received.recorded?;
    acknowledged?;
    Ok(summary.verdict())
}

fn print_addresses(addresses: &[SocketAddr]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    addresses.iter().try_for_each(|address| writeln!(out, "listening on {address}"))?;
    out.flush()
}

/// A running sink.
#[derive(Debug)]
pub(crate) struct Sink {
    runtime: Runtime,
    state: Arc<SinkState>,
    contexts: Vec<Arc<ThreadContext>>,
    threads: Vec<JoinHandle<()>>,
    addresses: Vec<SocketAddr>,
    record_writer: Option<Arc<LineWriter>>,
    /// Stops the sessions.
    stopper: StopSender,
    /// Stops the threads.
    thread_stopper: StopSender,
}

/// What a sink received until it was closed.
#[derive(Debug)]
struct SinkResult {
    tally: SinkTally,
    sessions_peak: u64,
    verified: bool,
    /// The error of the record, if one was requested.
    recorded: Result<(), BenchError>,
}

impl Sink {
    /// Binds the addresses and starts to receive.
    pub(crate) fn open(options: &SinkOptions) -> Result<Sink, BenchError> {
        if options.rules.len() > RULES_MAX {
            return Err(BenchError::Usage(format!("more than {RULES_MAX} rules")));
        }
        open_files_limit::raise(0)?;
        let listeners = options.listen.iter().map(|&address| bind(address)).collect::<Result<Vec<_>, _>>()?;
        let addresses = listeners.iter().map(TcpListener::local_addr).collect::<io::Result<_>>();
        let addresses = addresses.map_err(BenchError::system("reading the port of a socket"))?;
        let record = options.record.as_deref().map(open_record).transpose()?.map(Arc::new);
        let state = Arc::new(SinkState::new(options, record.clone()));
        let ((stopper, stop), (thread_stopper, end)) = (StopSender::new(), StopSender::new());
        let contexts: Vec<_> = (0..options.threads).map(|_| Arc::new(ThreadContext::new(state.clone()))).collect();
        let threads = contexts.iter().map(|counter| start_thread(counter, &listeners, &stop, &end));
        let threads = threads.collect::<Result<_, _>>()?;
        let runtime = runtime()?;
        Ok(Sink { runtime, state, contexts, threads, addresses, record_writer: record, stopper, thread_stopper })
    }

    /// The addresses, with the ports that were picked.
    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Passes every copy so far to `comparer`.
    pub(crate) fn add_copies_to(&self, comparer: &mut Comparer<'_>) {
        self.contexts.iter().for_each(|counter| counter.tally.lock().copies.add_to(comparer));
    }

    /// Registers the signals, which then end the sink and not the process.
    fn signals(&self) -> Result<Signals, BenchError> {
        let _inside = self.runtime.enter();
        Signals::listen()
    }

    /// Waits for the end: the message count, the time, a signal, or a failed record.
    fn wait(&self, mut signals: Signals, duration: Option<Duration>) {
        self.runtime.block_on(async {
            tokio::select! {
                () = signals.next() => {}
                () = self.state.wait_for_messages_max() => {}
                () = sleep_or_pend(duration) => {}
                () = self.record_failed() => {}
            }
        });
    }

    async fn record_failed(&self) {
        while self.record_writer.as_ref().is_none_or(|record| !record.failed()) {
            tokio::time::sleep(RECORD_CHECK_INTERVAL).await;
        }
    }

    /// Ends the sessions and returns the counts.
    fn close(self) -> Result<SinkResult, BenchError> {
        let Sink {
            runtime,
            state: house,
            contexts: counters,
            threads,
            record_writer: record,
            stopper,
            thread_stopper: ender,
            ..
        } = self;
        stopper.stop();
        // Sessions that are still open after that are cut off.
        let _ = runtime
            .block_on(async { tokio::time::timeout(SESSION_DRAIN_TIME_MAX, stopper.wait_receivers_dropped()).await });
        ender.stop();
        for thread in threads {
            thread.join().map_err(|_| BenchError::Unavailable("a thread of the sink panicked".into()))?;
        }
        let mut tally = SinkTally::new(house.rules().len());
        counters.iter().for_each(|counter| tally.add(std::mem::take(&mut *counter.tally.lock())));
        let (guests_peak, verified) = (house.sessions_peak(), house.verifies());
        drop((house, counters));
        let recorded = record.and_then(Arc::into_inner).map_or(Ok(()), LineWriter::close);
        Ok(SinkResult { tally, sessions_peak: guests_peak, verified, recorded })
    }
}

fn bind(address: SocketAddr) -> Result<TcpListener, BenchError> {
    net::bind(address, BACKLOG).map_err(BenchError::system(format_args!("listening on {address}")))
}

fn open_record(path: &Path) -> Result<LineWriter, BenchError> {
    let what = format!("writing the record {}", path.display());
    let file = File::create(path).map_err(BenchError::system(&what))?;
    LineWriter::start(file, Durability::Relaxed, what)
}

/// A thread with its own runtime; its sessions stay on it.
fn start_thread(
    context: &Arc<ThreadContext>,
    listeners: &[TcpListener],
    stop: &StopReceiver,
    thread_stop: &StopReceiver,
) -> Result<JoinHandle<()>, BenchError> {
    let runtime = runtime()?;
    let listeners = listeners.iter().map(TcpListener::try_clone).collect::<io::Result<Vec<_>>>();
    let listeners = listeners.map_err(BenchError::system("sharing a socket"))?;
    let (context, stop, mut end) = (context.clone(), stop.clone(), thread_stop.clone());
    let work = async move {
        for listener in listeners {
            let (context, session_stop) = (context.clone(), stop.clone());
            let serve = move |stream, peer| {
                drop(tokio::spawn(serve_client(context.clone(), stream, peer, session_stop.clone())));
            };
            tokio::spawn(net::accept_connections(listener, stop.clone(), serve));
        }
        drop((context, stop));
        end.wait_for_stop().await;
    };
    let started = thread::Builder::new().name("sink".into()).spawn(move || runtime.block_on(work));
    started.map_err(BenchError::system("starting a thread"))
}

async fn serve_client(context: Arc<ThreadContext>, stream: TcpStream, peer: SocketAddr, stop: StopReceiver) {
    let peer = SmtpPeer { address: Some(peer.ip().to_canonical()), ..SmtpPeer::default() };
    let mut session = SinkSession::new(context, peer, &stream);
    net::drive_connection(stream.into(), stop, &mut session).await;
}

/// Waits forever without a duration.
async fn sleep_or_pend(duration: Option<Duration>) {
    match duration {
        Some(duration) => tokio::time::sleep(duration).await,
        None => std::future::pending().await,
    }
}
