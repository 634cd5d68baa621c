//! The thread that moves mail from the [drop folder](crate::drop_folder) to the spool. A file is
//! removed only after the spool has its message: a crash in between delivers a message twice, never
//! not at all.
//!
//! | in the folder | becomes |
//! |---|---|
//! | a message | committed to the spool, with a notice to its sender if recipients are unknown |
//! | a message, while the directory, the disk or the spool fail, or SMTP would defer a recipient | stays and is retried |
//! | a message that cannot be delivered, and neither can a notice | set aside and logged |
//! | an invalid message, or a file with another name | set aside and logged |
//! | a file that is still being written | stays |
//!
//! Any local user may write to the folder. So symbolic links are not followed, only regular files
//! with a single link are read, a file is read whole before it is used, and only its owner tells
//! who sent the message.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use mail::{LogLevel, ServerLog};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{Mode, OFlags, inotify};

use super::file::{DROP_FILE_HEAD_OCTETS_MAX, DropFile};
use super::submission::{DropSubmitError, DropSubmitter, Submitted};
use super::writer::{self, is_message_name, is_temporary_name};

/// The folder is scanned this often in any case: inotify can lose events, and kept files are
/// retried.
const SCAN_INTERVAL: Duration = Duration::from_secs(5);
/// Files per scan: this many new ones, kept ones, and non-regular ones each. They are counted
/// apart, so that files that cannot leave do not block the others.
const SCAN_FILES_MAX: usize = 1000;
/// Log lines per scan about files that are kept or set aside; the rest is counted.
const SCAN_LOG_LINES_MAX: usize = 10;
/// Kept files whose names are remembered, so that each is logged once; beyond it some are logged
/// again.
const REPORTED_NAMES_MAX: usize = 100_000;

/// The folder and what the thread needs.
pub struct DropFolderConfig {
    /// The folder.
    pub folder: PathBuf,
    /// Where invalid files are moved; on the same file system.
    pub rejected: PathBuf,
    /// The limit on messages, in bytes.
    pub message_octets_max: u64,
    /// Submits the messages.
    pub submitter: DropSubmitter,
    /// The log.
    pub log: Arc<dyn ServerLog>,
}

/// The running thread.
pub struct DropFolderScanner {
    stopping: Arc<AtomicBool>,
    notifier: Arc<OwnedFd>,
    next_config: Arc<Mutex<Option<DropFolderConfig>>>,
    thread: JoinHandle<()>,
}

/// What a file turned out to be.
enum ScannedFile {
    Message(DropFile, FileIdentity),
    /// Not a message, and why.
    Invalid(String),
    /// No longer there.
    Gone,
}

/// The file's owner and identity.
#[derive(Clone, Copy)]
struct FileIdentity {
    uid: u32,
    file: DropFileId,
}

/// Device and inode.
type DropFileId = (u64, u64);

/// The result of a scan, and what the next one needs.
#[derive(Debug, Default)]
struct ScanState {
    /// More files are waiting.
    is_full: bool,
    log_lines: usize,
    /// Files have left the folder.
    is_changed: bool,
    /// Files that were kept, in this scan or before.
    reported: HashSet<OsString>,
    /// Messages that are in the spool, but whose files could not be removed: only the removal is
    /// retried.
    committed: HashMap<OsString, DropFileId>,
    new_files: ScanWindow,
    kept_files: ScanWindow,
    other_files: ScanWindow,
    /// When kept files were last retried.
    retried_at: Option<Instant>,
}

/// The names to look at in one scan, in order. Each scan continues where the last one ended, and
/// starts over at the end.
#[derive(Debug, Default)]
struct ScanWindow {
    /// The last name looked at.
    after: OsString,
    /// With each name: whether it sorts before `after`.
    names: BTreeSet<(bool, OsString)>,
    is_full: bool,
}

impl ScanWindow {
    fn insert(&mut self, name: OsString) {
        self.names.insert((name <= self.after, name));
        if self.names.len() > SCAN_FILES_MAX {
            self.names.pop_last();
            self.is_full = true;
        }
    }

    /// Returns the names and whether there were more; leaves the window empty.
    fn take(&mut self) -> (Vec<OsString>, bool) {
        let names: Vec<_> = std::mem::take(&mut self.names).into_iter().map(|(_, name)| name).collect();
        if let Some(last) = names.last() {
            self.after.clone_from(last);
        }
        (names, std::mem::take(&mut self.is_full))
    }
}

