//! Lock files as Dovecot makes them: `NAME.lock` exists while somebody has the lock.
//!
//! | the lock file | the lock is |
//! |---|---|
//! | does not exist | free |
//! | names a process of this host that runs, other than this one | held, however old |
//! | names a process of this host that does not run, and is older than 2 s | stale: removed |
//! | names this process | stale: this process knows its own locks and asks only for others |
//! | names no process of this host | stale if neither it nor the file that it protects changed for a time |
//!
//! Dovecot writes `PID:HOST` into the file, without a line feed, and so do we: either takes over what
//! a crash of the other left. It is created with `O_EXCL`, as Dovecot does by default
//! (`dotlock_use_excl`).

use std::io::{Read, Write};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::{Stat, fstat};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use super::mail_folder::{FileIdentity, MailFolder};

/// A younger lock file may not have its process id yet.
const PID_CHECK_AGE_MIN: Duration = Duration::from_secs(2);
/// Between two looks at a lock that another process holds.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// Others that found the same stale lock remove it within this time, and must not remove ours.
const TAKEOVER_PAUSE: Duration = Duration::from_millis(100);
/// A lock file with more than this names no process.
const LOCK_OCTETS_MAX: u64 = 512;

/// What a lock is called and when it is stale.
pub(super) struct DotLockRules {
    /// The file name of the lock.
    pub(super) name: &'static str,
    /// A file in the same folder that its holder changes.
    pub(super) protects: Option<&'static str>,
    /// When a lock of an unknown process is stale.
    pub(super) stale_after: Duration,
    /// How long to wait for a lock that is held.
    pub(super) wait: Duration,
}

/// A lock that is held; dropped, its file is removed.
pub(super) struct DotLock {
    folder: Arc<MailFolder>,
    name: &'static str,
    device: u64,
    inode: u64,
}

/// Why there is no lock.
#[derive(Debug)]
pub(super) enum DotLockError {
    /// Another process has it.
    Held,
    /// The lock file cannot be created or read.
    Io(Errno),
}

impl From<Errno> for DotLockError {
    fn from(error: Errno) -> DotLockError {
        DotLockError::Io(error)
    }
}

impl DotLock {
    /// Blocks for at most the time to wait.
    pub(super) fn acquire(folder: &Arc<MailFolder>, rules: &DotLockRules) -> Result<DotLock, DotLockError> {
        let begun_at = Instant::now();
        loop {
            match create(folder, rules.name) {
                Err(Errno::EXIST) => {}
                created => return Ok(created?),
            }
            if remove_if_stale(folder, rules)? {
                continue;
            }
            if begun_at.elapsed() >= rules.wait {
                return Err(DotLockError::Held);
            }
            thread::sleep(RETRY_INTERVAL);
        }
    }

    /// Shows others that the holder is alive. Errors are left to the next call: the file has a
    /// process id as well.
    pub(super) fn touch(&self) {
        let _ = self.folder.touch(self.name);
    }
}

impl Drop for DotLock {
    fn drop(&mut self) {
        // Another process may have taken it over, if this one was stopped for long.
        let is_ours = |stat: Stat| (stat.st_dev, stat.st_ino) == (self.device, self.inode);
        if self.folder.stat(self.name).is_ok_and(is_ours) {
            // If it cannot be removed, it is stale when this process ends.
            let _ = self.folder.remove(self.name);
        }
    }
}

fn create(folder: &Arc<MailFolder>, name: &'static str) -> Result<DotLock, Errno> {
    let mut file = folder.create(name)?;
    // On a full disk it stays empty, which is a lock too.
    let _ = file.write_all(format!("{}:{}", std::process::id(), host_name()).as_bytes());
    let stat = fstat(&file)?;
    Ok(DotLock { folder: folder.clone(), name, device: stat.st_dev, inode: stat.st_ino })
}

