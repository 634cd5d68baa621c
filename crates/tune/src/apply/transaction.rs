//! Makes changes so that each can be put back, also after a kill at any step.
//!
//! A [`Transaction`] holds the lock. It writes the journal, then changes the places one after the other, then marks the
//! journal as finished. [`Transaction::undo`] marks it as unfinished, puts the places back in reverse order, and removes
//! it. If a change fails, all are put back before the error is returned.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use super::error::{ApplyError, doing};
use super::files::{FileOwner, FileState, Files, split};
use super::journal::{
    Entry, Journal, JournalName, Place, STATE_FOLDER, digest, replace, sync_folder_of, temporary_of, value_word,
};

/// The mode of a new file.
const FILE_MODE: u32 = 0o644;
/// The mode of a new folder.
const FOLDER_MODE: u32 = 0o755;
/// The mode of the journal's folder. Whoever can read it can lock it; others may only find out that a journal is missing.
const STATE_FOLDER_MODE: u32 = 0o711;
/// How often the lock is tried if another process removes the folder at the same time.
const LOCK_TRIES: usize = 8;

/// A change of one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The file.
    pub path: String,
    /// What is changed.
    pub kind: ChangeKind,
}

/// What is changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// The file becomes this, or is created; its mode and its owner stay.
    File(Vec<u8>),
    /// The value of the kernel becomes this.
    Value(String),
    /// The kernel may change this value because of the next change; it is put back with it.
    Follower,
}

/// Changes under one journal and the lock.
pub(crate) struct Transaction {
    files: Arc<dyn Files>,
    name: JournalName,
    journal: Journal,
    _lock: OwnedFd,
}

/// What was left as it is, for people.
pub(crate) type Notes = Vec<String>;

impl Transaction {
    /// Takes the lock and reads the journal.
    ///
    /// # Errors
    ///
    /// Another process has the lock, or the folder of the journal cannot be made.
    pub(crate) fn begin(files: Arc<dyn Files>, name: JournalName) -> Result<Transaction, ApplyError> {
        let lock = lock(&*files)?;
        let journal = Journal::load(&*files, name)?.unwrap_or_else(Journal::new);
        Ok(Transaction { files, name, journal, _lock: lock })
    }

    /// The journal as it is on the disk.
    pub(crate) fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Makes the changes. If one fails, those of this call are put back.
    pub(crate) fn make(&mut self, changes: &[Change]) -> Result<(), ApplyError> {
        let previous = self.journal.clone();
        let announced = self.announce(changes);
        let made = match &announced {
            Ok(_) => self.change_all(changes),
            Err(_) => Ok(()),
        };
        match (announced, made) {
            (Ok(_), Ok(())) => Ok(()),
            (Err(error), _) => {
                // Another command removes what cannot be removed now.
                let _ = self.roll_back(&[], previous);
                Err(error)
            }
            (Ok(entries), Err(error)) => Err(ApplyError::Failed(match self.roll_back(&entries, previous) {
                Ok(()) => format!("{error}. Everything is as it was before"),
                Err(other) => format!(
                    "{error}. Putting everything back failed too: {other}. Remove the cause, then run \
                     `mailrace tune revert --yes`"
                ),
            })),
        }
    }

    /// Refuses if somebody changed a place of this journal, or of that of a measurement, which is put back first.
    pub(crate) fn refuse_conflicts(&self) -> Result<(), ApplyError> {
        let files = &*self.files;
        let later = match self.name {
            JournalName::Applied => Journal::load(files, JournalName::Temporary)?,
            JournalName::Temporary => None,
        };
        let mut conflicts = later.as_ref().map_or(Ok(Vec::new()), |later| conflicts(files, later, None))?;
        conflicts.extend(self::conflicts(files, &self.journal, later.as_ref())?);
        match conflicts.is_empty() {
            true => Ok(()),
            false => Err(ApplyError::Refused(conflicts.join("\n"))),
        }
    }

    /// Ends without a change, and leaves nothing behind if there is no journal.
    pub(crate) fn abandon(self) {
        if self.journal.entries.is_empty() {
            // Another command removes what cannot be removed now.
            let _ = self.remove_journal();
        }
    }

    /// Puts everything back and removes the journal. Returns what was left as it is.
    ///
    /// # Errors
    ///
    /// Somebody changed a place since; then nothing is put back. Or an operation failed; then the rest is put back by
    /// the next call.
    pub(crate) fn undo(&mut self) -> Result<Notes, ApplyError> {
        self.refuse_conflicts()?;
        let mut notes = Notes::new();
        if !self.journal.entries.is_empty() {
            self.journal.is_finished = false;
            self.journal.store(&*self.files, self.name)?;
            for entry in self.journal.entries.iter().rev() {
                put_back(&*self.files, entry, &mut notes)?;
            }
        }
        self.journal = Journal::new();
        self.remove_journal()?;
        Ok(notes)
    }

