//! Why a run could not be made, or had to be given up. What a server answers is never a fault: it is a result.
//!
//! Faults are told apart by what the operator will do about them: mend the command line, mend the data, start what does
//! not answer, or look at what the system refused. The exit code is made of that.

use std::fmt::Display;
use std::io;

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The options contradict each other, or name something that cannot be.
    #[error("{0}")]
    Usage(String),
    /// Data that was to be read does not say what it should: a ledger, a mailbox, a histogram of sizes.
    #[error("{0}")]
    Data(String),
    /// Somebody who is needed does not answer.
    #[error("{0}")]
    Unavailable(String),
    /// The system refused.
    #[error("{what}")]
    System {
        /// What was tried: `binding 127.0.0.1:25`.
        what: String,
        /// What it said.
        #[source]
        error: io::Error,
    },
}

impl Fault {
    /// For `map_err`: an error of the system together with what was tried.
    pub(crate) fn system(what: impl Display) -> impl FnOnce(io::Error) -> Fault {
        move |error| Fault::System { what: what.to_string(), error }
    }
}
