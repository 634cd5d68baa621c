//! The interface between the spool and a disk. A lane is a flat folder, and everything the spool
//! writes goes through these two traits, so that tests can simulate a power failure at any call.
//!
//! [`FolderDisk`] is the real implementation, with `pwritev`, `fdatasync`, and `fsync` of the
//! folder.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mail::ByteSource;
use rustix::fs::{Advice, FallocateFlags, FlockOperation, Mode, OFlags, fadvise, fallocate, flock, fstatvfs};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

/// A folder that holds one lane.
pub trait Disk: Send + Sync + 'static {
    /// Locks the folder for this process until the `Disk` is dropped; `WouldBlock` if another
    /// process has locked it.
    fn lock(&self) -> io::Result<()>;
    /// The names of all files.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Creates a file with `size` bytes allocated, which read as zeros. Fails if the name exists.
    fn create(&self, name: &str, size: u64) -> io::Result<Arc<dyn DiskFile>>;
    /// Opens an existing file for reading and writing.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;
    /// Renames a file.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file; open handles stay valid.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes all creations, renames and removals so far durable.
    fn sync_folder(&self) -> io::Result<()>;
    /// The free space of the file system.
    fn space(&self) -> io::Result<DiskSpace>;
}

/// An open file of a lane.
#[expect(clippy::len_without_is_empty, reason = "the spool never checks whether a file is empty")]
pub trait DiskFile: ByteSource + 'static {
    /// Writes the parts one after the other; may write fewer bytes, and returns how many.
    fn write_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<usize>;
    /// Makes everything written so far durable, including the metadata needed to read it.
    fn sync(&self) -> io::Result<()>;
    /// Makes durable what an earlier process wrote, and drops cached pages that could not be
    /// written, so that later reads return what is on the disk.
    fn sync_and_drop_cache(&self) -> io::Result<()> {
        self.sync()
    }
    /// The length of the file.
    fn len(&self) -> io::Result<u64>;
}

/// Reads only from the page cache: a read that would wait for the disk fails with `WouldBlock`.
pub(crate) struct CachedOnly<'a>(pub(crate) &'a File);

impl ByteSource for CachedOnly<'_> {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let read = preadv2(self.0, &mut [IoSliceMut::new(buffer)], offset, ReadWriteFlags::NOWAIT);
        read.map_err(|error| match error {
            Errno::OPNOTSUPP | Errno::NOSYS => io::ErrorKind::WouldBlock.into(),
            error => error.into(),
        })
    }

    fn file(&self) -> Option<&File> {
        Some(self.0)
    }
}

/// The free space of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskSpace {
    /// Bytes that an unprivileged process may still write.
    pub bytes_free: u64,
    /// Files that may still be created; `u64::MAX` if the file system does not count them.
    pub inodes_free: u64,
}

/// A folder of a real file system.
#[derive(Debug)]
pub struct FolderDisk {
    path: PathBuf,
    handle: File,
}

impl FolderDisk {
    /// Opens the folder, and creates it (mode 0700, with its parents) if it does not exist. What
    /// was created is synced.
    pub fn open(path: &Path) -> io::Result<Self> {
        if !path.is_dir() {
            create_folders(path)?;
        }
        let handle = File::open(path)?;
        Ok(FolderDisk { path: path.to_owned(), handle })
    }

    fn open_file(&self, name: &str, flags: OFlags) -> io::Result<File> {
        let mode = Mode::RUSR | Mode::WUSR;
        let file = rustix::fs::openat(&self.handle, name, OFlags::RDWR | OFlags::CLOEXEC | flags, mode)?;
        Ok(File::from(file))
    }
}

fn create_folders(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !parent.is_dir() {
        create_folders(parent)?;
    }
    match std::fs::DirBuilder::new().mode(0o700).create(path) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
        _ => File::open(parent)?.sync_all(),
    }
}

impl Disk for FolderDisk {
    fn lock(&self) -> io::Result<()> {
        Ok(flock(&self.handle, FlockOperation::NonBlockingLockExclusive)?)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let names = std::fs::read_dir(&self.path)?.map(|entry| Ok(entry?.file_name().into_string()));
        // The spool has no files with a name that is not UTF-8.
        Ok(names.collect::<io::Result<Vec<_>>>()?.into_iter().flatten().collect())
    }

