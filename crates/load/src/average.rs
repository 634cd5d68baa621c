//! The load average: the number of tasks that run, wait to run or wait for a disk, averaged over
//! one, five and fifteen minutes.
//!
//! Read from `/proc/loadavg` if it exists, otherwise from `sysinfo(2)`;
//! [`LoadAverageReader::source_name`] says which.

use std::fmt;
use std::io;

use crate::proc_file::ProcFile;

/// The file with the load average.
pub const PROC_LOADAVG: &str = "/proc/loadavg";

/// A sample, in tasks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadAverage {
    /// Over the last minute.
    pub one_min: f64,
    /// Over the last five minutes.
    pub five_min: f64,
    /// Over the last fifteen minutes.
    pub fifteen_min: f64,
}

/// The source of samples.
#[derive(Debug)]
pub struct LoadAverageReader {
    source: LoadSource,
}

#[derive(Debug)]
enum LoadSource {
    Proc(ProcFile),
    Sysinfo,
}

impl LoadAverageReader {
    /// Opens `/proc/loadavg`, or falls back to `sysinfo(2)`.
    pub fn open() -> LoadAverageReader {
        LoadAverageReader { source: ProcFile::open(PROC_LOADAVG).map_or(LoadSource::Sysinfo, LoadSource::Proc) }
    }

    /// Reads the current load average.
    ///
    /// # Errors
    ///
    /// `InvalidData` if `/proc/loadavg` has an unexpected format.
    pub fn sample(&mut self) -> io::Result<LoadAverage> {
        match &mut self.source {
            LoadSource::Proc(record) => record.sample(LoadAverage::parse),
            LoadSource::Sysinfo => Ok(LoadAverage::from_sysinfo()),
        }
    }

    /// The name of the source in use.
    pub fn source_name(&self) -> &'static str {
        match self.source {
            LoadSource::Proc(_) => PROC_LOADAVG,
            LoadSource::Sysinfo => "sysinfo",
        }
    }
}

/// The name of the source in use.
impl fmt::Display for LoadAverageReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.source_name())
    }
}

impl LoadAverage {
    /// Parses `/proc/loadavg`: three averages, then the running tasks and the newest process.
    pub fn parse(text: &str) -> Option<LoadAverage> {
        let mut averages = text.split_ascii_whitespace().map(|word| word.parse::<f64>().ok().filter(|n| n.is_finite()));
        let mut next = || averages.next().flatten();
        Some(LoadAverage { one_min: next()?, five_min: next()?, fifteen_min: next()? })
    }

    /// Calls `sysinfo(2)`, which returns fractions of 65,536 and cannot fail.
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

    /// The kernel updates its averages every five seconds; within that time both sources agree.
    #[test]
    fn both_sources_agree() {
        let mut source = LoadAverageReader::open();
        assert_eq!(source.to_string(), PROC_LOADAVG);
        let agrees = (0..3).any(|_| {
            let (file, call) = (source.sample().unwrap(), LoadAverage::from_sysinfo());
            (file.one_min - call.one_min).abs() < 0.02 && (file.fifteen_min - call.fifteen_min).abs() < 0.02
        });
        assert!(agrees);
    }
}
