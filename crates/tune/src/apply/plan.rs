//! What `tune apply` would change: from findings, or from knobs that the operator names, to files and values.
//!
//! Planning only reads. A knob without a place of its own, such as a mount option, becomes advice.

use std::str::FromStr;

use mail::units::parse_size;

use super::error::{ApplyError, doing};
use super::files::{Files, split};
use super::journal::{STATE_FOLDER, value_word};
use super::lines::{LineFile, LineSetting};
use super::preview::{FileDiff, Preview, RELOAD, ValueDiff};
use super::setting::ConfigSetting;
use super::transaction::{Change, ChangeKind};
use crate::check::{CheckReport, KnobResult, Verdict};
use crate::host::Host;
use crate::knob::{ApplyTarget, Knob, Rule, Sureness, ValueKind, knobs};
use crate::value::choices;

/// Values that the kernel sets to 0 when the other one of the pair is set.
const PAIRS: [(&str, &str); 2] = [
    ("/proc/sys/vm/dirty_ratio", "/proc/sys/vm/dirty_bytes"),
    ("/proc/sys/vm/dirty_background_ratio", "/proc/sys/vm/dirty_background_bytes"),
];
/// The scheduler of a disk, below its folder.
const SCHEDULER: &str = "queue/scheduler";
/// What the kernel also changes when a value changes, by the ends of the paths; `{}` stands for what is before them. A
/// scheduler sets the number of requests and its own values; mq-deadline derives its depth from that number; with huge
/// pages, khugepaged keeps more memory free; and a chosen congestion control becomes one that all users may choose.
const FOLLOWERS: [(&str, &str); 5] = [
    ("queue/scheduler", "{}queue/iosched/"),
    ("queue/scheduler", "{}queue/nr_requests"),
    ("queue/nr_requests", "{}queue/iosched/async_depth"),
    ("/sys/kernel/mm/transparent_hugepage/enabled", "/proc/sys/vm/min_free_kbytes"),
    ("/proc/sys/net/ipv4/tcp_congestion_control", "/proc/sys/net/ipv4/tcp_allowed_congestion_control"),
];

/// What identifies a disk, below its folder: of NVMe, of SCSI and SATA, of virtual disks, of others.
const DISK_IDENTITIES: [&str; 4] = ["wwid", "device/wwid", "serial", "device/serial"];

/// What makes a change of the server's unit or configuration apply; an earlier one includes the later ones.
const NEXT_STEPS: [&str; 3] =
    ["systemctl daemon-reload && systemctl restart mailrace", "systemctl restart mailrace", RELOAD];

/// A knob on the command line: `KNOB` or `KNOB=VALUE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnobRequest {
    /// Its name.
    pub name: String,
    /// The value to set; None: the wanted one.
    pub value: Option<String>,
}

/// Which knobs are changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApplyRequest {
    /// These; empty: all findings.
    pub knobs: Vec<KnobRequest>,
    /// All findings that are sure, and those named.
    pub all_sure: bool,
}

/// The configuration file.
pub struct ConfigFile<'a> {
    /// Its absolute path below the root; or why it cannot be changed, as a sentence for the operator.
    pub path: Result<String, String>,
    /// Whether a text would be accepted by `mailrace check`; else its errors.
    pub accepts: &'a dyn Fn(&str) -> Result<(), String>,
}

/// What is changed, and what the operator has to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// For people.
    pub preview: Preview,
    /// In the order in which they are made.
    pub changes: Vec<Change>,
    /// The rights that this process lacks.
    pub missing_rights: Vec<String>,
    /// The knobs that stay as they are, and why; also in the advice of the preview.
    pub not_changed: Vec<String>,
    /// The names of those of them that the operator named, except those that are as wanted.
    pub unmet: Vec<String>,
}

impl FromStr for KnobRequest {
    type Err = String;

