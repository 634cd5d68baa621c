//! Free space on a file system: what an unprivileged user may still write.
//!
//! Blocks reserved for root do not count: a mail server that is not root runs out of space before
//! the disk is full. A sample is one system call, on an open handle or on a path; a path that no
//! longer exists is an error.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::StatVfs;

/// What an unprivileged user may still write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeSpace {
    /// Free bytes.
    pub free_bytes: u64,
    /// Free inodes; `None` if the file system does not count them.
    pub free_inodes: Option<u64>,
}

/// An open directory on the file system to measure.
#[derive(Debug)]
pub struct FreeSpaceReader {
    folder: File,
    file_system: u64,
}

impl FreeSpace {
    /// The free space of the file system that contains `path`.
    ///
    /// # Errors
    ///
    /// `statvfs(3)` fails.
    pub fn of(path: &Path) -> io::Result<FreeSpace> {
        Ok(rustix::fs::statvfs(path)?.into())
    }
}

impl From<StatVfs> for FreeSpace {
    fn from(stat: StatVfs) -> FreeSpace {
        FreeSpace {
            free_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
            free_inodes: (stat.f_files > 0).then_some(stat.f_favail),
        }
    }
}

impl FreeSpaceReader {
    /// Opens the file or directory at `path`.
    ///
    /// # Errors
    ///
    /// It cannot be opened.
    pub fn open(path: &Path) -> io::Result<FreeSpaceReader> {
        let folder = File::open(path)?;
        let file_system = folder.metadata()?.dev();
        Ok(FreeSpaceReader { folder, file_system })
    }

    /// Reads the current free space.
    ///
    /// # Errors
    ///
    /// `fstatvfs(3)` fails.
    pub fn sample(&self) -> io::Result<FreeSpace> {
        Ok(rustix::fs::fstatvfs(&self.folder)?.into())
    }

    /// The device number of the file system, which identifies it.
    pub(crate) fn file_system(&self) -> u64 {
        self.file_system
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_path_is_an_error_and_a_folder_has_room() {
        let folder = tempfile::tempdir().unwrap();
        assert!(FreeSpace::of(folder.path()).unwrap().free_bytes > 0);
        assert!(FreeSpaceReader::open(folder.path()).unwrap().sample().unwrap().free_bytes > 0);
        let missing = folder.path().join("no");
        assert_eq!(FreeSpace::of(&missing).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(FreeSpaceReader::open(&missing).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_file_system_that_counts_no_files_has_room_for_any_number() {
        let none = rustix::fs::statvfs("/").map(|stat| StatVfs { f_files: 0, f_favail: 0, ..stat }).unwrap();
        assert_eq!(FreeSpace::from(none).free_inodes, None);
    }
}
