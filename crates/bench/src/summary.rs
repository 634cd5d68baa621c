//! The report of a load: rate, times by phase, errors by text, and the use of the machine; as text
//! and as JSON.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use tokio::time::Instant;

use crate::RunVerdict;
use crate::machine_usage::{BYTES_PER_MB, MachineUsage};
use crate::tally::LoadTally;
use crate::timing_stats::{TimeUnit, TimingStats, table};

/// Times are in microseconds.
const COUNTS_PER_US: f64 = 1.0;

/// The names of what a load counts and times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadLabels {
    /// The unit of a ticket, in the plural: messages.
    pub(crate) unit: &'static str,
    /// The parts of a unit, in the plural: recipients.
    pub(crate) part: &'static str,
    /// The names of the phases in order.
    pub(crate) phases: &'static [&'static str],
}

/// The result of a run. Rates count from the first ticket to the end of the last one.
#[derive(Debug, Serialize)]
pub struct LoadSummary {
    /// The protocol and the targets.
    pub title: String,
    /// The unit of a ticket, in the plural: messages.
    pub unit: &'static str,
    /// Whether the run was stopped before its count or time.
    pub stopped: bool,
    /// Tickets that succeeded.
    pub done: u64,
    /// Tickets that failed.
    pub failed: u64,
    /// Tickets of an open loop that were due and never started. `latency` includes their waiting
    /// time.
    pub missed: u64,
    /// Tickets in progress when the run was aborted.
    pub unfinished: u64,
    /// The parts of a unit, in the plural: recipients.
    pub part: &'static str,
    /// Parts that succeeded.
    pub parts: u64,
    /// From the first ticket to the end of the last one.
    pub seconds: f64,
    /// Successful tickets per second.
    pub rate: f64,
    /// Bytes of content, without the protocol.
    pub octets: u64,
    /// Connections that were opened.
    pub connections: u64,
    /// Connections with TLS.
    pub tls_connections: u64,
    /// Error texts and their counts.
    pub errors: BTreeMap<String, u64>,
    /// From the scheduled time of each ticket to its end.
    pub latency: TimingStats,
    /// Times of the phases.
    pub phases: Vec<TimingStats>,
    /// The use of the machine during the run.
    pub machine: MachineUsage,
}

impl LoadSummary {
    pub(crate) fn of(
        title: String,
        labels: &LoadLabels,
        tally: &LoadTally,
        begun: Instant,
        machine: MachineUsage,
    ) -> LoadSummary {
        let seconds = tally.last.map_or(0.0, |last| (last - begun).as_secs_f64());
        let phases = labels.phases.iter().zip(&tally.phases).filter(|(_, histogram)| !histogram.is_empty());
        LoadSummary {
            title,
            unit: labels.unit,
            stopped: false,
            done: tally.counts.done,
            failed: tally.counts.failed,
            missed: tally.counts.missed,
            unfinished: tally.counts.in_flight(),
            part: labels.part,
            parts: tally.counts.parts,
            seconds,
            rate: if seconds > 0.0 { tally.counts.done as f64 / seconds } else { 0.0 },
            octets: tally.counts.octets,
            connections: tally.counts.connections,
            tls_connections: tally.counts.tls_connections,
            errors: tally.errors.clone(),
            latency: TimingStats::from_histogram("latency", &tally.latency, COUNTS_PER_US),
            phases: phases
                .map(|(name, histogram)| TimingStats::from_histogram(name, histogram, COUNTS_PER_US))
                .collect(),
            machine,
        }
    }

    /// Bad if a ticket failed, was missed or unfinished, or if none was done.
    pub fn verdict(&self) -> RunVerdict {
        let whole = self.failed == 0 && self.missed == 0 && self.unfinished == 0;
        RunVerdict::from_soundness(whole && self.errors.is_empty() && self.done > 0)
    }
}

impl fmt::Display for LoadSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.title)?;
        writeln!(
            f,
            "{} {} ({} {}) in {:.2} s: {:.1} a second, {:.1} MB; {} failed",
            self.done,
            self.unit,
            self.parts,
            self.part,
            self.seconds,
            self.rate,
            self.octets as f64 / BYTES_PER_MB,
            self.failed
        )?;
        if self.missed > 0 {
            writeln!(
                f,
                "{} were due and never started: the server is too slow, or --connections too low",
                self.missed
            )?;
        }
        if self.stopped {
            writeln!(f, "stopped early; {} were in progress and aborted", self.unfinished)?;
        }
        writeln!(f, "{} connections, {} of them secured by TLS\n", self.connections, self.tls_connections)?;
        writeln!(f, "{}\n", table(TimeUnit::Milliseconds, self.phases.iter().chain([&self.latency])))?;
        for (text, count) in &self.errors {
            writeln!(f, "{count:>9}  {text}")?;
        }
        write!(f, "{}", self.machine)
    }
}
