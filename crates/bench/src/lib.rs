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
pub mod login;
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
pub mod signature;
pub mod sink;
pub mod smtp;
mod stamp;
mod summary;
mod sys;
mod tally;
mod target;
mod timing_stats;
pub mod verify;

pub use fault::BenchError;
pub use ledger::{AcknowledgedMessages, LedgerWriter};
pub use options::LoadOptions;
pub use order::SelectionOrder;
pub use per_connection::MessagesPerConnection;
pub use report::RunVerdict;
pub use signals::StopSignal;
pub use stamp::{MessageStamp, RunId, StampCheckResult, StampChecker, check_stamp};
pub use summary::LoadSummary;
pub use target::{OwnedTargetOptions, TargetServer};
pub use timing_stats::TimingStats;
