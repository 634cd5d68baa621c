//! Changes for the time of a measurement.

use std::sync::Arc;

use super::error::ApplyError;
use super::files::Files;
use super::journal::JournalName;
use super::transaction::{Change, Transaction};

/// Changes that end with a measurement: values of the kernel and files that are put back when this is dropped. After a
/// kill, the next [`TemporaryChanges::begin`], `tune apply` or `tune revert` puts them back.
///
/// It holds the lock of `tune apply` and `tune revert`, so neither changes anything meanwhile. What `tune apply` changed
/// earlier stays: each place is put back as it was when the measurement began.
///
/// ```no_run
/// # use std::{path::Path, sync::Arc};
/// # use tune::apply::{Change, ChangeKind, RealFiles, TemporaryChanges};
/// let files = Arc::new(RealFiles::below(Path::new("/"))?);
/// let mut changes = TemporaryChanges::begin(files)?;
/// let path = "/proc/sys/net/core/somaxconn".to_owned();
/// changes.make(&[Change { path, kind: ChangeKind::Value("4096".to_owned()) }])?;
/// // Measure; make other changes of the same places, as often as needed.
/// changes.put_back()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TemporaryChanges {
    /// None when everything is put back.
    transaction: Option<Transaction>,
}

impl TemporaryChanges {
    /// Takes the lock, and puts back what a killed measurement left.
    ///
    /// # Errors
    ///
    /// Another process has the lock; the folder of the journal cannot be written; or what a killed measurement changed was
    /// changed again since.
    pub fn begin(files: Arc<dyn Files>) -> Result<TemporaryChanges, ApplyError> {
        let mut transaction = Transaction::begin(files.clone(), JournalName::Temporary)?;
        if !transaction.journal().entries.is_empty() {
            transaction.undo()?;
            drop(transaction);
            transaction = Transaction::begin(files, JournalName::Temporary)?;
        }
        Ok(TemporaryChanges { transaction: Some(transaction) })
    }

    /// Makes changes. A place may be changed again and again; it is put back as it was before the first time.
    ///
    /// # Errors
    ///
    /// A change failed: then those of this call are put back. Or a file was edited since the last time: then nothing is
    /// changed. If it was the first call, this can no longer be used.
    pub fn make(&mut self, changes: &[Change]) -> Result<(), ApplyError> {
        let ended = || ApplyError::Refused("the first change of this measurement failed: begin again".into());
        let transaction = self.transaction.as_mut().ok_or_else(ended)?;
        let made = transaction.make(changes);
        if made.is_err() && transaction.journal().entries.is_empty() {
            // The lock ended with the journal.
            self.transaction = None;
        }
        made
    }

    /// Puts everything back.
    ///
    /// # Errors
    ///
    /// An operation failed, or somebody else changed a place meanwhile. The journal stays, and `mailrace tune revert` tries again.
    pub fn put_back(mut self) -> Result<(), ApplyError> {
        self.transaction.take().map_or(Ok(()), |mut transaction| transaction.undo().map(drop))
    }
}

impl Drop for TemporaryChanges {
    fn drop(&mut self) {
        if let Some(mut transaction) = self.transaction.take() {
            // The journal stays if this fails, and the next start tries again.
            let _ = transaction.undo();
        }
    }
}
