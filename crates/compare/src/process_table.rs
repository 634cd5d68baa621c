//! The running processes of the machine, from /proc: who is whose child, CPU time, memory.
//!
//! A process is identified by its id and start time, and signalled only while both agree, so a later
//! process with the same id is neither counted nor ended. Processes that end while they are read are
//! left out.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::path::Path;

use rustix::io::Errno;
use rustix::param::clock_ticks_per_second;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// A process id with its start time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProcessIdentity {
    /// The process id.
    pub id: i32,
    /// In clock ticks since boot.
    pub(crate) began: u64,
}

/// What /proc/PID/stat says, and /proc/PID/task/TID/stat of a thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ProcessStat {
    pub(crate) identity: ProcessIdentity,
    pub(crate) parent: i32,
    /// The process group.
    pub(crate) group: i32,
    pub(crate) session: i32,
    /// It has ended, but nobody has waited for it.
    pub(crate) is_dead: bool,
    /// Of the process and its reaped children.
    pub(crate) family_cpu_seconds: f64,
    pub(crate) own_cpu_seconds: f64,
}

/// These processes and their descendants that run; parents before children if no root descends from another one.
pub(crate) fn trees(all: &[ProcessStat], roots: Vec<ProcessIdentity>) -> Vec<ProcessIdentity> {
    let mut children: HashMap<i32, Vec<ProcessIdentity>> = HashMap::new();
    for process in all {
        children.entry(process.parent).or_default().push(process.identity);
    }
    let mut found = roots;
    let mut next = 0;
    while let Some(process) = found.get(next) {
        found.extend(children.remove(&process.id).unwrap_or_default());
        next += 1;
    }
    let running: HashSet<ProcessIdentity> =
        all.iter().filter(|process| !process.is_dead).map(|process| process.identity).collect();
    let mut seen = HashSet::new();
    found.retain(|process| running.contains(process) && seen.insert(*process));
    found
}

/// The identity of a process that runs; None if it has ended.
pub(crate) fn identify(id: i32) -> Option<ProcessIdentity> {
    read_running(id).map(|stat| stat.identity)
}

/// CPU seconds of a process and of its children that have ended; 0 if it has ended itself.
pub(crate) fn cpu_seconds(process: ProcessIdentity) -> f64 {
    read_running(process.id).filter(|stat| stat.identity == process).map_or(0.0, |stat| stat.family_cpu_seconds)
}

/// CPU seconds of each running thread of a process.
pub(crate) fn thread_cpu_seconds(process: ProcessIdentity) -> Vec<(ProcessIdentity, f64)> {
    let threads = numbered_entries(Path::new(&format!("/proc/{}/task", process.id))).unwrap_or_default();
    let read = |id: i32| read_stat(&format!("/proc/{}/task/{id}/stat", process.id), id);
    threads
        .into_iter()
        .filter_map(read)
        .filter(|stat| !stat.is_dead)
        .map(|stat| (stat.identity, stat.own_cpu_seconds))
        .collect()
}

/// Memory of a process in bytes: its part of what it shares with others (Pss). If that may not be read, all that is
/// resident (`VmRSS`). 0 if it has ended.
pub(crate) fn resident_bytes(process: ProcessIdentity) -> u64 {
    let read = |file: &str| fs::read_to_string(format!("/proc/{}/{file}", process.id)).unwrap_or_default();
    let bytes = kilobytes(&read("smaps_rollup"), "Pss:").or_else(|| kilobytes(&read("status"), "VmRSS:"));
    bytes.unwrap_or(0) * 1024
}

fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// Sends a signal. A process that is already gone is not an error.
///
/// # Errors
///
/// This process may not send it.
pub fn send_signal(process: ProcessIdentity, signal: Signal) -> io::Result<()> {
    let Some(id) = Pid::from_raw(process.id) else { return Ok(()) };
    let sent = pidfd_open(id, PidfdFlags::empty()).and_then(|handle| {
        // The handle now pins the process, so this check cannot race with a reused id.
        match identify(process.id) == Some(process) {
            true => pidfd_send_signal(handle, signal),
            false => Err(Errno::SRCH),
        }
    });
    match sent {
        Err(Errno::SRCH) => Ok(()),
        sent => sent.map_err(io::Error::from),
    }
}

/// Those that run, and those that nobody has waited for.
pub(crate) fn all_processes() -> io::Result<Vec<ProcessStat>> {
    let read = |id: i32| read_stat(&format!("/proc/{id}/stat"), id);
    Ok(numbered_entries(Path::new("/proc"))?.into_iter().filter_map(read).collect())
}

fn numbered_entries(folder: &Path) -> io::Result<Vec<i32>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(folder)? {
        numbers.extend(entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
    }
    Ok(numbers)
}

fn read_running(id: i32) -> Option<ProcessStat> {
    read_stat(&format!("/proc/{id}/stat"), id).filter(|stat| !stat.is_dead)
}

