//! The operations on files that [`crate::apply`] is made of, below a root that no link leads out of.
//!
//! [`Files`] is a trait so that a test can stop at each operation, as a kill does. [`RealFiles`] does them: each is one
//! change that is either done or not, except [`Files::create`], which may leave part of a new file. The last part of a
//! path is never followed if it is a link.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD, FlockOperation, Gid, Mode, OFlags, ResolveFlags, Uid};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// Larger files are no configuration.
pub(crate) const FILE_BYTES_MAX: u64 = 4 << 20;
/// The bits of a mode that are read and restored. Nobody has a configuration that runs with the rights of its owner, and a
/// planted journal could ask for one.
const MODE_BITS: u32 = 0o1777;
/// File systems whose files are values of the kernel: proc and sysfs (statfs(2)).
const KERNEL_FILE_SYSTEMS: [u64; 2] = [0x9fa0, 0x6265_6572];

/// A file as it was or will be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileState {
    /// Its content.
    #[serde(with = "base64_text")]
    pub octets: Vec<u8>,
    /// Its permission bits.
    pub mode: u32,
    /// Its owner; None for a new file, which belongs to whoever runs the command.
    pub owner: Option<FileOwner>,
}

/// The owner of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileOwner {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
}

impl FileState {
    /// Whether it belongs to this user.
    pub(crate) fn is_own(&self) -> bool {
        self.owner.is_some_and(|owner| owner.uid == rustix::process::geteuid().as_raw())
    }

    /// Whether only this user can have written it.
    pub(crate) fn is_private(&self) -> bool {
        self.owner.is_some_and(|owner| is_private(owner.uid, self.mode))
    }
}

/// Operations on files. Paths are absolute, and mean a place below the root.
pub trait Files: Send + Sync {
    /// The file; None if it, or a folder above it, does not exist.
    ///
    /// # Errors
    ///
    /// It is a link or no regular file, is too large, or cannot be read.
    fn state(&self, path: &str) -> io::Result<Option<FileState>>;
    /// Whether this folder exists.
    fn is_folder(&self, path: &str) -> bool;
    /// Whether only this user can change what is in the folder. It must exist.
    fn is_private_folder(&self, path: &str) -> io::Result<bool>;
    /// Whether the file is a value of the running kernel, which cannot be replaced, only written to.
    fn is_kernel_value(&self, path: &str) -> io::Result<bool>;
    /// Whether this process may replace the file, create it, or write to it if it is a value of the kernel.
    ///
    /// # Errors
    ///
    /// It may not; the error says why.
    fn check_right(&self, path: &str) -> io::Result<()>;
    /// Locks a folder until the result is dropped, or the process ends. None: another process has the lock, or the
    /// folder was removed meanwhile.
    fn lock(&self, folder: &str) -> io::Result<Option<OwnedFd>>;

    /// Makes a folder with this mode, which must not exist.
    fn make_folder(&self, path: &str, mode: u32) -> io::Result<()>;
    /// Removes a folder, unless it is missing, is none, or contains something.
    fn remove_folder(&self, path: &str) -> io::Result<()>;
    /// Creates a file, which must not exist, and syncs its content, owner and mode.
    fn create(&self, path: &str, state: &FileState) -> io::Result<()>;
    /// Gives a file another name in its folder, and replaces the file that has it.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file, if it exists.
    fn remove(&self, path: &str) -> io::Result<()>;
    /// Syncs the names in a folder.
    fn sync_folder(&self, path: &str) -> io::Result<()>;
    /// Writes to a value of the kernel, in one call.
    fn write_value(&self, path: &str, text: &str) -> io::Result<()>;
}

/// The files of a host, or of a copy of one.
#[derive(Debug)]
pub struct RealFiles {
    /// None: `/`, where older kernels need no `openat2`.
    root: Option<OwnedFd>,
}

impl RealFiles {
    /// The files below `root`, which may be `/`.
    ///
    /// # Errors
    ///
    /// `root` is not a folder.
    pub fn below(root: &Path) -> io::Result<RealFiles> {
        if root == Path::new("/") {
            return Ok(RealFiles { root: None });
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(RealFiles { root: Some(rustix::fs::openat(CWD, root, flags, Mode::empty())?) })
    }

    fn open_folder(&self, path: &str, flags: OFlags) -> io::Result<OwnedFd> {
        let flags = flags | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = match &self.root {
            None => rustix::fs::open(path, flags, Mode::empty()),
            Some(root) => rustix::fs::openat2(root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT),
        };
        Ok(opened?)
    }

    /// The folder of a file, and its name there.
    fn place<'a>(&self, path: &'a str) -> io::Result<(OwnedFd, &'a str)> {
        let (folder, name) = split(path);
        Ok((self.open_folder(folder, OFlags::PATH)?, name))
    }

