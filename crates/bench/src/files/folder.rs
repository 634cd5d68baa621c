//! The folder that a run works in: made for it, and removed with all that is in it when it is over, however it ends: after
//! the last act, after a signal, or after a fault. Only SIGKILL leaves it behind.
//!
//! It is never one that was there before: what the operator keeps in the folder that is named is not touched. That it
//! cannot be made, or that an orderly run cannot remove it, is fatal; after a fault the removal is tried, and the fault
//! that came first is told.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process;

use crate::Fault;

/// A folder of our own.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
}

impl Folder {
    /// Makes it inside `parent`, under a name that no other run has.
    pub(crate) fn make(parent: &Path) -> Result<Folder, Fault> {
        let path = parent.join(format!("mailrace-files-{}", process::id()));
        fs::create_dir(&path).map_err(Fault::system(format!("making the folder {}", path.display())))?;
        Ok(Folder { path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The size of reads and writes that the file system recommends.
    pub(crate) fn block_bytes(&self) -> Result<usize, Fault> {
        let state = fs::metadata(&self.path).map_err(Fault::system(format!("asking for {}", self.path.display())))?;
        Ok(state.blksize().max(1) as usize)
    }

    /// Removes it, and says so if that fails.
    pub(crate) fn remove(self) -> Result<(), Fault> {
        fs::remove_dir_all(&self.path).map_err(Fault::system(format!("removing the folder {}", self.path.display())))
    }
}

impl Drop for Folder {
    /// After a fault: what can be removed is; the fault is what is told.
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_with_all_that_is_in_it() {
        let parent = tempfile::tempdir().unwrap();
        for removed in [true, false] {
            let folder = Folder::make(parent.path()).unwrap();
            fs::write(folder.path().join("left behind"), "x").unwrap();
            if removed {
                folder.remove().unwrap()
            } else {
                drop(folder)
            }
            assert_eq!(parent.path().read_dir().unwrap().count(), 0);
        }
    }
}
