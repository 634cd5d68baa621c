//! Maildir storage: delivers messages in batches, lists and opens mailboxes; opens them as maildrops
//! for POP3, together with Dovecot ([`maildrop`]). One mail user owns all directories.
//!
//! All calls block on disk I/O: run them on threads that may block. A [`MaildirWriter`] delivers
//! one batch ([`deliver_batch`](MaildirWriter::deliver_batch)) at a time, and reports a message as
//! delivered only when its bytes *and* its name in `new/` would survive a power failure. No error
//! here is fatal: a message that cannot be delivered is returned with the reason, and the other
//! messages of its batch continue.
//!
//! # The states of a message
//!
//! | state             | on disk                                     | leaves the state when                                   |
//! |-------------------|---------------------------------------------|---------------------------------------------------------|
//! | in the spool only | nothing, or the leftover of a crash in `tmp/` | a batch has written it to `tmp/`                      |
//! | in `tmp/`         | a file whose bytes may be lost              | `syncfs` of the same batch returns: it is linked        |
//! | in `new/`         | durable bytes, a name that may be lost      | `syncfs` of the next batch returns: it is reported      |
//! | durable           | durable bytes, a durable name               | the caller records the outcome; a reader moves the file |
//!
//! The second sync of one batch is the first sync of the next, so under load each batch costs one
//! sync. A crash in any state leaves the message in the spool, and the next attempt uses the same
//! file name: it does not replace a file in `new/`, and does replace one in `tmp/`. A message read
//! back from the spool after a crash (`recovered`) is also searched for in `cur/`, where a reader
//! may have moved it. If a reader *deleted* it before the retry, it is delivered again.

mod copy;
mod deliver;
mod delivered;
mod folder;
mod list;
pub mod maildrop;
mod name;
mod paths;
pub mod quota;

use std::io;
use std::path::PathBuf;

use mail::{Body, BodyError, QueueId, Timestamp};

pub use deliver::MaildirWriter;
pub use list::{MaildirEntry, MaildirFolder, list_messages, open_message};
pub use paths::{MailboxPathResolver, MailboxPathTable, MaildirPathFn, split_by_size};

/// How files are named and written.
#[derive(Clone, Debug)]
pub struct MaildirWriterConfig {
    /// The host part of every file name; must differ between hosts that share mailboxes.
    pub host: Box<str>,
    /// The line ends of the files.
    pub line_ends: LineEnds,
}

/// The line ends of the files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LineEnds {
    /// CRLF, as on the wire; the bytes are copied unchanged.
    #[default]
    Crlf,
    /// LF, as most programs expect that read Maildirs directly.
    Lf,
}

/// One message for one mailbox.
#[derive(Debug)]
pub struct MaildirMessage<T> {
    /// A value of the caller's, returned with the result.
    pub ticket: T,
    /// The Maildir; `tmp`, `new` and `cur` are created if missing.
    pub folder: PathBuf,
    /// The queue id of the message.
    pub id: QueueId,
    /// The recipient's index in the envelope.
    pub ordinal: u32,
    /// When the message was accepted; part of the file name.
    pub accepted_at: Timestamp,
    /// Header lines to put before the message (Return-Path, Delivered-To), each with its CRLF.
    pub header: Vec<u8>,
    /// The message.
    pub body: Body,
    /// The spool was reopened since the message was accepted, so it may have been delivered before.
    pub recovered: bool,
    /// The state of the mailbox's quota for this message.
    pub quota: QuotaState,
}

/// The state of a mailbox's quota for one message. The caller determines it with [`quota`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QuotaState {
    /// The mailbox has no quota.
    #[default]
    None,
    /// The message fits; it is added to the file `maildirsize`.
    Counted,
    /// The message does not fit: it is returned, unless the mailbox has it already.
    Full,
}

/// Why a message was not delivered, by what the caller should do next.
#[derive(Debug, thiserror::Error)]
pub enum DeliverError {
    /// Defer: no space or inodes left, or over a file system quota or file size limit.
    #[error("mailbox full: {0}")]
    Full(#[source] io::Error),
    /// Defer or bounce, as configured: the quota has no space left for this message.
    #[error("mailbox full: the message would exceed its quota")]
    OverQuota,
    /// Defer: the Maildir cannot be created, read or written at present.
    #[error("unable to write to the mailbox: {0}")]
    Unavailable(#[source] io::Error),
    /// Defer: the file system did not confirm that the message is durable. It may still be in
    /// `new/`.
    #[error("unable to sync the mailbox's file system: {0}")]
    Unsynced(#[source] io::Error),
    /// Set aside: the bytes differ from those that were accepted.
    #[error(transparent)]
    Damaged(#[from] BodyError),
    /// Bounce: the path is invalid on any file system.
    #[error("invalid mailbox path: {0}")]
    Refused(#[source] io::Error),
}

impl From<io::Error> for DeliverError {
    fn from(error: io::Error) -> Self {
        use io::ErrorKind::*;
        match error.kind() {
            StorageFull | QuotaExceeded | FileTooLarge => DeliverError::Full(error),
            InvalidFilename => DeliverError::Refused(error),
            // Not EINVAL, which may be temporary: the standard library itself rejects a path with a
            // NUL.
            InvalidInput if error.raw_os_error().is_none() => DeliverError::Refused(error),
            _ => DeliverError::Unavailable(error),
        }
    }
}
