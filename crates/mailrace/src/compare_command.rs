//! `mailrace bench compare`: systems measured side by side, and the files of their results.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};

use crate::cli::BenchCompareArgs;
use crate::exit::{self, ExitError};
use crate::output::{output, terminal_width};
use crate::stderr::print_stderr;
use compare::cpu::CpuGroup;
use compare::engine::{self, CompareOptions, Observer, Step};
use compare::file::{CompareFile, Scenario};
use compare::interrupt::Interrupt;
use compare::result::{Comparison, Figure, ResultFile, Run};
use compare::{ratio_text, result_files, result_text};

/// This part of the time of `--quick` is for the last servers to end: 20 seconds of ten minutes.
const QUICK_TIME_SPARE: u32 = 30;
/// By how much `--quick` divides loads.
const QUICK_SHRINK: u64 = 10;
/// The pause before each run of `--quick`.
const QUICK_REST: Duration = Duration::from_secs(1);
/// How often the elapsed time on the line is drawn anew.
const TICK: Duration = Duration::from_secs(1);

/// Runs the scenarios, writes their files and prints them. A missed aim is an error with the exit code 1.
///
/// # Errors
///
/// The file cannot be read or has errors, a run fails, or a file of results cannot be written.
pub fn compare(options: &BenchCompareArgs) -> anyhow::Result<()> {
    let begun = Instant::now();
    let origin = options.file.display().to_string();
    let text = fs::read_to_string(&options.file).with_context(|| format!("reading {origin}"))?;
    let file = CompareFile::parse(&text, &origin)?;
    let scenarios = chosen_scenarios(&file, &options.scenario)?;
    fs::create_dir_all(&options.output).with_context(|| format!("making {}", options.output.display()))?;
    for Scenario { name, .. } in &scenarios {
        let name = &name.get_ref().0;
        result_files::check_replaceable(&result_path(options, name), name)?;
    }
    let interrupt = Interrupt::from_flag(bench::StopSignal::listen()?.flag());
    for name in CpuGroup::end_left_behind() {
        print_stderr(format_args!("ended the processes of a killed comparison in the control group {name}"));
    }
    let mut missed = 0;
    for (number, scenario) in scenarios.iter().enumerate() {
        let left = u32::try_from(scenarios.len() - number).unwrap_or(u32::MAX);
        let time_max =
            options.quick.map(|time| (time - time / QUICK_TIME_SPARE).saturating_sub(begun.elapsed()) / left);
        let how = compare_options(options, scenario, time_max)?;
        let mut view = ProgressView::new();
        let result = engine::compare(&file, scenario, &how, &interrupt, &mut view);
        view.bar.finish_and_clear();
        missed += report(&result?, options)?;
    }
    match missed {
        0 => Ok(()),
        _ => Err(ExitError { code: exit::NEGATIVE, text: format!("{missed} of the aims were missed") }.into()),
    }
}

fn chosen_scenarios<'a>(file: &'a CompareFile, names: &[String]) -> anyhow::Result<Vec<&'a Scenario>> {
    let all = || file.scenarios.iter();
    if let Some(unknown) = names.iter().find(|name| !all().any(|scenario| scenario.name.get_ref().0 == **name)) {
        let known: Vec<&str> = all().map(|scenario| scenario.name.get_ref().0.as_str()).collect();
        let text = format!("there is no scenario {unknown}: the file has {}", known.join(", "));
        return Err(ExitError { code: exit::USAGE, text }.into());
    }
    Ok(all().filter(|scenario| names.is_empty() || names.contains(&scenario.name.get_ref().0)).collect())
}

fn compare_options(
    options: &BenchCompareArgs,
    scenario: &Scenario,
    time_max: Option<Duration>,
) -> anyhow::Result<CompareOptions> {
    Ok(CompareOptions {
        mailrace: std::env::current_exe().context("finding this program")?,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        command: command_line(options, &scenario.name.get_ref().0),
        folder: options.folder.clone().unwrap_or_else(std::env::temp_dir),
        rounds: options.rounds,
        shrink: options.shrink.unwrap_or(if options.quick.is_some() { QUICK_SHRINK } else { 1 }),
        rest: options.quick.map(|_| QUICK_REST),
        time_max,
        owned: options.ownership.owned.clone(),
    })
}

/// The command line that repeats one scenario.
fn command_line(options: &BenchCompareArgs, scenario: &str) -> String {
    let mut words = vec!["mailrace bench compare".to_owned(), shell_word(&options.file)];
    words.push(format!("--scenario {scenario}"));
    words.extend(options.rounds.map(|rounds| format!("--rounds {rounds}")));
    words.extend(options.quick.map(|time| format!("--quick={}ms", time.as_millis())));
    words.extend(options.shrink.map(|shrink| format!("--shrink {shrink}")));
    words.extend(options.folder.as_deref().map(|folder: &Path| format!("--folder {}", shell_word(folder))));
    words.extend(options.ownership.owned.iter().map(|host| format!("--i-own-this-target {host}")));
    words.join(" ")
}