    /// Writes to the journal what the changes replace. Returns the entries of these changes alone.
    fn announce(&mut self, changes: &[Change]) -> Result<Vec<Entry>, ApplyError> {
        let files = self.files.clone();
        let mut journal = self.journal.clone();
        let mut entries: Vec<Entry> = Vec::new();
        journal.is_finished = false;
        for change in changes {
            let folders = missing_folders(&*files, &change.path).into_iter().map(Entry::folder);
            let folders: Vec<Entry> = folders.filter(|folder| !entries.contains(folder)).collect();
            let now = files.state(&change.path).map_err(doing("reading", &change.path))?;
            let entry = change.entry(now.clone())?;
            for folder in folders {
                if journal.entry(&folder.path).is_none() {
                    journal.entries.push(folder.clone());
                }
                entries.push(folder);
            }
            match journal.entry(&change.path) {
                Some(known) => change.announce_again(known, now.as_ref())?,
                None => {
                    refuse_foreign_temporary(&*files, &change.path)?;
                    journal.entries.push(entry.clone());
                }
            }
            entries.push(entry);
        }
        journal.announce(&*files, self.name)?;
        self.journal = journal;
        Ok(entries)
    }

    /// Puts back what these entries name, and the journal as it was before.
    fn roll_back(&mut self, entries: &[Entry], previous: Journal) -> Result<(), ApplyError> {
        let mut notes = Notes::new();
        for entry in entries.iter().rev() {
            put_back(&*self.files, entry, &mut notes)?;
        }
        self.journal = previous;
        match self.journal.entries.is_empty() {
            true => self.remove_journal(),
            false => self.journal.store(&*self.files, self.name),
        }
    }

    /// Makes the changes, and marks the journal as finished.
    fn change_all(&mut self, changes: &[Change]) -> Result<(), ApplyError> {
        changes.iter().try_for_each(|change| self.change(change))?;
        // Only now has the kernel done all of it: a follower may be that of several values.
        let followers = changes.iter().filter(|change| change.kind == ChangeKind::Follower);
        followers.map(|follower| &*follower.path).try_for_each(|path| self.note_value(path))?;
        self.journal.is_finished = true;
        self.journal.store(&*self.files, self.name)
    }

    fn remove_journal(&self) -> Result<(), ApplyError> {
        Journal::remove(&*self.files, self.name)?;
        self.files.remove_folder(STATE_FOLDER).map_err(doing("removing", STATE_FOLDER))?;
        sync_folder_of(&*self.files, STATE_FOLDER)
    }

    /// Makes one change that the journal names.
    fn change(&mut self, change: &Change) -> Result<(), ApplyError> {
        let files = self.files.clone();
        let is_above =
            |entry: &&Entry| entry.place == Place::Folder && Path::new(&change.path).starts_with(&entry.path);
        let folders = self.journal.entries.iter().filter(is_above).map(|entry| &*entry.path);
        for missing in folders.filter(|folder| !files.is_folder(folder)) {
            files.make_folder(missing, FOLDER_MODE).map_err(doing("making", missing))?;
            sync_folder_of(&*files, missing)?;
        }
        let former = files.state(&change.path).map_err(doing("reading", &change.path))?;
        match (&change.kind, former) {
            (ChangeKind::Follower, _) => Ok(()),
            (ChangeKind::File(octets), former) => replace(&*files, &change.path, &successor(octets.clone(), former)),
            (ChangeKind::Value(value), Some(former)) => self.set_value(&change.path, value, &former),
            (ChangeKind::Value(_), None) => Err(doing("setting", &change.path)(std::io::ErrorKind::NotFound.into())),
        }
    }

    /// Sets a value, and adds to the journal what the kernel made of it.
    fn set_value(&mut self, path: &str, value: &str, former: &FileState) -> Result<(), ApplyError> {
        if value_word(&former.octets) == value_word(value.as_bytes()) {
            return Ok(());
        }
        write_value(&*self.files, path, value, former)?;
        self.note_value(path)
    }

    /// Adds to the journal what a value is now, so that what somebody else sets later is seen.
    fn note_value(&mut self, path: &str) -> Result<(), ApplyError> {
        let now = self.files.state(path).map_err(doing("reading", path))?;
        let read_back = now.map(|state| digest(value_word(&state.octets).as_bytes()));
        let entry = self.journal.entry(path).expect("`announce` made an entry for each change");
        entry.written.extend(read_back.filter(|digest| !entry.written.contains(digest)));
        Ok(())
    }
}

