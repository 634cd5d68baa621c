//! What a load did and how the server took it: rate, times by phase, errors by reply, and what the machine did
//! meanwhile. The same figures as text for people and as JSON for programs.

use std::collections::BTreeMap;
use std::fmt;

use comfy_table::{CellAlignment, Table, presets};
use hdrhistogram::Histogram;
use serde::Serialize;
use tokio::time::Instant;

use crate::Verdict;
use crate::engine::Load;
use crate::meanwhile::Meanwhile;
use crate::tally::Tally;

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

/// How long something took, in microseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Times {
    /// What.
    pub name: &'static str,
    /// How often.
    pub count: u64,
    /// The shortest.
    pub min_us: u64,
    /// The mean.
    pub mean_us: f64,
    /// The median.
    pub p50_us: u64,
    /// Nine in ten took no longer.
    pub p90_us: u64,
    /// 99 in 100 took no longer.
    pub p99_us: u64,
    /// 999 in 1,000 took no longer.
    pub p999_us: u64,
    /// The longest.
    pub max_us: u64,
}

impl Summary {
    pub(crate) fn of<L: Load>(title: String, tally: &Tally, begun: Instant, machine: Meanwhile) -> Summary {
        let seconds = tally.last.map_or(0.0, |last| (last - begun).as_secs_f64());
        let phases = L::PHASES.iter().zip(&tally.phases).filter(|(_, histogram)| !histogram.is_empty());
        Summary {
            title,
            unit: L::UNIT,
            stopped: false,
            done: tally.counts.done,
            failed: tally.counts.failed,
            missed: tally.counts.missed,
            unfinished: tally.counts.in_flight(),
            part: L::PART,
            parts: tally.counts.parts,
            seconds,
            rate: if seconds > 0.0 { tally.counts.done as f64 / seconds } else { 0.0 },
            octets: tally.counts.octets,
            connections: tally.counts.connections,
            tls_connections: tally.counts.tls_connections,
            errors: tally.errors.clone(),
            latency: Times::of("latency", &tally.latency),
            phases: phases.map(|(name, histogram)| Times::of(name, histogram)).collect(),
            machine,
        }
    }

    /// Bad if anything went wrong or did not come to its end, or nothing was done.
    pub fn verdict(&self) -> Verdict {
        let whole = self.failed == 0 && self.missed == 0 && self.unfinished == 0;
        Verdict::of(whole && self.errors.is_empty() && self.done > 0)
    }
}

impl Times {
    pub(crate) fn of(name: &'static str, histogram: &Histogram<u64>) -> Times {
        let at = |quantile| histogram.value_at_quantile(quantile);
        Times {
            name,
            count: histogram.len(),
            min_us: histogram.min(),
            mean_us: histogram.mean(),
            p50_us: at(0.5),
            p90_us: at(0.9),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: histogram.max(),
        }
    }

    fn row(&self) -> Vec<String> {
        let times = [self.min_us, self.p50_us, self.p90_us, self.p99_us, self.p999_us, self.max_us];
        let milliseconds = times.iter().map(|&time| format!("{:.2}", time as f64 / 1e3));
        [self.name.to_owned(), self.count.to_string()].into_iter().chain(milliseconds).collect()
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
            self.octets as f64 / 1e6,
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
        writeln!(f, "{}\n", self.table())?;
        for (text, count) in &self.errors {
            writeln!(f, "{count:>9}  {text}")?;
        }
        write!(f, "{}", self.machine)
    }
}

impl Summary {
    fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(["milliseconds", "count", "min", "p50", "p90", "p99", "p99.9", "max"]);
        table.add_rows(self.phases.iter().chain([&self.latency]).map(Times::row));
        table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
        table
    }
}
