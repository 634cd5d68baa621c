//! Options of `bench`: the load tests have theirs in the crate `bench`; those that measure systems side by side and show
//! results are here.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::tune_runs::span;

/// Benchmarks and tests.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Send mail at full speed or at a fixed rate
    Smtp(Box<bench::smtp::SmtpOptions>),
    /// Accept and discard mail, check each message, or simulate a slow server
    Sink(bench::sink::SinkOptions),
    /// Compare delivered mail with the 250 replies: lost, duplicate or damaged
    Verify(bench::verify::VerifyOptions),
    /// Kill a server repeatedly under load and check its 250 replies
    Crash(Box<bench::crash::CrashOptions>),
    /// Read mailboxes over POP3
    Pop3(Box<bench::pop3::Pop3Options>),
    /// Log in over POP3 or IMAP and out again, directly or through a proxy
    Login(Box<bench::login::LoginOptions>),
    /// Fetch pages over HTTP
    Http(Box<bench::http::HttpOptions>),
    /// Simulate the file access of mail systems, or append to a log like a spool
    Files(bench::files::FilesOptions),
    /// Measure the cost of reading a load gauge
    Load(bench::load_average::LoadAverageOptions),
    /// Measure the bare cost of a DKIM signature: an RSA key operation and a hash
    Sign(bench::signature::SignatureOptions),
    /// Measure systems side by side, as a file describes them
    ///
    /// Each round runs every system, started anew in a folder of its own, one after the other. The
    /// figures are CPU seconds for 1,000 messages, of the system and of the whole machine, and the
    /// rate; the table has their medians, ratios with an interval of 95 % confidence, and what limited
    /// each run. The results are written to a file, for `bench report`. Without --rounds, rounds end
    /// when the intervals decide, after eight at the earliest. The exit code is 1 if an aim is missed.
    ///
    /// The file is explained in docs/laboratory.md; examples/compare has ready ones. It contains
    /// commands, which are run: use no file that you have not read.
    Compare(BenchCompareArgs),
    /// Show results of measurements as a page of HTML, and compare them with earlier ones
    ///
    /// The page needs nothing besides itself: it can be mailed, printed and read without a network.
    /// With --against, figures of the same result, case and system are compared, on the page and as
    /// a table on the terminal. The exit code is 1 if one is worse by more than 5 %, and its
    /// interval of 95 % confidence agrees.
    Report(BenchReportArgs),
}

/// Options of `bench compare`.
#[derive(Args, Debug)]
pub struct BenchCompareArgs {
    /// The systems and scenarios
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Run only this scenario; repeat it for more than one
    #[arg(long, value_name = "NAME")]
    pub scenario: Vec<String>,
    /// Run this many rounds; fewer than 6 have no intervals, and are a trial
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: Option<u32>,
    /// Take ten minutes at most, or this time, as a trial: loads are a tenth, pauses a second, and rounds
    /// as many as fit
    #[arg(long, value_name = "SPAN", num_args = 0..=1, require_equals = true, default_missing_value = "10m", value_parser = span)]
    pub quick: Option<Duration>,
    /// Divide the count and the time of every load by this, as a trial
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub shrink: Option<u64>,
    /// The folder for the files of results, SCENARIO.json; it is created if it does not exist
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub output: PathBuf,
    /// Where the systems keep their files, on the disk to measure; by default the folder for temporary files
    #[arg(long, value_name = "DIR")]
    pub folder: Option<PathBuf>,
    /// Print the results as JSON, one object for each scenario
    #[arg(long)]
    pub json: bool,
    /// Targets on other machines.
    #[command(flatten)]
    pub ownership: bench::OwnedTargetOptions,
}

/// Options of `bench report`.
#[derive(Args, Debug)]
pub struct BenchReportArgs {
    /// Files of results, or folders with such files (*.json)
    #[arg(required = true, value_name = "PATH")]
    pub results: Vec<PathBuf>,
    /// Earlier results, a file or a folder, to compare with those of the same name
    #[arg(long, value_name = "PATH")]
    pub against: Option<PathBuf>,
    /// The page to write; it replaces an earlier page, but no other file
    #[arg(long, value_name = "FILE", default_value = "page.html")]
    pub output: PathBuf,
    /// The title of the page; by default that of its only result
    #[arg(long, value_name = "TEXT")]
    pub title: Option<String>,
}