impl DropFolderScanner {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// The system cannot create an eventfd or a thread.
    pub fn start(folder: DropFolderConfig) -> io::Result<DropFolderScanner> {
        let stopping = Arc::new(AtomicBool::new(false));
        let notifier = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let next: Arc<Mutex<Option<DropFolderConfig>>> = Arc::default();
        let (stop, thread_notifier, pending) = (stopping.clone(), notifier.clone(), next.clone());
        let work = move || folder.run(&stop, &thread_notifier, &pending);
        let thread = thread::Builder::new().name("drop-scanner".into()).spawn(work)?;
        Ok(DropFolderScanner { stopping, notifier, next_config: next, thread })
    }

    /// Uses these settings from the next scan on; the folder stays the same.
    pub fn reconfigure(&self, folder: DropFolderConfig) {
        *self.next_config.lock() = Some(folder);
    }

    /// Ends the thread after its current message.
    pub fn stop(self) {
        self.stopping.store(true, Relaxed);
        // The write fails only if a notification is already pending.
        let _ = rustix::io::write(&*self.notifier, &1u64.to_ne_bytes());
        // A panic has already been reported.
        let _ = self.thread.join();
    }
}

impl DropFolderConfig {
    fn run(mut self, stopping: &AtomicBool, notifier: &OwnedFd, next: &Mutex<Option<DropFolderConfig>>) {
        let events = self.watch();
        if let Err(error) = &events {
            let text = "cannot watch the drop folder: scanning it every few seconds instead";
            self.log.event(LogLevel::Warning, text, &[("error", error)]);
        }
        let events = events.ok();
        let mut state = ScanState::default();
        while !stopping.load(Relaxed) {
            if let Some(next) = next.lock().take() {
                self = next;
            }
            match self.scan(stopping, &mut state) {
                Ok(()) if state.is_full => {}
                Ok(()) => wait(events.as_ref(), notifier),
                Err(error) => {
                    self.log.event(LogLevel::Error, "cannot read the drop folder", &[("error", &error)]);
                    wait(None, notifier);
                }
            }
        }
    }

    fn watch(&self) -> io::Result<OwnedFd> {
        let events = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        inotify::add_watch(&events, &self.folder, inotify::WatchFlags::MOVED_TO | inotify::WatchFlags::ONLYDIR)?;
        Ok(events)
    }

    /// Scans the folder once: new files, and at intervals the kept ones.
    fn scan(&self, stopping: &AtomicBool, state: &mut ScanState) -> io::Result<()> {
        (state.is_full, state.log_lines, state.is_changed) = (false, 0, false);
        if state.reported.len() > REPORTED_NAMES_MAX {
            state.reported.clear();
        }
        self.list(state)?;
        let folder = File::open(&self.folder)?;
        let known = state.reported.len();
        let (names, more) = state.new_files.take();
        let moved = self.process_files(&folder, &names, stopping, state);
        // If nothing changed, an immediate second scan would find the same.
        state.is_full = more && (moved > 0 || state.reported.len() > known);
        if state.retried_at.is_none_or(|at| at.elapsed() >= SCAN_INTERVAL) {
            state.retried_at = Some(Instant::now());
            for (names, more) in [state.kept_files.take(), state.other_files.take()] {
                if self.process_files(&folder, &names, stopping, state) > 0 && more {
                    (state.is_full, state.retried_at) = (true, None);
                }
            }
        }
        if state.is_changed
            && let Err(error) = folder.sync_all()
        {
            let text = "cannot sync the drop folder: after a crash, removed files may be delivered again";
            self.log.event(LogLevel::Warning, text, &[("error", &error)]);
        }
        if state.log_lines > SCAN_LOG_LINES_MAX {
            let left_out = state.log_lines - SCAN_LOG_LINES_MAX;
            self.log.event(
                LogLevel::Warning,
                "more files in the drop folder had errors; not logged one by one",
                &[("left_out", &left_out)],
            );
        }
        Ok(())
    }

