//! The simulated disk: handles, the operations of the `spool::Disk` trait, and the controls for
//! tests (plan faults, hold operations, cut the power, inspect the bytes).
//!
//! Every operation runs in this order: it is counted and its result is decided; if its kind is
//! held, it waits; then it takes effect, all under one lock. A sync makes durable what was done
//! before the sync *began*. An operation during a power failure takes effect as far as a crash may
//! show it, and returns an error.

use std::fmt;
use std::fs::File;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mail::ByteSource;
use parking_lot::{Condvar, Mutex, MutexGuard};
use spool::{DiskFile, DiskSpace};

use crate::content::SimulatedFile;
use crate::fault_plan::{EIO, ENOSPC, FaultPlan, OperationKind, PlannedResult, power_off_error};
use crate::folder::{FileNumber, SimulatedFolder};
use crate::random::Random;

/// How long a test waits for an operation before it fails.
const HOLD_TIMEOUT: Duration = Duration::from_secs(30);

/// A handle to a simulated disk. Clones are the same disk; the lock belongs to the clone that took
/// it.
pub struct Disk {
    machine: Arc<SimulatedMachine>,
    locked: AtomicBool,
}

struct SimulatedMachine {
    state: Mutex<DiskState>,
    changed: Condvar,
}

struct DiskState {
    files: Vec<SimulatedFile>,
    folder: SimulatedFolder,
    plan: FaultPlan,
    random: Random,
    capacity: u64,
    short_writes: bool,
    unreadable: Vec<(FileNumber, Range<u64>)>,
    locked: bool,
    held: Vec<OperationKind>,
    waiting: Vec<OperationKind>,
}

/// Holds all operations of one kind until it is dropped.
pub struct OperationHold {
    machine: Arc<SimulatedMachine>,
    kind: OperationKind,
}

struct OpenFile {
    machine: Arc<SimulatedMachine>,
    name: String,
    file: FileNumber,
}

/// The controls for tests.
impl Disk {
    /// An empty disk of unlimited size. The seed decides the effects of short writes and failed
    /// syncs.
    pub fn new(seed: u64) -> Self {
        Disk::with(Vec::new(), SimulatedFolder::default(), seed)
    }

    /// A disk with these durable files, as an earlier run or an attacker may have left them.
    pub fn with_files(seed: u64, files: impl IntoIterator<Item = (String, Vec<u8>)>) -> Self {
        let disk = Disk::new(seed);
        files.into_iter().for_each(|(name, bytes)| disk.put(&name, bytes));
        disk
    }

    /// The disk as it may be after a power failure now: any subset of the unsynced changes is lost.
    pub fn crash(&self, seed: u64) -> Disk {
        self.after_crash(seed, false)
    }

    /// Like `crash`, but unsynced sectors may hold noise, and renamed files may have both names.
    pub fn crash_harshly(&self, seed: u64) -> Disk {
        self.after_crash(seed, true)
    }

    /// From now on every operation fails, including held ones.
    pub fn cut_power(&self) {
        self.machine.state.lock().plan.fail_power();
        self.machine.changed.notify_all();
    }

    /// Cuts the power during the `step`-th step, counted from 1. Steps are the operations that can
    /// change what a crash leaves: not reads.
    pub fn crash_at(&self, step: u64) {
        self.machine.state.lock().plan.fail_power_at(step);
    }

    /// Whether the power has failed.
    pub fn is_off(&self) -> bool {
        self.machine.state.lock().plan.is_off()
    }

    /// The number of steps so far.
    pub fn steps(&self) -> u64 {
        self.machine.state.lock().plan.steps()
    }

    /// The number of operations of one kind so far.
    pub fn count(&self, kind: OperationKind) -> u64 {
        self.machine.state.lock().plan.count(kind)
    }

    /// Makes operations of `kind` fail with `errno`; `ordinals` counts them from now, 0 being the
    /// next one.
    pub fn fail(&self, kind: OperationKind, ordinals: Range<u64>, errno: i32) {
        self.machine.state.lock().plan.fail(kind, ordinals, errno);
    }

