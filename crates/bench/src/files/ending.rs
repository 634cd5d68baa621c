//! When a run ends: all work is done, its time is over, or SIGINT or SIGTERM arrived.
//!
//! Each phase checks this before each step (one file, or one batch of a log) and finishes the step
//! it has begun. Once the condition is met it stays met, so later phases do nothing. The report
//! names the reason. The folder is removed in all cases; the removal is not timed.

use std::fmt;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::signals::Word;

/// Tells whether the run must end.
#[derive(Debug)]
pub(crate) struct Ending {
    deadline: Option<Instant>,
    word: Option<Word>,
    end: End,
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum End {
    /// All work was done.
    AllDone,
    /// The time was over first.
    Time,
    /// A signal arrived first.
    Signal,
}

impl Ending {
    /// For a run that begins now; None is no time limit.
    pub(crate) fn new(span: Option<Duration>, word: Option<Word>) -> Ending {
        Ending { deadline: span.and_then(|span| Instant::now().checked_add(span)), word, end: End::AllDone }
    }

    /// Whether to end before the next step.
    pub(crate) fn has_come(&mut self) -> bool {
        let is_late = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        if is_late && self.end == End::AllDone {
            self.end = End::Time;
        }
        self.end != End::AllDone || self.was_told()
    }

    /// Whether a signal arrived, for work that ignores the time limit.
    pub(crate) fn was_told(&mut self) -> bool {
        let is_told = self.word.as_ref().is_some_and(Word::is_given);
        if is_told && self.end == End::AllDone {
            self.end = End::Signal;
        }
        is_told
    }

    /// The reason so far.
    pub(crate) fn end(&self) -> End {
        self.end
    }
}

/// A line for the report; empty if all was done.
impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::AllDone => Ok(()),
            End::Time => writeln!(f, "  ended by --duration before all was done"),
            End::Signal => writeln!(f, "  ended by a signal before all was done"),
        }
    }
}
