//! `bench load`: compares the cost of the ways to read the load average: the system call, opening
//! the file in /proc each time, and reading a file that stays open.
//!
//! A reading yields three parsed numbers. The methods alternate in rounds, so that drift on the
//! machine affects all of them equally; each cost is the median of the rounds.

use std::fmt;
use std::fs::File;
use std::hint::black_box;
use std::io::{self, Read};
use std::time::Instant;

use clap::builder::RangedI64ValueParser;
use load::{LoadAverage, LoadAverageReader, PROC_LOADAVG, ProcessCpuTime};
use serde::Serialize;

use crate::BenchError;
use crate::machine_usage::MachineUsage;
use crate::report::{self, RunVerdict};

/// Rounds of each method.
const ROUNDS: u32 = 20;
/// `/proc/loadavg` is shorter than this.
const TEXT_BYTES_MAX: usize = 256;

/// Options of `bench load`.
#[derive(Clone, Debug, clap::Args)]
pub struct LoadAverageOptions {
    /// Number of readings with each method
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = readings_parser())]
    readings: u32,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// At least one reading in each round.
fn readings_parser() -> RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(i64::from(ROUNDS)..)
}

/// Measures and reports.
///
/// # Errors
///
/// Returns [`BenchError::System`] if the load average cannot be read.
pub fn run(options: &LoadAverageOptions) -> Result<RunVerdict, BenchError> {
    report::print(&measure(options)?, options.json)?;
    Ok(RunVerdict::Good)
}

/// The cost of each method.
#[derive(Debug, Serialize)]
struct LoadAverageReport {
    readings: u32,
    rounds: u32,
    ways: Vec<ReadCost>,
    meanwhile: MachineUsage,
}

/// The cost of one reading: the median of the rounds.
#[derive(Debug, Serialize)]
struct ReadCost {
    way: &'static str,
    ns_per_reading: f64,
    cpu_ns_per_reading: f64,
    ratio_to_cheapest: f64,
}

/// A method to read the load average.
struct ReadMethod<'a> {
    name: &'static str,
    read: Box<dyn FnMut() -> io::Result<LoadAverage> + 'a>,
    rounds: Vec<RoundCost>,
}

/// The cost of a reading in one round.
#[derive(Clone, Copy, Debug)]
struct RoundCost {
    ns: f64,
    cpu_ns: f64,
}

fn measure(options: &LoadAverageOptions) -> Result<LoadAverageReport, BenchError> {
    let usage_meter = MachineUsage::begin();
    let readings_per_round = options.readings / ROUNDS;
    let mut source = LoadAverageReader::open();
    let mut methods = read_methods(&mut source);
    for _ in 0..ROUNDS {
        for way in &mut methods {
            let round = measure_round(readings_per_round, &mut way.read)
                .map_err(BenchError::system(format!("reading by {}", way.name)))?;
            way.rounds.push(round);
        }
    }
    Ok(LoadAverageReport {
        readings: readings_per_round * ROUNDS,
        rounds: ROUNDS,
        ways: costs(methods),
        meanwhile: usage_meter.end(),
    })
}

fn read_methods(source: &mut LoadAverageReader) -> Vec<ReadMethod<'_>> {
    let method = |name, read| ReadMethod { name, read, rounds: Vec::new() };
    vec![
        method("sysinfo(2)", Box::new(|| Ok(LoadAverage::from_sysinfo()))),
        method("open, read, close", Box::new(read_reopened)),
        method("pread on an open file", Box::new(|| source.sample())),
    ]
}

fn read_reopened() -> io::Result<LoadAverage> {
    let mut text = [0; TEXT_BYTES_MAX];
    let length = File::open(PROC_LOADAVG)?.read(&mut text)?;
    let average = std::str::from_utf8(&text[..length]).ok().and_then(LoadAverage::parse);
    average.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn measure_round(readings: u32, read: &mut dyn FnMut() -> io::Result<LoadAverage>) -> io::Result<RoundCost> {
    let (begun, cpu_begun) = (Instant::now(), ProcessCpuTime::sample()?);
    for _ in 0..readings {
        black_box(read()?);
    }
    let (wall_secs, cpu) = (begun.elapsed().as_secs_f64(), ProcessCpuTime::sample()?);
    let cpu_secs = cpu.total_secs() - cpu_begun.total_secs();
    let ns = |secs: f64| secs * 1e9 / f64::from(readings);
    Ok(RoundCost { ns: ns(wall_secs), cpu_ns: ns(cpu_secs) })
}

fn costs(methods: Vec<ReadMethod<'_>>) -> Vec<ReadCost> {
    let mut costs: Vec<ReadCost> = methods.iter().map(ReadCost::of).collect();
    let cheapest = costs.iter().map(|cost| cost.ns_per_reading).fold(f64::INFINITY, f64::min);
    for cost in &mut costs {
        cost.ratio_to_cheapest = cost.ns_per_reading / cheapest;
    }
    costs
}

impl ReadCost {
    fn of(method: &ReadMethod<'_>) -> ReadCost {
        let median_of = |figure: fn(&RoundCost) -> f64| median(method.rounds.iter().map(figure).collect());
        let (ns_per_reading, cpu_ns_per_reading) = (median_of(|round| round.ns), median_of(|round| round.cpu_ns));
        ReadCost { way: method.name, ns_per_reading, cpu_ns_per_reading, ratio_to_cheapest: 1.0 }
    }
}

/// The middle value; with an even number of values the upper of the two.
fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

impl fmt::Display for LoadAverageReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} readings of the load average with each method, medians of {} rounds:",
            self.readings, self.rounds
        )?;
        for cost in &self.ways {
            write!(f, "  {:<22} {:>8.0} ns ", cost.way, cost.ns_per_reading)?;
            writeln!(f, "{:>8.0} ns of CPU {:>7.2} x", cost.cpu_ns_per_reading, cost.ratio_to_cheapest)?;
        }
        write!(f, "{}", self.meanwhile)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        options: LoadAverageOptions,
    }

    fn parse(words: &[&str]) -> Result<LoadAverageOptions, clap::Error> {
        CommandLine::try_parse_from([&["load"], words].concat()).map(|line| line.options)
    }

    #[test]
    fn the_command_line_is_read() {
        assert_eq!(parse(&[]).unwrap().readings, 200_000);
        assert_eq!(parse(&["--readings", "1000"]).unwrap().readings, 1000);
        assert!(parse(&["--readings", "19"]).is_err(), "a round would be empty");
    }

    #[test]
    fn every_read_method_has_a_cost_and_the_cheapest_has_ratio_one() {
        let report = measure(&parse(&["--readings", "2000"]).unwrap()).unwrap();
        assert_eq!(report.ways.len(), 3);
        assert!(
            report.ways.iter().all(|cost| cost.ns_per_reading > 0.0 && cost.ratio_to_cheapest >= 1.0),
            "{report:?}"
        );
        assert!(report.ways.iter().any(|cost| cost.ratio_to_cheapest == 1.0), "{report:?}");
        assert!(report.to_string().contains("pread on an open file"), "{report}");
    }

    #[test]
    fn the_median_is_in_the_middle_and_not_the_mean() {
        assert_eq!(median(vec![100.0, 1.0, 2.0]), 2.0);
    }
}
