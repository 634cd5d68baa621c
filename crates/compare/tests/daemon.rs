//! A daemon that forks away belongs to the group that started it, without a control group too. In a process of its
//! own, since orphans of other tests would be taken for it.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use compare::ProcessIdentity;
use compare::cpu::CpuGroup;

const LONG: Duration = Duration::from_secs(20);

#[test]
fn a_daemon_that_forks_away_is_counted_and_ended_and_later_groups_leave_it_alone() {
    let mut group = CpuGroup::tree();
    let mut launcher = Command::new("sh");
    launcher.args(["-c", "setsid sh -c 'sleep 61 & exec sleep 62' & exit 0"]).process_group(0);
    let mut child = launcher.spawn().unwrap();
    group.watch(child.id().cast_signed());
    child.wait().unwrap();
    let daemons = await_daemons(&group);
    let mut other = CpuGroup::tree();
    assert!(other.processes().is_empty());
    other.end(LONG).unwrap();
    assert_eq!(group.processes().len(), 2);
    assert!(group.resident_bytes() > 0);
    group.end(LONG).unwrap();
    let is_there = |process: &ProcessIdentity| Path::new(&format!("/proc/{}", process.id)).exists();
    assert!(!daemons.iter().any(is_there), "they are dead, and were waited for");
}

/// Both, in a session of their own.
fn await_daemons(group: &CpuGroup) -> Vec<ProcessIdentity> {
    let begun = Instant::now();
    loop {
        let found = group.processes();
        let is_sleep = |process: &ProcessIdentity| {
            let command = std::fs::read(format!("/proc/{}/comm", process.id)).unwrap_or_default();
            command == b"sleep\n"
        };
        if found.len() == 2 && found.iter().all(is_sleep) {
            return found;
        }
        assert!(begun.elapsed() < LONG, "{found:?}");
        thread::sleep(Duration::from_millis(10));
    }
}
