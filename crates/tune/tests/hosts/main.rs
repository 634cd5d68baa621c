//! Hosts made of files: a sound one without findings, and one for each knob on which only that knob is wrong.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod apply;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use config::Config;
use proptest::prelude::*;
use tempfile::TempDir;
use tune::{
    CheckReport, FolderFlags, Host, InodeCounts, Probes, ResolverTimes, ServerSettings, Sureness, SyncTimes,
    SystemCalls, Verdict, check, knobs, render_json, render_text,
};

const CONFIG: &str = r#"
data_dir = "/var/lib/mailrace"
threads = 2

[spool]
durability = "commit"

[[listener]]
protocol = "smtp"
address = "127.0.0.1:25"

[[listener]]
protocol = "pop3"
address = "127.0.0.1:110"
auth = true

[auth]
bind = "people"
clear_text = true

[[table]]
name = "people"
type = "ldap"
url = "ldap://127.0.0.1"
base = "ou=people,dc=example,dc=org"
filter = "(&(objectClass=person)(|(mail={key})(uid={key})))"
batch = 64

[transport.maildir]
path = "/srv/mail/{domain}/{local}"

[[queue]]
name = "standard"
concurrency = 1000
"#;

const LIMITS: &str = "Limit                     Soft Limit           Hard Limit           Units     \n\
    Max open files            262144               262144               files     \n";
const STAT: &str =
    "cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 50 0 50 400 0 0 0 0 0 0\ncpu1 50 0 50 400 0 0 0 0 0 0\nintr 1\n";
const MOUNTS: &str = "1 0 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n\
    2 1 8:2 / /var/lib/mailrace rw,noatime shared:1 - ext4 /dev/sda2 rw\n\
    3 1 8:17 / /srv rw,noatime - xfs /dev/sdb1 rw,attr2\n";
const PRESSURE: &str =
    "some avg10=9.00 avg60=9.00 avg300=90.00 total=1\nfull avg10=0.00 avg60=0.00 avg300=1.50 total=1\n";
const SLAPD: &str = "# comment\nloglevel none\ndatabase mdb\nmaxsize 10737418240\nindex objectClass eq\n\
    index mail,uid\n eq,sub\n";

