//! `tune apply` and `tune revert` on hosts made of files, with a stop at each of their steps.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use tune::ApplyTarget;
use tune::apply::{
    ApplyError, ApplyRequest, Change, ChangeKind, ConfigFile, FileState, Files, KnobRequest, Plan, RealFiles,
    TemporaryChanges, apply, check_finished, end_measurement, live_changes, plan, plan_revert, revert,
};

use super::{CONFIG, SPOILT, Setting, TestHost};

const CONFIG_PATH: &str = "/etc/mailrace/mailrace.toml";
/// More steps than anything here takes.
const ENDLESS: i64 = i64::MAX;

/// Every file and folder with its mode and its content.
type Tree = BTreeMap<String, (u32, Option<Vec<u8>>)>;

/// The files of a host, which stop at a step as if the process were killed: that step is half done at most, and no later
/// one is done.
struct StoppingFiles {
    files: RealFiles,
    folder: std::path::PathBuf,
    /// The steps that are still done.
    left: AtomicI64,
    /// Whether files in /proc and /sys behave as those of a kernel.
    has_kernel: bool,
    /// A file that this process may not write.
    forbidden: Option<&'static str>,
    /// The folders that were synced, in this order.
    synced: Mutex<Vec<String>>,
}

impl StoppingFiles {
    fn step(&self) -> io::Result<()> {
        match self.left.fetch_sub(1, Relaxed) {
            left if left > 0 => Ok(()),
            _ => Err(io::Error::other("killed")),
        }
    }

    fn text(&self, path: &str) -> String {
        std::fs::read_to_string(self.folder.join(&path[1..])).unwrap()
    }

    fn set(&self, path: &str, text: &str) {
        std::fs::write(self.folder.join(&path[1..]), text).unwrap();
    }

    /// The same if the host has this value.
    fn derive(&self, path: &str, text: &str) {
        if self.folder.join(&path[1..]).exists() {
            self.set(path, text);
        }
    }
}

impl Files for StoppingFiles {
    fn state(&self, path: &str) -> io::Result<Option<FileState>> {
        self.files.state(path)
    }

    fn is_folder(&self, path: &str) -> bool {
        self.files.is_folder(path)
    }

    fn is_private_folder(&self, path: &str) -> io::Result<bool> {
        self.files.is_private_folder(path)
    }

    fn is_kernel_value(&self, path: &str) -> io::Result<bool> {
        Ok(self.has_kernel && (path.starts_with("/proc/") || path.starts_with("/sys/")))
    }

    fn check_right(&self, path: &str) -> io::Result<()> {
        match self.forbidden == Some(path) {
            true => Err(io::ErrorKind::PermissionDenied.into()),
            false => self.files.check_right(path),
        }
    }

    fn lock(&self, folder: &str) -> io::Result<Option<OwnedFd>> {
        self.files.lock(folder)
    }

    fn make_folder(&self, path: &str, mode: u32) -> io::Result<()> {
        self.step().and_then(|()| self.files.make_folder(path, mode))
    }

    fn remove_folder(&self, path: &str) -> io::Result<()> {
        self.step().and_then(|()| self.files.remove_folder(path))
    }

    /// The only operation of which a part can be done. It does not sync: a kill, unlike a power failure, loses nothing.
    fn create(&self, path: &str, state: &FileState) -> io::Result<()> {
        let is_last = self.left.load(Relaxed) == 0;
        let step = self.step();
        if step.is_err() && !is_last {
            return step;
        }
        let octets = if step.is_ok() { &state.octets[..] } else { &state.octets[..state.octets.len() / 2] };
        let path = self.folder.join(&path[1..]);
        std::fs::File::create_new(&path)?.write_all(octets)?;
        std::fs::set_permissions(&path, PermissionsExt::from_mode(state.mode))?;
        step
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.step().and_then(|()| self.files.rename(from, to))
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        self.step().and_then(|()| self.files.remove(path))
    }

    fn sync_folder(&self, path: &str) -> io::Result<()> {
        self.synced.lock().unwrap().push(path.to_owned());
        self.step()
    }

