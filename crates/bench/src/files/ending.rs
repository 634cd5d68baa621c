//! When a run comes to its end: when all is done, when its time is over, or when somebody gives the word (SIGINT,
//! SIGTERM).
//!
//! Every phase asks before each of its steps, and finishes the step that it is at: one file, or one batch of a log. The
//! end that has come stays: where a phase was cut off, no later one does anything. Whatever the end is, the report says
//! it, and the folder of the run is removed; the removal is no part of the time.

use std::fmt;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::signals::Word;

/// Watches for the end.
#[derive(Debug)]
pub(crate) struct Ending {
    deadline: Option<Instant>,
    word: Option<Word>,
    end: End,
}

/// What brought a run to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum End {
    /// There was nothing left to do.
    AllDone,
    /// Its time was over before.
    Time,
    /// A signal came before.
    Signal,
}

impl Ending {
    /// Of a run that begins now, and has so much time, if any.
    pub(crate) fn new(span: Option<Duration>, word: Option<Word>) -> Ending {
        Ending { deadline: span.and_then(|span| Instant::now().checked_add(span)), word, end: End::AllDone }
    }

    /// To be asked where something is left to do: whether it is to be left undone.
    pub(crate) fn has_come(&mut self) -> bool {
        let is_late = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        if is_late && self.end == End::AllDone {
            self.end = End::Time;
        }
        self.end != End::AllDone || self.was_told()
    }

    /// The same for what is to be done even when the time is over.
    pub(crate) fn was_told(&mut self) -> bool {
        let is_told = self.word.as_ref().is_some_and(Word::is_given);
        if is_told && self.end == End::AllDone {
            self.end = End::Signal;
        }
        is_told
    }

    /// What it was, or is so far.
    pub(crate) fn end(&self) -> End {
        self.end
    }
}

/// A line of its own, where there is something to say.
impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::AllDone => Ok(()),
            End::Time => writeln!(f, "  ended by its time, before all was done"),
            End::Signal => writeln!(f, "  ended by a signal, before all was done"),
        }
    }
}