    fn open_file(&self, path: &str, flags: OFlags) -> io::Result<File> {
        let (folder, name) = self.place(path)?;
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        match rustix::fs::openat(folder, name, flags, Mode::empty()) {
            Ok(file) => Ok(File::from(file)),
            Err(Errno::LOOP) => Err(io::Error::other("a symbolic link, which is not followed: name the file itself")),
            Err(error) => Err(error.into()),
        }
    }
}

impl Files for RealFiles {
    fn state(&self, path: &str) -> io::Result<Option<FileState>> {
        let file = match self.open_file(path, OFlags::RDONLY) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        let mut octets = Vec::new();
        file.take(FILE_BYTES_MAX + 1).read_to_end(&mut octets)?;
        if octets.len() as u64 > FILE_BYTES_MAX {
            return Err(io::Error::other(format!("larger than {} MiB", FILE_BYTES_MAX >> 20)));
        }
        let owner = Some(FileOwner { uid: metadata.uid(), gid: metadata.gid() });
        Ok(Some(FileState { octets, mode: metadata.mode() & MODE_BITS, owner }))
    }

    fn is_folder(&self, path: &str) -> bool {
        self.open_folder(path, OFlags::PATH).is_ok()
    }

    fn is_private_folder(&self, path: &str) -> io::Result<bool> {
        let found = rustix::fs::fstat(self.open_folder(path, OFlags::PATH)?)?;
        Ok(is_private(found.st_uid, found.st_mode))
    }

    fn is_kernel_value(&self, path: &str) -> io::Result<bool> {
        let statistics = rustix::fs::fstatfs(self.open_file(path, OFlags::RDONLY)?)?;
        Ok(KERNEL_FILE_SYSTEMS.contains(&(statistics.f_type as u64)))
    }

    fn check_right(&self, path: &str) -> io::Result<()> {
        let (needed, target) = match self.state(path)? {
            Some(_) if self.is_kernel_value(path)? => (Access::WRITE_OK, path),
            Some(state) if !may_give_to(state.owner) => {
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it belongs to another user"));
            }
            _ => (Access::WRITE_OK | Access::EXEC_OK, existing_folder(self, path)),
        };
        let (folder, name) = self.place(target)?;
        let name = if name.is_empty() { "." } else { name };
        Ok(rustix::fs::accessat(folder, name, needed, AtFlags::EACCESS)?)
    }

    fn lock(&self, folder: &str) -> io::Result<Option<OwnedFd>> {
        let opened = match self.open_folder(folder, OFlags::RDONLY) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        match rustix::fs::flock(&opened, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Ok(None),
            locked => locked?,
        }
        // Whoever had the lock before may have removed the folder.
        let identity = |folder: &OwnedFd| rustix::fs::fstat(folder).map(|stat| (stat.st_dev, stat.st_ino));
        let is_same = match self.open_folder(folder, OFlags::PATH) {
            Ok(now) => identity(&now)? == identity(&opened)?,
            Err(_) => false,
        };
        Ok(is_same.then_some(opened))
    }

    fn make_folder(&self, path: &str, mode: u32) -> io::Result<()> {
        let (folder, name) = self.place(path)?;
        let mode = Mode::from_raw_mode(mode & MODE_BITS);
        rustix::fs::mkdirat(&folder, name, mode)?;
        // The umask may have taken bits away.
        Ok(rustix::fs::chmodat(&folder, name, mode, AtFlags::empty())?)
    }

    fn remove_folder(&self, path: &str) -> io::Result<()> {
        let (folder, name) = match self.place(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            place => place?,
        };
        match rustix::fs::unlinkat(folder, name, AtFlags::REMOVEDIR) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
            removed => Ok(removed?),
        }
    }

    fn create(&self, path: &str, state: &FileState) -> io::Result<()> {
        let (folder, name) = self.place(path)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::openat(folder, name, flags, Mode::RUSR | Mode::WUSR)?);
        file.write_all(&state.octets)?;
        let metadata = file.metadata()?;
        if let Some(owner) = state.owner.filter(|owner| (owner.uid, owner.gid) != (metadata.uid(), metadata.gid())) {
            rustix::fs::fchown(file.as_fd(), Some(Uid::from_raw(owner.uid)), Some(Gid::from_raw(owner.gid)))?;
        }
        rustix::fs::fchmod(file.as_fd(), Mode::from_raw_mode(state.mode & MODE_BITS))?;
        file.sync_all()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let (folder, name) = self.place(from)?;
        Ok(rustix::fs::renameat(&folder, name, &folder, split(to).1)?)
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        let (folder, name) = match self.place(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            place => place?,
        };
        match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            removed => Ok(removed?),
        }
    }

    fn sync_folder(&self, path: &str) -> io::Result<()> {
        Ok(rustix::fs::fsync(self.open_folder(path, OFlags::RDONLY)?)?)
    }

    fn write_value(&self, path: &str, text: &str) -> io::Result<()> {
        let file = self.open_file(path, OFlags::WRONLY)?;
        match rustix::io::write(file, text.as_bytes())? {
            written if written == text.len() => Ok(()),
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    }
}