    fn from_str(text: &str) -> Result<KnobRequest, String> {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value.trim().to_owned())),
            None => (text, None),
        };
        match knobs().iter().any(|knob| knob.name == name) {
            true => Ok(KnobRequest { name: name.to_owned(), value }),
            false => Err("no such knob: `mailrace tune check --all` lists them, and other settings are changed in the configuration file".to_owned()),
        }
    }
}

/// Plans the changes for a report of [`crate::check()`]. Reads only.
///
/// # Errors
///
/// A value is not of the knob's kind; a file cannot be read or changed; the configuration would not be accepted.
pub fn plan(
    host: &Host,
    files: &dyn Files,
    report: &CheckReport,
    request: &ApplyRequest,
    config: &ConfigFile<'_>,
) -> Result<Plan, ApplyError> {
    refuse_repeated(&request.knobs)?;
    let requested = &request.knobs;
    let mut planner =
        Planner { host, files, requested, lines: Vec::new(), settings: Vec::new(), plan: Plan::default() };
    for (result, value) in selected(report, request) {
        planner.add(result, value, config)?;
    }
    for named in &request.knobs {
        planner.explain_nothing(report, named);
    }
    planner.finish(config)
}

/// The values to change, each with the value that the operator named.
fn selected<'a>(report: &'a CheckReport, request: &'a ApplyRequest) -> Vec<(&'a KnobResult, Option<&'a str>)> {
    let takes_all = request.knobs.is_empty() && !request.all_sure;
    let mut selected = Vec::new();
    for result in &report.results {
        let is_finding = result.verdict == Verdict::Finding;
        let is_sure = result.sureness == Sureness::Sure;
        let named = request.knobs.iter().find(|named| named.name == result.knob.name);
        match named {
            _ if result.verdict == Verdict::Absent => {}
            Some(KnobRequest { value: Some(value), .. }) => selected.push((result, Some(value.as_str()))),
            Some(_) if is_finding => selected.push((result, None)),
            None if is_finding && (takes_all || request.all_sure && is_sure) => selected.push((result, None)),
            _ => {}
        }
    }
    selected
}

/// Of two values only one could be set.
fn refuse_repeated(knobs: &[KnobRequest]) -> Result<(), ApplyError> {
    let is_repeated = |(index, knob): &(usize, &KnobRequest)| knobs[..*index].iter().any(|it| it.name == knob.name);
    match knobs.iter().enumerate().find(is_repeated) {
        Some((_, knob)) => Err(ApplyError::Usage(format!("{} is named twice: name each knob once", knob.name))),
        None => Ok(()),
    }
}

struct Planner<'a> {
    host: &'a Host,
    files: &'a dyn Files,
    requested: &'a [KnobRequest],
    lines: Vec<LineSetting>,
    settings: Vec<ConfigSetting>,
    plan: Plan,
}

