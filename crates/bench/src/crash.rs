//! `bench crash`: kills a server at random under load, again and again, and holds it to its 250s.
//!
//! A round: the server is started, greets, and is put under load for a random time; then all of its processes get
//! SIGKILL at once, while messages are on their way. After the last round it is started once more and has time to deliver
//! what it acknowledged. Lost and damaged copies make the verdict bad; doubled ones are told, for a server may deliver
//! again what it was just delivering, and are bad only with `--no-doubles`. A server that does not come up, or never
//! acknowledges anything, is a fault: nothing was proved. Whatever happens, it does not outlive the command.
//!
//! SIGKILL takes nothing from the system's page cache: what only a power cut would take is not found out here.

mod outcome;
mod processes;
mod server;
mod word;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use net::Stopper;

use crate::options::span;
use crate::sink::{self, Sink};
use crate::smtp::{self, Sending};
use crate::target::Target;
use crate::verify::{Copies, Held, Holding, Look, Places, held_in_time};
use crate::{Acknowledged, Fault, Summary, Verdict, report};

use outcome::{Outcome, Round};
use server::Server;
use word::Word;

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
    let ready = Target::resolve(&options.ready, &options.sending.load.ownership)?;
    let proof = Proof::open(&options.whereabouts)?;
    let ledger = Record::of(options.sending.ledger.as_deref());
    let word = Word::hear()?;
    processes::adopt_orphans()?;
    let mut trial = Trial { options, ready: ready.address, ledger: &ledger.path, word, rounds: Vec::new() };
    (0..options.rounds).try_for_each(|number| trial.round(number))?;
    let held = trial.settle(&proof)?;
    let outcome = Outcome::new(options, trial.rounds, held, &ledger.path);
    report::print(&outcome, options.sending.load.json)?;
    if outcome.verdict() == Verdict::Bad {
        ledger.keep();
    }
    Ok(outcome.verdict())
}

/// A server in the course of being killed.
struct Trial<'a> {
    options: &'a Options,
    ready: SocketAddr,
    ledger: &'a Path,
    word: Word,
    rounds: Vec<Round>,
}

impl Trial<'_> {
    /// Starts, loads, kills.
    fn round(&mut self, number: u32) -> Result<(), Fault> {
        let mut sending = self.options.sending.clone();
        sending.ledger = Some(self.ledger.to_owned());
        sending.load.seed = sending.load.seed.wrapping_add(u64::from(number) << 32);
        let mut random = fastrand::Rng::with_seed(sending.load.seed);
        let (min, max) = (self.options.load_min, self.options.load_max);
        let span = min + (max - min).mul_f64(random.f64());
        let server = self.start()?;
        let summary = self.load_and_kill(server, &sending, span)?;
        let round = Round::new(span, &summary);
        eprintln!("round {} of {}: {round}", number + 1, self.options.rounds);
        self.rounds.push(round);
        Ok(())
    }

    fn start(&self) -> Result<Server, Fault> {
        let output = server::output(self.options.server_log.as_deref())?;
        Server::start(&self.options.start, output, self.ready, self.options.ready_within, &self.word)
    }

    /// The load goes on until the server is gone, so that the kill comes into the midst of it.
    fn load_and_kill(&self, server: Server, sending: &Sending, span: Duration) -> Result<Summary, Fault> {
        let (stopper, stop) = Stopper::new();
        std::thread::scope(|scope| {
            let target = [self.options.ready.clone()];
            let load = scope.spawn(move || smtp::send(&target, sending, Some(stop)));
            let waited = self.word.pass(span, || load.is_finished());
            let killed = server.kill();
            stopper.stop();
            let sent = load.join().unwrap_or_else(|_| Err(Fault::Unavailable("the load panicked".into())));
            waited.and(killed).and(sent)
        })
    }

    /// The server comes up once more, and has time to deliver.
    fn settle(&self, proof: &Proof) -> Result<Held, Fault> {
        let acknowledged = Acknowledged::read(self.ledger)?;
        if acknowledged.is_empty() {
            return Err(Fault::Unavailable("the server never answered a message with 250: nothing was proved".into()));
        }
        let server = self.start()?;
        let heeding = Heeding { proof, word: &self.word };
        let held = held_in_time(&acknowledged, &heeding, self.options.settle)?;
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
}

/// The ledger of all rounds: the operator's, or one of our own, which goes in the end unless it is evidence.
struct Record {
    path: PathBuf,
    goes: bool,
}

impl Record {
    fn of(named: Option<&Path>) -> Record {
        let own = || std::env::temp_dir().join(format!("mailrace-crash-{:016x}.ledger", fastrand::u64(..)));
        Record { path: named.map_or_else(own, Path::to_owned), goes: named.is_none() }
    }

    fn keep(mut self) {
        self.goes = false;
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
    fn a_ledger_of_our_own_goes_unless_it_is_evidence() {
        let folder = tempfile::tempdir().unwrap();
        let named = folder.path().join("ledger");
        for (record, kept, is_there) in
            [(Record::of(None), false, false), (Record::of(None), true, true), (Record::of(Some(&named)), false, true)]
        {
            let path = record.path.clone();
            std::fs::write(&path, "run 1\n").unwrap();
            if kept {
                record.keep()
            } else {
                drop(record)
            }
            assert_eq!(path.exists(), is_there);
            if is_there {
                std::fs::remove_file(path).unwrap();
            }
        }
    }
}
