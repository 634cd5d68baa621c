//! Processes whose CPU is counted together, and which end together.
//!
//! CPU is counted by a control group if one can be made (version 1 `cpuacct.usage`, version 2
//! `cpu.stat`), so that short-lived children count, or by that of a systemd unit. Otherwise the trees
//! of the watched processes in /proc are summed, which misses grandchildren that have ended;
//! [`CpuGroup::source`] says which it is. CPU is user plus system time in seconds.
//!
//! A group that was made here ends its processes when it is dropped. Those of a unit, and those that
//! are only watched, are never signalled. Without a control group, an orphan in a session of its own is
//! taken for a daemon of the group, so there should be one such group of servers at a time.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::descendants::{self, Family};
use crate::error::CompareError;
use crate::process_table::{self, ProcessIdentity};

/// Where control groups are mounted.
const CGROUP: &str = "/sys/fs/cgroup";
/// The controllers that count CPU in version 1; some distributions mount two in one place.
const V1_CONTROLLERS: [&str; 2] = ["cpuacct", "cpu,cpuacct"];
const V1_USAGE: &str = "cpuacct.usage";
const V2_USAGE: &str = "cpu.stat";
const MEMBERS: &str = "cgroup.procs";
/// The names of control groups begin with this, the process that made them, and its namespace of process ids: in
/// another namespace, its id is that of another process, or of none.
const NAME_START: &str = "mailrace-compare-";
/// How long processes may take to end when the group is dropped, before SIGKILL.
const DROP_TIME_MAX: Duration = Duration::from_secs(2);
/// How long a process may take to die after SIGKILL.
const KILL_TIME_MAX: Duration = Duration::from_secs(10);
/// How often to look whether processes have ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Runs in the child: enters the group before it becomes the program, so that all CPU is counted.
const ENTER: &str = r#"echo $$ >"$0/cgroup.procs" && exec "$@""#;

/// Makes the names of control groups unique in this process.
static NUMBER: AtomicU32 = AtomicU32::new(0);

/// Processes whose CPU is counted together.
#[derive(Debug)]
pub struct CpuGroup {
    control_group: Option<ControlGroup>,
    /// Whether the processes and the control group are to end with this value.
    is_own: bool,
    /// Counted with their descendants if there is no control group.
    roots: Vec<ProcessIdentity>,
    /// If this is set, orphans belong to the group, except these, which were there before.
    orphans_except: Option<HashSet<ProcessIdentity>>,
}

#[derive(Debug)]
struct ControlGroup {
    folder: PathBuf,
    version: u32,
}

/// How CPU is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuSource {
    /// By a control group of this version.
    ControlGroup(u32),
    /// By the processes in /proc.
    ProcessTree,
}

/// CPU seconds of each thread of a group at one moment.
#[derive(Clone, Debug, Default)]
pub struct ThreadTimes(HashMap<ProcessIdentity, f64>);

impl CpuGroup {
    /// A new group, without processes, in a control group of its own if the system allows it. `name`
    /// is part of that one's name.
    #[must_use]
    pub fn create(name: &str) -> CpuGroup {
        let number = NUMBER.fetch_add(1, Relaxed);
        let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let name = format!("{}{number}-{name}", name_start(std::process::id()));
        match ControlGroup::create(&name) {
            Some(group) => CpuGroup::own(Some(group), None),
            None => CpuGroup::tree(),
        }
    }

    /// A new group, without processes, that is counted by the trees of its processes and of daemons among them.
    #[must_use]
    pub fn tree() -> CpuGroup {
        CpuGroup::own(None, Some(descendants::adopted()))
    }

    /// A new group for a command and its children, beside that of a server.
    #[must_use]
    pub(crate) fn of_command() -> CpuGroup {
        CpuGroup::own(None, None)
    }

    fn own(control_group: Option<ControlGroup>, orphans_except: Option<HashSet<ProcessIdentity>>) -> CpuGroup {
        // Every kernel that has pidfd_open(2) has subreapers.
        let _ = descendants::become_subreaper();
        CpuGroup { control_group, is_own: true, roots: Vec::new(), orphans_except }
    }

    /// The running processes of others: only counted, never ended.
    #[must_use]
    pub fn watching() -> CpuGroup {
        CpuGroup { control_group: None, is_own: false, roots: Vec::new(), orphans_except: None }
    }

