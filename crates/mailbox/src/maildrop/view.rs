//! The messages of a Maildir as a session of POP3 would list them, without its lock: for readers that
//! delete nothing. Listing gives UIDs to new messages, as every session does.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::listing::Listing;
use super::mail_folder::MailFolder;
use super::message_file::{self, MessageFile};

/// Listed messages, counted from 0. The list does not change; files may be moved and deleted.
pub struct MaildropView {
    /// None if the directory does not exist: there are no messages.
    folder: Option<Arc<MailFolder>>,
    pub(super) listing: Listing,
}

impl MaildropView {
    /// Lists the Maildir in `folder`. One that does not exist is empty. `lock_timeout` is how long to
    /// wait while another program has `dovecot-uidlist` locked, if there are new messages.
    ///
    /// # Errors
    ///
    /// The directories or `dovecot-uidlist` cannot be read or written, or there are more than
    /// 1,000,000 messages.
    pub fn open(folder: &Path, lock_timeout: Duration) -> io::Result<MaildropView> {
        match MailFolder::open(folder)? {
            Some(folder) => MaildropView::list(Arc::new(folder), lock_timeout),
            None => Ok(MaildropView::empty()),
        }
    }

    pub(super) fn list(folder: Arc<MailFolder>, lock_timeout: Duration) -> io::Result<MaildropView> {
        let listing = Listing::open(&folder, lock_timeout, SystemTime::now())?;
        Ok(MaildropView { folder: Some(folder), listing })
    }

    /// No messages.
    pub(super) fn empty() -> MaildropView {
        MaildropView { folder: None, listing: Listing::default() }
    }

    pub(super) fn folder(&self) -> Option<&MailFolder> {
        self.folder.as_deref()
    }

    /// The number of messages.
    pub fn len(&self) -> usize {
        self.listing.messages.len()
    }

    /// Whether there is no message.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The size of the message with CRLF line ends.
    pub fn octets(&self, message: usize) -> u64 {
        self.listing.file(&self.listing.messages[message]).octets.unwrap_or(0)
    }

    /// The UID in `dovecot-uidlist`, of which unique-ids of POP3 are made; not 0.
    pub fn uid(&self, message: usize) -> u32 {
        self.listing.messages[message].uid
    }

    /// The message with this UID.
    pub fn find_uid(&self, uid: u32) -> Option<usize> {
        // Not always in the order of UIDs.
        self.listing.messages.iter().position(|message| message.uid == uid)
    }

    /// The name of the message's file when it was listed; for logs.
    pub fn file_name(&self, message: usize) -> &[u8] {
        self.listing.files.name(self.listing.file(&self.listing.messages[message]))
    }

    /// What was wrong with the Maildir, each in one line for the log.
    pub fn warnings(&self) -> &[Box<str>] {
        &self.listing.warnings
    }

    /// Opens the file of a message. With `cached_only` it does not block.
    ///
    /// # Errors
    ///
    /// `NotFound` if another program deleted the message; with `cached_only`, `WouldBlock` if the
    /// kernel does not have the path in memory, or the file is not where it was listed.
    pub fn open_message(&self, message: usize, cached_only: bool) -> io::Result<MessageFile> {
        let folder = self.folder.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let file = self.listing.file(&self.listing.messages[message]);
        message_file::open(folder, &self.listing.files, file, cached_only)
    }
}
