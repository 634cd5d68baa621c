//! Room on a file system: what a user without privileges may still write to it.
//!
//! The blocks that a file system keeps back for root are not counted: a mail server that is not root meets the end of
//! the room before the disk is full. A reading is one system call: of a handle that stays open, or of a path, which is
//! an error where the path has gone away.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::StatVfs;

/// What a user without privileges may still write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes.
    pub free_bytes: u64,
    /// Files that may still be made; `None` where the file system does not count them.
    pub free_inodes: Option<u64>,
}

/// A folder, held open, whose file system is asked.
#[derive(Debug)]
pub struct SpaceSource {
    folder: File,
    file_system: u64,
}

impl Space {
    /// The room on the file system that holds `path`.
    ///
    /// # Errors
    ///
    /// That of `statvfs(3)`.
    pub fn of(path: &Path) -> io::Result<Space> {
        Ok(rustix::fs::statvfs(path)?.into())
    }
}

impl From<StatVfs> for Space {
    fn from(room: StatVfs) -> Space {
        Space {
            free_bytes: room.f_bavail.saturating_mul(room.f_frsize),
            free_inodes: (room.f_files > 0).then_some(room.f_favail),
        }
    }
}

impl SpaceSource {
    /// Opens the file or folder at `path`.
    ///
    /// # Errors
    ///
    /// That of opening it.
    pub fn open(path: &Path) -> io::Result<SpaceSource> {
        let folder = File::open(path)?;
        let file_system = folder.metadata()?.dev();
        Ok(SpaceSource { folder, file_system })
    }

    /// The room now.
    ///
    /// # Errors
    ///
    /// That of `fstatvfs(3)`.
    pub fn sample(&self) -> io::Result<Space> {
        Ok(rustix::fs::fstatvfs(&self.folder)?.into())
    }

    /// The number of the file system, by which two paths on one are known.
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
        assert!(Space::of(folder.path()).unwrap().free_bytes > 0);
        assert!(SpaceSource::open(folder.path()).unwrap().sample().unwrap().free_bytes > 0);
        let missing = folder.path().join("no");
        assert_eq!(Space::of(&missing).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(SpaceSource::open(&missing).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_file_system_that_counts_no_files_has_room_for_any_number() {
        let none = rustix::fs::statvfs("/").map(|room| StatVfs { f_files: 0, f_favail: 0, ..room }).unwrap();
        assert_eq!(Space::from(none).free_inodes, None);
    }
}
