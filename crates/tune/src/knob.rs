//! The table of knobs: its types, and how it is read. The table is embedded, so an error in it is an error of the
//! program; a test reads it.

use serde::{Deserialize, Serialize};

/// The table as text.
const TABLE: &str = include_str!("knobs.toml");

/// A setting of the host or of the server.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Knob {
    /// Its name, which is unique: that of the sysctl if it is one.
    pub name: String,
    /// What it is, in a few words.
    pub title: String,
    /// Where it belongs.
    pub group: KnobGroup,
    /// The file on Linux, below `/`; where a [`Reader`] is named, a hint for people. `{disk}`, `{ssd}` and `{hdd}`
    /// stand for disks of the spool.
    pub linux: String,
    /// The word of the file that holds the value, counted from 0.
    #[serde(default)]
    pub field: usize,
    /// Whether hosts without the file lack what it controls, so that nothing is wrong.
    #[serde(default)]
    pub optional: bool,
    /// The name on FreeBSD, or "none".
    pub freebsd: String,
    /// How the value is understood and printed.
    pub kind: ValueKind,
    /// How the value is found; None: in the file `linux`.
    pub read: Option<Reader>,
    /// What the value should be.
    pub wanted: Rule,
    /// What goes wrong otherwise; one sentence.
    pub why: String,
    /// Where that is documented or measured.
    pub source: String,
    /// How sure it is that another value is worse.
    pub sure: Sureness,
    /// How to change it. `{wanted}`, `{subject}` and `{device}` are replaced.
    pub how: String,
    /// Whether a change applies without a restart of the server or the host.
    pub live: bool,
    /// What `tune apply` changes; None: it only advises.
    pub apply: Option<ApplyTarget>,
    /// The value that `tune apply` sets; None: that of the rule.
    pub value: Option<String>,
    /// What else the operator has to do or to know; `tune apply` says it with its change.
    pub note: Option<String>,
}

/// What `tune apply` changes.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum ApplyTarget {
    /// The file of the knob, which is a sysctl, and a file in /etc/sysctl.d.
    Sysctl,
    /// The file of the knob for each disk, and a udev rule.
    Disk,
    /// The file of the knob, which is in /sys, and a file in /etc/tmpfiles.d.
    Sysfs,
    /// This key in a drop-in of the server's unit.
    Unit(String),
    /// This key of the configuration: `section.key`, or `section[].key` in the section that has the subject as its name.
    /// `{subject}` is the subject.
    Setting(String),
}

impl Knob {
    /// The value that `tune apply` sets if the operator names none; `target` is that of the rule. None: it only advises.
    pub fn value_to_apply(&self, target: &str) -> Option<String> {
        self.apply.as_ref()?;
        self.value.clone().or_else(|| Some(target.to_owned()).filter(|target| !target.is_empty()))
    }
}

/// The parts of the table.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KnobGroup {
    /// Files and sockets.
    Sockets,
    /// Disks and file systems.
    Disk,
    /// Memory, cgroups and pressure.
    Memory,
    /// Processors and clocks.
    Processors,
    /// Programs that the server depends on.
    Around,
    /// The server's configuration.
    Server,
}

impl KnobGroup {
    /// The groups with their titles, in the order of the table.
    pub const TITLES: [(KnobGroup, &str); 6] = [
        (KnobGroup::Sockets, "Files and sockets"),
        (KnobGroup::Disk, "Disk"),
        (KnobGroup::Memory, "Memory"),
        (KnobGroup::Processors, "Processors"),
        (KnobGroup::Around, "Around the server"),
        (KnobGroup::Server, "This server"),
    ];
}

/// How a value is understood and printed.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ValueKind {
    /// A number.
    Integer,
    /// A number of bytes.
    Bytes,
    /// One word of several; if a word is in brackets, that one.
    Choice,
    /// Any text.
    Text,
    /// A set of words.
    Flags,
}

/// What a value should be.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// This number or more.
    AtLeast(u64),
    /// This number or less.
    AtMost(u64),
    /// From the first number to the second.
    Between(u64, u64),
    /// One of these words; the first is the best.
    OneOf(Vec<String>),
    /// Any other word.
    Not(Vec<String>),
    /// A set without any of these words.
    NoneOf(Vec<String>),
    /// What a function says, which knows the configuration.
    Function(RuleName),
}

