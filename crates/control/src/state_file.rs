//! Files in the data folder that are replaced as a whole: tokens, redirects. They belong to the owner of
//! the folder, and nobody else can read them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::Path;

/// Replaces a file. Root may write it for the user of the server, who owns the folder: no file or link of
/// theirs is written to. After a power failure the new content is there, once this has returned.
///
/// # Errors
///
/// The file cannot be written; it is as before.
pub(crate) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let (new, folder) = (path.with_extension("new"), folder(path));
    let owner = fs::metadata(folder)?;
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    file.write_all(content)?;
    let own = file.metadata()?;
    if (own.uid(), own.gid()) != (owner.uid(), owner.gid()) && own.uid() == 0 {
        fchown(&file, Some(owner.uid()), Some(owner.gid()))?;
    }
    file.sync_all()?;
    fs::rename(&new, path)?;
    File::open(folder)?.sync_all()
}

/// The folder of a file.
pub(crate) fn folder(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("."))
}