impl Planner<'_> {
    fn add(&mut self, result: &KnobResult, named: Option<&str>, config: &ConfigFile<'_>) -> Result<(), ApplyError> {
        let knob = &result.knob;
        let value = match named {
            Some(text) => Some(checked_value(knob, text)?),
            None => result.target.as_deref().map(|target| self.offered(result, target)),
        };
        let (Some(target), Some(value)) = (&knob.apply, value) else {
            self.advise(result, &result.how);
            return Ok(());
        };
        match target {
            ApplyTarget::Sysctl => self.add_sysctl(result, &value),
            ApplyTarget::Disk => self.add_disk(result, &value),
            ApplyTarget::Sysfs => {
                let line = LineSetting::tmpfiles(&knob.linux, &value);
                self.add_value(result, &knob.linux, &value, line)
            }
            ApplyTarget::Unit(key) => {
                self.add_line(LineSetting::unit(key, &value));
                self.next(0);
                Ok(())
            }
            ApplyTarget::Setting(key) => {
                if let Err(reason) = &config.path {
                    self.advise(result, &format!("{reason}: change {key} by hand"));
                    return Ok(());
                }
                let (key, subject) = (key.clone(), result.subject.clone());
                self.settings.push(ConfigSetting { key, subject, value });
                self.next(if knob.live { 2 } else { 1 });
                Ok(())
            }
        }
    }

    /// The first of the wanted words that the kernel offers; else the target.
    fn offered(&self, result: &KnobResult, target: &str) -> String {
        let Rule::OneOf(words) = &result.knob.wanted else { return target.to_owned() };
        let path = disk_path(result).unwrap_or_else(|| result.knob.linux.clone());
        let text = self.host.read(&path).unwrap_or_default();
        let is_offered = |word: &&String| choices(&text).is_some_and(|mut offered| offered.any(|it| it == **word));
        words.iter().find(is_offered).map_or_else(|| target.to_owned(), String::clone)
    }

    /// A sysctl with several words keeps the others.
    fn add_sysctl(&mut self, result: &KnobResult, value: &str) -> Result<(), ApplyError> {
        let knob = &result.knob;
        let path = &knob.linux;
        let Some(former) = self.files.state(path).map_err(doing("reading", path))? else {
            self.advise(result, &format!("{path} does not exist on this host"));
            return Ok(());
        };
        let former = value_word(&former.octets);
        let mut words: Vec<&str> = former.split(' ').collect();
        let is_whole = value.split(' ').count() == words.len();
        if !is_whole && (value.contains(' ') || knob.read.is_some() || knob.field >= words.len()) {
            return Err(ApplyError::Usage(format!("{}: expected {} numbers", knob.name, words.len())));
        }
        if !is_whole {
            words[knob.field] = value;
        }
        let value = if is_whole { value.to_owned() } else { words.join(" ") };
        if !knob.live {
            self.next(1);
        }
        let name = sysctl_name(path);
        let rival = pair_of(path).map(sysctl_name);
        self.add_value(result, path, &value, LineSetting { rival, ..LineSetting::sysctl(&name, &value) })?;
        self.add_pair(path)
    }

    fn add_disk(&mut self, result: &KnobResult, value: &str) -> Result<(), ApplyError> {
        let disk = &result.subject;
        let folder = format!("/sys/block/{disk}/");
        let path = disk_path(result).unwrap_or_default();
        let Some(attribute) = path.strip_prefix(&folder) else {
            self.advise(result, &result.how);
            return Ok(());
        };
        let line = LineSetting::udev(&self.disk_conditions(disk), attribute, value);
        self.add_value(result, &path, value, line)
    }

    /// The conditions of a udev rule that find a disk. Names such as `sda` may be those of other disks after a restart.
    fn disk_conditions(&mut self, disk: &str) -> String {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || " ._:+-".contains(c);
        let found = DISK_IDENTITIES.iter().find_map(|file| {
            let text = self.host.read(&format!("/sys/block/{disk}/{file}"))?;
            let identity = Some(text.trim()).filter(|text| !text.is_empty() && text.chars().all(is_plain))?;
            Some(format!("ENV{{DEVTYPE}}==\"disk\", ATTR{{{file}}}==\"{identity}\""))
        });
        found.unwrap_or_else(|| {
            let advice = format!(
                "{disk} has no serial number, so the udev rule finds it by its name, which may be that of another disk \
                 after a restart"
            );
            if !self.plan.preview.advice.contains(&advice) {
                self.plan.preview.advice.push(advice);
            }
            format!("KERNEL==\"{disk}\"")
        })
    }

    /// A value that changes at once, and the line that sets it when the host starts.
    fn add_value(&mut self, result: &KnobResult, path: &str, value: &str, line: LineSetting) -> Result<(), ApplyError> {
        let Some(state) = self.files.state(path).map_err(doing("reading", path))? else {
            self.advise(result, &format!("{path} does not exist on this host"));
            return Ok(());
        };
        let text = String::from_utf8_lossy(&state.octets);
        if choices(&text).is_some_and(|mut offered| !offered.any(|word| word == value)) {
            self.advise(result, &format!("this kernel does not offer {value}, only {}", text.trim()));
            return Ok(());
        }
        let former = value_word(&state.octets);
        if former != value {
            let shown = ValueDiff { path: path.to_owned(), former, value: value.to_owned() };
            self.plan.preview.values.push(shown);
            self.add_followers(path);
            let kind = ChangeKind::Value(value.to_owned());
            self.plan.changes.push(Change { path: path.to_owned(), kind });
        }
        self.add_line(line);
        let note = result.knob.note.iter().map(|note| format!("{}: {note}", result.knob.name));
        self.plan.preview.advice.extend(note);
        Ok(())
    }

    /// What changes with a value is put back with it.
    fn add_followers(&mut self, path: &str) {
        for (end, follower) in FOLLOWERS {
            let Some(start) = path.strip_suffix(end) else { continue };
            let follower = follower.replace("{}", start);
            let names = if follower.ends_with('/') { self.host.list(&follower) } else { Some(vec![String::new()]) };
            let paths = names.unwrap_or_default().into_iter().map(|name| format!("{follower}{name}"));
            for path in paths.filter(|path| matches!(self.files.state(path), Ok(Some(_)))) {
                self.plan.changes.push(Change { path, kind: ChangeKind::Follower });
            }
        }
    }

    /// The other one of a pair becomes 0 by itself. It is a change of its own, so that it is put back.
    fn add_pair(&mut self, path: &str) -> Result<(), ApplyError> {
        let is_changed = self.plan.changes.last().is_some_and(|change| change.path == path);
        let Some(other) = pair_of(path).filter(|_| is_changed) else { return Ok(()) };
        let Some(state) = self.files.state(other).map_err(doing("reading", other))? else { return Ok(()) };
        let former = value_word(&state.octets);
        if former != "0" {
            let value = "0".to_owned();
            self.plan.preview.values.push(ValueDiff { path: other.to_owned(), former, value: value.clone() });
            self.plan.changes.push(Change { path: other.to_owned(), kind: ChangeKind::Value(value) });
        }
        Ok(())
    }

    fn add_line(&mut self, line: LineSetting) {
        let own = split(line.file.path());
        for folder in line.file.others() {
            let names = self.host.list(folder).unwrap_or_default();
            for name in names.iter().filter(|name| name.as_str() > own.1 && name.ends_with(".conf")) {
                let path = format!("{folder}/{name}");
                let text = self.host.read(&path).unwrap_or_default();
                if text.lines().any(|other| line.is_in(other)) {
                    let advice = format!("{}: {path} sets it too and is read later: change it there", line.key);
                    self.plan.preview.advice.push(advice);
                }
                if let Some(rival) = line.rival.as_ref().filter(|_| text.lines().any(|other| line.replaces(other))) {
                    let advice = format!("{}: {path} sets {rival}, which replaces it, and is read later", line.key);
                    self.plan.preview.advice.push(advice);
                }
            }
        }
        self.lines.push(line);
    }

    fn advise(&mut self, result: &KnobResult, how: &str) {
        let subject = if result.subject.is_empty() { String::new() } else { format!(" {}", result.subject) };
        let name = &result.knob.name;
        if self.requested.iter().any(|knob| knob.name == *name) && !self.plan.unmet.contains(name) {
            self.plan.unmet.push(name.clone());
        }
        self.leave(format!("{name}{subject}: {how}"));
    }

    fn leave(&mut self, reason: String) {
        self.plan.preview.advice.push(reason.clone());
        self.plan.not_changed.push(reason);
    }

    /// Says why a knob that the operator named is not changed.
    fn explain_nothing(&mut self, report: &CheckReport, named: &KnobRequest) {
        let results = || report.results.iter().filter(|result| result.knob.name == named.name);
        let text = match results().map(|result| result.verdict).min() {
            None | Some(Verdict::Absent) => "neither this host nor the configuration has what it controls",
            Some(Verdict::Unknown) if named.value.is_none() => "its value is unknown: name the value to set",
            Some(Verdict::Well) if named.value.is_none() => {
                return self.leave(format!("{}: it is as wanted", named.name));
            }
            _ => return,
        };
        self.plan.unmet.push(named.name.clone());
        self.leave(format!("{}: {text}", named.name));
    }

    /// Notes that one of [`NEXT_STEPS`] is needed.
    fn next(&mut self, step: usize) {
        let steps = &mut self.plan.preview.next_steps;
        let known = NEXT_STEPS.iter().position(|known| steps.first().is_some_and(|first| first == known));
        *steps = vec![NEXT_STEPS[known.unwrap_or(step).min(step)].to_owned()];
    }

    /// Reads the files and puts everything into them.
    fn finish(mut self, config: &ConfigFile<'_>) -> Result<Plan, ApplyError> {
        for file in LineFile::ALL {
            let lines: Vec<LineSetting> = self.lines.iter().filter(|line| line.file == file).cloned().collect();
            if !lines.is_empty() {
                self.edit(file.path(), |text| Ok(lines.iter().fold(text.to_owned(), |text, line| line.add_to(&text))))?;
            }
        }
        if let (Ok(path), false) = (&config.path, self.settings.is_empty()) {
            let settings = std::mem::take(&mut self.settings);
            self.edit(path, |text| {
                let edited = settings.iter().try_fold(text.to_owned(), |text, setting| setting.add_to(&text));
                let edited = edited.map_err(|reason| ApplyError::Refused(format!("{path}: {reason}")))?;
                (config.accepts)(&edited).map_err(ApplyError::Configuration)?;
                Ok(edited)
            })?;
        }
        self.plan.missing_rights = missing_rights(self.files, self.plan.changes.iter().map(|change| &*change.path));
        self.plan.changes.sort_by_key(Change::rank);
        if self.plan.preview.is_empty() {
            self.plan.changes.clear();
            self.plan.preview.next_steps.clear();
        }
        Ok(self.plan)
    }

    /// Plans a new content for a file.
    fn edit(&mut self, path: &str, edit: impl FnOnce(&str) -> Result<String, ApplyError>) -> Result<(), ApplyError> {
        let state = self.files.state(path).map_err(doing("reading", path))?;
        let former = state.map(|state| String::from_utf8(state.octets)).transpose();
        let not_text = |_| ApplyError::Refused(format!("{path} is not UTF-8: change it by hand"));
        let former = former.map_err(not_text)?;
        let text = edit(former.as_deref().unwrap_or_default())?;
        if former.as_deref() != Some(&*text) {
            let kind = ChangeKind::File(text.clone().into_bytes());
            self.plan.changes.push(Change { path: path.to_owned(), kind });
            self.plan.preview.files.push(FileDiff { path: path.to_owned(), former, text: Some(text) });
        }
        Ok(())
    }
}