    /// What Linux does: tabs between numbers, brackets around the chosen word, one of a pair is 0, and a new scheduler
    /// brings its own number of requests.
    fn write_value(&self, path: &str, value: &str) -> io::Result<()> {
        self.step()?;
        assert!(self.has_kernel && self.files.state(path)?.is_some());
        let former = self.text(path).replace(['[', ']'], "");
        let is_choice = self.text(path).contains('[');
        if is_choice && !former.split_ascii_whitespace().any(|word| word == value) || value == "bbr" {
            return Err(io::ErrorKind::NotFound.into());
        }
        let chosen = former.trim_end().split(' ').map(|word| match word == value {
            true => format!("[{word}]"),
            false => word.to_owned(),
        });
        let separator = if former.contains('\t') { "\t" } else { " " };
        let chosen = if is_choice { chosen.collect::<Vec<_>>().join(" ") } else { value.replace(' ', separator) };
        self.set(path, &format!("{chosen}\n"));
        match path {
            "/proc/sys/vm/dirty_ratio" => self.set("/proc/sys/vm/dirty_bytes", "0\n"),
            "/proc/sys/vm/dirty_bytes" => self.set("/proc/sys/vm/dirty_ratio", "0\n"),
            "/sys/block/sda/queue/scheduler" => self.set("/sys/block/sda/queue/nr_requests", "64\n"),
            "/sys/block/sda/queue/nr_requests" => self.derive("/sys/block/sda/queue/iosched/async_depth", "49\n"),
            "/sys/kernel/mm/transparent_hugepage/enabled" => self.derive("/proc/sys/vm/min_free_kbytes", "67584\n"),
            "/proc/sys/net/ipv4/tcp_congestion_control" => {
                self.derive("/proc/sys/net/ipv4/tcp_allowed_congestion_control", "reno cubic dctcp\n");
            }
            _ => {}
        }
        Ok(())
    }
}

impl TestHost {
    /// A host on which a file of each kind is to be changed, with former files that are hard to put back.
    fn to_change() -> TestHost {
        let mut host = TestHost::sound();
        host.config = format!("# ours\n{}# no line end", CONFIG.replace("threads = 2\n", "threads = 8 # too many\n"));
        host.write(&CONFIG_PATH[1..], host.config.as_bytes());
        host.write("proc/sys/net/core/somaxconn", b"128\n");
        host.write("proc/sys/net/ipv4/tcp_rmem", b"4096\t131072\t131072\n");
        host.write("proc/42/limits", b"Max open files 1024 1024 files\n");
        host.write("sys/block/sda/queue/scheduler", b"none mq-deadline [bfq]\n");
        host.write("sys/kernel/mm/transparent_hugepage/enabled", b"[always] madvise never\n");
        host.write("etc/sysctl.d/60-mailrace.conf", b"vm.swappiness = 10\r\nnet.core.somaxconn = 200");
        host.set_mode("etc/sysctl.d/60-mailrace.conf", 0o400);
        std::fs::create_dir_all(host.folder.path().join("var/lib")).unwrap();
        host
    }

    fn set_mode(&self, path: &str, mode: u32) {
        std::fs::set_permissions(self.folder.path().join(path), PermissionsExt::from_mode(mode)).unwrap();
    }

    fn text(&self, path: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(path)).unwrap()
    }

    fn stopping(&self, left: i64, has_kernel: bool) -> StoppingFiles {
        let files = RealFiles::below(self.folder.path()).unwrap();
        let folder = self.folder.path().to_owned();
        StoppingFiles {
            files,
            folder,
            left: AtomicI64::new(left),
            has_kernel,
            forbidden: None,
            synced: Mutex::default(),
        }
    }

    fn files(&self) -> Arc<dyn Files> {
        Arc::new(RealFiles::below(self.folder.path()).unwrap())
    }

    fn plan_with(&self, files: &dyn Files, request: &ApplyRequest) -> Result<Plan, ApplyError> {
        let config = ConfigFile { path: Ok(CONFIG_PATH.into()), accepts: &accepts };
        plan(&self.host(), files, &self.check(), request, &config)
    }

    fn plan(&self, knobs: &[&str]) -> Result<Plan, ApplyError> {
        let knobs = knobs.iter().map(|knob| knob.parse().unwrap()).collect();
        self.plan_with(&*self.files(), &ApplyRequest { knobs, all_sure: false })
    }

    /// Applies all findings with these files.
    fn apply_all(&self, files: &Arc<dyn Files>) -> Result<(), ApplyError> {
        apply(files, &self.plan_with(&**files, &ApplyRequest::default())?)
    }

    fn tree(&self) -> Tree {
        let mut tree = Tree::new();
        let mut folders = vec![self.folder.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                let metadata = path.symlink_metadata().unwrap();
                let content = metadata.is_file().then(|| std::fs::read(&path).unwrap());
                tree.insert(path.display().to_string(), (metadata.permissions().mode(), content));
                if metadata.is_dir() {
                    folders.push(path);
                }
            }
        }
        tree
    }
}

fn accepts(text: &str) -> Result<(), String> {
    config::Config::parse(text, "test", "mx.example.org").map(drop).map_err(|error| error.to_string())
}

/// The number of steps of a whole application.
fn steps_of_apply(has_kernel: bool) -> i64 {
    let host = TestHost::to_change();
    let stopping = Arc::new(host.stopping(ENDLESS, has_kernel));
    let files: Arc<dyn Files> = stopping.clone();
    host.apply_all(&files).unwrap();
    ENDLESS - stopping.left.load(Relaxed)
}