    /// Limits the free space from now on.
    pub fn set_bytes_free(&self, bytes: u64) {
        let mut state = self.machine.state.lock();
        state.capacity = state.used() + bytes;
    }

    /// Lets every write be short, which the trait allows.
    pub fn set_short_writes(&self) {
        self.machine.state.lock().short_writes = true;
    }

    /// Flips one bit of a file, for readers and on the device.
    pub fn flip_bit(&self, name: &str, bit: u64) {
        let mut state = self.machine.state.lock();
        if let Some(&file) = state.folder.live().get(name) {
            state.files[file].flip_bit(bit);
        }
    }

    /// Makes all reads that touch these bytes of a file fail from now on.
    pub fn make_unreadable(&self, name: &str, bytes: Range<u64>) {
        let mut state = self.machine.state.lock();
        if let Some(&file) = state.folder.live().get(name) {
            state.unreadable.push((file, bytes));
        }
    }

    /// Holds every operation of `kind` that begins from now on.
    pub fn hold(&self, kind: OperationKind) -> OperationHold {
        self.machine.state.lock().held.push(kind);
        OperationHold { machine: self.machine.clone(), kind }
    }

    /// All file names.
    pub fn names(&self) -> Vec<String> {
        self.machine.state.lock().folder.live().keys().cloned().collect()
    }

    /// The content of a file as a reader sees it; None if it does not exist.
    pub fn content(&self, name: &str) -> Option<Vec<u8>> {
        let state = self.machine.state.lock();
        state.folder.live().get(name).map(|&file| state.files[file].live().to_vec())
    }

    /// Creates or replaces a file, durably.
    pub fn put(&self, name: &str, bytes: Vec<u8>) {
        let mut state = self.machine.state.lock();
        let file = state.add(SimulatedFile::durable(bytes));
        state.folder.create_durable(name, file);
    }

    /// The steps and faults, one per line, for the message of a failing test.
    pub fn log(&self) -> String {
        self.machine.state.lock().plan.log()
    }

    fn with(files: Vec<SimulatedFile>, folder: SimulatedFolder, seed: u64) -> Self {
        let state = DiskState {
            files,
            folder,
            plan: FaultPlan::default(),
            random: Random::new(seed),
            capacity: 1 << 40,
            short_writes: false,
            unreadable: Vec::new(),
            locked: false,
            held: Vec::new(),
            waiting: Vec::new(),
        };
        let machine = Arc::new(SimulatedMachine { state: Mutex::new(state), changed: Condvar::new() });
        Disk { machine, locked: AtomicBool::new(false) }
    }

    fn after_crash(&self, seed: u64, harsh: bool) -> Disk {
        let state = self.machine.state.lock();
        let mut random = Random::new(seed);
        let files = state.files.iter().map(|content| content.crash(&mut random, harsh)).collect();
        let names = state.folder.crash(&mut random, harsh);
        Disk::with(files, SimulatedFolder::durable(names), random.bits())
    }
}

impl Clone for Disk {
    fn clone(&self) -> Self {
        Disk { machine: self.machine.clone(), locked: AtomicBool::new(false) }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.locked.load(Ordering::Relaxed) {
            self.machine.state.lock().locked = false;
        }
    }
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Disk after {} steps, {:?}", self.steps(), self.names())
    }
}

