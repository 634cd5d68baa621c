//! Maildir++ quotas: how much a Maildir contains, recorded in a file that Dovecot, Courier, Exim
//! and others also read and write.
//!
//! | state of `maildirsize` | result |
//! |---|---|
//! | missing, broken, 5120 bytes or more, or with other limits | unknown: recount the Maildir |
//! | valid, and its sum is within the limits | within quota |
//! | one line after the header, less than 15 minutes old, sum over the limits | over quota |
//! | valid, sum over the limits, but older or with more lines | unknown: deletions may be missing from the file |
//!
//! A delivery appends a line; a recount replaces the file, and removes it again if the Maildir
//! changed during the count. All this is approximate by design: two deliveries at the same time may
//! both take the last free space. Nothing is synced, since a file damaged by a crash is rebuilt by
//! a recount.
//!
//! The directory may be writable by its user: anything under the file's name that is not a regular
//! file is treated as missing; a pipe is not waited for and a symbolic link is not followed.
//!
//! `new/` and `cur/` of the Maildir and of its folders (`.Name/`) count, except `.Trash`. The size
//! of a file is taken from its name (`,S=`), or from the file if the name has none. All calls block
//! on disk I/O, and a recount reads whole directories: run it where that may take time.

mod maildirsize;
mod quota_checker;
mod slow_counts;
mod transport_quota;
mod usage_counter;

use std::fs::{DirEntry, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, SystemTime};

use maildirsize::MaildirSize;
pub use maildirsize::{InvalidQuotaLimits, QuotaLimits, Usage};
pub use quota_checker::{MailboxQuotaChecker, QuotaTransport, UnknownUsageLog};
use rustix::fs::OFlags;
pub use transport_quota::{QUOTA_TIME_MAX, QuotaRequest, TransportQuota};
pub use usage_counter::UsageCounter;

use crate::name::field;

const FILE_NAME: &str = "maildirsize";
/// A file of this size is rewritten.
const FILE_OCTETS_MAX: u64 = 5120;
/// An older file is not trusted to show that the mailbox is over quota.
const AGE_MAX: Duration = Duration::from_secs(15 * 60);
/// Two changes this close together may have the same timestamp, since file times come from the
/// kernel's last clock tick: up to 10 ms ago at 100 Hz.
const TICK: Duration = Duration::from_millis(10);
/// Messages in this folder do not count.
const TRASH: &[u8] = b".Trash";

/// What happens to mail for a mailbox that is over its quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OverQuotaAction {
    /// It is deferred until there is room or the message expires.
    #[default]
    Defer,
    /// It fails immediately.
    Refuse,
}

/// The recorded usage of a Maildir.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsageEstimate {
    /// The recorded usage.
    pub usage: Usage,
    /// A recount would hardly give another result.
    pub is_reliable: bool,
}

impl UsageEstimate {
    /// Whether this is enough to decide if `more` fits, without a recount.
    pub fn is_conclusive(self, limits: QuotaLimits, more: Usage) -> bool {
        self.is_reliable || limits.allows_usage(self.usage + more)
    }
}

/// The usage recorded in the file; None if the Maildir must be recounted.
///
/// # Errors
///
/// The file exists but cannot be read, or is a symbolic link.
pub fn read_usage(folder: &Path, limits: QuotaLimits, now: SystemTime) -> io::Result<Option<UsageEstimate>> {
    let Some(file) = open(folder, File::options().read(true))? else { return Ok(None) };
    let metadata = file.metadata()?;
    if metadata.len() >= FILE_OCTETS_MAX {
        return Ok(None);
    }
    let mut bytes = Vec::with_capacity(metadata.len() as usize + 1);
    file.take(FILE_OCTETS_MAX).read_to_end(&mut bytes)?;
    let Some(record) = MaildirSize::parse(&bytes).filter(|record| record.limits == limits) else { return Ok(None) };
    // A modification time in the future counts as recent.
    let age = now.duration_since(metadata.modified()?).unwrap_or_default();
    Ok(Some(UsageEstimate { usage: record.usage, is_reliable: record.lines == 1 && age < AGE_MAX }))
}

