//! The options that all network loads share, and the parsers of option values.
//!
//! Values are validated here: rates are in range, and time spans are not zero.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use mail::units;

use crate::target::OwnedTargetOptions;

/// The slowest open loop: one in eleven days.
const RATE_MIN: f64 = 1e-6;
/// The fastest open loop.
const RATE_MAX: f64 = 1e9;

/// The amount of load, its duration and its source.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Load and duration")]
pub struct LoadOptions {
    /// Owned targets.
    #[command(flatten)]
    pub ownership: OwnedTargetOptions,
    /// Number of concurrent connections
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    pub connections: u32,
    /// Start this many per second (open loop); by default, as fast as the connections can
    #[arg(long, value_name = "PER_SECOND", value_parser = rate)]
    pub rate: Option<f64>,
    /// Stop after this time; work in progress is finished
    #[arg(long, value_name = "SPAN", value_parser = span)]
    pub duration: Option<Duration>,
    /// Local address to connect from; several are used in turn
    #[arg(long, value_name = "ADDRESS")]
    pub local: Vec<IpAddr>,
    /// How long to wait for the server in each step
    #[arg(long, value_name = "SPAN", default_value = "60s", value_parser = span)]
    pub timeout: Duration,
    /// Number of threads
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub threads: u32,
    /// Seed of the random choices
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
    /// Path on the disk to watch during the run
    #[arg(long, value_name = "PATH", default_value = ".")]
    pub disk: PathBuf,
    /// Print the summary as JSON
    #[arg(long)]
    pub json: bool,
}

/// Parses `500ms`, `30s`, `5m`, `2h`.
pub(crate) fn span(text: &str) -> Result<Duration, String> {
    units::parse_duration(text)
        .filter(|span| !span.is_zero())
        .ok_or_else(|| "expected a span of time: 500ms, 30s, 5m".into())
}

/// Parses `6000`, `64KiB`, `10MB`.
pub(crate) fn octets(text: &str) -> Result<u64, String> {
    let plain = text.parse().ok();
    plain.or_else(|| units::parse_size(text)).ok_or_else(|| "expected a number of bytes: 6000, 64KiB, 10MB".into())
}

/// Parses `0%` to `100%` as 0 to 1.
pub(crate) fn share(text: &str) -> Result<f64, String> {
    let percent = text.strip_suffix('%').and_then(|percent| percent.parse().ok());
    let share = percent.filter(|percent| (0.0..=100.0).contains(percent)).map(|percent: f64| percent / 100.0);
    share.ok_or_else(|| "expected 0% to 100%".to_owned())
}

fn rate(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|rate| (RATE_MIN..=RATE_MAX).contains(rate));
    number.ok_or_else(|| format!("expected a number from {RATE_MIN} to {RATE_MAX}"))
}