    /// The processes of a systemd unit, such as `postfix.service`: only counted, never ended.
    /// `control_group` is what `systemctl show --property=ControlGroup --value` prints for it.
    ///
    /// # Errors
    ///
    /// The unit does not run, or no CPU is counted for it (`CPUAccounting=yes` does that).
    pub fn of_unit(unit: &str, control_group: &str) -> Result<CpuGroup, CompareError> {
        let found = ControlGroup::of_path(control_group.trim());
        let found = found.ok_or_else(|| {
            CompareError::Failed(format!(
                "{unit} has no control group that counts its CPU: start it, or set CPUAccounting=yes"
            ))
        })?;
        Ok(CpuGroup { control_group: Some(found), is_own: false, roots: Vec::new(), orphans_except: None })
    }

    /// Ends what is left in the control groups of this user's comparisons that were killed, and removes these. Returns
    /// the names of the groups in which processes were left.
    #[must_use]
    pub fn end_left_behind() -> Vec<String> {
        let mut names = Vec::new();
        for (name, control_group) in ControlGroup::left_behind() {
            let mut group = CpuGroup::own(Some(control_group), None);
            let is_used = !group.processes().is_empty();
            if group.end(DROP_TIME_MAX).is_ok() && is_used {
                names.push(name);
            }
        }
        names
    }

    /// How CPU is counted.
    #[must_use]
    pub fn source(&self) -> CpuSource {
        let version = self.control_group.as_ref().map(|group| group.version);
        version.map_or(CpuSource::ProcessTree, CpuSource::ControlGroup)
    }

    /// The command that enters the group and becomes `argv`.
    #[must_use]
    pub fn command(&self, argv: &[String]) -> Vec<String> {
        let Some(group) = &self.control_group else { return argv.to_vec() };
        let words = ["/bin/sh", "-c", ENTER].map(str::to_owned).into_iter();
        words.chain([group.folder.display().to_string()]).chain(argv.iter().cloned()).collect()
    }

    /// Counts a process that runs, with its descendants. A control group counts its members anyway.
    pub fn watch(&mut self, id: i32) {
        self.roots.extend(process_table::identify(id));
    }

    /// The processes that run.
    #[must_use]
    pub fn processes(&self) -> Vec<ProcessIdentity> {
        let mut found = self.control_group.as_ref().map_or_else(Vec::new, ControlGroup::members);
        // One that was just started may not have entered its control group yet.
        let family = Family { roots: &self.roots, orphans_except: self.orphans_except.as_ref() };
        for process in family.running() {
            if !found.contains(&process) {
                found.push(process);
            }
        }
        found
    }

    /// CPU seconds so far.
    ///
    /// # Errors
    ///
    /// The control group cannot be read.
    pub fn cpu_seconds(&self) -> Result<f64, CompareError> {
        match &self.control_group {
            Some(group) => group.cpu_seconds().map_err(CompareError::system("reading the CPU of a control group")),
            None => Ok(self.processes().into_iter().map(process_table::cpu_seconds).sum()),
        }
    }

    /// CPU seconds so far of each running thread.
    #[must_use]
    pub fn thread_times(&self) -> ThreadTimes {
        ThreadTimes(self.processes().into_iter().flat_map(process_table::thread_cpu_seconds).collect())
    }

    /// Memory of the running processes in bytes. A page that several of them share counts once; where only root may
    /// look (processes of others), it counts for each.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        self.processes().into_iter().map(process_table::resident_bytes).sum()
    }

    /// Ends the processes of a group that was made here: SIGTERM, and SIGKILL after `time_max`.
    ///
    /// # Errors
    ///
    /// A process survives SIGKILL.
    pub fn end(&mut self, time_max: Duration) -> Result<(), CompareError> {
        if !self.is_own {
            return Ok(());
        }
        let begun = Instant::now();
        let mut asked = HashSet::new();
        // One that may not be signalled is still there at the end, which is an error.
        let send = |process, signal| _ = process_table::send_signal(process, signal);
        // A machine under load may take longer for one pass than a process has to die after the first one.
        let mut killed_at = None;
        loop {
            let running = self.processes();
            let left = running.len();
            if left == 0 {
                break;
            }
            if killed_at.is_some_and(|first: Instant| first.elapsed() >= KILL_TIME_MAX) {
                return Err(CompareError::Failed(format!("{left} processes survive SIGKILL")));
            }
            if begun.elapsed() >= time_max {
                running.into_iter().for_each(|process| send(process, Signal::KILL));
                killed_at.get_or_insert_with(Instant::now);
            } else {
                let new = running.into_iter().filter(|process| asked.insert(*process));
                new.for_each(|process| send(process, Signal::TERM));
            }
            thread::sleep(POLL_INTERVAL);
        }
        self.control_group.take().map_or(Ok(()), ControlGroup::remove)
    }
}

