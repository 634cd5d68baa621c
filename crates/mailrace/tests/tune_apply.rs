//! `mailrace tune apply` and `revert` as processes that are killed, on a host made of files.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Values that are wrong, so that an application has many steps.
const VALUES: &[(&str, &str)] = &[
    ("proc/sys/fs/file-max", "1000\n"),
    ("proc/sys/net/core/somaxconn", "128\n"),
    ("proc/sys/net/ipv4/tcp_max_syn_backlog", "128\n"),
    ("proc/sys/net/ipv4/tcp_syncookies", "0\n"),
    ("proc/sys/net/ipv4/ip_local_port_range", "32768\t40000\n"),
    ("proc/sys/net/ipv4/tcp_tw_reuse", "0\n"),
    ("proc/sys/net/ipv4/tcp_max_tw_buckets", "2048\n"),
    ("proc/sys/net/ipv4/tcp_mem", "4000\t6000\t9000\n"),
    ("proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t131072\n"),
    ("proc/sys/net/ipv4/tcp_wmem", "4096\t16384\t65536\n"),
    ("proc/sys/vm/dirty_ratio", "80\n"),
    ("proc/sys/vm/vfs_cache_pressure", "0\n"),
    ("proc/sys/vm/swappiness", "100\n"),
    ("sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never\n"),
];
const CONFIG: &str = "# ours\r\ndata_dir = \"/var/lib/mailrace\"\r\n[limits]\r\nsessions = 20 # few\r\n# end";
/// How often the commands are killed.
const KILLS: u32 = 40;

/// Every file and folder with its mode, owner and content.
type Tree = BTreeMap<String, (u32, u32, Option<Vec<u8>>)>;

struct CopiedHost {
    folder: TempDir,
}