/// Counts the Maildir and writes the file for later calls; a missing Maildir is empty.
///
/// # Errors
///
/// A directory cannot be read. Failure to write the file is not an error: the next call counts
/// again.
pub fn recount(folder: &Path, limits: QuotaLimits) -> io::Result<Usage> {
    let modified = modification_times(parts(folder)?)?;
    let mut usage = Usage::default();
    for (part, _) in &modified {
        usage = usage + count(part)?;
    }
    if write(folder, &MaildirSize::new_file(limits, usage)).is_ok() && has_changed(&modified) {
        // If it cannot be removed, there is nothing else to do.
        let _ = std::fs::remove_file(folder.join(FILE_NAME));
    }
    Ok(usage)
}

/// Appends a line for added messages. Without a file it does nothing: the next caller recounts.
///
/// # Errors
///
/// The file exists but cannot be written, or is a symbolic link.
pub fn record_added_usage(folder: &Path, added: Usage) -> io::Result<()> {
    append(folder, &maildirsize::line(added))
}

/// The same for removed messages.
///
/// # Errors
///
/// The file exists but cannot be written, or is a symbolic link.
pub fn record_removed_usage(folder: &Path, removed: Usage) -> io::Result<()> {
    append(folder, &maildirsize::removed_line(removed))
}

fn append(folder: &Path, line: &str) -> io::Result<()> {
    match open(folder, File::options().append(true))? {
        None => Ok(()),
        // In one write, so that lines of several writers do not mix.
        Some(mut file) => file.write_all(line.as_bytes()),
    }
}

/// The open file, if it exists and is a regular file.
fn open(folder: &Path, options: &mut OpenOptions) -> io::Result<Option<File>> {
    // Without NONBLOCK, opening a pipe would wait for its other end.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = match options.custom_flags(flags.bits().cast_signed()).open(folder.join(FILE_NAME)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    Ok(file.metadata()?.is_file().then_some(file))
}

/// `new/` and `cur/` of the Maildir and of its folders.
fn parts(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut parts = vec![folder.join("new"), folder.join("cur")];
    for_each(folder, |entry| {
        let name = entry.file_name();
        if name.as_bytes().starts_with(b".") && name.as_bytes() != TRASH {
            parts.extend(["new", "cur"].map(|part| entry.path().join(part)));
        }
        Ok(())
    })?;
    Ok(parts)
}

fn count(part: &Path) -> io::Result<Usage> {
    let mut usage = Usage::default();
    for_each(part, |entry| {
        if let Some(octets) = octets_of(entry)? {
            usage = usage + Usage::of_message(octets);
        }
        Ok(())
    })?;
    Ok(usage)
}

/// None if it is not a message, or was just removed.
fn octets_of(entry: &DirEntry) -> io::Result<Option<u64>> {
    let name = entry.file_name();
    if name.as_bytes().starts_with(b".") {
        return Ok(None);
    }
    match field(name.as_bytes(), b'S') {
        Some(octets) => Ok(Some(octets)),
        None => ignore_missing(entry.metadata().map(|metadata| metadata.is_file().then_some(metadata.len()))),
    }
}

/// Does nothing if the directory does not exist or is not a directory.
fn for_each(folder: &Path, mut handle: impl FnMut(&DirEntry) -> io::Result<()>) -> io::Result<()> {
    let Some(entries) = ignore_missing(folder.read_dir().map(Some))? else { return Ok(()) };
    for entry in entries {
        handle(&entry?)?;
    }
    Ok(())
}

fn changed_at(part: &Path) -> io::Result<Option<SystemTime>> {
    ignore_missing(part.metadata().and_then(|metadata| metadata.modified()).map(Some))
}

fn ignore_missing<T>(looked: io::Result<Option<T>>) -> io::Result<Option<T>> {
    match looked {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        looked => looked,
    }
}

/// Each directory with its modification time. Waits until any later change gets another time.
fn modification_times(parts: Vec<PathBuf>) -> io::Result<Vec<(PathBuf, Option<SystemTime>)>> {
    let sight = |part: PathBuf| changed_at(&part).map(|at| (part, at));
    let seen = parts.into_iter().map(sight).collect::<io::Result<Vec<_>>>()?;
    if let Some(latest) = seen.iter().filter_map(|(_, at)| *at).max() {
        // A time in the future may be the current time of another host whose clock is ahead.
        thread::sleep(TICK.saturating_sub(latest.elapsed().unwrap_or_default()));
    }
    Ok(seen)
}

/// Whether any directory has another modification time now, or cannot be read.
fn has_changed(seen: &[(PathBuf, Option<SystemTime>)]) -> bool {
    seen.iter().any(|(part, at)| changed_at(part).map_or(true, |now| now != *at))
}