/// The files of the sound host.
const FILES: &[(&str, &str)] = &[
    ("proc/self/mountinfo", MOUNTS),
    ("proc/stat", STAT),
    ("proc/meminfo", "MemTotal:        4000000 kB\nMemFree: 1 kB\n"),
    ("proc/17/comm", "mailrace\n"),
    ("proc/17/cmdline", "mailrace\0load\0"),
    ("proc/42/comm", "mailrace\n"),
    ("proc/42/cmdline", "/usr/sbin/mailrace\0serve\0--config\0/etc/mailrace/mailrace.toml\0"),
    ("proc/42/limits", LIMITS),
    ("proc/42/cgroup", "0::/system.slice/mailrace.service\n"),
    ("proc/pressure/cpu", "some avg10=9.00 avg60=9.00 avg300=20.00 total=1\n"),
    ("proc/pressure/io", PRESSURE),
    ("proc/pressure/memory", PRESSURE),
    ("proc/fs/jbd2/sda2-8/info", ""),
    ("proc/sys/fs/file-max", "9223372036854775807\n"),
    ("proc/sys/net/core/somaxconn", "4096\n"),
    ("proc/sys/net/ipv4/tcp_max_syn_backlog", "1024\n"),
    ("proc/sys/net/ipv4/tcp_syncookies", "1\n"),
    ("proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n"),
    ("proc/sys/net/ipv4/tcp_tw_reuse", "2\n"),
    ("proc/sys/net/ipv4/tcp_max_tw_buckets", "65536\n"),
    ("proc/sys/net/ipv4/tcp_mem", "44000\t60000\t90000\n"),
    ("proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n"),
    ("proc/sys/net/ipv4/tcp_wmem", "4096\t16384\t4194304\n"),
    ("proc/sys/net/ipv4/tcp_congestion_control", "cubic\n"),
    ("proc/sys/net/netfilter/nf_conntrack_max", "262144\n"),
    ("proc/sys/vm/dirty_ratio", "20\n"),
    ("proc/sys/vm/dirty_background_ratio", "10\n"),
    ("proc/sys/vm/dirty_bytes", "0\n"),
    ("proc/sys/vm/vfs_cache_pressure", "100\n"),
    ("proc/sys/vm/swappiness", "60\n"),
    ("sys/fs/cgroup/memory.max", "max\n"),
    ("sys/fs/cgroup/system.slice/memory.max", "max\n"),
    ("sys/fs/cgroup/system.slice/mailrace.service/memory.max", "2147483648\n"),
    ("sys/fs/cgroup/system.slice/mailrace.service/memory.high", "max\n"),
    ("sys/fs/cgroup/system.slice/mailrace.service/cpu.max", "max 100000\n"),
    ("sys/block/sda/dev", "8:0\n"),
    ("sys/block/sda/sda1/dev", "8:1\n"),
    ("sys/block/sda/sda2/dev", "8:2\n"),
    ("sys/block/sda/device/wwid", "naa.5000c500a1b2c3d4\n"),
    ("sys/block/sda/queue/rotational", "0\n"),
    ("sys/block/sda/queue/scheduler", "none [mq-deadline] bfq\n"),
    ("sys/block/sda/queue/iosched/write_expire", "5000\n"),
    ("sys/block/sda/queue/iosched/read_expire", "500\n"),
    ("sys/block/sda/queue/write_cache", "write through\n"),
    ("sys/block/sda/queue/nr_requests", "256\n"),
    ("sys/block/sda/queue/read_ahead_kb", "128\n"),
    ("sys/block/sdb/dev", "8:16\n"),
    ("sys/block/sdb/sdb1/dev", "8:17\n"),
    ("sys/block/sdb/queue/rotational", "0\n"),
    ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
    ("sys/kernel/mm/transparent_hugepage/defrag", "always defer defer+madvise [madvise] never\n"),
    ("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n"),
    ("sys/devices/system/cpu/cpufreq/policy0/scaling_governor", "schedutil\n"),
    ("sys/devices/system/cpu/cpufreq/policy0/scaling_driver", "acpi-cpufreq\n"),
    ("sys/devices/system/cpu/cpufreq/policy1/scaling_governor", "powersave\n"),
    ("sys/devices/system/cpu/cpufreq/policy1/scaling_driver", "intel_pstate\n"),
    ("etc/resolv.conf", "# comment\nsearch example.org\nnameserver 127.0.0.1\nnameserver 192.0.2.1\n"),
    ("etc/rsyslog.conf", "mail.* -/var/log/mail.log\n"),
    ("etc/rsyslog.d/postfix.conf", "# nothing\n"),
    ("etc/ldap/slapd.conf", SLAPD),
];

/// What the system calls of a test host answer.
struct Answers {
    inodes: InodeCounts,
    flags: FolderFlags,
}

impl SystemCalls for Answers {
    fn inodes(&self, _: &Path) -> Option<InodeCounts> {
        Some(self.inodes)
    }

    fn folder_flags(&self, _: &Path) -> Option<FolderFlags> {
        Some(self.flags.clone())
    }

    fn real_path(&self, path: &Path) -> PathBuf {
        path.to_owned()
    }
}

/// A host in a folder of its own.
struct TestHost {
    folder: TempDir,
    config: String,
    free_inodes: u64,
    flags: Vec<&'static str>,
    name_server_time: Duration,
}

impl TestHost {
    fn sound() -> TestHost {
        let host = TestHost {
            folder: tempfile::tempdir().unwrap(),
            config: CONFIG.to_owned(),
            free_inodes: 900,
            flags: vec!["noatime"],
            name_server_time: Duration::from_micros(400),
        };
        FILES.iter().for_each(|(path, text)| host.write(path, text.as_bytes()));
        host
    }

    fn spoilt(changes: &[Change]) -> TestHost {
        let mut host = TestHost::sound();
        for change in changes {
            match change {
                Change::File(path, text) => host.write(path, text.as_bytes()),
                Change::Replace(path, from, to) => {
                    let text = fs::read_to_string(host.folder.path().join(path)).unwrap();
                    assert!(text.contains(from), "{path}: {from}");
                    host.write(path, text.replace(from, to).as_bytes());
                }
                Change::Remove(path) => fs::remove_dir_all(host.folder.path().join(path)).unwrap(),
                Change::Config(from, to) => {
                    assert!(host.config.contains(from), "{from}");
                    host.config = host.config.replace(from, to);
                }
                Change::FreeInodes(free) => host.free_inodes = *free,
                Change::Flag(flag) => host.flags.push(flag),
                Change::NameServerTime(time) => host.name_server_time = *time,
            }
        }
        host
    }

