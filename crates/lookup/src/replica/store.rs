//! The copy in its file: answers by key for whoever asks, entries by UUID for the thread that follows the directory.
//!
//! | database  | key                                  | value                                                      |
//! |-----------|--------------------------------------|------------------------------------------------------------|
//! | `answers` | key, NUL, number of the entry (u32)  | the entry's values, packed                                 |
//! | `entries` | UUID (16 octets)                     | number of the entry (u32), its keys, packed                |
//! | `state`   | a name                               | format, what it is a copy of, cookie, completeness, moment |
//!
//! Numbers are big-endian, given in the order of arrival and never given twice. An entry without values has no answers
//! where values are asked for; it is in `entries` nevertheless, since the directory speaks of entries by their UUIDs.
//!
//! Readers see one committed state. A [`Batch`] and the [`Mark`] that it leads to (the cookie above all) are committed in
//! one transaction, or, where it is large, in several of which the last has the mark: what the cookie covers is in the
//! file whenever the cookie is.
//!
//! A file that is damaged or foreign is given another name and never deleted; the copy starts anew.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use heed::types::Bytes;
use heed::{CommitOrAbort, Database, PutFlags, RoTxn, RwTxn};

use super::batch::{Batch, Change, NO_TEXT, Uuid, unpack};
use super::marks::Marks;
use super::sys::{self, Environment, OpenError};
use crate::ldap::schema::is_plain;

/// Octets of a key at most, so that it and its number fit in a key of LMDB (511); a mail address has 320.
pub(super) const KEY_OCTETS_MAX: usize = 480;
/// Changes in one transaction: what is not yet committed is in memory twice.
const CHANGES_PER_COMMIT: usize = 10_000;
const MAP_OCTETS: usize = 1 << 30;
const FORMAT: &[u8] = b"mailrace replica 1";

type Pairs = Database<'static, Bytes, Bytes>;

/// An open copy.
pub(super) struct Store {
    environment: Environment,
    answers: Pairs,
    entries: Pairs,
    state: Pairs,
}

/// Why a copy cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process, or another table of this one, has the file.
    #[error("{}: another process or table has this copy open", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The system refused something about this file.
    #[error("{}: {what}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        what: Box<str>,
    },
}

/// A file that was no copy, or not a whole one, and was given another name.
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
    /// What it means to whoever wants the copy at `path`.
    fn of(self, path: &Path) -> StoreError {
        match self {
            OpenError::InUse => StoreError::InUse { path: path.into() },
            error => StoreError::Io { path: path.into(), what: error.to_string().into() },
        }
    }
}

/// Up to where the copy goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Mark {
    /// What the server knows us by (RFC 4533 section 2.1.2).
    pub(super) cookie: Option<Vec<u8>>,
    /// Whether the first load was completed.
    pub(super) complete: bool,
    /// When the copy was last known to be as its master.
    pub(super) agreed: Option<SystemTime>,
}

/// What a copy says of a key.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Said {
    Found(Vec<String>),
    NotFound,
    /// More values than an answer may have.
    TooMany,
    /// Not a key that could be in a copy, or one of an entry whose values could not: the directory must be asked itself.
    Elsewhere,
}

/// What a batch did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Applied {
    /// Entries that were added, or are not as they were.
    pub(super) changed: u64,
    /// Entries that were there and are gone.
    pub(super) removed: u64,
}

impl Store {
    /// Opens the copy of what `of` names; a copy of anything else is emptied first.
    pub(super) fn open(path: &Path, of: &str) -> Result<(Self, Option<SetAside>), StoreError> {
        Store::open_with_map(path, of, MAP_OCTETS)
    }

