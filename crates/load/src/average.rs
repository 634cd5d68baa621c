//! The load average: how many tasks run, want to run, or wait for a disk, averaged over one, five and fifteen minutes.
//!
//! From `/proc/loadavg` where there is one, else from `sysinfo(2)`; the source says which of them is in force.

use std::fmt;
use std::io;

use crate::record::Record;

/// Where the load average is read.
pub const PROC_LOADAVG: &str = "/proc/loadavg";

/// One reading, in tasks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadAverage {
    /// Over the last minute.
    pub one_min: f64,
    /// Over the last five minutes.
    pub five_min: f64,
    /// Over the last fifteen minutes.
    pub fifteen_min: f64,
}

/// Where readings come from.
#[derive(Debug)]
pub struct LoadAverageSource {
    from: From,
}

#[derive(Debug)]
enum From {
    Proc(Record),
    Sysinfo,
}

impl LoadAverageSource {
    /// Opens `/proc/loadavg`; where that is not possible, readings come from `sysinfo(2)`.
    pub fn open() -> LoadAverageSource {
        LoadAverageSource { from: Record::open(PROC_LOADAVG).map_or(From::Sysinfo, From::Proc) }
    }

    /// The load average now.
    ///
    /// # Errors
    ///
    /// `InvalidData` where `/proc/loadavg` does not read as expected.
    pub fn sample(&mut self) -> io::Result<LoadAverage> {
        match &mut self.from {
            From::Proc(record) => record.sample(LoadAverage::parse),
            From::Sysinfo => Ok(LoadAverage::from_sysinfo()),
        }
    }

    /// The source in force.
    pub fn name(&self) -> &'static str {
        match self.from {
            From::Proc(_) => PROC_LOADAVG,
            From::Sysinfo => "sysinfo",
        }
    }
}

/// The name of the source in force.
impl fmt::Display for LoadAverageSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl LoadAverage {
    /// Reads what `/proc/loadavg` says: three averages, then the tasks that run and the newest process.
    pub fn parse(text: &str) -> Option<LoadAverage> {
        let mut averages = text.split_ascii_whitespace().map(|word| word.parse::<f64>().ok().filter(|n| n.is_finite()));
        let mut next = || averages.next().flatten();
        Some(LoadAverage { one_min: next()?, five_min: next()?, fifteen_min: next()? })
    }

    /// Asks `sysinfo(2)`, which gives fractions of 65,536 and cannot fail.
    pub fn from_sysinfo() -> LoadAverage {
        let tasks = rustix::system::sysinfo().loads.map(|load| load as f64 / f64::from(1 << 16));
        LoadAverage { one_min: tasks[0], five_min: tasks[1], fifteen_min: tasks[2] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_averages_are_read() {
        let read = LoadAverage::parse("0.36 0.51 11.85 1/85 28791\n");
        assert_eq!(read, Some(LoadAverage { one_min: 0.36, five_min: 0.51, fifteen_min: 11.85 }));
    }

    #[test]
    fn garbage_is_no_average() {
        for text in ["", "\n", "0.36 0.51", "0.36 0.51 much", "NaN 1 1", "0,36 0,51 1,85 1/85 28791"] {
            assert_eq!(LoadAverage::parse(text), None, "{text:?}");
        }
    }

    /// The kernel moves its averages every five seconds; twice within that time they are the same from both.
    #[test]
    fn both_sources_agree() {
        let mut source = LoadAverageSource::open();
        assert_eq!(source.to_string(), PROC_LOADAVG);
        let agrees = (0..3).any(|_| {
            let (file, call) = (source.sample().unwrap(), LoadAverage::from_sysinfo());
            (file.one_min - call.one_min).abs() < 0.02 && (file.fifteen_min - call.fifteen_min).abs() < 0.02
        });
        assert!(agrees);
    }
}
