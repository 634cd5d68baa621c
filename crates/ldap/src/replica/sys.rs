//! The memory-mapped file of a copy, with all unsafe code.
//!
//! LMDB requires that nobody else changes a mapped file, that a process opens it once, and that no
//! transaction runs while the map grows. A lock on the file (`flock`), which fails immediately if
//! it is held, ensures the first two, and a gate that all readers pass ensures the third. LMDB also
//! trusts the content of the file, so it is checked before it is opened.
//!
//! A commit syncs its data but not the meta page (`MDB_NOMETASYNC`): a power failure may undo the
//! last commits as a whole, together with their cookies.
#![expect(
    unsafe_code,
    reason = "heed's open, flags and resize are unsafe; the lock and the gate meet their conditions"
)]

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;

use heed::{Env, EnvFlags, EnvOpenOptions, MdbError, RoTxn, RwTxn};

use super::file_check::{FileDamage, check_file};

/// Maximum number of reading threads; each keeps its slot until it ends.
const READERS_MAX: u32 = 1024;
const DATABASES_MAX: u32 = 2;

/// Why a file cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(super) enum OpenError {
    /// Another process or table has it open.
    #[error("already open")]
    InUse,
    /// Not an LMDB file, or an incomplete one.
    #[error("{0}")]
    Damaged(Box<str>),
    /// An I/O error.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<heed::Error> for OpenError {
    fn from(error: heed::Error) -> Self {
        match error {
            heed::Error::Io(error) => OpenError::Io(error),
            error if is_damage(&error) => OpenError::Damaged(error.to_string().into()),
            error => OpenError::Io(io::Error::other(error.to_string())),
        }
    }
}

/// Whether an error means that the file is damaged. Others mean a full disk or a failing system.
pub(super) fn is_damage(error: &heed::Error) -> bool {
    use MdbError::{Corrupted, Incompatible, Invalid, PageNotFound, Problem, VersionMismatch};
    matches!(error, heed::Error::Mdb(Corrupted | Incompatible | Invalid | PageNotFound | Problem | VersionMismatch))
}

/// Whether an error means that the file must be reopened, as after a failed write. The file itself
/// may be fine.
pub(super) fn needs_reopen(error: &heed::Error) -> bool {
    matches!(error, heed::Error::Mdb(MdbError::BadTxn | MdbError::Panic))
}

/// An open file. Fields are dropped in order, the lock last.
pub(super) struct Environment {
    env: Env,
    /// Held for reading by readers, for writing while the map grows.
    gate: RwLock<()>,
    /// The map is gone: it could neither grow nor be restored.
    unmapped: AtomicBool,
    _lock: File,
}

impl Environment {
    /// Opens or creates the file with mode 0600 and a map of at least `map_octets`.
    pub(super) fn open(path: &Path, map_octets: usize) -> Result<Self, OpenError> {
        let lock = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        try_lock(&lock)?;
        let octets = lock.metadata()?.len();
        check_file(&lock).map_err(|broken| match broken {
            FileDamage::Io(error) => OpenError::Io(error),
            broken => OpenError::Damaged(broken.to_string().into()),
        })?;
        let map_octets = map_octets.max(usize::try_from(octets).unwrap_or(usize::MAX)).next_power_of_two();
        let mut options = EnvOpenOptions::new();
        options.map_size(map_octets).max_dbs(DATABASES_MAX).max_readers(READERS_MAX);
        // SAFETY: NO_SUB_DIR only concerns names; NO_META_SYNC may undo commits but never tears
        // them. The lock excludes all users that go through here; other writers could damage any
        // file of ours.
        let env = unsafe { options.flags(EnvFlags::NO_SUB_DIR | EnvFlags::NO_META_SYNC).open(path) }?;
        Ok(Environment { env, gate: RwLock::new(()), unmapped: AtomicBool::new(false), _lock: lock })
    }

    /// Reads a consistent state of the file during writes. Must not be nested.
    pub(super) fn read<T>(&self, read: impl FnOnce(&RoTxn) -> heed::Result<T>) -> heed::Result<T> {
        let _open = self.gate.read();
        self.check_map()?;
        read(&*self.env.read_txn()?)
    }

