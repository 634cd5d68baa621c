//! The file of `bench compare`: systems, and scenarios that they are measured in. `docs/laboratory.md`
//! describes it.
//!
//! Commands, paths and the texts of configuration files are templates (see [`crate::template`]). An
//! error names the line and the column; a key that does not exist is an error.

mod fault;
mod values;

use std::collections::HashSet;
use std::fmt::Display;
use std::hash::Hash;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;

use crate::error::CompareError;
use crate::result::Figure;
use crate::rounds::RoundCount;
use fault::Fault;
pub use values::{ArrivalPlace, Arrivals, CommandTemplate, CountedProcesses, Name, ReadyTemplate, Span, SweepValue};

/// The most rounds, if the intervals do not decide earlier: the fewest with which two may be on the other side.
const ROUNDS_MAX: u32 = 16;
/// Virtual machines are slower right after a load, so each run begins after a pause.
const REST: Span = Span(Duration::from_secs(8));
/// How long a load may take.
const LOAD_TIME_MAX: Span = Span(Duration::from_secs(600));
/// How long a system may take to be ready.
const START_TIME_MAX: Span = Span(Duration::from_secs(30));
/// How long a system may take to end after SIGTERM.
const STOP_TIME_MAX: Span = Span(Duration::from_secs(10));

/// The whole file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompareFile {
    /// What is common to all scenarios.
    pub compare: Settings,
    /// At least one.
    #[serde(rename = "system")]
    pub systems: Vec<System>,
    /// At least one.
    #[serde(rename = "scenario")]
    pub scenarios: Vec<Scenario>,
}

/// What is common to all scenarios.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The name of the comparison.
    pub name: Name,
    /// For people.
    pub title: String,
    /// What the comparison asks.
    pub question: Option<String>,
    /// Exactly this many rounds; without it, until the intervals decide.
    pub rounds: Option<u32>,
    /// The most rounds.
    #[serde(default = "rounds_max")]
    pub rounds_max: u32,
    /// The pause before each run.
    #[serde(default = "rest")]
    pub rest: Span,
    /// What a reader must know in order to believe the figures.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// A system to measure.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct System {
    /// By which scenarios refer to it.
    pub name: Spanned<Name>,
    /// Programs that it needs. If one is missing, the system is left out.
    #[serde(default)]
    pub needs: Vec<String>,
    /// Whether it is left out unless the user is root.
    #[serde(default)]
    pub needs_root: bool,
    /// The user who owns its folder, and `{user}`, if the user of the command is root; otherwise both
    /// are the user of the command. `{group}` is that one's group.
    pub user: Option<String>,
    /// Whether it is started as that user; otherwise it gives up root itself.
    #[serde(default)]
    pub as_user: bool,
    /// Prints its version.
    pub version: Option<CommandTemplate>,
    /// Its configuration.
    #[serde(default, rename = "file")]
    pub files: Vec<ConfigurationFile>,
    /// Runs to its end before the start; its work does not count.
    pub prepare: Option<CommandTemplate>,
    /// Starts it. Without it the system runs already.
    pub start: Option<CommandTemplate>,
    /// Runs to its end before SIGTERM.
    pub stop: Option<CommandTemplate>,
    /// When it is ready; without it, when it accepts connections.
    pub ready: Option<ReadyTemplate>,
    /// How long that may take.
    #[serde(default = "start_time_max")]
    pub start_within: Span,
    /// How long it may take to end after SIGTERM.
    #[serde(default = "stop_time_max")]
    pub stop_within: Span,
    /// Where it listens.
    #[serde(default = "loopback")]
    pub address: IpAddr,
    /// Its port; without it, a free one for each run.
    pub port: Option<u16>,
    /// Whose CPU counts; without it, that of the started processes. A system that neither starts nor names any is on
    /// another machine, whose CPU is not known.
    pub cpu: Option<CountedProcesses>,
    /// Where its mail arrives; without it, nothing is counted.
    pub arrives: Option<Arrivals>,
}

/// A file of a system's configuration.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfigurationFile {
    /// Relative to the folder of the system.
    pub path: Spanned<String>,
    /// Its template.
    pub text: String,
}

