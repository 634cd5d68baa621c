//! The emptier: the thread that brings what local programs left in the [drop](crate::maildrop) to the spool. A file is
//! removed after the spool has its message, and not before: a crash in between makes of one message two, never none.
//!
//! | in the folder | becomes |
//! |---|---|
//! | a message | a message of the spool, and a notice to its sender of recipients whom nobody is behind |
//! | a message, while the directory, the disk or the spool fail | stays, and is looked at again |
//! | one that cannot be understood; whatever else has another name | set aside, and told of |
//! | one under way | stays |
//!
//! Anybody may write in the folder. So nothing there is followed, only regular files are opened, none that has another
//! name elsewhere is believed, all of a file is read before anything of it is used, and its owner alone says whose it is.

use std::collections::HashSet;
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
use std::time::{Duration, SystemTime};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{Mode, OFlags, inotify};

use super::submission::{Desk, Kept, Unkept};
use crate::line::Level;
use crate::log::Log;
use crate::maildrop::{PARCEL_HEAD_OCTETS_MAX, Parcel, is_message_name, is_temporary_name};

/// The folder is looked at so often in any case: events can be lost, and what had to wait is tried again.
const ROUND_EVERY: Duration = Duration::from_secs(5);
/// Regular files of one round, and as many others: more are left to the next, which follows at once. They are counted
/// apart, since those that are no files cannot all be moved away, and must not stand before the rest.
const ROUND_FILES_MAX: usize = 1000;
/// What was set aside or had to stay is told of so often in a round; the rest is counted.
const ROUND_LINES_MAX: usize = 10;
/// Names of what had to stay, each of which is told once; with more of them some are told again.
const TOLD_MAX: usize = 10_000;

/// What the emptier works with.
pub struct DropFolder {
    /// The folder.
    pub folder: PathBuf,
    /// Where it puts what is no message; on the same file system.
    pub rejected: PathBuf,
    /// The limit on messages, in bytes.
    pub message_octets_max: u64,
    /// To whom messages are brought.
    pub desk: Desk,
    /// What it tells goes here.
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
    Message(Parcel, u32),
    /// It is no message, and why.
    Foreign(String),
    /// It is gone.
    Gone,
}

/// What a round came to.
#[derive(Debug, Default)]
struct Round {
    /// There are more than were looked at.
    is_full: bool,
    lines: usize,
    /// What had to stay, in this round or before.
    told: HashSet<OsString>,
}

impl Emptier {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// The system has no room for it.
    pub fn start(folder: DropFolder) -> io::Result<Emptier> {
        let stopping = Arc::new(AtomicBool::new(false));
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let next: Arc<Mutex<Option<DropFolder>>> = Arc::default();
        let (stop, rung, after) = (stopping.clone(), bell.clone(), next.clone());
        let work = move || folder.work(&stop, &rung, &after);
        let thread = thread::Builder::new().name("emptier".into()).spawn(work)?;
        Ok(Emptier { stopping, bell, next, thread })
    }

    /// From the next round on it works with this; the folder is the same.
    pub fn change(&self, folder: DropFolder) {
        // The lock guards one assignment.
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = Some(folder);
    }

    /// Lets it end after the message that it is about.
    pub fn stop(self) {
        self.stopping.store(true, Relaxed);
        // The bell is full only if it rang before.
        let _ = rustix::io::write(&*self.bell, &1u64.to_ne_bytes());
        // A thread that panicked has said so already.
        let _ = self.thread.join();
    }
}

