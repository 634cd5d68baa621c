//! Room on a file system: what a user without privileges may still write to it.
//!
//! The blocks that a file system keeps back for root are not counted: a mail server that is not root meets the end of
//! the room before the disk is full. There is no source to open and nothing of /proc: each reading is a system call that
//! names the path, so a path that goes away is an error of the reading.

use std::io;
use std::path::Path;

/// What a user without privileges may still write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes.
    pub free_bytes: u64,
}

impl Space {
    /// The room on the file system that holds `path`.
    ///
    /// # Errors
    ///
    /// That of `statvfs(3)`.
    pub fn of(path: &Path) -> io::Result<Space> {
        let room = rustix::fs::statvfs(path)?;
        Ok(Space { free_bytes: room.f_bavail.saturating_mul(room.f_frsize) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_path_is_an_error_and_a_folder_has_room() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Space::of(folder.path()).unwrap().free_bytes > 0);
        assert_eq!(Space::of(&folder.path().join("no")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
