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
pub enum Kind {
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

impl Kind {
    /// Whether it can change what a crash leaves. Only these are steps.
    fn is_step(self) -> bool {
        !matches!(self, Kind::Open | Kind::List | Kind::Read)
    }
}

/// The planned result of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Succeed,
    Fail(i32),
    /// The power fails during the operation: it may or may not take effect, and returns an error.
    Die,
}

#[derive(Debug, Default)]
pub(crate) struct Plan {
    steps: u64,
    counts: [u64; 9],
    failures: Vec<Failure>,
    death: Option<u64>,
    dead: bool,
    log: VecDeque<String>,
}

#[derive(Debug)]
struct Failure {
    kind: Kind,
    ordinals: Range<u64>,
    errno: i32,
}

impl Plan {
    /// Counts an operation and decides its result.
    pub(crate) fn begin(&mut self, kind: Kind, what: fmt::Arguments<'_>) -> io::Result<Fate> {
        if self.dead {
            return Err(gone());
        }
        let ordinal = self.counts[kind as usize];
        self.counts[kind as usize] += 1;
        self.steps += u64::from(kind.is_step());
        let fate = if kind.is_step() && self.death == Some(self.steps) {
            self.dead = true;
            Fate::Die
        } else {
            let planned = self.failures.iter().find(|f| f.kind == kind && f.ordinals.contains(&ordinal));
            planned.map_or(Fate::Succeed, |failure| Fate::Fail(failure.errno))
        };
        if kind.is_step() || fate != Fate::Succeed {
            self.note(kind, what, fate);
        }
        Ok(fate)
    }

    /// `ordinals` counts operations of `kind` from now; 0 is the next one.
    pub(crate) fn fail(&mut self, kind: Kind, ordinals: Range<u64>, errno: i32) {
        let now = self.counts[kind as usize];
        let ordinals = now + ordinals.start..now.saturating_add(ordinals.end);
        self.failures.push(Failure { kind, ordinals, errno });
    }

    /// Cuts the power during the `step`-th step, counted from 1.
    pub(crate) fn die_at(&mut self, step: u64) {
        self.death = Some(step);
    }

    pub(crate) fn die(&mut self) {
        self.dead = true;
        self.line("the power fails".to_owned());
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead
    }

    pub(crate) fn steps(&self) -> u64 {
        self.steps
    }

    pub(crate) fn count(&self, kind: Kind) -> u64 {
        self.counts[kind as usize]
    }

    pub(crate) fn log(&self) -> String {
        self.log.iter().fold(String::new(), |mut text, line| {
            text.push_str(line);
            text.push('\n');
            text
        })
    }

    fn note(&mut self, kind: Kind, what: fmt::Arguments<'_>, fate: Fate) {
        let mut line = format!("{:>5} {kind:?} {what}", self.steps);
        // Writing to a String cannot fail.
        let _ = match fate {
            Fate::Succeed => Ok(()),
            Fate::Fail(errno) => write!(line, " -> error {errno}"),
            Fate::Die => write!(line, " -> the power fails"),
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
pub(crate) fn gone() -> io::Error {
    io::Error::other("the simulated machine is off")
}
