//! The file of results (JSON): what was measured, how, on which machine, every run, and what follows.
//!
//! One file holds one scenario: one or more cases (the points of a sweep, in order), each with rounds,
//! each with one run of every system. `compare`, `tune measure`, `tune search` and `bench/run` write it,
//! and the page and `--against` read nothing else. `docs/result.schema.json` describes it for other
//! programs. A file of another [`FORMAT`] is refused.
//!
//! Times are seconds, sizes bytes, CPU is user plus system time.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The version of the format, in the field `format`.
pub const FORMAT: u32 = 1;

/// A file of results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResultFile {
    /// [`FORMAT`].
    pub format: u32,
    /// The scenario, for programs: files of the same name are compared with one another.
    pub name: String,
    /// For people.
    pub title: String,
    /// What the measurement asks; None where the title says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub question: Option<String>,
    /// The answer in one sentence, with its figures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
    /// The command line that repeats it.
    pub command: String,
    /// When it began (RFC 3339, UTC).
    pub started: String,
    /// How long it took; None if it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// Smaller or shorter than the full measurement: for a first look only.
    #[serde(default)]
    pub is_trial: bool,
    /// What was left out or made smaller: "every count or time divided by 20". None for a complete measurement. A
    /// result that is kept all the same is no trial.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reduced: Option<String>,
    /// The machine: processor, memory, kernel, file system, versions. In the order in which they are shown.
    pub machine: Vec<Property>,
    /// Singular of what is counted: message, page, session.
    pub unit: String,
    /// What differs between the cases ("connections"), if there is more than one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub case_name: Option<String>,
    /// The systems, in the order in which they are shown.
    pub systems: Vec<System>,
    /// The cases; one without a label if nothing is varied.
    pub cases: Vec<Case>,
    /// Ratios of two systems, or of two cases of one system.
    #[serde(default)]
    pub comparisons: Vec<Comparison>,
    /// What else was checked.
    #[serde(default)]
    pub checks: Vec<Check>,
    /// Curves over time or over another quantity that is no case.
    #[serde(default)]
    pub charts: Vec<Chart>,
    /// Tables of other figures.
    #[serde(default)]
    pub tables: Vec<Table>,
    /// What a reader must know in order to believe the figures.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// A name and its value, such as "kernel" and its version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Property {
    /// For people.
    pub name: String,
    /// For people.
    pub value: String,
}

/// A measured system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct System {
    /// The name by which runs and comparisons refer to it.
    pub name: String,
    /// Its version, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The command lines of its load.
    #[serde(default)]
    pub commands: Vec<String>,
    /// Its configuration as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configuration: Option<String>,
}

/// One case: the same rounds for one value of what is varied.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// The value as text ("400"); empty if nothing is varied.
    pub label: String,
    /// The value as a number, for the axis of a curve; None for a choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    /// Each round has at most one run of each system.
    pub rounds: Vec<BTreeMap<String, Run>>,
}

/// The figures of one system in one round.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// Messages, pages or sessions that succeeded.
    pub count: u64,
    /// From the first connection to the last reply, or to the last arrival where the arrival of mail is counted.
    pub seconds: f64,
    /// CPU of the system; None if it is on another machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_seconds: Option<f64>,
    /// CPU of the load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_cpu_seconds: Option<f64>,
    /// CPU of the whole machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_cpu_seconds: Option<f64>,
    /// Memory of the system at the end: each of its processes with its part of what it shares (Pss), or with all of it
    /// where that cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resident_bytes: Option<u64>,
    /// What limited the rate, if it can be said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    /// Latency in seconds by percentile: "50", "95", "99", "100".
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub latency_seconds: BTreeMap<String, f64>,
}

/// What limited a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// All processors of the machine were busy.
    Processor,
    /// One thread of the system was busy all the time, on a machine with processors to spare.
    Thread,
    /// The disk was busy.
    Disk,
    /// The network was at its rate.
    Network,
    /// The load was as fast as it can be.
    Load,
    /// Nothing was busy: the system waited, for example for its own limits.
    Waiting,
}

impl Limit {
    /// In the order in which they are shown.
    pub const ALL: [Limit; 6] =
        [Limit::Processor, Limit::Thread, Limit::Disk, Limit::Network, Limit::Load, Limit::Waiting];
}

/// A figure of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// Units a second.
    Rate,
    /// CPU seconds of the system for 1,000 units.
    CpuPerThousand,
    /// CPU seconds of the load for 1,000 units.
    LoadCpuPerThousand,
    /// CPU seconds of the machine for 1,000 units.
    MachineCpuPerThousand,
    /// Memory of the system, in bytes.
    ResidentBytes,
}

impl Figure {
    /// In the order in which they are shown.
    pub const ALL: [Figure; 5] = [
        Figure::Rate,
        Figure::CpuPerThousand,
        Figure::LoadCpuPerThousand,
        Figure::MachineCpuPerThousand,
        Figure::ResidentBytes,
    ];
}

/// The ratio of two systems in one case, over its rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Comparison {
    /// What is compared.
    pub figure: Figure,
    /// The system in the numerator.
    pub over: String,
    /// The system in the denominator.
    pub under: String,
    /// The label of the case of the numerator; empty if nothing is varied.
    #[serde(default)]
    pub case: String,
    /// The label of the case of the denominator, if it is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub under_case: Option<String>,
    /// The median of the ratios of the rounds.
    pub ratio: f64,
    /// The interval that holds the true median with 95 % confidence; None with too few rounds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<(f64, f64)>,
    /// What was aimed at, for people ("at least 10").
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aim: Option<String>,
    /// Whether the aim was met; None without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_met: Option<bool>,
}

/// Something that was checked, or only measured, besides the ratios.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// What should be so, or what was measured without an aim, for people.
    pub aim: String,
    /// What was found, for people.
    pub measured: String,
    /// Whether it is so; None without an aim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_met: Option<bool>,
}

/// Curves in one chart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chart {
    /// For people.
    pub title: String,
    /// The quantity on the horizontal axis, with its unit.
    pub x_name: String,
    /// The quantity on the vertical axis, with its unit.
    pub y_name: String,
    /// One for each curve.
    pub series: Vec<Series>,
}

/// A curve.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Series {
    /// What the curve shows.
    pub name: String,
    /// Its points, by rising x.
    pub points: Vec<(f64, f64)>,
}

/// A table of figures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// For people.
    pub title: String,
    /// The heads of the columns.
    pub columns: Vec<String>,
    /// Rows, each with a cell for each column.
    pub rows: Vec<Vec<String>>,
}

impl Run {
    /// A figure of this run; None if it was not measured.
    #[must_use]
    pub fn figure(&self, figure: Figure) -> Option<f64> {
        let per_thousand = |seconds: f64| seconds / self.count as f64 * 1000.0;
        match figure {
            Figure::Rate => Some(self.count as f64 / self.seconds),
            Figure::CpuPerThousand => self.cpu_seconds.map(per_thousand),
            Figure::LoadCpuPerThousand => self.load_cpu_seconds.map(per_thousand),
            Figure::MachineCpuPerThousand => self.machine_cpu_seconds.map(per_thousand),
            Figure::ResidentBytes => self.resident_bytes.map(|bytes| bytes as f64),
        }
    }
}
