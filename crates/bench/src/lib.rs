//! The laboratory: loads, sinks and checks for any mail server.
//!
//! Each command is a module with its `Options`, which are also its part of the command line, and a
//! `run` function that returns a [`RunVerdict`]. Reports go to standard output, as text or as JSON;
//! progress goes to standard error. Load goes only to this machine, unless the operator states that
//! they own the target.

pub mod crash;
mod dial;
mod engine;
mod fault;
pub mod files;
pub mod http;
mod ledger;
pub mod load_average;
pub mod machine_usage;
mod open_files_limit;
mod options;
mod order;
mod pacer;
mod per_connection;
pub mod pop3;
mod progress_view;
mod report;
mod runtime;
mod signals;
pub mod sink;
pub mod smtp;
mod stamp;
mod summary;
mod sys;
mod tally;
mod target;
mod timing_stats;
pub mod verify;

pub use fault::Fault;
pub use ledger::{AcknowledgedMessages, Ledger};
pub use options::LoadOptions;
pub use order::Order;
pub use per_connection::PerConnection;
pub use report::RunVerdict;
pub use stamp::{ExaminedMessage, Examiner, RunId, Stamp, examine};
pub use summary::LoadSummary;
pub use target::{Ownership, Target};
pub use timing_stats::TimingStats;
