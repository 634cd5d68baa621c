//! Lists the messages of a mailbox and opens their files.
//!
//! A list is a snapshot: other programs may read, move and delete files at any time.
//! [`open_message`] still finds a file that was moved since (flags changed, first seen); if it was
//! deleted, the error is `NotFound`.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{DirEntry, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::name::{base_of, field};

/// One of the two directories of a mailbox with messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MaildirFolder {
    /// `new/`: no reader has seen the message.
    New,
    /// `cur/`: seen by a reader; the file name has flags.
    Cur,
}

/// One message in a mailbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MaildirEntry {
    /// The directory at the time of listing.
    pub folder: MaildirFolder,
    /// The file name.
    pub name: OsString,
    /// The size of the file in bytes.
    pub size: u64,
    /// The size with CRLF line ends, if the file name contains it.
    pub size_crlf: Option<u64>,
}

/// All messages of the Maildir, sorted by file name, and so by time. A missing Maildir is empty.
pub fn list_messages(folder: &Path) -> io::Result<Vec<MaildirEntry>> {
    let mut entries = Vec::new();
    // In this order: a file that a reader moves during the listing is found in one directory, or in
    // both.
    for place in [MaildirFolder::New, MaildirFolder::Cur] {
        for_each_file(folder, place, |file| {
            entries.extend(entry_of(place, file)?);
            Ok(())
        })?;
    }
    let mut seen = HashSet::new();
    entries.reverse();
    entries.retain(|entry| seen.insert(base_of(entry.name.as_bytes()).to_owned()));
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(entries)
}

/// Opens the file of an entry, also if it has moved since.
pub fn open_message(folder: &Path, entry: &MaildirEntry) -> io::Result<File> {
    match File::open(folder.join(entry.folder.folder_name()).join(&entry.name)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => open_moved(folder, entry),
        file => file,
    }
}

impl MaildirFolder {
    pub(crate) fn folder_name(self) -> &'static str {
        match self {
            MaildirFolder::New => "new",
            MaildirFolder::Cur => "cur",
        }
    }
}

fn open_moved(folder: &Path, entry: &MaildirEntry) -> io::Result<File> {
    let mut path: Option<PathBuf> = None;
    for_each_file(folder, MaildirFolder::Cur, |file| {
        if base_of(file.file_name().as_bytes()) == base_of(entry.name.as_bytes()) {
            path = Some(file.path());
        }
        Ok(())
    })?;
    File::open(path.ok_or(io::ErrorKind::NotFound)?)
}

/// Skips hidden files, which are not messages.
fn for_each_file(
    folder: &Path,
    place: MaildirFolder,
    mut handle: impl FnMut(DirEntry) -> io::Result<()>,
) -> io::Result<()> {
    let entries = match folder.join(place.folder_name()).read_dir() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if !entry.file_name().as_bytes().starts_with(b".") {
            handle(entry)?;
        }
    }
    Ok(())
}

/// None if the file was just deleted or moved.
fn entry_of(place: MaildirFolder, file: DirEntry) -> io::Result<Option<MaildirEntry>> {
    let name = file.file_name();
    let size_crlf = field(name.as_bytes(), b'W');
    let size = match field(name.as_bytes(), b'S') {
        Some(size) => size,
        None => match file.metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            metadata => metadata?.len(),
        },
    };
    Ok(Some(MaildirEntry { folder: place, name, size, size_crlf }))
}
