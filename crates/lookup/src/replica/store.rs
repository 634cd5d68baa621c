//! The storage of a copy: a file with entries by UUID, for the thread that follows the server, and
//! an index in memory by key, for callers.
//!
//! | database  | key             | value                                                                    |
//! |-----------|-----------------|--------------------------------------------------------------------------|
//! | `entries` | UUID            | number, keys and values of the entry: see [`Record`]                     |
//! | `state`   | a name          | format, identity of the content, cookie, completeness, time              |
//!
//! Numbers follow the order of arrival and are never reused. Entries without values are stored too,
//! because the server refers to entries by UUID, but they have no answers if values are required.
//!
//! A [`Batch`] and the resulting [`Mark`] with its cookie are committed in one transaction, or in
//! several with the mark in the last one, so the file always contains what its cookie covers. The
//! [`Answers`] are built when the copy is opened, and changed after each commit, so answers are
//! always in the file. A reader sees a key before or after a batch, even if it moves between
//! entries.
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

use super::answers::{Answers, Edit};
use super::batch::{Batch, Change, Uuid, unpack};
use super::marks::Marks;
use super::record::Record;
use super::sys::{self, Environment, OpenError};

/// Changes per transaction. Uncommitted changes are in memory twice.
const CHANGES_PER_COMMIT: usize = 10_000;
const MAP_OCTETS: usize = 1 << 30;
const FORMAT: &[u8] = b"mailrace replica 2";

type Pairs = Database<'static, Bytes, Bytes>;

/// An open copy.
pub(super) struct Store {
    environment: Environment,
    answers: Arc<Answers>,
    entries: Pairs,
    state: Pairs,
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
pub(super) struct SetAside {
    path: PathBuf,
    what: Box<str>,
    now_at: PathBuf,
}

impl fmt::Display for SetAside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; set aside as {}", self.path.display(), self.what, self.now_at.display())
    }
}

impl OpenError {
    /// The error for the copy at `path`.
    fn of(self, path: &Path) -> StoreError {
        match self {
            OpenError::InUse => StoreError::InUse { path: path.into() },
            error => StoreError::Io { path: path.into(), what: error.to_string().into() },
        }
    }
}

/// How far the copy follows the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Mark {
    /// The server's cookie for the state of the copy (RFC 4533 section 2.1.2).
    pub(super) cookie: Option<Vec<u8>>,
    /// Whether the first load has finished.
    pub(super) complete: bool,
    /// When the copy last matched the server.
    pub(super) agreed: Option<SystemTime>,
}

/// The effect of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Applied {
    /// Entries added or changed.
    pub(super) changed: u64,
    /// Entries removed.
    pub(super) removed: u64,
}

impl Store {
    /// Opens the copy with the identity `of`; a copy of anything else is cleared first. `answers`
    /// becomes the index of this copy, replacing its content.
    pub(super) fn open(path: &Path, of: &str, answers: &Arc<Answers>) -> Result<(Self, Option<SetAside>), StoreError> {
        Store::open_with_map(path, of, answers, MAP_OCTETS)
    }