impl Drop for CpuGroup {
    fn drop(&mut self) {
        // Only reached with processes after another error, which is reported.
        let _ = self.end(DROP_TIME_MAX);
    }
}

impl ThreadTimes {
    /// The CPU seconds of the busiest thread since `first`; 0 without threads.
    #[must_use]
    pub fn busiest_since(&self, first: &ThreadTimes) -> f64 {
        let spent = self.0.iter().map(|(thread, seconds)| seconds - first.0.get(thread).unwrap_or(&0.0));
        spent.fold(0.0, f64::max)
    }
}

impl CpuSource {
    /// For people, and for comparing machines: `bench/run` uses the same words.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            CpuSource::ControlGroup(1) => format!("cgroup v1, {V1_USAGE}"),
            CpuSource::ControlGroup(version) => format!("cgroup v{version}, {V2_USAGE}"),
            CpuSource::ProcessTree => {
                "/proc process tree (no control group could be made; CPU of reaped grandchildren is missed)".to_owned()
            }
        }
    }
}

impl ControlGroup {
    fn create(name: &str) -> Option<ControlGroup> {
        let v1 = V1_CONTROLLERS.map(|controller| (Path::new(CGROUP).join(controller), V1_USAGE, 1));
        let places = v1.into_iter().chain([(PathBuf::from(CGROUP), V2_USAGE, 2)]);
        places.into_iter().find_map(|(parent, proof, version)| {
            let folder = parent.join(name);
            fs::create_dir(&folder).ok()?;
            if folder.join(proof).exists() {
                return Some(ControlGroup { folder, version });
            }
            // An empty folder of another file system; nothing depends on its removal.
            let _ = fs::remove_dir(folder);
            None
        })
    }

    /// The groups of this user's comparisons in this namespace whose process is gone, with their names.
    fn left_behind() -> Vec<(String, ControlGroup)> {
        let v1 = V1_CONTROLLERS.map(|controller| (Path::new(CGROUP).join(controller), V1_USAGE, 1));
        let places = v1.into_iter().chain([(PathBuf::from(CGROUP), V2_USAGE, 2)]);
        let mut found = Vec::new();
        for (parent, proof, version) in places {
            for entry in fs::read_dir(&parent).into_iter().flatten().flatten() {
                let (folder, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
                let is_left = maker_here(&name).is_some_and(|id| process_table::identify(id).is_none());
                let is_own = entry.metadata().is_ok_and(|found| found.uid() == rustix::process::geteuid().as_raw());
                if is_left && is_own && folder.join(proof).exists() {
                    found.push((name, ControlGroup { folder, version }));
                }
            }
        }
        found
    }

    /// The group at a path below the root of the hierarchy.
    fn of_path(path: &str) -> Option<ControlGroup> {
        let below = path.strip_prefix('/').filter(|below| !below.is_empty())?;
        let v1 = V1_CONTROLLERS.map(|controller| (Path::new(CGROUP).join(controller).join(below), V1_USAGE, 1));
        let places = v1.into_iter().chain([(Path::new(CGROUP).join(below), V2_USAGE, 2)]);
        let mut found = places.filter(|(folder, proof, _)| folder.join(proof).exists());
        found.next().map(|(folder, _, version)| ControlGroup { folder, version })
    }

    fn cpu_seconds(&self) -> io::Result<f64> {
        let text = fs::read_to_string(self.folder.join(if self.version == 1 { V1_USAGE } else { V2_USAGE }))?;
        let (digits, per_second) = match self.version {
            1 => (Some(text.trim()), 1e9),
            _ => (text.lines().find_map(|line| line.strip_prefix("usage_usec ")), 1e6),
        };
        let count = digits.and_then(|digits| digits.parse::<u64>().ok());
        let count = count.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "unexpected format"))?;
        Ok(count as f64 / per_second)
    }

    /// The running members, with those of the groups in it.
    fn members(&self) -> Vec<ProcessIdentity> {
        let mut folders = vec![self.folder.clone()];
        let mut found = Vec::new();
        while let Some(folder) = folders.pop() {
            let members = fs::read_to_string(folder.join(MEMBERS)).unwrap_or_default();
            found.extend(members.lines().filter_map(|line| process_table::identify(line.parse().ok()?)));
            let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
            folders.extend(entries.map(|entry| entry.path()).filter(|path| path.is_dir()));
        }
        found
    }

    /// The kernel takes a moment to forget members that have ended.
    fn remove(self) -> Result<(), CompareError> {
        let begun = Instant::now();
        loop {
            match fs::remove_dir(&self.folder) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy && begun.elapsed() < KILL_TIME_MAX => {
                    thread::sleep(POLL_INTERVAL);
                }
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    let what = format!("removing the control group {}", self.folder.display());
                    return Err(CompareError::system(what)(error));
                }
                _ => return Ok(()),
            }
        }
    }
}