impl Change {
    /// The order of changes: files first; and the kernel sets other values of a disk when its scheduler changes.
    fn rank(&self) -> u8 {
        match &self.kind {
            ChangeKind::File(_) => 0,
            ChangeKind::Follower => 1,
            ChangeKind::Value(_) if self.path.ends_with(SCHEDULER) => 2,
            ChangeKind::Value(_) => 3,
        }
    }
}

/// The value that the kernel sets to 0 when this one is set.
pub(crate) fn pair_of(path: &str) -> Option<&'static str> {
    PAIRS.iter().find_map(|(one, other)| match path {
        _ if path == *one => Some(*other),
        _ if path == *other => Some(*one),
        _ => None,
    })
}

/// The name of a sysctl by its path.
pub(crate) fn sysctl_name(path: &str) -> String {
    path.trim_start_matches("/proc/sys/").replace('/', ".")
}

/// What this process may not change, one sentence for each; also the journal, if there is anything to change.
pub(crate) fn missing_rights<'a>(files: &dyn Files, paths: impl Iterator<Item = &'a str>) -> Vec<String> {
    let missing = |path: &str| files.check_right(path).err().map(|error| format!("{path}: {error}"));
    let mut found: Vec<String> = paths.filter_map(missing).collect();
    if !found.is_empty() {
        return found;
    }
    found.extend(missing(&format!("{STATE_FOLDER}/journal.json")));
    found
}

