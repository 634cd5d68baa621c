//! How much a Maildir holds, and may hold: quota as Maildir++ has it, in a file that Dovecot, Courier, Exim and others read
//! and write as well.
//!
//! | state of `maildirsize` | what it says |
//! |---|---|
//! | missing, broken, of 5120 bytes or more, or with other limits | nothing: the Maildir has to be counted |
//! | sound, and there is room by its sum | there is room |
//! | one line behind the header, younger than 15 minutes, no room by its sum | there is none |
//! | sound, no room by its sum, but older, or with more lines | nothing: what was deleted may not be written there |
//!
//! Whoever adds a letter appends a line; whoever counts writes a new file over it. That file is taken away again where the
//! Maildir changed while it was counted. All this is approximate by design: two who deliver at the same moment may both
//! find room for the last message. Nothing is synced, since a file that a crash has damaged is counted anew.
//!
//! Counted are `new/` and `cur/` of the Maildir and of its folders (`.Name/`), but not of `.Trash`; the size of a file is
//! that of its name (`,S=`), or of the file where the name has none. Every call waits for the disk, and a count reads whole
//! folders: run it where that may take its time.

mod record;

use std::fs::{DirEntry, File};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use record::Record;
pub use record::{Limits, NoLimits, Usage};

use crate::name::field;

const FILE: &str = "maildirsize";
/// A file of so many bytes is written anew.
const FILE_OCTETS_MAX: u64 = 5120;
/// What an older file says is not believed where it says that there is no room.
const AGE_MAX: Duration = Duration::from_secs(15 * 60);
/// What is deleted there is no longer anybody's burden.
const TRASH: &[u8] = b".Trash";

/// What is known of a Maildir's use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// What it holds.
    pub usage: Usage,
    /// Counting it now would hardly say anything else.
    pub is_settled: bool,
}

impl Standing {
    /// Whether it tells if there is room for so much more.
    pub fn decides(self, limits: Limits, more: Usage) -> bool {
        self.is_settled || limits.allow(self.usage + more)
    }
}

/// What the file says; None where the Maildir has to be counted.
///
/// # Errors
///
/// The file is there and cannot be read.
pub fn recorded(folder: &Path, limits: Limits, now: SystemTime) -> io::Result<Option<Standing>> {
    let file = match File::open(folder.join(FILE)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let metadata = file.metadata()?;
    if metadata.len() >= FILE_OCTETS_MAX {
        return Ok(None);
    }
    let mut bytes = Vec::with_capacity(metadata.len() as usize + 1);
    file.take(FILE_OCTETS_MAX).read_to_end(&mut bytes)?;
    let Some(record) = Record::parse(&bytes).filter(|record| record.limits == limits) else { return Ok(None) };
    // One from the future is young.
    let age = now.duration_since(metadata.modified()?).unwrap_or_default();
    Ok(Some(Standing { usage: record.usage, is_settled: record.lines == 1 && age < AGE_MAX }))
}

/// Counts the Maildir, and writes the file for all who ask later; a Maildir that is not there holds nothing.
///
/// # Errors
///
/// A folder cannot be read. That the file cannot be written is none: the next who asks counts again.
pub fn recount(folder: &Path, limits: Limits) -> io::Result<Usage> {
    let parts = parts(folder)?;
    let (mut usage, mut latest) = (Usage::default(), None::<SystemTime>);
    for part in &parts {
        latest = latest.max(changed_at(part)?);
        usage = usage + count(part)?;
    }
    if write(folder, &Record::text(limits, usage)).is_ok() && has_changed(&parts, latest) {
        // Who cannot remove it can neither be told so nor do anything about it.
        let _ = std::fs::remove_file(folder.join(FILE));
    }
    Ok(usage)
}

/// Tells the file of what was added. Without a file there is nothing to tell: it will be counted.
///
/// # Errors
///
/// The file is there and cannot be written.
pub fn add(folder: &Path, added: Usage) -> io::Result<()> {
    match File::options().append(true).open(folder.join(FILE)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // In one write, so that lines of several writers do not mix.
        file => file?.write_all(record::line(added).as_bytes()),
    }
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
            usage = usage + Usage::message(octets);
        }
        Ok(())
    })?;
    Ok(usage)
}

/// None for what is no message, and for one that somebody took away in this moment.
fn octets_of(entry: &DirEntry) -> io::Result<Option<u64>> {
    let name = entry.file_name();
    if name.as_bytes().starts_with(b".") {
        return Ok(None);
    }
    match field(name.as_bytes(), b'S') {
        Some(octets) => Ok(Some(octets)),
        None => found(entry.metadata().map(|metadata| metadata.is_file().then_some(metadata.len()))),
    }
}

