//! The journal: what is about to be changed, as it was before. It is on the disk before the first change.
//!
//! | journal | what is true of each entry |
//! |---|---|
//! | none | nothing is changed |
//! | unfinished | it is as it was, as it should become, or a temporary file lies beside it |
//! | finished | it is as it should become, unless somebody changed it since |
//!
//! A place has one entry, however often it is changed: what it was before the first change, and the digest of
//! everything that was written there. So a place is put back by one step, and a step that was done already is seen by
//! what is there.
//!
//! The folder belongs to root, not to the user of the server: what is in it is written back as root. So a journal that
//! another user can have written is not believed.

use std::io;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::error::{ApplyError, doing};
use super::files::{FILE_BYTES_MAX, FileState, Files};
use crate::value::plain_text;

/// The folder of the journals, below the root. Not below `data_dir`, which belongs to the user of the server: that
/// user could have root write any file.
pub const STATE_FOLDER: &str = "/var/lib/mailrace-tune";
/// Has another text after each start of the host (random(4)).
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// The version of the format.
const FORMAT: u32 = 1;
/// The largest journal, so that it can be read again: what is added after the first change, the digests of values and
/// followers, fits into the rest.
const JOURNAL_BYTES_MAX: u64 = FILE_BYTES_MAX - (256 << 10);
/// Passwords in former configurations are nobody's business.
const JOURNAL_MODE: u32 = 0o600;

/// What a journal is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JournalName {
    /// What `tune apply` changed, until `tune revert`.
    Applied,
    /// What a measurement changed, until it ends.
    Temporary,
}

/// A journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Journal {
    format: u32,
    /// All changes were made, and none was put back.
    pub(crate) is_finished: bool,
    /// The start of the host since which it is true; None if that is unknown, as in a copy.
    #[serde(default)]
    boot: Option<String>,
    /// In the order in which they were changed.
    pub(crate) entries: Vec<Entry>,
}

/// A place that is changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Entry {
    /// The file, value or folder.
    pub(crate) path: String,
    /// What it is, and how it was.
    pub(crate) place: Place,
    /// The digest of everything that was written there, or that the kernel made of it, in hexadecimal digits.
    #[serde(default)]
    pub(crate) written: Vec<String>,
}

/// What is changed at a place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Place {
    /// A folder that did not exist.
    Folder,
    /// A file as it was; None if it did not exist.
    File(Option<FileState>),
    /// A value of the kernel as it was.
    Value(FileState),
    /// A value as it was, which the kernel changes by itself when another one is changed.
    Follower(FileState),
}

impl JournalName {
    fn path(self) -> String {
        match self {
            JournalName::Applied => format!("{STATE_FOLDER}/journal.json"),
            JournalName::Temporary => format!("{STATE_FOLDER}/measurement.json"),
        }
    }
}

impl Journal {
    pub(crate) fn new() -> Journal {
        Journal { format: FORMAT, is_finished: false, boot: None, entries: Vec::new() }
    }

    /// Reads the journal; None if there is none. What a measurement set was not kept over a restart of the host, so then
    /// its values are not in it any more.
    ///
    /// # Errors
    ///
    /// It cannot be read, is of another version, or another user can have written it.
    pub(crate) fn load(files: &dyn Files, name: JournalName) -> Result<Option<Journal>, ApplyError> {
        let path = name.path();
        let Some(state) = files.state(&path).map_err(doing("reading", &path))? else { return Ok(None) };
        if !state.is_private() || !files.is_private_folder(STATE_FOLDER).map_err(doing("reading", STATE_FOLDER))? {
            return Err(ApplyError::Refused(format!(
                "{path}, or its folder, belongs to another user or can be written by others, so it is not believed: what it \
                 says would be written with your rights. Look at it, then remove it or take it over"
            )));
        }
        let journal: Result<Journal, _> = serde_json::from_slice(&state.octets);
        match journal {
            Ok(mut journal) if journal.format == FORMAT => {
                if name == JournalName::Temporary && journal.boot != boot(files) {
                    journal.entries.retain(|entry| !matches!(entry.place, Place::Value(_) | Place::Follower(_)));
                }
                Ok(Some(journal))
            }
            Ok(_) => Err(ApplyError::Refused(format!(
                "{path} is of another version of mailrace: use that version's `mailrace tune revert`"
            ))),
            Err(error) => Err(ApplyError::Refused(format!(
                "{path} is damaged ({error}): compare the files that it names with a backup, then remove it"
            ))),
        }
    }

