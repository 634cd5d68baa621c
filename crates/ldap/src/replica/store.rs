//! The storage of a copy: a file with entries by UUID, for the thread that follows the server, and
//! an index in memory by key, for callers.
//!
//! | database  | key             | value                                                                    |
//! |-----------|-----------------|--------------------------------------------------------------------------|
//! | `entries` | UUID            | number, keys and values of the entry: see [`EntryRecord`]                     |
//! | `state`   | a name          | format, identity of the content, cookie, completeness, time              |
//!
//! Numbers follow the order of arrival and are never reused. Entries without values are stored too,
//! because the server refers to entries by UUID, but they have no answers if values are required.
//!
//! A [`ChangeBatch`] and the resulting [`SyncState`] with its cookie are committed in one
//! transaction, or in several with the state in the last one, so the file always contains what its
//! cookie covers. The [`AnswerIndex`] are built when the copy is opened, and changed after each
//! commit, so answers are always in the file. A reader sees a key before or after a batch, even if
//! it moves between entries.
//!
//! A damaged or foreign file, or one of another format version, is renamed, never deleted, and the
//! copy starts empty.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use heed::types::Bytes;
use heed::{CommitOrAbort, Database, MdbError, PutFlags, RoTxn, RwTxn};

use super::answer_index::{AnswerIndex, IndexEdit};
use super::batch::{ChangeBatch, EntryChange, EntryUuid, unpack};
use super::entry_set::EntrySet;
use super::record::EntryRecord;
use super::sys::{self, Environment, OpenError};

/// Changes per transaction. Uncommitted changes are in memory twice.
const CHANGES_PER_COMMIT: usize = 10_000;
const MAP_OCTETS: usize = 1 << 30;
const FORMAT: &[u8] = b"mailrace replica 2";

type RawDatabase = Database<'static, Bytes, Bytes>;

/// An open copy.
pub(super) struct CopyStore {
    environment: Environment,
    answers: Arc<AnswerIndex>,
    entries: RawDatabase,
    state: RawDatabase,
}

/// Why a copy cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process or table has the file open.
    #[error("{}: another process or table has this copy open", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// An I/O error.
    #[error("{}: {what}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        what: Box<str>,
    },
}

/// A damaged or foreign file that was renamed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SetAsideFile {
    path: PathBuf,
    what: Box<str>,
    moved_to: PathBuf,
}

impl fmt::Display for SetAsideFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; set aside as {}", self.path.display(), self.what, self.moved_to.display())
    }
}

impl OpenError {
    /// The error for the copy at `path`.
    fn into_store_error(self, path: &Path) -> StoreError {
        match self {
            OpenError::InUse => StoreError::InUse { path: path.into() },
            error => StoreError::Io { path: path.into(), what: error.to_string().into() },
        }
    }
}

/// How far the copy follows the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SyncState {
    /// The server's cookie for the state of the copy (RFC 4533 section 2.1.2).
    pub(super) cookie: Option<Vec<u8>>,
    /// Whether the first load has finished.
    pub(super) complete: bool,
    /// When the copy last matched the server.
    pub(super) agreed: Option<SystemTime>,
}

/// The effect of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AppliedCounts {
    /// Entries added or changed.
    pub(super) changed: u64,
    /// Entries removed.
    pub(super) removed: u64,
}

impl CopyStore {
    /// Opens the copy with the identity `of`; a copy of anything else is cleared first. `answers`
    /// becomes the index of this copy, replacing its content.
    pub(super) fn open(
        path: &Path,
        of: &str,
        answers: &Arc<AnswerIndex>,
    ) -> Result<(Self, Option<SetAsideFile>), StoreError> {
        CopyStore::open_with_map(path, of, answers, MAP_OCTETS)
    }

