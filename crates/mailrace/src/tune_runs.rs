//! `mailrace tune measure` and `mailrace tune search`: runs of real servers on this machine, and what they show.

use std::io::{ErrorKind, Write};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;
use compare::interrupt::Interrupt;
use compare::result::{Figure, ResultFile};
use compare::{machine, result_files};
use control::RecipientFilter;
use control::request::ControlRequest;
use indicatif::{ProgressBar, ProgressStyle};
use mail::{Timestamp, printable};

use crate::cli::{MeasuredFigure, TuneMeasureArgs, TuneRunArgs, TuneSearchArgs};
use crate::control_client;
use crate::exit::{self, ExitError};
use crate::output::output;
use crate::tune_apply::{exit_error, files};
use crate::tune_command::{MEASUREMENT_LEFT, host};
use config::LoadedConfig;
use tune::apply::ApplyError;
use tune::{
    Description, Host, HostChanges, LiveValues, MeasurePlan, QueueCounter, RunSettings, SearchEnd, SearchPlan,
    ServerSettings, ServerTrial, Shape, Target, TargetError, TrialError, Watch, curve_file, measurement_file,
    other_values, render_curve, render_curve_json, render_measurement, render_measurement_json,
};

/// How often the line on the terminal shows the time.
const TICK: Duration = Duration::from_millis(500);
/// What a reader of results must know.
const RUNS_NOTE: &str =
    "Each run had a server of its own, with an empty spool, and the load came from the same machine.";
const MEASURE_NOTE: &str =
    "The intervals may be looked at after every round; they hold the true median with at least 95 %.";
const SEARCH_NOTE: &str = "Each interval by itself holds the true median with 95 %. Which values were run, and how often, \
                           was chosen by looking at earlier runs, so the best value is flattered; to compare two values, \
                           use `mailrace tune measure`.";

/// Measures whether other values of a knob are better than the present one.
///
/// # Errors
///
/// The knob or a value is wrong, a run failed, or a signal ended it. An undecided measurement, or one that is not to be
/// trusted, is an error with the exit code 1.
pub fn measure(loaded: &LoadedConfig, args: &TuneMeasureArgs) -> anyhow::Result<()> {
    let inputs = Inputs::new(loaded, &args.runs, None)?;
    let target = Target::parse(&args.knob, &inputs.host, &inputs.settings).map_err(usage)?;
    let before = inputs.before(&target, args)?;
    let values = if args.values.is_empty() { other_values(&before).map_err(usage)? } else { args.values.clone() };
    check_distinct(&before, &values)?;
    let changes = inputs.host_changes(&target, args)?;
    let mut trial = inputs.trial(target, changes)?;
    std::iter::once(&before).chain(&values).try_for_each(|value| trial.check(value).map_err(wrong_value))?;
    let plan = MeasurePlan {
        before,
        values,
        figure: match args.figure {
            MeasuredFigure::Rate => Figure::Rate,
            MeasuredFigure::Cpu => Figure::CpuPerThousand,
        },
        effect_min: args.effect_min,
        gain_min: args.gain_min,
        rounds_max: args.rounds_max.into(),
        time_max: args.runs.time_max,
    };
    let mut line = TerminalLine::new();
    let measured = tune::measure(plan, &mut trial, &mut line);
    line.end();
    let description = inputs.description(args.knob.clone(), &trial, &line, MEASURE_NOTE).map_err(run_failed)?;
    trial.finish().map_err(run_failed)?;
    let measured = measured.map_err(run_failed)?;
    let text = match args.runs.json {
        true => render_measurement_json(&measured, &description)?,
        false => render_measurement(&measured, &description),
    };
    finish(&text, &measurement_file(&measured, &description), args.runs.output.as_deref())?;
    if !measured.is_trusted() {
        return Err(negative("the present value against itself shows an effect"));
    }
    match measured.verdicts.iter().any(tune::EffectVerdict::is_undecided) {
        true => Err(negative("not decided")),
        false => Ok(()),
    }
}