    pub(super) fn open_with_map(
        path: &Path,
        of: &str,
        answers: &Arc<Answers>,
        map_octets: usize,
    ) -> Result<(Self, Option<SetAside>), StoreError> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(|error| OpenError::Io(error).of(path))?;
        }
        match Store::try_open(path, of, answers, map_octets) {
            Ok(store) => Ok((store, None)),
            Err(OpenError::Damaged(what)) => {
                let aside = Store::set_aside(path, what)?;
                let store = Store::try_open(path, of, answers, map_octets).map_err(|error| error.of(path))?;
                Ok((store, Some(aside)))
            }
            Err(error) => Err(error.of(path)),
        }
    }

    /// Renames a file that is not open, for the reason `what`.
    pub(super) fn set_aside(path: &Path, what: impl Into<Box<str>>) -> Result<SetAside, StoreError> {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let now_at = sys::set_aside(path, seconds).map_err(|error| error.of(path))?;
        Ok(SetAside { path: path.into(), what: what.into(), now_at })
    }

    fn try_open(path: &Path, of: &str, answers: &Arc<Answers>, map_octets: usize) -> Result<Self, OpenError> {
        let environment = Environment::open(path, map_octets)?;
        let [entries, state] = databases(&environment)?;
        let store = Store { environment, answers: answers.clone(), entries, state };
        let empty = store.read(|txn| Ok(store.state.is_empty(txn)? && store.entries.is_empty(txn)?))?;
        let format = store.state_octets("format")?;
        if !empty && format.as_deref() != Some(FORMAT) {
            return Err(OpenError::Damaged("unknown format".into()));
        }
        let same = store.state_octets("of")?.as_deref() == Some(of.as_bytes());
        if !same || !store.mark()?.complete {
            store.empty(of)?;
        }
        store.read_answers()?;
        Ok(store)
    }

    /// Builds the index from the entries.
    fn read_answers(&self) -> heed::Result<()> {
        self.answers.clear();
        self.read(|txn| {
            for entry in self.entries.iter(txn)? {
                let Record { number, keys, values } = record(entry?.1)?;
                unpack(keys).for_each(|key| self.answers.add(key, number, values));
            }
            Ok(())
        })
    }

    /// Removes everything; the copy is one of `of` from now on.
    fn empty(&self, of: &str) -> heed::Result<()> {
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
        self.empty(&String::from_utf8_lossy(&of))
    }

    /// The number of an entry, if it exists.
    pub(super) fn number(&self, uuid: Uuid) -> heed::Result<Option<u32>> {
        self.read(|txn| Ok(self.entry(txn, uuid)?.map(|record| record.number)))
    }

    /// Whether an entry exists and has keys.
    pub(super) fn has_keys(&self, uuid: Uuid) -> heed::Result<bool> {
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

    /// The stored mark.
    pub(super) fn mark(&self) -> heed::Result<Mark> {
        let agreed = self.state_octets("agreed")?.and_then(|octets| Some(u64::from_be_bytes(octets.try_into().ok()?)));
        Ok(Mark {
            cookie: self.state_octets("cookie")?,
            complete: self.state_octets("complete")?.is_some(),
            agreed: agreed.map(|millis| UNIX_EPOCH + Duration::from_millis(millis)),
        })
    }

    fn state_octets(&self, name: &str) -> heed::Result<Option<Vec<u8>>> {
        self.read(|txn| Ok(self.state.get(txn, name.as_bytes())?.map(<[u8]>::to_vec)))
    }

    /// Applies all changes, adds the numbers of written entries to `put`, and stores the mark, if
    /// any. Once `stop` is set no further transaction begins and the mark stays unchanged.
    pub(super) fn apply(
        &self,
        batch: &Batch,
        mark: Option<&Mark>,
        put: &mut Marks,
        stop: &AtomicBool,
    ) -> heed::Result<Applied> {
        let mut edits = Vec::new();
        let applied = self.commit(batch, mark, put, stop, &mut edits);
        // Even if a later transaction failed, the committed changes apply to the index.
        self.answers.change(&edits);
        applied
    }

    /// Applies the changes to the file and collects those for the index.
    fn commit<'b>(
        &self,
        batch: &'b Batch,
        mark: Option<&Mark>,
        put: &mut Marks,
        stop: &AtomicBool,
        edits: &mut Vec<Edit<'b>>,
    ) -> heed::Result<Applied> {
        let order = batch.sorted();
        let mut applied = Applied::default();
        for run in order.chunks(CHANGES_PER_COMMIT) {
            if stop.load(Ordering::Relaxed) {
                return Ok(applied);
            }
            let last = run.as_ptr_range().end == order.as_ptr_range().end;
            let mark = mark.filter(|_| last);
            let committed = edits.len();
            let done = self.environment.write(|txn| {
                // The closure may run more than once.
                edits.truncate(committed);
                self.change_all(txn, batch, run, mark, put, edits)
            });
            let done = done.inspect_err(|_| edits.truncate(committed))?;
            applied.changed += done.changed;
            applied.removed += done.removed;
        }
        if let Some(mark) = mark.filter(|_| order.is_empty() && !stop.load(Ordering::Relaxed)) {
            self.environment.write(|txn| self.set_mark(txn, mark))?;
        }
        Ok(applied)
    }

    fn change_all<'b>(
        &self,
        txn: &mut RwTxn,
        batch: &'b Batch,
        run: &[u32],
        mark: Option<&Mark>,
        put: &mut Marks,
        edits: &mut Vec<Edit<'b>>,
    ) -> heed::Result<Applied> {
        let mut applied = Applied::default();
        let mut next = self.next_number(txn)?;
        for &index in run {
            match batch.change(index as usize) {
                Change::Put { uuid, keys, values } => {
                    let (number, changed) = self.put(txn, uuid, keys, values, &mut next, edits)?;
                    applied.changed += u64::from(changed);
                    put.set(number);
                }
                Change::Remove { uuid } => applied.removed += u64::from(self.remove(txn, uuid, edits)?),
            }
        }
        // A refresh without changes writes nothing.
        if next != self.next_number(txn)? {
            self.state.put(txn, b"next", &next.to_be_bytes())?;
        }
        mark.map_or(Ok(()), |mark| self.set_mark(txn, mark))?;
        Ok(applied)
    }

    /// Writes one entry. Returns its number and whether anything changed.
    fn put<'b>(
        &self,
        txn: &mut RwTxn,
        uuid: Uuid,
        keys: &'b [u8],
        values: &'b [u8],
        next: &mut u32,
        edits: &mut Vec<Edit<'b>>,
    ) -> heed::Result<(u32, bool)> {
        let before = self.entry(txn, uuid)?;
        let number = before.map_or(*next, |before| before.number);
        let after = Record::new(number, keys, values);
        if before == Some(after) {
            return Ok((number, false));
        }
        if before.is_none() {
            *next = next.wrapping_add(1);
        }
        let (old_keys, old_values) = before.map(|before| (before.keys, before.values)).unwrap_or_default();
        let gone = unpack(old_keys).filter(|old| !unpack(keys).any(|key| key == *old));
        edits.extend(gone.map(|key| Edit::Remove { key: key.into(), number }));
        for key in unpack(keys) {
            match unpack(old_keys).any(|old| old == key) {
                true if old_values == values => {}
                true => edits.push(Edit::Replace { key, number, values }),
                false => edits.push(Edit::Add { key, number, values }),
            }
        }
        self.entries.put(txn, &uuid, &after.octets())?;
        Ok((number, true))
    }

    fn remove(&self, txn: &mut RwTxn, uuid: Uuid, edits: &mut Vec<Edit>) -> heed::Result<bool> {
        let Some(Record { number, keys, .. }) = self.entry(txn, uuid)? else { return Ok(false) };
        edits.extend(unpack(keys).map(|key| Edit::Remove { key: key.into(), number }));
        self.entries.delete(txn, &uuid)
    }

    /// Like [`apply`](Store::apply), for the batches of a first load, which contain only entries.
    /// They are written in the order of the file, so each page is written about once. There are no
    /// readers yet, so the index need not wait for the last transaction.
    pub(super) fn load(&self, batch: &Batch, stop: &AtomicBool) -> heed::Result<Applied> {
        let flags = match self.read(|txn| self.entries.is_empty(txn))? {
            true => PutFlags::APPEND,
            false => PutFlags::empty(),
        };
        let mut order = batch.sorted();
        order.retain(|&index| matches!(batch.change(index as usize), Change::Put { .. }));
        for run in order.chunks(CHANGES_PER_COMMIT) {
            if !stop.load(Ordering::Relaxed) {
                let edits = self.environment.write(|txn| self.load_entries(txn, batch, run, flags))?;
                self.answers.change(&edits);
            }
        }
        Ok(Applied { changed: order.len() as u64, removed: 0 })
    }

    /// Writes entries of a load. An entry that an earlier batch had too gets a new number.
    fn load_entries<'b>(
        &self,
        txn: &mut RwTxn,
        batch: &'b Batch,
        run: &[u32],
        flags: PutFlags,
    ) -> heed::Result<Vec<Edit<'b>>> {
        let mut next = self.next_number(txn)?;
        let mut edits = Vec::with_capacity(run.len());
        for &index in run {
            let Change::Put { uuid, keys, values } = batch.change(index as usize) else { continue };
            if flags.is_empty() {
                self.remove(txn, uuid, &mut edits)?;
            }
            self.entries.put_with_flags(txn, flags, &uuid, &Record::new(next, keys, values).octets())?;
            edits.extend(unpack(keys).map(|key| Edit::Add { key, number: next, values }));
            next = next.wrapping_add(1);
        }
        self.state.put(txn, b"next", &next.to_be_bytes())?;
        Ok(edits)
    }

    fn entry<'t>(&self, txn: &'t RoTxn, uuid: Uuid) -> heed::Result<Option<Record<'t>>> {
        self.entries.get(txn, &uuid)?.map(record).transpose()
    }

    fn next_number(&self, txn: &RoTxn) -> heed::Result<u32> {
        let next = self.state.get(txn, b"next")?.and_then(<[u8]>::first_chunk);
        Ok(next.map_or(0, |octets| u32::from_be_bytes(*octets)))
    }

    fn set_mark(&self, txn: &mut RwTxn, mark: &Mark) -> heed::Result<()> {
        match &mark.cookie {
            Some(cookie) => self.state.put(txn, b"cookie", cookie)?,
            None => drop(self.state.delete(txn, b"cookie")?),
        }
        if mark.complete {
            self.state.put(txn, b"complete", b"1")?;
        }
        let millis =
            mark.agreed.and_then(|at| at.duration_since(UNIX_EPOCH).ok()).map(|since| since.as_millis() as u64);
        millis.map_or(Ok(()), |millis| self.state.put(txn, b"agreed", &millis.to_be_bytes()))
    }

    /// The UUIDs of all entries whose numbers are not in the set.
    pub(super) fn unmarked(&self, marks: &Marks) -> heed::Result<Vec<Uuid>> {
        self.read(|txn| {
            let mut unmarked = Vec::new();
            for entry in self.entries.iter(txn)? {
                let (uuid, octets) = entry?;
                if let (false, Ok(uuid)) = (marks.has(record(octets)?.number), uuid.try_into()) {
                    unmarked.push(uuid);
                }
            }
            Ok(unmarked)
        })
    }

    /// The entries in `going` without which some key would no longer exist, if all of them were
    /// removed. The keys of the others also belong to remaining entries.
    pub(super) fn irreplaceable(&self, going: &[Uuid]) -> heed::Result<Vec<Uuid>> {
        self.read(|txn| {
            let mut numbers = Marks::default();
            for &uuid in going {
                self.entry(txn, uuid)?.into_iter().for_each(|record| numbers.set(record.number));
            }
            let is_lost = |key| self.answers.is_there_and_all(key, |number| numbers.has(number));
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

fn databases(environment: &Environment) -> heed::Result<[Pairs; 2]> {
    let txn = environment.env().write_txn()?;
    let made = environment.env().create_databases_and_commit(txn, |opener, txn| {
        let entries = opener.create_database::<Bytes, Bytes>(txn, Some("entries"))?;
        let state = opener.create_database::<Bytes, Bytes>(txn, Some("state"))?;
        Ok::<_, heed::Error>(CommitOrAbort::<_, ()>::Commit([entries, state]))
    })?;
    Ok(made.unwrap_commit())
}

/// Parses an entry of the file.
fn record(octets: &[u8]) -> heed::Result<Record<'_>> {
    Record::parse(octets).ok_or(heed::Error::Mdb(MdbError::Corrupted))
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