#[test]
fn after_a_stop_at_any_step_of_apply_a_revert_restores_everything() {
    for has_kernel in [false, true] {
        let all = steps_of_apply(has_kernel);
        assert!(all > 30, "{all}");
        for step in 0..=all {
            let host = TestHost::to_change();
            let original = host.tree();
            let stopped: Arc<dyn Files> = Arc::new(host.stopping(step, has_kernel));
            assert_eq!(host.apply_all(&stopped).is_ok(), step == all, "step {step} of {all}");
            let files: Arc<dyn Files> = Arc::new(host.stopping(ENDLESS, has_kernel));
            // Before the journal, nothing is changed; after the last step, nothing is unfinished.
            if let Err(error) = check_finished(&*files) {
                assert!(error.to_string().contains("mailrace tune revert"), "{error}");
                let before = host.tree();
                assert!(host.apply_all(&files).is_err());
                assert!(host.tree() == before, "an apply after step {step} changed something");
            }
            revert(&files).unwrap();
            assert_same(&host, &original, &format!("step {step} of {all}, kernel: {has_kernel}"));
        }
    }
}

fn assert_same(host: &TestHost, original: &Tree, what: &str) {
    let tree = host.tree();
    let differs = |path: &&String| tree.get(*path) != original.get(*path);
    let paths: Vec<&String> = tree.keys().chain(original.keys()).filter(differs).collect();
    assert!(paths.is_empty(), "{what}: {paths:?} differ");
}

/// Each attempt is stopped one step later than the one before.
#[test]
fn after_stops_at_all_steps_of_revert_the_last_one_restores_everything() {
    for has_kernel in [false, true] {
        let all = steps_of_apply(has_kernel);
        for step in (0..all).step_by(7).chain([all]) {
            let host = TestHost::to_change();
            let original = host.tree();
            let stopped: Arc<dyn Files> = Arc::new(host.stopping(step, has_kernel));
            assert_eq!(host.apply_all(&stopped).is_ok(), step == all);
            let mut attempts = (0..200).map(|steps| {
                let files: Arc<dyn Files> = Arc::new(host.stopping(steps, has_kernel));
                revert(&files).is_ok()
            });
            assert!(attempts.any(|is_done| is_done));
            assert_same(&host, &original, &format!("apply stopped at {step} of {all}, kernel: {has_kernel}"));
        }
    }
}

#[test]
fn a_revert_that_is_stopped_once_at_any_step_is_finished_by_the_next() {
    for step in 0..200 {
        let host = TestHost::to_change();
        let original = host.tree();
        host.apply_all(&host.files()).unwrap();
        let stopped: Arc<dyn Files> = Arc::new(host.stopping(step, false));
        let is_done = revert(&stopped).is_ok();
        revert(&host.files()).unwrap();
        assert_same(&host, &original, &format!("step {step}"));
        if is_done {
            return;
        }
    }
    panic!("a revert takes more than 200 steps");
}

#[test]
fn what_apply_changes_is_no_finding_any_more() {
    for (knob, changes, _) in SPOILT {
        let mut host = TestHost::spoilt(changes);
        host.write(&CONFIG_PATH[1..], host.config.as_bytes());
        std::fs::create_dir_all(host.folder.path().join("var/lib")).unwrap();
        let report = host.check();
        let finding = report.findings().find(|finding| finding.knob.name == *knob).unwrap();
        assert_eq!(finding.target.is_some(), finding.knob.apply.is_some(), "{knob}: a value for every place");
        assert_eq!(finding.how.starts_with("mailrace tune apply "), finding.target.is_some(), "{}", finding.how);
        let planned = host.plan(&[knob]).unwrap();
        match &finding.knob.apply {
            None => assert!(planned.changes.is_empty() && !planned.preview.advice.is_empty(), "{knob}: advice only"),
            // The limit of the running server changes with its restart.
            Some(ApplyTarget::Unit(_)) => assert!(planned.preview.files[0].text.is_some()),
            Some(_) => {
                apply(&host.files(), &planned).unwrap();
                host.config = host.text(&CONFIG_PATH[1..]);
                let report = host.check();
                let found: Vec<_> = report.findings().map(|finding| &*finding.knob.name).collect();
                assert!(!found.contains(knob), "{knob}: {}", planned.preview);
                let again = host.plan(&[knob]).unwrap();
                assert!(again.preview.is_empty(), "{knob} again: {}", again.preview);
            }
        }
    }
}

#[test]
fn the_plan_shows_differences_values_and_advice() {
    let host = TestHost::to_change();
    host.write("etc/sysctl.d/99-local.conf", b"net.core.somaxconn = 64\n");
    host.write(super::MOUNTINFO, super::MOUNTS.replace("/srv rw,noatime", "/srv rw,relatime").as_bytes());
    let before = host.tree();
    let planned = host.plan_with(&*host.files(), &ApplyRequest::default()).unwrap();
    assert_same(&host, &before, "planning reads only");
    insta::assert_snapshot!(planned.preview.to_string());
    let only_sure = host.plan_with(&*host.files(), &ApplyRequest { knobs: Vec::new(), all_sure: true }).unwrap();
    assert_eq!(only_sure.preview.files.len(), 2, "{}", only_sure.preview);
}

