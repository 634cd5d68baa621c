//! Files in the data folder that are replaced as a whole: tokens, redirects. They belong to the owner of
//! the folder, and nobody else can read them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::Path;

/// Why a file was not replaced for certain.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReplaceError {
    /// It is as it was.
    #[error(transparent)]
    Unchanged(#[from] io::Error),
    /// It is replaced, but its name may not be on the disk.
    #[error(transparent)]
    NotSynced(NotSynced),
}

/// A file that was replaced may be as before after a power failure.
#[derive(Debug, thiserror::Error)]
#[error("the change is in force, but a power failure may undo it, because its folder cannot be synced: {0}")]
pub(crate) struct NotSynced(io::Error);

impl From<ReplaceError> for io::Error {
    fn from(error: ReplaceError) -> Self {
        match error {
            ReplaceError::Unchanged(error) => error,
            ReplaceError::NotSynced(not_synced) => io::Error::other(not_synced),
        }
    }
}

/// Replaces a file. Root may write it for the user of the server, who owns the folder: no file or link of
/// theirs is written to. After a power failure the new content is there, once this has returned.
///
/// # Errors
///
/// The file cannot be written, or its folder cannot be synced.
pub(crate) fn replace(path: &Path, content: &[u8]) -> Result<(), ReplaceError> {
    replace_and_sync(path, content, |folder| File::open(folder)?.sync_all())
}

/// The same, with what syncs the folder.
pub(crate) fn replace_and_sync(
    path: &Path,
    content: &[u8],
    sync_folder: impl FnOnce(&Path) -> io::Result<()>,
) -> Result<(), ReplaceError> {
    let (new, folder) = (path.with_extension("new"), folder(path));
    write_new(&new, folder, content)?;
    fs::rename(&new, path)?;
    sync_folder(folder).map_err(|error| ReplaceError::NotSynced(NotSynced(error)))
}

/// Writes a file that does not exist, or was left by a process that was killed, and syncs it.
fn write_new(new: &Path, folder: &Path, content: &[u8]) -> io::Result<()> {
    let owner = fs::metadata(folder)?;
    match fs::remove_file(new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(new)?;
    file.write_all(content)?;
    let own = file.metadata()?;
    if (own.uid(), own.gid()) != (owner.uid(), owner.gid()) && own.uid() == 0 {
        fchown(&file, Some(owner.uid()), Some(owner.gid()))?;
    }
    file.sync_all()
}

/// The folder of a file.
pub(crate) fn folder(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("."))
}
