//! Copies in a tree of Maildirs. One thread walks the tree, several read and examine files, and the
//! caller compares. A Maildir is a folder with `new` and `cur`; others may be below it. Files in
//! `tmp` or elsewhere, hidden files and special files are not mail. Each file is a copy; several
//! names of one file (hard links, or a reader that is moving it) are one copy. A file that
//! disappears was moved or deleted by a reader. A file that cannot be read, or is larger than
//! [`MESSAGE_OCTETS_MAX`], is a fault.

use std::collections::HashSet;
use std::fs::{self, DirEntry, File, FileType};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SendError, SyncSender, sync_channel};
use std::thread;

use parking_lot::Mutex;

use super::{Comparer, FoundCopy};
use crate::{BenchError, StampCheckResult, check_stamp};

/// Reading threads. There are more than processors, because they wait for the disk.
const READERS: usize = 4;
/// Maildirs that were found and not yet read.
const FOLDERS_QUEUED_MAX: usize = 1024;
/// Maildirs that were read and not yet compared.
const CONTENTS_QUEUED_MAX: usize = 64;
/// Bytes of a message. Each reader has one message in memory.
const MESSAGE_OCTETS_MAX: u64 = 256 << 20;
/// How often `cur` is read again because files were renamed before they could be opened.
const CUR_SCANS_MAX: usize = 20;

/// A file with mail.
struct MailFile {
    /// None if it has no stamp.
    seen: Option<StampCheckResult>,
    path: PathBuf,
}

/// A Maildir and its mail.
struct MaildirContent {
    folder: PathBuf,
    files: Vec<MailFile>,
}

/// Finds every copy in the tree.
pub(super) fn scan(root: &Path, comparer: &mut Comparer<'_>) -> Result<(), BenchError> {
    let (contents, found) = sync_channel(CONTENTS_QUEUED_MAX);
    thread::scope(|scope| {
        let (folders, to_read) = sync_channel(FOLDERS_QUEUED_MAX);
        let to_read = Arc::new(Mutex::new(to_read));
        for _ in 0..READERS {
            let (to_read, contents) = (to_read.clone(), contents.clone());
            scope.spawn(move || read_folders(&to_read, &contents));
        }
        // Without readers the channel is closed and the walk ends.
        drop(to_read);
        scope.spawn(move || walk_and_report(root, &folders, &contents));
        add_copies(found, comparer)
    })
}

/// Compares what the readers send. After a fault the channels close and the threads end.
fn add_copies(
    found: Receiver<Result<MaildirContent, BenchError>>,
    comparer: &mut Comparer<'_>,
) -> Result<(), BenchError> {
    for content in found {
        let MaildirContent { folder, files: letters } = content?;
        let place = comparer.place_of_mailbox(&folder, &possible_addresses(&folder));
        for file in letters {
            match file.seen {
                Some(seen) => comparer.add(FoundCopy::new(seen, place), &file.path.to_string_lossy()),
                None => comparer.add_foreign(),
            }
        }
    }
    Ok(())
}

/// The possible addresses of its owner: `.../user7@bench.test`, or `.../bench.test/user7`.
fn possible_addresses(folder: &Path) -> Vec<String> {
    let name = |folder: &Path| Some(folder.file_name()?.to_str()?.to_owned());
    let last = name(folder);
    let above = folder.parent().and_then(name);
    let both = last.as_ref().zip(above).map(|(user, domain)| format!("{user}@{domain}"));
    last.into_iter().chain(both).collect()
}

fn walk_and_report(
    root: &Path,
    folders: &SyncSender<PathBuf>,
    contents: &SyncSender<Result<MaildirContent, BenchError>>,
) {
    let walked = fs::metadata(root).and_then(|_| walk(root.to_owned(), folders));
    if let Err(error) = walked {
        // After another fault the receiver is gone.
        let _ = contents.send(Err(fault(root)(error)));
    }
}

/// Walks the tree depth first. Symbolic links are not followed, since they could form a loop.
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

fn read_folders(to_read: &Mutex<Receiver<PathBuf>>, contents: &SyncSender<Result<MaildirContent, BenchError>>) {
    let next = || to_read.lock().recv().ok();
    let mut buffer = Vec::new();
    while let Some(folder) = next() {
        let mail_files = read_folder(&folder, &mut buffer).map_err(fault(&folder));
        if contents.send(mail_files.map(|letters| MaildirContent { folder, files: letters })).is_err() {
            return;
        }
    }
}

/// Reads `new` before `cur`, so that a file that a reader moves meanwhile is seen in at least one
/// of them. A file that is renamed in `cur` is found by its new name.
fn read_folder(folder: &Path, buffer: &mut Vec<u8>) -> io::Result<Vec<MailFile>> {
    let mut files = HashSet::new();
    let mut mail_files = Vec::new();
    let mut look = |part: &str| scan_part(&folder.join(part), buffer, &mut files, &mut mail_files);
    look("new")?;
    for _ in 0..CUR_SCANS_MAX {
        if !look("cur")? {
            break;
        }
    }
    Ok(mail_files)
}

/// Reads files that were not read yet. Returns whether a file disappeared before it was opened.
fn scan_part(
    part: &Path,
    buffer: &mut Vec<u8>,
    files: &mut HashSet<(u64, u64)>,
    mail_files: &mut Vec<MailFile>,
) -> io::Result<bool> {
    let mut was_gone = false;
    for entry in unless_gone(fs::read_dir(part))?.into_iter().flatten() {
        let entry = entry?;
        if entry.file_name().as_bytes().starts_with(b".") || !entry.file_type()?.is_file() {
            continue;
        }
        let Some(file) = unless_gone(File::open(entry.path()))? else {
            was_gone = true;
            continue;
        };
        let metadata = file.metadata()?;
        if files.insert((metadata.dev(), metadata.ino())) {
            read_message(file, buffer)?;
            mail_files.push(MailFile { seen: check_stamp(buffer), path: entry.path() });
        }
    }
    Ok(was_gone)
}

