//! Why a measurement has no result. A ratio that misses its aim is a result, not an error.
//!
//! Errors are split by what the operator has to do: change the command line or the file, look at a
//! program that failed, look at the system, or nothing because the operator ended the run.

use std::fmt::Display;
use std::io;

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// The command line asks for something that is not in the file.
    #[error("{0}")]
    Usage(String),
    /// The file has errors; the text has the place of each.
    #[error("{0}")]
    Data(String),
    /// A program did not start, was not ready in time, failed, or lost what it had acknowledged.
    #[error("{0}")]
    Failed(String),
    /// A signal of the operator ended the run.
    #[error("ended by a signal: no result was written")]
    Interrupted,
    /// The time for the whole run is over.
    #[error("the time is over before the first round was complete: give it less to do with --shrink")]
    TimeOver,
    /// A system call failed.
    #[error("{what}")]
    System {
        /// What was attempted: `starting postfix`.
        what: String,
        /// The error of the system.
        #[source]
        error: io::Error,
    },
}

impl CompareError {
    /// For `map_err`: adds what was attempted to a system error.
    pub fn system<E: Into<io::Error>>(what: impl Display) -> impl FnOnce(E) -> CompareError {
        move |error| CompareError::System { what: what.to_string(), error: error.into() }
    }
}
