//! The folder with the files of all runs of a scenario. It is removed at the end unless a run failed.

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::error::CompareError;

/// How many names are tried.
const TRIES_MAX: u32 = 1000;
/// Systems give up root, and must be able to enter it.
const MODE: u32 = 0o755;

#[derive(Debug)]
pub(crate) struct WorkFolder {
    path: PathBuf,
    is_kept: Cell<bool>,
}

impl WorkFolder {
    /// Makes a new folder in `parent`, which is made if it does not exist.
    ///
    /// # Errors
    ///
    /// The folder cannot be made.
    pub(crate) fn create(parent: &Path) -> Result<WorkFolder, CompareError> {
        let fault = |path: &Path| format!("making a folder in {}", path.display());
        fs::create_dir_all(parent).map_err(CompareError::system(fault(parent)))?;
        let parent = fs::canonicalize(parent).map_err(CompareError::system(fault(parent)))?;
        let names = (0..TRIES_MAX).map(|number| format!("mailrace-compare-{}-{number}", std::process::id()));
        for name in names {
            let path = parent.join(name);
            match fs::create_dir(&path) {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                made => {
                    let made = made.and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(MODE)));
                    made.map_err(CompareError::system(fault(&parent)))?;
                    return Ok(WorkFolder { path, is_kept: Cell::new(false) });
                }
            }
        }
        Err(CompareError::Failed(format!("{} is full of folders of earlier runs: remove them", parent.display())))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Keeps the folder as evidence, and says where it is.
    pub(crate) fn keep(&self) {
        if !self.is_kept.replace(true) {
            eprintln!("the files of the run are kept in {}", self.path.display());
        }
    }
}

impl Drop for WorkFolder {
    fn drop(&mut self) {
        if !self.is_kept.get() {
            // Nothing depends on the removal.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_folder_is_new_and_only_a_kept_one_stays() {
        let parent = tempfile::tempdir().unwrap();
        let (one, two) = (WorkFolder::create(parent.path()).unwrap(), WorkFolder::create(parent.path()).unwrap());
        let paths = [one.path().to_owned(), two.path().to_owned()];
        assert_ne!(paths[0], paths[1]);
        two.keep();
        drop((one, two));
        assert_eq!(paths.map(|path| path.exists()), [false, true]);
    }
}
