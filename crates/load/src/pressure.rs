//! Pressure stall information: how much time tasks lost by waiting for a processor, for memory, for a disk.
//! (Linux's `Documentation/accounting/psi.rst`.)
//!
//! Measurements take the sums: a difference of two of them is exact for the time between. Limits take the kernel's
//! average of ten seconds, which moves slowly enough to act upon and is what an operator sees in the same file. A kernel
//! may be built or started without this gauge; then there is none, which is no error.

use std::io;

use crate::record::Record;

/// What tasks may have to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// A processor.
    Cpu,
    /// Memory: reclaim, swapping, pages that were dropped and are read again.
    Memory,
    /// A disk.
    Io,
}

/// Time lost since the machine was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pressure {
    /// At least one task waited.
    pub some_us: u64,
    /// All tasks that had something to do waited. For the processors of a whole machine it is always zero, and older
    /// kernels leave it out.
    pub full_us: Option<u64>,
}

/// A file of `/proc/pressure`, held open.
#[derive(Debug)]
pub struct PressureSource {
    record: Record,
}

impl PressureSource {
    /// Opens the gauge of a resource, and tries it: a kernel that was started with `psi=0` has the files but does not
    /// let them be read. `None` where there is no such gauge.
    pub fn open(resource: Resource) -> Option<PressureSource> {
        let mut source = PressureSource { record: Record::open(resource.path()).ok()? };
        source.sample().ok()?;
        Some(source)
    }

    /// The pressure now.
    ///
    /// # Errors
    ///
    /// That of reading the file; `InvalidData` where it does not read as expected.
    pub fn sample(&mut self) -> io::Result<Pressure> {
        self.record.sample(Pressure::parse)
    }

    /// The share of the last ten seconds in which at least one task waited, in percent: the kernel's own average, of which
    /// the more recent seconds are the greater part.
    ///
    /// # Errors
    ///
    /// Those of [`PressureSource::sample`].
    pub fn some_percent(&mut self) -> io::Result<f64> {
        self.record.sample(some_percent)
    }
}

impl Resource {
    /// Where its pressure is read.
    pub(crate) fn path(self) -> &'static str {
        match self {
            Resource::Cpu => "/proc/pressure/cpu",
            Resource::Memory => "/proc/pressure/memory",
            Resource::Io => "/proc/pressure/io",
        }
    }
}

impl Pressure {
    /// Reads what a file of `/proc/pressure` says: a line `some`, and mostly a line `full`.
    pub fn parse(text: &str) -> Option<Pressure> {
        let mut lines = text.lines();
        let some_us = total(lines.next()?.strip_prefix("some ")?)?;
        let full_us = match lines.next() {
            Some(line) => Some(total(line.strip_prefix("full ")?)?),
            None => None,
        };
        Some(Pressure { some_us, full_us })
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
        let expected = Pressure { some_us: 549_088_792, full_us: Some(246_636_287) };
        assert_eq!(Pressure::parse(text), Some(expected));
    }

    #[test]
    fn an_older_kernel_says_nothing_of_processors_that_all_wait() {
        let read = Pressure::parse("some avg10=0.59 avg60=1.57 avg300=2.36 total=2322344480\n").unwrap();
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
            assert_eq!(Pressure::parse(text), None, "{text:?}");
        }
    }
}