#[test]
fn a_file_that_was_edited_since_is_not_overwritten() {
    let host = TestHost::to_change();
    let original = host.tree();
    host.apply_all(&host.files()).unwrap();
    let edited = host.text(&CONFIG_PATH[1..]) + "\n# mine\n";
    host.write(&CONFIG_PATH[1..], edited.as_bytes());
    host.write("proc/sys/net/core/somaxconn", b"77\n");
    let before = host.tree();
    let refused = revert(&host.files()).unwrap_err().to_string();
    assert!(refused.contains(CONFIG_PATH) && refused.contains("somaxconn was set to 77"), "{refused}");
    assert!(host.plan(&["threads=2"]).map(|plan| apply(&host.files(), &plan)).unwrap().is_err());
    assert_same(&host, &before, "a refused revert changes nothing");
    // What the message says to do.
    std::fs::rename(host.folder.path().join(&CONFIG_PATH[1..]), host.folder.path().join("mine")).unwrap();
    host.write("proc/sys/net/core/somaxconn", b"128\n");
    revert(&host.files()).unwrap();
    assert_eq!(host.text("mine"), edited);
    std::fs::remove_file(host.folder.path().join("mine")).unwrap();
    assert_same(&host, &original, "after the remedy");
}

/// Of a former file and of a new one.
#[test]
fn a_mode_that_was_changed_since_is_not_undone() {
    for (path, mode) in [(&CONFIG_PATH[1..], 0o644), ("etc/udev/rules.d/60-mailrace.rules", 0o644)] {
        let host = TestHost::to_change();
        host.set_mode(&CONFIG_PATH[1..], 0o644);
        let original = host.tree();
        host.apply_all(&host.files()).unwrap();
        host.set_mode(path, 0o600);
        let before = host.tree();
        let refused = revert(&host.files()).unwrap_err().to_string();
        assert!(refused.contains(&format!("/{path} got another mode or owner")), "{refused}");
        assert_same(&host, &before, "a refused revert changes nothing");
        // What the message says to do.
        host.set_mode(path, mode);
        if chown(host.folder.path().join(path), Some(65534), Some(65534)).is_ok() {
            assert!(revert(&host.files()).unwrap_err().to_string().contains("its owner to"));
            chown(host.folder.path().join(path), Some(0), Some(0)).unwrap();
        }
        revert(&host.files()).unwrap();
        assert_same(&host, &original, path);
    }
}

/// Another user could have root write any file by it.
#[test]
fn a_journal_that_another_user_can_have_written_is_not_believed() {
    let host = TestHost::to_change();
    let original = host.tree();
    apply(&host.files(), &host.plan(&["net.core.somaxconn"]).unwrap()).unwrap();
    let is_refused = || {
        let refused = revert(&host.files()).unwrap_err();
        assert!(matches!(&refused, ApplyError::Refused(text) if text.contains("not believed")), "{refused}");
        assert!(check_finished(&*host.files()).is_err() && plan_revert(&*host.files()).is_err());
    };
    for path in ["var/lib/mailrace-tune/journal.json", "var/lib/mailrace-tune"] {
        let path = host.folder.path().join(path);
        let former = path.metadata().unwrap().permissions();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(former.mode() | 0o020)).unwrap();
        is_refused();
        std::fs::set_permissions(&path, former).unwrap();
        // Only root can give a file away.
        if chown(&path, Some(65534), None).is_ok() {
            is_refused();
            chown(&path, Some(0), None).unwrap();
        }
    }
    revert(&host.files()).unwrap();
    assert_same(&host, &original, "the revert");
}

#[test]
fn several_applications_are_put_back_together_and_again_changes_nothing() {
    let host = TestHost::to_change();
    let original = host.tree();
    for knob in ["net.core.somaxconn=300", "net.core.somaxconn=400", "vm.dirty_bytes=64MiB", "vm.dirty_ratio=5"] {
        apply(&host.files(), &host.plan(&[knob]).unwrap()).unwrap();
    }
    assert_eq!(host.text("proc/sys/net/core/somaxconn"), "400\n");
    assert_eq!(
        (host.text("proc/sys/vm/dirty_bytes"), host.text("proc/sys/vm/dirty_ratio")),
        ("0\n".into(), "5\n".into())
    );
    assert!(host.plan(&["vm.dirty_ratio=5"]).unwrap().changes.is_empty());
    let applied = host.tree();
    apply(&host.files(), &host.plan(&["vm.dirty_ratio=5"]).unwrap()).unwrap();
    assert_same(&host, &applied, "again");
    let shown = plan_revert(&*host.files()).unwrap().preview;
    assert!(!shown.is_empty());
    assert_eq!(shown.next_steps, ["systemctl restart mailrace"], "the server reads the backlog when it starts");
    revert(&host.files()).unwrap();
    assert_same(&host, &original, "one revert for all");
    revert(&host.files()).unwrap();
    assert_same(&host, &original, "a second revert");
    assert!(plan_revert(&*host.files()).unwrap().preview.is_empty());
}