    /// Replaces the journal on the disk, before the changes that it announces.
    ///
    /// # Errors
    ///
    /// It is too large, or cannot be written.
    pub(crate) fn announce(&mut self, files: &dyn Files, name: JournalName) -> Result<(), ApplyError> {
        self.boot = boot(files);
        let octets = self.octets(name)?;
        if octets.len() as u64 > JOURNAL_BYTES_MAX {
            return Err(ApplyError::Refused(format!(
                "the journal, with all files as they were, would be larger than {} KiB: change large files by hand",
                JOURNAL_BYTES_MAX >> 10
            )));
        }
        self.store(files, name)
    }

    fn octets(&self, name: JournalName) -> Result<Vec<u8>, ApplyError> {
        serde_json::to_vec_pretty(self).map_err(io::Error::other).map_err(doing("writing", &name.path()))
    }

    /// Replaces the journal on the disk.
    pub(crate) fn store(&self, files: &dyn Files, name: JournalName) -> Result<(), ApplyError> {
        let state = FileState { octets: self.octets(name)?, mode: JOURNAL_MODE, owner: None };
        replace(files, &name.path(), &state)
    }

    /// Removes the journal from the disk, and what was left of one that was never complete.
    pub(crate) fn remove(files: &dyn Files, name: JournalName) -> Result<(), ApplyError> {
        let temporary = [JournalName::Applied, JournalName::Temporary].map(|name| temporary_of(&name.path()));
        for path in temporary.into_iter().chain([name.path()]) {
            files.remove(&path).map_err(doing("removing", &path))?;
        }
        files.sync_folder(STATE_FOLDER).map_err(doing("syncing", STATE_FOLDER))
    }

    /// The entry of a place.
    pub(crate) fn entry(&mut self, path: &str) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.path == path)
    }
}

fn boot(files: &dyn Files) -> Option<String> {
    Some(value_word(&files.state(BOOT_ID).ok()??.octets))
}

/// Replaces a file, or creates it: it is always as it was or as it should become.
pub(crate) fn replace(files: &dyn Files, path: &str, state: &FileState) -> Result<(), ApplyError> {
    let temporary = temporary_of(path);
    files.remove(&temporary).map_err(doing("removing", &temporary))?;
    files.create(&temporary, state).map_err(doing("writing", &temporary))?;
    files.rename(&temporary, path).map_err(doing("replacing", path))?;
    sync_folder_of(files, path)
}

/// Makes a new or missing name in a folder durable.
pub(crate) fn sync_folder_of(files: &dyn Files, path: &str) -> Result<(), ApplyError> {
    let folder = super::files::split(path).0;
    files.sync_folder(folder).map_err(doing("syncing", folder))
}

/// The file that is renamed to `path` when it is complete.
pub(crate) fn temporary_of(path: &str) -> String {
    let (folder, name) = super::files::split(path);
    format!("{}/.{name}.mailrace-tune", folder.trim_end_matches('/'))
}

/// The digest of a file's content.
pub(crate) fn digest(octets: &[u8]) -> String {
    Sha256::digest(octets).iter().map(|octet| format!("{octet:02x}")).collect()
}

/// The text of a value as it is compared.
pub(crate) fn value_word(octets: &[u8]) -> String {
    plain_text(&String::from_utf8_lossy(octets))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_and_temporary_names_are_those_of_earlier_versions() {
        assert_eq!(digest(b""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        assert_eq!(temporary_of("/etc/a.conf"), "/etc/.a.conf.mailrace-tune");
        assert_eq!(temporary_of("/a"), "/.a.mailrace-tune");
    }
}
