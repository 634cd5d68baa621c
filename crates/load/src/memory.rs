//! The memory of the machine.

use std::io;

use crate::record::Record;

/// One reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// All that the kernel may use.
    pub total_bytes: u64,
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
        Ok(MemorySource { record: Record::open("/proc/meminfo")? })
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
        let bytes = |name: &str| {
            let kib = text.lines().find_map(|line| line.strip_prefix(name))?.trim().strip_suffix(" kB")?;
            kib.parse::<u64>().ok()?.checked_mul(1024)
        };
        Some(Memory { total_bytes: bytes("MemTotal:")?, available_bytes: bytes("MemAvailable:")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kibibytes_become_bytes() {
        let text = "MemTotal:       24684084 kB\nMemFree:        23673152 kB\nMemAvailable:   24189472 kB\n";
        let expected = Memory { total_bytes: 24_684_084 * 1024, available_bytes: 24_189_472 * 1024 };
        assert_eq!(Memory::parse(text), Some(expected));
    }

    #[test]
    fn garbage_is_no_memory() {
        for text in [
            "",
            "MemTotal: 1 kB\n",
            "MemTotal: 1\nMemAvailable: 1\n",
            "MemTotal: 18446744073709551615 kB\nMemAvailable: 1 kB\n",
        ] {
            assert_eq!(Memory::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn this_machine_has_memory() {
        let read = MemorySource::open().unwrap().sample().unwrap();
        assert!(0 < read.available_bytes && read.available_bytes <= read.total_bytes, "{read:?}");
    }
}
