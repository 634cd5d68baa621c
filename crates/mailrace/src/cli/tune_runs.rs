//! Options of `tune measure` and `tune search`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use mail::units;
use tune::{Scenario, SearchParameter};

/// The largest factor between two values of a search.
const FACTOR_MAX: f64 = 100.0;

/// Options of `tune measure`.
#[derive(Args, Debug)]
pub struct TuneMeasureArgs {
    /// A setting such as limits.sessions or queue.local.concurrency, a knob of `tune check`,
    /// env.NAME, or load.sessions
    pub knob: String,
    /// The values to compare with the present one. Default: half and twice a number, or the other
    /// of two words
    #[arg(long, value_name = "VALUE,VALUE...", value_delimiter = ',')]
    pub values: Vec<String>,
    /// Compare with this value instead of the present one
    #[arg(long, value_name = "VALUE")]
    pub before: Option<String>,
    /// Judge by the rate, or by the server's CPU for each message
    #[arg(long, value_enum, default_value = "rate")]
    pub figure: MeasuredFigure,
    /// The smallest effect that matters: what is surely smaller, and may be none, is no effect
    #[arg(long, value_name = "PERCENT", default_value = "3", value_parser = percent)]
    pub effect_min: f64,
    /// Ask only whether a value gains this much, which is decided sooner than whether it differs
    #[arg(long, value_name = "PERCENT", value_parser = percent, conflicts_with = "effect_min")]
    pub gain_min: Option<f64>,
    /// End after this many rounds even if nothing is decided
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u16).range(1..))]
    pub rounds_max: u16,
    /// Change a value of the kernel during the measurement; it is put back at the end. Enough for a
    /// value that only this network namespace has, as in a container
    #[arg(long)]
    pub yes: bool,
    /// With --yes, change a value that every program on this machine gets, too: a sysctl, or a
    /// setting of a disk. If the machine stops meanwhile, a value that is written in no file ends
    /// with it; after a kill, `tune revert --yes` puts it back
    #[arg(long, requires = "yes")]
    pub whole_machine: bool,
    /// How each run is done.
    #[command(flatten)]
    pub runs: TuneRunArgs,
}

/// Options of `tune search`.
#[derive(Args, Debug)]
pub struct TuneSearchArgs {
    /// What to search: sessions (of the load), concurrency (of deliveries), batch (keys in one
    /// request to a directory or database), or threads (of the server)
    pub parameter: SearchParameter,
    /// The lowest value
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub min: Option<u64>,
    /// The highest value. Default: 1024 sessions, concurrent deliveries; 512 keys; two threads for
    /// each processor; or the value in force, if that is higher. The value in force is always run
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub max: Option<u64>,
    /// Each value is this many times the one before
    #[arg(long, value_name = "FACTOR", default_value = "2", value_parser = factor)]
    pub step: f64,
    /// A rate that is this much below the best is as good
    #[arg(long, value_name = "PERCENT", default_value = "5", value_parser = percent)]
    pub tolerance: f64,
    /// End after this many runs
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..))]
    pub runs_max: u16,
    /// How each run is done.
    #[command(flatten)]
    pub runs: TuneRunArgs,
}

/// Options of both.
#[derive(Args, Debug)]
#[command(next_help_heading = "Runs")]
pub struct TuneRunArgs {
    /// accept-many, accept-one, deliver-maildir, relay, lookup or read-http
    #[arg(long)]
    pub scenario: Scenario,
    /// How long the load of each run lasts
    #[arg(long = "run", value_name = "SPAN", default_value = "2s", value_parser = span)]
    pub time: Duration,
    /// How long the load waits for each reply; then the run has failed. Default: 60s
    #[arg(long, value_name = "SPAN", value_parser = span)]
    pub timeout: Option<Duration>,
    /// Connections of the load
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub sessions: u32,
    /// File with one recipient address on each line, for the scenario lookup
    #[arg(long, value_name = "FILE")]
    pub recipients_from: Option<PathBuf>,
    /// The folder for the data of the runs, which are removed. Default: beside the spool; for root,
    /// the nearest folder above it on the same disk that is root's
    #[arg(long, value_name = "DIR")]
    pub folder: Option<PathBuf>,
    /// End after this time even if nothing is decided
    #[arg(long, value_name = "SPAN", default_value = "10m", value_parser = span)]
    pub time_max: Duration,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Also write a file of results
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// What a knob is judged by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[expect(missing_docs, reason = "each is the figure of its name, and a doc comment would be its help")]
pub enum MeasuredFigure {
    Rate,
    Cpu,
}

/// Parses `500ms`, `30s`, `5m`.
pub(super) fn span(text: &str) -> Result<Duration, String> {
    let span = units::parse_duration(text).filter(|span| !span.is_zero());
    span.ok_or_else(|| "expected a span of time: 500ms, 30s, 5m".into())
}

/// Parses `3` or `3%` as 0.03.
fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).parse().ok();
    let percent = number.filter(|percent| (0.1..=50.0).contains(percent)).map(|percent: f64| percent / 100.0);
    percent.ok_or_else(|| "expected a percentage from 0.1 to 50".into())
}

fn factor(text: &str) -> Result<f64, String> {
    let factor = text.parse().ok().filter(|factor| (1.1..=FACTOR_MAX).contains(factor));
    factor.ok_or_else(|| format!("expected a number from 1.1 to {FACTOR_MAX}"))
}
