//! The folder of the files. It is opened once, and the kernel confines every path to it (openat2(2)):
//! symbolic links are followed as long as they stay inside.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat, openat2};
use rustix::io::{Errno, retry_on_intr};

use crate::http::file_version::DiskWait;

/// The kernel may refuse a path with a link upwards while another process renames folders
/// (openat2(2), EAGAIN).
const TRIES_MAX: usize = 4;

/// Why files cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum HttpSetupError {
    /// The folder cannot be opened.
    #[error("cannot open the folder {path} of the files: {error}")]
    Folder {
        /// Its path.
        path: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
    /// The kernel cannot confine paths to a folder.
    #[error("cannot confine paths to a folder: openat2 failed ({0}); Linux 5.12 or later is required")]
    Unconfined(io::Error),
}

/// The open folder.
#[derive(Debug)]
pub(super) struct FileRoot(OwnedFd);

/// What a path leads to.
pub(super) enum OpenedPath {
    File(File, Stat),
    Folder(File),
    /// A pipe, a device or a socket.
    Special,
}

impl FileRoot {
    pub(super) fn open(path: &Path) -> Result<FileRoot, HttpSetupError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = match openat(CWD, path, flags, Mode::empty()) {
            Ok(folder) => FileRoot(folder),
            Err(error) => return Err(HttpSetupError::Folder { path: path.to_owned(), error: error.into() }),
        };
        // The folder itself is cached now. Its permissions do not matter here.
        match openat2(&root.0, ".", flags, Mode::empty(), resolve_flags(DiskWait::Never)) {
            Ok(_) | Err(Errno::AGAIN) => Ok(root),
            Err(error) => Err(HttpSetupError::Unconfined(error.into())),
        }
    }

    /// Opens what the path of a request leads to.
    pub(super) fn look_up(&self, path: &[u8], wait: DiskWait) -> Result<OpenedPath, Errno> {
        let relative: &[u8] = match path.strip_prefix(b"/") {
            Some([]) | None => b".",
            Some(relative) => relative,
        };
        let file = self.open_relative(relative, wait)?;
        let stat = fstat(&file)?;
        Ok(match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => OpenedPath::File(file, stat),
            FileType::Directory => OpenedPath::Folder(file),
            _ => OpenedPath::Special,
        })
    }

    fn open_relative(&self, path: &[u8], wait: DiskWait) -> Result<File, Errno> {
        // Without NONBLOCK, opening a pipe would wait for its writer.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let open = || openat2(&self.0, path, flags, Mode::empty(), resolve_flags(wait));
        let mut opened = retry_on_intr(open);
        for _ in 1..TRIES_MAX {
            if wait == DiskWait::Never || !matches!(opened, Err(Errno::AGAIN)) {
                break;
            }
            opened = retry_on_intr(open);
        }
        opened.map(File::from)
    }
}

fn resolve_flags(wait: DiskWait) -> ResolveFlags {
    let confined = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    match wait {
        DiskWait::Never => confined | ResolveFlags::CACHED,
        DiskWait::Allowed => confined,
    }
}