/// The operations that a spool uses.
impl spool::Disk for Disk {
    fn lock(&self) -> io::Result<()> {
        let mut state = self.machine.state.lock();
        if state.plan.is_off() {
            return Err(power_off_error());
        }
        if state.locked {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        state.locked = true;
        self.locked.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut state = self.machine.state.lock();
        let fate = state.plan.begin(OperationKind::List, format_args!(""))?;
        let state = self.machine.wait_while_held(state, OperationKind::List, fate)?;
        Ok(state.folder.live().keys().cloned().collect())
    }

    fn create(&self, name: &str, size: u64) -> io::Result<Arc<dyn DiskFile>> {
        self.change(OperationKind::Create, format_args!("{name}, {size} bytes"), |state| {
            if state.folder.live().contains_key(name) {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            if size > state.free() {
                return Err(io::Error::from_raw_os_error(ENOSPC));
            }
            let file = state.add(SimulatedFile::new(size));
            state.folder.create(name, file);
            Ok(self.handle(name, file))
        })
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.machine.state.lock();
        let fate = state.plan.begin(OperationKind::Open, format_args!("{name}"))?;
        let state = self.machine.wait_while_held(state, OperationKind::Open, fate)?;
        let file = *state.folder.live().get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(self.handle(name, file))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.change(OperationKind::Rename, format_args!("{from} to {to}"), |state| {
            state.folder.rename(from, to).then_some(()).ok_or(io::ErrorKind::NotFound.into())
        })
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.change(OperationKind::Remove, format_args!("{name}"), |state| {
            state.folder.remove(name).then_some(()).ok_or(io::ErrorKind::NotFound.into())
        })
    }

    fn sync_folder(&self) -> io::Result<()> {
        let mut state = self.machine.state.lock();
        let mark = state.folder.mark();
        let fate = state.plan.begin(OperationKind::SyncFolder, format_args!(""))?;
        let mut state = self.machine.wait_while_held(state, OperationKind::SyncFolder, fate)?;
        state.folder.sync(mark);
        Ok(())
    }

    fn space(&self) -> io::Result<DiskSpace> {
        let state = self.machine.state.lock();
        if state.plan.is_off() {
            return Err(power_off_error());
        }
        Ok(DiskSpace { bytes_free: state.free(), inodes_free: u64::MAX })
    }
}

impl Disk {
    fn handle(&self, name: &str, file: FileNumber) -> Arc<dyn DiskFile> {
        Arc::new(OpenFile { machine: self.machine.clone(), name: name.to_owned(), file })
    }

    /// Changes a name. If the power fails during the change, it counts as made but unsynced.
    fn change<T>(
        &self,
        kind: OperationKind,
        what: fmt::Arguments<'_>,
        change: impl FnOnce(&mut DiskState) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut state = self.machine.state.lock();
        match state.plan.begin(kind, what)? {
            PlannedResult::PowerFailure => {
                let _ = change(&mut state);
                self.machine.changed.notify_all();
                Err(power_off_error())
            }
            fate => change(&mut *self.machine.wait_while_held(state, kind, fate)?),
        }
    }
}

impl ByteSource for OpenFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut state = self.machine.state.lock();
        let fate = state.plan.begin(OperationKind::Read, format_args!("{} at {offset}", self.name))?;
        let state = self.machine.wait_while_held(state, OperationKind::Read, fate)?;
        let live = state.files[self.file].live();
        let start = usize::try_from(offset).map_or(live.len(), |offset| offset.min(live.len()));
        let count = buffer.len().min(live.len() - start);
        if state.is_unreadable(self.file, offset, count) {
            return Err(io::Error::from_raw_os_error(EIO));
        }
        buffer[..count].copy_from_slice(&live[start..start + count]);
        Ok(count)
    }

    fn file(&self) -> Option<&File> {
        None
    }
}

