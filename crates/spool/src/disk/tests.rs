//! Folders of a real file system, and reads and writes that end early. What survives a power failure is
//! tested on a simulated disk.

use std::os::unix::fs::MetadataExt;

use parking_lot::Mutex;

use super::*;

const EIO: i32 = 5;

fn folder() -> (tempfile::TempDir, FolderDisk) {
    let root = tempfile::tempdir().unwrap();
    let disk = FolderDisk::open(root.path()).unwrap();
    (root, disk)
}

fn kind<T>(result: io::Result<T>) -> Option<io::ErrorKind> {
    result.err().map(|error| error.kind())
}

#[test]
fn a_missing_folder_is_created_with_its_parents_for_its_owner_alone() {
    let root = tempfile::tempdir().unwrap();
    let (parent, path) = (root.path().join("spool"), root.path().join("spool/lane"));
    for _ in 0..2 {
        FolderDisk::open(&path).unwrap();
    }
    for folder in [&parent, &path] {
        assert_eq!(std::fs::metadata(folder).unwrap().mode() & 0o777, 0o700);
    }
    create_folders(&path).expect("another process may create the folder first");
    std::fs::write(root.path().join("file"), "").unwrap();
    assert!(create_folders(&root.path().join("file/lane")).is_err());
}

#[test]
fn a_folder_is_locked_until_its_disk_is_dropped() {
    let (root, disk) = folder();
    let other = FolderDisk::open(root.path()).unwrap();
    disk.lock().unwrap();
    assert_eq!(kind(other.lock()), Some(io::ErrorKind::WouldBlock));
    drop(disk);
    other.lock().unwrap();
}

#[test]
fn files_are_created_once_with_their_size_for_their_owner_alone() {
    let (root, disk) = folder();
    let file = disk.create("segment", 8192).unwrap();
    assert_eq!((file.len().unwrap(), disk.create("body", 0).unwrap().len().unwrap()), (8192, 0));
    assert_eq!(std::fs::metadata(root.path().join("segment")).unwrap().mode() & 0o777, 0o600);
    assert_eq!(kind(disk.create("segment", 0).map(drop)), Some(io::ErrorKind::AlreadyExists));
    assert!(disk.create("larger than any disk", 1 << 62).is_err());
    let mut names = disk.list().unwrap();
    names.sort_unstable();
    assert_eq!(names, ["body", "segment"]);
}

#[test]
fn files_are_renamed_and_removed() {
    let (_root, disk) = folder();
    disk.create("draft", 3).unwrap();
    disk.rename("draft", "aside").unwrap();
    assert_eq!((disk.list().unwrap(), disk.open("aside").unwrap().len().unwrap()), (vec!["aside".to_owned()], 3));
    disk.sync_folder().unwrap();
    disk.remove("aside").unwrap();
    assert_eq!(disk.list().unwrap(), Vec::<String>::new());
    for missing in [disk.open("aside").map(drop), disk.remove("aside"), disk.rename("aside", "other")] {
        assert_eq!(kind(missing), Some(io::ErrorKind::NotFound));
    }
}

#[test]
fn what_is_written_to_a_file_is_read_again() {
    let (_root, disk) = folder();
    let file = disk.create("segment", 16).unwrap();
    assert_eq!(file.write_at(&[IoSlice::new(b"ab"), IoSlice::new(b"cde")], 3).unwrap(), 5);
    file.sync().unwrap();
    file.sync_and_drop_cache().unwrap();
    let file = disk.open("segment").unwrap();
    let mut bytes = [9; 20];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), 16);
    assert_eq!(&bytes[..17], b"\0\0\0abcde\0\0\0\0\0\0\0\0\x09");
    assert_eq!(file.file().unwrap().metadata().unwrap().len(), 16);
}

#[test]
fn the_page_cache_is_read_without_waiting() {
    let (_root, disk) = folder();
    let file = disk.create("segment", 0).unwrap();
    file.write_at(&[IoSlice::new(b"cached")], 0).unwrap();
    let cached = CachedOnly(file.file().unwrap());
    assert!(cached.file().is_some());
    let mut bytes = [0; 6];
    match cached.read_at(&mut bytes, 0) {
        Ok(count) => assert_eq!((count, &bytes), (6, b"cached")),
        // The file system cannot tell, or had to drop the page.
        Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
    }
}

/// Others write to the same file system at the same time.
#[test]
fn the_free_space_is_about_that_of_the_file_system() {
    let (_root, disk) = folder();
    let (space, stat) = (disk.space().unwrap(), fstatvfs(&disk.handle).unwrap());
    let bytes = stat.f_bavail * stat.f_frsize;
    assert!((bytes / 2..=bytes.saturating_mul(2)).contains(&space.bytes_free), "{space:?}, expected {bytes} bytes");
    match stat.f_files {
        0 => assert_eq!(space.inodes_free, u64::MAX),
        files => assert!(space.inodes_free <= files),
    }
}

