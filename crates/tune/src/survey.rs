//! What is found out about the host once, and used for many knobs.

use std::path::Path;

use crate::disks::{Storage, has_volatile_cache, is_rotational};
use crate::host::Host;
use crate::mounts::mounts;
use crate::process::ServerProcess;
use crate::rule::HostNumbers;
use crate::settings::ServerSettings;
use crate::value::Value;

/// A host and a configuration.
pub(crate) struct Survey<'a> {
    /// The host.
    pub(crate) host: &'a Host,
    /// The configuration.
    pub(crate) settings: &'a ServerSettings,
    /// The running server.
    pub(crate) server: Option<ServerProcess>,
    /// The lanes of the spool.
    pub(crate) spool: Vec<Storage>,
    /// The folders of mailboxes.
    pub(crate) mailboxes: Vec<Storage>,
    /// Numbers that rules depend on.
    pub(crate) numbers: HostNumbers,
}

/// A value of a knob. Some knobs have several, for example one for each disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    /// The disk, file system, folder or table; empty if the knob has only one value.
    pub(crate) subject: String,
    /// The device of a file system; else empty.
    pub(crate) device: String,
    /// What was read.
    pub(crate) observed: Observed,
}

/// What was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Observed {
    /// The value.
    Value(Value),
    /// The host lacks what the knob controls.
    Absent,
    /// It could not be read, or has an unexpected form.
    Unknown,
}

impl Observed {
    /// What could not be read is unknown.
    pub(crate) fn known(value: Option<Value>) -> Observed {
        value.map_or(Observed::Unknown, Observed::Value)
    }

    /// A number.
    pub(crate) fn number(number: Option<u64>) -> Observed {
        Observed::known(number.map(Value::Number))
    }

    /// A text.
    pub(crate) fn text(text: Option<&str>) -> Observed {
        Observed::known(text.map(Value::text))
    }
}

impl Reading {
    /// The only value of a knob.
    pub(crate) fn single(observed: Observed) -> Reading {
        Reading::of("", observed)
    }

    /// One of several values.
    pub(crate) fn of(subject: &str, observed: Observed) -> Reading {
        Reading { subject: subject.to_owned(), device: String::new(), observed }
    }
}

impl<'a> Survey<'a> {
    /// Looks at the host.
    pub(crate) fn new(host: &'a Host, settings: &'a ServerSettings) -> Survey<'a> {
        let mounts = mounts(host);
        let storage = |folder: &std::path::PathBuf| Storage::of_folder(host, &mounts, folder);
        let spool: Vec<_> = settings.lanes.iter().map(storage).collect();
        let mut survey = Survey {
            host,
            settings,
            server: ServerProcess::find(host),
            mailboxes: settings.mailboxes.iter().map(storage).collect(),
            numbers: HostNumbers { processors: processors(host), memory: memory(host), has_cheap_syncs: None },
            spool,
        };
        survey.numbers.has_cheap_syncs = survey.has_cheap_syncs();
        survey
    }

    /// All folders of the server.
    pub(crate) fn folders(&self) -> impl Iterator<Item = &Storage> {
        self.spool.iter().chain(&self.mailboxes)
    }

    /// The file systems of the spool and the mailboxes, each once.
    pub(crate) fn file_systems(&self) -> Vec<&Storage> {
        let mut found: Vec<&Storage> = Vec::new();
        for storage in self.folders() {
            let point = |storage: &Storage| storage.mount.as_ref().map(|mount| mount.point.clone());
            if !found.iter().any(|other| point(other) == point(storage)) {
                found.push(storage);
            }
        }
        found
    }

    /// The disks of the spool, each once.
    pub(crate) fn spool_disks(&self) -> Vec<&str> {
        let mut disks: Vec<_> = self.spool.iter().flat_map(|lane| lane.disks.iter().map(String::as_str)).collect();
        disks.sort_unstable();
        disks.dedup();
        disks
    }

    /// A rotating disk whose cache is switched off reports write through too, but each sync waits for a turn.
    fn has_cheap_syncs(&self) -> Option<bool> {
        let is_cheap = |disk| Some(!has_volatile_cache(self.host, disk)? && !is_rotational(self.host, disk)?);
        let disks: Option<Vec<bool>> = self.spool_disks().into_iter().map(is_cheap).collect();
        disks.filter(|disks| !disks.is_empty()).map(|disks| !disks.contains(&false))
    }
}

impl Storage {
    /// Where its file system is mounted; the folder if that is unknown.
    pub(crate) fn mount_point(&self) -> &Path {
        self.mount.as_ref().map_or(Path::new(&self.folder), |mount| &mount.point)
    }
}

/// The processors in use.
fn processors(host: &Host) -> Option<u64> {
    let text = host.read("/proc/stat")?;
    let is_one =
        |line: &&str| line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    Some(text.lines().filter(is_one).count() as u64).filter(|count| *count > 0)
}

/// The memory of the host, in bytes.
fn memory(host: &Host) -> Option<u64> {
    let text = host.read("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kilobytes: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
    kilobytes.checked_mul(1024)
}