    fn write(&self, path: &str, octets: &[u8]) {
        let path = self.folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, octets).unwrap();
    }

    fn host(&self) -> Host {
        let answers = Answers {
            inodes: InodeCounts { free: self.free_inodes, total: 1000 },
            flags: self.flags.iter().map(|flag| (*flag).to_owned()).collect(),
        };
        let host = Host::below(self.folder.path()).with_calls(Box::new(answers));
        host.with_name_server_time(self.name_server_time)
    }

    fn check(&self) -> CheckReport {
        let config = Config::parse(&self.config, "test", "mx.example.org").unwrap();
        check(&self.host(), &ServerSettings::from_config(&config))
    }
}

/// What is wrong on a spoilt host.
enum Change {
    File(&'static str, &'static str),
    Replace(&'static str, &'static str, &'static str),
    Remove(&'static str),
    Config(&'static str, &'static str),
    FreeInodes(u64),
    Flag(&'static str),
    NameServerTime(Duration),
}

use Change::{Config as Setting, File, Flag, FreeInodes, NameServerTime, Remove, Replace};

const MOUNTINFO: &str = "proc/self/mountinfo";
const SPOOL_MOUNT: &str = "rw,noatime shared:1 - ext4 /dev/sda2 rw";
const ROTATES: Change = File("sys/block/sda/queue/rotational", "1\n");

/// The changes that spoil each knob, and the knobs that are then wrong too since they are about the same.
const SPOILT: &[(&str, &[Change], &[&str])] = &[
    ("nofile", &[Replace("proc/42/limits", "262144 ", "1024 ")], &[]),
    ("fs.file-max", &[File("proc/sys/fs/file-max", "10000\n")], &[]),
    ("net.core.somaxconn", &[File("proc/sys/net/core/somaxconn", "128\n")], &[]),
    ("net.ipv4.tcp_max_syn_backlog", &[File("proc/sys/net/ipv4/tcp_max_syn_backlog", "128\n")], &[]),
    ("net.ipv4.tcp_syncookies", &[File("proc/sys/net/ipv4/tcp_syncookies", "0\n")], &[]),
    ("net.ipv4.ip_local_port_range", &[File("proc/sys/net/ipv4/ip_local_port_range", "32768 40000\n")], &[]),
    ("net.ipv4.tcp_tw_reuse", &[File("proc/sys/net/ipv4/tcp_tw_reuse", "0\n")], &[]),
    ("net.ipv4.tcp_max_tw_buckets", &[File("proc/sys/net/ipv4/tcp_max_tw_buckets", "2048\n")], &[]),
    ("net.ipv4.tcp_mem", &[File("proc/sys/net/ipv4/tcp_mem", "4000\t6000\t9000\n")], &[]),
    ("net.ipv4.tcp_rmem", &[File("proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t131072\n")], &[]),
    ("net.ipv4.tcp_wmem", &[File("proc/sys/net/ipv4/tcp_wmem", "4096\t16384\t65536\n")], &[]),
    ("net.ipv4.tcp_congestion_control", &[File("proc/sys/net/ipv4/tcp_congestion_control", "reno\n")], &[]),
    ("net.netfilter.nf_conntrack_max", &[File("proc/sys/net/netfilter/nf_conntrack_max", "8192\n")], &[]),
    ("mount.atime", &[Replace(MOUNTINFO, "/var/lib/mailrace rw,noatime", "/var/lib/mailrace rw")], &[]),
    ("mount.sync", &[Replace(MOUNTINFO, SPOOL_MOUNT, "rw,noatime - ext4 /dev/sda2 rw,sync")], &[]),
    ("mount.discard", &[Replace(MOUNTINFO, SPOOL_MOUNT, "rw,noatime - ext4 /dev/sda2 rw,discard")], &[]),
    ("mount.commit", &[Replace(MOUNTINFO, SPOOL_MOUNT, "rw,noatime - ext4 /dev/sda2 rw,commit=600")], &[]),
    ("mount.data", &[Replace(MOUNTINFO, SPOOL_MOUNT, "rw,noatime - ext4 /dev/sda2 rw,data=journal")], &[]),
    ("mount.barrier", &[Replace(MOUNTINFO, SPOOL_MOUNT, "rw,noatime - ext4 /dev/sda2 rw,nobarrier")], &[]),
    (
        "filesystem",
        &[Replace(
            MOUNTINFO,
            "8:2 / /var/lib/mailrace rw,noatime shared:1 - ext4",
            "0:33 / /var/lib/mailrace rw,noatime - btrfs",
        )],
        &[],
    ),
    ("filesystem.journal", &[Remove("proc/fs/jbd2/sda2-8")], &[]),
    ("folder.flags", &[Flag("sync")], &[]),
    ("filesystem.inodes", &[FreeInodes(40)], &[]),
    ("disk.shared", &[Replace(MOUNTINFO, "8:17 / /srv", "8:2 / /srv"), ROTATES], &["disk.rotational"]),
    ("disk.rotational", &[ROTATES], &[]),
    ("disk.scheduler.ssd", &[File("sys/block/sda/queue/scheduler", "none mq-deadline [bfq]\n")], &[]),
    ("disk.scheduler.hdd", &[File("sys/block/sda/queue/scheduler", "[none] bfq\n"), ROTATES], &["disk.rotational"]),
    ("disk.write_expire", &[File("sys/block/sda/queue/iosched/write_expire", "60000\n")], &[]),
    ("disk.read_expire", &[File("sys/block/sda/queue/iosched/read_expire", "5000\n")], &[]),
    (
        "disk.write_cache",
        // The spool's fdatasync empties the cache all the same.
        &[File("sys/block/sda/queue/write_cache", "write back\n"), File("sys/block/sda/queue/fua", "1\n")],
        &[],
    ),
    ("disk.nr_requests", &[File("sys/block/sda/queue/nr_requests", "4\n")], &[]),
    ("disk.read_ahead", &[File("sys/block/sda/queue/read_ahead_kb", "8192\n")], &[]),
    ("vm.dirty_ratio", &[File("proc/sys/vm/dirty_ratio", "80\n")], &[]),
    ("vm.dirty_background_ratio", &[File("proc/sys/vm/dirty_background_ratio", "50\n")], &[]),
    ("vm.dirty_bytes", &[File("proc/sys/vm/dirty_bytes", "17179869184\n")], &[]),
    ("vm.vfs_cache_pressure", &[File("proc/sys/vm/vfs_cache_pressure", "0\n")], &[]),
    ("vm.swappiness", &[File("proc/sys/vm/swappiness", "100\n")], &[]),
    ("memory.huge_pages", &[File("sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never\n")], &[]),
    (
        "memory.huge_pages.defrag",
        &[File("sys/kernel/mm/transparent_hugepage/defrag", "[always] defer madvise never\n")],
        &[],
    ),
    ("cgroup.memory", &[File("sys/fs/cgroup/system.slice/memory.max", "104857600\n")], &[]),
    ("cgroup.processors", &[File("sys/fs/cgroup/system.slice/mailrace.service/cpu.max", "150000 100000\n")], &[]),
    ("pressure.enabled", &[Remove("proc/pressure")], &[]),
    ("pressure.processors", &[Replace("proc/pressure/cpu", "avg300=20.00", "avg300=60.00")], &[]),
    ("pressure.io", &[Replace("proc/pressure/io", "avg300=1.50", "avg300=40.00")], &[]),
    ("pressure.memory", &[Replace("proc/pressure/memory", "avg300=1.50", "avg300=6.00")], &[]),
    ("processor.governor", &[File("sys/devices/system/cpu/cpufreq/policy0/scaling_governor", "powersave\n")], &[]),
    ("processor.clock", &[File("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n")], &[]),
    ("processor.steal", &[Replace("proc/stat", "cpu  100 0 100 800 0 0 0 0", "cpu  100 0 100 700 0 0 0 100")], &[]),
    ("resolver", &[File("etc/resolv.conf", "nameserver 192.0.2.1\nnameserver 127.0.0.1\n")], &[]),
    ("resolver.time", &[NameServerTime(Duration::from_millis(30))], &[]),
    ("syslog.sync", &[File("etc/rsyslog.d/mail.conf", "$ActionFileEnableSync on\n")], &[]),
    ("slapd.index", &[Replace("etc/ldap/slapd.conf", "mail,uid", "mail,cn")], &[]),
    ("slapd.loglevel", &[Replace("etc/ldap/slapd.conf", "loglevel none", "loglevel stats")], &[]),
    ("slapd.maxsize", &[Replace("etc/ldap/slapd.conf", "maxsize 10737418240\n", "")], &[]),
    ("threads", &[Setting("threads = 2", "threads = 8")], &[]),
    ("limits.sessions", &[Setting("[spool]", "[limits]\nsessions = 20\n[spool]")], &[]),
    ("limits.body_memory", &[Setting("[spool]", "[limits]\nbody_memory = \"1200MiB\"\n[spool]")], &[]),
    ("table.batch", &[Setting("batch = 64", "batch = 1")], &[]),
    (
        "transport.concurrency",
        &[Setting("[transport.maildir]", "[transport.maildir]\nconcurrency = { start = 1 }")],
        &[],
    ),
    ("queue.concurrency", &[Setting("concurrency = 1000", "concurrency = 0")], &[]),
    ("spool.spare_segments", &[Setting("[spool]", "[spool]\nspare_segments = 0")], &[]),
    ("spool.lanes", &[Setting("[spool]", "[spool]\nlanes = [\"/var/lib/mailrace/a\", \"/var/lib/mailrace/b\"]")], &[]),
    ("spool.durability", &[Setting("\"commit\"", "\"relaxed\"")], &[]),
];

#[test]
fn a_sound_host_has_no_finding_and_nothing_unknown() {
    let report = TestHost::sound().check();
    let text = render_text(&report, &Probes::default(), true, 200);
    assert_eq!((report.findings().count(), report.unknown()), (0, 0), "{text}");
    assert_eq!(report.knobs, knobs().len());
}

#[test]
fn each_spoilt_host_is_found_and_nothing_else() {
    for (knob, changes, others) in SPOILT {
        let report = TestHost::spoilt(changes).check();
        let found: BTreeSet<_> = report.findings().map(|finding| &*finding.knob.name).collect();
        let expected: BTreeSet<_> = others.iter().copied().chain([*knob]).collect();
        assert_eq!(found, expected, "{knob}:\n{}", render_text(&report, &Probes::default(), false, 200));
    }
}

#[test]
fn there_is_a_spoilt_host_for_each_knob() {
    let knobs = knobs();
    let names: BTreeSet<_> = knobs.iter().map(|knob| &*knob.name).collect();
    assert_eq!(SPOILT.iter().map(|(knob, ..)| *knob).collect::<BTreeSet<_>>(), names);
}

#[test]
fn some_faults_are_surer_than_their_knob() {
    let sureness = |knob: &str, changes: &[Change]| {
        let report = TestHost::spoilt(changes).check();
        report.findings().find(|finding| finding.knob.name == knob).map(|finding| finding.sureness)
    };
    let tmpfs = Replace(MOUNTINFO, "ext4 /dev/sda2", "tmpfs tmpfs");
    assert_eq!(sureness("filesystem", &[tmpfs]), Some(Sureness::Sure));
    let limit = Setting("[spool]", "[load]\nio_pressure = 50.0\n[spool]");
    assert_eq!(sureness("pressure.enabled", &[Remove("proc/pressure"), limit]), Some(Sureness::Sure));
    assert_eq!(sureness("spool.durability", &[Setting("\"commit\"", "\"relaxed\"")]), Some(Sureness::Sure));
    let cache = File("sys/block/sda/queue/write_cache", "write back\n");
    assert_eq!(sureness("spool.durability", &[cache, Setting("\"commit\"", "\"relaxed\"")]), Some(Sureness::Likely));
    let relaxed = Setting("\"commit\"", "\"relaxed\"");
    assert_eq!(sureness("spool.durability", &[ROTATES, relaxed]), Some(Sureness::Likely), "each sync takes a turn");
}

#[test]
fn a_journal_on_a_device_of_its_own_is_not_missing() {
    for name in ["sdc1", "dm-3"] {
        let host = TestHost::spoilt(&[Remove("proc/fs/jbd2/sda2-8")]);
        host.write(&format!("proc/fs/jbd2/{name}/info"), b"");
        let report = host.check();
        let result = report.results.iter().find(|result| result.knob.name == "filesystem.journal").unwrap();
        assert_eq!(result.verdict, Verdict::Unknown, "{name}");
    }
}

/// Without a running server its unit says how many files it may open.
#[test]
fn the_unit_and_its_drop_ins_say_what_the_server_will_get() {
    let unit = File("usr/lib/systemd/system/mailrace.service", "[Service]\nLimitNOFILE=262144\n");
    let stopped = || Remove("proc/42");
    let nofile = |changes: &[Change]| {
        let report = TestHost::spoilt(changes).check();
        let result = report.results.iter().find(|result| result.knob.name == "nofile").unwrap();
        (result.verdict, result.value.clone())
    };
    assert_eq!(nofile(&[stopped()]), (Verdict::Unknown, None));
    assert_eq!(nofile(&[stopped(), unit]), (Verdict::Well, Some("262144".to_owned())));
    let unit = File("usr/lib/systemd/system/mailrace.service", "[Service]\nLimitNOFILE=262144\n");
    let drop_in = File("etc/systemd/system/mailrace.service.d/override.conf", "[Service]\nLimitNOFILE=512:1024\n");
    assert_eq!(nofile(&[stopped(), unit, drop_in]), (Verdict::Finding, Some("1024".to_owned())));
    // The name decides, and for one name the folder.
    let packaged = File("usr/lib/systemd/system/mailrace.service.d/90-a.conf", "[Service]\nLimitNOFILE=300000\n");
    let operators = File("etc/systemd/system/mailrace.service.d/10-b.conf", "[Service]\nLimitNOFILE=5\n");
    assert_eq!(nofile(&[stopped(), packaged, operators]), (Verdict::Well, Some("300000".to_owned())));
    let packaged = File("usr/lib/systemd/system/mailrace.service.d/90-a.conf", "[Service]\nLimitNOFILE=300000\n");
    let running = File("run/systemd/system/mailrace.service.d/90-a.conf", "[Service]\nLimitNOFILE=5\n");
    assert_eq!(nofile(&[stopped(), packaged, running]), (Verdict::Finding, Some("5".to_owned())));
}

#[test]
fn cgroups_of_the_first_version_are_read_too() {
    let value = |changes: &[Change], knob: &str| {
        let report = TestHost::spoilt(changes).check();
        report.results.iter().find(|result| result.knob.name == knob).unwrap().value.clone()
    };
    let groups = || File("proc/42/cgroup", "5:cpu,cpuacct:/mail\n4:memory:/mail\n1:name=systemd:/\n");
    let memory = File("sys/fs/cgroup/memory/mail/memory.limit_in_bytes", "9223372036854771712\n");
    let quota = File("sys/fs/cgroup/cpu/mail/cpu.cfs_quota_us", "300000\n");
    assert_eq!(value(&[groups(), memory], "cgroup.memory").as_deref(), Some("unlimited"));
    assert_eq!(value(&[groups(), quota], "cgroup.processors").as_deref(), Some("3"));
}

#[test]
fn slapd_is_also_configured_by_cn_config() {
    let folder = "etc/ldap/slapd.d/cn=config";
    let main = File("etc/ldap/slapd.d/cn=config.ldif", "dn: cn=config\nolcLogLevel: none\n");
    let database = File(
        "etc/ldap/slapd.d/cn=config/olcDatabase={1}mdb.ldif",
        "dn: olcDatabase={1}mdb\nolcDatabase: {1}mdb\nolcDbIndex: mail,u\n id eq\nolcDbMaxSize: 1073741824\n",
    );
    let findings: Vec<_> =
        TestHost::spoilt(&[main, database]).check().findings().map(|it| it.knob.name.clone()).collect();
    assert!(findings.is_empty(), "{folder}: {findings:?}");
    let main = File("etc/ldap/slapd.d/cn=config.ldif", "dn: cn=config\n");
    let report = TestHost::spoilt(&[main, File("etc/ldap/slapd.d/cn=config/x", "")]).check();
    let findings: BTreeSet<_> = report.findings().map(|finding| &*finding.knob.name).collect();
    assert_eq!(findings, BTreeSet::from(["slapd.index", "slapd.loglevel"]));
}

/// A folder that has nothing of a host, as after a wrong `--root`.
#[test]
fn an_empty_host_is_unknown_and_not_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config::parse(CONFIG, "test", "mx.example.org").unwrap();
    let report = check(&Host::below(folder.path()), &ServerSettings::from_config(&config));
    let findings: Vec<_> = report.findings().map(|finding| &*finding.knob.name).collect();
    assert!(findings.is_empty(), "{findings:?}");
    assert!(report.unknown() > 25, "{}", report.unknown());
}

fn three_faults() -> CheckReport {
    TestHost::spoilt(&[
        File("proc/sys/net/core/somaxconn", "128\n"),
        File("sys/block/sda/queue/scheduler", "none [bfq\u{202e}\u{1b}]\n"),
        Replace(MOUNTINFO, "/srv rw,noatime", "/srv rw,relatime"),
        Remove("proc/sys/fs"),
    ])
    .check()
}

fn probes() -> Probes {
    let syncs = SyncTimes { folder: "/spool".into(), count: 50, min_us: 800.0, median_us: 1250.0, max_us: 9000.0 };
    let resolver = ResolverTimes { server: "192.0.2.1:53".parse().unwrap(), count: 5, median_us: Some(12_340.0) };
    Probes { syncs: vec![syncs], resolver: Some(resolver), failures: vec!["syncs in /\u{1b}: no such folder".into()] }
}

#[test]
fn the_table_has_findings_first_and_no_character_that_controls_a_terminal() {
    let text = render_text(&three_faults(), &probes(), false, 130);
    assert!(!text.contains(['\u{1b}', '\u{202e}']));
    insta::assert_snapshot!(text);
}

#[test]
fn json_has_the_same_for_programs() {
    let json = render_json(&three_faults(), &probes(), false);
    assert!(!json.contains(['\u{1b}', '\u{202e}']));
    insta::assert_snapshot!(json);
    let all: serde_json::Value = serde_json::from_str(&render_json(&three_faults(), &Probes::default(), true)).unwrap();
    assert!(all["results"].as_array().unwrap().len() > 50);
}

/// A check may cost 0.2 s; here the kernel's files are those of a test, but there are many processes.
#[test]
fn a_check_is_cheap_on_a_host_with_many_processes() {
    let host = TestHost::sound();
    (100..2100).for_each(|number| host.write(&format!("proc/{number}/comm"), b"worker\n"));
    let cost_of = |work: &dyn Fn()| {
        let cpu = || Duration::try_from(rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime)).unwrap();
        let begin = cpu();
        work();
        cpu() - begin
    };
    let processes = host.folder.path().join("proc");
    let read = |number: u32| std::fs::read(processes.join(number.to_string()).join("comm")).unwrap();
    let reading = cost_of(&|| (100..2100).for_each(|number| drop(read(number))));
    let cost = cost_of(&|| drop(host.check()));
    // A slow machine takes longer for all of it.
    assert!(cost < Duration::from_millis(200).max(10 * reading), "{cost:?}, and {reading:?} to read one file of each");
}

fn hostile_text() -> impl Strategy<Value = Vec<u8>> {
    let words = prop::sample::select(vec![
        "18446744073709551615",
        "-1",
        "0",
        "cpu",
        "cpu0",
        "cpu ",
        " - ",
        "/",
        "8:2",
        "ext4",
        "\\040",
        "[",
        "]",
        "\n",
        "\t",
        "full ",
        "avg300=",
        "nameserver",
        "index",
        ": ",
        "olcDbIndex",
        "0::",
        "..",
        "max",
        "Max open files",
        "\0",
        "serve",
        "\u{1b}[31m",
    ]);
    let lines = prop::collection::vec(words, 0..40).prop_map(|words| words.join(" ").into_bytes());
    prop_oneof![lines, prop::collection::vec(any::<u8>(), 0..200)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_the_files_contain_a_check_ends_with_a_report(
        changes in prop::collection::vec((0..FILES.len(), hostile_text()), 1..12),
    ) {
        let host = TestHost::sound();
        changes.iter().for_each(|(place, octets)| host.write(FILES[*place].0, octets));
        let report = host.check();
        let text = render_text(&report, &Probes::default(), true, 120);
        prop_assert!(!text.contains(|c: char| c.is_control() && c != '\n'));
        prop_assert!(serde_json::from_str::<serde_json::Value>(&render_json(&report, &Probes::default(), true)).is_ok());
    }
}