#[test]
fn a_change_that_fails_puts_back_this_call_only() {
    let host = TestHost::to_change();
    let original = host.tree();
    let files: Arc<dyn Files> = Arc::new(host.stopping(ENDLESS, true));
    apply(&files, &host.plan(&["vm.swappiness=5"]).unwrap()).unwrap();
    let applied = host.tree();
    let planned = host.plan(&["net.core.somaxconn", "net.ipv4.tcp_congestion_control=bbr"]).unwrap();
    let failed = apply(&files, &planned).unwrap_err();
    assert!(
        matches!(&failed, ApplyError::Failed(text) if text.ends_with("Everything is as it was before")),
        "{failed}"
    );
    assert_same(&host, &applied, "the failed call");
    revert(&files).unwrap();
    assert_same(&host, &original, "the revert of the first call");
    let outdated = apply(&files, &planned).unwrap_err().to_string();
    assert!(outdated.contains("changed meanwhile"), "{outdated}");
    let planned = host.plan(&["net.core.somaxconn", "net.ipv4.tcp_congestion_control=bbr"]).unwrap();
    assert!(matches!(apply(&files, &planned), Err(ApplyError::Failed(_))));
    assert_same(&host, &original, "a failed first call leaves no journal");
}

#[test]
fn nothing_is_changed_without_the_right_to_change_everything() {
    let host = TestHost::to_change();
    let original = host.tree();
    let mut stopping = host.stopping(0, false);
    stopping.forbidden = Some("/proc/sys/net/core/somaxconn");
    let files: Arc<dyn Files> = Arc::new(stopping);
    let refused = host.apply_all(&files).unwrap_err();
    assert!(matches!(&refused, ApplyError::MissingRights(text) if text.contains("net/core/somaxconn")), "{refused}");
    assert_same(&host, &original, "missing rights");
}

/// The folders of /proc/sys deny writing even to root.
#[test]
fn a_value_whose_module_is_gone_does_not_keep_the_rest_from_being_put_back() {
    const TRACKED: &str = "/proc/sys/net/netfilter/nf_conntrack_max";
    let host = TestHost::to_change();
    let files: Arc<dyn Files> = Arc::new(host.stopping(ENDLESS, true));
    std::fs::remove_dir_all(host.folder.path().join("etc/sysctl.d")).unwrap();
    let planned = host.plan(&["net.netfilter.nf_conntrack_max=300000", "vm.swappiness=5"]).unwrap();
    assert!(planned.preview.advice[0].contains("/etc/modules-load.d"), "{:?}", planned.preview.advice);
    apply(&files, &planned).unwrap();
    std::fs::remove_file(host.folder.path().join(&TRACKED[1..])).unwrap();
    let mut stopping = host.stopping(ENDLESS, true);
    stopping.forbidden = Some(TRACKED);
    let files: Arc<dyn Files> = Arc::new(stopping);
    let plan = plan_revert(&*files).unwrap();
    assert_eq!(plan.missing_rights, Vec::<String>::new());
    assert_eq!(plan.preview.advice, [format!("{TRACKED} no longer exists")]);
    assert_eq!(revert(&files).unwrap()[0], format!("{TRACKED} no longer exists"));
    assert_eq!(host.text("proc/sys/vm/swappiness"), "60\n");
    assert!(!host.folder.path().join("etc/sysctl.d").exists());
}

/// Base64 makes a file a third larger, and a journal that is too large could not be read again.
#[test]
fn what_does_not_fit_into_the_journal_is_not_changed() {
    let host = TestHost::to_change();
    let large = format!("{}\n# {}\n", host.config, "x".repeat(3_400_000));
    host.write(&CONFIG_PATH[1..], large.as_bytes());
    let original = host.tree();
    let refused = apply(&host.files(), &host.plan(&["threads"]).unwrap()).unwrap_err();
    assert!(matches!(&refused, ApplyError::Refused(text) if text.contains("larger than")), "{refused}");
    assert_same(&host, &original, "a refused change");
    apply(&host.files(), &host.plan(&["vm.swappiness=5"]).unwrap()).unwrap();
    revert(&host.files()).unwrap();
    assert_same(&host, &original, "the revert");
}

#[test]
fn a_configuration_that_would_be_refused_is_not_written() {
    let host = TestHost::to_change();
    let original = host.tree();
    let refused = host.plan(&["limits.sessions=0", "net.core.somaxconn"]).unwrap_err();
    assert!(matches!(&refused, ApplyError::Configuration(text) if text.contains("sessions")), "{refused}");
    for wrong in ["net.core.somaxconn=many", "net.core.somaxconn=1\n2", "limits.body_memory=1XiB", "resolver=x"] {
        assert!(matches!(host.plan(&[wrong]), Err(ApplyError::Usage(_))), "{wrong:?}");
    }
    let twice = host.plan(&["vm.swappiness=10", "vm.swappiness=20"]).unwrap_err();
    assert!(matches!(&twice, ApplyError::Usage(text) if text.contains("named twice")), "{twice}");
    assert!("net.core.somaxcon".parse::<KnobRequest>().is_err());
    assert_same(&host, &original, "planning");
}

