//! What one disk did since the machine was started (Linux's `Documentation/admin-guide/iostats.rst`).
//!
//! The disk is the one that holds a path. A partition stands for its whole disk, for what limits is the disk, and only
//! there does the kernel count flushes. A file system without a device of its own (tmpfs, btrfs, overlay) has no gauge.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{major, minor};

use crate::record::Record;

/// The unit of `/proc/diskstats`, whatever the disk's own sectors are.
const SECTOR_BYTES: u64 = 512;

/// Counts since the machine was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// The kernel's name: `sda`, `nvme0n1`.
    pub name: String,
    /// Reads completed.
    pub reads: u64,
    /// Bytes that they read.
    pub read_bytes: u64,
    /// The sum of the times that they took, waiting included.
    pub reads_ms: u64,
    /// Writes completed.
    pub writes: u64,
    /// Bytes that they wrote.
    pub written_bytes: u64,
    /// The sum of the times that they took, waiting included.
    pub writes_ms: u64,
    /// How long the disk had something to do.
    pub busy_ms: u64,
    /// Flushes of the disk's cache completed; unknown to kernels before 5.5.
    pub flushes: Option<u64>,
}

/// `/proc/diskstats`, held open, and which of its lines counts.
#[derive(Debug)]
pub struct DiskSource {
    record: Record,
    device: Device,
}

/// The numbers under which the kernel knows a disk or a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Device {
    major: u32,
    minor: u32,
}

impl DiskSource {
    /// Opens the gauge of the disk that holds `path`.
    ///
    /// # Errors
    ///
    /// That of asking for the path or of opening the file; `InvalidData` where no line of it is that disk's.
    pub fn of(path: &Path) -> io::Result<DiskSource> {
        let number = fs::metadata(path)?.dev();
        let device = Device { major: major(number), minor: minor(number) }.whole(Path::new("/sys/dev/block"));
        let mut source = DiskSource { record: Record::open("/proc/diskstats")?, device };
        source.sample()?;
        Ok(source)
    }

    /// The counts as they are now.
    ///
    /// # Errors
    ///
    /// That of reading the file; `InvalidData` where it does not read as expected, or the disk is gone.
    pub fn sample(&mut self) -> io::Result<Disk> {
        self.record.sample_pieces(|text| text.lines().find_map(|line| Disk::parse(line, self.device)))
    }
}

impl Disk {
    /// Reads a line of `/proc/diskstats`, if it is that device's.
    fn parse(line: &str, device: Device) -> Option<Disk> {
        let mut words = line.split_ascii_whitespace();
        let (major, minor) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        if (Device { major, minor }) != device {
            return None;
        }
        let name = words.next()?.to_owned();
        let counts: Vec<u64> = words.map(|word| word.parse().ok()).collect::<Option<_>>()?;
        // In the order of the kernel's text: reads, reads merged, sectors, ms; the same of writes; in flight, ms busy,
        // ms weighted; four counts of discards (since 4.18); flushes and their ms (since 5.5).
        let [reads, _, read_sectors, reads_ms, writes, _, written_sectors, writes_ms, _, busy_ms, ..] = counts[..]
        else {
            return None;
        };
        Some(Disk {
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
    /// The whole disk, where this is a partition: in /sys a partition is a folder inside its disk's.
    fn whole(self, devices: &Path) -> Device {
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
        let disk = Disk::parse(LINE, VDA).unwrap();
        let expected = Disk {
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
        assert_eq!(Disk::parse(line, Device { major: 8, minor: 0 }).unwrap().flushes, None);
    }

    #[test]
    fn other_disks_and_garbage_are_passed_over() {
        let short = " 254 0 vda 1 2 3";
        let wrong = LINE.replace("854220", "busy");
        for line in ["", "disk", "254", short, &wrong, &LINE.replace(" 254 ", " 253 ")] {
            assert_eq!(Disk::parse(line, VDA), None, "{line:?}");
        }
    }

    #[test]
    fn a_partition_stands_for_its_disk() {
        let sys = tempfile::tempdir().unwrap();
        let disk = sys.path().join("devices/sda");
        fs::create_dir_all(disk.join("sda1")).unwrap();
        fs::write(disk.join("dev"), "8:0\n").unwrap();
        fs::write(disk.join("sda1/dev"), "8:1\n").unwrap();
        fs::write(disk.join("sda1/partition"), "1\n").unwrap();
        std::os::unix::fs::symlink(&disk, sys.path().join("8:0")).unwrap();
        std::os::unix::fs::symlink(disk.join("sda1"), sys.path().join("8:1")).unwrap();
        let whole = |minor| Device { major: 8, minor }.whole(sys.path());
        assert_eq!(whole(1), Device { major: 8, minor: 0 });
        assert_eq!(whole(0), Device { major: 8, minor: 0 });
        assert_eq!(whole(7), Device { major: 8, minor: 7 }, "unknown to /sys: as it is");
    }

    #[test]
    fn a_file_system_without_a_device_has_no_gauge() {
        assert_eq!(DiskSource::of(Path::new("/proc")).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
