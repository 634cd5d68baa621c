//! I/O counters of one disk since boot (Linux's `Documentation/admin-guide/iostats.rst`).
//!
//! The disk is the one that contains a given path. For a partition it is the whole disk, since the
//! disk is the bottleneck, and the kernel counts flushes only there. A file system without a device
//! of its own (tmpfs, btrfs, overlay) has no gauge.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{major, minor};

use crate::proc_file::ProcFile;

/// The unit of `/proc/diskstats`, whatever the sector size of the disk.
const SECTOR_BYTES: u64 = 512;

/// Counters since boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskStats {
    /// The kernel's name: `sda`, `nvme0n1`.
    pub name: String,
    /// Reads completed.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// The total time of all reads, including waiting.
    pub reads_ms: u64,
    /// Writes completed.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// The total time of all writes, including waiting.
    pub writes_ms: u64,
    /// How long the disk was busy.
    pub busy_ms: u64,
    /// Completed flushes of the disk's cache; None on kernels before 5.5.
    pub flushes: Option<u64>,
}

/// An open `/proc/diskstats`, and which of its lines to read.
#[derive(Debug)]
pub struct DiskStatsReader {
    file: ProcFile,
    device: Device,
}

/// The device numbers of a disk or partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Device {
    major: u32,
    minor: u32,
}

impl DiskStatsReader {
    /// Opens the counters of the disk that contains `path`.
    ///
    /// # Errors
    ///
    /// The path or the file cannot be read; `InvalidData` if the file has no line for the disk.
    pub fn for_path(path: &Path) -> io::Result<DiskStatsReader> {
        let number = fs::metadata(path)?.dev();
        let device = Device { major: major(number), minor: minor(number) }.whole_disk(Path::new("/sys/dev/block"));
        let mut source = DiskStatsReader { file: ProcFile::open("/proc/diskstats")?, device };
        source.sample()?;
        Ok(source)
    }

    /// Reads the current counters.
    ///
    /// # Errors
    ///
    /// The file cannot be read; `InvalidData` if it has an unexpected format, or the disk is gone.
    pub fn sample(&mut self) -> io::Result<DiskStats> {
        self.file.sample_pieces(|text| text.lines().find_map(|line| DiskStats::parse(line, self.device)))
    }
}

impl DiskStats {
    /// Parses a line of `/proc/diskstats`; None if it is for another device.
    fn parse(line: &str, device: Device) -> Option<DiskStats> {
        let mut words = line.split_ascii_whitespace();
        let (major, minor) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        if (Device { major, minor }) != device {
            return None;
        }
        let name = words.next()?.to_owned();
        let counts: Vec<u64> = words.map(|word| word.parse().ok()).collect::<Option<_>>()?;
        // In the order of the kernel's documentation: reads, reads merged, sectors, ms; the same
        // for writes; in flight, ms busy, ms weighted; four counters of discards (since 4.18);
        // flushes and their ms (since 5.5).
        let [reads, _, read_sectors, reads_ms, writes, _, written_sectors, writes_ms, _, busy_ms, ..] = counts[..]
        else {
            return None;
        };
        Some(DiskStats {
            name,
            reads,
            read_bytes: read_sectors.checked_mul(SECTOR_BYTES)?,
            reads_ms,
            writes,
            written_bytes: written_sectors.checked_mul(SECTOR_BYTES)?,
            writes_ms,
            busy_ms,
            flushes: counts.get(15).copied(),
        })
    }
}

impl Device {
    /// The whole disk of a partition: in /sys, a partition is a directory inside that of its disk.
    fn whole_disk(self, devices: &Path) -> Device {
        let Device { major, minor } = self;
        Device::disk_of_partition(&devices.join(format!("{major}:{minor}"))).unwrap_or(self)
    }

    fn disk_of_partition(link: &Path) -> Option<Device> {
        let folder = fs::canonicalize(link).ok()?;
        if !folder.join("partition").exists() {
            return None;
        }
        Device::parse(&fs::read_to_string(folder.parent()?.join("dev")).ok()?)
    }

    fn parse(text: &str) -> Option<Device> {
        let (major, minor) = text.trim().split_once(':')?;
        Some(Device { major: major.parse().ok()?, minor: minor.parse().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VDA: Device = Device { major: 254, minor: 0 };
    const LINE: &str = " 254       0 vda 1464875 269638 94668426 2219755 10913755 6359448 377745040 7208937 0 854220 \
                        9928500 3361323 2094 336932552 345241 1249406 154565";

    #[test]
    fn a_line_is_read_in_the_order_of_the_kernel() {
        let disk = DiskStats::parse(LINE, VDA).unwrap();
        let expected = DiskStats {
            name: "vda".to_owned(),
            reads: 1_464_875,
            read_bytes: 94_668_426 * 512,
            reads_ms: 2_219_755,
            writes: 10_913_755,
            written_bytes: 377_745_040 * 512,
            writes_ms: 7_208_937,
            busy_ms: 854_220,
            flushes: Some(1_249_406),
        };
        assert_eq!(disk, expected);
    }

    #[test]
    fn an_older_kernel_knows_no_flushes() {
        let line = "   8       0 sda 572 3 15637 127 66670 46108 3689020 69713 0 20600 86668";
        assert_eq!(DiskStats::parse(line, Device { major: 8, minor: 0 }).unwrap().flushes, None);
    }

    #[test]
    fn other_disks_and_garbage_are_passed_over() {
        let short = " 254 0 vda 1 2 3";
        let wrong = LINE.replace("854220", "busy");
        for line in ["", "disk", "254", short, &wrong, &LINE.replace(" 254 ", " 253 ")] {
            assert_eq!(DiskStats::parse(line, VDA), None, "{line:?}");
        }
    }

    #[test]
    fn a_partition_is_measured_by_its_whole_disk() {
        let sys = tempfile::tempdir().unwrap();
        let disk = sys.path().join("devices/sda");
        fs::create_dir_all(disk.join("sda1")).unwrap();
        fs::write(disk.join("dev"), "8:0\n").unwrap();
        fs::write(disk.join("sda1/dev"), "8:1\n").unwrap();
        fs::write(disk.join("sda1/partition"), "1\n").unwrap();
        std::os::unix::fs::symlink(&disk, sys.path().join("8:0")).unwrap();
        std::os::unix::fs::symlink(disk.join("sda1"), sys.path().join("8:1")).unwrap();
        let whole = |minor| Device { major: 8, minor }.whole_disk(sys.path());
        assert_eq!(whole(1), Device { major: 8, minor: 0 });
        assert_eq!(whole(0), Device { major: 8, minor: 0 });
        assert_eq!(whole(7), Device { major: 8, minor: 7 }, "unknown to /sys: unchanged");
    }

    #[test]
    fn a_file_system_without_a_device_has_no_gauge() {
        assert_eq!(DiskStatsReader::for_path(Path::new("/proc")).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
