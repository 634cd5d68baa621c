//! Durable delivery in batches, by [`Maildirs`]. The state table of the crate is its contract.
//!
//! A message costs five system calls (create, stat, write, close, rename) and its share of the one
//! sync of the batch; nearly all of its time is spent in the kernel. Paths are absolute: walking
//! them costs 6 % of the CPU, and a cache of directory handles would mostly miss at hundreds of
//! thousands of mailboxes. A rename takes 5 to 10 % less than link and unlink. Directories are
//! created only after the kernel reports that one is missing.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, RenameFlags, linkat, renameat_with};
use rustix::io::Errno;

use crate::copy::Copier;
use crate::folder::{self, Device, Failures, FileSystems};
use crate::name::{self, Names, Sizes};
use crate::quota::{self, Usage};
use crate::sighting;
use crate::{Config, DeliverError, Letter, Quota};

/// Delivers to any number of Maildirs on any number of file systems. For use by one thread; several
/// instances may run in parallel.
pub struct Maildirs<T> {
    names: Names,
    copier: Copier,
    file_systems: FileSystems,
    /// Linked in `new/`; the next sync makes the names durable.
    linked: Vec<(T, Device)>,
}

/// A message in `tmp/`; the next sync makes its bytes durable.
struct Written<T> {
    ticket: T,
    device: Device,
    folder: PathBuf,
    tmp: PathBuf,
    new: PathBuf,
    /// The size of the file, if a quota counts it.
    counted: Option<u64>,
}

type Results<T> = Vec<(T, Result<(), DeliverError>)>;

impl<T> Maildirs<T> {
    /// A writer with no message in progress.
    pub fn new(config: Config) -> Self {
        Maildirs {
            names: Names::new(&config.host),
            copier: Copier::new(config.line_ends),
            file_systems: FileSystems::default(),
            linked: Vec::new(),
        }
    }

    /// Whether all messages passed so far have been returned.
    pub fn is_idle(&self) -> bool {
        self.linked.is_empty()
    }

    /// Processes one batch: writes `letters` to `tmp/`, syncs each file system involved once, and
    /// links the messages into `new/`. Returns the results of the previous batch, whose names this
    /// sync has made durable, and of the messages of this batch that failed. Call it with an empty
    /// batch to finish a burst.
    pub fn turn(&mut self, letters: Vec<Letter<T>>) -> Vec<(T, Result<(), DeliverError>)> {
        let mut results = Vec::with_capacity(self.linked.len());
        let written = self.write_all(letters, &mut results);
        let failures = self.file_systems.sync();
        self.settle(&failures, &mut results);
        self.link_all(written, &failures, &mut results);
        self.file_systems.keep_only(|device| self.linked.iter().any(|(_, used)| *used == device));
        results
    }

    fn write_all(&mut self, letters: Vec<Letter<T>>, results: &mut Results<T>) -> Vec<Written<T>> {
        let mut sightings = sighting::find(&letters, &self.names);
        let mut written = Vec::with_capacity(letters.len());
        for (place, letter) in letters.into_iter().enumerate() {
            match sightings.remove(&place) {
                None => match self.write(letter) {
                    Ok(letter) => written.push(letter),
                    Err((ticket, error)) => results.push((ticket, Err(error))),
                },
                // The file is in its mailbox already, but its name is durable only after the sync
                // of this batch.
                Some(seen) => match seen.and_then(|file| self.file_systems.join(&file)) {
                    Ok(device) => self.linked.push((letter.ticket, device)),
                    Err(error) => results.push((letter.ticket, Err(error.into()))),
                },
            }
        }
        written
    }

    /// Writes one message to `tmp/`, unless its mailbox is full.
    fn write(&mut self, letter: Letter<T>) -> Result<Written<T>, (T, DeliverError)> {
        let base = self.names.base(letter.accepted_at, letter.id, letter.ordinal);
        let tmp = path_of(&letter.folder, "tmp", &base);
        match self.write_to(&tmp, &letter) {
            Ok((device, sizes)) => {
                let new = path_of(&letter.folder, "new", &name::full(&base, sizes));
                let counted = (letter.quota == Quota::Counted).then_some(sizes.file);
                Ok(Written { ticket: letter.ticket, device, folder: letter.folder, tmp, new, counted })
            }
            Err(error) => Err((letter.ticket, error)),
        }
    }