/// A value that the operator named, as the kernel and the configuration take it.
fn checked_value(knob: &Knob, text: &str) -> Result<String, ApplyError> {
    let words = || text.split_ascii_whitespace();
    let is_number = |word: &str| word.parse::<u64>().is_ok();
    let value = match knob.kind {
        ValueKind::Integer if words().all(is_number) => Some(words().collect::<Vec<_>>().join(" ")),
        ValueKind::Bytes => bytes(text).map(|bytes| bytes.to_string()),
        ValueKind::Choice if text.chars().all(|c| c.is_ascii_alphanumeric() || "._+-".contains(c)) => {
            Some(text.to_owned())
        }
        _ => None,
    };
    let expected = match knob.kind {
        ValueKind::Integer => "a number",
        ValueKind::Bytes => "a number of bytes, such as 1048576 or 1MiB",
        ValueKind::Choice => "a word",
        ValueKind::Text | ValueKind::Flags => "no value: it is changed by hand",
    };
    let wrong = || ApplyError::Usage(format!("{}={text}: expected {expected}", knob.name));
    value.filter(|value| !value.is_empty()).ok_or_else(wrong)
}

/// The file of a knob of a disk; None if the subject is no plain name of one.
fn disk_path(result: &KnobResult) -> Option<String> {
    let disk = &result.subject;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let (_, attribute) = result.knob.linux.split_once("}/")?;
    (!disk.is_empty() && disk.chars().all(is_plain)).then(|| format!("/sys/block/{disk}/{attribute}"))
}

