//! A failed request to a database server, classified by what can be done about it.

use crate::backend::BackendFailure;

/// A failed request.
#[derive(Debug)]
pub(crate) enum RequestError {
    /// The connection is unusable; another one may work.
    Connection(BackendFailure),
    /// The database rejects one of the keys.
    Keys(BackendFailure),
    /// A retry would not help. The connection is usable.
    Refused(BackendFailure),
    /// A retry would not help, and the result was not read completely.
    InvalidAnswer(BackendFailure),
}

impl RequestError {
    /// An unexpected result of the server at `at`.
    pub(crate) fn invalid_answer(at: &str, what: impl ToString) -> Self {
        RequestError::InvalidAnswer(BackendFailure::new(at, what))
    }

    /// The failure.
    pub(crate) fn into_failure(self) -> BackendFailure {
        match self {
            RequestError::Connection(failure)
            | RequestError::Keys(failure)
            | RequestError::Refused(failure)
            | RequestError::InvalidAnswer(failure) => failure,
        }
    }
}
