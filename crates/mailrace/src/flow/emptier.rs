//! The emptier: the thread that brings what local programs left in the [drop](crate::maildrop) to the spool. A file is
//! removed after the spool has its message, and not before: a crash in between makes of one message two, never none.
//!
//! | in the folder | becomes |
//! |---|---|
//! | a message | a message of the spool, and a notice to its sender of recipients whom nobody is behind |
//! | a message, while the directory, the disk or the spool fail | stays, and is looked at again |
//! | a message whose recipients do not get it, while the sender cannot be told | set aside, and told of |
//! | one that cannot be understood; whatever else has another name | set aside, and told of |
//! | one under way | stays |
//!
//! Anybody may write in the folder. So nothing there is followed, only regular files are opened, none that has another
//! name elsewhere is believed, all of a file is read before anything of it is used, and its owner alone says whose it is.

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

/// The folder is looked at so often in any case: events can be lost, and what had to wait is tried again.
const ROUND_EVERY: Duration = Duration::from_secs(5);
/// New files of one round, as many of those that had to stay, and as many that are no regular files: more are left to the
/// next. They are counted apart, since what cannot leave must not stand before the rest.
const ROUND_FILES_MAX: usize = 1000;
/// What was set aside or had to stay is told of so often in a round; the rest is counted.
const ROUND_LINES_MAX: usize = 10;
/// Names of what had to stay, each of which is told once; with more of them some are told again.
const TOLD_MAX: usize = 100_000;

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
    Message(Parcel, Left),
    /// It is no message, and why.
    Foreign(String),
    /// It is gone.
    Gone,
}

/// What the system knows of a message.
#[derive(Clone, Copy)]
struct Left {
    uid: u32,
    file: FileNumber,
}

/// The device, and the file on it.
type FileNumber = (u64, u64);

/// What a round came to, and what the next has to know of it.
#[derive(Debug, Default)]
struct Round {
    /// There are more than were looked at.
    is_full: bool,
    lines: usize,
    /// Files left the folder.
    is_changed: bool,
    /// What had to stay, in this round or before.
    told: HashSet<OsString>,
    /// Messages that are in the spool, but still here: only their removal is tried again.
    committed: HashMap<OsString, FileNumber>,
    fresh: Window,
    waiting: Window,
    others: Window,
    /// When those were looked at that may have to stay.
    retried_at: Option<Instant>,
}

/// As many names of a folder as are looked at in one round, in the order of names. It goes on where it ended, and begins
/// again at the end.
#[derive(Debug, Default)]
struct Window {
    /// The last that was looked at.
    after: OsString,
    /// With whether they come only after the end.
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

    /// The names, and whether there were more. Then it is empty.
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

    /// Looks at the folder once: at what is new, and from time to time at what had to stay.
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
        // Where nothing changed, another look at once would be in vain.
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
            let text = "the drop folder cannot be synced: what left it may come again after a crash";
            self.log.event(Level::Warning, text, &[("error", &error)]);
        }
        if round.lines > ROUND_LINES_MAX {
            let left_out = round.lines - ROUND_LINES_MAX;
            self.log.event(Level::Warning, "there is more to tell of the drop", &[("left_out", &left_out)]);
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

    /// How many left the folder.
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

    /// Whether it left the folder.
    fn one(&self, folder: &File, name: &OsStr, stopping: &AtomicBool, round: &mut Round) -> bool {
        if let Some(committed) = round.committed.get(name).copied() {
            match self.folder.join(name).symlink_metadata() {
                Ok(now) if (now.dev(), now.ino()) == committed => return self.remove(name, committed, round),
                Err(error) if error.kind() != ErrorKind::NotFound => return false,
                // Another file by the same name.
                _ => round.committed.remove(name),
            };
        }
        let found = match self.read(folder, name) {
            Ok(found) => found,
            Err(error) => {
                self.stays(round, "a file of the drop cannot be read", name, &error.to_string());
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
                self.stays(round, "a message stays in the drop", name, &why);
                false
            }
            Err(Unkept::Never(why)) => {
                // A message that was promised to be kept: told of however much there is to tell.
                if !round.told.contains(name) {
                    let file = name.to_string_lossy();
                    let facts: [(&str, &dyn std::fmt::Display); 2] = [("file", &file), ("why", &why)];
                    self.log.event(Level::Error, "a message of the drop is not delivered", &facts);
                }
                self.set_aside(name, &why, round)
            }
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
        Ok(match Parcel::decode(&bytes, self.desk.desk.expanded_recipients_max) {
            Ok(parcel) if parcel.content.len() as u64 <= self.message_octets_max => {
                Found::Message(parcel, Left { uid: metadata.uid(), file: (metadata.dev(), metadata.ino()) })
            }
            Ok(_) => Found::Foreign("its message is larger than one may be".into()),
            Err(fault) => Found::Foreign(fault.to_string()),
        })
    }

    /// The spool has it. Where it can neither be removed nor set aside it is remembered, lest it is delivered again.
    fn remove(&self, name: &OsStr, file: FileNumber, round: &mut Round) -> bool {
        match std::fs::remove_file(self.folder.join(name)) {
            Ok(()) => true,
            Err(error) if error.kind() == ErrorKind::NotFound => true,
            Err(error) => {
                round.committed.insert(name.to_owned(), file);
                self.set_aside(name, &format!("it was delivered, but cannot be removed: {error}"), round)
            }
        }
    }

    /// Under a name of our own, since whoever left it has chosen his to be in the way; the log has both.
    fn set_aside(&self, name: &OsStr, why: &str, round: &mut Round) -> bool {
        let renamed = maildrop::secret().and_then(|secret| {
            let target = format!("r-{secret}");
            std::fs::rename(self.folder.join(name), self.rejected.join(&target)).map(|()| target)
        });
        match renamed {
            Ok(target) => {
                self.tell(round, "a file of the drop was set aside", name, &format!("{why}; it is now {target}"));
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
