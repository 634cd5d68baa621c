//! A Maildir as a POP3 client sees it (RFC 1939), shared with Dovecot 2.3: a locked session over a
//! fixed list of messages with sizes and unique-ids.
//!
//! | state of a maildrop | on disk | leaves the state when |
//! |---|---|---|
//! | free | | a session opens it |
//! | in use | `dovecot-pop3-session.lock` | the [`Maildrop`] is dropped; its process ends |
//!
//! | property of a message | found in |
//! |---|---|
//! | UID | `dovecot-uidlist`, by the file name without flags; new messages get one there |
//! | unique-id | field P of its line (migrated ones), else by the format of the settings |
//! | size with CRLF line ends | `,W=` in the file name, else field W, else by reading the file once; recorded in W |
//! | size of the file | the open file; `,S=` in the name is only compared with it |
//!
//! Nothing is moved and no flag is changed: messages stay in `new/`, and a message with the flag T
//! (trashed) is listed, as Dovecot's POP3 server does. Files that other programs move are found again by
//! their names without flags. Their owner may have put anything into the directories: links are not
//! followed, pipes not waited for, and only regular files are messages.
//!
//! Dovecot must keep `dovecot-uidlist` and its indexes in the Maildir itself (no `CONTROL=` or `INDEX=`
//! in its `mail_location`), and its `pop3_uidl_format` must be the same.
//!
//! A [`MaildropView`] is the same list without the lock, for readers.
//!
//! All calls block on the disk, also dropping a [`Maildrop`]: run them where that may take time. Only
//! [`Maildrop::open_message`] with `cached_only` and [`DotLineCache::find`] do not.

mod delete;
mod dot_lines;
mod dotlock;
mod file_list;
mod listing;
mod mail_folder;
mod message_file;
mod message_size;
mod session_lock;
mod uid_format;
mod uidlist;
mod uidlist_file;
mod view;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use mail_folder::MailFolder;
use session_lock::{SessionLock, SessionLockError};
use uid_format::{UidSource, make_printable};

pub use dot_lines::{DOT_LINE_FILES_MAX, DOT_LINES_CACHED_MAX, DOT_LINES_MAX, DotLineCache, DotLines};
pub use message_file::{FileLineEnds, MessageFile};
pub use uid_format::{InvalidUidFormat, UidFormat};
pub use view::MaildropView;

/// How maildrops are opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MaildropSettings {
    /// The unique-ids of messages that have none of their own in `dovecot-uidlist`.
    pub uid_format: UidFormat,
    /// How long to wait while another program has `dovecot-uidlist` locked. Only new messages, and
    /// those of unknown size, need that lock.
    pub lock_timeout: Duration,
    /// Whether a file excludes sessions of other programs: Dovecot with `pop3_lock_session = yes`.
    /// Sessions of this process always exclude one another.
    pub lock_file: bool,
    /// Whether deletions survive a crash of the machine once QUIT is answered. If not, a client may
    /// get a message twice after a crash.
    pub sync_deletions: bool,
}

impl Default for MaildropSettings {
    fn default() -> MaildropSettings {
        MaildropSettings {
            uid_format: UidFormat::default(),
            lock_timeout: Duration::from_secs(2),
            lock_file: true,
            sync_deletions: false,
        }
    }
}

/// Why a maildrop cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum MaildropError {
    /// Another session has it open.
    #[error("another session has the mailbox open")]
    InUse,
    /// It cannot be read at present, or no UIDs can be recorded.
    #[error("unable to open the mailbox: {0}")]
    Unavailable(#[source] io::Error),
}

/// An open maildrop: its messages, counted from 0, do not change. Dropped, it is unlocked.
pub struct Maildrop {
    view: MaildropView,
    /// None if the directory does not exist.
    lock: Option<SessionLock>,
    uid_format: UidFormat,
    sync_deletions: bool,
}

impl Maildrop {
    /// Locks and lists the Maildir in `folder`. One that does not exist is empty, and not locked.
    ///
    /// # Errors
    ///
    /// Another session has the maildrop; or the directories or `dovecot-uidlist` cannot be read or
    /// written, or there are more than 1,000,000 messages.
    pub fn open(folder: &Path, settings: &MaildropSettings) -> Result<Maildrop, MaildropError> {
        let (view, lock) = match MailFolder::open(folder).map_err(MaildropError::Unavailable)? {
            Some(folder) => {
                let folder = Arc::new(folder);
                let lock = SessionLock::acquire(&folder, settings.lock_file)?;
                let view = MaildropView::list(folder, settings.lock_timeout);
                (view.map_err(MaildropError::Unavailable)?, Some(lock))
            }
            None => (MaildropView::empty(), None),
        };
        let MaildropSettings { uid_format, sync_deletions, .. } = settings;
        Ok(Maildrop { view, lock, uid_format: uid_format.clone(), sync_deletions: *sync_deletions })
    }

    /// The number of messages.
    pub fn len(&self) -> usize {
        self.view.len()
    }

    /// Whether there is no message.
    pub fn is_empty(&self) -> bool {
        self.view.is_empty()
    }

    /// The size of the message with CRLF line ends, as STAT and LIST tell it.
    pub fn octets(&self, message: usize) -> u64 {
        self.view.octets(message)
    }

    /// Appends the unique-id of the message (RFC 1939 section 7): printable characters without spaces.
    /// It may be longer than 70 characters if the format has file names.
    pub fn write_uid(&self, message: usize, out: &mut Vec<u8>) {
        let listing = &self.view.listing;
        let message = &listing.messages[message];
        let base = listing.base(message);
        match listing.recorded_uidl(message) {
            None => {
                let (uid_validity, guid) = (listing.uid_validity, listing.guid(message));
                self.uid_format.write(UidSource { uid: message.uid, uid_validity, base, guid }, out);
            }
            Some(uidl) => {
                let start = out.len();
                out.extend_from_slice(if uidl.is_empty() { base } else { uidl });
                make_printable(&mut out[start..]);
            }
        }
    }

    /// The name of the message's file when it was listed; for logs.
    pub fn file_name(&self, message: usize) -> &[u8] {
        self.view.file_name(message)
    }

    /// What was wrong with the maildrop, each in one line for the log.
    pub fn warnings(&self) -> &[Box<str>] {
        self.view.warnings()
    }

    /// Opens the file of a message; see [`MaildropView::open_message`].
    ///
    /// # Errors
    ///
    /// The same.
    pub fn open_message(&self, message: usize, cached_only: bool) -> io::Result<MessageFile> {
        self.view.open_message(message, cached_only)
    }

    /// Deletes messages, and counts them out of `maildirsize`; returns how many could not be deleted.
    /// One that another program deleted is not counted.
    pub fn delete(&self, messages: &[usize]) -> usize {
        let Some(folder) = self.view.folder() else { return 0 };
        let listing = &self.view.listing;
        let files = messages.iter().map(|&message| *listing.file(&listing.messages[message]));
        delete::delete(folder, &listing.files, files, self.sync_deletions)
    }

    /// Keeps the lock of a long session: call it at least every four minutes. Otherwise programs on
    /// other hosts, or in other containers, take the lock for abandoned after five.
    pub fn touch_lock(&self) {
        if let Some(lock) = &self.lock {
            lock.touch();
        }
    }
}

impl From<SessionLockError> for MaildropError {
    fn from(error: SessionLockError) -> MaildropError {
        match error {
            SessionLockError::InUse => MaildropError::InUse,
            SessionLockError::Io(error) => MaildropError::Unavailable(error),
        }
    }
}

#[cfg(test)]
mod tests;
