//! The directory of a Maildir, held open while a session reads it.
//!
//! Its user may own the directory, and may put anything there under any name. So nothing in it is
//! followed if it is a symbolic link, nothing is waited for if it is a pipe, and only regular files
//! are read. The path of the directory itself is the operator's.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat, openat2, renameat, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::path::Arg;

use crate::list::MaildirFolder;

/// Never follows a link, never waits for a pipe.
const SAFE: OFlags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// An open Maildir.
pub(super) struct MailFolder {
    dir: OwnedFd,
    path: PathBuf,
    key: FolderKey,
    mode: Mode,
}

/// Identifies a directory, whatever path leads to it: its device and inode.
pub(super) type FolderKey = (u64, u64);

/// What identifies a version of a file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct FileIdentity {
    pub(super) device: u64,
    pub(super) inode: u64,
    pub(super) octets: u64,
    /// Nanoseconds since 1970.
    pub(super) modified: i128,
    /// The same, of the last change of any attribute.
    pub(super) changed: i128,
}

impl MailFolder {
    /// None if there is no such directory.
    pub(super) fn open(path: &Path) -> io::Result<Option<MailFolder>> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = match openat(CWD, path, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            dir => dir?,
        };
        let stat = fstat(&dir)?;
        // As Dovecot does: who may read the directory may read the files in it.
        let mode = Mode::from_raw_mode(stat.st_mode) & Mode::from_raw_mode(0o666);
        Ok(Some(MailFolder { dir, path: path.to_owned(), key: (stat.st_dev, stat.st_ino), mode }))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn key(&self) -> FolderKey {
        self.key
    }

    /// Opens `new/` or `cur/` for listing; None if it is missing.
    pub(super) fn open_part(&self, part: MaildirFolder) -> io::Result<Option<OwnedFd>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | SAFE;
        match openat(&self.dir, part.folder_name(), flags, Mode::empty()) {
            Err(Errno::NOENT) => Ok(None),
            dir => Ok(Some(dir?)),
        }
    }

    /// Opens a file for reading, if it is a regular one.
    ///
    /// # Errors
    ///
    /// `NotFound` if it does not exist; `InvalidData` if it is something else than a regular file.
    pub(super) fn open_file(&self, name: &str) -> io::Result<(File, Stat)> {
        let not_regular = || io::Error::new(io::ErrorKind::InvalidData, "not a regular file");
        let file = match openat(&self.dir, name, OFlags::RDONLY | SAFE, Mode::empty()) {
            Err(Errno::LOOP) => return Err(not_regular()),
            file => File::from(file?),
        };
        let stat = fstat(&file)?;
        if is_regular(&stat) { Ok((file, stat)) } else { Err(not_regular()) }
    }

    /// Opens a file for writing at its end.
    pub(super) fn open_to_append(&self, name: &str) -> io::Result<File> {
        Ok(openat(&self.dir, name, OFlags::WRONLY | OFlags::APPEND | SAFE, Mode::empty())?.into())
    }

    /// Creates a file; it must not exist.
    pub(super) fn create(&self, name: &str) -> Result<File, Errno> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | SAFE;
        openat(&self.dir, name, flags, self.mode).map(File::from)
    }

    /// Opens the file of a message; `path` is relative, as `cur/NAME`. With `cached_only` the error
    /// is `AGAIN` unless the kernel has the path in memory, also if the kernel cannot tell.
    pub(super) fn open_message(&self, path: &[u8], cached_only: bool) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | SAFE;
        let cached = if cached_only { ResolveFlags::CACHED } else { ResolveFlags::empty() };
        match openat2(&self.dir, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS | cached) {
            // Linux before 5.6 (5.12 for CACHED), or a sandbox that does not know the call.
            Err(Errno::NOSYS | Errno::INVAL | Errno::PERM) if cached_only => Err(Errno::AGAIN),
            Err(Errno::NOSYS | Errno::PERM) => openat(&self.dir, path, flags, Mode::empty()),
            opened => opened,
        }
    }

    /// The attributes of what has this name; of a link itself.
    pub(super) fn stat(&self, name: impl Arg) -> Result<Stat, Errno> {
        statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Sets the modification time of a file to now.
    pub(super) fn touch(&self, name: &str) -> io::Result<()> {
        use rustix::fs::{Timespec, Timestamps, UTIME_NOW, utimensat};
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let times = Timestamps { last_access: now, last_modification: now };
        Ok(utimensat(&self.dir, name, &times, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    pub(super) fn remove(&self, name: impl Arg) -> Result<(), Errno> {
        unlinkat(&self.dir, name, AtFlags::empty())
    }

    pub(super) fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(renameat(&self.dir, from, &self.dir, to)?)
    }
}

impl FileIdentity {
    pub(super) fn new(stat: &Stat) -> FileIdentity {
        FileIdentity {
            device: stat.st_dev,
            inode: stat.st_ino,
            octets: octets_of(stat),
            modified: nanoseconds(stat.st_mtime, stat.st_mtime_nsec),
            changed: nanoseconds(stat.st_ctime, stat.st_ctime_nsec),
        }
    }
}

/// Whether nobody can write there now, for lack of space or because the file system is read-only.
pub(super) fn cannot_write(error: &io::Error) -> bool {
    use io::ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | ReadOnlyFilesystem)
}

pub(super) fn is_regular(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

/// The size of a file; the kernel gives no negative ones.
pub(super) fn octets_of(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

fn nanoseconds(seconds: impl Into<i128>, nanoseconds: impl Into<i128>) -> i128 {
    seconds.into() * 1_000_000_000 + nanoseconds.into()
}
