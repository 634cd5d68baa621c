//! `bench crash`: kills a server at random moments under load and checks that no acknowledged
//! message is lost.
//!
//! In each round the server is started, put under load for a random time, and killed: all of its
//! processes get SIGKILL. After the last round it is started again and has time to deliver. Lost
//! and damaged copies make the verdict bad. Duplicates are reported, since a server may repeat a
//! delivery that the kill interrupted; they are bad only with `--no-doubles`. It is a fault if the
//! server does not start, acknowledges nothing in a round, or is not the process that listens. The
//! server never outlives this command. SIGKILL leaves the page cache intact, so this does not test
//! a power cut.

mod server;
mod trial_report;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use compare::Descendants;
use net::StopSender;

use crate::options::span;
use crate::signals::StopSignal;
use crate::sink::{self, Sink};
use crate::smtp::{self, SendOptions};
use crate::target::TargetServer;
use crate::verify::{Comparer, Comparison, CopyLocation, CopySource, PlaceKind, WaitLimits, compare_until_complete};
use crate::{AcknowledgedMessages, BenchError, LoadSummary, RunVerdict, report};

use server::{ServerStart, TrialServer};
use trial_report::{TrialReport, TrialRound};

/// How long no new copy may arrive after the last missing one before the search ends. Deliveries
/// that a kill interrupted are repeated soon after the start.
const QUIET_TIME: Duration = Duration::from_secs(1);
/// How long a load may take to start sending. It reads its corpus first.
const LOAD_START_TIME_MAX: Duration = Duration::from_secs(600);

/// Options of `bench crash`.
#[derive(Clone, Debug, clap::Args)]
pub struct CrashOptions {
    /// Shell command that starts the server
    #[arg(long, value_name = "COMMAND")]
    pub start: String,
    /// Append the server's output to this file [default: standard error]
    #[arg(long, value_name = "FILE")]
    pub server_log: Option<PathBuf>,
    /// Address where the server listens; mail is sent there
    #[arg(long, value_name = "HOST:PORT")]
    pub ready: String,
    /// How long the server may take to greet
    #[arg(long, value_name = "SPAN", default_value = "30s", value_parser = span)]
    pub ready_within: Duration,
    /// Number of times the server is killed
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Shortest load before a kill
    #[arg(long, value_name = "SPAN", default_value = "500ms", value_parser = span)]
    pub load_min: Duration,
    /// Longest load before a kill
    #[arg(long, value_name = "SPAN", default_value = "3s", value_parser = span)]
    pub load_max: Duration,
    /// Where the server delivers to.
    #[command(flatten)]
    pub destination: MailDestinationOptions,
    /// How long to wait at the end for messages that are missing
    #[arg(long, value_name = "SPAN", default_value = "60s", value_parser = span)]
    pub settle: Duration,
    /// Treat duplicate deliveries as bad
    #[arg(long)]
    pub no_doubles: bool,
    /// The load.
    #[command(flatten)]
    pub send_options: SendOptions,
}

/// Where the server delivers to.
#[derive(Clone, Debug, clap::Args)]
#[group(required = true, multiple = false)]
pub struct MailDestinationOptions {
    /// Root of a tree of Maildirs
    #[arg(long, value_name = "DIR")]
    pub maildir: Option<PathBuf>,
    /// Address to listen on for mail that the server relays
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub sink: Option<SocketAddr>,
}

/// Runs all rounds and prints the report.
pub fn run(options: &CrashOptions) -> Result<RunVerdict, BenchError> {
    if options.load_min > options.load_max {
        return Err(BenchError::Usage("--load-min is more than --load-max".into()));
    }
    if options.send_options.messages.is_some() || options.send_options.load.duration.is_some() {
        return Err(BenchError::Usage("--messages and --duration cannot be used: the kill ends the load".into()));
    }
    let mut ledger = TrialLedger::open(options.send_options.ledger.as_deref())?;
    let verdict = run_trial(options, &ledger);
    ledger.is_temporary &= matches!(verdict, Ok(RunVerdict::Good));
    if verdict.is_err() && ledger.path.exists() {
        eprintln!("the ledger is kept in {}", ledger.path.display());
    }
    verdict
}

