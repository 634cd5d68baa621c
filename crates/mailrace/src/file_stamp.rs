//! Tells whether a file was written or replaced since it was read, without reading it again.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

/// Identifies the content of a file: device and inode, size, and times of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileStamp {
    inode: (u64, u64),
    octets: u64,
    /// Modification and status change, in seconds and nanoseconds.
    changed_at: [(i64, i64); 2],
}

impl From<&Metadata> for FileStamp {
    fn from(about: &Metadata) -> FileStamp {
        FileStamp {
            inode: (about.dev(), about.ino()),
            octets: about.len(),
            changed_at: [(about.mtime(), about.mtime_nsec()), (about.ctime(), about.ctime_nsec())],
        }
    }
}
