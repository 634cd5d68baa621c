//! The faults that a test has planned, the operation counters they refer to, and the log.

use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::io;
use std::ops::Range;

/// An input/output error (the Linux number).
pub const EIO: i32 = 5;
/// The device is full (the Linux number).
pub const ENOSPC: i32 = 28;

/// The maximum number of log lines; older ones are dropped.
const LOG_LINES_MAX: usize = 4096;

/// A kind of operation, for planning faults and holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OperationKind {
    /// `create`.
    Create,
    /// `open`.
    Open,
    /// `list`.
    List,
    /// `rename`.
    Rename,
    /// `remove`.
    Remove,
    /// `sync_folder`.
    SyncFolder,
    /// `read_at` of a file.
    Read,
    /// `write_at` of a file.
    Write,
    /// `sync` of a file.
    Sync,
}

impl OperationKind {
    /// Whether it can change what a crash leaves. Only these are steps.
    fn is_step(self) -> bool {
        !matches!(self, OperationKind::Open | OperationKind::List | OperationKind::Read)
    }
}

/// The planned result of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlannedResult {
    Succeed,
    Fail(i32),
    /// The power fails during the operation: it may or may not take effect, and returns an error.
    PowerFailure,
}

#[derive(Debug, Default)]
pub(crate) struct FaultPlan {
    steps: u64,
    counts: [u64; 9],
    failures: Vec<PlannedFailure>,
    power_fails_at: Option<u64>,
    is_off: bool,
    log: VecDeque<String>,
}

#[derive(Debug)]
struct PlannedFailure {
    kind: OperationKind,
    ordinals: Range<u64>,
    errno: i32,
}

impl FaultPlan {
    /// Counts an operation and decides its result.
    pub(crate) fn begin(&mut self, kind: OperationKind, what: fmt::Arguments<'_>) -> io::Result<PlannedResult> {
        if self.is_off {
            return Err(power_off_error());
        }
        let ordinal = self.counts[kind as usize];
        self.counts[kind as usize] += 1;
        self.steps += u64::from(kind.is_step());
        let fate = if kind.is_step() && self.power_fails_at == Some(self.steps) {
            self.is_off = true;
            PlannedResult::PowerFailure
        } else {
            let planned = self.failures.iter().find(|f| f.kind == kind && f.ordinals.contains(&ordinal));
            planned.map_or(PlannedResult::Succeed, |failure| PlannedResult::Fail(failure.errno))
        };
        if kind.is_step() || fate != PlannedResult::Succeed {
            self.note(kind, what, fate);
        }
        Ok(fate)
    }

    /// `ordinals` counts operations of `kind` from now; 0 is the next one.
    pub(crate) fn fail(&mut self, kind: OperationKind, ordinals: Range<u64>, errno: i32) {
        let now = self.counts[kind as usize];
        let ordinals = now + ordinals.start..now.saturating_add(ordinals.end);
        self.failures.push(PlannedFailure { kind, ordinals, errno });
    }

    /// Cuts the power during the `step`-th step, counted from 1.
    pub(crate) fn fail_power_at(&mut self, step: u64) {
        self.power_fails_at = Some(step);
    }

    pub(crate) fn fail_power(&mut self) {
        self.is_off = true;
        self.line("the power fails".to_owned());
    }

    pub(crate) fn is_off(&self) -> bool {
        self.is_off
    }

    pub(crate) fn steps(&self) -> u64 {
        self.steps
    }

    pub(crate) fn count(&self, kind: OperationKind) -> u64 {
        self.counts[kind as usize]
    }

    pub(crate) fn log(&self) -> String {
        self.log.iter().fold(String::new(), |mut text, line| {
            text.push_str(line);
            text.push('\n');
            text
        })
    }

    fn note(&mut self, kind: OperationKind, what: fmt::Arguments<'_>, fate: PlannedResult) {
        let mut line = format!("{:>5} {kind:?} {what}", self.steps);
        // Writing to a String cannot fail.
        let _ = match fate {
            PlannedResult::Succeed => Ok(()),
            PlannedResult::Fail(errno) => write!(line, " -> error {errno}"),
            PlannedResult::PowerFailure => write!(line, " -> the power fails"),
        };
        self.line(line);
    }

    fn line(&mut self, line: String) {
        if self.log.len() == LOG_LINES_MAX {
            self.log.pop_front();
        }
        self.log.push_back(line);
    }
}

/// The error of every operation after a power failure.
pub(crate) fn power_off_error() -> io::Error {
    io::Error::other("the simulated machine is off")
}
