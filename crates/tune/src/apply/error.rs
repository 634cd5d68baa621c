//! Why a change was not made.

use std::io;

/// Why nothing was changed, or not all of it.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The request cannot be meant like this; nothing was changed.
    #[error("{0}")]
    Usage(String),
    /// It is not done, for a reason that the operator can remove; nothing was changed.
    #[error("{0}")]
    Refused(String),
    /// The configuration would not be accepted as it would become; nothing was changed.
    #[error("{0}")]
    Configuration(String),
    /// This process lacks rights; nothing was changed.
    #[error("{0}")]
    MissingRights(String),
    /// A change failed, and what was changed is put back, or could not be; the text says which.
    #[error("{0}")]
    Failed(String),
    /// An operation failed.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done.
        doing: String,
        /// The reason.
        source: io::Error,
    },
}

/// Says what was being done when an operation failed.
pub(crate) fn doing(verb: &str, path: &str) -> impl FnOnce(io::Error) -> ApplyError + use<> {
    let doing = format!("{verb} {path}");
    move |source| ApplyError::Io { doing, source }
}