    pub(super) fn open_with_map(
        path: &Path,
        of: &str,
        map_octets: usize,
    ) -> Result<(Self, Option<SetAside>), StoreError> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(|error| OpenError::Io(error).of(path))?;
        }
        match Store::try_open(path, of, map_octets) {
            Ok(store) => Ok((store, None)),
            Err(OpenError::Damaged(what)) => {
                let aside = Store::set_aside(path, what)?;
                let store = Store::try_open(path, of, map_octets).map_err(|error| error.of(path))?;
                Ok((store, Some(aside)))
            }
            Err(error) => Err(error.of(path)),
        }
    }

    /// Gives a file another name that was found to be `what`, and is not open.
    pub(super) fn set_aside(path: &Path, what: impl Into<Box<str>>) -> Result<SetAside, StoreError> {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let now_at = sys::set_aside(path, seconds).map_err(|error| error.of(path))?;
        Ok(SetAside { path: path.into(), what: what.into(), now_at })
    }

    fn try_open(path: &Path, of: &str, map_octets: usize) -> Result<Self, OpenError> {
        let environment = Environment::open(path, map_octets)?;
        let [answers, entries, state] = databases(&environment)?;
        let store = Store { environment, answers, entries, state };
        let empty = store.read(|txn| Ok(store.state.is_empty(txn)? && store.entries.is_empty(txn)?))?;
        let format = store.state_octets("format")?;
        if !empty && format.as_deref() != Some(FORMAT) {
            return Err(OpenError::Damaged("it is of another format".into()));
        }
        let same = store.state_octets("of")?.as_deref() == Some(of.as_bytes());
        if !same || !store.mark()?.complete {
            store.empty(of)?;
        }
        Ok(store)
    }

    /// Forgets everything, and is a copy of what `of` names from now on.
    fn empty(&self, of: &str) -> heed::Result<()> {
        self.environment.write(|txn| {
            self.answers.clear(txn)?;
            self.entries.clear(txn)?;
            self.state.clear(txn)?;
            self.state.put(txn, b"format", FORMAT)?;
            self.state.put(txn, b"of", of.as_bytes())
        })
    }

    /// Forgets all entries, before a first load that begins anew.
    pub(super) fn clear(&self) -> heed::Result<()> {
        let of = self.state_octets("of")?.unwrap_or_default();
        self.empty(&String::from_utf8_lossy(&of))
    }

    /// What the copy says of folded keys, all in one state of it.
    pub(super) fn answer<'k>(&self, keys: impl Iterator<Item = &'k str>, values_max: usize) -> heed::Result<Vec<Said>> {
        self.read(|txn| keys.map(|key| self.say(txn, key, values_max)).collect())
    }

    fn say(&self, txn: &RoTxn, key: &str, values_max: usize) -> heed::Result<Said> {
        if !indexable(key) {
            return Ok(Said::Elsewhere);
        }
        let mut place = [0; KEY_OCTETS_MAX + 1];
        place[..key.len()].copy_from_slice(key.as_bytes());
        let mut found: Option<Vec<String>> = None;
        for record in self.answers.prefix_iter(txn, &place[..=key.len()])? {
            let values = found.get_or_insert_default();
            let (_, packed) = record?;
            if packed == NO_TEXT {
                return Ok(Said::Elsewhere);
            }
            for value in unpack(packed) {
                if !values.iter().any(|other| other == value) {
                    values.push(value.to_owned());
                }
                if values.len() > values_max {
                    return Ok(Said::TooMany);
                }
            }
        }
        Ok(found.map_or(Said::NotFound, Said::Found))
    }

    /// The number of an entry; None if it is not there.
    pub(super) fn number(&self, uuid: Uuid) -> heed::Result<Option<u32>> {
        self.read(|txn| Ok(self.entries.get(txn, &uuid)?.map(number_of)))
    }

    /// Whether an entry is there and has keys.
    pub(super) fn has_keys(&self, uuid: Uuid) -> heed::Result<bool> {
        self.read(|txn| Ok(self.entries.get(txn, &uuid)?.is_some_and(|record| record.len() > 4)))
    }

    /// Entries, and keys that they have.
    pub(super) fn counts(&self) -> heed::Result<(u64, u64)> {
        self.read(|txn| Ok((self.entries.len(txn)?, self.answers.len(txn)?)))
    }

    /// Octets of the file.
    pub(super) fn octets(&self) -> u64 {
        self.environment.octets()
    }

    /// Up to where it goes.
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

    /// Makes all changes, notes which entries were put, and sets the mark, if there is one. Once `stop` is set
    /// no transaction begins: the rest is left, and the mark as it was.
    pub(super) fn apply(
        &self,
        batch: &Batch,
        mark: Option<&Mark>,
        put: &mut Marks,
        stop: &AtomicBool,
    ) -> heed::Result<Applied> {
        let order = batch.sorted();
        let mut applied = Applied::default();
        for run in order.chunks(CHANGES_PER_COMMIT) {
            if stop.load(Ordering::Relaxed) {
                return Ok(applied);
            }
            let last = run.as_ptr_range().end == order.as_ptr_range().end;
            let mark = mark.filter(|_| last);
            let done = self.environment.write(|txn| self.change_all(txn, batch, run, mark, put))?;
            applied.changed += done.changed;
            applied.removed += done.removed;
        }
        if let Some(mark) = mark.filter(|_| order.is_empty() && !stop.load(Ordering::Relaxed)) {
            self.environment.write(|txn| self.set_mark(txn, mark))?;
        }
        Ok(applied)
    }

    fn change_all(
        &self,
        txn: &mut RwTxn,
        batch: &Batch,
        run: &[u32],
        mark: Option<&Mark>,
        put: &mut Marks,
    ) -> heed::Result<Applied> {
        let mut applied = Applied::default();
        let mut next = self.next_number(txn)?;
        for &index in run {
            match batch.change(index as usize) {
                Change::Put { uuid, keys, values } => {
                    let (number, changed) = self.put(txn, uuid, keys, values, &mut next)?;
                    applied.changed += u64::from(changed);
                    put.set(number);
                }
                Change::Remove { uuid } => applied.removed += u64::from(self.remove(txn, uuid)?),
            }
        }
        // A refresh that changes nothing writes nothing.
        if next != self.next_number(txn)? {
            self.state.put(txn, b"next", &next.to_be_bytes())?;
        }
        mark.map_or(Ok(()), |mark| self.set_mark(txn, mark))?;
        Ok(applied)
    }

    /// Puts one entry; returns its number, and whether anything is not as it was.
    fn put(
        &self,
        txn: &mut RwTxn,
        uuid: Uuid,
        keys: &[u8],
        values: &[u8],
        next: &mut u32,
    ) -> heed::Result<(u32, bool)> {
        let before = self.entries.get(txn, &uuid)?.map(|record| (number_of(record), record[4..].to_vec()));
        let number = match &before {
            Some((number, _)) => *number,
            None => std::mem::replace(next, next.wrapping_add(1)),
        };
        let mut changed = before.as_ref().is_none_or(|(_, old)| old != keys);
        if changed {
            let old = before.as_ref().map_or(&[][..], |(_, old)| old);
            for key in unpack(old).filter(|key| !unpack(keys).any(|new| new == *key)) {
                self.answers.delete(txn, &place(key, number))?;
            }
            self.entries.put(txn, &uuid, &[&number.to_be_bytes()[..], keys].concat())?;
        }
        for key in unpack(keys) {
            let place = place(key, number);
            if self.answers.get(txn, &place)? != Some(values) {
                changed = true;
                self.answers.put(txn, &place, values)?;
            }
        }
        Ok((number, changed))
    }

    fn remove(&self, txn: &mut RwTxn, uuid: Uuid) -> heed::Result<bool> {
        let Some(record) = self.entries.get(txn, &uuid)?.map(<[u8]>::to_vec) else { return Ok(false) };
        for key in unpack(&record[4..]) {
            self.answers.delete(txn, &place(key, number_of(&record)))?;
        }
        self.entries.delete(txn, &uuid)
    }

    /// The same as [`apply`](Store::apply) for a first load, which has nothing but entries: they are written in the order of
    /// the file, so that each page of it is written about once, and full where the copy was empty.
    pub(super) fn load(&self, batch: &Batch, stop: &AtomicBool) -> heed::Result<Applied> {
        let flags = match self.counts()? {
            (0, 0) => PutFlags::APPEND,
            _ => PutFlags::empty(),
        };
        let mut order = batch.sorted();
        order.retain(|&index| matches!(batch.change(index as usize), Change::Put { .. }));
        let mut numbers = Vec::with_capacity(order.len());
        for run in order.chunks(CHANGES_PER_COMMIT) {
            if !stop.load(Ordering::Relaxed) {
                numbers.extend(self.environment.write(|txn| self.load_entries(txn, batch, run, flags))?);
            }
        }
        let mut answers: Vec<(&str, u32, &[u8])> = Vec::with_capacity(order.len());
        for (&index, &number) in order.iter().zip(&numbers) {
            if let Change::Put { keys, values, .. } = batch.change(index as usize) {
                answers.extend(unpack(keys).map(|key| (key, number, values)));
            }
        }
        answers.sort_unstable_by_key(|&(key, number, _)| (key, number));
        answers.dedup_by_key(|&mut (key, number, _)| (key, number));
        for run in answers.chunks(CHANGES_PER_COMMIT) {
            if !stop.load(Ordering::Relaxed) {
                self.environment.write(|txn| {
                    run.iter().try_for_each(|&(key, number, values)| {
                        self.answers.put_with_flags(txn, flags, &place(key, number), values)
                    })
                })?;
            }
        }
        Ok(Applied { changed: order.len() as u64, removed: 0 })
    }

    /// Writes the entries of a load; returns their numbers. One that an earlier part of the load had (it was changed
    /// meanwhile) loses its answers here, and gets those that it has now with all others.
    fn load_entries(&self, txn: &mut RwTxn, batch: &Batch, run: &[u32], flags: PutFlags) -> heed::Result<Vec<u32>> {
        let mut next = self.next_number(txn)?;
        let mut numbers = Vec::with_capacity(run.len());
        for &index in run {
            let Change::Put { uuid, keys, .. } = batch.change(index as usize) else { continue };
            if flags.is_empty() {
                self.remove(txn, uuid)?;
            }
            let record = [&next.to_be_bytes()[..], keys].concat();
            self.entries.put_with_flags(txn, flags, &uuid, &record)?;
            numbers.push(next);
            next = next.wrapping_add(1);
        }
        self.state.put(txn, b"next", &next.to_be_bytes())?;
        Ok(numbers)
    }

    fn next_number(&self, txn: &RoTxn) -> heed::Result<u32> {
        Ok(self.state.get(txn, b"next")?.map_or(0, number_of))
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

    /// The UUIDs of all entries whose numbers are not marked.
    pub(super) fn unmarked(&self, marks: &Marks) -> heed::Result<Vec<Uuid>> {
        self.read(|txn| {
            let mut unmarked = Vec::new();
            for record in self.entries.iter(txn)? {
                let (uuid, record) = record?;
                if let (false, Ok(uuid)) = (marks.has(number_of(record)), uuid.try_into()) {
                    unmarked.push(uuid);
                }
            }
            Ok(unmarked)
        })
    }

    /// Those of the entries without which a key would be known no more, if all of them went. The others can go without
    /// harm: entries that stay have their keys.
    pub(super) fn irreplaceable(&self, going: &[Uuid]) -> heed::Result<Vec<Uuid>> {
        self.read(|txn| {
            let mut numbers = Marks::default();
            for uuid in going {
                self.entries.get(txn, uuid)?.into_iter().for_each(|record| numbers.set(number_of(record)));
            }
            let mut irreplaceable = Vec::new();
            for uuid in going {
                let Some(record) = self.entries.get(txn, uuid)? else { continue };
                let mut lost = false;
                for key in unpack(&record[4..]) {
                    lost |= self.is_lost(txn, key, number_of(record), &numbers)?;
                }
                if lost {
                    irreplaceable.push(*uuid);
                }
            }
            Ok(irreplaceable)
        })
    }

    /// Whether a key that this entry answers would have no answer without those that go.
    fn is_lost(&self, txn: &RoTxn, key: &str, number: u32, going: &Marks) -> heed::Result<bool> {
        let own = place(key, number);
        let mut answered = false;
        for record in self.answers.prefix_iter(txn, &own[..=key.len()])? {
            let other = record?.0.get(key.len() + 1..).map_or(number, number_of);
            answered |= other == number;
            if !going.has(other) {
                return Ok(false);
            }
        }
        Ok(answered)
    }

    fn read<T>(&self, read: impl FnOnce(&RoTxn) -> heed::Result<T>) -> heed::Result<T> {
        self.environment.read(read)
    }
}

fn databases(environment: &Environment) -> heed::Result<[Pairs; 3]> {
    let txn = environment.env().write_txn()?;
    let made = environment.env().create_databases_and_commit(txn, |opener, txn| {
        let answers = opener.create_database::<Bytes, Bytes>(txn, Some("answers"))?;
        let entries = opener.create_database::<Bytes, Bytes>(txn, Some("entries"))?;
        let state = opener.create_database::<Bytes, Bytes>(txn, Some("state"))?;
        Ok::<_, heed::Error>(CommitOrAbort::<_, ()>::Commit([answers, entries, state]))
    })?;
    Ok(made.unwrap_commit())
}

/// Whether a key can be in a copy: its length is limited, and it must be of characters of which we know which are equal.
pub(super) fn indexable(key: &str) -> bool {
    !key.is_empty() && key.len() <= KEY_OCTETS_MAX && is_plain(key.as_bytes())
}

/// Where the values are that an entry has for a key.
fn place(key: &str, number: u32) -> Vec<u8> {
    [key.as_bytes(), &[0], &number.to_be_bytes()].concat()
}

/// The number with which a record begins.
fn number_of(record: &[u8]) -> u32 {
    record.first_chunk().map_or(0, |octets| u32::from_be_bytes(*octets))
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
