//! Runs a scenario of a file: every system in every round, in a folder and with a start of its own, and
//! makes the file of results.
//!
//! A system whose programs are not installed is left out with a note. If a run fails there is no result,
//! and its folder is kept as evidence; otherwise nothing is left behind.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mail::Timestamp;

use crate::error::CompareError;
use crate::file::{CompareFile, Name, Scenario, ScenarioComparison, SweepValue, System};
use crate::instance::{Instance, Load};
use crate::interrupt::Interrupt;
use crate::machine;
use crate::measure;
use crate::process::{self, Launch};
use crate::result::{self, Case, Comparison, FORMAT, Figure, ResultFile, Run};
use crate::rounds::{RoundCount, Rounds, run_rounds};
use crate::statistics::{InterimChecks, WantedRatio};
use crate::template::{self, Words};
use crate::work_folder::WorkFolder;

/// A ratio within this of 1 is no difference, so that rounds can end.
const MARGIN: f64 = 0.02;
/// How long a program may take to print its version.
const VERSION_TIME_MAX: Duration = Duration::from_secs(20);
/// A smaller load would be over before it is in full swing.
const COUNT_MIN: u64 = 100;
/// The same for the time of a load, in seconds.
const SECONDS_MIN: u64 = 2;
/// The figures that are compared unless the scenario says so.
const FIGURES: [Figure; 3] = [Figure::Rate, Figure::CpuPerThousand, Figure::MachineCpuPerThousand];

/// How to run the scenarios of a file.
#[derive(Clone, Debug)]
pub struct CompareOptions {
    /// `{mailrace}` in commands.
    pub mailrace: PathBuf,
    /// Its version.
    pub version: String,
    /// The command line that repeats the run.
    pub command: String,
    /// Where the folders of systems are made; its disk is measured.
    pub folder: PathBuf,
    /// This many rounds, instead of what the file says.
    pub rounds: Option<u32>,
    /// Every count and time of a load is divided by this; more than 1 is a trial.
    pub shrink: u64,
    /// The pause before each run, instead of what the file says.
    pub rest: Option<Duration>,
    /// How long a scenario may take. The rounds that fit are the result.
    pub time_max: Option<Duration>,
    /// Addresses of other machines that the operator owns.
    pub owned: Vec<String>,
}

/// Follows the runs.
pub trait Observer {
    /// A run begins.
    fn begins(&mut self, _step: &Step<'_>) {}
    /// A run has ended.
    fn ended(&mut self, _step: &Step<'_>, _run: &Run) {}
    /// A round has ended; these are the ratios so far.
    fn compared(&mut self, _comparisons: &[Comparison]) {}
}

/// A run among all.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// The scenario.
    pub scenario: &'a str,
    /// The system.
    pub system: &'a str,
    /// The value of the sweep; empty if nothing is varied.
    pub value: &'a str,
    /// From 1.
    pub round: u32,
    /// The most rounds.
    pub rounds_max: u32,
    /// The most runs that follow this one.
    pub runs_left: u32,
}

/// One system in one case.
#[derive(Clone, Debug)]
struct Turn<'a> {
    system: &'a System,
    value: Option<&'a str>,
}

/// A scenario under way.
struct Measurement<'a> {
    scenario: &'a Scenario,
    options: &'a CompareOptions,
    turns: &'a [Turn<'a>],
    wanted: &'a [WantedRatio],
    count: RoundCount,
    rest: Duration,
    work: &'a WorkFolder,
    interrupt: &'a Interrupt,
    observer: &'a mut dyn Observer,
    begun: Instant,
    done: u32,
    /// The time was over before the rounds were.
    is_late: bool,
}

