//! The host that is checked: its files below a root, and the few facts that only system calls tell.
//!
//! Nothing is written, and nothing blocks: only regular files are read, up to a limit. Links are followed inside the
//! root, never out of it. What cannot be read does not exist for the caller.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{CWD, Dir, IFlags, Mode, OFlags, ResolveFlags};

/// No file that is read here is longer; the rest of a longer one is ignored.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Entries of a folder that are looked at.
const ENTRIES_MAX: usize = 1 << 17;

/// What system calls tell of the running host. For a copy of files from another host there is none of it.
pub trait SystemCalls {
    /// The inodes of the file system that contains the path.
    fn inodes(&self, path: &Path) -> Option<InodeCounts>;
    /// The flags of the folder, or of the nearest one above it that exists.
    fn folder_flags(&self, path: &Path) -> Option<FolderFlags>;
    /// The path without links, as far as it exists.
    fn real_path(&self, path: &Path) -> PathBuf;
}

/// Inodes of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodeCounts {
    /// Those that users other than root can still use.
    pub free: u64,
    /// All; 0 if the file system has no limit.
    pub total: u64,
}

/// The flags of a folder by their names in chattr(1).
pub type FolderFlags = Vec<String>;

/// A host.
pub struct Host {
    root: PathBuf,
    calls: Option<Box<dyn SystemCalls>>,
    name_server_time: Option<Duration>,
}

impl Host {
    /// The host on which this program runs.
    pub fn live() -> Host {
        Host { root: "/".into(), calls: Some(Box::new(LiveSystemCalls)), name_server_time: None }
    }

    /// A copy of a host's files below `root`.
    pub fn below(root: &Path) -> Host {
        Host { root: root.to_owned(), calls: None, name_server_time: None }
    }

    /// The same files with these answers of system calls; for tests.
    pub fn with_calls(self, calls: Box<dyn SystemCalls>) -> Host {
        Host { calls: Some(calls), ..self }
    }

    /// The same host, with how long its first name server takes to answer, which only a probe tells.
    pub fn with_name_server_time(self, time: Duration) -> Host {
        Host { name_server_time: Some(time), ..self }
    }

    /// How long the first name server takes to answer; None without a probe.
    pub(crate) fn name_server_time(&self) -> Option<Duration> {
        self.name_server_time
    }

    /// The text of a file; None if it cannot be read. Bytes that are not UTF-8 are replaced.
    pub(crate) fn read(&self, path: &str) -> Option<String> {
        let file = File::from(self.open(path, OFlags::RDONLY | OFlags::NONBLOCK)?);
        if !file.metadata().ok()?.is_file() {
            return None;
        }
        let mut octets = Vec::new();
        file.take(FILE_BYTES_MAX).read_to_end(&mut octets).ok()?;
        Some(String::from_utf8_lossy(&octets).into_owned())
    }

    /// The names in a folder, sorted; None if it cannot be read.
    pub(crate) fn list(&self, path: &str) -> Option<Vec<String>> {
        let folder = Dir::new(self.open(path, OFlags::RDONLY | OFlags::DIRECTORY)?).ok()?;
        let entries = folder.take(ENTRIES_MAX).map_while(Result::ok);
        let names = entries.filter_map(|entry| entry.file_name().to_str().ok().map(str::to_owned));
        let mut names: Vec<_> = names.filter(|name| name != "." && name != "..").collect();
        names.sort();
        Some(names)
    }

    /// What system calls tell; None for a copy of files.
    pub(crate) fn calls(&self) -> Option<&dyn SystemCalls> {
        self.calls.as_deref()
    }

    fn open(&self, path: &str, flags: OFlags) -> Option<std::os::fd::OwnedFd> {
        let flags = flags | OFlags::CLOEXEC;
        if self.root == Path::new("/") {
            return rustix::fs::open(path, flags, Mode::empty()).ok();
        }
        let root = rustix::fs::openat(CWD, &self.root, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
        rustix::fs::openat2(root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT).ok()
    }
}

/// Asks the running kernel.
#[derive(Clone, Copy, Debug)]
pub struct LiveSystemCalls;

impl SystemCalls for LiveSystemCalls {
    fn inodes(&self, path: &Path) -> Option<InodeCounts> {
        let stat = path.ancestors().find_map(|path| rustix::fs::statvfs(path).ok())?;
        Some(InodeCounts { free: stat.f_favail, total: stat.f_files })
    }

    fn folder_flags(&self, path: &Path) -> Option<FolderFlags> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let existing = path.ancestors().find(|path| path.exists())?;
        let folder = rustix::fs::open(existing, flags, Mode::empty()).ok()?;
        let flags = rustix::fs::ioctl_getflags(folder).ok()?;
        let names = FLAG_NAMES.iter().filter(|(flag, _)| flags.contains(*flag)).map(|(_, name)| (*name).to_owned());
        Some(names.collect())
    }

    fn real_path(&self, path: &Path) -> PathBuf {
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let existing = absolute.ancestors().find_map(|part| Some((part, part.canonicalize().ok()?)));
        match existing.map(|(part, real)| (absolute.strip_prefix(part), real)) {
            Some((Ok(rest), real)) if rest.as_os_str().is_empty() => real,
            Some((Ok(rest), real)) => real.join(rest),
            _ => absolute,
        }
    }
}

/// The flags that matter, with their names in chattr(1).
const FLAG_NAMES: [(IFlags, &str); 7] = [
    (IFlags::APPEND, "append"),
    (IFlags::COMPRESSED, "compress"),
    (IFlags::DIRSYNC, "dirsync"),
    (IFlags::IMMUTABLE, "immutable"),
    (IFlags::JOURNALING, "journal-data"),
    (IFlags::NOATIME, "noatime"),
    (IFlags::SYNC, "sync"),
];

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_stay_inside_the_root_and_only_regular_files_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        std::fs::create_dir_all(root.join("run/etc")).unwrap();
        std::fs::write(folder.path().join("outside"), "outside").unwrap();
        std::fs::write(root.join("run/resolv.conf"), b"in\xffside").unwrap();
        symlink("/run/resolv.conf", root.join("absolute")).unwrap();
        symlink("../../outside", root.join("run/up")).unwrap();
        rustix::fs::mknodat(CWD, root.join("pipe"), rustix::fs::FileType::Fifo, Mode::RUSR, 0).unwrap();
        let host = Host::below(&root);
        assert_eq!(host.read("/absolute").as_deref(), Some("in\u{fffd}side"));
        assert_eq!(host.read("/run/up"), None);
        assert_eq!(host.read("/../outside"), None);
        assert_eq!(host.read("/pipe"), None);
        assert_eq!(host.read("/run"), None);
        assert_eq!(host.list("/run").unwrap(), ["etc", "resolv.conf", "up"]);
        assert_eq!(host.list("/nowhere"), None);
    }

    #[test]
    fn a_path_that_does_not_exist_yet_is_resolved_as_far_as_it_does() {
        let folder = tempfile::tempdir().unwrap();
        let real = folder.path().canonicalize().unwrap();
        std::fs::create_dir(real.join("a")).unwrap();
        symlink(real.join("a"), real.join("link")).unwrap();
        assert_eq!(LiveSystemCalls.real_path(&real.join("link/b/c")), real.join("a/b/c"));
        assert_eq!(LiveSystemCalls.real_path(&real.join("link")), real.join("a"));
    }
}