/// A size as in the configuration, or a number alone, as in the files of the kernel.
fn bytes(text: &str) -> Option<u64> {
    text.parse().ok().or_else(|| parse_size(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_names_a_knob_and_maybe_a_value() {
        let request: KnobRequest = "vm.swappiness=10".parse().unwrap();
        assert_eq!((&*request.name, request.value.as_deref()), ("vm.swappiness", Some("10")));
        assert_eq!("threads".parse::<KnobRequest>().unwrap().value, None);
        assert!("vm.swapiness".parse::<KnobRequest>().is_err() && "".parse::<KnobRequest>().is_err());
    }

    #[test]
    fn values_are_of_the_kind_of_their_knob() {
        let value = |name: &str, text: &str| {
            let knob = knobs().into_iter().find(|knob| knob.name == name).unwrap();
            checked_value(&knob, text).ok()
        };
        assert_eq!(value("vm.swappiness", "10").as_deref(), Some("10"));
        assert_eq!(value("net.ipv4.ip_local_port_range", " 1024  65535").as_deref(), Some("1024 65535"));
        assert_eq!(value("vm.dirty_bytes", "64MiB").as_deref(), Some("67108864"));
        assert_eq!(value("disk.scheduler.ssd", "mq-deadline").as_deref(), Some("mq-deadline"));
        for (name, text) in [
            ("vm.swappiness", ""),
            ("vm.swappiness", "-1"),
            ("vm.dirty_bytes", "1e9"),
            ("disk.scheduler.ssd", "none\nkyber"),
            ("disk.scheduler.ssd", "\"; RUN+=\"/bin/sh"),
            ("resolver", "127.0.0.1"),
        ] {
            assert_eq!(value(name, text), None, "{name}={text}");
        }
    }
}
