//! What a measurement needs of the world: runs of the system, a clock, and a line for the terminal. All of it is
//! passed in, so [`measure`](crate::measure()) and [`search`](crate::search()) are tested with simulated systems.

use std::time::Duration;

use compare::result::Run;

/// Runs the system with one value of what is varied.
pub trait Trial {
    /// One run of a fresh system with this value, under the whole load.
    ///
    /// # Errors
    ///
    /// The operator stopped it, the host does not take this value, or the system does not work with it. Nothing that was
    /// started is left.
    fn run(&mut self, value: &str) -> Result<Run, TrialError>;
}

/// Why a run has no figures.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrialError {
    /// The operator ended the measurement.
    #[error("ended by a signal; everything that was started is stopped and removed")]
    Stopped,
    /// What was asked cannot be measured here: why, and what to do. No other value and no further run helps.
    #[error("{0}")]
    Refused(String),
    /// The system did not start, or refused or lost messages: what happened, and with which value.
    #[error("{0}")]
    Failed(String),
}

/// Changes values of the kernel for the time of a measurement. When it is dropped, all of them are put back.
pub trait HostChanges {
    /// Checks, without changing anything, that the host takes a value.
    ///
    /// # Errors
    ///
    /// It does not, for the reason that the text gives.
    fn check(&self, value: &str) -> Result<(), String>;

    /// Sets the value.
    ///
    /// # Errors
    ///
    /// The host does not take it, for the reason that the text gives.
    fn set(&mut self, value: &str) -> Result<(), String>;

    /// Puts everything back.
    ///
    /// # Errors
    ///
    /// A value could not be put back; the text says which, and what to do.
    fn put_back(self: Box<Self>) -> Result<(), String>;
}

/// The clock of a measurement, and those who watch it.
pub trait Watch {
    /// The time since the measurement began.
    fn elapsed(&mut self) -> Duration;
    /// What runs now, what is left, and the result so far; `line` is only called if it is shown.
    fn show(&mut self, line: &dyn Fn() -> String);
}

/// A measurement ends before a round, or a run, that would probably end after this time.
#[derive(Debug)]
pub(crate) struct Deadline {
    time_max: Duration,
    longest: Duration,
    begun: Duration,
}

impl Deadline {
    pub(crate) fn new(time_max: Duration) -> Deadline {
        Deadline { time_max, longest: Duration::ZERO, begun: Duration::ZERO }
    }

    /// Whether there is time for another one as long as the longest so far; if so, it begins now.
    pub(crate) fn allows_another(&mut self, now: Duration) -> bool {
        self.begun = now;
        now < self.time_max && now + self.longest <= self.time_max
    }

    /// The one that began last has ended.
    pub(crate) fn end(&mut self, now: Duration) {
        self.longest = self.longest.max(now.saturating_sub(self.begun));
    }
}
