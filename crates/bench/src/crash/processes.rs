//! The processes of the server under test, however often it forks: all descendants of this process
//! except those that were running before the trial.
//!
//! This process becomes a subreaper (prctl(2), PR_SET_CHILD_SUBREAPER), so it is the parent of
//! every orphaned descendant. A daemon that leaves its session and process group is still found
//! through the parent ids in /proc. A process is identified by its id and start time, and signalled
//! through a pidfd (pidfd_open(2)), so a later process with the same id is never hit.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, pidfd_open, pidfd_send_signal, set_child_subreaper, waitpid,
};

use crate::BenchError;

/// A process and its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ProcessInfo {
    identity: ProcessIdentity,
    parent: Pid,
    is_dead: bool,
}

/// A process id with the start time, which tells it from a later process with the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ProcessIdentity {
    id: Pid,
    /// In clock ticks since boot.
    began: u64,
}

/// Finds the descendants of this process that belong to the server.
#[derive(Debug)]
pub(super) struct ServerProcesses {
    /// Descendants that were running before the trial. They and their children are left alone.
    preexisting: HashSet<ProcessIdentity>,
}

impl ServerProcesses {
    /// Becomes a subreaper. Every descendant that starts from now on belongs to the server.
    pub(super) fn watch() -> Result<ServerProcesses, BenchError> {
        set_child_subreaper(Some(getpid()))
            .map_err(|error| BenchError::system("becoming a subreaper")(error.into()))?;
        let mut server_processes = ServerProcesses { preexisting: HashSet::new() };
        server_processes.preexisting = server_processes.alive()?.into_iter().collect();
        Ok(server_processes)
    }

    /// Running processes, parents before children. Reaps dead children of this process.
    pub(super) fn alive(&self) -> Result<Vec<ProcessIdentity>, BenchError> {
        let processes = all_processes().map_err(BenchError::system("looking for the server's processes in /proc"))?;
        let found = descendants(getpid(), processes, &self.preexisting);
        found.iter().filter(|process| process.is_dead && process.parent == getpid()).for_each(reap);
        Ok(found.into_iter().filter(|process| !process.is_dead).map(|process| process.identity).collect())
    }
}

/// Descendants, parents before children, without the excluded processes and their children.
fn descendants(ancestor: Pid, processes: Vec<ProcessInfo>, preexisting: &HashSet<ProcessIdentity>) -> Vec<ProcessInfo> {
    let mut children: HashMap<Pid, Vec<ProcessInfo>> = HashMap::new();
    for process in processes.into_iter().filter(|process| !preexisting.contains(&process.identity)) {
        children.entry(process.parent).or_default().push(process);
    }
    let mut found = children.remove(&ancestor).unwrap_or_default();
    let mut next = 0;
    while let Some(process) = found.get(next) {
        found.extend(children.remove(&process.identity.id).unwrap_or_default());
        next += 1;
    }
    found
}

/// Sends a signal. A process that is already gone is not an error.
pub(super) fn send_signal(signal: Signal, process: ProcessIdentity) -> io::Result<()> {
    let sent = pidfd_open(process.id, PidfdFlags::empty()).and_then(|handle| {
        // The pidfd now pins the process, so this check cannot race with a reused id.
        match look_up(process.id) {
            Some(found) if found.identity == process => pidfd_send_signal(handle, signal),
            _ => Err(Errno::SRCH),
        }
    });
    match sent {
        Err(Errno::SRCH) => Ok(()),
        sent => sent.map_err(io::Error::from),
    }
}

fn reap(process: &ProcessInfo) {
    // The process may have been reaped already.
    let _ = waitpid(Some(process.identity.id), WaitOptions::NOHANG);
}

fn all_processes() -> io::Result<Vec<ProcessInfo>> {
    let mut processes = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let id = name.to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
        processes.extend(id.and_then(look_up));
    }
    Ok(processes)
}

/// None for a process that has ended.
fn look_up(id: Pid) -> Option<ProcessInfo> {
    let stat = fs::read(format!("/proc/{}/stat", id.as_raw_pid())).ok()?;
    parse_stat(id, &stat)
}

/// Parses `1234 (name) S 1 ...` (proc_pid_stat(5)). The name may contain any bytes.
fn parse_stat(id: Pid, stat: &[u8]) -> Option<ProcessInfo> {
    let after_name = memchr::memrchr(b')', stat)? + 1;
    let mut words = str::from_utf8(&stat[after_name..]).ok()?.split_ascii_whitespace();
    let is_dead = matches!(words.next()?, "Z" | "X" | "x");
    let parent = words.next()?.parse().ok().and_then(Pid::from_raw)?;
    // The parent is field 4, the start time field 22.
    let began = words.nth(17)?.parse().ok()?;
    Some(ProcessInfo { identity: ProcessIdentity { id, began }, parent, is_dead })
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    fn pid(id: i32) -> Pid {
        Pid::from_raw(id).unwrap()
    }

    fn process(id: i32, parent: i32, is_dead: bool) -> ProcessInfo {
        ProcessInfo { identity: ProcessIdentity { id: pid(id), began: 22 }, parent: pid(parent), is_dead }
    }

    #[test]
    fn a_process_name_may_have_any_bytes() {
        const REST: &str = "5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23";
        let parse = |stat: &[u8]| parse_stat(pid(7), &[stat, REST.as_bytes()].concat());
        assert_eq!(parse(b"7 (sh) S 1 "), Some(process(7, 1, false)));
        assert_eq!(parse(b"7 (a) Z 9 (\xff) Z 3 "), Some(process(7, 3, true)));
        assert_eq!(parse(b"7 (kthreadd) S 0 "), None);
        assert_eq!(super::parse_stat(pid(7), b"7 (sh) S 1 7 7 0"), None);
        assert_eq!(super::parse_stat(pid(7), b""), None);
    }

    #[test]
    fn this_process_is_listed() {
        assert!(all_processes().unwrap().iter().any(|process| process.identity.id == getpid() && !process.is_dead));
    }

    #[test]
    fn preexisting_processes_are_left_out_with_their_children_unless_their_id_was_reused() {
        let all = vec![process(2, 1, false), process(3, 2, false), process(4, 1, false), process(5, 4, false)];
        let found = |strangers| descendants(pid(1), all.clone(), &strangers);
        assert_eq!(found(HashSet::from([process(2, 1, false).identity])), [all[2], all[3]]);
        assert_eq!(found(HashSet::from([ProcessIdentity { id: pid(2), began: 1 }])).len(), 4);
    }

    #[test]
    fn a_signal_is_not_sent_to_another_process_with_the_same_number() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let id = Pid::from_child(&child);
        let ProcessIdentity { began, .. } = look_up(id).unwrap().identity;
        send_signal(Signal::TERM, ProcessIdentity { id, began: began + 1 }).unwrap();
        send_signal(Signal::KILL, ProcessIdentity { id, began }).unwrap();
        assert_eq!(
            child.wait().unwrap().signal(),
            Some(Signal::KILL.as_raw()),
            "the first signal must not reach the process"
        );
    }
}
