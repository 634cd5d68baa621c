//! A file in memory, as a consistent snapshot.
//!
//! A file whose times and length are the same before and after it was read was not changed in
//! between, as far as its times tell. If it changed shortly before, another change may not show in
//! its times: then it is not settled, and is read again instead of compared.

use std::fs::File;
use std::io::IoSliceMut;
use std::sync::Arc;
use std::time::Duration;

use mail::Timestamp;
use protocol::http::server::Resource;
use rustix::fs::Stat;
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use super::file_root::DiskWait;

/// The kernel's times of files are at least this exact.
pub(super) const SETTLED_AFTER: Duration = Duration::from_secs(2);

/// A file in memory.
#[derive(Debug)]
pub(in crate::http) struct SmallFile {
    pub(in crate::http) resource: Arc<Resource>,
    pub(super) stamp: FileStamp,
    /// A later change shows in the stamp.
    pub(super) is_settled: bool,
}

/// Identifies a version of a file without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileStamp {
    device: u64,
    pub(super) inode: u64,
    pub(super) octets: u64,
    /// Modification and status change times, in nanoseconds since 1970.
    pub(super) modified: i128,
    changed: i128,
}

/// Reads up to so many octets, and one more if there is one.
pub(super) fn read(file: &File, octets: usize, wait: DiskWait) -> Result<Vec<u8>, Errno> {
    let flags = if wait == DiskWait::Never { ReadWriteFlags::NOWAIT } else { ReadWriteFlags::empty() };
    let mut bytes = vec![0; octets + 1];
    let mut filled = 0;
    while filled < bytes.len() {
        match preadv2(file, &mut [IoSliceMut::new(&mut bytes[filled..])], filled as u64, flags) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(Errno::OPNOTSUPP | Errno::NOSYS) if wait == DiskWait::Never => return Err(Errno::AGAIN),
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

impl FileStamp {
    pub(super) fn new(stat: &Stat) -> FileStamp {
        let nanoseconds = |seconds: i64, part: u64| i128::from(seconds) * 1_000_000_000 + i128::from(part);
        FileStamp {
            device: stat.st_dev,
            inode: stat.st_ino,
            octets: u64::try_from(stat.st_size).unwrap_or(0),
            modified: nanoseconds(stat.st_mtime, stat.st_mtime_nsec),
            changed: nanoseconds(stat.st_ctime, stat.st_ctime_nsec),
        }
    }

    pub(super) fn is_settled(self, wall: Timestamp) -> bool {
        let millis = u64::try_from(self.modified.max(self.changed) / 1_000_000).unwrap_or(0);
        wall.since(Timestamp(millis)) > SETTLED_AFTER
    }
}
