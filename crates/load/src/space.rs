//! Room on a file system.

use std::io;
use std::path::Path;

/// What a user without privileges may still write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes.
    pub free_bytes: u64,
    /// Files; zero where the file system does not count them.
    pub free_files: u64,
}

impl Space {
    /// The room on the file system that holds `path`.
    ///
    /// # Errors
    ///
    /// That of `statvfs(3)`.
    pub fn of(path: &Path) -> io::Result<Space> {
        let room = rustix::fs::statvfs(path)?;
        Ok(Space { free_bytes: room.f_bavail.saturating_mul(room.f_frsize), free_files: room.f_favail })
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