impl Entry {
    fn folder(path: String) -> Entry {
        Entry { path, place: Place::Folder, written: Vec::new() }
    }
}

impl Change {
    /// The entry of a place that is changed for the first time.
    fn entry(&self, former: Option<FileState>) -> Result<Entry, ApplyError> {
        let missing = || doing("reading", &self.path)(std::io::ErrorKind::NotFound.into());
        let place = match self.kind {
            ChangeKind::File(_) => Place::File(former),
            ChangeKind::Value(_) => Place::Value(former.ok_or_else(missing)?),
            ChangeKind::Follower => Place::Follower(former.ok_or_else(missing)?),
        };
        Ok(Entry { path: self.path.clone(), place, written: self.written_digest().into_iter().collect() })
    }

    /// Adds this change to the entry of its place, unless somebody else changed it meanwhile.
    fn announce_again(&self, entry: &mut Entry, now: Option<&FileState>) -> Result<(), ApplyError> {
        if let Some(conflict) = conflict(entry, now) {
            return Err(ApplyError::Refused(conflict));
        }
        if let (ChangeKind::Follower, Place::Value(former)) = (&self.kind, &entry.place) {
            entry.place = Place::Follower(former.clone());
        }
        entry.written.extend(self.written_digest());
        Ok(())
    }

    /// The digest of what is written; None if nothing is.
    fn written_digest(&self) -> Option<String> {
        match &self.kind {
            ChangeKind::File(octets) => Some(digest(octets)),
            ChangeKind::Value(value) => Some(digest(value_word(value.as_bytes()).as_bytes())),
            ChangeKind::Follower => None,
        }
    }
}

fn lock(files: &dyn Files) -> Result<OwnedFd, ApplyError> {
    for _ in 0..LOCK_TRIES {
        let parent = split(STATE_FOLDER).0;
        if !files.is_folder(parent) {
            return Err(ApplyError::Refused(format!("{parent}, which holds the journal, does not exist: create it")));
        }
        if !files.is_folder(STATE_FOLDER) {
            match files.make_folder(STATE_FOLDER, STATE_FOLDER_MODE) {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                made => made.map_err(doing("making", STATE_FOLDER))?,
            }
            // What is in it is only found again if its name is on the disk.
            sync_folder_of(files, STATE_FOLDER)?;
        }
        if let Some(lock) = files.lock(STATE_FOLDER).map_err(doing("locking", STATE_FOLDER))? {
            return Ok(lock);
        }
        if files.is_folder(STATE_FOLDER) {
            return Err(ApplyError::Refused("another `mailrace tune` is at work: try again when it has ended".into()));
        }
    }
    Err(ApplyError::Refused(format!("{STATE_FOLDER} cannot be locked: another process removes it again and again")))
}

/// The folders above a path that do not exist, the topmost first.
fn missing_folders(files: &dyn Files, path: &str) -> Vec<String> {
    let mut missing = Vec::new();
    let mut folder = split(path).0;
    while folder != "/" && !files.is_folder(folder) {
        missing.push(folder.to_owned());
        folder = split(folder).0;
    }
    missing.reverse();
    missing
}

/// Before the journal names a place, a file with the name of our temporary one is somebody else's.
fn refuse_foreign_temporary(files: &dyn Files, path: &str) -> Result<(), ApplyError> {
    let temporary = temporary_of(path);
    match files.state(&temporary) {
        Ok(None) => Ok(()),
        _ => Err(ApplyError::Refused(format!("{temporary} is in the way: remove it"))),
    }
}

/// The places that somebody else changed. After an interruption, values may be whatever the kernel made of ours. Places
/// of a `later` journal are looked at as they will be when that one is put back.
fn conflicts(files: &dyn Files, journal: &Journal, later: Option<&Journal>) -> Result<Vec<String>, ApplyError> {
    let mut conflicts = Vec::new();
    for entry in &journal.entries {
        if entry.place == Place::Folder || !(journal.is_finished || matches!(entry.place, Place::File(_))) {
            continue;
        }
        let later = later.and_then(|later| later.entries.iter().find(|other| other.path == entry.path));
        let now = match later.map(|later| &later.place) {
            Some(Place::File(former)) => former.clone(),
            Some(Place::Value(former) | Place::Follower(former)) => Some(former.clone()),
            Some(Place::Folder) | None => files.state(&entry.path).map_err(doing("reading", &entry.path))?,
        };
        conflicts.extend(conflict(entry, now.as_ref()));
    }
    Ok(conflicts)
}

