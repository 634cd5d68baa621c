//! The exclusive lock of a POP3 session on its maildrop (RFC 1939 section 4).
//!
//! Sessions of this process exclude one another by a set in memory. Sessions of other programs are
//! excluded by `dovecot-pop3-session.lock` in the Maildir: the file that Dovecot makes with
//! `pop3_lock_session = yes`, if it has no other directory for its indexes. Nobody waits for a
//! session's lock, since a waiting thread would keep others from the disk.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::dotlock::{DotLock, DotLockError, DotLockRules};
use super::mail_folder::{FolderKey, MailFolder, cannot_write};

const RULES: DotLockRules = DotLockRules {
    name: "dovecot-pop3-session.lock",
    protects: None,
    stale_after: Duration::from_secs(5 * 60),
    wait: Duration::ZERO,
};

/// The maildrops with a session of this process.
static LOCKED: Mutex<BTreeSet<FolderKey>> = Mutex::new(BTreeSet::new());

/// A session's lock; dropped, the maildrop is free.
pub(super) struct SessionLock {
    // In this order: when the place in the set is free, the file is gone.
    file: Option<DotLock>,
    _place: LockedFolder,
}

/// Why a session has no lock.
#[derive(Debug)]
pub(super) enum SessionLockError {
    /// Another session has it.
    InUse,
    /// The lock file cannot be created.
    Io(io::Error),
}

/// A maildrop in the set of those that are locked.
struct LockedFolder(FolderKey);

impl SessionLock {
    /// With `by_file`, sessions of other programs are excluded too.
    pub(super) fn acquire(folder: &Arc<MailFolder>, by_file: bool) -> Result<SessionLock, SessionLockError> {
        let key = folder.key();
        if !LOCKED.lock().insert(key) {
            return Err(SessionLockError::InUse);
        }
        let place = LockedFolder(key);
        let file = if by_file { lock_file(folder)? } else { None };
        Ok(SessionLock { file, _place: place })
    }

    /// Dovecot takes over a lock that was not touched for five minutes, if it cannot see the process.
    pub(super) fn touch(&self) {
        if let Some(file) = &self.file {
            file.touch();
        }
    }
}

/// None if no file can be written: the user of a full mailbox must be able to delete messages.
fn lock_file(folder: &Arc<MailFolder>) -> Result<Option<DotLock>, SessionLockError> {
    match DotLock::acquire(folder, &RULES) {
        Ok(lock) => Ok(Some(lock)),
        Err(DotLockError::Held) => Err(SessionLockError::InUse),
        Err(DotLockError::Io(error)) => match io::Error::from(error) {
            error if cannot_write(&error) => Ok(None),
            error => Err(SessionLockError::Io(error)),
        },
    }
}

impl Drop for LockedFolder {
    fn drop(&mut self) {
        LOCKED.lock().remove(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_session_at_a_time_has_the_lock_by_whatever_path() {
        let root = tempfile::tempdir().unwrap();
        let (folder, alias) = (root.path().join("bob"), root.path().join("alias"));
        std::fs::create_dir(&folder).unwrap();
        std::os::unix::fs::symlink(&folder, &alias).unwrap();
        let open = |path| Arc::new(MailFolder::open(path).unwrap().unwrap());
        for by_file in [true, false] {
            let lock = SessionLock::acquire(&open(&folder), by_file).unwrap();
            assert_eq!(folder.join(RULES.name).exists(), by_file);
            assert!(matches!(SessionLock::acquire(&open(&alias), !by_file), Err(SessionLockError::InUse)));
            drop(lock);
            assert!(!folder.join(RULES.name).exists());
        }
    }

    #[test]
    fn a_lock_of_another_program_leaves_no_place_in_the_set() {
        let root = tempfile::tempdir().unwrap();
        let folder = Arc::new(MailFolder::open(root.path()).unwrap().unwrap());
        std::fs::write(root.path().join(RULES.name), "1:elsewhere").unwrap();
        for _ in 0..2 {
            assert!(matches!(SessionLock::acquire(&folder, true), Err(SessionLockError::InUse)));
        }
        SessionLock::acquire(&folder, false).unwrap();
    }
}