/// A load, and what is compared.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Names the file of results.
    pub name: Spanned<Name>,
    /// For people; without it, that of the comparison.
    pub title: Option<String>,
    /// What it asks; without it, that of the comparison.
    pub question: Option<String>,
    /// Singular of what is counted.
    #[serde(default = "message")]
    pub unit: String,
    /// The load, unless each system has its own.
    pub load: Option<CommandTemplate>,
    /// Runs to its end before each load, to fill caches; its work does not count. Where arrivals are counted it is a
    /// load, too: its output says how much mail must arrive before the run begins.
    pub warm: Option<CommandTemplate>,
    /// `{count}` in the load.
    pub count: Option<u64>,
    /// `{seconds}` in the load.
    pub seconds: Option<u64>,
    /// How long the load may take.
    #[serde(default = "load_time_max")]
    pub within: Span,
    /// What the load prints.
    #[serde(default)]
    pub output: LoadOutput,
    /// What of it is counted.
    #[serde(default)]
    pub counted: Counted,
    /// The threads of the load.
    #[serde(default = "one")]
    pub threads: u32,
    /// Whether all mail must arrive at systems that say where.
    #[serde(default = "yes")]
    pub check_arrivals: bool,
    /// What `{value}` in the load stands for; a case for each.
    #[serde(default)]
    pub values: Vec<Spanned<SweepValue>>,
    /// What the values are.
    pub value_name: Option<String>,
    /// The systems; without any, all of the file.
    #[serde(default, rename = "system")]
    pub systems: Vec<ScenarioSystem>,
    /// What is compared; without any, the first system with each other one.
    #[serde(default, rename = "comparison")]
    pub comparisons: Vec<ScenarioComparison>,
    /// More notes.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// A system in a scenario.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScenarioSystem {
    /// Its name.
    pub name: Spanned<Name>,
    /// Its load, if it has one of its own.
    pub load: Option<CommandTemplate>,
    /// Its `{count}`, if it has one of its own: equal counts would keep a fast system busy for a moment
    /// only.
    pub count: Option<u64>,
}

/// A ratio to compute.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScenarioComparison {
    /// The system in the numerator.
    pub over: Spanned<Name>,
    /// The system in the denominator.
    pub under: Spanned<Name>,
    /// What is compared.
    pub figure: Figure,
    /// The least ratio that is aimed at.
    pub at_least: Option<f64>,
    /// The greatest ratio that is aimed at.
    pub at_most: Option<f64>,
    /// Only for this value.
    pub value: Option<Spanned<SweepValue>>,
    /// The value of the denominator, if it is another one.
    pub under_value: Option<Spanned<SweepValue>>,
}

/// What a load prints.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum LoadOutput {
    /// The JSON of a load of `mailrace bench`.
    #[default]
    Json,
    /// Nothing that is read: it did `count` units if it ends with 0.
    None,
}

/// What of a load is counted.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Counted {
    /// Its units, such as messages.
    #[default]
    Done,
    /// The parts of the units, such as recipients.
    Parts,
}

impl CompareFile {
    /// Parses and checks a file. `origin` names it in errors.
    ///
    /// # Errors
    ///
    /// [`CompareError::Data`] with the places of all errors.
    pub fn parse(text: &str, origin: &str) -> Result<CompareFile, CompareError> {
        let file = toml::from_str::<CompareFile>(text).map_err(|error| vec![Fault::from_toml(&error)]);
        let checked = file.and_then(|file| match file.faults() {
            faults if faults.is_empty() => Ok(file),
            faults => Err(faults),
        });
        checked.map_err(|faults| CompareError::Data(fault::render(&faults, text, origin)))
    }

    /// A system of a scenario.
    #[must_use]
    pub fn system(&self, name: &str) -> Option<&System> {
        self.systems.iter().find(|system| system.name.get_ref().0 == name)
    }

    fn faults(&self) -> Vec<Fault> {
        let mut faults = self.settings_faults();
        faults.extend(repeated("system", self.systems.iter().map(|system| &system.name)));
        faults.extend(repeated("scenario", self.scenarios.iter().map(|scenario| &scenario.name)));
        faults.extend(self.systems.iter().flat_map(System::faults));
        faults.extend(self.scenarios.iter().flat_map(|scenario| self.scenario_faults(scenario)));
        faults
    }

    fn settings_faults(&self) -> Vec<Fault> {
        let begin = 0..0;
        let mut faults = Vec::new();
        if self.systems.is_empty() || self.scenarios.is_empty() {
            faults.push(Fault::new(begin.clone(), "the file needs a [[system]] and a [[scenario]]"));
        }
        if self.compare.rounds == Some(0) {
            faults.push(Fault::new(begin.clone(), "rounds is 0: expected at least 1"));
        }
        let least = RoundCount::UntilDecided(self.compare.rounds_max).least();
        if self.compare.rounds_max < least {
            let text = format!("rounds_max is {}: expected at least {least}", self.compare.rounds_max);
            faults.push(Fault::new(begin, &text));
        }
        faults
    }

