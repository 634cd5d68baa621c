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
//! The folder may be its user's to write in: what stands there under the file's name and is no plain file is none, and is
//! neither waited for nor followed to elsewhere.
//!
//! Counted are `new/` and `cur/` of the Maildir and of its folders (`.Name/`), but not of `.Trash`; the size of a file is
//! that of its name (`,S=`), or of the file where the name has none. Every call waits for the disk, and a count reads whole
//! folders: run it where that may take its time.

mod record;

use std::fs::{DirEntry, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, SystemTime};

use record::Record;
pub use record::{Limits, NoLimits, Usage};
use rustix::fs::OFlags;

use crate::name::field;

const FILE: &str = "maildirsize";
/// A file of so many bytes is written anew.
const FILE_OCTETS_MAX: u64 = 5120;
/// What an older file says is not believed where it says that there is no room.
const AGE_MAX: Duration = Duration::from_secs(15 * 60);
/// Changes that are closer to each other may bear the same time, since a kernel tells files the time of its last tick: at
/// 100 Hz that is so old.
const TICK: Duration = Duration::from_millis(10);
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
/// The file is there and cannot be read, or leads elsewhere.
pub fn recorded(folder: &Path, limits: Limits, now: SystemTime) -> io::Result<Option<Standing>> {
    let Some(file) = open(folder, File::options().read(true))? else { return Ok(None) };
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
    let seen = sight(parts(folder)?)?;
    let mut usage = Usage::default();
    for (part, _) in &seen {
        usage = usage + count(part)?;
    }
    if write(folder, &Record::text(limits, usage)).is_ok() && has_changed(&seen) {
        // Who cannot remove it can neither be told so nor do anything about it.
        let _ = std::fs::remove_file(folder.join(FILE));
    }
    Ok(usage)
}

/// Tells the file of what was added. Without a file there is nothing to tell: it will be counted.
///
/// # Errors
///
/// The file is there and cannot be written, or leads elsewhere.
pub fn add(folder: &Path, added: Usage) -> io::Result<()> {
    match open(folder, File::options().append(true))? {
        None => Ok(()),
        // In one write, so that lines of several writers do not mix.
        Some(mut file) => file.write_all(record::line(added).as_bytes()),
    }
}

/// The file, if there is one.
fn open(folder: &Path, options: &mut OpenOptions) -> io::Result<Option<File>> {
    // A pipe would make us wait for whoever is at its other end.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = match options.custom_flags(flags.bits().cast_signed()).open(folder.join(FILE)) {
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

/// With each part when it was changed; what changes it from now on gives it another time.
fn sight(parts: Vec<PathBuf>) -> io::Result<Vec<(PathBuf, Option<SystemTime>)>> {
    let sight = |part: PathBuf| changed_at(&part).map(|at| (part, at));
    let seen = parts.into_iter().map(sight).collect::<io::Result<Vec<_>>>()?;
    if let Some(latest) = seen.iter().filter_map(|(_, at)| *at).max() {
        // One from the future may be of this moment, by a clock that is ahead.
        thread::sleep(TICK.saturating_sub(latest.elapsed().unwrap_or_default()));
    }
    Ok(seen)
}

/// Whether any part has another time than when it was seen, or cannot be looked at.
fn has_changed(seen: &[(PathBuf, Option<SystemTime>)]) -> bool {
    seen.iter().any(|(part, at)| changed_at(part).map_or(true, |now| now != *at))
}

/// By way of `tmp/`, as all that is written to a Maildir.
fn write(folder: &Path, text: &str) -> io::Result<()> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let name = format!("{FILE}.{}_{}", std::process::id(), NUMBER.fetch_add(1, Relaxed));
    let tmp = folder.join("tmp").join(name);
    let written = anew(&tmp)?.write_all(text.as_bytes()).and_then(|()| std::fs::rename(&tmp, folder.join(FILE)));
    written.inspect_err(|_| drop(std::fs::remove_file(&tmp)))
}

/// A new file in place of what an earlier process of the same number left, or somebody put there.
fn anew(tmp: &Path) -> io::Result<File> {
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

    /// Only what was later than all changes of all parts used to count.
    #[test]
    fn a_change_is_seen_in_a_part_that_is_older_than_others() {
        let root = maildir(&[]);
        let touch = |part, at| File::open(root.path().join(part)).unwrap().set_modified(at).unwrap();
        let long_ago = SystemTime::now() - Duration::from_secs(1000);
        touch("cur", long_ago);
        let seen = sight(parts(root.path()).unwrap()).unwrap();
        assert!(!has_changed(&seen));
        touch("cur", long_ago + Duration::from_secs(1));
        assert!(has_changed(&seen));
    }

    /// A letter that came behind the one who read the folder used to be missed where another had come in the same tick.
    #[test]
    fn nothing_is_read_that_may_change_without_another_time() {
        let root = maildir(&[("new/1.a.mx", 1)]);
        let changed = changed_at(&root.path().join("new")).unwrap().unwrap();
        recount(root.path(), LIMITS).unwrap();
        assert!(changed.elapsed().unwrap() >= TICK);
    }

    fn make_pipe(path: &Path) {
        rustix::fs::mkfifoat(rustix::fs::CWD, path, rustix::fs::Mode::RWXU).unwrap();
    }

    /// Whoever opened one waited for ever for somebody at its other end.
    #[test]
    fn a_pipe_in_place_of_the_file_holds_nobody_up_and_is_replaced() {
        let root = maildir(&[]);
        make_pipe(&root.path().join(FILE));
        let (sender, told) = std::sync::mpsc::channel();
        let folder = root.path().to_owned();
        thread::spawn(move || {
            sender.send(recorded(&folder, LIMITS, SystemTime::now()).unwrap()).unwrap();
            // An error as good as any: nobody reads there.
            let _ = add(&folder, Usage::message(7));
            sender.send(None).unwrap();
        });
        for _ in ["recorded", "added"] {
            assert_eq!(told.recv_timeout(Duration::from_secs(10)), Ok(None));
        }
        recount(root.path(), LIMITS).unwrap();
        assert_eq!(text(&root), "1000S,10C\n0 0\n");
    }

    /// Lines used to be added to whatever file it led to.
    #[test]
    fn a_link_in_place_of_the_file_is_not_followed_and_is_replaced() {
        let root = maildir(&[]);
        let elsewhere = root.path().join("elsewhere");
        fs::write(&elsewhere, "1000S,10C\n1 1\n").unwrap();
        std::os::unix::fs::symlink(&elsewhere, root.path().join(FILE)).unwrap();
        assert!(recorded(root.path(), LIMITS, SystemTime::now()).is_err());
        assert!(add(root.path(), Usage::message(7)).is_err());
        recount(root.path(), LIMITS).unwrap();
        assert_eq!(text(&root), "1000S,10C\n0 0\n");
        assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "1000S,10C\n1 1\n");
    }

    /// The names of such files can be foreseen, and who put a link there had the file behind it cut to nothing.
    #[test]
    fn what_stands_in_the_way_of_a_new_file_is_not_written_to() {
        let root = maildir(&[]);
        let elsewhere = root.path().join("elsewhere");
        fs::write(&elsewhere, "x").unwrap();
        let tmp = root.path().join("tmp/x");
        std::os::unix::fs::symlink(&elsewhere, &tmp).unwrap();
        anew(&tmp).unwrap().write_all(b"y").unwrap();
        assert_eq!((fs::read(&tmp).unwrap(), fs::read(&elsewhere).unwrap()), (b"y".to_vec(), b"x".to_vec()));
    }
}
