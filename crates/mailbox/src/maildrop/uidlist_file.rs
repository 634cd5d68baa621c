//! The file `dovecot-uidlist` of a Maildir: read without a lock, written under Dovecot's lock.
//!
//! | change | written by | durable before UIDs are used |
//! |---|---|---|
//! | new messages | lines at the end | yes |
//! | anything else | a new file that replaces the old one | yes |
//! | the file is damaged | it is renamed to `dovecot-uidlist.damaged`, and a new one is written | yes |
//!
//! A UID that was told to a client must never become that of another message, so the lines are
//! synced before it is. Readers without the lock see the old file or the new one, or whole lines of
//! an appended one.

use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::fs::{fdatasync, fstat, ftruncate};
use rustix::io::Errno;

use super::dotlock::{DotLock, DotLockError, DotLockRules};
use super::mail_folder::{FileIdentity, MailFolder, octets_of};
use super::uidlist::UidList;

const NAME: &str = "dovecot-uidlist";
const TEMP_NAME: &str = "dovecot-uidlist.tmp";
const DAMAGED_NAME: &str = "dovecot-uidlist.damaged";
/// A larger file counts as damaged: it has lines for several times as many messages as a maildrop
/// may have.
const FILE_OCTETS_MAX: u64 = 512 << 20;
/// When Dovecot and we take over a lock whose holder cannot be seen.
const STALE_AFTER: Duration = Duration::from_secs(2 * 60);

/// The file as it was read.
#[derive(Debug)]
pub(super) struct UidListFile {
    pub(super) content: UidListContent,
    /// None if it does not exist, or is not a regular file.
    identity: Option<FileIdentity>,
}

/// What the file says.
#[derive(Debug)]
pub(super) enum UidListContent {
    Missing,
    /// It cannot be understood; why.
    Damaged(Box<str>),
    Valid(UidList),
}

/// The right to write the file.
pub(super) struct UidListLock {
    folder: Arc<MailFolder>,
    _lock: DotLock,
}

impl UidListFile {
    /// Reads the file. That it is damaged is no error.
    pub(super) fn read(folder: &MailFolder) -> io::Result<UidListFile> {
        let (file, stat) = match folder.open_file(NAME) {
            Ok(opened) => opened,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(UidListFile { content: UidListContent::Missing, identity: None });
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Ok(UidListFile { content: UidListContent::Damaged(error.to_string().into()), identity: None });
            }
            Err(error) => return Err(error),
        };
        let octets = octets_of(&stat);
        let content = if octets > FILE_OCTETS_MAX {
            UidListContent::Damaged(format!("it has {octets} bytes, more than {FILE_OCTETS_MAX}").into())
        } else {
            match UidList::parse(read_bytes(&file, octets)?) {
                Ok(list) => UidListContent::Valid(list),
                Err(damage) => UidListContent::Damaged(damage.to_string().into()),
            }
        };
        Ok(UidListFile { content, identity: Some(FileIdentity::new(&stat)) })
    }

    pub(super) fn list(&self) -> Option<&UidList> {
        match &self.content {
            UidListContent::Valid(list) => Some(list),
            UidListContent::Missing | UidListContent::Damaged(_) => None,
        }
    }
}

impl UidListLock {
    /// Waits for the lock for at most this time.
    pub(super) fn acquire(folder: &Arc<MailFolder>, wait: Duration) -> Result<UidListLock, DotLockError> {
        let rules = DotLockRules { name: "dovecot-uidlist.lock", protects: Some(NAME), stale_after: STALE_AFTER, wait };
        Ok(UidListLock { folder: folder.clone(), _lock: DotLock::acquire(folder, &rules)? })
    }

    /// Whether the file is still what was read before the lock was acquired.
    pub(super) fn is_current(&self, read: &UidListFile) -> io::Result<bool> {
        let now = match self.folder.stat(NAME) {
            Err(Errno::NOENT) => None,
            stat => Some(FileIdentity::new(&stat?)),
        };
        Ok(now == read.identity)
    }

    /// Renames a damaged file, whatever it is, over one that was set aside before.
    pub(super) fn set_aside(&self) -> io::Result<()> {
        self.folder.rename(NAME, DAMAGED_NAME)
    }

    /// Appends whole lines to the file that was read.
    ///
    /// # Errors
    ///
    /// The lines are not in the file, as far as it could be restored.
    pub(super) fn append(&self, read: &UidListFile, lines: &[u8]) -> io::Result<()> {
        if lines.is_empty() {
            return Ok(());
        }
        let mut file = self.folder.open_to_append(NAME)?;
        let before = FileIdentity::new(&fstat(&file)?);
        if Some(before) != read.identity {
            return Err(io::Error::other("dovecot-uidlist was changed by a program that does not lock it"));
        }
        let appended = file.write_all(lines).and_then(|()| Ok(fdatasync(&file)?));
        // If this fails too, an incomplete line is at the end, which the next writer replaces.
        appended.inspect_err(|_| {
            let _ = ftruncate(&file, before.octets);
        })
    }

    /// Replaces the file.
    pub(super) fn replace(&self, text: &[u8]) -> io::Result<()> {
        let mut file = self.create_temp()?;
        let written = file
            .write_all(text)
            .and_then(|()| Ok(fdatasync(&file)?))
            .and_then(|()| self.folder.rename(TEMP_NAME, NAME));
        written.inspect_err(|_| {
            let _ = self.folder.remove(TEMP_NAME);
        })
    }

    /// A crash may have left the file; its name is Dovecot's, and the lock protects it.
    fn create_temp(&self) -> io::Result<File> {
        match self.folder.create(TEMP_NAME) {
            Err(Errno::EXIST) => self.folder.remove(TEMP_NAME)?,
            created => return Ok(created?),
        }
        Ok(self.folder.create(TEMP_NAME)?)
    }
}

/// Reads up to so many bytes; lines that are appended meanwhile are left out.
fn read_bytes(file: &File, octets: u64) -> io::Result<Vec<u8>> {
    let octets = usize::try_from(octets).map_err(|_| io::ErrorKind::FileTooLarge)?;
    let mut bytes = Vec::with_capacity(octets);
    while bytes.len() < octets {
        match rustix::io::read(file, spare_capacity(&mut bytes)) {
            Ok(0) => break,
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(bytes)
}