    fn list(&self, state: &mut ScanState) -> io::Result<()> {
        for window in [&mut state.new_files, &mut state.kept_files, &mut state.other_files] {
            (window.names, window.is_full) = Default::default();
        }
        for entry in std::fs::read_dir(&self.folder)? {
            let entry = entry?;
            let name = entry.file_name();
            if is_temporary_name(name.as_bytes()) {
                continue;
            }
            let window = match entry.file_type() {
                Ok(kind) if !kind.is_file() => &mut state.other_files,
                Ok(_) if state.reported.contains(&name) => &mut state.kept_files,
                Ok(_) => &mut state.new_files,
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            window.insert(name);
        }
        Ok(())
    }

    /// Returns how many files left the folder.
    fn process_files(&self, folder: &File, names: &[OsString], stopping: &AtomicBool, state: &mut ScanState) -> usize {
        let names = names.iter().take_while(|_| !stopping.load(Relaxed));
        let left = names.filter(|name| {
            let left = self.process_file(folder, name, stopping, state);
            state.is_changed |= left;
            if left {
                state.reported.remove(*name);
                state.committed.remove(*name);
            }
            left
        });
        left.count()
    }

    /// Returns whether the file left the folder.
    fn process_file(&self, folder: &File, name: &OsStr, stopping: &AtomicBool, state: &mut ScanState) -> bool {
        if let Some(committed) = state.committed.get(name).copied() {
            match self.folder.join(name).symlink_metadata() {
                Ok(now) if (now.dev(), now.ino()) == committed => return self.remove(name, committed, state),
                Err(error) if error.kind() != ErrorKind::NotFound => return false,
                // Another file with the same name.
                _ => state.committed.remove(name),
            };
        }
        let found = match self.read_file(folder, name) {
            Ok(found) => found,
            Err(error) => {
                self.log_kept_once(state, "cannot read a file in the drop folder", name, &error.to_string());
                return false;
            }
        };
        let (drop_file, identity) = match found {
            ScannedFile::Message(drop_file, left) => (drop_file, left),
            ScannedFile::Invalid(why) => return self.set_aside(name, &why, state),
            ScannedFile::Gone => return false,
        };
        match self.submitter.submit(drop_file, identity.uid, SystemTime::now().into(), stopping) {
            Ok(Submitted) => self.remove(name, identity.file, state),
            Err(_) if stopping.load(Relaxed) => false,
            Err(DropSubmitError::Temporary(why)) => {
                self.log_kept_once(state, "a message stays in the drop folder", name, &why);
                false
            }
            Err(DropSubmitError::Permanent(why)) => {
                // The message was accepted for delivery, so this is logged despite the limit.
                if !state.reported.contains(name) {
                    let file = name.to_string_lossy();
                    let facts: [(&str, &dyn std::fmt::Display); 2] = [("file", &file), ("why", &why)];
                    self.log.event(LogLevel::Error, "a message from the drop folder cannot be delivered", &facts);
                }
                self.set_aside(name, &why, state)
            }
        }
    }

    /// Reads the whole file.
    fn read_file(&self, folder: &File, name: &OsStr) -> io::Result<ScannedFile> {
        if !is_message_name(name.as_bytes()) {
            return Ok(ScannedFile::Invalid("its name is not a message name".into()));
        }
        // Without NONBLOCK, opening a FIFO would block the thread.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        let file = match rustix::fs::openat(folder, name, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(rustix::io::Errno::LOOP) => return Ok(ScannedFile::Invalid("it is a symbolic link".into())),
            Err(rustix::io::Errno::NXIO) => return Ok(ScannedFile::Invalid("it is a socket".into())),
            Err(rustix::io::Errno::ACCESS) => {
                return Ok(ScannedFile::Invalid("the server has no permission to read it".into()));
            }
            Err(error) if io::Error::from(error).kind() == ErrorKind::NotFound => return Ok(ScannedFile::Gone),
            Err(error) => return Err(error.into()),
        };
        let metadata = file.metadata()?;
        let octets_max = self.message_octets_max + DROP_FILE_HEAD_OCTETS_MAX;
        if !metadata.is_file() {
            return Ok(ScannedFile::Invalid("it is not a regular file".into()));
        }
        if metadata.nlink() != 1 {
            return Ok(ScannedFile::Invalid("it has other hard links, so its owner may not be the sender".into()));
        }
        if metadata.len() > octets_max {
            return Ok(ScannedFile::Invalid(format!("it is larger than limits.message: {} bytes", metadata.len())));
        }
        let mut bytes = Vec::with_capacity(metadata.len() as usize);
        // The file may grow while it is read.
        file.take(octets_max).read_to_end(&mut bytes)?;
        Ok(match DropFile::decode(&bytes, self.submitter.intake.expanded_recipients_max) {
            Ok(drop_file) if drop_file.content.len() as u64 <= self.message_octets_max => ScannedFile::Message(
                drop_file,
                FileIdentity { uid: metadata.uid(), file: (metadata.dev(), metadata.ino()) },
            ),
            Ok(_) => ScannedFile::Invalid("its message is larger than limits.message".into()),
            Err(fault) => ScannedFile::Invalid(fault.to_string()),
        })
    }