    /// Writes everything or nothing. If the map is full it grows and `write` runs again.
    pub(super) fn write<T>(&self, mut write: impl FnMut(&mut RwTxn) -> heed::Result<T>) -> heed::Result<T> {
        loop {
            self.check_map()?;
            let mut transaction = self.env.write_txn()?;
            let written = write(&mut transaction).and_then(|value| transaction.commit().map(|()| value));
            match written {
                Err(heed::Error::Mdb(MdbError::MapFull)) => self.grow()?,
                written => return written,
            }
        }
    }

    /// The LMDB environment, for opening its databases.
    pub(super) fn env(&self) -> &Env {
        &self.env
    }

    /// The size of the file in octets.
    pub(super) fn octets(&self) -> u64 {
        self.env.real_disk_size().unwrap_or(0)
    }

    fn grow(&self) -> heed::Result<()> {
        let _closed = self.gate.write();
        let octets = self.env.info().map_size.checked_mul(2).ok_or(heed::Error::Mdb(MdbError::MapFull))?;
        // SAFETY: the gate excludes readers, and the only writer calls this after ending its
        // transaction.
        let resized = unsafe { self.env.resize(octets) };
        // LMDB unmaps the old map before it creates the new one.
        self.unmapped.store(resized.is_err(), Ordering::Relaxed);
        resized
    }

    /// Fails as [`needs_reopen`] if there is no map, which LMDB does not check. The gate orders
    /// this for readers.
    fn check_map(&self) -> heed::Result<()> {
        match self.unmapped.load(Ordering::Relaxed) {
            true => Err(heed::Error::Mdb(MdbError::Panic)),
            false => Ok(()),
        }
    }
}

/// Locks a file exclusively for as long as it is open.
fn try_lock(file: &File) -> Result<(), OpenError> {
    file.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => OpenError::InUse,
        TryLockError::Error(error) => OpenError::Io(error),
    })
}

/// Renames a file that is not open to an unused name beside it.
pub(super) fn set_aside(path: &Path, at: u64) -> Result<PathBuf, OpenError> {
    let lock = File::open(path)?;
    try_lock(&lock)?;
    let name = path.file_name().ok_or(io::Error::from(io::ErrorKind::InvalidInput))?.to_string_lossy().into_owned();
    let free = (0..).map(|count: u32| match count {
        0 => path.with_file_name(format!("{name}.damaged-{at}")),
        count => path.with_file_name(format!("{name}.damaged-{at}-{count}")),
    });
    let aside = free.into_iter().find(|aside| !aside.exists()).ok_or(io::Error::from(io::ErrorKind::AlreadyExists))?;
    fs::rename(path, &aside)?;
    Ok(aside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_that_cannot_grow_ends_reading_and_writing_until_it_is_opened_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("copy");
        // Doubling this exceeds the address space.
        let environment = Environment::open(&path, 1 << 46).unwrap();
        assert!(environment.read(|_| Ok(())).is_ok());
        assert!(environment.grow().is_err());
        assert!(environment.read(|_| Ok(())).is_err_and(|error| needs_reopen(&error)));
        assert!(environment.write(|_| Ok(())).is_err_and(|error| needs_reopen(&error)));
        drop(environment);
        assert!(Environment::open(&path, 1 << 20).unwrap().read(|_| Ok(())).is_ok());
    }

    #[test]
    fn a_full_disk_is_no_damage_and_a_page_that_is_missing_is() {
        let full = || heed::Error::Io(io::ErrorKind::StorageFull.into());
        assert!(matches!(OpenError::from(full()), OpenError::Io(_)) && !is_damage(&full()) && !needs_reopen(&full()));
        let spent = || heed::Error::Mdb(MdbError::Panic);
        assert!(matches!(OpenError::from(spent()), OpenError::Io(_)) && !is_damage(&spent()) && needs_reopen(&spent()));
        let damage = || heed::Error::Mdb(MdbError::PageNotFound);
        assert!(matches!(OpenError::from(damage()), OpenError::Damaged(_)) && is_damage(&damage()));
    }
}
