//! What a load did and how the server took it: rate, times by phase, errors by reply, and what the machine did
//! meanwhile. The same figures as text for people and as JSON for programs.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use tokio::time::Instant;

use crate::Verdict;
use crate::meanwhile::{BYTES_PER_MB, Meanwhile};
use crate::tally::Tally;
use crate::times::{Times, Unit, table};

/// A tally counts its times in microseconds.
const COUNTS_PER_US: f64 = 1.0;

/// What a load counts and times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counted {
    /// What a ticket is for, in the plural: messages.
    pub(crate) unit: &'static str,
    /// What it consists of, in the plural: recipients.
    pub(crate) part: &'static str,
    /// The names of what is timed, in the order in which it happens.
    pub(crate) phases: &'static [&'static str],
}

/// The end of a run. Rates count from the first ticket to the end of the last one.
#[derive(Debug, Serialize)]
pub struct Summary {
    /// What was put under which load.
    pub title: String,
    /// What is counted, in the plural: messages.
    pub unit: &'static str,
    /// Whether somebody ended the run before its count or time did.
    pub stopped: bool,
    /// How many were done.
    pub done: u64,
    /// How many were begun and came to nothing.
    pub failed: u64,
    /// How many of an open loop were due and never had their turn. They count in `latency` with the time that they had
    /// waited.
    pub missed: u64,
    /// How many were under way when the run was cut off.
    pub unfinished: u64,
    /// What they consist of, in the plural: recipients.
    pub part: &'static str,
    /// How many parts were done.
    pub parts: u64,
    /// From the first ticket to the end of the last one.
    pub seconds: f64,
    /// Done a second.
    pub rate: f64,
    /// Bytes of what was done, without the protocol around them.
    pub octets: u64,
    /// Connections that were opened.
    pub connections: u64,
    /// Those of them that TLS secured.
    pub tls_connections: u64,
    /// Errors by what was said, and how often.
    pub errors: BTreeMap<String, u64>,
    /// From the moment that each was due until it was done.
    pub latency: Times,
    /// What its steps took.
    pub phases: Vec<Times>,
    /// What the machine did meanwhile.
    pub machine: Meanwhile,
}

impl Summary {
    pub(crate) fn of(title: String, counted: &Counted, tally: &Tally, begun: Instant, machine: Meanwhile) -> Summary {
        let seconds = tally.last.map_or(0.0, |last| (last - begun).as_secs_f64());
        let phases = counted.phases.iter().zip(&tally.phases).filter(|(_, histogram)| !histogram.is_empty());
        Summary {
            title,
            unit: counted.unit,
            stopped: false,
            done: tally.counts.done,
            failed: tally.counts.failed,
            missed: tally.counts.missed,
            unfinished: tally.counts.in_flight(),
            part: counted.part,
            parts: tally.counts.parts,
            seconds,
            rate: if seconds > 0.0 { tally.counts.done as f64 / seconds } else { 0.0 },
            octets: tally.counts.octets,
            connections: tally.counts.connections,
            tls_connections: tally.counts.tls_connections,
            errors: tally.errors.clone(),
            latency: Times::of("latency", &tally.latency, COUNTS_PER_US),
            phases: phases.map(|(name, histogram)| Times::of(name, histogram, COUNTS_PER_US)).collect(),
            machine,
        }
    }

    /// Bad if anything went wrong or did not come to its end, or nothing was done.
    pub fn verdict(&self) -> Verdict {
        let whole = self.failed == 0 && self.missed == 0 && self.unfinished == 0;
        Verdict::of(whole && self.errors.is_empty() && self.done > 0)
    }
}

impl fmt::Display for Summary {
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
                "{} were due and never had their turn: the server was too slow, or the connections too few",
                self.missed
            )?;
        }
        if self.stopped {
            writeln!(f, "ended before its time; {} were under way and cut off", self.unfinished)?;
        }
        writeln!(f, "{} connections, {} of them secured by TLS\n", self.connections, self.tls_connections)?;
        writeln!(f, "{}\n", table(Unit::Milliseconds, self.phases.iter().chain([&self.latency])))?;
        for (text, count) in &self.errors {
            writeln!(f, "{count:>9}  {text}")?;
        }
        write!(f, "{}", self.machine)
    }
}
