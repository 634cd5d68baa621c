//! The kinds of values in the file. Each is parsed once, so an error marks its place.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};

/// How long mail may take to arrive.
const ARRIVAL_TIME_MAX: Span = Span(Duration::from_secs(60));

/// A name that can be part of a file's name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct Name(pub String);

/// A span of time, as `500ms` or `10s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Span(pub Duration);

/// A template of a command: a line for the shell, or its words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandTemplate {
    /// A line for the shell.
    Shell(String),
    /// The program and its arguments; at least one word.
    Words(Vec<String>),
}

/// A value of a sweep as text; numbers may be written without quotes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SweepValue(pub String);

/// When a system is ready: templates of [`crate::ready::Ready`].
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "ReadyTable")]
pub enum ReadyTemplate {
    /// It accepts connections at this address.
    Connects(String),
    /// Its output has this text.
    Logs(String),
    /// This shell command succeeds.
    Succeeds(String),
}

/// Whose CPU counts, if not that of the started processes.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "CpuTable")]
pub enum CountedProcesses {
    /// The process whose id is in this file, with its descendants.
    PidFile(String),
    /// A systemd unit.
    Unit(String),
}

/// Where mail arrives, and how long it may take.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "ArrivesTable")]
pub struct Arrivals {
    /// How it is counted.
    pub place: ArrivalPlace,
    /// How long it may take after the last reply.
    pub within: Span,
}

/// How arrived mail is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArrivalPlace {
    /// The messages in all Maildirs below this folder.
    Maildirs(String),
    /// The number that this shell command prints.
    Command(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReadyTable {
    connect: Option<String>,
    log: Option<String>,
    command: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CpuTable {
    pidfile: Option<String>,
    unit: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ArrivesTable {
    maildir: Option<String>,
    command: Option<String>,
    within: Option<Span>,
}

impl TryFrom<String> for Name {
    type Error = String;

    fn try_from(text: String) -> Result<Name, String> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        match text.chars().all(is_plain) && !text.is_empty() {
            true => Ok(Name(text)),
            false => Err(format!("{text:?} is not a name: expected letters, digits, '-' and '_'")),
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for SweepValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for Span {
    type Error = String;

    fn try_from(text: String) -> Result<Span, String> {
        let span = mail::units::parse_duration(&text).map(Span);
        span.ok_or_else(|| format!("{text:?} is not a span of time: expected 500ms, 30s, 5m"))
    }
}

impl TryFrom<ReadyTable> for ReadyTemplate {
    type Error = &'static str;

    fn try_from(table: ReadyTable) -> Result<ReadyTemplate, &'static str> {
        match (table.connect, table.log, table.command) {
            (Some(address), None, None) => Ok(ReadyTemplate::Connects(address)),
            (None, Some(text), None) => Ok(ReadyTemplate::Logs(text)),
            (None, None, Some(line)) => Ok(ReadyTemplate::Succeeds(line)),
            _ => Err("expected exactly one of `connect`, `log`, `command`"),
        }
    }
}

impl TryFrom<CpuTable> for CountedProcesses {
    type Error = &'static str;

    fn try_from(table: CpuTable) -> Result<CountedProcesses, &'static str> {
        match (table.pidfile, table.unit) {
            (Some(path), None) => Ok(CountedProcesses::PidFile(path)),
            (None, Some(unit)) => Ok(CountedProcesses::Unit(unit)),
            _ => Err("expected exactly one of `pidfile`, `unit`"),
        }
    }
}

impl TryFrom<ArrivesTable> for Arrivals {
    type Error = &'static str;

    fn try_from(table: ArrivesTable) -> Result<Arrivals, &'static str> {
        let place = match (table.maildir, table.command) {
            (Some(folder), None) => ArrivalPlace::Maildirs(folder),
            (None, Some(line)) => ArrivalPlace::Command(line),
            _ => return Err("expected exactly one of `maildir`, `command`"),
        };
        Ok(Arrivals { place, within: table.within.unwrap_or(ARRIVAL_TIME_MAX) })
    }
}

impl<'de> Deserialize<'de> for CommandTemplate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<CommandTemplate, D::Error> {
        deserializer.deserialize_any(CommandVisitor)
    }
}

struct CommandVisitor;

impl<'de> Visitor<'de> for CommandVisitor {
    type Value = CommandTemplate;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a line for the shell, or an array with the words of a command")
    }

    fn visit_str<E: de::Error>(self, line: &str) -> Result<CommandTemplate, E> {
        Ok(CommandTemplate::Shell(line.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut words: A) -> Result<CommandTemplate, A::Error> {
        let mut found = Vec::new();
        while let Some(word) = words.next_element()? {
            found.push(word);
        }
        match found.is_empty() {
            true => Err(de::Error::custom("a command needs at least one word")),
            false => Ok(CommandTemplate::Words(found)),
        }
    }
}

impl<'de> Deserialize<'de> for SweepValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<SweepValue, D::Error> {
        deserializer.deserialize_any(SweepVisitor)
    }
}

struct SweepVisitor;

impl Visitor<'_> for SweepVisitor {
    type Value = SweepValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number or a string")
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<SweepValue, E> {
        Ok(SweepValue(number.to_string()))
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<SweepValue, E> {
        Ok(SweepValue(number.to_string()))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<SweepValue, E> {
        Ok(SweepValue(text.to_owned()))
    }
}
