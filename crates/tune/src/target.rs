//! What a measurement varies: a setting of `mailrace.toml`, a variable of the server's environment, the sessions of the
//! load, or values of the kernel; and the values to try if none are named.

use std::fmt;

use toml::{Table, Value};

use crate::apply::{pair_of, sysctl_name};
use crate::host::Host;
use crate::knob::{Knob, KnobGroup, ValueKind, knobs};
use crate::read::knob_files;
use crate::setting_path::SettingPath;
use crate::settings::ServerSettings;
use crate::value::plain_text;

/// Variables of the server's environment begin with this.
const ENVIRONMENT: &str = "env.";
/// The connections of the load.
const LOAD_SESSIONS: &str = "load.sessions";
/// Values of the network; most of them are those of a network namespace.
const NETWORK_VALUES: &str = "/proc/sys/net/";
/// A value that all network namespaces share, and that only the first one shows.
const FIRST_NAMESPACE_VALUE: &str = "/proc/sys/net/ipv4/tcp_mem";
/// Settings that a scenario needs for itself.
const RESERVED: [&str; 8] =
    ["data_dir", "user", "allow_root", "listener", "certificate", "admin", "log.to", "spool.lanes"];

/// What a measurement varies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A setting of the server.
    Setting(SettingPath),
    /// A variable of the environment of the server.
    Environment(String),
    /// The connections of the load.
    Sessions,
    /// A value of the kernel.
    Host(HostValue),
}

/// A value of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostValue {
    /// The name of its knob.
    pub(crate) knob: String,
    /// The files that all get it; at least one.
    pub(crate) files: Vec<String>,
    /// The word of each file that is the value; None: all of them, or the chosen one.
    pub(crate) word: Option<usize>,
}

/// Why a knob cannot be measured, and what to do instead.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TargetError(pub(crate) String);

impl Target {
    /// Finds what the name means: a setting of `mailrace.toml` such as `limits.sessions` or
    /// `queue.local.concurrency`, `env.NAME`, `load.sessions`, or a knob of the host that has a file in /proc/sys or
    /// /sys.
    ///
    /// # Errors
    ///
    /// There is no such knob, or it is one that no measurement changes; the text says why.
    pub fn parse(name: &str, host: &Host, settings: &ServerSettings) -> Result<Target, TargetError> {
        if let Some(variable) = name.strip_prefix(ENVIRONMENT) {
            return environment(variable);
        }
        if name == LOAD_SESSIONS {
            return Ok(Target::Sessions);
        }
        if let Some(knob) = knobs().into_iter().find(|knob| knob.name == name) {
            return of_knob(&knob, host, settings);
        }
        let reserved = |key: &&str| name == *key || name.strip_prefix(*key).is_some_and(|rest| rest.starts_with('.'));
        if let Some(key) = RESERVED.iter().find(|key| reserved(key)) {
            return Err(TargetError(format!("{name} cannot be measured: every run has a {key} of its own")));
        }
        name.parse().map(Target::Setting).map_err(TargetError)
    }

    /// The present value; None if the setting has none, or if the files cannot be read or have different ones.
    /// `settings` are those of this configuration, which knows defaults that the built-in one cannot name.
    pub fn present(
        &self,
        configuration: &Table,
        connections: u64,
        host: &Host,
        settings: &ServerSettings,
    ) -> Option<String> {
        match self {
            Target::Setting(path) => {
                let in_force = || settings.in_force(path).map(|value| value.to_string());
                path.find(configuration).map(value_text).or_else(|| default_of(path)).or_else(in_force)
            }
            Target::Environment(name) => std::env::var(name).ok(),
            Target::Sessions => Some(connections.to_string()),
            Target::Host(value) => value.present(host),
        }
    }
}

impl HostValue {
    fn of_knob(knob: &Knob, files: Vec<String>) -> HostValue {
        let is_word = knob.kind != ValueKind::Choice && knob.read.is_none();
        HostValue { knob: knob.name.clone(), files, word: is_word.then_some(knob.field) }
    }

