//! The same load with different numbers of connections: shows where the rate stops growing, where
//! latency rises, and where the server starts to refuse.

use std::fmt;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use crate::timing_stats::TimeUnit;
use crate::{LoadSummary, RunVerdict};

/// The results of all runs.
#[derive(Debug, Serialize)]
pub(super) struct Sweep {
    /// In the order of `--sweep`.
    pub(super) steps: Vec<SweepStep>,
}

/// The result of one run.
#[derive(Debug, Serialize)]
pub(super) struct SweepStep {
    connections: u32,
    /// Failed requests divided by all that ended.
    error_share: f64,
    summary: LoadSummary,
}

impl SweepStep {
    pub(super) fn new(connections: u32, summary: LoadSummary) -> SweepStep {
        let ended = summary.done + summary.failed;
        let error_share = if ended > 0 { summary.failed as f64 / ended as f64 } else { 0.0 };
        SweepStep { connections, error_share, summary }
    }

    fn row(&self) -> [String; 7] {
        let LoadSummary { done, rate, latency, .. } = &self.summary;
        [
            self.connections.to_string(),
            done.to_string(),
            format!("{rate:.1}"),
            TimeUnit::Milliseconds.format(latency.p50_us),
            TimeUnit::Milliseconds.format(latency.p99_us),
            TimeUnit::Milliseconds.format(latency.max_us),
            format!("{:.2}%", self.error_share * 100.0),
        ]
    }
}

impl Sweep {
    /// Good if every run is good.
    pub(super) fn verdict(&self) -> RunVerdict {
        RunVerdict::from_soundness(self.steps.iter().all(|step| step.summary.verdict() == RunVerdict::Good))
    }
}

impl fmt::Display for Sweep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(step) = self.steps.first() {
            writeln!(f, "{}\n", step.summary.title)?;
        }
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(["connections", "requests", "a second", "p50 ms", "p99 ms", "max ms", "errors"]);
        table.add_rows(self.steps.iter().map(SweepStep::row));
        table.column_iter_mut().for_each(|column| column.set_cell_alignment(CellAlignment::Right));
        writeln!(f, "{table}")?;
        for step in &self.steps {
            for (text, count) in &step.summary.errors {
                writeln!(f, "{count:>9}  with {} connections: {text}", step.connections)?;
            }
        }
        Ok(())
    }
}
