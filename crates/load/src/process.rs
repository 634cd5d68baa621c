//! The processor time of this process, all threads together, since it started, and apart from it that
//! of its children that ended and were waited for. The kernel knows the total exactly,
//! but may estimate its split into user and system time from clock ticks: a difference of two
//! samples is accurate over many ticks, and over a few ticks only as the total.

use std::io;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;

/// Processor seconds since the process started.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProcessCpuTime {
    /// User time.
    pub user_secs: f64,
    /// System time.
    pub system_secs: f64,
}

impl ProcessCpuTime {
    /// Reads the time that all threads used so far; children are not included.
    ///
    /// # Errors
    ///
    /// `getrusage(2)` fails, which should not happen.
    pub fn sample() -> io::Result<ProcessCpuTime> {
        ProcessCpuTime::sample_of(UsageWho::RUSAGE_SELF)
    }

    /// Reads the time of all children that ended and were waited for, with that of their children.
    ///
    /// # Errors
    ///
    /// Those of [`ProcessCpuTime::sample`].
    pub fn sample_ended_children() -> io::Result<ProcessCpuTime> {
        ProcessCpuTime::sample_of(UsageWho::RUSAGE_CHILDREN)
    }

    /// User and system time together.
    pub fn total_secs(self) -> f64 {
        self.user_secs + self.system_secs
    }

    fn sample_of(whose: UsageWho) -> io::Result<ProcessCpuTime> {
        let usage = getrusage(whose)?;
        Ok(ProcessCpuTime { user_secs: seconds(usage.user_time()), system_secs: seconds(usage.system_time()) })
    }
}

fn seconds(time: TimeVal) -> f64 {
    time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_takes_time() {
        let before = ProcessCpuTime::sample().unwrap().total_secs();
        while ProcessCpuTime::sample().unwrap().total_secs() - before < 0.01 {}
    }
}
