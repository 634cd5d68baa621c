//! The running server, if there is one, and what its unit says otherwise.

use std::collections::BTreeMap;

use crate::host::Host;
use crate::value::Value;

/// Where the unit of the server and its drop-ins are; systemd's order, the first that exists wins.
const UNITS: [&str; 4] = [
    "/etc/systemd/system/mailrace.service",
    "/run/systemd/system/mailrace.service",
    "/usr/lib/systemd/system/mailrace.service",
    "/lib/systemd/system/mailrace.service",
];
/// Drop-ins of the unit. They are read in the order of their names, whatever their folder; of files with one name, only
/// that in the last of these folders.
pub(crate) const DROP_INS: [&str; 3] = [
    "/usr/lib/systemd/system/mailrace.service.d",
    "/run/systemd/system/mailrace.service.d",
    "/etc/systemd/system/mailrace.service.d",
];

/// The folder of the server's process in /proc.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerProcess {
    folder: String,
}

impl ServerProcess {
    /// Finds the process of `mailrace serve`; of several, the one with the smallest id.
    pub(crate) fn find(host: &Host) -> Option<ServerProcess> {
        let mut numbers: Vec<u64> = host.list("/proc")?.iter().filter_map(|name| name.parse().ok()).collect();
        numbers.sort_unstable();
        let folders = numbers.iter().map(|number| format!("/proc/{number}"));
        folders.map(|folder| ServerProcess { folder }).find(|process| process.is_server(host))
    }

    fn is_server(&self, host: &Host) -> bool {
        // The name is short to read; the command line is only read of processes with that name.
        let has_name = host.read(&format!("{}/comm", self.folder)).is_some_and(|name| name.trim() == "mailrace");
        let serves = |line: String| line.split('\0').skip(1).any(|word| word == "serve");
        has_name && host.read(&format!("{}/cmdline", self.folder)).is_some_and(serves)
    }

    /// The files that the process may open.
    fn open_files(&self, host: &Host) -> Option<u64> {
        let limits = host.read(&format!("{}/limits", self.folder))?;
        let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
        limit(line.split_ascii_whitespace().next()?)
    }

    /// The smallest of the limits with one of these names in the process's cgroup and those above it, for example
    /// `memory.max`. `v1` is a controller of the first version and the name of its file. None without cgroups.
    pub(crate) fn cgroup_limits(&self, host: &Host, names: &[&str], v1: (&str, &str)) -> Option<Vec<String>> {
        let cgroups = host.read(&format!("{}/cgroup", self.folder))?;
        let path_of = |controller: &str| {
            let mut lines = cgroups.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
            lines.find(|(names, _)| names.split(',').any(|name| name == controller)).map(|(_, path)| path)
        };
        let (mount, path, names) = match path_of(v1.0) {
            Some(path) => (format!("/sys/fs/cgroup/{}", v1.0), path, vec![v1.1]),
            None => ("/sys/fs/cgroup".to_owned(), path_of("")?, names.to_vec()),
        };
        let folders = std::path::Path::new(path).ancestors().filter_map(std::path::Path::to_str);
        let files = folders.flat_map(|folder| {
            let folder = folder.trim_matches('/');
            let prefix = if folder.is_empty() { mount.clone() } else { format!("{mount}/{folder}") };
            names.iter().map(move |name| format!("{prefix}/{name}")).collect::<Vec<_>>()
        });
        Some(files.filter_map(|file| host.read(&file)).collect())
    }
}

/// The files that the server may open: of the running one, or as its unit says.
pub(crate) fn open_files(host: &Host, server: Option<&ServerProcess>) -> Option<u64> {
    match server {
        Some(process) => process.open_files(host),
        None => unit_setting(host, "LimitNOFILE").and_then(|text| limit(text.rsplit(':').next()?)),
    }
}

/// The last value of a key in the server's unit and its drop-ins.
fn unit_setting(host: &Host, key: &str) -> Option<String> {
    let unit = UNITS.iter().find_map(|path| host.read(path));
    let mut drop_ins = BTreeMap::new();
    for folder in DROP_INS {
        let names = host.list(folder).unwrap_or_default().into_iter().filter(|name| name.ends_with(".conf"));
        drop_ins.extend(names.map(|name| (name, folder)));
    }
    let drop_ins = drop_ins.into_iter().filter_map(|(name, folder)| host.read(&format!("{folder}/{name}")));
    let texts = unit.into_iter().chain(drop_ins);
    let value = |line: &str| Some(line.trim().strip_prefix(key)?.trim_start().strip_prefix('=')?.trim().to_owned());
    texts.filter_map(|text| text.lines().rev().find_map(value)).next_back()
}

/// A limit as the kernel and systemd write it.
pub(crate) fn limit(text: &str) -> Option<u64> {
    match text.trim() {
        "unlimited" | "infinity" | "max" => Some(Value::UNLIMITED),
        number => number.parse().ok(),
    }
}