impl DiskFile for OpenFile {
    fn write_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let bytes = parts.iter().fold(Vec::new(), |mut bytes, part| {
            bytes.extend_from_slice(part);
            bytes
        });
        let mut state = self.machine.state.lock();
        match state
            .plan
            .begin(OperationKind::Write, format_args!("{} at {offset}, {} bytes", self.name, bytes.len()))?
        {
            PlannedResult::PowerFailure => {
                let _ = state.write(self.file, offset, bytes);
                self.machine.changed.notify_all();
                Err(power_off_error())
            }
            fate => self.machine.wait_while_held(state, OperationKind::Write, fate)?.write(self.file, offset, bytes),
        }
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.machine.state.lock();
        let mark = state.files[self.file].mark();
        let fate = state.plan.begin(OperationKind::Sync, format_args!("{}", self.name))?;
        if matches!(fate, PlannedResult::Fail(EIO)) {
            let DiskState { files, random, .. } = &mut *state;
            files[self.file].fail_sync(mark, random);
        }
        let mut state = self.machine.wait_while_held(state, OperationKind::Sync, fate)?;
        state.files[self.file].sync(mark);
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        let state = self.machine.state.lock();
        if state.plan.is_off() { Err(power_off_error()) } else { Ok(state.files[self.file].len()) }
    }
}

impl SimulatedMachine {
    /// Waits while `kind` is held; returns an error if the operation must not take effect.
    fn wait_while_held<'a>(
        &'a self,
        mut state: MutexGuard<'a, DiskState>,
        kind: OperationKind,
        fate: PlannedResult,
    ) -> io::Result<MutexGuard<'a, DiskState>> {
        if state.held.contains(&kind) && fate != PlannedResult::PowerFailure {
            state.waiting.push(kind);
            self.changed.notify_all();
            let held = |state: &mut DiskState| state.held.contains(&kind) && !state.plan.is_off();
            self.changed.wait_while(&mut state, held);
            state.forget_waiting(kind);
        }
        match fate {
            PlannedResult::Fail(errno) => Err(io::Error::from_raw_os_error(errno)),
            _ if state.plan.is_off() => {
                self.changed.notify_all();
                Err(power_off_error())
            }
            _ => Ok(state),
        }
    }
}

impl DiskState {
    fn add(&mut self, content: SimulatedFile) -> FileNumber {
        self.files.push(content);
        self.files.len() - 1
    }

    fn used(&self) -> u64 {
        self.folder.live().values().map(|&file| self.files[file].used()).sum()
    }

    fn free(&self) -> u64 {
        self.capacity.saturating_sub(self.used())
    }

    /// Writes what fits into the free space, or less for a short write.
    fn write(&mut self, file: FileNumber, offset: u64, mut bytes: Vec<u8>) -> io::Result<usize> {
        let missing = self.files[file].growth(offset, bytes.len() as u64).saturating_sub(self.free());
        if missing >= bytes.len() as u64 && missing > 0 {
            return Err(io::Error::from_raw_os_error(ENOSPC));
        }
        bytes.truncate(bytes.len() - missing as usize);
        if self.short_writes && bytes.len() > 1 {
            bytes.truncate(1 + self.random.below(bytes.len() as u64) as usize);
        }
        let count = bytes.len();
        self.files[file].write(offset, bytes);
        Ok(count)
    }

    fn is_unreadable(&self, file: FileNumber, offset: u64, count: usize) -> bool {
        let touches = |bytes: &Range<u64>| bytes.start < offset + count as u64 && offset < bytes.end;
        self.unreadable.iter().any(|(spoiled, bytes)| *spoiled == file && touches(bytes))
    }

    fn forget_waiting(&mut self, kind: OperationKind) {
        if let Some(place) = self.waiting.iter().position(|waiting| *waiting == kind) {
            self.waiting.swap_remove(place);
        }
    }
}

impl OperationHold {
    /// Waits until `count` operations are held.
    ///
    /// # Panics
    /// If they do not arrive in time.
    pub fn wait_for(&self, count: usize) {
        let mut state = self.machine.state.lock();
        let few = |state: &mut DiskState| state.waiting.iter().filter(|kind| **kind == self.kind).count() < count;
        let timeout = self.machine.changed.wait_while_for(&mut state, few, HOLD_TIMEOUT);
        assert!(
            !timeout.timed_out(),
            "timed out waiting for {count} operations {:?}:\n{}",
            self.kind,
            state.plan.log()
        );
    }
}

