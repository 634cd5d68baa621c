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

mod outcome;
mod processes;
mod server;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use net::Stopper;

use crate::options::span;
use crate::signals::Word;
use crate::sink::{self, Sink};
use crate::smtp::{self, Sending};
use crate::target::Target;
use crate::verify::{Copies, Held, Holding, Look, Patience, Places, held_in_time};
use crate::{Acknowledged, Fault, Summary, Verdict, report};

use outcome::{Outcome, Round};
use processes::Brood;
use server::{Server, Start};

/// How long no new copy may arrive after the last missing one before the search ends. Deliveries
/// that a kill interrupted are repeated soon after the start.
const CALM_TIME: Duration = Duration::from_secs(1);
/// How long a load may take to start sending. It reads its corpus first.
const PREPARATION_TIME_MAX: Duration = Duration::from_secs(600);

/// Options of `bench crash`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
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
    pub whereabouts: Whereabouts,
    /// How long to wait at the end for messages that are missing
    #[arg(long, value_name = "SPAN", default_value = "60s", value_parser = span)]
    pub settle: Duration,
    /// Treat duplicate deliveries as bad
    #[arg(long)]
    pub no_doubles: bool,
    /// The load.
    #[command(flatten)]
    pub sending: Sending,
}

/// Where the server delivers to.
#[derive(Clone, Debug, clap::Args)]
#[group(required = true, multiple = false)]
pub struct Whereabouts {
    /// Root of a tree of Maildirs
    #[arg(long, value_name = "DIR")]
    pub maildir: Option<PathBuf>,
    /// Address to listen on for mail that the server relays
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub sink: Option<SocketAddr>,
}

/// Runs all rounds and prints the report.
pub fn run(options: &Options) -> Result<Verdict, Fault> {
    if options.load_min > options.load_max {
        return Err(Fault::Usage("--load-min is more than --load-max".into()));
    }
    if options.sending.messages.is_some() || options.sending.load.duration.is_some() {
        return Err(Fault::Usage("--messages and --duration cannot be used: the kill ends the load".into()));
    }
    let mut ledger = Record::of(options.sending.ledger.as_deref())?;
    let verdict = try_server(options, &ledger);
    ledger.goes &= matches!(verdict, Ok(Verdict::Good));
    if verdict.is_err() && ledger.path.exists() {
        eprintln!("the ledger is kept in {}", ledger.path.display());
    }
    verdict
}

fn try_server(options: &Options, ledger: &Record) -> Result<Verdict, Fault> {
    let ready = Target::resolve(&options.ready, &options.sending.load.ownership)?;
    let proof = Proof::open(&options.whereabouts)?;
    let word = Word::hear()?;
    let brood = Brood::begin()?;
    let mut trial = Trial { options, ready: ready.address, ledger, word, brood, rounds: Vec::new() };
    (0..options.rounds).try_for_each(|number| trial.round(number))?;
    let held = trial.settle(&proof)?;
    let outcome = Outcome::new(options, trial.rounds, held, &ledger.path);
    report::print(&outcome, options.sending.load.json)?;
    Ok(outcome.verdict())
}

/// A run of all rounds against one server.
struct Trial<'a> {
    options: &'a Options,
    ready: SocketAddr,
    ledger: &'a Record,
    word: Word,
    brood: Brood,
    rounds: Vec<Round>,
}

impl Trial<'_> {
    /// Starts the server, loads it, kills it.
    fn round(&mut self, number: u32) -> Result<(), Fault> {
        let mut sending = self.options.sending.clone();
        sending.ledger = Some(self.ledger.path.clone());
        sending.load.seed = sending.load.seed.wrapping_add(u64::from(number) << 32);
        let mut random = fastrand::Rng::with_seed(sending.load.seed);
        let (min, max) = (self.options.load_min, self.options.load_max);
        let span = min + (max - min).mul_f64(random.f64());
        let server = self.start()?;
        let (loaded, summary) = self.load_and_kill(server, &sending, span)?;
        let round = Round::new(loaded, &summary);
        let name = format!("round {} of {}", number + 1, self.options.rounds);
        eprintln!("{name}: {round}");
        if round.proves_nothing() {
            return Err(Fault::Unavailable(format!("{name}: no message was answered 250, so nothing was proved")));
        }
        self.rounds.push(round);
        Ok(())
    }

    fn start(&self) -> Result<Server<'_>, Fault> {
        let Options { start, server_log, ready_within, .. } = self.options;
        Server::start(Start {
            command: start,
            log: server_log.as_deref(),
            ready: self.ready,
            within: *ready_within,
            brood: &self.brood,
            word: &self.word,
        })
    }

    /// Keeps the load running until the server is dead, so that the kill interrupts it. Returns how
    /// long the load had run before the kill.
    fn load_and_kill(
        &self,
        server: Server<'_>,
        sending: &Sending,
        span: Duration,
    ) -> Result<(Duration, Summary), Fault> {
        let (stopper, stop) = Stopper::new();
        let octets = self.ledger.octets();
        std::thread::scope(|scope| {
            let target = [self.options.ready.clone()];
            let load = scope.spawn(move || smtp::send(&target, sending, Some(stop)));
            // A load writes its run to the ledger right before it starts to send.
            let begins = || load.is_finished() || self.ledger.octets() != octets;
            let waited = self.word.pass(PREPARATION_TIME_MAX, begins);
            let begun = Instant::now();
            let waited = waited.and_then(|()| self.word.pass(span, || load.is_finished()));
            let loaded = begun.elapsed();
            let killed = server.kill();
            stopper.stop();
            let sent = load.join().unwrap_or_else(|_| Err(Fault::Unavailable("the load panicked".into())));
            waited.and(killed).and(sent).map(|summary| (loaded, summary))
        })
    }

    /// Starts the server again and waits for it to deliver.
    fn settle(&self, proof: &Proof) -> Result<Held, Fault> {
        let acknowledged = self.ledger.acknowledged()?;
        let server = self.start()?;
        let heeding = Heeding { proof, word: &self.word };
        let patience = Patience { wait: self.options.settle, calm: CALM_TIME };
        let held = held_in_time(&acknowledged, &heeding, patience)?;
        server.end()?;
        Ok(held)
    }
}

