//! What the loads over a network have in common on the command line, and how its values are read.
//!
//! A text becomes the finished value here, once, or the command line is refused with what was expected; behind this
//! file every rate is one that can be kept and every span is longer than nothing.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use mail::units;

use crate::target::Ownership;

/// The slowest open loop: one in eleven days.
const RATE_MIN: f64 = 1e-6;
/// The fastest one.
const RATE_MAX: f64 = 1e9;

/// How much load, for how long, and from where.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "How much load, and for how long")]
pub struct LoadOptions {
    /// Whose the targets are.
    #[command(flatten)]
    pub ownership: Ownership,
    /// Connections at a time
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    pub connections: u32,
    /// So many a second, whatever the server does (open loop); left out: as fast as the connections can
    #[arg(long, value_name = "PER_SECOND", value_parser = rate)]
    pub rate: Option<f64>,
    /// End after this time; what is under way is finished
    #[arg(long, value_name = "SPAN", value_parser = span)]
    pub duration: Option<Duration>,
    /// A local address to connect from; several take turns
    #[arg(long, value_name = "ADDRESS")]
    pub local: Vec<IpAddr>,
    /// How long to wait for the server at each step
    #[arg(long, value_name = "SPAN", default_value = "60s", value_parser = span)]
    pub timeout: Duration,
    /// Threads that carry the connections
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub threads: u32,
    /// Where what is random begins
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
    /// A path on the disk to watch meanwhile
    #[arg(long, value_name = "PATH", default_value = ".")]
    pub disk: PathBuf,
    /// The summary as JSON
    #[arg(long)]
    pub json: bool,
}

/// `500ms`, `30s`, `5m`, `2h`.
pub(crate) fn span(text: &str) -> Result<Duration, String> {
    units::span(text).filter(|span| !span.is_zero()).ok_or_else(|| "expected a span of time: 500ms, 30s, 5m".into())
}

/// `6000`, `64KiB`, `10MB`.
pub(crate) fn octets(text: &str) -> Result<u64, String> {
    let plain = text.parse().ok();
    plain.or_else(|| units::size(text)).ok_or_else(|| "expected a number of bytes: 6000, 64KiB, 10MB".into())
}

/// `0%` to `100%`, as 0 to 1.
pub(crate) fn share(text: &str) -> Result<f64, String> {
    let percent = text.strip_suffix('%').and_then(|percent| percent.parse().ok());
    let share = percent.filter(|percent| (0.0..=100.0).contains(percent)).map(|percent: f64| percent / 100.0);
    share.ok_or_else(|| "expected 0% to 100%".to_owned())
}

fn rate(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|rate| (RATE_MIN..=RATE_MAX).contains(rate));
    number.ok_or_else(|| format!("expected a number from {RATE_MIN} to {RATE_MAX}"))
}
