//! `bench files`: what a file system does with many small files, as postmark(1) asks it, or with a log that is synced
//! in batches, as a spool asks it.
//!
//! Works in a fresh folder inside the one that is named, and removes it, however the run ends: by itself, by its time, by
//! a signal, by a fault. What is read is held against what was written: a file system that loses or mixes up bytes is
//! found out, and the verdict is `Bad`. What the system refuses (a full disk, a failed sync) is a [`Fault`]; in all other
//! cases there is a report of what was done until then. A megabyte is 1,000,000 bytes.

mod content;
mod damage;
mod ending;
mod folder;
mod log;
mod plan;
mod pool;
mod stopwatch;
mod store;

use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use clap::builder::{RangedI64ValueParser, RangedU64ValueParser};
use serde::Serialize;

use crate::Fault;
use crate::options::{octets, span};
use crate::report::{self, Verdict};
use crate::signals::Word;
use ending::Ending;
use plan::BIAS_MAX;

/// More files at a time would not fit into the plan's memory, of 24 bytes for each.
const FILES_MAX: u64 = 100_000_000;
/// More subfolders need more open handles than a process has.
const SUBFOLDERS_MAX: u64 = 1000;
/// One call moves no more at a time.
const BLOCK_BYTES_MAX: u64 = 64 << 20;

/// What to do with how many files.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Where to work, in a folder of its own that is removed afterwards
    #[arg(long, value_name = "DIR", default_value = ".")]
    folder: PathBuf,
    /// What to ask of the file system
    #[arg(long, value_enum, default_value_t = Pattern::Pool)]
    pattern: Pattern,
    /// Where what is random begins
    #[arg(long, value_name = "NUMBER", default_value_t = 42)]
    seed: u64,
    /// End after this time, even if not all is done; SIGINT and SIGTERM end it too, with the report
    #[arg(long, value_name = "SPAN", value_parser = span)]
    duration: Option<Duration>,
    /// The report as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pool: PoolOptions,
    #[command(flatten)]
    log: LogOptions,
}

/// What to ask of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Pattern {
    /// Create, read, append to and delete many small files, as postmark does
    Pool,
    /// Append records to one file, synced in batches
    Log,
}

/// When a written file is made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Sync {
    /// When the system likes
    None,
    /// By an fsync of the file, each time that it was written
    File,
    /// By an fsync of the file and of its folder; of the folder too when a file was deleted
    Folder,
}

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "With --pattern pool")]
struct PoolOptions {
    /// Files at first; there may be twice as many later
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = count(1..=FILES_MAX))]
    files: usize,
    /// Transactions: a file read or appended to, then one created or deleted
    #[arg(long, value_name = "N", default_value_t = 500)]
    transactions: u64,
    /// Bytes of a file
    #[arg(long, value_name = "MIN..MAX", default_value = "500..10000", value_parser = size)]
    size: RangeInclusive<u64>,
    /// Chance in ten that a file is read and not appended to
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = bias())]
    read_bias: u8,
    /// Chance in ten that a file is created and not deleted
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = bias())]
    create_bias: u8,
    /// Bytes that are read or written at a time, before buffering
    #[arg(long, value_name = "BYTES", default_value = "512", value_parser = block)]
    block: usize,
    /// Read and write each block by a call of its own; left out: as C's stdio does it
    #[arg(long)]
    unbuffered: bool,
    /// Subfolders that the files are strewn over; 0: the folder itself
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = count(0..=SUBFOLDERS_MAX))]
    subfolders: usize,
    /// What is made durable before the next operation
    #[arg(long, value_enum, default_value_t = Sync::None)]
    sync: Sync,
}

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "With --pattern log")]
struct LogOptions {
    /// Records to write
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    records: u64,
    /// Bytes of a record
    #[arg(long, value_name = "BYTES", default_value = "6000", value_parser = block)]
    record: usize,
    /// Bytes after which a batch is written and synced; it ends with a whole record
    #[arg(long, value_name = "BYTES", default_value = "64KiB", value_parser = block)]
    batch: usize,
    /// Write over a file that was written before, and not into a new one
    #[arg(long)]
    overwrite: bool,
}

/// Asks, and reports.
///
/// # Errors
///
/// A [`Fault::System`] where the folder cannot be used or the system refuses an operation.
pub fn run(options: &Options) -> Result<Verdict, Fault> {
    let ending = Ending::new(options.duration, Some(Word::hear()?));
    match options.pattern {
        Pattern::Pool => {
            let report = pool::measure(options, ending)?;
            report::print(&report, options.json)?;
            Ok(Verdict::of(report.is_sound()))
        }
        Pattern::Log => {
            let report = log::measure(options, ending)?;
            report::print(&report, options.json)?;
            Ok(Verdict::of(report.is_sound()))
        }
    }
}

impl fmt::Display for Sync {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Sync::None => "nothing synced",
            Sync::File => "each file synced",
            Sync::Folder => "each file and its folder synced",
        })
    }
}

/// A rate; of no time at all, zero.
fn per_second(amount: f64, seconds: f64) -> f64 {
    if seconds > 0.0 { amount / seconds } else { 0.0 }
}

fn count(range: RangeInclusive<u64>) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(range)
}

fn bias() -> RangedI64ValueParser<u8> {
    clap::value_parser!(u8).range(..=i64::from(BIAS_MAX))
}

/// `500..10000`, `4KiB..64KiB`: both ends included.
fn size(text: &str) -> Result<RangeInclusive<u64>, String> {
    let (min, max) = text.split_once("..").ok_or("expected two sizes: 500..10000")?;
    let sizes = octets(min)?..=octets(max)?;
    if sizes.is_empty() { Err("the first size is the smaller one: 500..10000".into()) } else { Ok(sizes) }
}

/// Bytes that one call moves.
fn block(text: &str) -> Result<usize, String> {
    match octets(text)? {
        0 => Err("expected at least one byte".into()),
        bytes @ 1..=BLOCK_BYTES_MAX => Ok(bytes as usize),
        _ => Err(format!("expected at most {BLOCK_BYTES_MAX} bytes")),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    /// The options of a line, working in that folder.
    pub(super) fn options(folder: &Path, words: &[&str]) -> Options {
        let line = Line::try_parse_from([&["files", "--folder", folder.to_str().unwrap()], words].concat());
        line.unwrap_or_else(|error| panic!("{error}")).options
    }

    #[test]
    fn without_a_word_it_does_what_postmark_does() {
        let Line { options } = Line::try_parse_from(["files"]).unwrap();
        assert_eq!((options.pattern, options.seed, options.pool.sync), (Pattern::Pool, 42, Sync::None));
        assert_eq!((options.pool.files, options.pool.transactions, options.pool.size), (500, 500, 500..=10_000));
        assert_eq!((options.pool.read_bias, options.pool.create_bias, options.pool.block), (5, 5, 512));
    }

    #[test]
    fn values_that_cannot_be_are_refused() {
        for words in [
            ["--size", "10..5"],
            ["--size", "10"],
            ["--files", "0"],
            ["--block", "0"],
            ["--block", "1GiB"],
            ["--read-bias", "11"],
            ["--subfolders", "1001"],
            ["--records", "0"],
            ["--sync", "often"],
        ] {
            assert!(Line::try_parse_from([&["files"], &words[..]].concat()).is_err(), "{words:?}");
        }
    }
}
