//! The thread that moves mail from the [drop folder](crate::maildrop) to the spool. A file is
//! removed only after the spool has its message: a crash in between delivers a message twice, never
//! not at all.
//!
//! | in the folder | becomes |
//! |---|---|
//! | a message | committed to the spool, with a notice to its sender if recipients are unknown |
//! | a message, while the directory, the disk or the spool fail | stays and is retried |
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
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{Mode, OFlags, inotify};

use super::submission::{Desk, Kept, Unkept};
use crate::line::Level;
use crate::log::Log;
use crate::maildrop::{self, PARCEL_HEAD_OCTETS_MAX, Parcel, is_message_name, is_temporary_name};

/// The folder is scanned this often in any case: inotify can lose events, and kept files are
/// retried.
const ROUND_EVERY: Duration = Duration::from_secs(5);
/// Files per scan: this many new ones, kept ones, and non-regular ones each. They are counted
/// apart, so that files that cannot leave do not block the others.
const ROUND_FILES_MAX: usize = 1000;
/// Log lines per scan about files that are kept or set aside; the rest is counted.
const ROUND_LINES_MAX: usize = 10;
/// Kept files whose names are remembered, so that each is logged once; beyond it some are logged
/// again.
const TOLD_MAX: usize = 100_000;

/// The folder and what the thread needs.
pub struct DropFolder {
    /// The folder.
    pub folder: PathBuf,
    /// Where invalid files are moved; on the same file system.
    pub rejected: PathBuf,
    /// The limit on messages, in bytes.
    pub message_octets_max: u64,
    /// Submits the messages.
    pub desk: Desk,
    /// The log.
    pub log: Arc<Log>,
}

/// The running thread.
pub struct Emptier {
    stopping: Arc<AtomicBool>,
    bell: Arc<OwnedFd>,
    next: Arc<Mutex<Option<DropFolder>>>,
    thread: JoinHandle<()>,
}

/// What a file turned out to be.
enum Found {
    Message(Parcel, Left),
    /// Not a message, and why.
    Foreign(String),
    /// No longer there.
    Gone,
}

/// The file's owner and identity.
#[derive(Clone, Copy)]
struct Left {
    uid: u32,
    file: FileNumber,
}

/// Device and inode.
type FileNumber = (u64, u64);

/// The result of a scan, and what the next one needs.
#[derive(Debug, Default)]
struct Round {
    /// More files are waiting.
    is_full: bool,
    lines: usize,
    /// Files have left the folder.
    is_changed: bool,
    /// Files that were kept, in this scan or before.
    told: HashSet<OsString>,
    /// Messages that are in the spool, but whose files could not be removed: only the removal is
    /// retried.
    committed: HashMap<OsString, FileNumber>,
    fresh: Window,
    waiting: Window,
    others: Window,
    /// When kept files were last retried.
    retried_at: Option<Instant>,
}

/// The names to look at in one scan, in order. Each scan continues where the last one ended, and
/// starts over at the end.
#[derive(Debug, Default)]
struct Window {
    /// The last name looked at.
    after: OsString,
    /// With each name: whether it sorts before `after`.
    names: BTreeSet<(bool, OsString)>,
    is_full: bool,
}

