//! The laboratory: loads, sinks and checks for any mail server.
//!
//! Each command is a module with its `Options`, which are also its part of the command line, and a
//! `run` function that returns a [`Verdict`]. Reports go to standard output, as text or as JSON;
//! progress goes to standard error. Load goes only to this machine, unless the operator states that
//! they own the target.

pub mod crash;
mod dial;
mod engine;
mod fault;
pub mod files;
pub mod gauges;
mod handles;
pub mod http;
mod ledger;
pub mod meanwhile;
mod options;
mod order;
mod pace;
mod per_connection;
pub mod pop3;
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
mod times;
pub mod verify;
mod view;

pub use fault::Fault;
pub use ledger::{Acknowledged, Ledger};
pub use options::LoadOptions;
pub use order::Order;
pub use per_connection::PerConnection;
pub use report::Verdict;
pub use stamp::{Examiner, RunId, Seen, Stamp, examine};
pub use summary::Summary;
pub use target::{Ownership, Target};
pub use times::Times;