    fn write_to(&mut self, tmp: &Path, letter: &Letter<T>) -> Result<(Device, Sizes), DeliverError> {
        if letter.quota == Quota::Full {
            return Err(DeliverError::OverQuota);
        }
        let mut file = create(&letter.folder, tmp)?;
        let copied = self.file_systems.join(&file).map_err(DeliverError::from).and_then(|device| {
            let sizes = self.copier.copy(&letter.header, &letter.body, &mut file)?;
            Ok((device, sizes))
        });
        copied.inspect_err(|_| remove(tmp))
    }

    /// Reports the messages of the previous batch, as durable or as failed to sync.
    fn settle(&mut self, failures: &Failures, results: &mut Results<T>) {
        for (ticket, device) in self.linked.drain(..) {
            results.push((ticket, failures.check(device).map_err(DeliverError::Unsynced)));
        }
    }

    fn link_all(&mut self, written: Vec<Written<T>>, failures: &Failures, results: &mut Results<T>) {
        let mut added = HashMap::new();
        for letter in written {
            let synced = failures.check(letter.device).map_err(DeliverError::Unsynced);
            match synced.and_then(|()| link(&letter.folder, &letter.tmp, &letter.new).map_err(DeliverError::from)) {
                Ok(linked) => {
                    if let (Linked::Anew, Some(octets)) = (linked, letter.counted) {
                        let sum: &mut Usage = added.entry(letter.folder).or_default();
                        *sum = *sum + Usage::message(octets);
                    }
                    self.linked.push((letter.ticket, letter.device));
                }
                Err(error) => {
                    remove(&letter.tmp);
                    results.push((letter.ticket, Err(error)));
                }
            }
        }
        for (folder, usage) in added {
            // If this fails, the next recount finds the difference; the messages are delivered
            // anyway.
            let _ = quota::add(&folder, usage);
        }
    }
}

/// How a message came to be in `new/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Linked {
    Anew,
    /// An earlier attempt had delivered it; that counts as success.
    Before,
}

/// Creates a file in `tmp/`. A leftover of a crash with the same name is removed and never written
/// to, since on some file systems it may be the same file as one in `new/` (see
/// [`link_and_remove`]).
fn create(folder: &Path, tmp: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create_new(true).mode(0o600);
    match options.open(tmp) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => folder::make(folder)?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => std::fs::remove_file(tmp)?,
        created => return created,
    }
    options.open(tmp)
}

/// Moves a message from `tmp/` into `new/`, creating the directories if they are missing.
fn link(folder: &Path, tmp: &Path, new: &Path) -> io::Result<Linked> {
    match link_once(tmp, new) {
        Err(Errno::NOENT) => folder::make(folder).and_then(|()| Ok(link_once(tmp, new)?)),
        linked => Ok(linked?),
    }
}

fn link_once(tmp: &Path, new: &Path) -> Result<Linked, Errno> {
    match renameat_with(CWD, tmp, CWD, new, RenameFlags::NOREPLACE) {
        Err(Errno::EXIST) => {
            remove(tmp);
            Ok(Linked::Before)
        }
        // NFS and some other file systems cannot rename without replacing.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => link_and_remove(tmp, new),
        renamed => renamed.map(|()| Linked::Anew),
    }
}

/// The same in two steps. A crash between them leaves one file under two names.
fn link_and_remove(tmp: &Path, new: &Path) -> Result<Linked, Errno> {
    let linked = match linkat(CWD, tmp, CWD, new, AtFlags::empty()) {
        Ok(()) => Linked::Anew,
        Err(Errno::EXIST) => Linked::Before,
        Err(error) => return Err(error),
    };
    remove(tmp);
    Ok(linked)
}

