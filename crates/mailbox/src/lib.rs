//! Maildir: letters in by batches, mailboxes out by list and open. One mail user owns all folders.
//!
//! Every call here works on files and waits for them: run it on threads that may block. A [`Maildirs`] delivers, one
//! [`turn`](Maildirs::turn) of the wheel at a time, and says that a letter is delivered only when its bytes *and* its
//! name in `new/` would survive a power cut. Nothing here is fatal: a letter that cannot be delivered is given back
//! with the reason, and the other letters of its turn go on.
//!
//! # The states of a letter
//!
//! | state             | on disk                                   | it leaves the state when                           |
//! |-------------------|-------------------------------------------|----------------------------------------------------|
//! | in the spool only | nothing, or what a crash left in `tmp/`   | a turn has written it to `tmp/`                    |
//! | in `tmp/`         | a file whose bytes may be lost            | `syncfs` of the same turn returns: it is linked    |
//! | in `new/`         | durable bytes, a name that may be lost    | `syncfs` of the next turn returns: it is given back |
//! | durable           | durable bytes, a durable name             | the caller records the outcome; a reader takes it  |
//!
//! The second sync of one turn is the first one of the next, so a busy wheel pays one sync for each turn. A crash in
//! any state leaves the letter in the spool, and the second try makes the same name: what is in `new/` already is not
//! replaced, what is left in `tmp/` is. A letter that came back from the spool after a crash (`recovered`) is looked
//! for in `cur/` as well, where a reader may have moved it. One that a reader *deleted* in that moment returns.

mod copy;
mod deliver;
mod folder;
mod list;
mod name;
pub mod quota;
mod sighting;

use std::io;
use std::path::PathBuf;

use mail::{Body, Damaged, QueueId, Timestamp};

pub use deliver::Maildirs;
pub use list::{Entry, Place, list, open};

/// How letters are named and written.
#[derive(Clone, Debug)]
pub struct Config {
    /// The host's part of every file name; two hosts that share folders have different ones.
    pub host: Box<str>,
    /// How lines end in the files.
    pub line_ends: LineEnds,
}

/// How lines end in the files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LineEnds {
    /// CR LF, as on the wire; the bytes are copied as they are.
    #[default]
    Crlf,
    /// LF, as most programs that read Maildirs without a server expect.
    Lf,
}

/// One message for one mailbox.
#[derive(Debug)]
pub struct Letter<T> {
    /// The caller's, given back with the result.
    pub ticket: T,
    /// The Maildir: it has, or gets, `tmp`, `new` and `cur`.
    pub folder: PathBuf,
    /// The message.
    pub id: QueueId,
    /// The recipient's place in the envelope.
    pub ordinal: u32,
    /// When the message was accepted; the file is named after it.
    pub accepted_at: Timestamp,
    /// Lines to put before the message (Return-Path, Delivered-To), each with its CR LF.
    pub header: Vec<u8>,
    /// The message.
    pub body: Body,
    /// The spool was opened since the message was accepted: it may have been delivered before.
    pub recovered: bool,
    /// What the mailbox's quota means to it.
    pub quota: Quota,
}

/// What a quota means to a letter. Who finds that out has asked [`quota`]; here it is only obeyed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Quota {
    /// There is none.
    #[default]
    None,
    /// There is room: what is added is told to the file `maildirsize`.
    Counted,
    /// There is no room: the letter is given back, unless it is in the mailbox already.
    Full,
}

/// Why a letter was not delivered, by what the caller does next.
#[derive(Debug, thiserror::Error)]
pub enum DeliverError {
    /// Defer: no space, no inodes, over a quota of the file system or a size limit.
    #[error("the mailbox is full: {0}")]
    Full(#[source] io::Error),
    /// Defer or bounce, as the quota says: it leaves no room for this letter.
    #[error("the mailbox is full: its quota leaves no room for this message")]
    OverQuota,
    /// Defer: the folder cannot be made, read or written as things are.
    #[error("the mailbox cannot be written: {0}")]
    Unavailable(#[source] io::Error),
    /// Defer: the file system did not confirm that the letter is durable. It may be in `new/` all the same.
    #[error("the mailbox's file system failed to sync: {0}")]
    Unsynced(#[source] io::Error),
    /// Set aside: the bytes to deliver are not those that were accepted.
    #[error(transparent)]
    Damaged(#[from] Damaged),
    /// Bounce: no file system takes this path, today or later.
    #[error("the mailbox's path is not valid: {0}")]
    Refused(#[source] io::Error),
}

impl From<io::Error> for DeliverError {
    fn from(error: io::Error) -> Self {
        use io::ErrorKind::*;
        match error.kind() {
            StorageFull | QuotaExceeded | FileTooLarge => DeliverError::Full(error),
            InvalidFilename => DeliverError::Refused(error),
            // Not EINVAL, which may pass: the standard library itself refuses a path with a NUL.
            InvalidInput if error.raw_os_error().is_none() => DeliverError::Refused(error),
            _ => DeliverError::Unavailable(error),
        }
    }
}
