//! The files of the pool: performs an operation with the system calls of a C program that uses
//! stdio, or with unbuffered ones, and checks the result against the plan.
//!
//! ```text
//!           stdio                                         plain (--unbuffered)
//! create    open fstat write(4096)... write(rest) close   open write(block)... close
//! read      open fstat read(4096)... close                open read(block)... close
//! append    open lseek fstat write(4096)... close         open write(block)... close
//! delete    unlink                                        unlink
//! ```
//!
//! A file is synced before its close, its folder after it. A file that is missing, shorter, longer
//! or different is damage; any other failure is an error.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::SyncMode;
use super::content::FileContent;
use super::damage::Damage;
use super::plan::{FileOperation, PoolFile};
use super::stopwatch::Stopwatch;
use crate::timing_stats::TimingStats;

/// How files are read and written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IoMode {
    /// Bytes that the program reads or writes at a time.
    pub(crate) block_bytes: usize,
    /// The size of the buffer, as in C's stdio; without one, each block is a system call.
    pub(crate) buffer_bytes: Option<usize>,
}

/// The files and their measurements.
#[derive(Debug)]
pub(crate) struct FileStore {
    subfolders: Vec<Subfolder>,
    io_mode: IoMode,
    sync: SyncMode,
    content: FileContent,
    block: Vec<u8>,
    pub(crate) stats: StoreStats,
}

#[derive(Debug)]
struct Subfolder {
    path: PathBuf,
    /// For fsync.
    handle: File,
}

/// Counts, times and damage so far.
#[derive(Clone, Debug)]
pub(crate) struct StoreStats {
    pub(crate) creates: Stopwatch,
    pub(crate) reads: Stopwatch,
    pub(crate) appends: Stopwatch,
    pub(crate) deletes: Stopwatch,
    /// Included in the times above.
    pub(crate) syncs: Stopwatch,
    pub(crate) read_bytes: u64,
    pub(crate) written_bytes: u64,
    pub(crate) damage: Damage,
}

impl StoreStats {
    /// Statistics of each kind of operation that occurred.
    pub(crate) fn times(&self) -> Vec<TimingStats> {
        let watches = [
            ("create", &self.creates),
            ("read", &self.reads),
            ("append", &self.appends),
            ("delete", &self.deletes),
            ("sync", &self.syncs),
        ];
        watches.into_iter().filter(|(_, watch)| watch.count() > 0).map(|(name, watch)| watch.times(name)).collect()
    }

    fn new() -> StoreStats {
        let watch = Stopwatch::new();
        StoreStats {
            creates: watch.clone(),
            reads: watch.clone(),
            appends: watch.clone(),
            deletes: watch.clone(),
            syncs: watch,
            read_bytes: 0,
            written_bytes: 0,
            damage: Damage::default(),
        }
    }
}

impl FileStore {
    /// Creates the store in an empty folder, with this number of subfolders.
    pub(crate) fn create_in(
        folder: &Path,
        subfolders: usize,
        io_mode: IoMode,
        sync: SyncMode,
        rng: &mut fastrand::Rng,
    ) -> io::Result<FileStore> {
        let paths: Vec<PathBuf> = match subfolders {
            0 => vec![folder.to_owned()],
            count => (0..count).map(|number| folder.join(format!("s{number}"))).collect(),
        };
        if subfolders > 0 {
            paths.iter().try_for_each(fs::create_dir)?;
        }
        let open = |path: PathBuf| File::open(&path).map(|handle| Subfolder { path, handle });
        Ok(FileStore {
            subfolders: paths.into_iter().map(open).collect::<io::Result<_>>()?,
            io_mode,
            sync,
            content: FileContent::new(io_mode.block_bytes, rng),
            block: vec![0; io_mode.block_bytes],
            stats: StoreStats::new(),
        })
    }