    /// Whether only programs in the network namespace of this process get the value, so that a container or a namespace
    /// made for the measurement is changed, and not the machine. A namespace other than the first one shows no values
    /// that it shares with others, or shows them read-only.
    #[must_use]
    pub fn is_of_own_namespace(&self, host: &Host) -> bool {
        let is_network = self.files.iter().all(|file| file.starts_with(NETWORK_VALUES));
        is_network && host.read(FIRST_NAMESPACE_VALUE).is_none()
    }

    fn present(&self, host: &Host) -> Option<String> {
        let mut values = self.files.iter().map(|file| self.find_in(&host.read(file)?));
        let first = values.next()??;
        values.all(|value| value.as_ref() == Some(&first)).then_some(first)
    }

    fn find_in(&self, text: &str) -> Option<String> {
        let text = plain_text(text);
        let value = self.word.map_or(Some(&*text), |word| text.split(' ').nth(word));
        value.filter(|value| !value.is_empty()).map(str::to_owned)
    }
}

fn environment(variable: &str) -> Result<Target, TargetError> {
    let is_name = !variable.is_empty() && variable.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    match is_name {
        true => Ok(Target::Environment(variable.to_owned())),
        false => Err(TargetError(format!("{variable:?} is not a variable: expected letters, digits and _"))),
    }
}

/// Knobs of the server are settings; those of the host need a file that takes a value.
fn of_knob(knob: &Knob, host: &Host, settings: &ServerSettings) -> Result<Target, TargetError> {
    if knob.group == KnobGroup::Server {
        return match &*knob.name {
            "threads" | "limits.sessions" | "limits.body_memory" | "spool.spare_segments" | "spool.durability" => {
                knob.name.parse().map(Target::Setting).map_err(TargetError)
            }
            "transport.concurrency" => Err(named(knob, "transport.maildir.concurrency.start")),
            "queue.concurrency" => Err(named(knob, "queue.local.concurrency")),
            "table.batch" => Err(named(knob, "table.NAME.batch")),
            name => Err(TargetError(format!("{name} cannot be measured: every run has a spool of its own"))),
        };
    }
    let files = knob_files(knob, host, settings);
    if let Some(other) = files.iter().find_map(|file| replaced_by(file, host)) {
        return Err(TargetError(format!(
            "{} cannot be measured: it is 0, since {other} is in force instead",
            knob.name
        )));
    }
    match files {
        files if files.is_empty() => Err(TargetError(format!(
            "{} cannot be measured: it is not a value of the kernel that can be changed for the time of a run; \
             `mailrace tune check` says how to change it",
            knob.name
        ))),
        files => Ok(Target::Host(HostValue::of_knob(knob, files))),
    }
}

/// The sysctl that is in force instead of this one, which it has set to 0: then the kernel does not take the 0 again.
fn replaced_by(file: &str, host: &Host) -> Option<String> {
    let other = pair_of(file)?;
    (plain_text(&host.read(file)?) == "0").then(|| sysctl_name(other))
}

fn named(knob: &Knob, example: &str) -> TargetError {
    TargetError(format!("{} stands for several settings: name one, such as {example}", knob.name))
}

/// The default in the built-in configuration.
fn default_of(path: &SettingPath) -> Option<String> {
    let defaults: Table = config::DEFAULT.parse().ok()?;
    path.find(&defaults).map(value_text)
}