/// Runs a scenario and returns its results.
///
/// # Errors
///
/// No system of it can run here; a target is another machine that is not owned; a run fails.
pub fn compare(
    file: &CompareFile,
    scenario: &Scenario,
    options: &CompareOptions,
    interrupt: &Interrupt,
    observer: &mut dyn Observer,
) -> Result<ResultFile, CompareError> {
    let (begun, started) = (Instant::now(), now());
    let interrupt = &interrupt.until(options.time_max.map(|time| begun + time));
    let (systems, left_out) = usable_systems(file, scenario, options)?;
    let work = WorkFolder::create(&options.folder)?;
    template::check_path(work.path())?;
    template::check_path(&options.mailrace)?;
    let described: Vec<result::System> =
        systems.iter().map(|system| describe(system, scenario, options, work.path(), interrupt)).collect();
    let turns = turns(&systems, scenario);
    let wanted = wanted_ratios(scenario, &systems);
    let count = round_count(file, options);
    let mut measurement = Measurement {
        scenario,
        options,
        turns: &turns,
        wanted: &wanted,
        count,
        rest: options.rest.unwrap_or(file.compare.rest.0),
        work: &work,
        interrupt,
        observer,
        begun,
        done: 0,
        is_late: false,
    };
    let rounds = run_rounds(&turns, count, &mut measurement)?;
    let late_max = options.time_max.filter(|_| measurement.is_late);
    let reduced = reduced(file, options, count, rounds.len(), late_max);
    let cases = cases(scenario, &turns, rounds);
    Ok(ResultFile {
        format: FORMAT,
        name: scenario.name.get_ref().0.clone(),
        title: scenario.title.clone().unwrap_or_else(|| file.compare.title.clone()),
        question: scenario.question.clone().or_else(|| file.compare.question.clone()),
        answer: None,
        command: options.command.clone(),
        started: started.to_rfc3339(),
        seconds: Some(begun.elapsed().as_secs_f64()),
        is_trial: is_trial(options, count, &cases),
        reduced,
        machine: machine::describe(work.path(), &options.version, machine::cpu_source()),
        unit: scenario.unit.clone(),
        case_name: scenario.value_name.clone().filter(|_| !scenario.values.is_empty()),
        systems: described,
        comparisons: wanted.iter().filter_map(|wanted| wanted.compare(&cases, count.interim_checks())).collect(),
        cases,
        checks: Vec::new(),
        charts: Vec::new(),
        tables: Vec::new(),
        notes: notes(file, scenario, options, count).chain(left_out).collect(),
    })
}

impl<'a> Rounds<Turn<'a>> for Measurement<'a> {
    fn run(&mut self, round: u32, turn: &Turn<'a>) -> Result<Run, CompareError> {
        let folder = self.work.path().join(turn.folder_name(round));
        let step = self.step(round, turn);
        self.observer.begins(&step);
        let run = self.run_in(&folder, turn).inspect_err(|error| match error {
            CompareError::TimeOver => self.is_late = true,
            CompareError::Interrupted => {}
            _ => self.work.keep(),
        })?;
        let removed = fs::remove_dir_all(&folder);
        removed.map_err(CompareError::system(format!("removing {}", folder.display())))?;
        self.observer.ended(&step, &run);
        self.done += 1;
        Ok(run)
    }

    fn is_decided(&mut self, rounds: &[Vec<Run>]) -> bool {
        let cases = cases(self.scenario, self.turns, rounds.to_vec());
        self.wanted.iter().all(|wanted| wanted.is_decided(&cases, MARGIN))
    }

    fn round_ended(&mut self, rounds: &[Vec<Run>]) {
        let cases = cases(self.scenario, self.turns, rounds.to_vec());
        let interim_checks = self.count.interim_checks();
        let ratios = self.wanted.iter().filter_map(|wanted| wanted.compare(&cases, interim_checks));
        self.observer.compared(&ratios.collect::<Vec<Comparison>>());
    }

    fn has_time(&mut self, rounds: &[Vec<Run>]) -> bool {
        let used = self.begun.elapsed();
        let round = used / u32::try_from(rounds.len()).unwrap_or(u32::MAX).max(1);
        let has_time = self.options.time_max.is_none_or(|time_max| used + round <= time_max);
        self.is_late |= !has_time && (rounds.len() as u64) < u64::from(self.count.most());
        has_time
    }
}