    fn scenario_faults(&self, scenario: &Scenario) -> Vec<Fault> {
        let mut faults: Vec<Fault> = repeated("system", scenario.systems.iter().map(|system| &system.name)).collect();
        faults.extend(repeated("value", scenario.values.iter()));
        let in_file = |name: &Spanned<Name>| self.system(&name.get_ref().0).is_some();
        let unknown = scenario.systems.iter().map(|system| &system.name).filter(|name| !in_file(name));
        faults.extend(unknown.map(|name| Fault::new(name.span(), &format!("there is no system {}", name.get_ref()))));
        let names: Vec<&str> = self.systems_of(scenario);
        for comparison in &scenario.comparisons {
            faults.extend(scenario.comparison_faults(comparison, &names));
        }
        faults.extend(names.iter().find(|name| scenario.load_of(name).is_none()).map(|name| {
            Fault::new(scenario.name.span(), &format!("{name} has no load: give one to it or to the scenario"))
        }));
        let lacks_count = scenario.output == LoadOutput::None;
        faults.extend(names.iter().find(|name| lacks_count && scenario.count_of(name).is_none()).map(|name| {
            Fault::new(scenario.name.span(), &format!("{name} has no count: the output \"none\" needs one"))
        }));
        faults
    }

    /// The names of a scenario's systems, in the order in which they are shown.
    #[must_use]
    pub fn systems_of<'a>(&'a self, scenario: &'a Scenario) -> Vec<&'a str> {
        match scenario.systems.is_empty() {
            true => self.systems.iter().map(|system| system.name.get_ref().0.as_str()).collect(),
            false => scenario.systems.iter().map(|system| system.name.get_ref().0.as_str()).collect(),
        }
    }
}

impl System {
    fn faults(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        let lacks_cpu = self.cpu.is_none() && self.address.to_canonical().is_loopback();
        if self.start.is_none() && (lacks_cpu || self.port.is_none()) {
            let text = "a system that is not started needs `port` and, on this machine, `cpu`: whose CPU counts";
            faults.push(Fault::new(self.name.span(), text));
        }
        for file in &self.files {
            let path = Path::new(file.path.get_ref());
            let is_below = path.components().all(|part| matches!(part, std::path::Component::Normal(_)));
            if !is_below || path.as_os_str().is_empty() {
                faults.push(Fault::new(file.path.span(), "expected a path below the folder of the system"));
            }
        }
        faults
    }
}

impl Scenario {
    fn comparison_faults(&self, comparison: &ScenarioComparison, names: &[&str]) -> Vec<Fault> {
        let systems = [&comparison.over, &comparison.under].into_iter();
        let unknown = systems.filter(|name| !names.contains(&name.get_ref().0.as_str()));
        let systems = unknown.map(|name| {
            Fault::new(name.span(), &format!("the scenario {} has no system {}", self.name.get_ref(), name.get_ref()))
        });
        let values = [&comparison.value, &comparison.under_value].into_iter().flatten();
        let unknown = values.filter(|value| !self.values.iter().any(|known| known.get_ref() == value.get_ref()));
        let values = unknown
            .map(|value| Fault::new(value.span(), &format!("{} is not one of the scenario's values", value.get_ref())));
        let mut faults: Vec<Fault> = systems.chain(values).collect();
        if comparison.under_value.is_some() && comparison.value.is_none() {
            faults.push(Fault::new(comparison.over.span(), "`under_value` needs `value`"));
        }
        let [value, under_value] =
            [&comparison.value, &comparison.under_value].map(|value| value.as_ref().map(Spanned::get_ref));
        let is_same_value = under_value.is_none() || under_value == value;
        if comparison.over.get_ref() == comparison.under.get_ref() && is_same_value {
            let text = "the system is compared with itself: give another `under`, or another value as `under_value`";
            faults.push(Fault::new(comparison.under.span(), text));
        }
        faults
    }

    /// The load of a system.
    #[must_use]
    pub fn load_of(&self, system: &str) -> Option<&CommandTemplate> {
        self.entry_of(system).and_then(|entry| entry.load.as_ref()).or(self.load.as_ref())
    }

    /// `{count}` of a system.
    #[must_use]
    pub fn count_of(&self, system: &str) -> Option<u64> {
        self.entry_of(system).and_then(|entry| entry.count).or(self.count)
    }

    fn entry_of(&self, system: &str) -> Option<&ScenarioSystem> {
        self.systems.iter().find(|entry| entry.name.get_ref().0 == system)
    }
}

/// An error for each name or value that was there before.
fn repeated<'a, T: Display + Eq + Hash + 'a>(
    what: &'a str,
    names: impl Iterator<Item = &'a Spanned<T>> + 'a,
) -> impl Iterator<Item = Fault> + 'a {
    let mut seen = HashSet::new();
    names
        .filter(move |name| !seen.insert(name.get_ref()))
        .map(move |name| Fault::new(name.span(), &format!("the {what} {} is there twice", name.get_ref())))
}