fn read_message(file: File, buffer: &mut Vec<u8>) -> io::Result<()> {
    buffer.clear();
    let octets = file.take(MESSAGE_OCTETS_MAX + 1).read_to_end(buffer)?;
    match octets as u64 > MESSAGE_OCTETS_MAX {
        true => Err(io::Error::other(format!("a file of more than {MESSAGE_OCTETS_MAX} bytes"))),
        false => Ok(()),
    }
}

fn unless_gone<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

fn fault(folder: &Path) -> impl FnOnce(io::Error) -> BenchError {
    BenchError::system(format!("looking for mail in {}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::{Comparison, CopyLocation, WaitLimits, compare_until_complete};
    use crate::{AcknowledgedMessages, MessageStamp, RunId, RunVerdict};

    fn message(sequence: u64, body: &str) -> String {
        let mut text = Vec::new();
        MessageStamp::new(RunId(1), sequence, [b"Hello.\r\n".as_slice()]).append_header(&mut text);
        String::from_utf8(text).unwrap() + "\r\n" + body
    }

    fn deliver(root: &Path, place: &str, text: &str) {
        let path = root.join(place);
        let parts = path.parent().unwrap().parent().unwrap();
        ["new", "cur", "tmp"].iter().for_each(|part| fs::create_dir_all(parts.join(part)).unwrap());
        fs::write(path, text).unwrap();
    }

    fn held(root: &Path, ledger: &str) -> Comparison {
        let acknowledged = AcknowledgedMessages::parse(ledger.to_owned()).unwrap();
        compare_until_complete(&acknowledged, &CopyLocation::Maildirs(root.to_owned()), Default::default()).unwrap()
    }

    #[test]
    fn a_tree_of_maildirs_is_compared_with_the_ledger() {
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
        assert_eq!(found.verdict(), RunVerdict::Bad);
    }

    #[test]
    fn the_search_waits_for_mail_that_is_not_yet_delivered() {
        let root = tempfile::tempdir().unwrap();
        let acknowledged = AcknowledgedMessages::parse("run 1\n0\ta@x.test\n".into()).unwrap();
        let copies = CopyLocation::Maildirs(root.path().to_owned());
        let patience = WaitLimits { wait: std::time::Duration::from_secs(60), ..WaitLimits::default() };
        thread::scope(|scope| {
            let holding = scope.spawn(|| compare_until_complete(&acknowledged, &copies, patience));
            deliver(root.path(), "a/new/1", &message(0, "Hello.\r\n"));
            assert_eq!(holding.join().unwrap().unwrap().verdict(), RunVerdict::Good);
        });
    }

    #[test]
    fn a_tree_that_is_not_there_is_a_fault() {
        let root = tempfile::tempdir().unwrap();
        let copies = CopyLocation::Maildirs(root.path().join("nobody"));
        let fault = compare_until_complete(&AcknowledgedMessages::default(), &copies, Default::default()).unwrap_err();
        assert!(matches!(fault, BenchError::System { .. }));
    }

    #[test]
    fn a_copy_in_new_and_in_cur_is_doubled_and_a_hard_link_is_not() {
        let root = tempfile::tempdir().unwrap();
        deliver(root.path(), "a/new/1", &message(0, "Hello.\r\n"));
        deliver(root.path(), "a/cur/1:2,S", &message(0, "Hello.\r\n"));
        deliver(root.path(), "a/new/2", &message(1, "Hello.\r\n"));
        fs::hard_link(root.path().join("a/new/2"), root.path().join("a/cur/2:2,S")).unwrap();
        let found = held(root.path(), "run 1\n0\ta@x.test\n1\ta@x.test\n");
        assert_eq!((found.copies, found.found, found.doubled), (3, 2, 1));
    }

    #[test]
    fn only_regular_visible_files_are_mail_and_one_that_is_too_long_is_a_fault() {
        let root = tempfile::tempdir().unwrap();
        deliver(root.path(), "a/new/.1", &message(0, "Hello.\r\n"));
        deliver(root.path(), "b/cur/2", "");
        fs::create_dir(root.path().join("a/new/folder")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", root.path().join("a/new/zero")).unwrap();
        let found = held(root.path(), "run 1\n0\ta@x.test\n");
        assert_eq!((found.copies, found.foreign), (0, 1));
        File::create(root.path().join("a/new/long")).unwrap().set_len(MESSAGE_OCTETS_MAX + 1).unwrap();
        let acknowledged = AcknowledgedMessages::parse("run 1\n0\ta@x.test\n".into()).unwrap();
        let copies = CopyLocation::Maildirs(root.path().to_owned());
        assert!(compare_until_complete(&acknowledged, &copies, WaitLimits::default()).is_err());
    }

    #[test]
    fn mail_in_a_mailbox_named_after_another_recipient_is_bad() {
        for (wrong, right) in [("b@x.test", "a@X.test"), ("x.test/b", "x.test/a")] {
            for (name, verdict) in [(wrong, RunVerdict::Bad), (right, RunVerdict::Good), ("x.test/c", RunVerdict::Good)]
            {
                let root = tempfile::tempdir().unwrap();
                deliver(root.path(), &format!("{name}/new/1"), &message(0, "Hello.\r\n"));
                deliver(root.path(), "b@x.test/new/2", &message(1, "Hello.\r\n"));
                let found = held(root.path(), "run 1\n0\ta@x.test\n1\tb@x.test\n");
                assert_eq!(found.verdict(), verdict, "{name}: {found}");
            }
        }
    }
}