/// How the names of the control groups of a process begin.
fn name_start(process: u32) -> String {
    format!("{NAME_START}{process}-{}-", own_namespace())
}

/// The id of the process that made the control group of this name; None if it is of something else, or was made in
/// another namespace of process ids.
fn maker_here(name: &str) -> Option<i32> {
    let mut numbers = name.strip_prefix(NAME_START)?.split('-');
    let (process, namespace) = (numbers.next()?.parse().ok()?, numbers.next()?.parse::<u64>().ok()?);
    (namespace == own_namespace()).then_some(process)
}

/// The number of this process's namespace of process ids.
fn own_namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino())
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt as _;
    use std::process::Command;

    use super::*;

    #[test]
    fn the_busiest_thread_may_be_one_that_began_later() {
        let [one, two] = [1, 2].map(|id| ProcessIdentity { id, began: 7 });
        let first = ThreadTimes(HashMap::from([(one, 5.0)]));
        let last = ThreadTimes(HashMap::from([(one, 6.0), (two, 3.0)]));
        assert_eq!(last.busiest_since(&first), 3.0);
        assert_eq!(ThreadTimes::default().busiest_since(&first), 0.0);
    }

    /// Short-lived children are what a process tree misses once they were reaped by one that ended, too.
    #[test]
    fn cpu_and_memory_of_children_count_and_all_of_them_end() {
        let mut group = CpuGroup::create("test");
        let line = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; sleep 60 & sleep 60 & wait";
        let argv = group.command(&["sh", "-c", line].map(str::to_owned));
        let mut child = Command::new(&argv[0]).args(&argv[1..]).process_group(0).spawn().unwrap();
        group.watch(child.id().cast_signed());
        let begun = Instant::now();
        while group.processes().len() < 3 {
            assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", group.processes());
            thread::sleep(POLL_INTERVAL);
        }
        assert!(group.cpu_seconds().unwrap() > 0.0);
        assert!(group.resident_bytes() > 0);
        let processes = group.processes();
        group.end(Duration::from_secs(5)).unwrap();
        child.wait().unwrap();
        assert!(processes.iter().all(|process| process_table::identify(process.id) != Some(*process)));
    }

    #[test]
    fn a_process_that_ignores_sigterm_is_killed_when_the_group_is_dropped() {
        let mut group = CpuGroup::create("stubborn");
        let argv = group.command(&["sh", "-c", "trap '' TERM; while :; do sleep 1; done"].map(str::to_owned));
        let mut child = Command::new(&argv[0]).args(&argv[1..]).process_group(0).spawn().unwrap();
        group.watch(child.id().cast_signed());
        drop(group);
        assert!(!child.wait().unwrap().success());
    }

    #[test]
    fn control_groups_are_named_after_the_process_that_made_them() {
        let name = format!("{}0-postfix-2", name_start(4711));
        assert_eq!(maker_here(&name), Some(4711));
        // A comparison in another namespace may run.
        assert_eq!(maker_here(&format!("mailrace-compare-4711-{}-0-postfix", own_namespace() + 1)), None);
        assert_eq!(maker_here("mailrace-compare-x"), None);
        assert_eq!(maker_here("system.slice"), None);
    }

    /// Where no control group can be made, none can be left behind.
    #[test]
    fn what_a_killed_comparison_left_behind_is_ended() {
        let mut gone = Command::new("true").spawn().unwrap();
        gone.wait().unwrap();
        let name = format!("{}0-test", name_start(gone.id()));
        let Some(control_group) = ControlGroup::create(&name) else { return };
        let group = CpuGroup::own(Some(control_group), None);
        let argv = group.command(&["sleep", "60"].map(str::to_owned));
        let mut child = Command::new(&argv[0]).args(&argv[1..]).process_group(0).spawn().unwrap();
        let begun = Instant::now();
        while group.processes().is_empty() {
            assert!(begun.elapsed() < Duration::from_secs(60));
            thread::sleep(POLL_INTERVAL);
        }
        assert!(CpuGroup::end_left_behind().contains(&name));
        assert!(!child.wait().unwrap().success());
        assert!(!CpuGroup::end_left_behind().contains(&name));
    }

    #[test]
    fn watched_processes_are_not_ended() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let mut group = CpuGroup::watching();
        group.watch(child.id().cast_signed());
        assert_eq!(group.processes().len(), 1);
        group.end(Duration::ZERO).unwrap();
        drop(group);
        assert_eq!(child.try_wait().unwrap(), None);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
