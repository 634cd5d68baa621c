//! What the process itself has used of the processors, all of its threads together, since it was started.
//!
//! Processes that it started are not counted, even when they are over. The kernel knows the sum well, and how it parts
//! into program and kernel less so: it may guess that from clock ticks. A difference of two samples is sound over many
//! ticks, and over a few of them only as the sum.

use std::io;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;

/// Seconds of processors, all threads together, since the process was started.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProcessTime {
    /// In the program.
    pub user_secs: f64,
    /// In the kernel on its behalf.
    pub system_secs: f64,
}

impl ProcessTime {
    /// The time used so far.
    ///
    /// # Errors
    ///
    /// That of `getrusage(2)`, which has no reason for one.
    pub fn sample() -> io::Result<ProcessTime> {
        let usage = getrusage(UsageWho::RUSAGE_SELF)?;
        Ok(ProcessTime { user_secs: seconds(usage.user_time()), system_secs: seconds(usage.system_time()) })
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
        let before = ProcessTime::sample().unwrap();
        let spent = |now: ProcessTime| now.user_secs + now.system_secs - before.user_secs - before.system_secs;
        while spent(ProcessTime::sample().unwrap()) < 0.01 {}
    }
}
