//! Pressure stall information: how much time tasks lost waiting for a processor, memory or a disk
//! (Linux's `Documentation/accounting/psi.rst`).
//!
//! Benchmarks use the totals: the difference of two is exact for the time between. Limits use the
//! kernel's ten-second average, which changes slowly enough to act on, and which operators see in
//! the same file. A kernel may be built or booted without this gauge; that is not an error.

use std::io;

use crate::proc_file::ProcFile;

/// A resource that tasks may wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PressureResource {
    /// A processor.
    Cpu,
    /// Memory: reclaim, swapping, reloading dropped pages.
    Memory,
    /// A disk.
    Io,
}

/// Time lost since boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PressureTotals {
    /// At least one task waited.
    pub some_us: u64,
    /// All runnable tasks waited. Always zero for the processors of a whole machine, and left out
    /// by older kernels.
    pub full_us: Option<u64>,
}

/// An open file of `/proc/pressure`.
#[derive(Debug)]
pub struct PressureReader {
    file: ProcFile,
}

impl PressureReader {
    /// Opens the gauge of a resource and reads it once: a kernel booted with `psi=0` has the files
    /// but refuses to read them. `None` if the gauge is not available.
    pub fn open(resource: PressureResource) -> Option<PressureReader> {
        let mut source = PressureReader { file: ProcFile::open(resource.path()).ok()? };
        source.sample().ok()?;
        Some(source)
    }

    /// Reads the current totals.
    ///
    /// # Errors
    ///
    /// The file cannot be read; `InvalidData` if it has an unexpected format.
    pub fn sample(&mut self) -> io::Result<PressureTotals> {
        self.file.sample(PressureTotals::parse)
    }

    /// The percentage of the last ten seconds in which at least one task waited: the kernel's own
    /// average, weighted towards the most recent seconds.
    ///
    /// # Errors
    ///
    /// The same as for [`PressureReader::sample`].
    pub fn recent_stall_percent(&mut self) -> io::Result<f64> {
        self.file.sample(some_percent)
    }
}

impl PressureResource {
    /// The file with its pressure.
    pub(crate) fn path(self) -> &'static str {
        match self {
            PressureResource::Cpu => "/proc/pressure/cpu",
            PressureResource::Memory => "/proc/pressure/memory",
            PressureResource::Io => "/proc/pressure/io",
        }
    }
}

impl PressureTotals {
    /// Parses a file of `/proc/pressure`: a line `some`, and usually a line `full`.
    pub fn parse(text: &str) -> Option<PressureTotals> {
        let mut lines = text.lines();
        let some_us = total(lines.next()?.strip_prefix("some ")?)?;
        let full_us = match lines.next() {
            Some(line) => Some(total(line.strip_prefix("full ")?)?),
            None => None,
        };
        Some(PressureTotals { some_us, full_us })
    }
}

fn some_percent(text: &str) -> Option<f64> {
    let percent: f64 = value(text.lines().next()?.strip_prefix("some ")?, "avg10=")?.parse().ok()?;
    (0.0..=100.0).contains(&percent).then_some(percent)
}

fn total(pairs: &str) -> Option<u64> {
    value(pairs, "total=")?.parse().ok()
}

fn value<'a>(pairs: &'a str, name: &str) -> Option<&'a str> {
    pairs.split_ascii_whitespace().find_map(|pair| pair.strip_prefix(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_lines_are_read() {
        let text = "some avg10=1.42 avg60=1.61 avg300=1.12 total=549088792\n\
                    full avg10=1.36 avg60=1.52 avg300=0.90 total=246636287\n";
        let expected = PressureTotals { some_us: 549_088_792, full_us: Some(246_636_287) };
        assert_eq!(PressureTotals::parse(text), Some(expected));
    }

    #[test]
    fn an_older_kernel_has_no_full_line_for_processors() {
        let read = PressureTotals::parse("some avg10=0.59 avg60=1.57 avg300=2.36 total=2322344480\n").unwrap();
        assert_eq!((read.some_us, read.full_us), (2_322_344_480, None));
    }

    #[test]
    fn the_average_of_ten_seconds_is_a_share() {
        assert_eq!(
            some_percent("some avg10=1.42 avg60=1.61 avg300=1.12 total=5\nfull avg10=9.99 total=2\n"),
            Some(1.42)
        );
        for text in
            ["", "full avg10=1.00 total=1", "some avg60=1.00", "some avg10=x", "some avg10=NaN", "some avg10=101"]
        {
            assert_eq!(some_percent(text), None, "{text:?}");
        }
    }

    #[test]
    fn garbage_is_no_pressure() {
        for text in [
            "",
            "some",
            "some avg10=0.59",
            "some avg10=0.59 total=-1",
            "some avg10=0.59 total=1\nfull avg10=0.59\n",
            "full avg10=0.59 total=1\n",
        ] {
            assert_eq!(PressureTotals::parse(text), None, "{text:?}");
        }
    }
}