    /// Removes a committed file. If it can neither be removed nor set aside it is remembered, so
    /// that it is not delivered again.
    fn remove(&self, name: &OsStr, file: DropFileId, state: &mut ScanState) -> bool {
        match std::fs::remove_file(self.folder.join(name)) {
            Ok(()) => true,
            Err(error) if error.kind() == ErrorKind::NotFound => true,
            Err(error) => {
                state.committed.insert(name.to_owned(), file);
                self.set_aside(name, &format!("it is in the spool, but cannot be removed: {error}"), state)
            }
        }
    }

    /// Moves the file to a name of our own, because its owner may have chosen a name to get in the
    /// way; the log shows both.
    fn set_aside(&self, name: &OsStr, why: &str, state: &mut ScanState) -> bool {
        let renamed = writer::random_name().and_then(|secret| {
            let target = format!("r-{secret}");
            std::fs::rename(self.folder.join(name), self.rejected.join(&target)).map(|()| target)
        });
        match renamed {
            Ok(target) => {
                self.log_limited(
                    state,
                    "a file from the drop folder was set aside",
                    name,
                    &format!("{why}; it is now {target}"),
                );
                true
            }
            Err(error) => {
                let why = format!("{why}; cannot set it aside: {error}");
                self.log_kept_once(state, "cannot set aside a file in the drop folder", name, &why);
                false
            }
        }
    }

    /// Logs a kept file once.
    fn log_kept_once(&self, state: &mut ScanState, what: &str, name: &OsStr, why: &str) {
        if state.reported.insert(name.to_owned()) {
            self.log_limited(state, what, name, why);
        }
    }

    fn log_limited(&self, state: &mut ScanState, what: &str, name: &OsStr, why: &str) {
        state.log_lines += 1;
        if state.log_lines <= SCAN_LOG_LINES_MAX {
            let name = name.to_string_lossy();
            self.log.event(LogLevel::Warning, what, &[("file", &name), ("why", &why)]);
        }
    }
}

/// Waits for a new file, the stop signal, or the next scan.
fn wait(events: Option<&OwnedFd>, notifier: &OwnedFd) {
    let limit = Timespec { tv_sec: SCAN_INTERVAL.as_secs() as i64, tv_nsec: 0 };
    let mut waited: Vec<PollFd<'_>> = vec![PollFd::from_borrowed_fd(notifier.as_fd(), PollFlags::IN)];
    waited.extend(events.map(|events| PollFd::from_borrowed_fd(events.as_fd(), PollFlags::IN)));
    // The folder is scanned even if poll is interrupted.
    let _ = poll(&mut waited, Some(&limit));
    let mut buffer = [0u8; 4096];
    // The events themselves do not matter: the whole folder is scanned.
    while events.is_some_and(|events| rustix::io::read(events, &mut buffer).is_ok_and(|count| count > 0)) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_files_do_not_block_new_ones() {
        let names: Vec<OsString> = (0..SCAN_FILES_MAX * 2 + 1).map(|number| format!("{number:05}").into()).collect();
        let mut window = ScanWindow::default();
        let mut look = || {
            names.iter().rev().for_each(|name| window.insert(name.clone()));
            window.take()
        };
        assert_eq!(look(), (names[..SCAN_FILES_MAX].to_vec(), true));
        assert_eq!(look(), (names[SCAN_FILES_MAX..SCAN_FILES_MAX * 2].to_vec(), true));
        let (third, _) = look();
        assert_eq!((&third[0], &third[1..]), (&names[SCAN_FILES_MAX * 2], &names[..SCAN_FILES_MAX - 1]));
    }
}