impl Window {
    fn offer(&mut self, name: OsString) {
        self.names.insert((name <= self.after, name));
        if self.names.len() > ROUND_FILES_MAX {
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

impl Emptier {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// The system cannot create an eventfd or a thread.
    pub fn start(folder: DropFolder) -> io::Result<Emptier> {
        let stopping = Arc::new(AtomicBool::new(false));
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let next: Arc<Mutex<Option<DropFolder>>> = Arc::default();
        let (stop, rung, after) = (stopping.clone(), bell.clone(), next.clone());
        let work = move || folder.work(&stop, &rung, &after);
        let thread = thread::Builder::new().name("emptier".into()).spawn(work)?;
        Ok(Emptier { stopping, bell, next, thread })
    }

    /// Uses these settings from the next scan on; the folder stays the same.
    pub fn change(&self, folder: DropFolder) {
        // The lock guards one assignment.
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = Some(folder);
    }

    /// Ends the thread after its current message.
    pub fn stop(self) {
        self.stopping.store(true, Relaxed);
        // The write fails only if a notification is already pending.
        let _ = rustix::io::write(&*self.bell, &1u64.to_ne_bytes());
        // A panic has already been reported.
        let _ = self.thread.join();
    }
}

impl DropFolder {
    fn work(mut self, stopping: &AtomicBool, bell: &OwnedFd, next: &Mutex<Option<DropFolder>>) {
        let events = self.watch();
        if let Err(error) = &events {
            let text = "cannot watch the drop folder: scanning it every few seconds instead";
            self.log.event(Level::Warning, text, &[("error", error)]);
        }
        let events = events.ok();
        let mut round = Round::default();
        while !stopping.load(Relaxed) {
            if let Some(next) = next.lock().unwrap_or_else(PoisonError::into_inner).take() {
                self = next;
            }
            match self.round(stopping, &mut round) {
                Ok(()) if round.is_full => {}
                Ok(()) => wait(events.as_ref(), bell),
                Err(error) => {
                    self.log.event(Level::Error, "cannot read the drop folder", &[("error", &error)]);
                    wait(None, bell);
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
    fn round(&self, stopping: &AtomicBool, round: &mut Round) -> io::Result<()> {
        (round.is_full, round.lines, round.is_changed) = (false, 0, false);
        if round.told.len() > TOLD_MAX {
            round.told.clear();
        }
        self.list(round)?;
        let folder = File::open(&self.folder)?;
        let known = round.told.len();
        let (names, more) = round.fresh.take();
        let moved = self.all(&folder, &names, stopping, round);
        // If nothing changed, an immediate second scan would find the same.
        round.is_full = more && (moved > 0 || round.told.len() > known);
        if round.retried_at.is_none_or(|at| at.elapsed() >= ROUND_EVERY) {
            round.retried_at = Some(Instant::now());
            for (names, more) in [round.waiting.take(), round.others.take()] {
                if self.all(&folder, &names, stopping, round) > 0 && more {
                    (round.is_full, round.retried_at) = (true, None);
                }
            }
        }
        if round.is_changed
            && let Err(error) = folder.sync_all()
        {
            let text = "cannot sync the drop folder: after a crash, removed files may be delivered again";
            self.log.event(Level::Warning, text, &[("error", &error)]);
        }
        if round.lines > ROUND_LINES_MAX {
            let left_out = round.lines - ROUND_LINES_MAX;
            self.log.event(
                Level::Warning,
                "more files in the drop folder had errors; not logged one by one",
                &[("left_out", &left_out)],
            );
        }
        Ok(())
    }

    fn list(&self, round: &mut Round) -> io::Result<()> {
        for window in [&mut round.fresh, &mut round.waiting, &mut round.others] {
            (window.names, window.is_full) = Default::default();
        }
        for entry in std::fs::read_dir(&self.folder)? {
            let entry = entry?;
            let name = entry.file_name();
            if is_temporary_name(name.as_bytes()) {
                continue;
            }
            let window = match entry.file_type() {
                Ok(kind) if !kind.is_file() => &mut round.others,
                Ok(_) if round.told.contains(&name) => &mut round.waiting,
                Ok(_) => &mut round.fresh,
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            window.offer(name);
        }
        Ok(())
    }

    /// Returns how many files left the folder.
    fn all(&self, folder: &File, names: &[OsString], stopping: &AtomicBool, round: &mut Round) -> usize {
        let names = names.iter().take_while(|_| !stopping.load(Relaxed));
        let left = names.filter(|name| {
            let left = self.one(folder, name, stopping, round);
            round.is_changed |= left;
            if left {
                round.told.remove(*name);
                round.committed.remove(*name);
            }
            left
        });
        left.count()
    }

    /// Returns whether the file left the folder.
    fn one(&self, folder: &File, name: &OsStr, stopping: &AtomicBool, round: &mut Round) -> bool {
        if let Some(committed) = round.committed.get(name).copied() {
            match self.folder.join(name).symlink_metadata() {
                Ok(now) if (now.dev(), now.ino()) == committed => return self.remove(name, committed, round),
                Err(error) if error.kind() != ErrorKind::NotFound => return false,
                // Another file with the same name.
                _ => round.committed.remove(name),
            };
        }
        let found = match self.read(folder, name) {
            Ok(found) => found,
            Err(error) => {
                self.stays(round, "cannot read a file in the drop folder", name, &error.to_string());
                return false;
            }
        };
        let (parcel, left) = match found {
            Found::Message(parcel, left) => (parcel, left),
            Found::Foreign(why) => return self.set_aside(name, &why, round),
            Found::Gone => return false,
        };
        match self.desk.submit(parcel, left.uid, SystemTime::now().into(), stopping) {
            Ok(Kept) => self.remove(name, left.file, round),
            Err(_) if stopping.load(Relaxed) => false,
            Err(Unkept::Later(why)) => {
                self.stays(round, "a message stays in the drop folder", name, &why);
                false
            }
            Err(Unkept::Never(why)) => {
                // The message was accepted for delivery, so this is logged despite the limit.
                if !round.told.contains(name) {
                    let file = name.to_string_lossy();
                    let facts: [(&str, &dyn std::fmt::Display); 2] = [("file", &file), ("why", &why)];
                    self.log.event(Level::Error, "a message from the drop folder cannot be delivered", &facts);
                }
                self.set_aside(name, &why, round)
            }
        }
    }

    /// Reads the whole file.
    fn read(&self, folder: &File, name: &OsStr) -> io::Result<Found> {
        if !is_message_name(name.as_bytes()) {
            return Ok(Found::Foreign("its name is not a message name".into()));
        }
        // Without NONBLOCK, opening a FIFO would block the thread.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        let file = match rustix::fs::openat(folder, name, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(rustix::io::Errno::LOOP) => return Ok(Found::Foreign("it is a symbolic link".into())),
            Err(rustix::io::Errno::NXIO) => return Ok(Found::Foreign("it is a socket".into())),
            Err(rustix::io::Errno::ACCESS) => {
                return Ok(Found::Foreign("the server has no permission to read it".into()));
            }
            Err(error) if io::Error::from(error).kind() == ErrorKind::NotFound => return Ok(Found::Gone),
            Err(error) => return Err(error.into()),
        };
        let metadata = file.metadata()?;
        let octets_max = self.message_octets_max + PARCEL_HEAD_OCTETS_MAX;
        if !metadata.is_file() {
            return Ok(Found::Foreign("it is not a regular file".into()));
        }
        if metadata.nlink() != 1 {
            return Ok(Found::Foreign("it has other hard links, so its owner may not be the sender".into()));
        }
        if metadata.len() > octets_max {
            return Ok(Found::Foreign(format!("it is larger than limits.message: {} bytes", metadata.len())));
        }
        let mut bytes = Vec::with_capacity(metadata.len() as usize);
        // The file may grow while it is read.
        file.take(octets_max).read_to_end(&mut bytes)?;
        Ok(match Parcel::decode(&bytes, self.desk.desk.expanded_recipients_max) {
            Ok(parcel) if parcel.content.len() as u64 <= self.message_octets_max => {
                Found::Message(parcel, Left { uid: metadata.uid(), file: (metadata.dev(), metadata.ino()) })
            }
            Ok(_) => Found::Foreign("its message is larger than limits.message".into()),
            Err(fault) => Found::Foreign(fault.to_string()),
        })
    }

    /// Removes a committed file. If it can neither be removed nor set aside it is remembered, so
    /// that it is not delivered again.
    fn remove(&self, name: &OsStr, file: FileNumber, round: &mut Round) -> bool {
        match std::fs::remove_file(self.folder.join(name)) {
            Ok(()) => true,
            Err(error) if error.kind() == ErrorKind::NotFound => true,
            Err(error) => {
                round.committed.insert(name.to_owned(), file);
                self.set_aside(name, &format!("it is in the spool, but cannot be removed: {error}"), round)
            }
        }
    }

    /// Moves the file to a name of our own, because its owner may have chosen a name to get in the
    /// way; the log shows both.
    fn set_aside(&self, name: &OsStr, why: &str, round: &mut Round) -> bool {
        let renamed = maildrop::secret().and_then(|secret| {
            let target = format!("r-{secret}");
            std::fs::rename(self.folder.join(name), self.rejected.join(&target)).map(|()| target)
        });
        match renamed {
            Ok(target) => {
                self.tell(
                    round,
                    "a file from the drop folder was set aside",
                    name,
                    &format!("{why}; it is now {target}"),
                );
                true
            }
            Err(error) => {
                let why = format!("{why}; cannot set it aside: {error}");
                self.stays(round, "cannot set aside a file in the drop folder", name, &why);
                false
            }
        }
    }

    /// Logs a kept file once.
    fn stays(&self, round: &mut Round, what: &str, name: &OsStr, why: &str) {
        if round.told.insert(name.to_owned()) {
            self.tell(round, what, name, why);
        }
    }

    fn tell(&self, round: &mut Round, what: &str, name: &OsStr, why: &str) {
        round.lines += 1;
        if round.lines <= ROUND_LINES_MAX {
            let name = name.to_string_lossy();
            self.log.event(Level::Warning, what, &[("file", &name), ("why", &why)]);
        }
    }
}

/// Waits for a new file, the stop signal, or the next scan.
fn wait(events: Option<&OwnedFd>, bell: &OwnedFd) {
    let limit = Timespec { tv_sec: ROUND_EVERY.as_secs() as i64, tv_nsec: 0 };
    let mut waited: Vec<PollFd<'_>> = vec![PollFd::from_borrowed_fd(bell.as_fd(), PollFlags::IN)];
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
    fn what_stays_does_not_stand_before_the_rest() {
        let names: Vec<OsString> = (0..ROUND_FILES_MAX * 2 + 1).map(|number| format!("{number:05}").into()).collect();
        let mut window = Window::default();
        let mut look = || {
            names.iter().rev().for_each(|name| window.offer(name.clone()));
            window.take()
        };
        assert_eq!(look(), (names[..ROUND_FILES_MAX].to_vec(), true));
        assert_eq!(look(), (names[ROUND_FILES_MAX..ROUND_FILES_MAX * 2].to_vec(), true));
        let (third, _) = look();
        assert_eq!((&third[0], &third[1..]), (&names[ROUND_FILES_MAX * 2], &names[..ROUND_FILES_MAX - 1]));
    }
}