impl<'a> Measurement<'a> {
    fn step(&self, round: u32, turn: &Turn<'a>) -> Step<'a> {
        let in_round = u32::try_from(self.turns.len()).unwrap_or(u32::MAX);
        Step {
            scenario: &self.scenario.name.get_ref().0,
            system: turn.system_name(),
            value: turn.value.unwrap_or_default(),
            round: round + 1,
            rounds_max: self.count.most(),
            runs_left: in_round.saturating_mul(self.count.most()).saturating_sub(self.done + 1),
        }
    }

    /// One run. The system is ended in any case, and the first error counts.
    fn run_in(&self, folder: &Path, turn: &Turn<'a>) -> Result<Run, CompareError> {
        let mut instance = Instance::prepare(turn.system, folder, &self.options.mailrace, self.interrupt)?;
        measure::settle(self.rest, self.interrupt)?;
        let load = load_of(turn.system, self.scenario, turn.value, self.options.shrink);
        let run = instance.start().and_then(|()| instance.measure(&load));
        let stopped = instance.stop();
        run.and_then(|run| stopped.map(|()| run))
    }
}

impl<'a> Turn<'a> {
    fn system_name(&self) -> &'a str {
        &self.system.name.get_ref().0
    }

    fn folder_name(&self, round: u32) -> String {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        let value: String = self.value.into_iter().flat_map(|value| value.chars().map(plain)).collect();
        let value = if value.is_empty() { value } else { format!("-{value}") };
        format!("{}-{}{value}", round + 1, self.system_name())
    }
}

/// The systems that can run here, and why others cannot.
fn usable_systems<'a>(
    file: &'a CompareFile,
    scenario: &'a Scenario,
    options: &CompareOptions,
) -> Result<(Vec<&'a System>, Vec<String>), CompareError> {
    let mut left_out = Vec::new();
    let mut systems = Vec::new();
    for system in file.systems_of(scenario).into_iter().filter_map(|name| file.system(name)) {
        check_target(system, &options.owned)?;
        match system.missing() {
            Some(what) => left_out.push(format!("{} is left out: {what}.", system.name.get_ref())),
            None => systems.push(system),
        }
    }
    match systems.is_empty() {
        true => Err(CompareError::Failed(format!("{}: {}", scenario.name.get_ref(), left_out.join(" ")))),
        false => Ok((systems, left_out)),
    }
}

impl System {
    /// What it needs and this machine lacks.
    fn missing(&self) -> Option<String> {
        let program = self.needs.iter().find(|name| process::find_program(name).is_none());
        let program = program.map(|name| format!("the program {name} is not installed"));
        let lacks_root = self.needs_root && !rustix::process::geteuid().is_root();
        program.or_else(|| lacks_root.then(|| "it needs root".to_owned()))
    }
}

/// Load goes only to this machine, unless the operator owns the other one.
fn check_target(system: &System, owned: &[String]) -> Result<(), CompareError> {
    let is_owned = |address: &IpAddr| owned.iter().any(|name| *name == address.to_string());
    match system.address.to_canonical().is_loopback() || is_owned(&system.address) {
        true => Ok(()),
        false => Err(CompareError::Usage(format!(
            "{} is at {}, another machine; if you own it, add --i-own-this-target {}, here and to its load",
            system.name.get_ref(),
            system.address,
            system.address
        ))),
    }
}

fn load_of<'a>(system: &'a System, scenario: &'a Scenario, value: Option<&'a str>, shrink: u64) -> Load<'a> {
    let name = &system.name.get_ref().0;
    Load {
        scenario,
        template: scenario.load_of(name).expect("a file in which a system has no load is refused"),
        count: scenario.count_of(name).map(|count| shrunk(count, shrink, COUNT_MIN)),
        seconds: scenario.seconds.map(|seconds| shrunk(seconds, shrink, SECONDS_MIN)),
        value,
    }
}

fn shrunk(amount: u64, divisor: u64, least: u64) -> u64 {
    (amount / divisor.max(1)).max(least.min(amount))
}