/// Removes the lock file if it is stale; returns whether the lock may be free now.
fn remove_if_stale(folder: &MailFolder, rules: &DotLockRules) -> Result<bool, DotLockError> {
    let Some(seen) = stat_if_exists(folder, rules.name)? else { return Ok(true) };
    if !is_stale(folder, rules, &seen)? {
        return Ok(false);
    }
    let is_same = |now: &Stat| FileIdentity::new(now) == FileIdentity::new(&seen);
    if stat_if_exists(folder, rules.name)?.as_ref().is_some_and(is_same) {
        match folder.remove(rules.name) {
            Ok(()) | Err(Errno::NOENT) => thread::sleep(TAKEOVER_PAUSE),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}

fn is_stale(folder: &MailFolder, rules: &DotLockRules, seen: &Stat) -> Result<bool, DotLockError> {
    let now = SystemTime::now();
    let age = age_of(seen, now);
    if age <= PID_CHECK_AGE_MIN {
        return Ok(false);
    }
    if let Some(pid) = local_process(folder, rules.name) {
        return Ok(pid == std::process::id() || !is_running(pid));
    }
    if age <= rules.stale_after {
        return Ok(false);
    }
    let protected = rules.protects.map(|name| stat_if_exists(folder, name)).transpose()?.flatten();
    Ok(protected.is_none_or(|stat| age_of(&stat, now) > rules.stale_after))
}

/// The time since the last change. A time in the future counts as now: the clock may be wrong.
fn age_of(stat: &Stat, now: SystemTime) -> Duration {
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let identity = FileIdentity::new(stat);
    let changed = u128::try_from(identity.modified.max(identity.changed)).unwrap_or(0);
    Duration::from_nanos(u64::try_from(now.saturating_sub(changed)).unwrap_or(u64::MAX))
}

/// The process id in a lock file of this host.
fn local_process(folder: &MailFolder, name: &str) -> Option<u32> {
    let (file, _) = folder.open_file(name).ok()?;
    let mut text = Vec::new();
    file.take(LOCK_OCTETS_MAX).read_to_end(&mut text).ok()?;
    let (pid, host) = str::from_utf8(text.trim_ascii_end()).ok()?.split_once(':')?;
    if host != host_name() {
        return None;
    }
    pid.parse().ok().filter(|&pid| pid > 0)
}

fn is_running(pid: u32) -> bool {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return false };
    test_kill_process(pid) != Err(Errno::SRCH)
}

fn stat_if_exists(folder: &MailFolder, name: &str) -> Result<Option<Stat>, Errno> {
    match folder.stat(name) {
        Err(Errno::NOENT) => Ok(None),
        stat => stat.map(Some),
    }
}

/// What `gethostname` gives, which is what Dovecot writes.
fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use tempfile::TempDir;

    use super::*;

    const RULES: DotLockRules = DotLockRules {
        name: "x.lock",
        protects: Some("x"),
        stale_after: Duration::from_secs(120),
        wait: Duration::ZERO,
    };

    fn folder() -> (TempDir, Arc<MailFolder>) {
        let root = tempfile::tempdir().unwrap();
        let folder = MailFolder::open(root.path()).unwrap().unwrap();
        (root, Arc::new(folder))
    }

    fn write(root: &TempDir, name: &str, text: &str) {
        fs::write(root.path().join(name), text).unwrap();
    }

    #[test]
    fn a_lock_names_its_process_and_is_removed_at_the_end() {
        let (root, folder) = folder();
        let lock = DotLock::acquire(&folder, &RULES).unwrap();
        let text = fs::read_to_string(root.path().join("x.lock")).unwrap();
        assert_eq!(text, format!("{}:{}", std::process::id(), host_name()));
        assert!(matches!(DotLock::acquire(&folder, &RULES), Err(DotLockError::Held)));
        drop(lock);
        assert!(!root.path().join("x.lock").exists());
        DotLock::acquire(&folder, &RULES).unwrap();
    }

    #[test]
    fn what_replaced_a_lock_is_not_removed_with_it() {
        let (root, folder) = folder();
        let lock = DotLock::acquire(&folder, &RULES).unwrap();
        fs::rename(root.path().join("x.lock"), root.path().join("old")).unwrap();
        write(&root, "x.lock", "1:other");
        drop(lock);
        assert!(root.path().join("x.lock").exists());
    }

    /// Whether the lock would be stale if it were so many seconds older.
    fn is_stale_after(folder: &MailFolder, age: u64) -> bool {
        let mut seen = folder.stat("x.lock").unwrap();
        seen.st_mtime -= i64::try_from(age).unwrap();
        seen.st_ctime -= i64::try_from(age).unwrap();
        is_stale(folder, &RULES, &seen).unwrap()
    }

    #[test]
    fn the_lock_of_a_process_that_ended_is_stale_and_of_one_that_runs_is_not() {
        let (root, folder) = folder();
        let mut child = Command::new("sleep").arg("100").spawn().unwrap();
        write(&root, "x.lock", &format!("{}:{}", child.id(), host_name()));
        assert!(!is_stale_after(&folder, 3) && !is_stale_after(&folder, 100_000));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!is_stale_after(&folder, 1), "too young to look at its process");
        assert!(is_stale_after(&folder, 3));
        write(&root, "x.lock", &format!("{}:{}", std::process::id(), host_name()));
        assert!(is_stale_after(&folder, 3), "an earlier process had our id");
    }

    #[test]
    fn the_lock_of_an_unknown_process_is_stale_when_nothing_changes() {
        for text in ["", "17:elsewhere", "x:y", "0:", "nothing"] {
            let (root, folder) = folder();
            write(&root, "x.lock", text);
            assert!(!is_stale_after(&folder, 119), "{text:?}");
            assert!(is_stale_after(&folder, 125), "{text:?}");
            write(&root, "x", "just written");
            assert!(!is_stale_after(&folder, 125), "{text:?}");
        }
    }

    #[test]
    fn a_pipe_or_a_link_in_place_of_a_lock_does_not_block() {
        let (root, folder) = folder();
        rustix::fs::mkfifoat(rustix::fs::CWD, root.path().join("x.lock"), rustix::fs::Mode::RWXU).unwrap();
        assert!(!is_stale_after(&folder, 119) && is_stale_after(&folder, 125));
        fs::remove_file(root.path().join("x.lock")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", root.path().join("x.lock")).unwrap();
        assert!(matches!(DotLock::acquire(&folder, &RULES), Err(DotLockError::Held)));
    }
}
