//! `bench files`: measures a file system with many small files, as postmark(1) does, or with a log
//! that is synced in batches, as a spool does.
//!
//! A run works in a new folder below `--folder` and removes it in all cases, also after a signal or
//! a fault. Everything that is read is compared with what was written; a difference makes the
//! verdict `Bad`. Errors of the system (a full disk, a failed sync) are a [`BenchError`]; otherwise
//! there is a report of the work done so far. A megabyte is 1,000,000 bytes.

mod content;
mod damage;
mod log;
mod plan;
mod pool;
mod stop_condition;
mod stopwatch;
mod store;
mod work_folder;

use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use clap::builder::{RangedI64ValueParser, RangedU64ValueParser};
use serde::Serialize;

use crate::BenchError;
use crate::options::{octets, span};
use crate::report::{self, RunVerdict};
use crate::signals::StopSignal;
use plan::BIAS_MAX;
use stop_condition::StopCondition;

/// Limits the memory of the plan, which is 24 bytes a file.
const FILES_MAX: u64 = 100_000_000;
/// More subfolders need more open files than a process has.
const SUBFOLDERS_MAX: u64 = 1000;
/// The largest size of one read or write.
const BLOCK_BYTES_MAX: u64 = 64 << 20;

/// Options of `bench files`.
#[derive(Clone, Debug, clap::Args)]
pub struct FilesOptions {
    /// Folder to work in; a subfolder is created and removed afterwards
    #[arg(long, value_name = "DIR", default_value = ".")]
    folder: PathBuf,
    /// What to measure
    #[arg(long, value_enum, default_value_t = FilePattern::Pool)]
    pattern: FilePattern,
    /// Seed of the random choices
    #[arg(long, value_name = "NUMBER", default_value_t = 42)]
    seed: u64,
    /// End after this time, even if work is left; SIGINT, SIGTERM, SIGHUP and SIGQUIT also end the run with a report
    #[arg(long, value_name = "SPAN", value_parser = span)]
    duration: Option<Duration>,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pool: PoolOptions,
    #[command(flatten)]
    log: LogOptions,
}

/// What to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FilePattern {
    /// Create, read, append to and delete many small files, as postmark does
    Pool,
    /// Append records to one file, synced in batches
    Log,
}

/// When written data is synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum SyncMode {
    /// Never; the system decides
    None,
    /// fsync each file after it was written
    File,
    /// fsync each file and its folder, also after a deletion
    Folder,
}

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "With --pattern pool")]
struct PoolOptions {
    /// Number of files at first; the pool may grow to twice as many
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = count(1..=FILES_MAX))]
    files: usize,
    /// Number of transactions: one file read or appended to, then one created or deleted
    #[arg(long, value_name = "N", default_value_t = 500)]
    transactions: u64,
    /// Size of a file
    #[arg(long, value_name = "MIN..MAX", default_value = "500..10000", value_parser = size)]
    size: RangeInclusive<u64>,
    /// How many of ten files are read rather than appended to
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = bias())]
    read_bias: u8,
    /// How many of ten files are created rather than deleted
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = bias())]
    create_bias: u8,
    /// Bytes to read or write at a time, before buffering
    #[arg(long, value_name = "BYTES", default_value = "512", value_parser = block)]
    block: usize,
    /// Read and write each block with a system call; by default, buffer as C's stdio does
    #[arg(long)]
    unbuffered: bool,
    /// Number of subfolders to spread the files over; 0 uses the folder itself
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = count(0..=SUBFOLDERS_MAX))]
    subfolders: usize,
    /// What to sync before the next operation
    #[arg(long, value_enum, default_value_t = SyncMode::None)]
    sync: SyncMode,
}

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "With --pattern log")]
struct LogOptions {
    /// Number of records to write
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    records: u64,
    /// Size of a record
    #[arg(long, value_name = "BYTES", default_value = "6000", value_parser = block)]
    record: usize,
    /// Size of a batch, which is written and synced together; a batch ends with a whole record
    #[arg(long, value_name = "BYTES", default_value = "64KiB", value_parser = block)]
    batch: usize,
    /// Overwrite a file written before, instead of a new one
    #[arg(long)]
    overwrite: bool,
}

/// Measures and reports.
///
/// # Errors
///
/// Returns [`BenchError::System`] if the folder cannot be used or an operation fails.
pub fn run(options: &FilesOptions) -> Result<RunVerdict, BenchError> {
    let ending = StopCondition::new(options.duration, Some(StopSignal::listen()?));
    match options.pattern {
        FilePattern::Pool => {
            let report = pool::measure(options, ending)?;
            report::print(&report, options.json)?;
            Ok(RunVerdict::from_soundness(report.is_sound()))
        }
        FilePattern::Log => {
            let report = log::measure(options, ending)?;
            report::print(&report, options.json)?;
            Ok(RunVerdict::from_soundness(report.is_sound()))
        }
    }
}

impl fmt::Display for SyncMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SyncMode::None => "nothing synced",
            SyncMode::File => "each file synced",
            SyncMode::Folder => "each file and its folder synced",
        })
    }
}

/// Zero if no time has passed.
fn per_second(amount: f64, seconds: f64) -> f64 {
    if seconds > 0.0 { amount / seconds } else { 0.0 }
}

fn count(range: RangeInclusive<u64>) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(range)
}

fn bias() -> RangedI64ValueParser<u8> {
    clap::value_parser!(u8).range(..=i64::from(BIAS_MAX))
}

/// Parses `500..10000` or `4KiB..64KiB`, both ends included.
fn size(text: &str) -> Result<RangeInclusive<u64>, String> {
    let (min, max) = text.split_once("..").ok_or("expected two sizes: 500..10000")?;
    let sizes = octets(min)?..=octets(max)?;
    if sizes.is_empty() {
        Err("the first size is larger than the second; expected 500..10000".into())
    } else {
        Ok(sizes)
    }
}

/// Parses the size of one read or write.
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
    struct CommandLine {
        #[command(flatten)]
        options: FilesOptions,
    }

    /// Parses options with this folder.
    pub(super) fn options(folder: &Path, words: &[&str]) -> FilesOptions {
        let line = CommandLine::try_parse_from([&["files", "--folder", folder.to_str().unwrap()], words].concat());
        line.unwrap_or_else(|error| panic!("{error}")).options
    }

    #[test]
    fn the_defaults_are_those_of_postmark() {
        let CommandLine { options } = CommandLine::try_parse_from(["files"]).unwrap();
        assert_eq!((options.pattern, options.seed, options.pool.sync), (FilePattern::Pool, 42, SyncMode::None));
        assert_eq!((options.pool.files, options.pool.transactions, options.pool.size), (500, 500, 500..=10_000));
        assert_eq!((options.pool.read_bias, options.pool.create_bias, options.pool.block), (5, 5, 512));
    }

    #[test]
    fn invalid_values_are_refused() {
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
            assert!(CommandLine::try_parse_from([&["files"], &words[..]].concat()).is_err(), "{words:?}");
        }
    }
}
