//! Copies in a tree of Maildirs. One thread walks the tree, several read and examine, and the caller holds what they
//! found against the ledger. A Maildir is a folder with `new` and `cur` in it; there may be others below it. Whatever is
//! in `tmp`, and any other file, is no mail. What vanishes meanwhile was moved by a reader, or deleted; what cannot be
//! read is a fault.

use std::fs::{self, DirEntry, FileType};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SendError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use super::{Found, Holding, Place};
use crate::{Fault, examine};

/// Threads that read. More than processors, for they wait for the disk.
const READERS: usize = 4;
/// Maildirs that were found and not yet read.
const AHEAD_MAX: usize = 1024;

/// One file that is mail.
struct Letter {
    /// None: it bears no stamp.
    found: Option<Found>,
    path: PathBuf,
}

/// What one Maildir has, or why that cannot be told.
type Content = Result<Vec<Letter>, Fault>;

/// Finds every copy in the tree.
pub(super) fn look(root: &Path, holding: &mut Holding<'_>) -> Result<(), Fault> {
    let (letters, found) = channel();
    thread::scope(|scope| {
        let (folders, to_read) = sync_channel(AHEAD_MAX);
        let to_read = Arc::new(Mutex::new(to_read));
        for _ in 0..READERS {
            let (to_read, letters) = (to_read.clone(), letters.clone());
            scope.spawn(move || read_folders(&to_read, &letters));
        }
        // When the readers are gone nobody reads any more, and the walk ends.
        drop(to_read);
        scope.spawn(move || walk_all(root, &folders, &letters));
        hold(found, holding)
    })
}

/// After a fault nobody listens any more, and the threads end.
fn hold(found: Receiver<Content>, holding: &mut Holding<'_>) -> Result<(), Fault> {
    for content in found {
        for letter in content? {
            match letter.found {
                Some(found) => holding.find(found, &letter.path.to_string_lossy()),
                None => holding.find_foreign(),
            }
        }
    }
    Ok(())
}

fn walk_all(root: &Path, folders: &SyncSender<PathBuf>, letters: &Sender<Content>) {
    let walked = fs::metadata(root).and_then(|_| walk(root.to_owned(), folders));
    if let Err(error) = walked {
        // Nobody listens after another fault.
        let _ = letters.send(Err(fault(root)(error)));
    }
}

/// Goes down the tree, depth first. Links are not followed: they would lead round in circles.
fn walk(root: PathBuf, folders: &SyncSender<PathBuf>) -> io::Result<()> {
    let mut to_walk = vec![root];
    while let Some(folder) = to_walk.pop() {
        let below = unless_gone(folders_in(&folder))?.unwrap_or_default();
        let has = |name: &str| below.iter().any(|path| path.file_name().is_some_and(|file| file == name));
        let is_maildir = has("new") && has("cur");
        let is_part = |path: &PathBuf| is_maildir && ["new", "cur", "tmp"].iter().any(|part| path.ends_with(part));
        to_walk.extend(below.into_iter().filter(|path| !is_part(path)));
        if is_maildir && let Err(SendError(_)) = folders.send(folder) {
            return Ok(());
        }
    }
    Ok(())
}

fn folders_in(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let is_folder = |entry: &DirEntry| entry.file_type().as_ref().is_ok_and(FileType::is_dir);
    let entries = fs::read_dir(folder)?.filter(|entry| entry.as_ref().map_or(true, is_folder));
    entries.map(|entry| entry.map(|entry| entry.path())).collect()
}

fn read_folders(to_read: &Mutex<Receiver<PathBuf>>, letters: &Sender<Content>) {
    let next = || to_read.lock().unwrap_or_else(PoisonError::into_inner).recv().ok();
    let mut buffer = Vec::new();
    while let Some(folder) = next() {
        let content = read_folder(&folder, &mut buffer).map_err(fault(&folder));
        if letters.send(content).is_err() {
            return;
        }
    }
}

fn read_folder(folder: &Path, buffer: &mut Vec<u8>) -> io::Result<Vec<Letter>> {
    let place = Place::mailbox(folder);
    let mut letters = Vec::new();
    for entry in mailbox::list(folder)? {
        let Some(mut file) = unless_gone(mailbox::open(folder, &entry))? else { continue };
        buffer.clear();
        file.read_to_end(buffer)?;
        let found = examine(buffer).map(|seen| Found::new(seen, place));
        let part = match entry.place {
            mailbox::Place::New => "new",
            mailbox::Place::Cur => "cur",
        };
        letters.push(Letter { found, path: folder.join(part).join(&entry.name) });
    }
    Ok(letters)
}