/// Functions of the configuration.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "each is the function of its name in `rule.rs`")]
pub enum RuleName {
    FilesForServer,
    Backlog,
    SynBacklog,
    PortsForDeliveries,
    SocketMemoryPages,
    TrackedConnections,
    AccessTimes,
    FileSystem,
    MemoryForServer,
    ProcessorsForServer,
    PressureEnabled,
    Loopback,
    Threads,
    BodyMemory,
    Durability,
}

/// How sure it is that a value is wrong.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Sureness {
    /// On every mail server.
    Sure,
    /// On most of them.
    Likely,
    /// It depends on the load: measure.
    Depends,
}

impl Sureness {
    /// The word in the table.
    pub fn name(self) -> &'static str {
        match self {
            Sureness::Sure => "sure",
            Sureness::Likely => "likely",
            Sureness::Depends => "depends",
        }
    }
}

/// Values that are not one word of one file.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "each reads what the knob of the table that names it describes")]
pub enum Reader {
    OpenFiles,
    PortCount,
    MountAtime,
    MountSync,
    MountDiscard,
    MountCommit,
    MountData,
    MountBarrier,
    FileSystem,
    Journal,
    FolderFlags,
    FreeInodes,
    SharedDisk,
    CgroupMemory,
    CgroupProcessors,
    PressureEnabled,
    StalledPercent,
    WaitingPercent,
    Governor,
    StealPercent,
    Resolver,
    ResolverTime,
    SyslogSync,
    SlapdIndex,
    SlapdLoglevel,
    SlapdMaxsize,
    Threads,
    Sessions,
    BodyMemory,
    TableBatch,
    MaildirConcurrency,
    QueueConcurrency,
    SpareSegments,
    LanesOnOneDisk,
    Durability,
}

/// The file of the table.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KnobTable {
    knob: Vec<Knob>,
}

/// What the table says if FreeBSD has no such thing.
pub(crate) const ABSENT_ON_FREEBSD: &str = "none";

/// All knobs, in the order of the table.
pub fn knobs() -> Vec<Knob> {
    let table: KnobTable = toml::from_str(TABLE).expect("the embedded table is valid, which a test checks");
    table.knob
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_table_is_complete_and_its_names_are_unique() {
        let knobs = knobs();
        let names: HashSet<_> = knobs.iter().map(|knob| &knob.name).collect();
        assert_eq!(names.len(), knobs.len(), "names are unique");
        for knob in &knobs {
            for text in [&knob.title, &knob.linux, &knob.freebsd, &knob.why, &knob.source, &knob.how] {
                assert!(!text.trim().is_empty() && text.trim() == text, "{}: {text:?}", knob.name);
            }
            assert!(knob.why.ends_with('.') && !knob.why.contains(". "), "{}: why is one sentence", knob.name);
            assert!(knob.read.is_some() || knob.linux.starts_with('/'), "{}: a file", knob.name);
            assert!(knob.value.is_none() || knob.apply.is_some(), "{}: a value, but no place for it", knob.name);
            assert!(knob.note.is_none() || knob.apply.is_some(), "{}: a note that nobody reads", knob.name);
        }
        let order: Vec<_> = knobs.iter().map(|knob| knob.group as usize).collect();
        assert!(order.is_sorted(), "groups are not mixed");
    }

    #[test]
    fn what_can_be_applied_names_a_place_of_its_kind() {
        for knob in knobs() {
            let has_place = match &knob.apply {
                None => true,
                Some(ApplyTarget::Sysctl) => knob.linux.starts_with("/proc/sys/"),
                Some(ApplyTarget::Disk) => knob.linux.starts_with("/sys/block/{") && knob.read.is_none(),
                Some(ApplyTarget::Sysfs) => knob.linux.starts_with("/sys/kernel/") && knob.read.is_none(),
                Some(ApplyTarget::Unit(key)) => !key.is_empty(),
                Some(ApplyTarget::Setting(_)) => knob.group == KnobGroup::Server,
            };
            assert!(has_place, "{}: {:?}", knob.name, knob.apply);
        }
    }

    #[test]
    fn measurements_and_documents_of_this_repository_exist() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        let ours = |word: &&str| ["bench/", "docs/", "crates/"].iter().any(|start| word.starts_with(start));
        for knob in knobs() {
            for path in knob.source.split([',', ';', ' ']).filter(ours) {
                assert!(std::path::Path::new(root).join(path).exists(), "{}: {path}", knob.name);
            }
        }
    }
}