/// A value as it is written on the command line.
fn value_text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Values to compare with the present one if none are named: half and twice a number, the other of two words.
///
/// # Errors
///
/// Nothing follows from the value.
pub fn other_values(before: &str) -> Result<Vec<String>, TargetError> {
    let other = match before {
        "true" => Some("false"),
        "false" => Some("true"),
        "commit" => Some("relaxed"),
        "relaxed" => Some("commit"),
        _ => None,
    };
    if let Some(other) = other {
        return Ok(vec![other.to_owned()]);
    }
    let digits = before.find(|c: char| !c.is_ascii_digit()).unwrap_or(before.len());
    let (number, unit) = before.split_at(digits);
    let is_unit = unit.chars().all(|c| c.is_ascii_alphabetic() || c == ' ');
    match number.parse::<u64>() {
        Ok(1) if is_unit => Ok(vec![format!("2{unit}"), format!("4{unit}")]),
        Ok(number @ 2..) if is_unit && number <= u64::MAX / 2 => {
            Ok(vec![format!("{}{unit}", number / 2), format!("{}{unit}", number * 2)])
        }
        _ => Err(TargetError(format!("no other value follows from {before:?}: give some with --values"))),
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Setting(path) => write!(f, "{path} in mailrace.toml"),
            Target::Environment(name) => write!(f, "{name} in the environment of the server"),
            Target::Sessions => f.write_str("the connections of the load"),
            Target::Host(value) => f.write_str(&value.files.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(name: &str) -> Result<Target, TargetError> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("proc/sys/net/core")).unwrap();
        std::fs::write(folder.path().join("proc/sys/net/core/somaxconn"), "4096\n").unwrap();
        std::fs::create_dir_all(folder.path().join("proc/sys/vm")).unwrap();
        for (name, text) in [("dirty_ratio", "20\n"), ("dirty_bytes", "0\n"), ("dirty_background_ratio", "0\n")] {
            std::fs::write(folder.path().join("proc/sys/vm").join(name), text).unwrap();
        }
        Target::parse(name, &Host::below(folder.path()), &ServerSettings::default())
    }

    #[test]
    fn a_name_is_a_setting_a_variable_or_a_file_of_the_kernel() {
        assert_eq!(parse("limits.sessions"), Ok(Target::Setting("limits.sessions".parse().unwrap())));
        assert_eq!(parse("queue.local.concurrency"), Ok(Target::Setting("queue.local.concurrency".parse().unwrap())));
        assert_eq!(parse("env.MIMALLOC_VERBOSE"), Ok(Target::Environment("MIMALLOC_VERBOSE".to_owned())));
        assert_eq!(parse("load.sessions"), Ok(Target::Sessions));
        let files = vec!["/proc/sys/net/core/somaxconn".to_owned()];
        let value = HostValue { knob: "net.core.somaxconn".to_owned(), files, word: Some(0) };
        assert_eq!(parse("net.core.somaxconn"), Ok(Target::Host(value)));
        assert!(matches!(parse("vm.dirty_ratio"), Ok(Target::Host(_))), "the one of the pair that is in force");
    }

    #[test]
    fn what_cannot_be_measured_says_what_to_do() {
        for (name, part) in [
            ("queue.concurrency", "such as queue.local.concurrency"),
            ("spool.lanes", "a spool of its own"),
            ("data_dir", "a data_dir of its own"),
            ("listener.0.address", "a listener of its own"),
            ("mount.atime", "not a value of the kernel"),
            ("vm.dirty_bytes", "since vm.dirty_ratio is in force instead"),
            ("vm.dirty_background_ratio", "since vm.dirty_background_bytes is in force instead"),
            ("vm.swappiness", "not a value of the kernel"),
            ("memory.huge_pages", "not a value of the kernel"),
            ("env.A=B", "not a variable"),
            ("limits..sessions", "empty"),
        ] {
            let text = parse(name).unwrap_err().to_string();
            assert!(text.contains(part), "{name}: {text}");
        }
    }

    #[test]
    fn the_present_value_is_that_of_the_file_or_the_default() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("scheduler"), "none [mq-deadline] kyber\n").unwrap();
        std::fs::write(folder.path().join("memory"), "4096\t131072\t6291456\n").unwrap();
        std::fs::write(folder.path().join("small"), "4096\t131072\t131072\n").unwrap();
        let host = Host::below(folder.path());
        let configuration: Table = "threads = 3\n[[queue]]\nname = \"local\"\nconcurrency = 7\n".parse().unwrap();
        let present = |target: Target| target.present(&configuration, 100, &host, &ServerSettings::default());
        let setting = |name: &str| present(Target::Setting(name.parse().unwrap()));
        assert_eq!(setting("threads").as_deref(), Some("3"));
        assert_eq!(setting("queue.local.concurrency").as_deref(), Some("7"));
        assert_eq!(setting("queue.standard.concurrency").as_deref(), Some("1000"));
        assert_eq!(setting("limits.body_memory").as_deref(), Some("128MiB"));
        assert_eq!(setting("transport.maildir.concurrency.most").as_deref(), Some("2000"));
        assert_eq!(setting("no.such").as_deref(), None);
        assert_eq!(present(Target::Sessions).as_deref(), Some("100"));
        let kernel = |files: &[&str], word| {
            let files = files.iter().map(|file| (*file).to_owned()).collect();
            present(Target::Host(HostValue { knob: String::new(), files, word }))
        };
        assert_eq!(kernel(&["/scheduler"], None).as_deref(), Some("mq-deadline"));
        assert_eq!(kernel(&["/memory"], None).as_deref(), Some("4096 131072 6291456"));
        assert_eq!(kernel(&["/memory"], Some(2)).as_deref(), Some("6291456"));
        assert_eq!(kernel(&["/memory", "/small"], Some(1)).as_deref(), Some("131072"));
        assert_eq!(kernel(&["/memory", "/small"], Some(2)), None, "the disks differ");
        assert_eq!(kernel(&["/memory"], Some(3)), None);
    }

    /// A measurement of `table.X.batch` needed --before if the file had no such line, and most files have none.
    #[test]
    fn a_setting_of_a_section_that_leaves_it_out_has_the_default_of_such_sections() {
        let text = "[[queue]]\nname = \"news\"\n\
                    [[table]]\nname = \"people\"\ntype = \"ldap\"\nurl = \"ldap://127.0.0.1\"\nbase = \"o=x\"\n\
                    filter = \"(mail={key})\"\n";
        let settings = ServerSettings::from_config(&config::Config::parse(text, "test", "mx.example.org").unwrap());
        let folder = tempfile::tempdir().unwrap();
        let host = Host::below(folder.path());
        let present = |name: &str, text: &str| {
            let target = Target::Setting(name.parse().unwrap());
            target.present(&text.parse().unwrap(), 100, &host, &settings)
        };
        let number = |name: &str| present(name, text).and_then(|value| value.parse::<u64>().ok());
        assert_eq!(number("table.people.batch"), Some(settings.table_batch[0].1));
        assert_eq!(present("table.people.batch", &format!("{text}batch = 9\n")).as_deref(), Some("9"));
        assert_eq!(present("table.nobody.batch", text), None);
        assert_eq!(present("table.people.limit", text), None);
        assert_eq!(number("queue.news.concurrency"), Some(1000), "as of `standard`");
    }

    #[test]
    fn only_a_value_of_the_network_can_be_that_of_a_namespace() {
        let folder = tempfile::tempdir().unwrap();
        let host = Host::below(folder.path());
        let is_own = |file: &str| {
            let value = HostValue { knob: String::new(), files: vec![file.to_owned()], word: None };
            value.is_of_own_namespace(&host)
        };
        assert!(is_own("/proc/sys/net/core/somaxconn"));
        assert!(!is_own("/proc/sys/vm/swappiness") && !is_own("/sys/block/vda/queue/scheduler"));
        std::fs::create_dir_all(folder.path().join("proc/sys/net/ipv4")).unwrap();
        std::fs::write(folder.path().join("proc/sys/net/ipv4/tcp_mem"), "1 2 3\n").unwrap();
        assert!(!is_own("/proc/sys/net/core/somaxconn"), "the first namespace is that of the machine");
    }

    #[test]
    fn other_values_are_half_and_twice_the_present_one() {
        let others = |value| other_values(value).unwrap().join(" ");
        assert_eq!(others("10000"), "5000 20000");
        assert_eq!(others("128MiB"), "64MiB 256MiB");
        assert_eq!(others("1"), "2 4");
        assert_eq!(others("commit"), "relaxed");
        assert_eq!(others("true"), "false");
        for value in ["0", "cubic", "100/s", "1.5", ""] {
            assert!(other_values(value).is_err(), "{value}");
        }
    }
}