/// Whether what has this owner and this mode is of this user, and nobody else may write to it.
fn is_private(owner: u32, mode: u32) -> bool {
    owner == rustix::process::geteuid().as_raw() && mode & 0o022 == 0
}

/// Only root may give a file to another user.
fn may_give_to(owner: Option<FileOwner>) -> bool {
    let user = rustix::process::geteuid();
    user.is_root() || owner.is_none_or(|owner| owner.uid == user.as_raw())
}

/// The folder of a path, and the name in it.
pub(crate) fn split(path: &str) -> (&str, &str) {
    match path.rsplit_once('/') {
        Some(("", name)) => ("/", name),
        Some((folder, name)) => (folder, name),
        None => ("/", path),
    }
}

/// The nearest folder above a path that exists.
fn existing_folder<'a>(files: &RealFiles, path: &'a str) -> &'a str {
    let mut folder = split(path).0;
    while folder != "/" && !files.is_folder(folder) {
        folder = split(folder).0;
    }
    folder
}

/// Octets as text in JSON.
mod base64_text {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(octets: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(octets))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        STANDARD.decode(String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn state(text: &str) -> FileState {
        FileState { octets: text.into(), mode: 0o640, owner: None }
    }

    #[test]
    fn links_lead_nowhere_outside_and_the_last_one_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        std::fs::create_dir_all(root.join("etc")).unwrap();
        std::fs::write(folder.path().join("outside"), "outside").unwrap();
        symlink("../../outside", root.join("etc/link")).unwrap();
        symlink(folder.path(), root.join("away")).unwrap();
        let files = RealFiles::below(&root).unwrap();
        assert!(files.state("/etc/link").unwrap_err().to_string().contains("symbolic link"));
        assert!(files.write_value("/etc/link", "1").is_err());
        assert!(files.create("/etc/link", &state("")).is_err());
        assert_eq!(files.state("/away/outside").unwrap(), None, "the link is resolved below the root");
        assert!(files.state("/etc").is_err(), "a folder is no file");
        assert_eq!(std::fs::read_to_string(folder.path().join("outside")).unwrap(), "outside");
    }

    #[test]
    fn a_file_comes_back_with_its_mode() {
        let folder = tempfile::tempdir().unwrap();
        let files = RealFiles::below(folder.path()).unwrap();
        files.make_folder("/a", 0o755).unwrap();
        files.create("/a/new", &state("x\r\n")).unwrap();
        files.rename("/a/new", "/a/file").unwrap();
        files.sync_folder("/a").unwrap();
        let found = files.state("/a/file").unwrap().unwrap();
        assert_eq!((&*found.octets, found.mode), (&b"x\r\n"[..], 0o640));
        assert_eq!(folder.path().join("a").metadata().unwrap().permissions().mode() & 0o777, 0o755);
        let json = serde_json::to_string(&found).unwrap();
        assert_eq!(serde_json::from_str::<FileState>(&json).unwrap(), found);
        files.remove_folder("/a").unwrap();
        assert!(files.is_folder("/a"), "it is not empty");
        files.remove("/a/file").unwrap();
        files.remove("/a/file").unwrap();
        files.remove_folder("/a").unwrap();
        files.remove_folder("/a/b").unwrap();
        assert!(!files.is_folder("/a") && files.state("/a/file").unwrap().is_none());
    }

    #[test]
    fn no_file_gets_the_rights_of_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let files = RealFiles::below(folder.path()).unwrap();
        files.create("/program", &FileState { mode: 0o6755, ..state("x") }).unwrap();
        let mode = || folder.path().join("program").metadata().unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode(), 0o755);
        std::fs::set_permissions(folder.path().join("program"), PermissionsExt::from_mode(0o6755)).unwrap();
        assert_eq!(files.state("/program").unwrap().unwrap().mode, 0o755);
    }

    #[test]
    fn only_one_has_the_lock_of_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        let files = RealFiles::below(folder.path()).unwrap();
        files.make_folder("/a", 0o711).unwrap();
        let lock = files.lock("/a").unwrap();
        assert!(lock.is_some() && files.lock("/a").unwrap().is_none());
        drop(lock);
        assert!(files.lock("/a").unwrap().is_some());
        assert!(files.lock("/missing").unwrap().is_none());
    }

    #[test]
    fn values_of_the_kernel_are_told_from_files() {
        let files = RealFiles::below(Path::new("/")).unwrap();
        assert!(files.is_kernel_value("/proc/version").unwrap());
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(!files.is_kernel_value(file.path().to_str().unwrap()).unwrap());
        files.check_right(file.path().to_str().unwrap()).unwrap();
    }
}