    pub(super) fn open_with_map(
        path: &Path,
        of: &str,
        answers: &Arc<AnswerIndex>,
        map_octets: usize,
    ) -> Result<(Self, Option<SetAsideFile>), StoreError> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(|error| OpenError::Io(error).into_store_error(path))?;
        }
        match CopyStore::try_open(path, of, answers, map_octets) {
            Ok(store) => Ok((store, None)),
            Err(OpenError::Damaged(what)) => {
                let aside = CopyStore::set_aside(path, what)?;
                let store =
                    CopyStore::try_open(path, of, answers, map_octets).map_err(|error| error.into_store_error(path))?;
                Ok((store, Some(aside)))
            }
            Err(error) => Err(error.into_store_error(path)),
        }
    }

    /// Renames a file that is not open, for the reason `what`.
    pub(super) fn set_aside(path: &Path, what: impl Into<Box<str>>) -> Result<SetAsideFile, StoreError> {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let now_at = sys::set_aside(path, seconds).map_err(|error| error.into_store_error(path))?;
        Ok(SetAsideFile { path: path.into(), what: what.into(), moved_to: now_at })
    }

    fn try_open(path: &Path, of: &str, answers: &Arc<AnswerIndex>, map_octets: usize) -> Result<Self, OpenError> {
        let environment = Environment::open(path, map_octets)?;
        let [entries, state] = databases(&environment)?;
        let store = CopyStore { environment, answers: answers.clone(), entries, state };
        let empty = store.read(|txn| Ok(store.state.is_empty(txn)? && store.entries.is_empty(txn)?))?;
        let format = store.state_octets("format")?;
        if !empty && format.as_deref() != Some(FORMAT) {
            return Err(OpenError::Damaged("unknown format".into()));
        }
        let same = store.state_octets("of")?.as_deref() == Some(of.as_bytes());
        if !same || !store.sync_state()?.complete {
            store.reset(of)?;
        }
        store.load_answers()?;
        Ok(store)
    }

    /// Builds the index from the entries.
    fn load_answers(&self) -> heed::Result<()> {
        self.answers.clear();
        self.read(|txn| {
            for entry in self.entries.iter(txn)? {
                let EntryRecord { number, keys, values } = record(entry?.1)?;
                unpack(keys).for_each(|key| self.answers.add(key, number, values));
            }
            Ok(())
        })
    }

    /// Removes everything; the copy is one of `of` from now on.
    fn reset(&self, of: &str) -> heed::Result<()> {
        self.answers.clear();
        self.environment.write(|txn| {
            self.entries.clear(txn)?;
            self.state.clear(txn)?;
            self.state.put(txn, b"format", FORMAT)?;
            self.state.put(txn, b"of", of.as_bytes())
        })
    }

    /// Removes all entries before a first load.
    pub(super) fn clear(&self) -> heed::Result<()> {
        let of = self.state_octets("of")?.unwrap_or_default();
        self.reset(&String::from_utf8_lossy(&of))
    }

    /// The number of an entry, if it exists.
    pub(super) fn number(&self, uuid: EntryUuid) -> heed::Result<Option<u32>> {
        self.read(|txn| Ok(self.entry(txn, uuid)?.map(|record| record.number)))
    }

    /// Whether an entry exists and has keys.
    pub(super) fn has_keys(&self, uuid: EntryUuid) -> heed::Result<bool> {
        self.read(|txn| Ok(self.entry(txn, uuid)?.is_some_and(|record| !record.keys.is_empty())))
    }

    /// The number of entries and of their keys.
    pub(super) fn counts(&self) -> heed::Result<(u64, u64)> {
        self.read(|txn| Ok((self.entries.len(txn)?, self.answers.len())))
    }

    /// The size of the file in octets.
    pub(super) fn octets(&self) -> u64 {
        self.environment.octets()
    }

    /// The stored state.
    pub(super) fn sync_state(&self) -> heed::Result<SyncState> {
        let agreed = self.state_octets("agreed")?.and_then(|octets| Some(u64::from_be_bytes(octets.try_into().ok()?)));
        Ok(SyncState {
            cookie: self.state_octets("cookie")?,
            complete: self.state_octets("complete")?.is_some(),
            agreed: agreed.map(|millis| UNIX_EPOCH + Duration::from_millis(millis)),
        })
    }

    fn state_octets(&self, name: &str) -> heed::Result<Option<Vec<u8>>> {
        self.read(|txn| Ok(self.state.get(txn, name.as_bytes())?.map(<[u8]>::to_vec)))
    }

    /// Applies all changes, adds the numbers of written entries to `put`, and stores the state, if
    /// any. Once `stop` is set no further transaction begins and the state stays unchanged.
    pub(super) fn apply(
        &self,
        batch: &ChangeBatch,
        sync_state: Option<&SyncState>,
        put: &mut EntrySet,
        stop: &AtomicBool,
    ) -> heed::Result<AppliedCounts> {
        let mut edits = Vec::new();
        let applied = self.commit(batch, sync_state, put, stop, &mut edits);
        // Even if a later transaction failed, the committed changes apply to the index.
        self.answers.apply(&edits);
        applied
    }

    /// Applies the changes to the file and collects those for the index.
    fn commit<'b>(
        &self,
        batch: &'b ChangeBatch,
        sync_state: Option<&SyncState>,
        put: &mut EntrySet,
        stop: &AtomicBool,
        edits: &mut Vec<IndexEdit<'b>>,
    ) -> heed::Result<AppliedCounts> {
        let order = batch.sorted();
        let mut applied = AppliedCounts::default();
        for run in order.chunks(CHANGES_PER_COMMIT) {
            if stop.load(Ordering::Relaxed) {
                return Ok(applied);
            }
            let last = run.as_ptr_range().end == order.as_ptr_range().end;
            let sync_state = sync_state.filter(|_| last);
            let committed = edits.len();
            let done = self.environment.write(|txn| {
                // The closure may run more than once.
                edits.truncate(committed);
                self.change_all(txn, batch, run, sync_state, put, edits)
            });
            let done = done.inspect_err(|_| edits.truncate(committed))?;
            applied.changed += done.changed;
            applied.removed += done.removed;
        }
        if let Some(sync_state) = sync_state.filter(|_| order.is_empty() && !stop.load(Ordering::Relaxed)) {
            self.environment.write(|txn| self.set_sync_state(txn, sync_state))?;
        }
        Ok(applied)
    }

    fn change_all<'b>(
        &self,
        txn: &mut RwTxn,
        batch: &'b ChangeBatch,
        run: &[u32],
        sync_state: Option<&SyncState>,
        put: &mut EntrySet,
        edits: &mut Vec<IndexEdit<'b>>,
    ) -> heed::Result<AppliedCounts> {
        let mut applied = AppliedCounts::default();
        let mut next = self.next_number(txn)?;
        for &index in run {
            match batch.change(index as usize) {
                EntryChange::Put { uuid, keys, values } => {
                    let (number, changed) = self.put(txn, uuid, keys, values, &mut next, edits)?;
                    applied.changed += u64::from(changed);
                    put.insert(number);
                }
                EntryChange::Remove { uuid } => applied.removed += u64::from(self.remove(txn, uuid, edits)?),
            }
        }
        // A refresh without changes writes nothing.
        if next != self.next_number(txn)? {
            self.state.put(txn, b"next", &next.to_be_bytes())?;
        }
        sync_state.map_or(Ok(()), |mark| self.set_sync_state(txn, mark))?;
        Ok(applied)
    }

    /// Writes one entry. Returns its number and whether anything changed.
    fn put<'b>(
        &self,
        txn: &mut RwTxn,
        uuid: EntryUuid,
        keys: &'b [u8],
        values: &'b [u8],
        next: &mut u32,
        edits: &mut Vec<IndexEdit<'b>>,
    ) -> heed::Result<(u32, bool)> {
        let before = self.entry(txn, uuid)?;
        let number = before.map_or(*next, |before| before.number);
        let after = EntryRecord::new(number, keys, values);
        if before == Some(after) {
            return Ok((number, false));
        }
        if before.is_none() {
            *next = next.wrapping_add(1);
        }
        let (old_keys, old_values) = before.map(|before| (before.keys, before.values)).unwrap_or_default();
        let gone = unpack(old_keys).filter(|old| !unpack(keys).any(|key| key == *old));
        edits.extend(gone.map(|key| IndexEdit::Remove { key: key.into(), number }));
        for key in unpack(keys) {
            match unpack(old_keys).any(|old| old == key) {
                true if old_values == values => {}
                true => edits.push(IndexEdit::Replace { key, number, values }),
                false => edits.push(IndexEdit::Add { key, number, values }),
            }
        }
        self.entries.put(txn, &uuid, &after.octets())?;
        Ok((number, true))
    }

    fn remove(&self, txn: &mut RwTxn, uuid: EntryUuid, edits: &mut Vec<IndexEdit>) -> heed::Result<bool> {
        let Some(EntryRecord { number, keys, .. }) = self.entry(txn, uuid)? else { return Ok(false) };
        edits.extend(unpack(keys).map(|key| IndexEdit::Remove { key: key.into(), number }));
        self.entries.delete(txn, &uuid)
    }

    /// Like [`apply`](CopyStore::apply), for the batches of a first load, which contain only
    /// entries. They are written in the order of the file, so each page is written about once.
    /// There are no readers yet, so the index need not wait for the last transaction.
    pub(super) fn load(&self, batch: &ChangeBatch, stop: &AtomicBool) -> heed::Result<AppliedCounts> {
        let flags = match self.read(|txn| self.entries.is_empty(txn))? {
            true => PutFlags::APPEND,
            false => PutFlags::empty(),
        };
        let mut order = batch.sorted();
        order.retain(|&index| matches!(batch.change(index as usize), EntryChange::Put { .. }));
        for run in order.chunks(CHANGES_PER_COMMIT) {
            if !stop.load(Ordering::Relaxed) {
                let edits = self.environment.write(|txn| self.load_entries(txn, batch, run, flags))?;
                self.answers.apply(&edits);
            }
        }
        Ok(AppliedCounts { changed: order.len() as u64, removed: 0 })
    }

    /// Writes entries of a load. An entry that an earlier batch had too gets a new number.
    fn load_entries<'b>(
        &self,
        txn: &mut RwTxn,
        batch: &'b ChangeBatch,
        run: &[u32],
        flags: PutFlags,
    ) -> heed::Result<Vec<IndexEdit<'b>>> {
        let mut next = self.next_number(txn)?;
        let mut edits = Vec::with_capacity(run.len());
        for &index in run {
            let EntryChange::Put { uuid, keys, values } = batch.change(index as usize) else { continue };
            if flags.is_empty() {
                self.remove(txn, uuid, &mut edits)?;
            }
            self.entries.put_with_flags(txn, flags, &uuid, &EntryRecord::new(next, keys, values).octets())?;
            edits.extend(unpack(keys).map(|key| IndexEdit::Add { key, number: next, values }));
            next = next.wrapping_add(1);
        }
        self.state.put(txn, b"next", &next.to_be_bytes())?;
        Ok(edits)
    }

    fn entry<'t>(&self, txn: &'t RoTxn, uuid: EntryUuid) -> heed::Result<Option<EntryRecord<'t>>> {
        self.entries.get(txn, &uuid)?.map(record).transpose()
    }

    fn next_number(&self, txn: &RoTxn) -> heed::Result<u32> {
        let next = self.state.get(txn, b"next")?.and_then(<[u8]>::first_chunk);
        Ok(next.map_or(0, |octets| u32::from_be_bytes(*octets)))
    }

    fn set_sync_state(&self, txn: &mut RwTxn, sync_state: &SyncState) -> heed::Result<()> {
        match &sync_state.cookie {
            Some(cookie) => self.state.put(txn, b"cookie", cookie)?,
            None => drop(self.state.delete(txn, b"cookie")?),
        }
        if sync_state.complete {
            self.state.put(txn, b"complete", b"1")?;
        }
        let millis =
            sync_state.agreed.and_then(|at| at.duration_since(UNIX_EPOCH).ok()).map(|since| since.as_millis() as u64);
        millis.map_or(Ok(()), |millis| self.state.put(txn, b"agreed", &millis.to_be_bytes()))
    }

    /// The UUIDs of all entries whose numbers are not in the set.
    pub(super) fn entries_not_in(&self, marks: &EntrySet) -> heed::Result<Vec<EntryUuid>> {
        self.read(|txn| {
            let mut unmarked = Vec::new();
            for entry in self.entries.iter(txn)? {
                let (uuid, octets) = entry?;
                if let (false, Ok(uuid)) = (marks.contains(record(octets)?.number), uuid.try_into()) {
                    unmarked.push(uuid);
                }
            }
            Ok(unmarked)
        })
    }

    /// The entries in `going` without which some key would no longer exist, if all of them were
    /// removed. The keys of the others also belong to remaining entries.
    pub(super) fn irreplaceable(&self, going: &[EntryUuid]) -> heed::Result<Vec<EntryUuid>> {
        self.read(|txn| {
            let mut numbers = EntrySet::default();
            for &uuid in going {
                self.entry(txn, uuid)?.into_iter().for_each(|record| numbers.insert(record.number));
            }
            let is_lost = |key| self.answers.exists_and_all(key, |number| numbers.contains(number));
            let mut irreplaceable = Vec::new();
            for &uuid in going {
                if self.entry(txn, uuid)?.is_some_and(|record| unpack(record.keys).any(is_lost)) {
                    irreplaceable.push(uuid);
                }
            }
            Ok(irreplaceable)
        })
    }

    fn read<T>(&self, read: impl FnOnce(&RoTxn) -> heed::Result<T>) -> heed::Result<T> {
        self.environment.read(read)
    }
}

fn databases(environment: &Environment) -> heed::Result<[RawDatabase; 2]> {
    let txn = environment.env().write_txn()?;
    let made = environment.env().create_databases_and_commit(txn, |opener, txn| {
        let entries = opener.create_database::<Bytes, Bytes>(txn, Some("entries"))?;
        let state = opener.create_database::<Bytes, Bytes>(txn, Some("state"))?;
        Ok::<_, heed::Error>(CommitOrAbort::<_, ()>::Commit([entries, state]))
    })?;
    Ok(made.unwrap_commit())
}

/// Parses an entry of the file.
fn record(octets: &[u8]) -> heed::Result<EntryRecord<'_>> {
    EntryRecord::parse(octets).ok_or(heed::Error::Mdb(MdbError::Corrupted))
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
