//! Checks and measures the settings of the host and of the server that decide how fast and how safely mail is stored.
//!
//! The knobs are data: `knobs.toml` says of each where its value is, what is wanted and why. [`check`] reads the values
//! from a [`Host`], compares them with what the [`ServerSettings`] need, and changes nothing. What cannot be read is
//! "unknown", never an error, and whatever the files contain, nothing here panics. [`SyncTimes`] and [`ResolverTimes`]
//! measure; only they and [`apply`] write or send anything. [`apply`] changes the knobs, and puts everything back.
//!
//! [`measure()`] says whether other values of a knob are better, and [`search()`] finds the best value of a parameter. Both
//! are pure: a [`Trial`] runs the system. [`ServerTrial`] runs a real server in a [`Scenario`].

pub mod apply;
mod check;
mod description;
mod disks;
mod host;
mod knob;
mod live_values;
mod manual;
mod measure;
mod mounts;
mod probe;
mod process;
mod read;
mod report;
mod resolver;
mod rule;
mod scenario;
mod search;
mod search_parameter;
mod setting_path;
mod settings;
#[cfg(test)]
mod simulated;
mod survey;
mod target;
mod trial;
mod value;

pub use check::{CheckReport, KnobResult, Verdict, check};
pub use description::Description;
pub use host::{FolderFlags, Host, InodeCounts, LiveSystemCalls, SystemCalls};
pub use knob::{ApplyTarget, Knob, KnobGroup, Reader, Rule, RuleName, Sureness, ValueKind, knobs};
pub use live_values::LiveValues;
pub use manual::reference;
pub use measure::report::{render_measurement, render_measurement_json};
pub use measure::result_file::measurement_file;
pub use measure::{Effect, EffectVerdict, MeasureEnd, MeasurePlan, MeasureRound, Measurement, measure};
pub use probe::SyncTimes;
pub use report::{Probes, render_json, render_text};
pub use resolver::ResolverTimes;
pub use scenario::{QueueCounter, RunSettings, Scenario, ServerTrial};
pub use search::report::{curve_file, render_curve, render_curve_json};
pub use search::{Curve, RateAt, SearchEnd, SearchPlan, Shape, search};
pub use search_parameter::SearchParameter;
pub use setting_path::SettingPath;
pub use settings::{LdapTable, ServerSettings};
pub use target::{Target, TargetError, other_values};
pub use trial::{HostChanges, Trial, TrialError, Watch};
pub use value::Value;