fn rounds_max() -> u32 {
    ROUNDS_MAX
}

fn rest() -> Span {
    REST
}

fn load_time_max() -> Span {
    LOAD_TIME_MAX
}

fn start_time_max() -> Span {
    START_TIME_MAX
}

fn stop_time_max() -> Span {
    STOP_TIME_MAX
}

fn loopback() -> IpAddr {
    Ipv4Addr::LOCALHOST.into()
}

fn message() -> String {
    "message".to_owned()
}

fn one() -> u32 {
    1
}

fn yes() -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
[compare]
name = "servers"
title = "Two servers"
rest = "0s"

[[system]]
name = "a"
start = "exec a -p {port}"
ready = { log = "listening on {port}", }
cpu = { pidfile = "{folder}/pid" }
arrives = { maildir = "{folder}/mail", within = "5s" }
[[system.file]]
path = "etc/a.conf"
text = "port {port}"

[[system]]
name = "b"
start = ["b", "-p", "{port}"]

[[scenario]]
name = "many"
load = "load {target}"
count = 100
values = [10, "all"]

[[scenario.system]]
name = "b"
count = 50
[[scenario.system]]
name = "a"

[[scenario.comparison]]
over = "a"
under = "b"
figure = "rate"
at_least = 2
value = 10
"#;

    fn error(old: &str, new: &str) -> String {
        assert!(FILE.contains(old), "{old}");
        CompareFile::parse(&FILE.replacen(old, new, 1), "x.toml").unwrap_err().to_string()
    }

    #[test]
    fn a_file_has_systems_and_scenarios() {
        let file = CompareFile::parse(FILE, "x.toml").unwrap();
        let scenario = &file.scenarios[0];
        assert_eq!(file.systems_of(scenario), ["b", "a"]);
        assert_eq!((scenario.count_of("a"), scenario.count_of("b")), (Some(100), Some(50)));
        let values: Vec<&str> = scenario.values.iter().map(|value| value.get_ref().0.as_str()).collect();
        assert_eq!(values, ["10", "all"]);
        assert_eq!(scenario.comparisons[0].at_least, Some(2.0));
        assert_eq!(file.systems[1].start, Some(CommandTemplate::Words(vec!["b".into(), "-p".into(), "{port}".into()])));
    }

    #[test]
    fn a_system_may_be_compared_with_itself_at_another_value() {
        let text = FILE.replacen("under = \"b\"", "under = \"a\"\nunder_value = \"all\"", 1);
        assert!(CompareFile::parse(&text, "x.toml").is_ok());
    }

    #[test]
    fn errors_name_the_line_and_the_column() {
        for (old, new, expected) in [
            ("title =", "titel =", "x.toml:4:1"),
            ("cpu = { pidfile", "cpu = { pidfil", "x.toml:11:9"),
            ("rest = \"0s\"", "rest = \"0\"", "x.toml:5:8"),
            ("figure = \"rate\"", "figure = \"speed\"", "x.toml:36:10"),
            ("under = \"b\"", "under = \"c\"", "x.toml:35:9"),
            ("name = \"b\"", "name = \"a\"", "x.toml:18:8"),
            ("name = \"b\"", "name = \"b/c\"", "x.toml:18:8"),
            ("etc/a.conf", "../a.conf", "x.toml:14:8"),
            ("value = 10", "value = 11", "x.toml:38:9"),
        ] {
            let text = error(old, new);
            assert!(text.contains(expected), "{new}: expected {expected}\n{text}");
        }
    }

    #[test]
    fn what_is_missing_or_contradicts_itself_is_an_error() {
        for (old, new, expected) in [
            ("log = \"listening on {port}\", ", "log = \"a\", connect = \"b:1\"", "exactly one of"),
            ("load = \"load {target}\"\n", "", "has no load"),
            ("start = [\"b\", \"-p\", \"{port}\"]", "", "not started"),
            ("start = [\"b\", \"-p\", \"{port}\"]", "start = []", "at least one word"),
            ("count = 100", "output = \"none\"", "a has no count"),
            ("values = [10, \"all\"]", "values = [10, \"10\"]", "the value 10 is there twice"),
            ("under = \"b\"", "under = \"a\"", "compared with itself"),
            ("under = \"b\"", "under = \"a\"\nunder_value = 10", "compared with itself"),
            ("name = \"many\"", "name = \"many\"\nunits = 1", "unknown field `units`"),
        ] {
            let text = error(old, new);
            assert!(text.contains(expected), "{new}: expected {expected}\n{text}");
        }
    }
}
