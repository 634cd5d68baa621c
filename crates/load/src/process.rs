//! The processor time of this process, all threads together, since it started.
//!
//! Child processes are not included, not even finished ones. The kernel knows the total exactly,
//! but may estimate its split into user and system time from clock ticks: a difference of two
//! samples is accurate over many ticks, and over a few ticks only as the total.

use std::io;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;

/// Processor seconds of all threads since the process started.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProcessCpuTime {
    /// User time.
    pub user_secs: f64,
    /// System time.
    pub system_secs: f64,
}

impl ProcessCpuTime {
    /// Reads the time used so far.
    ///
    /// # Errors
    ///
    /// `getrusage(2)` fails, which should not happen.
    pub fn sample() -> io::Result<ProcessCpuTime> {
        let usage = getrusage(UsageWho::RUSAGE_SELF)?;
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
        let before = ProcessCpuTime::sample().unwrap();
        let spent = |now: ProcessCpuTime| now.user_secs + now.system_secs - before.user_secs - before.system_secs;
        while spent(ProcessCpuTime::sample().unwrap()) < 0.01 {}
    }
}
