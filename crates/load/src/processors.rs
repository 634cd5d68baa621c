//! The time of all processors of the machine since boot, from `/proc/stat`.
//!
//! Use the differences of two samples. User, system and interrupt times never decrease; idle and
//! iowait times may step back a little, and callers must tolerate that. In a container, they are
//! still those of the whole machine. Time of virtual machine guests is included in user time
//! already, and is not added again.

use std::io;

use crate::proc_file::ProcFile;

/// Seconds of all processors since boot; the kernel counts in hundredths.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CpuTimes {
    /// The number of processors online.
    pub count: usize,
    /// User time, including nice and guest time.
    pub user_secs: f64,
    /// System time.
    pub system_secs: f64,
    /// Time in hard and soft interrupts.
    pub irq_secs: f64,
    /// Idle while a disk request was pending. A hint only: on several processors the kernel cannot
    /// attribute it.
    pub iowait_secs: f64,
    /// Time taken by the hypervisor.
    pub steal_secs: f64,
    /// Other idle time.
    pub idle_secs: f64,
}

/// An open `/proc/stat`.
#[derive(Debug)]
pub struct CpuTimesReader {
    file: ProcFile,
    ticks_per_second: f64,
}

impl CpuTimesReader {
    /// Opens `/proc/stat`.
    ///
    /// # Errors
    ///
    /// The file cannot be opened.
    pub fn open() -> io::Result<CpuTimesReader> {
        let ticks_per_second = rustix::param::clock_ticks_per_second() as f64;
        Ok(CpuTimesReader { file: ProcFile::open("/proc/stat")?, ticks_per_second })
    }

    /// Reads the current times.
    ///
    /// # Errors
    ///
    /// The file cannot be read; `InvalidData` if it has an unexpected format.
    pub fn sample(&mut self) -> io::Result<CpuTimes> {
        self.file.sample(|text| CpuTimes::parse(text, self.ticks_per_second))
    }
}

impl CpuTimes {
    /// Parses `/proc/stat`: a line `cpu` with the totals, then a line for each processor, then
    /// other data.
    pub fn parse(text: &str, ticks_per_second: f64) -> Option<CpuTimes> {
        let mut lines = text.lines();
        let mut words = lines.next()?.strip_prefix("cpu ")?.split_ascii_whitespace();
        let mut next = || Some(words.next()?.parse::<u64>().ok()? as f64 / ticks_per_second);
        let (user, nice, system, idle, iowait) = (next()?, next()?, next()?, next()?, next()?);
        let (irq, softirq, steal) = (next()?, next()?, next()?);
        Some(CpuTimes {
            count: lines.take_while(|line| line.starts_with("cpu")).count(),
            user_secs: user + nice,
            system_secs: system,
            irq_secs: irq + softirq,
            iowait_secs: iowait,
            steal_secs: steal,
            idle_secs: idle,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = "\
cpu  575310 63102 249952 1345011 32910 0 35930 596 0 0
cpu0 285474 30583 113585 700567 5912 0 14646 283 0 0
cpu1 289835 32518 136366 644443 26997 0 21284 313 0 0
intr 19880112 0 0 24 1 13
ctxt 71016900
btime 1795195869
";

    #[test]
    fn sums_become_seconds_and_processors_are_counted() {
        let read = CpuTimes::parse(SAMPLE, 100.0).unwrap();
        assert_eq!(read.count, 2);
        assert_eq!(read.user_secs, 5753.10 + 631.02);
        assert_eq!(read.system_secs, 2499.52);
        assert_eq!(read.idle_secs, 13450.11);
        assert_eq!(read.iowait_secs, 329.10);
        assert_eq!(read.irq_secs, 359.30);
        assert_eq!(read.steal_secs, 5.96);
    }

    #[test]
    fn garbage_is_no_count() {
        for text in ["", "cpu", "cpu  1 2 3", "cpu0 1 2 3 4 5 6 7 8", "cpu  1 2 3 4 5 6 7 -8"] {
            assert_eq!(CpuTimes::parse(text, 100.0), None, "{text:?}");
        }
    }

    #[test]
    fn this_machine_has_processors_and_spends_time() {
        let mut source = CpuTimesReader::open().unwrap();
        let read = source.sample().unwrap();
        assert!(read.count > 0 && read.user_secs + read.system_secs + read.idle_secs > 0.0, "{read:?}");
    }
}