/// None for a process that is gone.
fn read_stat(path: &str, id: i32) -> Option<ProcessStat> {
    parse_stat(id, &fs::read(path).ok()?, clock_ticks_per_second() as f64)
}

/// Parses `1234 (name) S 1 ...` (proc_pid_stat(5)). The name may contain any bytes.
fn parse_stat(id: i32, stat: &[u8], ticks_per_second: f64) -> Option<ProcessStat> {
    let after_name = stat.iter().rposition(|octet| *octet == b')')? + 1;
    let fields: Vec<&str> = str::from_utf8(&stat[after_name..]).ok()?.split_ascii_whitespace().collect();
    // The first of these is field 3, the state.
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    let own_ticks = number(14)? + number(15)?;
    Some(ProcessStat {
        identity: ProcessIdentity { id, began: number(22)? },
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        is_dead: matches!(*fields.first()?, "Z" | "X" | "x"),
        family_cpu_seconds: (own_ticks + number(16)? + number(17)?) as f64 / ticks_per_second,
        own_cpu_seconds: own_ticks as f64 / ticks_per_second,
    })
}

#[cfg(test)]
impl ProcessStat {
    /// Without a parent, and in no group.
    pub(crate) fn running(id: i32, began: u64) -> ProcessStat {
        ProcessStat {
            identity: ProcessIdentity { id, began },
            parent: 0,
            group: 0,
            session: 0,
            is_dead: false,
            family_cpu_seconds: 0.0,
            own_cpu_seconds: 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_name_may_have_any_bytes() {
        const REST: &[u8] = b"5 6 7 8 9 10 11 12 13 100 50 30 20 18 19 20 21 4711 23";
        let parse = |stat: &[u8]| parse_stat(7, &[stat, REST].concat(), 100.0);
        let found = parse(b"7 (a) Z 9 (\xff) S 3 ").unwrap();
        assert_eq!((found.identity.began, found.parent, found.group, found.session), (4711, 3, 5, 6));
        assert!(!found.is_dead);
        assert_eq!((found.own_cpu_seconds, found.family_cpu_seconds), (1.5, 2.0));
        assert!(parse(b"7 (sh) Z 3 ").unwrap().is_dead);
        assert_eq!(super::parse_stat(7, b"7 (sh) S 1 7", 100.0), None);
        assert_eq!(super::parse_stat(7, b"", 100.0), None);
    }

    #[test]
    fn memory_is_a_line_in_kilobytes() {
        let rollup =
            "55d0c2a51000-7ffd8b9f0000 ---p 00000000 00:00 0 [rollup]\nRss: 900 kB\nPss:     417 kB\nPss_Dirty: 5 kB\n";
        assert_eq!(kilobytes(rollup, "Pss:"), Some(417));
        assert_eq!(kilobytes("Name:\tsh\nVmRSS:\t    1984 kB\n", "VmRSS:"), Some(1984));
        assert_eq!(kilobytes("", "Pss:"), None);
    }

    /// Eight that share nearly everything need little more than one.
    #[test]
    fn memory_that_processes_share_counts_once() {
        let start =
            |count: usize| -> Vec<_> { (0..count).map(|_| Command::new("sleep").arg("60").spawn().unwrap()).collect() };
        let mut children = start(8);
        let identities: Vec<ProcessIdentity> =
            children.iter().map(|child| identify(child.id().cast_signed()).unwrap()).collect();
        let is_readable = fs::read_to_string(format!("/proc/{}/smaps_rollup", identities[0].id)).is_ok();
        let resident = |identity: &ProcessIdentity| {
            let status = fs::read_to_string(format!("/proc/{}/status", identity.id)).unwrap();
            kilobytes(&status, "VmRSS:").unwrap() * 1024
        };
        let (shared, whole): (u64, u64) =
            (identities.iter().copied().map(resident_bytes).sum(), identities.iter().map(resident).sum());
        children.iter_mut().for_each(|child| child.kill().and_then(|()| child.wait()).map(drop).unwrap());
        assert!(shared > 0 && (!is_readable || shared < whole), "{shared} of {whole}");
    }

    #[test]
    fn a_child_is_found_below_its_parent_and_signalled_only_by_its_own_start_time() {
        let mut child = Command::new("sleep").arg("60").process_group(0).spawn().unwrap();
        let identity = identify(child.id().cast_signed()).unwrap();
        let this = identify(std::process::id().cast_signed()).unwrap();
        assert!(trees(&all_processes().unwrap(), vec![this]).contains(&identity));
        assert!(resident_bytes(identity) > 0);
        assert_eq!(thread_cpu_seconds(identity).len(), 1);
        send_signal(ProcessIdentity { began: identity.began + 1, ..identity }, Signal::TERM).unwrap();
        send_signal(identity, Signal::KILL).unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(Signal::KILL.as_raw()), "the first signal must not arrive");
        assert_eq!(identify(identity.id), None);
    }
}