/// A system for the file of results.
fn describe(
    system: &System,
    scenario: &Scenario,
    options: &CompareOptions,
    folder: &Path,
    interrupt: &Interrupt,
) -> result::System {
    let words = Words::for_report(system.address);
    let mut real = words.clone();
    real.set("mailrace", options.mailrace.display());
    real.set("folder", folder.display());
    let version = system.version.as_ref().and_then(|command| {
        let argv = real.command(command);
        let launch = Launch { name: "version", argv: &argv, folder, user: None };
        let printed = process::run_command(&launch, VERSION_TIME_MAX, interrupt).ok()?.output;
        printed.lines().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
    });
    let values = values(scenario);
    let lines = values.iter().map(|value| {
        let load = load_of(system, scenario, *value, options.shrink);
        load.words(&words).line(load.template)
    });
    let mut commands: Vec<String> = lines.collect();
    commands.dedup();
    let name = system.name.get_ref().0.clone();
    result::System { name, version, commands, configuration: configuration(system, &words) }
}

/// The texts of all files of the configuration, and how it is started.
fn configuration(system: &System, words: &Words) -> Option<String> {
    let commands = [("prepare", &system.prepare), ("start", &system.start)].into_iter();
    let commands = commands.filter_map(|(name, command)| Some((name, words.line(command.as_ref()?))));
    let commands = commands.map(|(name, line)| format!("# {name}:\n{}\n", line.trim_end()));
    let files = system.files.iter().map(|file| {
        let text = words.fill(&file.text);
        format!("# {}:\n{}\n", file.path.get_ref(), text.trim_end())
    });
    let parts: Vec<String> = files.chain(commands).collect();
    (!parts.is_empty()).then(|| parts.join("\n"))
}

/// The values of the cases; one None if nothing is varied.
fn values(scenario: &Scenario) -> Vec<Option<&str>> {
    match &scenario.values[..] {
        [] => vec![None],
        values => values.iter().map(|value| Some(value.get_ref().0.as_str())).collect(),
    }
}

fn turns<'a>(systems: &[&'a System], scenario: &'a Scenario) -> Vec<Turn<'a>> {
    let values = values(scenario).into_iter();
    values.flat_map(|value| systems.iter().map(move |&system| Turn { system, value })).collect()
}