/// Why a place cannot be put back; None if it can.
fn conflict(entry: &Entry, now: Option<&FileState>) -> Option<String> {
    let now = now?;
    match &entry.place {
        Place::Folder => None,
        Place::File(former) => file_conflict(entry, former.as_ref(), now),
        Place::Value(former) | Place::Follower(former) => {
            let (path, former, now) = (&entry.path, value_word(&former.octets), value_word(&now.octets));
            let is_known = former == now || entry.written.contains(&digest(now.as_bytes()));
            (!is_known).then(|| {
                format!(
                    "{path} was set to {now} after `mailrace tune` had changed it: set it to {former}, which it was \
                     before, then run `mailrace tune revert --yes`"
                )
            })
        }
    }
}

/// The same for a file. A changed one keeps its mode and its owner; a new one belongs to this user.
fn file_conflict(entry: &Entry, former: Option<&FileState>, now: &FileState) -> Option<String> {
    let path = &entry.path;
    let is_former = former.is_some_and(|former| former.octets == now.octets);
    if !is_former && !entry.written.contains(&digest(&now.octets)) {
        let then = if former.is_some() { "which restores the former file" } else { "which leaves no file there" };
        return Some(format!(
            "{path} was edited after `mailrace tune apply`: move it to another name, then run \
             `mailrace tune revert --yes`, {then}"
        ));
    }
    let mode = former.map_or(FILE_MODE, |former| former.mode);
    let has_owner = match former.and_then(|former| former.owner) {
        Some(owner) => now.owner == Some(owner),
        None => now.is_own(),
    };
    (now.mode != mode || !has_owner).then(|| {
        let owner = former.and_then(|former| former.owner);
        let owner = owner.map_or("your user".to_owned(), |FileOwner { uid, gid }| format!("{uid}:{gid}"));
        format!(
            "{path} got another mode or owner after `mailrace tune apply`: note them, set its mode to {mode:o} and its \
             owner to {owner} as before, then run `mailrace tune revert --yes`"
        )
    })
}

/// Puts a place back, if it is not as it was already.
fn put_back(files: &dyn Files, entry: &Entry, notes: &mut Notes) -> Result<(), ApplyError> {
    let path = &*entry.path;
    if entry.place == Place::Folder {
        files.remove_folder(path).map_err(doing("removing", path))?;
        if files.is_folder(path) {
            notes.push(format!("{path} stays: other files are in it"));
            return Ok(());
        }
        // Its parent may have been removed by an earlier, interrupted attempt or never been made.
        return if files.is_folder(split(path).0) { sync_folder_of(files, path) } else { Ok(()) };
    }
    let temporary = temporary_of(path);
    if files.state(&temporary).map_err(doing("reading", &temporary))?.is_some() {
        files.remove(&temporary).map_err(doing("removing", &temporary))?;
    }
    let now = files.state(path).map_err(doing("reading", path))?;
    match (&entry.place, now) {
        (Place::File(None), Some(_)) => {
            files.remove(path).map_err(doing("removing", path))?;
            sync_folder_of(files, path)
        }
        (Place::File(Some(former)), now) if now.as_ref() != Some(former) => replace(files, path, former),
        (Place::Value(former) | Place::Follower(former), Some(now)) if now != *former => {
            restore_value(files, path, former, &now)
        }
        (Place::Value(_), None) => {
            notes.push(no_longer_exists(path));
            Ok(())
        }
        _ => Ok(()),
    }
}

/// What is said of a value whose module or device is gone.
pub(crate) fn no_longer_exists(path: &str) -> String {
    format!("{path} no longer exists")
}

/// Values of the kernel are compared by what they mean; in a copy of a host's files, byte by byte.
fn restore_value(files: &dyn Files, path: &str, former: &FileState, now: &FileState) -> Result<(), ApplyError> {
    if !files.is_kernel_value(path).map_err(doing("reading", path))? {
        return replace(files, path, former);
    }
    match value_word(&former.octets) {
        word if word == value_word(&now.octets) => Ok(()),
        word => files.write_value(path, &word).map_err(doing("setting", path)),
    }
}

/// Writes a value. In a copy of a host's files it is a file like others, so that a kill never leaves half of it.
fn write_value(files: &dyn Files, path: &str, value: &str, former: &FileState) -> Result<(), ApplyError> {
    match files.is_kernel_value(path).map_err(doing("reading", path))? {
        true => files.write_value(path, value).map_err(doing("setting", path)),
        false => {
            let octets = format!("{value}\n").into_bytes();
            replace(files, path, &FileState { octets, ..former.clone() })
        }
    }
}

/// A file with new content and what else it had.
fn successor(octets: Vec<u8>, former: Option<FileState>) -> FileState {
    match former {
        Some(former) => FileState { octets, ..former },
        None => FileState { octets, mode: FILE_MODE, owner: None },
    }
}
