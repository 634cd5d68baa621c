//! The memory that programs can use before the machine swaps, as estimated by the kernel.
//!
//! This is more than the free memory: the page cache is released on demand, and a machine that has
//! been up for some time has hardly any free memory. A kernel before 3.14 gives no estimate: the
//! source opens, but every sample is an error of kind `InvalidData`.

use std::io;

use crate::proc_file::ProcFile;

/// The file with the memory statistics.
pub(crate) const PROC_MEMINFO: &str = "/proc/meminfo";

/// A sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AvailableMemory {
    /// What programs can allocate before the machine swaps: free memory and what the kernel can
    /// reclaim.
    pub available_bytes: u64,
}

/// An open `/proc/meminfo`.
#[derive(Debug)]
pub struct AvailableMemoryReader {
    file: ProcFile,
}

impl AvailableMemoryReader {
    /// Opens `/proc/meminfo`.
    ///
    /// # Errors
    ///
    /// The file cannot be opened.
    pub fn open() -> io::Result<AvailableMemoryReader> {
        Ok(AvailableMemoryReader { file: ProcFile::open(PROC_MEMINFO)? })
    }

    /// Reads the current memory statistics.
    ///
    /// # Errors
    ///
    /// The file cannot be read; `InvalidData` if it has an unexpected format.
    pub fn sample(&mut self) -> io::Result<AvailableMemory> {
        self.file.sample(AvailableMemory::parse)
    }
}

impl AvailableMemory {
    /// Parses `/proc/meminfo`. Each line has a name, a number and `kB`, which means KiB.
    pub fn parse(text: &str) -> Option<AvailableMemory> {
        let kib = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?.trim().strip_suffix(" kB")?;
        Some(AvailableMemory { available_bytes: kib.parse::<u64>().ok()?.checked_mul(1024)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kibibytes_become_bytes() {
        let text = "MemTotal:       24684084 kB\nMemFree:        23673152 kB\nMemAvailable:   24189472 kB\n";
        let expected = AvailableMemory { available_bytes: 24_189_472 * 1024 };
        assert_eq!(AvailableMemory::parse(text), Some(expected));
    }

    #[test]
    fn garbage_is_no_memory() {
        for text in ["", "MemTotal: 1 kB\n", "MemAvailable: 1\n", "MemAvailable: 18446744073709551615 kB\n"] {
            assert_eq!(AvailableMemory::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn this_machine_has_memory() {
        let read = AvailableMemoryReader::open().unwrap().sample().unwrap();
        assert!(read.available_bytes > 0, "{read:?}");
    }
}