/// A file left in `tmp/` does no harm: the next attempt removes it, and so does any cleanup of
/// `tmp/`.
fn remove(tmp: &Path) {
    let _ = std::fs::remove_file(tmp);
}

fn path_of(folder: &Path, part: &str, name: &str) -> PathBuf {
    let mut path = PathBuf::with_capacity(folder.as_os_str().len() + part.len() + name.len() + 2);
    path.push(folder);
    path.push(part);
    path.push(name);
    path
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mail::{Body, BodyFlags, QueueId, SpoolId, Timestamp};

    use super::*;
    use crate::LineEnds;

    fn maildirs() -> Maildirs<u64> {
        Maildirs::new(Config { host: "mx".into(), line_ends: LineEnds::Crlf })
    }

    fn letter(folder: &Path, number: u64) -> Letter<u64> {
        let digest = crc32c::crc32c(b"text\r\n");
        Letter {
            ticket: number,
            folder: folder.into(),
            id: QueueId::new(SpoolId::new(1), 0, number),
            ordinal: 0,
            accepted_at: Timestamp(1_763_000_000_000),
            header: Vec::new(),
            body: Body::new(Arc::new(b"text\r\n".to_vec()), 0, 6, digest, BodyFlags::default()),
            recovered: false,
            quota: Quota::None,
        }
    }

    fn count(part: PathBuf) -> usize {
        part.read_dir().unwrap().count()
    }

    #[test]
    fn after_a_failed_sync_all_that_waited_for_it_is_put_off_and_the_next_turn_starts_afresh() {
        let root = tempfile::tempdir().unwrap();
        let mut maildirs = maildirs();
        assert!(maildirs.turn(vec![letter(root.path(), 1)]).is_empty());
        maildirs.file_systems.break_handles();
        let results = maildirs.turn(vec![letter(root.path(), 2)]);
        assert_eq!(results.iter().map(|(ticket, _)| *ticket).collect::<Vec<_>>(), [1, 2]);
        assert!(results.iter().all(|(_, result)| matches!(result, Err(DeliverError::Unsynced(_)))), "{results:?}");
        assert!(maildirs.is_idle());
        assert_eq!((count(root.path().join("tmp")), count(root.path().join("new"))), (0, 1));

        assert!(maildirs.turn(vec![letter(root.path(), 1), letter(root.path(), 2)]).is_empty());
        let results = maildirs.turn(Vec::new());
        assert_eq!(results.len(), 2);
        assert!(results.iter().all(|(_, result)| result.is_ok()), "{results:?}");
        assert_eq!((count(root.path().join("tmp")), count(root.path().join("new"))), (0, 2));
    }

    #[test]
    fn a_file_system_that_nothing_waits_for_is_let_go() {
        let root = tempfile::tempdir().unwrap();
        let mut maildirs = maildirs();
        maildirs.turn(vec![letter(root.path(), 1)]);
        assert_eq!(maildirs.file_systems.len(), 1);
        maildirs.turn(Vec::new());
        assert_eq!(maildirs.file_systems.len(), 0);
    }

    #[test]
    fn where_rename_would_replace_a_letter_is_linked_and_its_first_name_removed() {
        let root = tempfile::tempdir().unwrap();
        let (tmp, new) = (root.path().join("tmp"), root.path().join("new"));
        for text in ["first", "second"] {
            std::fs::write(&tmp, text).unwrap();
            link_and_remove(&tmp, &new).unwrap();
            assert!(!tmp.exists());
            assert_eq!(std::fs::read_to_string(&new).unwrap(), "first");
        }
    }

    #[test]
    fn a_remain_in_tmp_that_is_also_in_new_is_not_written_through() {
        let root = tempfile::tempdir().unwrap();
        folder::make(root.path()).unwrap();
        let (tmp, new) = (root.path().join("tmp/x"), root.path().join("new/x"));
        std::fs::write(&new, "delivered").unwrap();
        std::fs::hard_link(&new, &tmp).unwrap();
        assert_eq!(create(root.path(), &tmp).unwrap().metadata().unwrap().len(), 0);
        assert_eq!(std::fs::read_to_string(&new).unwrap(), "delivered");
    }
}