fn run_trial(options: &CrashOptions, ledger: &TrialLedger) -> Result<RunVerdict, BenchError> {
    let ready = TargetServer::resolve(&options.ready, &options.send_options.load.ownership)?;
    let delivered = DeliveredMail::open(&options.destination)?;
    let stop_signal = StopSignal::listen()?;
    let server_processes =
        Descendants::watch().map_err(BenchError::system("looking for the processes of the server"))?;
    let mut trial =
        CrashTrial { options, ready: ready.address, ledger, stop_signal, server_processes, rounds: Vec::new() };
    (0..options.rounds).try_for_each(|number| trial.run_round(number))?;
    let comparison = trial.settle(&delivered)?;
    let outcome = TrialReport::new(options, trial.rounds, comparison, &ledger.path);
    report::print(&outcome, options.send_options.load.json)?;
    Ok(outcome.verdict())
}

/// A run of all rounds against one server.
struct CrashTrial<'a> {
    options: &'a CrashOptions,
    ready: SocketAddr,
    ledger: &'a TrialLedger,
    stop_signal: StopSignal,
    server_processes: Descendants,
    rounds: Vec<TrialRound>,
}

impl CrashTrial<'_> {
    /// Starts the server, loads it, kills it.
    fn run_round(&mut self, number: u32) -> Result<(), BenchError> {
        let mut send_options = self.options.send_options.clone();
        send_options.ledger = Some(self.ledger.path.clone());
        send_options.load.seed = send_options.load.seed.wrapping_add(u64::from(number) << 32);
        let mut random = fastrand::Rng::with_seed(send_options.load.seed);
        let (min, max) = (self.options.load_min, self.options.load_max);
        let span = min + (max - min).mul_f64(random.f64());
        let server = self.start()?;
        let (loaded, summary) = self.load_and_kill(server, &send_options, span)?;
        let round = TrialRound::new(loaded, &summary);
        let name = format!("round {} of {}", number + 1, self.options.rounds);
        eprintln!("{name}: {round}");
        if round.proves_nothing() {
            return Err(BenchError::Unavailable(format!("{name}: no message was answered 250, so nothing was proved")));
        }
        self.rounds.push(round);
        Ok(())
    }

    fn start(&self) -> Result<TrialServer<'_>, BenchError> {
        let CrashOptions { start, server_log, ready_within, .. } = self.options;
        TrialServer::start(ServerStart {
            command: start,
            log: server_log.as_deref(),
            ready: self.ready,
            ready_within: *ready_within,
            server_processes: &self.server_processes,
            stop_signal: &self.stop_signal,
        })
    }

    /// Keeps the load running until the server is dead, so that the kill interrupts it. Returns how
    /// long the load had run before the kill.
    fn load_and_kill(
        &self,
        server: TrialServer<'_>,
        send_options: &SendOptions,
        span: Duration,
    ) -> Result<(Duration, LoadSummary), BenchError> {
        let (stopper, stop) = StopSender::new();
        let octets = self.ledger.octets();
        std::thread::scope(|scope| {
            let target = [self.options.ready.clone()];
            let load = scope.spawn(move || smtp::send(&target, send_options, Some(stop)));
            // A load writes its run to the ledger right before it starts to send.
            let begins = || load.is_finished() || self.ledger.octets() != octets;
            let waited = self.stop_signal.wait(LOAD_START_TIME_MAX, begins);
            let begun = Instant::now();
            let waited = waited.and_then(|()| self.stop_signal.wait(span, || load.is_finished()));
            let loaded = begun.elapsed();
            let killed = server.kill();
            stopper.stop();
            let sent = load.join().unwrap_or_else(|_| Err(BenchError::Unavailable("the load panicked".into())));
            waited.and(killed).and(sent).map(|summary| (loaded, summary))
        })
    }

    /// Starts the server again and waits for it to deliver.
    fn settle(&self, delivered: &DeliveredMail) -> Result<Comparison, BenchError> {
        let acknowledged = self.ledger.acknowledged()?;
        let server = self.start()?;
        let search = InterruptibleSearch { delivered, stop_signal: &self.stop_signal };
        let wait_limits = WaitLimits { wait: self.options.settle, quiet: QUIET_TIME };
        let comparison = compare_until_complete(&acknowledged, &search, wait_limits)?;
        server.terminate()?;
        Ok(comparison)
    }
}