/// Searches the smallest value of a parameter with nearly the best rate.
///
/// # Errors
///
/// The parameter or a bound is wrong, a run failed, or a signal ended it. A search that ended early, and a rate that
/// still rises at the highest value, are errors with the exit code 1.
pub fn search(loaded: &LoadedConfig, args: &TuneSearchArgs) -> anyhow::Result<()> {
    let inputs = Inputs::new(loaded, &args.runs, None)?;
    let target = args.parameter.target(args.runs.scenario, &inputs.settings).map_err(usage)?;
    let in_force = inputs.present(&target);
    let plan = search_plan(args, &inputs.settings, in_force.as_deref())?;
    check_sessions(&target, plan.high, loaded)?;
    let what = format!("{} is {target}", args.parameter);
    let mut trial = inputs.trial(target, None)?;
    [plan.low, plan.high].iter().try_for_each(|value| trial.check(&value.to_string()).map_err(wrong_value))?;
    let mut line = TerminalLine::new();
    let found = tune::search(plan, &mut trial, &mut line);
    line.end();
    let mut description =
        inputs.description(args.parameter.to_string(), &trial, &line, SEARCH_NOTE).map_err(run_failed)?;
    description.notes.insert(0, what);
    trial.finish().map_err(run_failed)?;
    let curve = found.map_err(run_failed)?;
    let text = match args.runs.json {
        true => render_curve_json(&curve, &description)?,
        false => render_curve(&curve, &description),
    };
    finish(&text, &curve_file(&curve, &description), args.runs.output.as_deref())?;
    match (curve.end, curve.shape()) {
        (SearchEnd::LimitReached, _) => Err(negative("the search ended early")),
        (_, Some(Shape::Rising)) => Err(negative("the best value is not below the highest")),
        _ => Ok(()),
    }
}

/// `in_force` is the value in the configuration; a default bound is never below it.
fn search_plan(args: &TuneSearchArgs, settings: &ServerSettings, in_force: Option<&str>) -> anyhow::Result<SearchPlan> {
    let processors = thread::available_parallelism().map_or(1, |count| count.get() as u64);
    let bounds = args.parameter.bounds(args.runs.scenario, settings, processors);
    let low = args.min.unwrap_or(*bounds.start());
    let in_force = args.parameter.in_force(in_force, settings, processors);
    let high = args.max.unwrap_or(low.max(*bounds.end()).max(in_force.unwrap_or(0)));
    if low > high {
        return Err(usage_text(format!("--min is {low}, expected no more than --max, which is {high}")));
    }
    Ok(SearchPlan {
        low,
        high,
        in_force,
        step: args.step,
        tolerance: args.tolerance,
        runs_max: args.runs_max.into(),
        time_max: args.runs.time_max,
    })
}

/// A server that refuses sessions is not measured.
fn check_sessions(target: &Target, high: u64, loaded: &LoadedConfig) -> anyhow::Result<()> {
    let sessions_max = loaded.config.limits.connections.sessions_max as u64;
    match *target == Target::Sessions && high > sessions_max {
        true => Err(usage_text(format!(
            "limits.sessions is {sessions_max}, and the search goes up to {high}: give a lower --max, or raise the limit"
        ))),
        false => Ok(()),
    }
}

/// What both commands need.
struct Inputs<'a> {
    args: &'a TuneRunArgs,
    host: Host,
    settings: ServerSettings,
    operator: toml::Table,
    started: Timestamp,
    lane: &'a Path,
}