/// A script saw success although nothing was done.
#[test]
fn a_knob_that_is_named_and_cannot_be_changed_is_told_from_one_that_is_as_wanted() {
    let host = TestHost::to_change();
    let unmet = |knobs: &[&str]| host.plan(knobs).unwrap().unmet;
    assert_eq!(unmet(&["mount.sync"]), [""; 0], "it is as wanted");
    assert_eq!(unmet(&["mount.sync=async"]), ["mount.sync"], "advice only");
    assert_eq!(unmet(&["disk.scheduler.ssd=nothing", "net.core.somaxconn"]), ["disk.scheduler.ssd"]);
    assert_eq!(unmet(&["net.core.somaxconn", "vm.swappiness=5"]), [""; 0]);
    assert_eq!(unmet(&[]), [""; 0], "the other findings were not named");
    apply(&host.files(), &host.plan(&["net.core.somaxconn"]).unwrap()).unwrap();
    assert_eq!(unmet(&["net.core.somaxconn"]), [""; 0], "it was changed");
}

#[test]
fn a_link_in_the_place_of_a_file_is_refused() {
    let host = TestHost::to_change();
    let outside = tempfile::NamedTempFile::new().unwrap();
    std::fs::remove_file(host.folder.path().join(&CONFIG_PATH[1..])).unwrap();
    symlink(outside.path(), host.folder.path().join(&CONFIG_PATH[1..])).unwrap();
    let refused = host.plan(&["threads"]).unwrap_err().to_string();
    assert!(refused.contains(CONFIG_PATH) && refused.contains("symbolic link"), "{refused}");
    // A folder that leads out of the root is resolved inside it.
    std::fs::remove_dir_all(host.folder.path().join("etc/sysctl.d")).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    symlink(elsewhere.path(), host.folder.path().join("etc/sysctl.d")).unwrap();
    let _ = host.plan(&["net.core.somaxconn"]).map(|plan| apply(&host.files(), &plan));
    assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 0);
}

#[test]
fn only_one_process_changes_anything() {
    let host = TestHost::to_change();
    let planned = host.plan(&["net.core.somaxconn"]).unwrap();
    let stopping = Arc::new(host.stopping(ENDLESS, false));
    let held = TemporaryChanges::begin(stopping.clone()).unwrap();
    assert_eq!(*stopping.synced.lock().unwrap(), ["/var/lib"], "the folder is on the disk before its journal");
    let mode = host.folder.path().join("var/lib/mailrace-tune").metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o711, "another user could hold the lock of a folder that it can read");
    let refused = apply(&host.files(), &planned).unwrap_err().to_string();
    assert!(refused.contains("another `mailrace tune`"), "{refused}");
    held.put_back().unwrap();
    apply(&host.files(), &planned).unwrap();
}

#[test]
fn a_measurement_puts_back_what_it_changes_and_not_what_was_applied() {
    let host = TestHost::to_change();
    let original = host.tree();
    apply(&host.files(), &host.plan(&["net.core.somaxconn=300"]).unwrap()).unwrap();
    let applied = host.tree();
    let set = |value: &str| {
        let knob = KnobRequest { name: "net.core.somaxconn".into(), value: Some(value.into()) };
        live_changes(&host.host(), &*host.files(), &host.check(), knob).unwrap()
    };
    let mut changes = TemporaryChanges::begin(host.files()).unwrap();
    for value in ["400", "500", "400"] {
        changes.make(&set(value)).unwrap();
        assert_eq!(host.text("proc/sys/net/core/somaxconn"), format!("{value}\n"));
    }
    let file = Change { path: "/etc/new/file".into(), kind: ChangeKind::File(b"x".to_vec()) };
    changes.make(&[file]).unwrap();
    drop(changes);
    assert_same(&host, &applied, "the end of a measurement");
    revert(&host.files()).unwrap();
    assert_same(&host, &original, "the revert");
}

#[test]
fn a_measurement_that_is_stopped_at_any_step_is_ended_by_the_next_command() {
    for step in 0..100 {
        let host = TestHost::to_change();
        let original = host.tree();
        let stopped: Arc<dyn Files> = Arc::new(host.stopping(step, true));
        let made = TemporaryChanges::begin(stopped).and_then(|mut changes| {
            let somaxconn = |value: &str| Change {
                path: "/proc/sys/net/core/somaxconn".into(),
                kind: ChangeKind::Value(value.into()),
            };
            changes.make(&[somaxconn("400")])?;
            changes.make(&[somaxconn("500")])?;
            changes.put_back()
        });
        let files: Arc<dyn Files> = Arc::new(host.stopping(ENDLESS, true));
        match step % 2 {
            0 => revert(&files).map(drop).unwrap(),
            _ => {
                end_measurement(&files).unwrap();
                // Stopped before the journal, nothing was changed, and an empty folder may be left.
                revert(&files).unwrap();
            }
        }
        assert_same(&host, &original, &format!("step {step}"));
        if made.is_ok() {
            return;
        }
    }
    panic!("a measurement takes more than 100 steps");
}