/// Where delivered copies are read from.
enum Proof {
    Maildirs(Copies),
    Sink(Sink),
}

impl Proof {
    fn open(whereabouts: &Whereabouts) -> Result<Proof, Fault> {
        match whereabouts {
            Whereabouts { maildir: Some(root), sink: None } => Ok(Proof::Maildirs(Copies::Maildirs(root.clone()))),
            Whereabouts { sink: Some(address), maildir: None } => {
                Sink::open(&sink::Options::verifying(*address)).map(Proof::Sink)
            }
            _ => Err(Fault::Usage("give either --maildir or --sink".into())),
        }
    }
}

/// A search for copies that a signal interrupts.
struct Heeding<'a> {
    proof: &'a Proof,
    word: &'a Word,
}

impl Look for Heeding<'_> {
    fn places(&self) -> Places {
        match self.proof {
            Proof::Maildirs(copies) => copies.places(),
            Proof::Sink(_) => Places::Recipients,
        }
    }

    fn look(&self, holding: &mut Holding<'_>) -> Result<(), Fault> {
        self.word.check()?;
        match self.proof {
            Proof::Maildirs(copies) => copies.look(holding)?,
            Proof::Sink(sink) => sink.tell(holding),
        }
        Ok(())
    }

    fn rest(&self, span: Duration) -> Result<(), Fault> {
        self.word.pass(span, || false)
    }
}

/// The ledger of all rounds. One that the operator named is kept. A temporary one is removed if the
/// verdict is good, and kept as evidence otherwise.
struct Record {
    path: PathBuf,
    /// Runs that were in the ledger before the trial. They are ignored.
    runs_before: usize,
    goes: bool,
}

impl Record {
    fn of(named: Option<&Path>) -> Result<Record, Fault> {
        let own = || std::env::temp_dir().join(format!("mailrace-crash-{:016x}.ledger", fastrand::u64(..)));
        let path = named.map_or_else(own, Path::to_owned);
        let runs_before = if path.exists() { Acknowledged::read(&path)?.runs_count() } else { 0 };
        Ok(Record { path, runs_before, goes: named.is_none() })
    }

    /// The messages that the server acknowledged in this trial.
    fn acknowledged(&self) -> Result<Acknowledged, Fault> {
        Ok(Acknowledged::read(&self.path)?.since(self.runs_before))
    }

    /// The length of the file; 0 if it does not exist yet.
    fn octets(&self) -> u64 {
        std::fs::metadata(&self.path).map_or(0, |metadata| metadata.len())
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if self.goes {
            // Nothing depends on the removal.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ledger_of_our_own_goes_unless_it_is_evidence_and_a_named_one_stays() {
        let folder = tempfile::tempdir().unwrap();
        let named = folder.path().join("ledger");
        for (named, is_evidence, stays) in [(None, false, false), (None, true, true), (Some(&*named), false, true)] {
            let mut record = Record::of(named).unwrap();
            let path = record.path.clone();
            std::fs::write(&path, "run 1\n").unwrap();
            record.goes &= !is_evidence;
            drop(record);
            assert_eq!(path.exists(), stays);
            if stays {
                std::fs::remove_file(path).unwrap();
            }
        }
    }

    #[test]
    fn what_a_ledger_had_before_is_not_held_against_the_server() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        std::fs::write(&path, "run 1\n0\ta@x.test\n").unwrap();
        let record = Record::of(Some(&path)).unwrap();
        std::fs::write(&path, "run 1\n0\ta@x.test\nrun 2\n7\ta@x.test\n").unwrap();
        let acknowledged = record.acknowledged().unwrap();
        assert_eq!((acknowledged.len(), acknowledged.message(0).1), (1, 7));
    }
}
