//! Where answers come from that are not in this process: a directory or a database behind a network, a file with an
//! engine of its own.
//!
//! A [`Backend`] answers what it is asked and keeps nothing. It is asked by [`Layered`](crate::layers::Layered) alone, on
//! a thread that the table has for itself: its futures need not be `Send`, and one that blocks holds up no session and no
//! other table.

use std::pin::Pin;

use crate::Answer;

/// Answers to come, in the order of the keys; or why the whole request failed.
pub type Asked<'a> = Pin<Box<dyn Future<Output = Result<Vec<Answer>, Failure>> + 'a>>;

/// Whether it works again, to come.
pub type Probed<'a> = Pin<Box<dyn Future<Output = Result<(), Failure>> + 'a>>;

/// A request failed, and says nothing of any key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {what}")]
pub struct Failure {
    /// Who failed: the URL of a server, the path of a file.
    pub at: Box<str>,
    /// The error in its own words.
    pub what: Box<str>,
}

impl Failure {
    /// `what` went wrong at `at`.
    pub fn new(at: impl Into<Box<str>>, what: impl ToString) -> Self {
        Failure { at: at.into(), what: what.to_string().into() }
    }
}

/// Something that answers from outside this process.
pub trait Backend: Send + 'static {
    /// Answers all keys, which are folded and of which none is there twice. A key of which it knows that it cannot say is
    /// [`Answer::Unavailable`] by itself; a failure is about all of them. Must end within the time-outs of its own.
    fn ask<'a>(&'a self, keys: &'a [Box<str>]) -> Asked<'a>;

    /// A cheap question that nobody waits for: it succeeds when the backend can be asked again.
    fn probe(&self) -> Probed<'_>;
}