fn cases(scenario: &Scenario, turns: &[Turn<'_>], rounds: Vec<Vec<Run>>) -> Vec<Case> {
    let mut cases: Vec<Case> = values(scenario).into_iter().map(empty_case).collect();
    for runs in rounds {
        cases.iter_mut().for_each(|case| case.rounds.push(BTreeMap::new()));
        for (turn, run) in turns.iter().zip(runs) {
            let case = cases.iter_mut().find(|case| case.label == turn.value.unwrap_or_default());
            if let Some(round) = case.and_then(|case| case.rounds.last_mut()) {
                round.insert(turn.system_name().to_owned(), run);
            }
        }
    }
    cases
}

fn empty_case(value: Option<&str>) -> Case {
    let label = value.unwrap_or_default().to_owned();
    // "inf" and "nan" are words here, and no places on an axis; JSON could not hold them either.
    let value = label.parse().ok().filter(|value: &f64| value.is_finite());
    Case { value, label, rounds: Vec::new() }
}

/// The ratios of the scenario whose systems can run here.
fn wanted_ratios(scenario: &Scenario, systems: &[&System]) -> Vec<WantedRatio> {
    let runs = |name: &str| systems.iter().any(|system| system.name.get_ref().0 == name);
    let chosen = match scenario.comparisons.is_empty() {
        true => default_ratios(scenario, systems),
        false => scenario.comparisons.iter().flat_map(|comparison| ratios_of(scenario, comparison)).collect(),
    };
    chosen.into_iter().filter(|wanted| runs(&wanted.over) && runs(&wanted.under)).collect()
}

/// One for the value that it names, else one for each value.
fn ratios_of(scenario: &Scenario, comparison: &ScenarioComparison) -> Vec<WantedRatio> {
    let label = |value: &toml::Spanned<SweepValue>| value.get_ref().0.clone();
    let labels: Vec<String> = match &comparison.value {
        Some(value) => vec![label(value)],
        None => values(scenario).into_iter().map(|value| value.unwrap_or_default().to_owned()).collect(),
    };
    let name = |name: &toml::Spanned<Name>| name.get_ref().0.clone();
    let ratio = |case: String| WantedRatio {
        figure: comparison.figure,
        over: name(&comparison.over),
        under: name(&comparison.under),
        case,
        under_case: comparison.under_value.as_ref().map(label),
        at_least: comparison.at_least,
        at_most: comparison.at_most,
    };
    labels.into_iter().map(ratio).collect()
}

/// The first system over each other one.
fn default_ratios(scenario: &Scenario, systems: &[&System]) -> Vec<WantedRatio> {
    let names: Vec<&String> = systems.iter().map(|system| &system.name.get_ref().0).collect();
    let Some((first, others)) = names.split_first() else { return Vec::new() };
    let mut wanted = Vec::new();
    for value in values(scenario) {
        for under in others {
            wanted.extend(FIGURES.map(|figure| WantedRatio {
                figure,
                over: (*first).clone(),
                under: (*under).clone(),
                case: value.unwrap_or_default().to_owned(),
                under_case: None,
                at_least: None,
                at_most: None,
            }));
        }
    }
    wanted
}

fn round_count(file: &CompareFile, options: &CompareOptions) -> RoundCount {
    let fixed = options.rounds.or(file.compare.rounds);
    fixed.map_or(RoundCount::UntilDecided(file.compare.rounds_max), RoundCount::Fixed)
}

/// With too few rounds for an interval it is one, too.
fn is_trial(options: &CompareOptions, count: RoundCount, cases: &[Case]) -> bool {
    let rounds = cases.iter().map(|case| case.rounds.len()).min().unwrap_or(0);
    options.shrink > 1 || options.time_max.is_some() || rounds < count.least() as usize
}

fn notes<'a>(
    file: &'a CompareFile,
    scenario: &'a Scenario,
    options: &CompareOptions,
    count: RoundCount,
) -> impl Iterator<Item = String> + use<'a> {
    let rest = options.rest.unwrap_or(file.compare.rest.0).as_secs_f64();
    let settled = format!("Before each run the disks were synced and the machine rested for {rest} s.");
    let written = file.compare.notes.iter().chain(&scenario.notes).cloned();
    let checked = match count.interim_checks() {
        InterimChecks::Never => "The number of rounds was fixed before the first one.",
        InterimChecks::AfterEveryRound => {
            "Rounds went on until the intervals of the ratios decided; these intervals allow for a check after every round."
        }
    };
    written.chain([settled, checked.to_owned()])
}

/// What makes it a trial. `late_max` is the time that was over before the rounds were.
fn reduced(
    file: &CompareFile,
    options: &CompareOptions,
    count: RoundCount,
    done: usize,
    late_max: Option<Duration>,
) -> Option<String> {
    let shrunk = (options.shrink > 1).then(|| format!("every count or time divided by {}", options.shrink));
    let usual_rest = file.compare.rest.0;
    let rested = options.rest.filter(|rest| *rest < usual_rest).map(|rest| {
        format!("a rest of {} s before each run instead of {}", rest.as_secs_f64(), usual_rest.as_secs_f64())
    });
    let most = count.most();
    let late = late_max
        .map(|time| format!("the time, {:.0} s, over after {done} of at most {most} rounds", time.as_secs_f64()));
    let few = (done < count.least() as usize)
        .then(|| format!("fewer rounds than the {} that an interval takes", count.least()));
    let parts: Vec<String> = [shrunk, rested, late, few].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

fn now() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_that_is_no_finite_number_has_no_place_on_an_axis() {
        let places = ["10", "1e3", "inf", "-Infinity", "nan", "all"].map(|label| empty_case(Some(label)).value);
        assert_eq!(places, [Some(10.0), Some(1000.0), None, None, None, None]);
    }
}