/// A folder that is not there, or is none, has no entries.
fn for_each(folder: &Path, mut see: impl FnMut(&DirEntry) -> io::Result<()>) -> io::Result<()> {
    let Some(entries) = found(folder.read_dir().map(Some))? else { return Ok(()) };
    for entry in entries {
        see(&entry?)?;
    }
    Ok(())
}

fn changed_at(part: &Path) -> io::Result<Option<SystemTime>> {
    found(part.metadata().and_then(|metadata| metadata.modified()).map(Some))
}

fn found<T>(looked: io::Result<Option<T>>) -> io::Result<Option<T>> {
    match looked {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        looked => looked,
    }
}

/// Whether any part was written to after `latest`, or cannot be looked at.
fn has_changed(parts: &[PathBuf], latest: Option<SystemTime>) -> bool {
    parts.iter().any(|part| changed_at(part).map_or(true, |at| at > latest))
}

/// By way of `tmp/`, as all that is written to a Maildir.
fn write(folder: &Path, text: &str) -> io::Result<()> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let name = format!("{FILE}.{}_{}", std::process::id(), NUMBER.fetch_add(1, Relaxed));
    let tmp = folder.join("tmp").join(name);
    // What an earlier process of this number left is of no use.
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&tmp)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| std::fs::rename(&tmp, folder.join(FILE)));
    written.inspect_err(|_| drop(std::fs::remove_file(&tmp)))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;

    const LIMITS: Limits = Limits { bytes: 1000, messages: 10 };

    /// A Maildir with these files, each with so many bytes.
    fn maildir(files: &[(&str, usize)]) -> TempDir {
        let root = tempfile::tempdir().unwrap();
        crate::folder::make(root.path()).unwrap();
        for (path, octets) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, vec![b'x'; *octets]).unwrap();
        }
        root
    }

    fn text(root: &TempDir) -> String {
        fs::read_to_string(root.path().join(FILE)).unwrap()
    }

    fn standing(root: &TempDir, now: SystemTime) -> Option<Standing> {
        recorded(root.path(), LIMITS, now).unwrap()
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
        assert_eq!(standing(&root, SystemTime::now()), Some(Standing { usage, is_settled: true }));
        assert_eq!(root.path().join("tmp").read_dir().unwrap().count(), 1, "nothing is left in tmp/");
    }

    #[test]
    fn what_is_added_is_known_and_no_longer_settled() {
        let root = maildir(&[("new/1.a.mx,S=40", 40)]);
        add(root.path(), Usage::message(7)).unwrap();
        assert_eq!(standing(&root, SystemTime::now()), None, "adding makes no file");
        recount(root.path(), LIMITS).unwrap();
        add(root.path(), Usage::message(7)).unwrap();
        assert_eq!(text(&root), "1000S,10C\n40 1\n7 1\n");
        let usage = Usage { bytes: 47, messages: 2 };
        assert_eq!(standing(&root, SystemTime::now()), Some(Standing { usage, is_settled: false }));
    }

    #[test]
    fn an_old_file_is_not_settled() {
        let root = maildir(&[]);
        recount(root.path(), LIMITS).unwrap();
        let is_settled = |age| standing(&root, SystemTime::now() + age).unwrap().is_settled;
        assert!(is_settled(AGE_MAX - Duration::from_secs(60)));
        assert!(!is_settled(AGE_MAX));
    }

    #[test]
    fn what_is_broken_too_large_or_of_another_quota_says_nothing() {
        let root = maildir(&[]);
        let large = format!("1000S,10C\n{}", "1 0\n".repeat(1280));
        for text in ["", "x\n", "1000S\n1 1\n", "1000S,10C\n", &large] {
            fs::write(root.path().join(FILE), text).unwrap();
            assert_eq!(standing(&root, SystemTime::now()), None, "{text:?}");
        }
    }

    #[test]
    fn a_maildir_that_is_not_there_holds_nothing_and_gets_no_file() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("bob");
        assert_eq!(recount(&folder, LIMITS).unwrap(), Usage::default());
        assert!(!folder.exists());
    }

    #[test]
    fn a_file_that_changes_made_doubtful_is_seen_as_such() {
        let root = maildir(&[]);
        let parts = parts(root.path()).unwrap();
        let latest = parts.iter().map(|part| changed_at(part).unwrap()).max().unwrap();
        assert!(!has_changed(&parts, latest));
        let later = latest.unwrap() + Duration::from_secs(1);
        File::open(root.path().join("cur")).unwrap().set_modified(later).unwrap();
        assert!(has_changed(&parts, latest));
    }
}
