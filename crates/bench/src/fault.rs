//! Why a command could not run to its end. What a server answers is never a fault; it is a result.
//!
//! Faults are split by what the operator has to fix: the command line, the data, a service that
//! does not answer, or the system. The exit code follows from that.

use std::fmt::Display;
use std::io;

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The options contradict each other or are invalid.
    #[error("{0}")]
    Usage(String),
    /// A file to read is invalid: a ledger, a mailbox, a histogram of sizes.
    #[error("{0}")]
    Data(String),
    /// A needed service does not answer.
    #[error("{0}")]
    Unavailable(String),
    /// A system call failed.
    #[error("{what}")]
    System {
        /// What was attempted: `binding 127.0.0.1:25`.
        what: String,
        /// The error of the system.
        #[source]
        error: io::Error,
    },
}

impl BenchError {
    /// For `map_err`: adds what was attempted to a system error.
    pub(crate) fn system(what: impl Display) -> impl FnOnce(io::Error) -> BenchError {
        move |error| BenchError::System { what: what.to_string(), error }
    }
}