/// A path as a word of a shell line.
fn shell_word(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+,:@".contains(c);
    if text.chars().all(is_plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

fn result_path(options: &BenchCompareArgs, scenario: &str) -> PathBuf {
    options.output.join(format!("{scenario}.json"))
}

/// Writes and prints a result; returns how many aims were missed.
fn report(result: &ResultFile, options: &BenchCompareArgs) -> anyhow::Result<usize> {
    let path = result_path(options, &result.name);
    result_files::save(&path, result)?;
    match options.json {
        true => writeln!(output(), "{}", serde_json::to_string(result).context("writing JSON")?)?,
        false => writeln!(output(), "{}written to {}", result_text(result, terminal_width()), path.display())?,
    }
    Ok(result.comparisons.iter().filter(|comparison| comparison.is_met == Some(false)).count())
}

/// One moving line on a terminal; without one, a line for each run.
struct ProgressView {
    bar: ProgressBar,
    ended: u64,
    ratio: String,
}

impl ProgressView {
    fn new() -> ProgressView {
        let bar = ProgressBar::new(0);
        let template = "[{elapsed_precise}] {bar:24} {wide_msg}";
        bar.set_style(ProgressStyle::with_template(template).expect("the template is well-formed"));
        if !bar.is_hidden() {
            bar.enable_steady_tick(TICK);
        }
        ProgressView { bar, ended: 0, ratio: String::new() }
    }
}

impl Observer for ProgressView {
    fn begins(&mut self, step: &Step<'_>) {
        self.bar.set_length(self.ended + 1 + u64::from(step.runs_left));
        self.bar.set_position(self.ended);
        self.bar.set_message(format!("{}{}", step_text(step), self.ratio));
    }

    fn ended(&mut self, step: &Step<'_>, run: &Run) {
        self.ended += 1;
        if self.bar.is_hidden() {
            let figure = |figure: Figure, digits: usize| {
                run.figure(figure).map_or_else(|| "-".to_owned(), |it| format!("{it:.digits$}"))
            };
            print_stderr(format_args!(
                "{}: {} a second, CPU seconds for 1,000: {}, of the machine {}",
                step_text(step),
                figure(Figure::Rate, 0),
                figure(Figure::CpuPerThousand, 4),
                figure(Figure::MachineCpuPerThousand, 4),
            ));
        }
    }

    fn compared(&mut self, comparisons: &[Comparison]) {
        if let Some(first) = comparisons.first() {
            self.ratio = format!("; {} / {}: {}", first.over, first.under, ratio_text(first));
        }
    }
}

fn step_text(step: &Step<'_>) -> String {
    let value = if step.value.is_empty() { String::new() } else { format!(" {}", step.value) };
    let Step { scenario, system, round, rounds_max, runs_left, .. } = step;
    format!("{scenario}: round {round} of at most {rounds_max}, {system}{value}, runs left at most: {runs_left}")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{BenchCommand, Cli, Command};

    fn options(line: &str) -> BenchCompareArgs {
        match Cli::parse_from(line.split(' ')).command {
            Command::Bench(BenchCommand::Compare(options)) => options,
            _ => panic!("{line}"),
        }
    }

    #[test]
    fn the_command_line_of_a_result_repeats_its_scenario() {
        let given = options("mailrace bench compare a.toml --quick --shrink 4 --rounds 3 --json --output x");
        let line = command_line(&given, "many");
        assert_eq!(line, "mailrace bench compare a.toml --scenario many --rounds 3 --quick=600000ms --shrink 4");
    }

    #[test]
    fn paths_of_a_command_line_are_one_word_each() {
        assert_eq!(shell_word(Path::new("/srv/a-b_1.toml")), "/srv/a-b_1.toml");
        assert_eq!(shell_word(Path::new("our servers/it's.toml")), r"'our servers/it'\''s.toml'");
    }

    #[test]
    fn an_unknown_scenario_is_named_with_the_known_ones() {
        let text = "[compare]\nname = \"x\"\ntitle = \"x\"\n[[system]]\nname = \"a\"\nstart = \"a\"\n\
                    [[scenario]]\nname = \"one\"\nload = \"l\"\n[[scenario]]\nname = \"two\"\nload = \"l\"\n";
        let file = CompareFile::parse(text, "x.toml").unwrap();
        let chosen =
            |names: &[&str]| chosen_scenarios(&file, &names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        assert_eq!(chosen(&[]).unwrap().len(), 2);
        assert_eq!(chosen(&["two"]).unwrap()[0].name.get_ref().0, "two");
        let error = chosen(&["three"]).unwrap_err().to_string();
        assert!(error.contains("three") && error.contains("one, two"), "{error}");
    }
}
