//! `bench crash`: kills a server at random under load, again and again, and holds it to its 250s.
//!
//! A round: the server is started, greets, and is put under load for a random time; then all of its processes get
//! SIGKILL at once, while messages are on their way. After the last round it is started once more and has time to
//! deliver what it acknowledged. Lost and damaged copies make the verdict bad; doubled ones are told, for a server may
//! deliver again what it was just delivering, and are bad only with `--no-doubles`. Nothing was proved, which is a
//! fault, where the server does not come up, acknowledges nothing in a round, or is not what listens. Whatever happens,
//! it does not outlive the command.
//!
//! SIGKILL takes nothing from the system's page cache: what only a power cut would take is not found out here.

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

/// How long there must be no new copy after the last one that was missing: what was half delivered when a server was
/// killed comes again soon after its start.
const CALM_TIME: Duration = Duration::from_secs(1);
/// How long a load may take until it sends: a corpus is read before.
const PREPARATION_TIME_MAX: Duration = Duration::from_secs(600);

/// What `bench crash` is told.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Starts the server; a shell command
    #[arg(long, value_name = "COMMAND")]
    pub start: String,
    /// Where to write what the server says; left out, it goes to standard error
    #[arg(long, value_name = "FILE")]
    pub server_log: Option<PathBuf>,
    /// Where the server greets when it is ready, and where mail is sent to
    #[arg(long, value_name = "HOST:PORT")]
    pub ready: String,
    /// How long it may take to be ready
    #[arg(long, value_name = "SPAN", default_value = "30s", value_parser = span)]
    pub ready_within: Duration,
    /// How often it is killed
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// The shortest load before a kill
    #[arg(long, value_name = "SPAN", default_value = "500ms", value_parser = span)]
    pub load_min: Duration,
    /// The longest load before a kill
    #[arg(long, value_name = "SPAN", default_value = "3s", value_parser = span)]
    pub load_max: Duration,
    /// Where its mail ends up.
    #[command(flatten)]
    pub whereabouts: Whereabouts,
    /// How long it has to deliver at the end, while something is missing
    #[arg(long, value_name = "SPAN", default_value = "60s", value_parser = span)]
    pub settle: Duration,
    /// A copy that comes twice is bad too
    #[arg(long)]
    pub no_doubles: bool,
    /// The load.
    #[command(flatten)]
    pub sending: Sending,
}

/// Where the server's mail ends up.
#[derive(Clone, Debug, clap::Args)]
#[group(required = true, multiple = false)]
pub struct Whereabouts {
    /// In a tree of Maildirs
    #[arg(long, value_name = "DIR")]
    pub maildir: Option<PathBuf>,
    /// It relays: listen here, and take it
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub sink: Option<SocketAddr>,
}

/// Kills, and prints what was lost by it.
pub fn run(options: &Options) -> Result<Verdict, Fault> {
    if options.load_min > options.load_max {
        return Err(Fault::Usage("--load-min is more than --load-max".into()));
    }
    if options.sending.messages.is_some() || options.sending.load.duration.is_some() {
        return Err(Fault::Usage("--messages and --duration end a load by itself; here it ends by the kill".into()));
    }
    let mut ledger = Record::of(options.sending.ledger.as_deref())?;
    let verdict = try_server(options, &ledger);
    ledger.goes &= matches!(verdict, Ok(Verdict::Good));
    if verdict.is_err() && ledger.path.exists() {
        eprintln!("the ledger is kept: {}", ledger.path.display());
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

/// A server in the course of being killed.
struct Trial<'a> {
    options: &'a Options,
    ready: SocketAddr,
    ledger: &'a Record,
    word: Word,
    brood: Brood,
    rounds: Vec<Round>,
}

impl Trial<'_> {
    /// Starts, loads, kills.
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
            return Err(Fault::Unavailable(format!("{name}: no message was answered 250: nothing was proved")));
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

    /// The load goes on until the server is gone, so that the kill comes into the midst of it. Says how long it had
    /// gone on when the kill came.
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
            // A load begins its run in the ledger when all else is ready, and then sends.
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

    /// The server comes up once more, and has time to deliver.
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

/// What the server is held against.
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
            _ => Err(Fault::Usage("either --maildir or --sink says where the mail ends up".into())),
        }
    }
}

/// Looks as long as nobody wants it to end.
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

/// The ledger of all rounds: the operator's, or one of our own, which goes in the end if all was good and else is
/// evidence.
struct Record {
    path: PathBuf,
    /// That it had before the trial, and that are not held against anybody.
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

    /// What this trial's loads were answered.
    fn acknowledged(&self) -> Result<Acknowledged, Fault> {
        Ok(Acknowledged::read(&self.path)?.since(self.runs_before))
    }

    /// 0: it is not there yet.
    fn octets(&self) -> u64 {
        std::fs::metadata(&self.path).map_or(0, |metadata| metadata.len())
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if self.goes {
            // Left behind, or never made, it is in nobody's way.
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