impl CopiedHost {
    fn new() -> CopiedHost {
        let host = CopiedHost { folder: tempfile::tempdir().unwrap() };
        VALUES.iter().for_each(|(path, text)| host.write(path, text));
        host.write("etc/mailrace/mailrace.toml", CONFIG);
        host.write("etc/sysctl.d/60-mailrace.conf", "vm.swappiness = 100");
        let own = host.folder.path().join("etc/sysctl.d/60-mailrace.conf");
        fs::set_permissions(own, fs::Permissions::from_mode(0o440)).unwrap();
        fs::create_dir_all(host.folder.path().join("var/lib")).unwrap();
        host
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mailrace"));
        let config = self.folder.path().join("etc/mailrace/mailrace.toml");
        command.arg("--config").arg(config).arg("tune").args(arguments).arg("--root").arg(self.folder.path());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Kills a command when a moment has come.
    fn run_and_kill(&self, arguments: &[&str], has_come: impl Fn() -> bool) {
        let mut child = self.command(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        while child.try_wait().unwrap().is_none() && !has_come() {
            std::hint::spin_loop();
        }
        // It may have ended meanwhile.
        let _ = child.kill();
        child.wait().unwrap();
    }

    fn is_unfinished(&self) -> bool {
        let journal = fs::read_to_string(self.folder.path().join("var/lib/mailrace-tune/journal.json"));
        journal.is_ok_and(|text| text.contains("\"is_finished\": false"))
    }

    fn tree(&self) -> Tree {
        let mut tree = Tree::new();
        let mut folders = vec![self.folder.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
                let metadata = path.symlink_metadata().unwrap();
                let content = metadata.is_file().then(|| fs::read(&path).unwrap());
                tree.insert(path.display().to_string(), (metadata.mode(), metadata.uid(), content));
                if metadata.is_dir() {
                    folders.push(path);
                }
            }
        }
        tree
    }
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn has_changed(path: &Path, former: &str) -> bool {
    fs::read_to_string(path).is_ok_and(|text| text != former)
}

#[test]
fn apply_shows_changes_and_reverts() {
    let host = CopiedHost::new();
    let original = host.tree();
    let shown = host.run(&["apply"]);
    assert_eq!(shown.status.code(), Some(0), "{}", stderr(&shown));
    assert!(stdout(&shown).ends_with("nothing is changed: add --yes to do it\n"), "{}", stdout(&shown));
    assert!(host.tree() == original);
    let applied = host.run(&["apply", "--yes"]);
    assert_eq!(applied.status.code(), Some(0), "{}", stderr(&applied));
    let config = fs::read_to_string(host.folder.path().join("etc/mailrace/mailrace.toml")).unwrap();
    assert!(config.starts_with(&CONFIG.replace("20 #", "100 #")), "{config:?}");
    assert!(stdout(&host.run(&["apply", "--yes"])).ends_with("nothing to change\n"));
    assert!(stdout(&host.run(&["revert"])).contains("+sessions = 20 # few"));
    let reverted = host.run(&["revert", "--yes"]);
    assert_eq!(reverted.status.code(), Some(0), "{}", stderr(&reverted));
    assert!(host.tree() == original);
    assert_eq!(stdout(&host.run(&["revert", "--yes"])), "nothing to put back\n");
}

#[test]
fn what_cannot_be_done_has_its_exit_code() {
    let host = CopiedHost::new();
    assert_eq!(host.run(&["apply", "net.core.somaxcon"]).status.code(), Some(64));
    let outside = tempfile::NamedTempFile::new().unwrap();
    let config = host.folder.path().join("etc/mailrace/mailrace.toml");
    assert_eq!(host.run(&["apply", "limits.sessions=0"]).status.code(), Some(78));
    assert_eq!(host.run(&["apply", "net.core.somaxconn", "--yes"]).status.code(), Some(0));
    let own = host.folder.path().join("etc/sysctl.d/60-mailrace.conf");
    fs::remove_file(&own).unwrap();
    fs::write(&own, "# mine\n").unwrap();
    let refused = host.run(&["revert", "--yes"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("60-mailrace.conf was edited after `mailrace tune apply`: move it"));
    fs::remove_file(&config).unwrap();
    std::os::unix::fs::symlink(outside.path(), &config).unwrap();
    let refused = host.run(&["apply", "limits.sessions=100"]);
    assert!(stderr(&refused).contains("symbolic link"), "{}", stderr(&refused));
}

#[test]
fn tables_of_a_copied_host_are_not_looked_for_on_this_one() {
    let host = CopiedHost::new();
    let table = "\r\n[[table]]\r\nname = \"people\"\r\ntype = \"text\"\r\npath = \"/nowhere/people\"\r\n";
    host.write("etc/mailrace/mailrace.toml", &format!("{CONFIG}{table}"));
    let applied = host.run(&["apply", "limits.sessions", "--yes"]);
    assert_eq!(applied.status.code(), Some(0), "{}", stderr(&applied));
}

#[test]
fn what_a_journal_says_does_not_control_the_terminal() {
    let host = CopiedHost::new();
    let entry = r#"{ "path": "/etc/a\u001b[31m/b", "place": "folder" }"#;
    let journal = format!(r#"{{ "format": 1, "is_finished": true, "entries": [{entry}] }}"#);
    host.write("var/lib/mailrace-tune/journal.json", &journal);
    host.write("etc/a\u{1b}[31m/b/mine", "");
    let reverted = host.run(&["revert", "--yes"]);
    assert!(stdout(&reverted).contains(r"/etc/a\u001b[31m/b stays"), "{}", stdout(&reverted));
    assert!(!stdout(&reverted).contains('\u{1b}'));
}

/// Killed between the journal and the first change, `apply` refused, and `revert` had nothing to show.
#[test]
fn a_journal_of_changes_that_were_not_made_is_ended_by_revert() {
    let host = CopiedHost::new();
    assert_eq!(host.run(&["apply", "net.core.somaxconn", "--yes"]).status.code(), Some(0));
    let journal = host.folder.path().join("var/lib/mailrace-tune/journal.json");
    let unfinished = fs::read_to_string(&journal).unwrap().replace("\"is_finished\": true", "\"is_finished\": false");
    assert_eq!(host.run(&["revert", "--yes"]).status.code(), Some(0));
    let original = host.tree();
    fs::create_dir(journal.parent().unwrap()).unwrap();
    fs::write(&journal, unfinished).unwrap();
    assert!(stderr(&host.run(&["apply", "--yes"])).contains("mailrace tune revert --yes"));
    assert_eq!(stdout(&host.run(&["revert"])), "nothing differs, but a journal is left: add --yes to end it\n");
    assert_eq!(host.run(&["revert", "--yes"]).status.code(), Some(0));
    assert!(host.tree() == original);
    assert_eq!(stdout(&host.run(&["revert"])), "nothing to put back\n");
}

#[test]
fn after_a_kill_revert_restores_everything() {
    let mut interrupted = 0;
    for kill in 0..KILLS {
        let host = CopiedHost::new();
        let original = host.tree();
        let root = host.folder.path();
        let (path, former) = VALUES[kill as usize % VALUES.len()];
        let begin = Instant::now();
        host.run_and_kill(&["apply", "--yes"], || match kill % 4 {
            0 => root.join("var/lib/mailrace-tune").exists(),
            1 => root.join("var/lib/mailrace-tune/journal.json").exists(),
            2 => has_changed(&root.join(path), former),
            _ => begin.elapsed() > Duration::from_micros(500) * kill,
        });
        if host.is_unfinished() {
            interrupted += 1;
            let refused = host.run(&["apply", "--yes"]);
            assert_eq!(refused.status.code(), Some(1));
            assert!(
                stderr(&refused).contains("was interrupted: run `mailrace tune revert --yes`"),
                "{}",
                stderr(&refused)
            );
        }
        if kill % 2 == 0 {
            host.run_and_kill(&["revert", "--yes"], || !has_changed(&root.join(path), former));
        }
        let reverted = host.run(&["revert", "--yes"]);
        assert_eq!(reverted.status.code(), Some(0), "{}", stderr(&reverted));
        assert!(host.tree() == original, "kill {kill}");
    }
    assert!(interrupted > 0, "no kill came in time");
}