/// Writes by way of `tmp/`, like everything else in a Maildir.
fn write(folder: &Path, text: &str) -> io::Result<()> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let name = format!("{FILE_NAME}.{}_{}", std::process::id(), NUMBER.fetch_add(1, Relaxed));
    let tmp = folder.join("tmp").join(name);
    let written =
        create_new(&tmp)?.write_all(text.as_bytes()).and_then(|()| std::fs::rename(&tmp, folder.join(FILE_NAME)));
    written.inspect_err(|_| drop(std::fs::remove_file(&tmp)))
}

/// Creates a new file, replacing one left by an earlier process with the same id, or put there by
/// the user.
fn create_new(tmp: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create_new(true).mode(0o600);
    match options.open(tmp) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => std::fs::remove_file(tmp)?,
        created => return created,
    }
    options.open(tmp)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;

    const LIMITS: QuotaLimits = QuotaLimits { bytes: 1000, messages: 10 };

    /// A Maildir with these files, each of the given size.
    fn maildir(files: &[(&str, usize)]) -> TempDir {
        let root = tempfile::tempdir().unwrap();
        crate::folder::create(root.path()).unwrap();
        for (path, octets) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, vec![b'x'; *octets]).unwrap();
        }
        root
    }

    fn text(root: &TempDir) -> String {
        fs::read_to_string(root.path().join(FILE_NAME)).unwrap()
    }

    fn estimate(root: &TempDir, now: SystemTime) -> Option<UsageEstimate> {
        read_usage(root.path(), LIMITS, now).unwrap()
    }

    #[test]
    fn new_cur_and_folders_count_and_trash_does_not() {
        let root = maildir(&[
            ("new/1.a.mx,S=40,W=41", 3),
            ("cur/2.b.mx:2,S", 20),
            ("cur/.hidden", 100),
            ("tmp/3.c.mx", 100),
            (".Sent/cur/4.d.mx,S=5:2,S", 1),
            (".Sent.Old/new/5.e.mx", 2),
            (".Trash/cur/6.f.mx,S=500:2,S", 500),
            (".Trash.Old/cur/7.g.mx", 1),
            ("cur/folder/x", 7),
        ]);
        fs::write(root.path().join(".file"), "x").unwrap();
        let usage = recount(root.path(), LIMITS).unwrap();
        assert_eq!(usage, Usage { bytes: 40 + 20 + 5 + 2 + 1, messages: 5 });
        assert_eq!(text(&root), "1000S,10C\n68 5\n");
        assert_eq!(estimate(&root, SystemTime::now()), Some(UsageEstimate { usage, is_reliable: true }));
        assert_eq!(root.path().join("tmp").read_dir().unwrap().count(), 1, "a file was left in tmp/");
    }

    #[test]
    fn added_messages_are_counted_and_the_estimate_is_no_longer_reliable() {
        let root = maildir(&[("new/1.a.mx,S=40", 40)]);
        record_added_usage(root.path(), Usage::of_message(7)).unwrap();
        assert_eq!(estimate(&root, SystemTime::now()), None, "adding created a file");
        recount(root.path(), LIMITS).unwrap();
        record_added_usage(root.path(), Usage::of_message(7)).unwrap();
        assert_eq!(text(&root), "1000S,10C\n40 1\n7 1\n");
        let usage = Usage { bytes: 47, messages: 2 };
        assert_eq!(estimate(&root, SystemTime::now()), Some(UsageEstimate { usage, is_reliable: false }));
    }

    #[test]
    fn removed_messages_are_counted() {
        let root = maildir(&[("new/1.a.mx,S=40", 40)]);
        record_removed_usage(root.path(), Usage::of_message(7)).unwrap();
        recount(root.path(), LIMITS).unwrap();
        record_removed_usage(root.path(), Usage::of_message(7)).unwrap();
        assert_eq!(text(&root), "1000S,10C\n40 1\n-7 -1\n");
        assert_eq!(estimate(&root, SystemTime::now()).unwrap().usage, Usage { bytes: 33, messages: 0 });
    }

    #[test]
    fn an_old_file_is_not_reliable() {
        let root = maildir(&[]);
        recount(root.path(), LIMITS).unwrap();
        let is_settled = |age| estimate(&root, SystemTime::now() + age).unwrap().is_reliable;
        assert!(is_settled(AGE_MAX - Duration::from_secs(60)));
        assert!(!is_settled(AGE_MAX));
    }

    #[test]
    fn a_broken_oversized_or_outdated_file_is_ignored() {
        let root = maildir(&[]);
        let large = format!("1000S,10C\n{}", "1 0\n".repeat(1280));
        for text in ["", "x\n", "1000S\n1 1\n", "1000S,10C\n", &large] {
            fs::write(root.path().join(FILE_NAME), text).unwrap();
            assert_eq!(estimate(&root, SystemTime::now()), None, "{text:?}");
        }
    }

    #[test]
    fn a_missing_maildir_is_empty_and_gets_no_file() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("bob");
        assert_eq!(recount(&folder, LIMITS).unwrap(), Usage::default());
        assert!(!folder.exists());
    }

    /// Regression: only directories with the latest modification time were compared.
    #[test]
    fn a_change_is_detected_in_a_folder_older_than_the_others() {
        let root = maildir(&[]);
        let touch = |part, at| File::open(root.path().join(part)).unwrap().set_modified(at).unwrap();
        let long_ago = SystemTime::now() - Duration::from_secs(1000);
        touch("cur", long_ago);
        let seen = modification_times(parts(root.path()).unwrap()).unwrap();
        assert!(!has_changed(&seen));
        touch("cur", long_ago + Duration::from_secs(1));
        assert!(has_changed(&seen));
    }

    /// Regression: a message delivered behind the scan was missed if another one came in the same
    /// clock tick.
    #[test]
    fn folders_are_read_only_once_their_clock_tick_is_over() {
        let root = maildir(&[("new/1.a.mx", 1)]);
        let changed = changed_at(&root.path().join("new")).unwrap().unwrap();
        recount(root.path(), LIMITS).unwrap();
        assert!(changed.elapsed().unwrap() >= TICK);
    }

    fn make_pipe(path: &Path) {
        rustix::fs::mkfifoat(rustix::fs::CWD, path, rustix::fs::Mode::RWXU).unwrap();
    }

    /// Regression: opening it waited forever for the other end of the pipe.
    #[test]
    fn a_pipe_in_place_of_the_file_does_not_block_and_is_replaced() {
        let root = maildir(&[]);
        make_pipe(&root.path().join(FILE_NAME));
        let (sender, told) = std::sync::mpsc::channel();
        let folder = root.path().to_owned();
        thread::spawn(move || {
            sender.send(read_usage(&folder, LIMITS, SystemTime::now()).unwrap()).unwrap();
            // Any error will do: the pipe has no reader.
            let _ = record_added_usage(&folder, Usage::of_message(7));
            sender.send(None).unwrap();
        });
        for _ in ["recorded", "added"] {
            assert_eq!(told.recv_timeout(Duration::from_secs(10)), Ok(None));
        }
        recount(root.path(), LIMITS).unwrap();
        assert_eq!(text(&root), "1000S,10C\n0 0\n");
    }

    /// Regression: lines were appended to whatever file the link pointed to.
    #[test]
    fn a_link_in_place_of_the_file_is_not_followed_and_is_replaced() {
        let root = maildir(&[]);
        let elsewhere = root.path().join("elsewhere");
        fs::write(&elsewhere, "1000S,10C\n1 1\n").unwrap();
        std::os::unix::fs::symlink(&elsewhere, root.path().join(FILE_NAME)).unwrap();
        assert!(read_usage(root.path(), LIMITS, SystemTime::now()).is_err());
        assert!(record_added_usage(root.path(), Usage::of_message(7)).is_err());
        recount(root.path(), LIMITS).unwrap();
        assert_eq!(text(&root), "1000S,10C\n0 0\n");
        assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "1000S,10C\n1 1\n");
    }

    /// Regression: the names of such files are predictable, and a symbolic link there had its
    /// target truncated.
    #[test]
    fn an_existing_file_in_the_way_is_not_written_to() {
        let root = maildir(&[]);
        let elsewhere = root.path().join("elsewhere");
        fs::write(&elsewhere, "x").unwrap();
        let tmp = root.path().join("tmp/x");
        std::os::unix::fs::symlink(&elsewhere, &tmp).unwrap();
        create_new(&tmp).unwrap().write_all(b"y").unwrap();
        assert_eq!((fs::read(&tmp).unwrap(), fs::read(&elsewhere).unwrap()), (b"y".to_vec(), b"x".to_vec()));
    }
}