    /// Performs an operation, times it and checks the result.
    pub(crate) fn perform(&mut self, operation: FileOperation) -> io::Result<()> {
        let (FileOperation::Create(file)
        | FileOperation::Read(file)
        | FileOperation::Append(file, _)
        | FileOperation::Delete(file)) = operation;
        let path = self.path(file);
        let begun = Instant::now();
        let done = match operation {
            FileOperation::Create(_) => self.create(&path, file),
            FileOperation::Read(_) => self.read(&path, file),
            FileOperation::Append(_, added) => self.append(&path, file, added),
            FileOperation::Delete(_) => self.delete(&path, file),
        };
        let took = begun.elapsed();
        let watch = match operation {
            FileOperation::Create(_) => &mut self.stats.creates,
            FileOperation::Read(_) => &mut self.stats.reads,
            FileOperation::Append(..) => &mut self.stats.appends,
            FileOperation::Delete(_) => &mut self.stats.deletes,
        };
        watch.record(took);
        match done {
            Err(gone) if gone.kind() == io::ErrorKind::NotFound => self.record_damage(file, "is missing"),
            done => done.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display()))),
        }
    }

    fn create(&mut self, path: &Path, file: PoolFile) -> io::Result<()> {
        let handle = OpenOptions::new().write(true).create_new(true).open(path)?;
        self.expect_size(&handle, file, 0)?;
        self.write(&handle, file, 0, file.size)?;
        drop(handle);
        self.sync_folder(file)
    }

    fn read(&mut self, path: &Path, file: PoolFile) -> io::Result<()> {
        let mut handle = File::open(path)?;
        self.expect_size(&handle, file, file.size)?;
        match self.io_mode.buffer_bytes {
            Some(bytes) => self.read_blocks(&mut BufReader::with_capacity(bytes, handle), file),
            None => self.read_blocks(&mut handle, file),
        }
    }

    fn read_blocks(&mut self, from: &mut impl Read, file: PoolFile) -> io::Result<()> {
        let mut place = 0;
        while place < file.size {
            // The last block is read in full, so that bytes beyond the expected end are found.
            let count = from.read(&mut self.block)?;
            let is_right = count > 0
                && count as u64 <= file.size - place
                && self.block[..count] == *self.content.slice(file.number, place, count);
            if !is_right {
                return self.record_damage(file, "differs from what was written");
            }
            place += count as u64;
        }
        self.stats.read_bytes += place;
        Ok(())
    }

    fn append(&mut self, path: &Path, file: PoolFile, added: u64) -> io::Result<()> {
        let mut handle = OpenOptions::new().append(true).open(path)?;
        if self.io_mode.buffer_bytes.is_some() && handle.seek(SeekFrom::End(0))? != file.size {
            self.record_damage(file, "has a different size than expected")?;
        }
        self.expect_size(&handle, file, file.size)?;
        self.write(&handle, file, file.size, added)
    }

    fn delete(&mut self, path: &Path, file: PoolFile) -> io::Result<()> {
        fs::remove_file(path)?;
        self.sync_folder(file)
    }

    fn write(&mut self, mut handle: &File, file: PoolFile, from: u64, length: u64) -> io::Result<()> {
        let places = from..from + length;
        match self.io_mode.buffer_bytes {
            Some(bytes) => self.write_blocks(&mut BufWriter::with_capacity(bytes, handle), file, places)?,
            None => self.write_blocks(&mut handle, file, places)?,
        }
        self.stats.written_bytes += length;
        if self.sync != SyncMode::None {
            Self::timed_sync(&mut self.stats.syncs, handle)?;
        }
        Ok(())
    }

    fn write_blocks(&self, to: &mut impl Write, file: PoolFile, places: Range<u64>) -> io::Result<()> {
        for place in places.clone().step_by(self.io_mode.block_bytes) {
            let count = (places.end - place).min(self.io_mode.block_bytes as u64) as usize;
            to.write_all(self.content.slice(file.number, place, count))?;
        }
        to.flush()
    }

    /// Stdio calls fstat to choose its buffer size; this uses the call to check the file size.
    fn expect_size(&mut self, handle: &File, file: PoolFile, size: u64) -> io::Result<()> {
        if self.io_mode.buffer_bytes.is_some() && rustix::fs::fstat(handle)?.st_size as u64 != size {
            return self.record_damage(file, "has a different size than expected");
        }
        Ok(())
    }

    fn sync_folder(&mut self, file: PoolFile) -> io::Result<()> {
        match self.sync {
            SyncMode::Folder => Self::timed_sync(&mut self.stats.syncs, &self.subfolders[file.subfolder].handle),
            SyncMode::None | SyncMode::File => Ok(()),
        }
    }

    fn timed_sync(watch: &mut Stopwatch, handle: &File) -> io::Result<()> {
        let begun = Instant::now();
        handle.sync_all()?;
        watch.record(begun.elapsed());
        Ok(())
    }

    fn record_damage(&mut self, file: PoolFile, how: &str) -> io::Result<()> {
        let path = self.path(file);
        self.stats.damage.record(format!("{} of {} bytes {how}", path.display(), file.size));
        Ok(())
    }

    fn path(&self, file: PoolFile) -> PathBuf {
        self.subfolders[file.subfolder].path.join(file.number.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: IoMode = IoMode { block_bytes: 512, buffer_bytes: None };
    const STDIO: IoMode = IoMode { block_bytes: 512, buffer_bytes: Some(4096) };

    const FILE: PoolFile = PoolFile { number: 1, subfolder: 0, size: 10_000 };
    const GROWN: PoolFile = PoolFile { size: 15_000, ..FILE };

    /// A store with one file that was created and appended to.
    fn store(folder: &Path, calls: IoMode, sync: SyncMode) -> FileStore {
        let mut store = FileStore::create_in(folder, 2, calls, sync, &mut fastrand::Rng::with_seed(1)).unwrap();
        store.perform(FileOperation::Create(FILE)).unwrap();
        store.perform(FileOperation::Append(FILE, 5000)).unwrap();
        store
    }

    fn damage_after(damage: impl Fn(&Path)) -> bool {
        let folder = tempfile::tempdir().unwrap();
        let mut store = store(folder.path(), PLAIN, SyncMode::None);
        damage(&folder.path().join("s0/1"));
        store.perform(FileOperation::Read(GROWN)).unwrap();
        !store.stats.damage.is_none()
    }

    #[test]
    fn a_file_reads_back_as_written_with_and_without_stdio() {
        for calls in [PLAIN, STDIO, IoMode { block_bytes: 20_000, ..STDIO }] {
            let folder = tempfile::tempdir().unwrap();
            let mut store = store(folder.path(), calls, SyncMode::None);
            store.perform(FileOperation::Read(GROWN)).unwrap();
            store.perform(FileOperation::Delete(GROWN)).unwrap();
            assert!(store.stats.damage.is_none(), "{}", store.stats.damage);
            assert_eq!((store.stats.read_bytes, store.stats.written_bytes), (15_000, 15_000));
            assert_eq!(folder.path().join("s0").read_dir().unwrap().count(), 0);
        }
    }

    #[test]
    fn any_damage_is_found() {
        assert!(!damage_after(|_| ()), "an unchanged file has no damage");
        assert!(damage_after(|path| fs::remove_file(path).unwrap()), "missing");
        assert!(
            damage_after(|path| File::options().write(true).open(path).unwrap().set_len(14_999).unwrap()),
            "shorter"
        );
        assert!(
            damage_after(|path| File::options().write(true).open(path).unwrap().set_len(15_001).unwrap()),
            "longer"
        );
        let flip = |path: &Path| {
            let mut bytes = fs::read(path).unwrap();
            bytes[12_345] ^= 1;
            fs::write(path, bytes).unwrap();
        };
        assert!(damage_after(flip), "one bit");
    }

    #[test]
    fn stdio_sees_another_size_before_it_writes() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = store(folder.path(), STDIO, SyncMode::None);
        store.perform(FileOperation::Append(FILE, 1)).unwrap();
        assert!(!store.stats.damage.is_none());
    }

    #[test]
    fn syncs_are_made_as_asked() {
        for (sync, expected) in [(SyncMode::None, 0), (SyncMode::File, 2), (SyncMode::Folder, 4)] {
            let folder = tempfile::tempdir().unwrap();
            let mut store = store(folder.path(), PLAIN, sync);
            store.perform(FileOperation::Delete(GROWN)).unwrap();
            assert_eq!(store.stats.syncs.count(), expected, "{sync:?}");
        }
    }

    #[test]
    fn a_system_error_names_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = store(folder.path(), PLAIN, SyncMode::None);
        let error = store.perform(FileOperation::Create(FILE)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert!(error.to_string().contains("s0/1"), "{error}");
    }
}
