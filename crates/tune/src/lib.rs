//! Checks the settings of the host and of the server that decide how fast and how safely mail is stored.
//!
//! The knobs are data: `knobs.toml` says of each where its value is, what is wanted and why. [`check`] reads the values
//! from a [`Host`], compares them with what the [`ServerSettings`] need, and changes nothing. What cannot be read is
//! "unknown", never an error, and whatever the files contain, nothing here panics. [`SyncTimes`] and [`ResolverTimes`]
//! measure; only they and [`apply`] write or send anything. [`apply`] changes the knobs, and puts everything back.

pub mod apply;
mod check;
mod disks;
mod host;
mod knob;
mod manual;
mod mounts;
mod probe;
mod process;
mod read;
mod report;
mod resolver;
mod rule;
mod settings;
mod survey;
mod value;

pub use check::{CheckReport, KnobResult, Verdict, check};
pub use host::{FolderFlags, Host, InodeCounts, LiveSystemCalls, SystemCalls};
pub use knob::{ApplyTarget, Knob, KnobGroup, Reader, Rule, RuleName, Sureness, ValueKind, knobs};
pub use manual::reference;
pub use probe::SyncTimes;
pub use report::{Probes, render_json, render_text};
pub use resolver::ResolverTimes;
pub use settings::{LdapTable, ServerSettings};
pub use value::Value;