impl TestHost {
    /// Sets a value as a measurement does that is killed before it puts anything back.
    fn measure_and_be_killed(&self, path: &str, value: &str) {
        let stopping = Arc::new(self.stopping(ENDLESS, true));
        let mut changes = TemporaryChanges::begin(stopping.clone()).unwrap();
        changes.make(&[Change { path: path.into(), kind: ChangeKind::Value(value.into()) }]).unwrap();
        stopping.left.store(0, Relaxed);
    }
}

const SOMAXCONN: &str = "/proc/sys/net/core/somaxconn";

#[test]
fn a_value_that_was_set_after_a_killed_measurement_is_not_overwritten() {
    let host = TestHost::to_change();
    let original = host.tree();
    host.apply_all(&host.files()).unwrap();
    host.measure_and_be_killed("/proc/sys/vm/swappiness", "33");
    host.write("proc/sys/vm/swappiness", b"77\n");
    let config = host.text(&CONFIG_PATH[1..]);
    host.write(&CONFIG_PATH[1..], b"# mine\n");
    let before = host.tree();
    let refused = revert(&host.files()).unwrap_err().to_string();
    assert!(refused.contains("swappiness was set to 77") && refused.contains(CONFIG_PATH), "{refused}");
    assert_same(&host, &before, "a refused revert changes nothing");
    host.write("proc/sys/vm/swappiness", b"33\n");
    let refused = revert(&host.files()).unwrap_err().to_string();
    assert!(refused.contains(CONFIG_PATH), "{refused}");
    assert_same(
        &host,
        &before_with(&before, &host, "proc/sys/vm/swappiness", b"33\n"),
        "nor does it end a measurement",
    );
    host.write(&CONFIG_PATH[1..], config.as_bytes());
    revert(&host.files()).unwrap();
    assert_same(&host, &original, "the revert");
}

/// A tree in which one file has another content.
fn before_with(tree: &Tree, host: &TestHost, path: &str, octets: &[u8]) -> Tree {
    let mut tree = tree.clone();
    let file = tree.get_mut(&host.folder.path().join(path).display().to_string()).unwrap();
    file.1 = Some(octets.to_vec());
    tree
}

#[test]
fn a_killed_measurement_of_what_was_applied_is_put_back_first() {
    let host = TestHost::to_change();
    let original = host.tree();
    let files: Arc<dyn Files> = Arc::new(host.stopping(ENDLESS, true));
    apply(&files, &host.plan(&["net.core.somaxconn=300"]).unwrap()).unwrap();
    host.measure_and_be_killed(SOMAXCONN, "400");
    revert(&files).unwrap();
    assert_same(&host, &original, "the revert");
}

/// The kernel has other values then, and nothing is left of the measurement.
#[test]
fn values_of_a_measurement_before_a_restart_of_the_host_are_left_alone() {
    let host = TestHost::to_change();
    host.write("proc/sys/kernel/random/boot_id", b"a\n");
    host.measure_and_be_killed(SOMAXCONN, "400");
    host.write("proc/sys/kernel/random/boot_id", b"b\n");
    host.write(&SOMAXCONN[1..], b"4096\n");
    assert!(plan_revert(&*host.files()).unwrap().preview.is_empty());
    assert!(end_measurement(&host.files()).unwrap());
    assert_eq!(host.text(&SOMAXCONN[1..]), "4096\n");
    assert!(!host.folder.path().join("var/lib/mailrace-tune").exists());
}

#[test]
fn values_that_the_kernel_changes_with_others_are_put_back() {
    let host = TestHost::to_change();
    host.write("proc/sys/vm/dirty_bytes", b"17179869184\n");
    host.write("proc/sys/vm/dirty_ratio", b"0\n");
    let original = host.tree();
    let files: Arc<dyn Files> = Arc::new(host.stopping(ENDLESS, true));
    let plan = host.plan(&["vm.dirty_ratio=7", "disk.scheduler.ssd", "disk.nr_requests=99"]).unwrap();
    apply(&files, &plan).unwrap();
    let now = ["vm/dirty_bytes", "vm/dirty_ratio"].map(|name| host.text(&format!("proc/sys/{name}")));
    assert_eq!(now, ["0\n", "7\n"]);
    assert_eq!(host.text("sys/block/sda/queue/scheduler"), "[none] mq-deadline bfq\n");
    assert_eq!(host.text("sys/block/sda/queue/nr_requests"), "99\n");
    revert(&files).unwrap();
    assert_same(&host, &original, "pairs and followers");
}