fn unless_gone<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

fn fault(folder: &Path) -> impl FnOnce(io::Error) -> Fault {
    Fault::system(format!("looking for mail in {}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::{Copies, Held, Patience, held_in_time};
    use crate::{Acknowledged, RunId, Stamp, Verdict};

    fn message(sequence: u64, body: &str) -> String {
        let mut text = Vec::new();
        Stamp::new(RunId(1), sequence, [b"Hello.\r\n".as_slice()]).write(&mut text);
        String::from_utf8(text).unwrap() + "\r\n" + body
    }

    fn deliver(root: &Path, place: &str, text: &str) {
        let path = root.join(place);
        let parts = path.parent().unwrap().parent().unwrap();
        ["new", "cur", "tmp"].iter().for_each(|part| fs::create_dir_all(parts.join(part)).unwrap());
        fs::write(path, text).unwrap();
    }

    fn held(root: &Path, ledger: &str) -> Held {
        let acknowledged = Acknowledged::of(ledger.to_owned()).unwrap();
        held_in_time(&acknowledged, &Copies::Maildirs(root.to_owned()), Default::default()).unwrap()
    }

    #[test]
    fn a_tree_of_maildirs_is_held_against_the_ledger() {
        let root = tempfile::tempdir().unwrap();
        deliver(root.path(), "x.test/a/new/1", &message(0, "Hello.\r\n"));
        deliver(root.path(), "x.test/a/cur/2:2,S", &message(1, "Hello.\n").replace("\r\n", "\n"));
        deliver(root.path(), "x.test/a/.Junk/new/3", &message(2, "Hello.\r\n"));
        deliver(root.path(), "deep/er/b/new/4", &message(0, "Hello.\r\n"));
        deliver(root.path(), "deep/er/b/new/5", "Subject: foreign\n\n");
        deliver(root.path(), "deep/er/b/tmp/6", &message(3, "Hello.\r\n"));
        let ledger = "run 1\n0\ta@x.test\tb@x.test\n1\ta@x.test\n2\ta@x.test\n3\tb@x.test\n";
        let found = held(root.path(), ledger);
        assert_eq!((found.copies, found.found, found.lost, found.foreign), (4, 4, 1, 1));
        assert_eq!(found.examples.lost[0].sequence, 3);
    }

    #[test]
    fn the_same_mailbox_twice_is_doubled_and_a_changed_file_is_damaged() {
        let root = tempfile::tempdir().unwrap();
        deliver(root.path(), "a/new/1", &message(0, "Hello.\r\n"));
        deliver(root.path(), "a/new/2", &message(0, "Hello.\r\n"));
        deliver(root.path(), "a/new/3", &message(1, "Hallo.\r\n"));
        let found = held(root.path(), "run 1\n0\ta@x.test\tb@x.test\n1\ta@x.test\n");
        assert_eq!((found.found, found.lost, found.doubled, found.damaged), (2, 1, 1, 1));
        assert!(found.examples.damaged[0].at.ends_with("a/new/3"), "{}", found.examples.damaged[0]);
        assert_eq!(found.verdict(), Verdict::Bad);
    }

    #[test]
    fn mail_that_is_on_its_way_is_waited_for() {
        let root = tempfile::tempdir().unwrap();
        let acknowledged = Acknowledged::of("run 1\n0\ta@x.test\n".into()).unwrap();
        let copies = Copies::Maildirs(root.path().to_owned());
        let patience = Patience { wait: std::time::Duration::from_secs(60), ..Patience::default() };
        thread::scope(|scope| {
            let holding = scope.spawn(|| held_in_time(&acknowledged, &copies, patience));
            deliver(root.path(), "a/new/1", &message(0, "Hello.\r\n"));
            assert_eq!(holding.join().unwrap().unwrap().verdict(), Verdict::Good);
        });
    }

    #[test]
    fn a_tree_that_is_not_there_is_a_fault() {
        let root = tempfile::tempdir().unwrap();
        let copies = Copies::Maildirs(root.path().join("nobody"));
        let fault = held_in_time(&Acknowledged::default(), &copies, Default::default()).unwrap_err();
        assert!(matches!(fault, Fault::System { .. }));
    }
}