/// A file in memory. Each call takes its next fault; without one it succeeds, for 100 bytes at most.
#[derive(Default)]
struct FaultyFile {
    bytes: Mutex<Vec<u8>>,
    faults: Mutex<Vec<io::Error>>,
    /// Reads that touch these bytes fail so many times.
    unreadable: std::ops::Range<u64>,
    failures_left: Mutex<u32>,
}

impl FaultyFile {
    const BYTES_A_CALL_MAX: usize = 100;

    fn next_fault(&self) -> io::Result<()> {
        self.faults.lock().pop().map_or(Ok(()), Err)
    }
}

impl ByteSource for FaultyFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.next_fault()?;
        let count = buffer.len().min(Self::BYTES_A_CALL_MAX);
        let mut left = self.failures_left.lock();
        if offset < self.unreadable.end && self.unreadable.start < offset + count as u64 && *left > 0 {
            *left -= 1;
            return Err(io::Error::from_raw_os_error(EIO));
        }
        self.bytes.lock().read_at(&mut buffer[..count], offset)
    }

    fn file(&self) -> Option<&File> {
        None
    }
}

impl DiskFile for FaultyFile {
    fn write_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        self.next_fault()?;
        let parts: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        let (count, start) = (parts.len().min(Self::BYTES_A_CALL_MAX), offset as usize);
        let mut bytes = self.bytes.lock();
        let end = bytes.len().max(start + count);
        bytes.resize(end, 0);
        bytes[start..start + count].copy_from_slice(&parts[..count]);
        Ok(count)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes.lock().len() as u64)
    }
}

fn numbered(count: usize) -> Vec<u8> {
    (0..count).map(|n| (n % 251) as u8).collect()
}

#[test]
fn interrupted_and_short_calls_go_on_where_they_ended() {
    let (file, bytes) = (FaultyFile::default(), numbered(3000));
    let interrupt = || file.faults.lock().extend([io::ErrorKind::Interrupted.into()]);
    interrupt();
    // More parts than the system takes in one call.
    let mut parts: Vec<_> = bytes.iter().map(std::slice::from_ref).map(IoSlice::new).collect();
    write_all_at(&file, &mut parts, 7).unwrap();
    interrupt();
    let mut read = vec![0; 3000];
    read_exact_at(&file, &mut read, 7).unwrap();
    assert_eq!(read, bytes);
    assert_eq!(kind(read_exact_at(&file, &mut read, 8)), Some(io::ErrorKind::UnexpectedEof));
}

#[test]
fn other_errors_end_a_read_and_a_write() {
    let file = FaultyFile { bytes: Mutex::new(numbered(8)), ..FaultyFile::default() };
    let fail = || file.faults.lock().extend([io::ErrorKind::PermissionDenied.into()]);
    fail();
    let denied = Some(io::ErrorKind::PermissionDenied);
    assert_eq!(kind(write_all_at(&file, &mut [IoSlice::new(b"new")], 0)), denied);
    fail();
    assert_eq!(kind(read_exact_at(&file, &mut [0; 8], 0)), denied);
    assert_eq!(*file.bytes.lock(), numbered(8));
}

/// Reads 1,200 bytes from 1,000 on, where one sector fails so many times.
fn read_beside_a_bad_sector(failures: u32) -> (bool, Vec<u8>) {
    let (bytes, failures_left) = (Mutex::new(numbered(4096)), Mutex::new(failures));
    let file = FaultyFile { bytes, failures_left, unreadable: 1024..1536, ..FaultyFile::default() };
    let mut buffer = vec![9; 1200];
    (read_lossy(&file, &mut buffer, 1000), buffer)
}

#[test]
fn a_sector_that_cannot_be_read_is_zeros_and_costs_no_other_byte() {
    let mut expected = numbered(4096)[1000..2200].to_vec();
    // Once for the whole range, and once for the sector.
    for failures in [0, 1, 2] {
        assert_eq!(read_beside_a_bad_sector(failures), (false, expected.clone()), "{failures} failures");
    }
    expected[24..24 + 512].fill(0);
    assert_eq!(read_beside_a_bad_sector(u32::MAX), (true, expected));
}

#[test]
fn a_file_beside_the_log_replaces_what_an_earlier_try_left() {
    let (root, disk) = folder();
    std::fs::write(root.path().join("draft-aside-1"), "the first try ended here").unwrap();
    for bytes in [&b"some bytes"[..], b""] {
        write_aside_file(&disk, "aside-1", bytes).unwrap();
        assert_eq!(std::fs::read(root.path().join("aside-1")).unwrap(), bytes);
    }
    assert_eq!(disk.list().unwrap(), ["aside-1"]);
    std::fs::create_dir(root.path().join("draft-aside-2")).unwrap();
    assert_eq!(kind(write_aside_file(&disk, "aside-2", b"")), Some(io::ErrorKind::IsADirectory));
}
