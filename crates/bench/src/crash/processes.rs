//! The processes of a server, however often they forked: all that descend from this one.
//!
//! As their subreaper (prctl(2), PR_SET_CHILD_SUBREAPER) this process becomes the parent of every descendant whose own
//! parent is gone, so that a daemon that leaves its session and its group is still found, by the parents in /proc.

use std::collections::HashMap;
use std::fs;
use std::io;

use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, waitpid};

use crate::Fault;

/// From here on orphans among the descendants are ours.
pub(super) fn adopt_orphans() -> Result<(), Fault> {
    set_child_subreaper(Some(getpid())).map_err(|error| Fault::system("becoming a subreaper")(error.into()))
}

/// A process and who started it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    id: Pid,
    parent: Pid,
    is_dead: bool,
}

/// Those that live, parents before children. Our own dead ones are buried on the way.
pub(super) fn descendants() -> io::Result<Vec<Pid>> {
    let ours = getpid();
    let mut children: HashMap<Pid, Vec<Process>> = HashMap::new();
    for process in processes()? {
        children.entry(process.parent).or_default().push(process);
    }
    let mut found = children.remove(&ours).unwrap_or_default();
    let mut next = 0;
    while let Some(process) = found.get(next) {
        found.extend(children.remove(&process.id).unwrap_or_default());
        next += 1;
    }
    found.iter().filter(|process| process.is_dead && process.parent == ours).for_each(|process| bury(process.id));
    Ok(found.into_iter().filter(|process| !process.is_dead).map(|process| process.id).collect())
}

/// Sends a signal; who is gone already needs none.
pub(super) fn send(signal: Signal, id: Pid) -> io::Result<()> {
    match kill_process(id, signal) {
        Err(rustix::io::Errno::SRCH) => Ok(()),
        sent => sent.map_err(io::Error::from),
    }
}

fn bury(id: Pid) {
    // Somebody else may have done it.
    let _ = waitpid(Some(id), WaitOptions::NOHANG);
}

fn processes() -> io::Result<Vec<Process>> {
    let mut processes = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(id) = name.to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw) else { continue };
        // A process that ended meanwhile has none.
        let Ok(stat) = fs::read(format!("/proc/{}/stat", id.as_raw_pid())) else { continue };
        processes.extend(parse(id, &stat));
    }
    Ok(processes)
}

/// `1234 (name) S 1 ...` (proc_pid_stat(5)). The name may be anything, parentheses and spaces too.
fn parse(id: Pid, stat: &[u8]) -> Option<Process> {
    let after_name = memchr::memrchr(b')', stat)? + 1;
    let mut words = str::from_utf8(&stat[after_name..]).ok()?.split_ascii_whitespace();
    let is_dead = matches!(words.next()?, "Z" | "X" | "x");
    let parent = words.next()?.parse().ok().and_then(Pid::from_raw)?;
    Some(Process { id, parent, is_dead })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_be_anything() {
        let id = Pid::from_raw(7).unwrap();
        let process = |parent, is_dead| Some(Process { id, parent: Pid::from_raw(parent).unwrap(), is_dead });
        assert_eq!(parse(id, b"7 (sh) S 1 7 7 0"), process(1, false));
        assert_eq!(parse(id, b"7 (a) Z 9 (\xff) Z 3 7"), process(3, true));
        assert_eq!(parse(id, b"7 (kthreadd) S 0 0"), None);
        assert_eq!(parse(id, b""), None);
    }

    #[test]
    fn this_process_is_among_them() {
        assert!(processes().unwrap().iter().any(|process| process.id == getpid() && !process.is_dead));
    }
}