impl DropFolder {
    fn work(mut self, stopping: &AtomicBool, bell: &OwnedFd, next: &Mutex<Option<DropFolder>>) {
        let events = self.watch();
        if let Err(error) = &events {
            let text = "the drop folder is looked at every few seconds: it cannot be watched";
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
                    self.log.event(Level::Error, "the drop folder cannot be read", &[("error", &error)]);
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

    /// Looks at the folder once; the oldest of those that it saw come first.
    fn round(&self, stopping: &AtomicBool, round: &mut Round) -> io::Result<()> {
        (round.is_full, round.lines) = (false, 0);
        if round.told.len() > TOLD_MAX {
            round.told.clear();
        }
        let (mut files, mut others) = (Vec::new(), Vec::new());
        for entry in std::fs::read_dir(&self.folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let names = if entry.file_type()?.is_file() { &mut files } else { &mut others };
            if is_temporary_name(name.as_bytes()) {
                continue;
            }
            if names.len() == ROUND_FILES_MAX {
                round.is_full = true;
                continue;
            }
            names.push(name);
        }
        files.sort();
        let folder = File::open(&self.folder)?;
        let mut moved = 0;
        for name in files.iter().chain(&others) {
            if stopping.load(Relaxed) {
                break;
            }
            moved += usize::from(self.one(&folder, name, round));
        }
        // Where all of them had to stay, another look at once would be in vain.
        round.is_full &= moved > 0;
        if round.lines > ROUND_LINES_MAX {
            let left_out = round.lines - ROUND_LINES_MAX;
            self.log.event(Level::Warning, "there is more to tell of the drop", &[("left_out", &left_out)]);
        }
        Ok(())
    }

    /// Whether it left the folder.
    fn one(&self, folder: &File, name: &OsStr, round: &mut Round) -> bool {
        let found = match self.read(folder, name) {
            Ok(found) => found,
            Err(error) => {
                self.stays(round, "a file of the drop cannot be read", name, &error.to_string());
                return false;
            }
        };
        let (parcel, uid) = match found {
            Found::Message(parcel, uid) => (parcel, uid),
            Found::Foreign(why) => return self.set_aside(name, &why, round),
            Found::Gone => return false,
        };
        match self.desk.submit(parcel, uid, SystemTime::now().into()) {
            Ok(Kept) => self.remove(name, round),
            Err(Unkept::Later(why)) => {
                self.stays(round, "a message stays in the drop", name, &why);
                false
            }
            Err(Unkept::Never(why)) => self.set_aside(name, &why, round),
        }
    }

    /// Reads all of a file, if it is one.
    fn read(&self, folder: &File, name: &OsStr) -> io::Result<Found> {
        if !is_message_name(name.as_bytes()) {
            return Ok(Found::Foreign("its name is not that of a message".into()));
        }
        // Without NONBLOCK a FIFO would hold the thread up.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        let file = match rustix::fs::openat(folder, name, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(rustix::io::Errno::LOOP) => return Ok(Found::Foreign("it is a symbolic link".into())),
            Err(rustix::io::Errno::NXIO) => return Ok(Found::Foreign("it is a socket".into())),
            Err(rustix::io::Errno::ACCESS) => return Ok(Found::Foreign("the server may not read it".into())),
            Err(error) if io::Error::from(error).kind() == ErrorKind::NotFound => return Ok(Found::Gone),
            Err(error) => return Err(error.into()),
        };
        let metadata = file.metadata()?;
        let octets_max = self.message_octets_max + PARCEL_HEAD_OCTETS_MAX;
        if !metadata.is_file() {
            return Ok(Found::Foreign("it is no regular file".into()));
        }
        if metadata.nlink() != 1 {
            return Ok(Found::Foreign("it has another name elsewhere, so its owner need not be who left it".into()));
        }
        if metadata.len() > octets_max {
            return Ok(Found::Foreign(format!("it is larger than a message may be: {} bytes", metadata.len())));
        }
        let mut bytes = Vec::with_capacity(metadata.len() as usize);
        // It may grow while it is read.
        file.take(octets_max).read_to_end(&mut bytes)?;
        Ok(match Parcel::decode(&bytes) {
            Ok(parcel) if parcel.content.len() as u64 <= self.message_octets_max => {
                Found::Message(parcel, metadata.uid())
            }
            Ok(_) => Found::Foreign("its message is larger than one may be".into()),
            Err(fault) => Found::Foreign(fault.to_string()),
        })
    }

    /// The spool has it. Where it cannot be removed it would come again and again: then it is set aside.
    fn remove(&self, name: &OsStr, round: &mut Round) -> bool {
        match std::fs::remove_file(self.folder.join(name)) {
            Ok(()) => true,
            Err(error) if error.kind() == ErrorKind::NotFound => true,
            Err(error) => self.set_aside(name, &format!("it was delivered, but cannot be removed: {error}"), round),
        }
    }

    /// Under its name and a number, so that nothing that was set aside before is replaced.
    fn set_aside(&self, name: &OsStr, why: &str, round: &mut Round) -> bool {
        let mut target = self.rejected.join(name);
        for number in 1.. {
            if target.symlink_metadata().is_err() {
                break;
            }
            let mut numbered = name.to_owned();
            numbered.push(format!(".{number}"));
            target = self.rejected.join(numbered);
        }
        match std::fs::rename(self.folder.join(name), &target) {
            Ok(()) => {
                self.tell(round, "a file of the drop was set aside", name, why);
                true
            }
            Err(error) => {
                let why = format!("{why}; setting it aside: {error}");
                self.stays(round, "a file of the drop cannot be set aside", name, &why);
                false
            }
        }
    }

    /// Told once for each.
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

/// Until there may be something to do: a new file, the end, or that it is time to look.
fn wait(events: Option<&OwnedFd>, bell: &OwnedFd) {
    let limit = Timespec { tv_sec: ROUND_EVERY.as_secs() as i64, tv_nsec: 0 };
    let mut waited: Vec<PollFd<'_>> = vec![PollFd::from_borrowed_fd(bell.as_fd(), PollFlags::IN)];
    waited.extend(events.map(|events| PollFd::from_borrowed_fd(events.as_fd(), PollFlags::IN)));
    // Interrupted or not, the folder is looked at.
    let _ = poll(&mut waited, Some(&limit));
    let mut buffer = [0u8; 4096];
    // What happened does not matter: all of the folder is looked at.
    while events.is_some_and(|events| rustix::io::read(events, &mut buffer).is_ok_and(|count| count > 0)) {}
}