impl<'a> Inputs<'a> {
    /// Looks at the host below `root`, by default the running one, without what a killed measurement left there: its values
    /// are neither the present ones, nor those to measure other knobs with.
    fn new(loaded: &'a LoadedConfig, args: &'a TuneRunArgs, root: Option<&Path>) -> anyhow::Result<Inputs<'a>> {
        end_killed_measurement(root)?;
        let lane = loaded.config.spool.lanes.first().context("the configuration has no lane of the spool")?;
        Ok(Inputs {
            args,
            host: host(root)?,
            settings: ServerSettings::from_config(&loaded.config),
            operator: loaded.text.parse().context("reading the configuration")?,
            started: Timestamp::from(SystemTime::now()),
            lane,
        })
    }

    fn before(&self, target: &Target, args: &TuneMeasureArgs) -> anyhow::Result<String> {
        let present = || self.present(target);
        args.before.clone().or_else(present).ok_or_else(|| {
            let why = match target {
                Target::Setting(_) => {
                    "there is no such setting, or neither the configuration nor its defaults have a value"
                }
                Target::Environment(_) => "this variable is not set",
                Target::Sessions | Target::Host(_) => "it cannot be read, or several disks have different values",
            };
            usage_text(format!("{}: {why}: name the value to compare with, by --before", args.knob))
        })
    }

    fn present(&self, target: &Target) -> Option<String> {
        target.present(&self.operator, self.args.sessions.into(), &self.host, &self.settings)
    }

    fn trial(&self, target: Target, changes: Option<Box<dyn HostChanges>>) -> anyhow::Result<ServerTrial> {
        let interrupt = Interrupt::from_flag(bench::StopSignal::listen()?.flag());
        let settings = RunSettings {
            scenario: self.args.scenario,
            program: std::env::current_exe().context("finding this program")?,
            configuration: self.operator.clone(),
            folder: self.args.folder.clone(),
            lane: self.lane.to_owned(),
            connections: self.args.sessions.into(),
            time: self.args.time,
            timeout: self.args.timeout,
            recipients_from: self.args.recipients_from.clone(),
        };
        ServerTrial::new(settings, target, interrupt, queue_counter(), changes).map_err(run_failed)
    }

    fn host_changes(&self, target: &Target, args: &TuneMeasureArgs) -> anyhow::Result<Option<Box<dyn HostChanges>>> {
        let Target::Host(value) = target else { return Ok(None) };
        check_allowed(target, value.is_of_own_namespace(&self.host), args)?;
        Ok(Some(Box::new(LiveValues::begin(value, &self.settings).map_err(exit_error)?)))
    }

    fn description(
        &self,
        subject: String,
        trial: &ServerTrial,
        line: &TerminalLine,
        intervals_note: &str,
    ) -> Result<Description, TrialError> {
        let words: Vec<String> = std::env::args().skip(1).collect();
        Ok(Description {
            subject,
            scenario: self.args.scenario.to_string(),
            unit: self.args.scenario.unit().to_owned(),
            command: format!("mailrace {}", words.join(" ")),
            started: self.started.to_rfc3339(),
            seconds: line.begun.elapsed().as_secs_f64(),
            machine: machine::describe(self.lane, env!("CARGO_PKG_VERSION"), machine::cpu_source()),
            load_command: trial.load_command(),
            configuration: trial.base_configuration()?,
            notes: [RUNS_NOTE, intervals_note].map(str::to_owned).into(),
        })
    }
}

fn end_killed_measurement(root: Option<&Path>) -> anyhow::Result<()> {
    match tune::apply::end_measurement(&files(root)?) {
        Err(ApplyError::Io { source, .. }) if source.kind() == ErrorKind::PermissionDenied => {
            Err(ExitError { code: exit::PERMISSION, text: MEASUREMENT_LEFT.into() }.into())
        }
        ended => ended.map(drop).map_err(exit_error),
    }
}

/// Asks a server of a run for the number of its queued recipients.
fn queue_counter() -> QueueCounter {
    Box::new(|socket| {
        let answer = control_client::request_text(socket, &ControlRequest::Count(RecipientFilter::default()));
        let answer = answer.map_err(|error| error.to_string())?;
        answer.trim_end().parse().map_err(|error| format!("counting the queue: {error}"))
    })
}

/// Values of the kernel serve other programs too, so they are changed only if the operator says so; and those of the whole
/// machine only if he says that.
fn check_allowed(target: &Target, is_of_own_namespace: bool, args: &TuneMeasureArgs) -> anyhow::Result<()> {
    let until_then = "it changes while the measurement runs, and is put back afterwards";
    match (args.yes, is_of_own_namespace || args.whole_machine) {
        (true, true) => Ok(()),
        (false, true) => Err(usage_text(format!(
            "{target} is a value that every program in this network namespace gets: {until_then}. To allow that, add --yes"
        ))),
        (_, false) => Err(usage_text(format!(
            "{target} is a value that every program on this machine gets: {until_then}. To allow that, add --yes \
             --whole-machine; where others use the machine, measure on one of your own"
        ))),
    }
}

fn check_distinct(before: &str, values: &[String]) -> anyhow::Result<()> {
    let is_repeated = |(index, value): &(usize, &String)| *value == before || values[..*index].contains(value);
    match values.iter().enumerate().find(is_repeated) {
        Some((_, value)) => {
            Err(usage_text(format!("{value} appears twice: the values and the present one must differ")))
        }
        None => Ok(()),
    }
}

fn finish(text: &str, file: &ResultFile, path: Option<&Path>) -> anyhow::Result<()> {
    text.lines().try_for_each(|line| writeln!(output(), "{}", printable(line)))?;
    let Some(path) = path else { return Ok(()) };
    Ok(result_files::save(path, file)?)
}