#[test]
fn what_the_kernel_derives_from_a_value_is_put_back_after_revert_and_after_a_measurement() {
    let host = TestHost::to_change();
    host.write("sys/block/sda/queue/scheduler", b"none [mq-deadline] bfq\n");
    host.write("sys/block/sda/queue/iosched/async_depth", b"192\n");
    host.write("proc/sys/vm/min_free_kbytes", b"45056\n");
    host.write("proc/sys/net/ipv4/tcp_allowed_congestion_control", b"reno cubic\n");
    let original = host.tree();
    let files: Arc<dyn Files> = Arc::new(host.stopping(ENDLESS, true));
    let knobs = ["disk.nr_requests=99", "memory.huge_pages", "net.ipv4.tcp_congestion_control=dctcp"];
    apply(&files, &host.plan(&knobs).unwrap()).unwrap();
    assert_eq!(host.text("proc/sys/vm/min_free_kbytes"), "67584\n");
    revert(&files).unwrap();
    assert_same(&host, &original, "the revert");
    let knob = KnobRequest { name: "disk.nr_requests".into(), value: Some("77".into()) };
    let mut changes = TemporaryChanges::begin(files.clone()).unwrap();
    changes.make(&live_changes(&host.host(), &*files, &host.check(), knob).unwrap()).unwrap();
    assert_eq!(host.text("sys/block/sda/queue/iosched/async_depth"), "49\n");
    drop(changes);
    assert_same(&host, &original, "the end of the measurement");
}

/// The operator's later value was overwritten by the one of before the application.
#[test]
fn what_the_kernel_derived_from_a_value_and_somebody_set_later_is_not_overwritten() {
    let host = TestHost::to_change();
    host.write("proc/sys/vm/min_free_kbytes", b"45056\n");
    let original = host.tree();
    let files: Arc<dyn Files> = Arc::new(host.stopping(ENDLESS, true));
    apply(&files, &host.plan(&["memory.huge_pages", "disk.scheduler.ssd"]).unwrap()).unwrap();
    host.write("proc/sys/vm/min_free_kbytes", b"131072\n");
    // After a restart, the name may be that of another disk.
    host.write("sys/block/sda/queue/nr_requests", b"1023\n");
    let before = host.tree();
    let refused = revert(&files).unwrap_err().to_string();
    assert!(refused.contains("min_free_kbytes was set to 131072") && refused.contains("set it to 45056"), "{refused}");
    assert!(refused.contains("nr_requests was set to 1023"), "{refused}");
    assert_same(&host, &before, "a refused revert changes nothing");
    // What the message says to do.
    host.write("proc/sys/vm/min_free_kbytes", b"45056\n");
    host.write("sys/block/sda/queue/nr_requests", b"64\n");
    revert(&files).unwrap();
    assert_same(&host, &original, "after the remedy");
}

#[test]
fn what_lasts_over_a_restart_is_what_was_set_last_on_that_disk() {
    let host = TestHost::to_change();
    host.write("sys/block/sda/device/wwid", b"\"; RUN+=\"/bin/sh\n");
    host.write("etc/sysctl.d/99-local.conf", b"vm.dirty_bytes = 1\n");
    for knob in ["vm.dirty_bytes=64MiB", "vm.dirty_ratio=5", "disk.nr_requests=99", "disk.scheduler.ssd"] {
        let plan = host.plan(&[knob]).unwrap();
        match knob {
            "vm.dirty_ratio=5" => assert!(plan.preview.advice[0].contains("99-local.conf sets vm.dirty_bytes")),
            "disk.nr_requests=99" => assert!(plan.preview.advice[0].contains("sda has no serial number")),
            _ => {}
        }
        apply(&host.files(), &plan).unwrap();
    }
    let sysctl = host.text("etc/sysctl.d/60-mailrace.conf");
    assert!(sysctl.contains("vm.dirty_ratio = 5") && !sysctl.contains("dirty_bytes"), "{sysctl}");
    let rules = host.text("etc/udev/rules.d/60-mailrace.rules");
    let place = |attribute| rules.find(attribute).unwrap();
    assert!(place("queue/scheduler") < place("queue/nr_requests") && rules.contains("KERNEL==\"sda\""), "{rules}");
}

/// The setting of a test that is about the configuration alone.
#[test]
fn a_configuration_outside_the_root_is_left_alone() {
    let host = TestHost::spoilt(&[Setting("threads = 2", "threads = 8")]);
    let config = ConfigFile { path: Err("/x is not below --root".into()), accepts: &accepts };
    let request = ApplyRequest { knobs: vec!["threads".parse().unwrap()], all_sure: false };
    let planned = plan(&host.host(), &*host.files(), &host.check(), &request, &config).unwrap();
    assert!(planned.changes.is_empty());
    assert_eq!(planned.preview.advice, ["threads: /x is not below --root: change threads by hand"]);
}