/// Where delivered copies are read from.
enum DeliveredMail {
    Maildirs(CopyLocation),
    Sink(Sink),
}

impl DeliveredMail {
    fn open(destination: &MailDestinationOptions) -> Result<DeliveredMail, BenchError> {
        match destination {
            MailDestinationOptions { maildir: Some(root), sink: None } => {
                Ok(DeliveredMail::Maildirs(CopyLocation::Maildirs(root.clone())))
            }
            MailDestinationOptions { sink: Some(address), maildir: None } => {
                Sink::open(&sink::SinkOptions::verifying(*address)).map(DeliveredMail::Sink)
            }
            _ => Err(BenchError::Usage("give either --maildir or --sink".into())),
        }
    }
}

/// A search for copies that a signal interrupts.
struct InterruptibleSearch<'a> {
    delivered: &'a DeliveredMail,
    stop_signal: &'a StopSignal,
}

impl CopySource for InterruptibleSearch<'_> {
    fn place_kind(&self) -> PlaceKind {
        match self.delivered {
            DeliveredMail::Maildirs(copies) => copies.place_kind(),
            DeliveredMail::Sink(_) => PlaceKind::Recipients,
        }
    }

    fn scan(&self, comparer: &mut Comparer<'_>) -> Result<(), BenchError> {
        self.stop_signal.check()?;
        match self.delivered {
            DeliveredMail::Maildirs(copies) => copies.scan(comparer)?,
            DeliveredMail::Sink(sink) => sink.add_copies_to(comparer),
        }
        Ok(())
    }

    fn pause(&self, span: Duration) -> Result<(), BenchError> {
        self.stop_signal.wait(span, || false)
    }
}

/// The ledger of all rounds. One that the operator named is kept. A temporary one is removed if the
/// verdict is good, and kept as evidence otherwise.
struct TrialLedger {
    path: PathBuf,
    /// Runs that were in the ledger before the trial. They are ignored.
    runs_before: usize,
    is_temporary: bool,
}

impl TrialLedger {
    fn open(named: Option<&Path>) -> Result<TrialLedger, BenchError> {
        let own = || std::env::temp_dir().join(format!("mailrace-crash-{:016x}.ledger", fastrand::u64(..)));
        let path = named.map_or_else(own, Path::to_owned);
        let runs_before = if path.exists() { AcknowledgedMessages::read(&path)?.runs_count() } else { 0 };
        Ok(TrialLedger { path, runs_before, is_temporary: named.is_none() })
    }

    /// The messages that the server acknowledged in this trial.
    fn acknowledged(&self) -> Result<AcknowledgedMessages, BenchError> {
        Ok(AcknowledgedMessages::read(&self.path)?.skip_runs(self.runs_before))
    }

    /// The length of the file; 0 if it does not exist yet.
    fn octets(&self) -> u64 {
        std::fs::metadata(&self.path).map_or(0, |metadata| metadata.len())
    }
}

impl Drop for TrialLedger {
    fn drop(&mut self) {
        if self.is_temporary {
            // Nothing depends on the removal.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_temporary_ledger_is_removed_unless_it_is_evidence_and_a_named_one_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let named = folder.path().join("ledger");
        for (named, is_evidence, stays) in [(None, false, false), (None, true, true), (Some(&*named), false, true)] {
            let mut ledger = TrialLedger::open(named).unwrap();
            let path = ledger.path.clone();
            std::fs::write(&path, "run 1\n").unwrap();
            ledger.is_temporary &= !is_evidence;
            drop(ledger);
            assert_eq!(path.exists(), stays);
            if stays {
                std::fs::remove_file(path).unwrap();
            }
        }
    }

    #[test]
    fn earlier_runs_of_a_ledger_are_not_expected_of_the_server() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        std::fs::write(&path, "run 1\n0\ta@x.test\n").unwrap();
        let ledger = TrialLedger::open(Some(&path)).unwrap();
        std::fs::write(&path, "run 1\n0\ta@x.test\nrun 2\n7\ta@x.test\n").unwrap();
        let acknowledged = ledger.acknowledged().unwrap();
        assert_eq!((acknowledged.len(), acknowledged.run_and_sequence(0).1), (1, 7));
    }
}
