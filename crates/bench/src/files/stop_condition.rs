//! When a run ends: all work is done, its time is over, or a signal of the operator arrived.
//!
//! Each phase checks this before each step (one file, or one batch of a log) and finishes the step
//! it has begun. Once the condition is met it stays met, so later phases do nothing. The report
//! names the reason. The folder is removed in all cases; the removal is not timed.

use std::fmt;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::signals::StopSignal;

/// Tells whether the run must end.
#[derive(Debug)]
pub(crate) struct StopCondition {
    deadline: Option<Instant>,
    signal: Option<StopSignal>,
    end: StopReason,
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StopReason {
    /// All work was done.
    AllDone,
    /// The time was over first.
    Time,
    /// A signal arrived first.
    Signal,
}

impl StopCondition {
    /// For a run that begins now; None is no time limit.
    pub(crate) fn new(span: Option<Duration>, signal: Option<StopSignal>) -> StopCondition {
        StopCondition {
            deadline: span.and_then(|span| Instant::now().checked_add(span)),
            signal,
            end: StopReason::AllDone,
        }
    }

    /// Whether to end before the next step.
    pub(crate) fn is_met(&mut self) -> bool {
        let is_late = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        if is_late && self.end == StopReason::AllDone {
            self.end = StopReason::Time;
        }
        self.end != StopReason::AllDone || self.is_signalled()
    }

    /// Whether a signal arrived, for work that ignores the time limit.
    pub(crate) fn is_signalled(&mut self) -> bool {
        let is_signalled = self.signal.as_ref().is_some_and(StopSignal::is_received);
        if is_signalled && self.end == StopReason::AllDone {
            self.end = StopReason::Signal;
        }
        is_signalled
    }

    /// The reason so far.
    pub(crate) fn reason(&self) -> StopReason {
        self.end
    }
}

/// A line for the report; empty if all was done.
impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StopReason::AllDone => Ok(()),
            StopReason::Time => writeln!(f, "  ended by --duration before all was done"),
            StopReason::Signal => writeln!(f, "  ended by a signal before all was done"),
        }
    }
}
