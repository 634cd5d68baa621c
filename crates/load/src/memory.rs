//! The memory of the machine: what programs can still have of it before it swaps, by the kernel's own estimate.
//!
//! That is not what is free: the page cache is given back when somebody needs it, and a machine that has worked for a
//! while has next to nothing free. A kernel before 3.14 makes no estimate, and this gauge does not guess one: there it
//! opens, and every sample is an error of the kind `InvalidData`.

use std::io;

use crate::record::Record;

/// Where the memory is read.
pub(crate) const PROC_MEMINFO: &str = "/proc/meminfo";

/// One reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// What programs can still have before the machine swaps: free, and what the kernel would give back.
    pub available_bytes: u64,
}

/// `/proc/meminfo`, held open.
#[derive(Debug)]
pub struct MemorySource {
    record: Record,
}

impl MemorySource {
    /// Opens `/proc/meminfo`.
    ///
    /// # Errors
    ///
    /// That of opening the file.
    pub fn open() -> io::Result<MemorySource> {
        Ok(MemorySource { record: Record::open(PROC_MEMINFO)? })
    }

    /// The memory now.
    ///
    /// # Errors
    ///
    /// That of reading the file; `InvalidData` where it does not read as expected.
    pub fn sample(&mut self) -> io::Result<Memory> {
        self.record.sample(Memory::parse)
    }
}

impl Memory {
    /// Reads what `/proc/meminfo` says, of which every line is a name, a number and `kB`, by which it means KiB.
    pub fn parse(text: &str) -> Option<Memory> {
        let kib = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?.trim().strip_suffix(" kB")?;
        Some(Memory { available_bytes: kib.parse::<u64>().ok()?.checked_mul(1024)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kibibytes_become_bytes() {
        let text = "MemTotal:       24684084 kB\nMemFree:        23673152 kB\nMemAvailable:   24189472 kB\n";
        let expected = Memory { available_bytes: 24_189_472 * 1024 };
        assert_eq!(Memory::parse(text), Some(expected));
    }

    #[test]
    fn garbage_is_no_memory() {
        for text in ["", "MemTotal: 1 kB\n", "MemAvailable: 1\n", "MemAvailable: 18446744073709551615 kB\n"] {
            assert_eq!(Memory::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn this_machine_has_memory() {
        let read = MemorySource::open().unwrap().sample().unwrap();
        assert!(read.available_bytes > 0, "{read:?}");
    }
}