    fn create(&self, name: &str, size: u64) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.open_file(name, OFlags::CREATE | OFlags::EXCL)?;
        if size > 0
            && let Err(error) = allocate(&file, size)
        {
            self.remove(name)?;
            return Err(error);
        }
        Ok(Arc::new(RealFile(file)))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(RealFile(self.open_file(name, OFlags::empty())?)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.handle, from, &self.handle, to)?)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.handle, name, rustix::fs::AtFlags::empty())?)
    }

    fn sync_folder(&self) -> io::Result<()> {
        self.handle.sync_all()
    }

    fn space(&self) -> io::Result<DiskSpace> {
        let stat = fstatvfs(&self.handle)?;
        let inodes_free = if stat.f_files == 0 { u64::MAX } else { stat.f_favail };
        Ok(DiskSpace { bytes_free: stat.f_bavail * stat.f_frsize, inodes_free })
    }
}

/// Allocates blocks, so that a full disk is reported here and not during a commit.
fn allocate(file: &File, size: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), 0, size) {
        Err(rustix::io::Errno::OPNOTSUPP) => file.set_len(size),
        result => Ok(result?),
    }
}

struct RealFile(File);

impl ByteSource for RealFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(&self.0, buffer, offset)
    }

    fn file(&self) -> Option<&File> {
        Some(&self.0)
    }
}

impl DiskFile for RealFile {
    fn write_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        Ok(rustix::io::pwritev(&self.0, parts, offset)?)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    /// After a failed sync the kernel keeps the pages as if they were clean; once dropped, they are
    /// read from the disk.
    fn sync_and_drop_cache(&self) -> io::Result<()> {
        self.sync()?;
        Ok(fadvise(&self.0, 0, None, Advice::DontNeed)?)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }
}

/// Writes all of `parts` at `offset`, repeating short writes.
pub(crate) fn write_all_at(file: &dyn DiskFile, parts: &mut [IoSlice<'_>], mut offset: u64) -> io::Result<()> {
    const PARTS_A_CALL_MAX: usize = 1024; // IOV_MAX
    let mut rest = parts;
    while !rest.is_empty() {
        let count = rest.len().min(PARTS_A_CALL_MAX);
        match file.write_at(&rest[..count], offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                offset += written as u64;
                IoSlice::advance_slices(&mut rest, written);
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Writes bytes to a file beside the log, atomically; replaces an existing one.
pub(crate) fn write_aside_file(disk: &dyn Disk, name: &str, bytes: &[u8]) -> io::Result<()> {
    let draft = format!("draft-{name}");
    match disk.remove(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = disk.create(&draft, 0)?;
    if !bytes.is_empty() {
        write_all_at(&*file, &mut [IoSlice::new(bytes)], 0)?;
    }
    file.sync()?;
    disk.rename(&draft, name)?;
    disk.sync_folder()
}

/// Fills `buffer` from `offset`, with zeros where reading fails twice. Returns whether something
/// could not be read.
pub(crate) fn read_lossy(file: &dyn DiskFile, buffer: &mut [u8], offset: u64) -> bool {
    const SECTOR: u64 = 512;
    if read_exact_at(file, buffer, offset).is_ok() {
        return false;
    }
    let (mut rest, mut start, mut missing) = (buffer, offset, false);
    while !rest.is_empty() {
        let left_of_sector = (SECTOR - start % SECTOR) as usize;
        let (piece, behind) = rest.split_at_mut(left_of_sector.min(rest.len()));
        if read_exact_at(file, piece, start).is_err() && read_exact_at(file, piece, start).is_err() {
            piece.fill(0);
            missing = true;
        }
        start += piece.len() as u64;
        rest = behind;
    }
    missing
}

/// Fills `buffer` from `offset`; fails with `UnexpectedEof` if the file ends before.
pub(crate) fn read_exact_at(file: &(impl ByteSource + ?Sized), buffer: &mut [u8], offset: u64) -> io::Result<()> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], offset + filled as u64) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => filled += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
