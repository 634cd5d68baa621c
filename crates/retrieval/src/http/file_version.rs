//! One version of a file, as a resource of HTTP: a consistent snapshot of a small file, or the length
//! of a larger one, which is sent from the file.
//!
//! A file whose times and length are the same before and after it was read was not changed in
//! between, as far as its times tell. If it changed shortly before, another change may not show in
//! its times: then it is not settled, and is read again instead of compared.

use std::borrow::Cow;
use std::fs::File;
use std::io::IoSliceMut;
use std::time::Duration;

use mail::Timestamp;
use protocol::http::server::{Content, Resource};
use rustix::fs::{Stat, fstat};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

/// The kernel's times of files are at least this exact.
pub(super) const SETTLED_AFTER: Duration = Duration::from_secs(2);
/// Files up to this length are read into memory; one copy costs less than the calls that it saves.
const SMALL_OCTETS_MAX: u64 = 64 << 10;
/// How often a file is read that changes while it is read.
const READS_MAX: usize = 3;

/// Whether a call may wait for the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DiskWait {
    /// No: what would wait fails with `AGAIN`.
    Never,
    /// Yes, on a disk thread.
    Allowed,
}

/// Identifies a version of a file without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileVersion {
    device: u64,
    inode: u64,
    octets: u64,
    /// Modification and status change times, in nanoseconds since 1970.
    modified: i128,
    changed: i128,
}

/// Reads the file if it is small: in this version, or in a later one, which it returns.
pub(super) fn load(file: &File, mut version: FileVersion, wait: DiskWait) -> Result<(FileVersion, Content), Errno> {
    for _ in 0..READS_MAX {
        if version.octets > SMALL_OCTETS_MAX {
            break;
        }
        let bytes = read(file, version.octets as usize, wait)?;
        let after = FileVersion::new(&fstat(file)?);
        if after == version && bytes.len() as u64 == version.octets {
            return Ok((version, Content::Bytes(bytes.into())));
        }
        version = after;
    }
    // Also a file that grows all the time: so much of it exists.
    Ok((version, Content::File { octets: version.octets }))
}

/// Reads up to so many octets, and one more if there is one.
fn read(file: &File, octets: usize, wait: DiskWait) -> Result<Vec<u8>, Errno> {
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

impl FileVersion {
    pub(super) fn new(stat: &Stat) -> FileVersion {
        let nanoseconds = |seconds: i64, part: u64| i128::from(seconds) * 1_000_000_000 + i128::from(part);
        FileVersion {
            device: stat.st_dev,
            inode: stat.st_ino,
            octets: u64::try_from(stat.st_size).unwrap_or(0),
            modified: nanoseconds(stat.st_mtime, stat.st_mtime_nsec),
            changed: nanoseconds(stat.st_ctime, stat.st_ctime_nsec),
        }
    }

    /// Whether a later change shows in the version; `wall` is not after the file was read.
    pub(super) fn is_settled(self, wall: Timestamp) -> bool {
        let millis = u64::try_from(self.modified.max(self.changed) / 1_000_000).unwrap_or(0);
        wall.since(Timestamp(millis)) > SETTLED_AFTER
    }

    /// The file in this version, or something that is made of it.
    pub(super) fn resource(
        self,
        content: Content,
        wall: Timestamp,
        content_type: impl Into<Cow<'static, str>>,
    ) -> Resource {
        let version = format!("{:x}-{:x}-{:x}", self.inode, self.octets, self.modified);
        // A time in the future must not be sent (RFC 9110 section 8.8.2.1).
        let millis = u64::try_from(self.modified / 1_000_000).unwrap_or(0);
        Resource::new(content, &version, Timestamp(millis).min(wall), content_type)
    }
}
