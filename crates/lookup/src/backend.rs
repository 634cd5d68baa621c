//! Sources of answers outside this process, such as an LDAP server, a database server or a database
//! file.
//!
//! A [`Backend`] answers requests and caches nothing. Only
//! [`BackendTable`](crate::layers::BackendTable) calls it, on a thread that belongs to the table,
//! so its futures need not be `Send` and may block without delaying sessions or other tables.

use std::pin::Pin;

use crate::LookupAnswer;

/// Resolves to the answers in the order of the keys, or to the failure of the whole request.
pub type BackendFuture<'a> = Pin<Box<dyn Future<Output = Result<Vec<LookupAnswer>, BackendFailure>> + 'a>>;

/// Resolves to the result of a probe.
pub type ProbeFuture<'a> = Pin<Box<dyn Future<Output = Result<(), BackendFailure>> + 'a>>;

/// A failed request. Says nothing about any key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {what}")]
pub struct BackendFailure {
    /// The origin of the failure: the URL of a server or the path of a file.
    pub at: Box<str>,
    /// The error in the backend's words.
    pub what: Box<str>,
}

impl BackendFailure {
    /// The failure `what` at `at`.
    pub fn new(at: impl Into<Box<str>>, what: impl ToString) -> Self {
        BackendFailure { at: at.into(), what: what.to_string().into() }
    }
}

/// A source of answers outside this process.
pub trait Backend: Send + 'static {
    /// Answers all keys, which are folded and distinct. If only some keys have no answer, theirs
    /// are [`LookupAnswer::Unavailable`]; an error means that the whole request failed. Must end
    /// within the backend's own timeouts.
    fn ask<'a>(&'a self, keys: &'a [Box<str>]) -> BackendFuture<'a>;

    /// Sends a cheap request that succeeds once the backend works again.
    fn probe(&self) -> ProbeFuture<'_>;
}