/// One moving line on standard error, if that is a terminal.
struct TerminalLine {
    bar: ProgressBar,
    begun: Instant,
}

impl TerminalLine {
    fn new() -> TerminalLine {
        let style = ProgressStyle::with_template("[{elapsed_precise}] {wide_msg}");
        let bar = ProgressBar::new_spinner().with_style(style.expect("the template is well-formed"));
        if !bar.is_hidden() {
            bar.enable_steady_tick(TICK);
        }
        TerminalLine { bar, begun: Instant::now() }
    }

    fn end(&self) {
        self.bar.finish_and_clear();
    }
}

impl Watch for TerminalLine {
    fn elapsed(&mut self) -> Duration {
        self.begun.elapsed()
    }

    fn show(&mut self, line: &dyn Fn() -> String) {
        if !self.bar.is_hidden() {
            self.bar.set_message(line());
        }
    }
}

fn usage(error: TargetError) -> anyhow::Error {
    usage_text(error.to_string())
}

fn usage_text(text: String) -> anyhow::Error {
    ExitError { code: exit::USAGE, text }.into()
}

fn wrong_value(error: TrialError) -> anyhow::Error {
    usage_text(error.to_string())
}

fn run_failed(error: TrialError) -> anyhow::Error {
    let code = match error {
        TrialError::Stopped => exit::UNAVAILABLE,
        TrialError::Refused(_) => exit::USAGE,
        TrialError::Failed(_) => exit::SOFTWARE,
    };
    ExitError { code, text: error.to_string() }.into()
}

fn negative(text: &str) -> anyhow::Error {
    ExitError { code: exit::NEGATIVE, text: text.into() }.into()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::Parser;
    use config::{Config, ConfigSource};

    use super::*;

    #[test]
    fn a_value_of_the_whole_machine_is_changed_only_if_the_operator_says_so() {
        let target = Target::Environment("A".to_owned());
        let refused = |options: &str, is_of_own_namespace| {
            let words = format!("measure net.core.somaxconn --scenario relay{options}");
            let line = MeasureLine::parse_from(words.split(' '));
            check_allowed(&target, is_of_own_namespace, &line.args).err().map(|error| error.to_string())
        };
        assert!(refused("", false).is_some_and(|text| text.contains("--yes --whole-machine")));
        assert!(refused(" --yes", false).is_some_and(|text| text.contains("every program on this machine")));
        assert_eq!(refused(" --yes --whole-machine", false), None);
        assert!(refused("", true).is_some_and(|text| text.ends_with("add --yes")));
        assert_eq!(refused(" --yes", true), None);
        assert!(MeasureLine::try_parse_from(["measure", "a", "--scenario", "relay", "--whole-machine"]).is_err());
    }

    #[derive(Parser)]
    struct MeasureLine {
        #[command(flatten)]
        args: TuneMeasureArgs,
    }

    /// A value of the killed measurement was taken for the present one.
    #[test]
    fn the_present_value_is_the_one_before_a_killed_measurement() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("proc/sys/net/core/somaxconn", "8192\n");
        // "4096" as it was, and the digest of "8192".
        write(
            "var/lib/mailrace-tune/measurement.json",
            r#"{ "format": 1, "is_finished": true, "entries": [{
                "path": "/proc/sys/net/core/somaxconn",
                "place": { "value": { "octets": "NDA5Ngo=", "mode": 420, "owner": null } },
                "written": ["864a936a35324151e1c79c44a2e903ff2497f52fa892282d340585f493c637f0"]
            }] }"#,
        );
        let text = config::DEFAULT.to_owned();
        let config = Config::parse(&text, "test", "mx.example.org").unwrap();
        let loaded = LoadedConfig { source: ConfigSource::BuiltIn, text, config };
        let line = MeasureLine::parse_from(["measure", "net.core.somaxconn", "--scenario", "relay"]);
        let inputs = Inputs::new(&loaded, &line.args.runs, Some(folder.path())).unwrap();
        let target = Target::parse(&line.args.knob, &inputs.host, &inputs.settings).unwrap();
        assert_eq!(inputs.before(&target, &line.args).unwrap(), "4096");
        assert!(!folder.path().join("var/lib/mailrace-tune").exists());
    }
}
