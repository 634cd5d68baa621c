//! The folder that a run works in: created for the run, and removed with everything in it, also
//! after a signal or a fault. Only SIGKILL leaves it behind.
//!
//! The folder is always new, so files of the operator are never touched. It is a fault if the
//! folder cannot be created, or not be removed after a successful run. After another fault, a
//! failed removal is ignored.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process;

use crate::BenchError;

/// A folder of this run.
#[derive(Debug)]
pub(crate) struct WorkFolder {
    path: PathBuf,
}

impl WorkFolder {
    /// Creates a folder in `parent`, with the process id in its name.
    pub(crate) fn create(parent: &Path) -> Result<WorkFolder, BenchError> {
        let path = parent.join(format!("mailrace-files-{}", process::id()));
        fs::create_dir(&path).map_err(BenchError::system(format!("making the folder {}", path.display())))?;
        Ok(WorkFolder { path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The block size that the file system recommends.
    pub(crate) fn block_bytes(&self) -> Result<usize, BenchError> {
        let state =
            fs::metadata(&self.path).map_err(BenchError::system(format!("asking for {}", self.path.display())))?;
        Ok(state.blksize().max(1) as usize)
    }

    /// Removes the folder and returns the error, if any.
    pub(crate) fn remove(self) -> Result<(), BenchError> {
        fs::remove_dir_all(&self.path)
            .map_err(BenchError::system(format!("removing the folder {}", self.path.display())))
    }
}

impl Drop for WorkFolder {
    /// After a fault: removes what it can.
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_is_removed_with_everything_in_it() {
        let parent = tempfile::tempdir().unwrap();
        for removed in [true, false] {
            let folder = WorkFolder::create(parent.path()).unwrap();
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