impl Drop for OperationHold {
    fn drop(&mut self) {
        let mut state = self.machine.state.lock();
        if let Some(place) = state.held.iter().position(|held| *held == self.kind) {
            state.held.swap_remove(place);
        }
        self.machine.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spool::Disk as _;

    fn write(file: &Arc<dyn DiskFile>, bytes: &[u8], offset: u64) -> io::Result<usize> {
        file.write_at(&[IoSlice::new(bytes)], offset)
    }

    #[test]
    fn a_file_needs_its_own_sync_and_that_of_its_folder() {
        let disk = Disk::new(1);
        let file = disk.create("a", 0).unwrap();
        write(&file, b"hello", 0).unwrap();
        file.sync().unwrap();
        assert!((0..50).any(|seed| disk.crash(seed).names().is_empty()), "the name is not durable yet");
        disk.sync_folder().unwrap();
        assert!((0..50).all(|seed| disk.crash(seed).content("a").as_deref() == Some(b"hello")));
    }

    #[test]
    fn nothing_happens_after_the_power_failed_and_the_last_step_may_have() {
        let disk = Disk::new(1);
        disk.crash_at(2);
        let file = disk.create("a", 4).unwrap();
        assert!(write(&file, b"abcd", 0).is_err());
        assert!(disk.is_off());
        assert!(file.sync().is_err() && disk.list().is_err() && disk.sync_folder().is_err());
        let found: Vec<_> = (0..100).map(|seed| disk.crash(seed).content("a")).collect();
        assert!(found.contains(&None) && found.contains(&Some(b"abcd".to_vec())));
        assert_eq!(disk.steps(), 2);
    }

    #[test]
    fn planned_faults_hit_the_operations_they_name() {
        let disk = Disk::new(1);
        let file = disk.create("a", 8).unwrap();
        disk.fail(OperationKind::Sync, 1..2, EIO);
        assert!(file.sync().is_ok());
        assert_eq!(file.sync().unwrap_err().raw_os_error(), Some(EIO));
        assert!(file.sync().is_ok());
        disk.set_bytes_free(2);
        assert_eq!(write(&file, b"12345", 6).unwrap(), 4, "only two bytes beyond the old end fit");
        assert_eq!(write(&file, b"5", 10).unwrap_err().raw_os_error(), Some(ENOSPC));
        assert_eq!(disk.create("b", 1).err().unwrap().raw_os_error(), Some(ENOSPC));
    }

    #[test]
    fn a_held_sync_covers_only_what_was_written_before_it_began() {
        let disk = Disk::new(1);
        let file = disk.create("a", 4).unwrap();
        disk.sync_folder().unwrap();
        write(&file, b"old", 0).unwrap();
        let hold = disk.hold(OperationKind::Sync);
        let syncing = std::thread::spawn({
            let file = file.clone();
            move || file.sync()
        });
        hold.wait_for(1);
        write(&file, b"new", 0).unwrap();
        drop(hold);
        syncing.join().unwrap().unwrap();
        let found: Vec<_> = (0..100).map(|seed| disk.crash(seed).content("a").unwrap()).collect();
        assert!(found.iter().all(|bytes| bytes == b"old\0" || bytes == b"new\0"));
        assert!(found.contains(&b"old\0".to_vec()) && found.contains(&b"new\0".to_vec()));
    }

    #[test]
    fn cutting_the_power_ends_what_is_held() {
        let disk = Disk::new(1);
        let file = disk.create("a", 4).unwrap();
        let hold = disk.hold(OperationKind::Sync);
        let syncing = std::thread::spawn(move || file.sync());
        hold.wait_for(1);
        disk.cut_power();
        assert!(syncing.join().unwrap().is_err());
    }

    #[test]
    fn one_clone_at_a_time_has_the_lock() {
        let disk = Disk::new(1);
        let holder = disk.clone();
        holder.lock().unwrap();
        assert_eq!(disk.lock().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(holder);
        disk.lock().unwrap();
    }
}
