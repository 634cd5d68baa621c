//! Deletes messages when a session ends with QUIT (RFC 1939 section 6).

use std::io;

use rustix::fs::fsync;
use rustix::io::Errno;

use super::file_list::{FileList, MailFile, size_in_name};
use super::mail_folder::{MailFolder, octets_of};
use crate::list::MaildirFolder;
use crate::quota::{Usage, record_removed_usage};

/// What became of the files of some messages.
#[derive(Default)]
struct DeletedFiles {
    removed: Usage,
    failed: usize,
    /// Not where they were listed: another program moved or deleted them.
    missing: Vec<MailFile>,
}

/// Deletes the files, and records that they no longer count against the quota; returns how many could
/// not be deleted. One that does not exist any more counts as deleted.
pub(super) fn delete(
    folder: &MailFolder,
    files: &FileList,
    deleted: impl Iterator<Item = MailFile>,
    is_synced: bool,
) -> usize {
    let mut result = DeletedFiles::default();
    for file in deleted {
        result.delete(folder, files, file);
    }
    let missing = std::mem::take(&mut result.missing);
    if !missing.is_empty() && result.delete_moved(folder, files, &missing).is_err() {
        result.failed += missing.len();
    }
    if result.removed.messages > 0 {
        // If this fails, the next recount finds the difference.
        let _ = record_removed_usage(folder.path(), result.removed);
        if is_synced && sync(folder).is_err() {
            return result.failed.max(1);
        }
    }
    result.failed
}

impl DeletedFiles {
    fn delete(&mut self, folder: &MailFolder, files: &FileList, file: MailFile) {
        let path = files.path(&file);
        let octets = size_in_name(files.name(&file), b'S');
        let octets = octets.or_else(|| folder.stat(&*path).ok().map(|stat| octets_of(&stat)));
        match folder.remove(&*path) {
            Ok(()) => self.removed = self.removed + Usage::of_message(octets.unwrap_or(0)),
            Err(Errno::NOENT) => self.missing.push(file),
            Err(_) => self.failed += 1,
        }
    }

    /// Reads the directories once for all that were moved.
    fn delete_moved(&mut self, folder: &MailFolder, files: &FileList, missing: &[MailFile]) -> io::Result<()> {
        let now = FileList::read(folder)?;
        let by_base = now.by_base();
        for file in missing {
            if let Some(&moved) = by_base.get(files.base(file)) {
                self.delete(folder, &now, now.files[moved]);
            }
        }
        // Deleted by another program in between.
        self.missing.clear();
        Ok(())
    }
}

/// Makes deletions durable.
fn sync(folder: &MailFolder) -> io::Result<()> {
    for part in [MaildirFolder::New, MaildirFolder::Cur] {
        if let Some(dir) = folder.open_part(part)? {
            fsync(dir)?;
        }
    }
    Ok(())
}
