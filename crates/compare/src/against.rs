//! Results of one day beside those of another: the ratio of new to old for each system, with its interval.
//!
//! Files with the same name belong together, and in them cases with the same label and systems with the same name.
//! The runs were not made in the same rounds, so whatever else changed on the machine is in the ratio too: a
//! difference of the machines is a warning, and so are another load and another configuration.

use crate::result::{Case, Figure, Property, ResultFile, System};
use crate::setup_difference::{configuration_difference, load_difference};
use crate::statistics::median;
use crate::unpaired::{ratio, ratio_interval};
use crate::words::{case_text, plural};

/// What is compared.
const FIGURES: [Figure; 2] = [Figure::Rate, Figure::CpuPerThousand];
/// Smaller changes are shown, but they are neither better nor worse.
const CHANGE_MIN: f64 = 0.05;
/// Properties of a machine that differ with every measurement. The version of Mailrace is often what is compared,
/// whatever its systems are called.
const PASSING_PROPERTIES: [&str; 3] = ["date", "started", "Mailrace"];

/// New results compared with old ones.
#[derive(Clone, Debug, PartialEq)]
pub struct Against {
    /// One for each new result, in their order; None if there is no old one of its name.
    pub results: Vec<Option<Changes>>,
    /// The names of old results for which there is no new one.
    pub only_old: Vec<String>,
}

/// One result compared with the old one of its name.
#[derive(Clone, Debug, PartialEq)]
pub struct Changes {
    /// When the old measurement began.
    pub old_started: String,
    /// What makes the comparison doubtful, as sentences without an end.
    pub warnings: Vec<String>,
    /// For each case, system and figure that both have.
    pub changes: Vec<Change>,
}

/// The change of one figure of one system.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The label of the case.
    pub case: String,
    /// The system.
    pub system: String,
    /// What is compared.
    pub figure: Figure,
    /// The median of the old runs.
    pub old: f64,
    /// The median of the new runs.
    pub new: f64,
    /// The median of the ratios of every new run to every old one.
    pub ratio: f64,
    /// The interval that holds the ratio with 95 % confidence; None with too few runs: it takes four on each side,
    /// or three and five.
    pub interval: Option<(f64, f64)>,
}

/// What a change says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeVerdict {
    /// More than 5 % better, and the whole interval is on this side of 1.
    Better,
    /// More than 5 % worse, and the whole interval is on this side of 1.
    Worse,
    /// The whole interval is on one side of 1, but the change is at most 5 %.
    Small,
    /// The interval holds 1.
    NotSeen,
    /// There are too few runs for an interval.
    TooFewRuns,
}

impl Against {
    /// Compares files of results. Of several old ones with the same name the last counts.
    #[must_use]
    pub fn new(results: &[ResultFile], old: &[ResultFile]) -> Against {
        let find = |new: &ResultFile| old.iter().rev().find(|old| old.name == new.name);
        let is_only_old = |old: &&ResultFile| results.iter().all(|new| new.name != old.name);
        Against {
            results: results.iter().map(|new| find(new).map(|old| compare(new, old))).collect(),
            only_old: old.iter().filter(is_only_old).map(|old| old.name.clone()).collect(),
        }
    }

    /// Whether no result could be compared.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.results.iter().all(Option::is_none)
    }

    /// How many figures have this verdict.
    #[must_use]
    pub fn count(&self, verdict: ChangeVerdict) -> usize {
        let changes = self.results.iter().flatten().flat_map(|result| &result.changes);
        changes.filter(|change| change.verdict() == verdict).count()
    }
}

impl Change {
    /// What this change says.
    #[must_use]
    pub fn verdict(&self) -> ChangeVerdict {
        let Some((low, high)) = self.interval else { return ChangeVerdict::TooFewRuns };
        if low <= 1.0 && high >= 1.0 {
            return ChangeVerdict::NotSeen;
        }
        if (self.ratio - 1.0).abs() <= CHANGE_MIN {
            return ChangeVerdict::Small;
        }
        let is_more = self.ratio > 1.0;
        if is_more == (self.figure == Figure::Rate) { ChangeVerdict::Better } else { ChangeVerdict::Worse }
    }
}

impl ChangeVerdict {
    /// For people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ChangeVerdict::Better => "better",
            ChangeVerdict::Worse => "worse",
            ChangeVerdict::Small => "5 % or less",
            ChangeVerdict::NotSeen => "no difference seen",
            ChangeVerdict::TooFewRuns => "too few runs",
        }
    }
}

fn compare(new: &ResultFile, old: &ResultFile) -> Changes {
    let mut changes = Vec::new();
    for case in &new.cases {
        let Some(old_case) = old.cases.iter().find(|old| old.label == case.label) else { continue };
        for system in new.system_names() {
            changes.extend(FIGURES.iter().filter_map(|figure| change(case, old_case, system, *figure)));
        }
    }
    Changes { old_started: old.started.clone(), warnings: warnings(new, old), changes }
}

/// None if a side has no run with this figure.
fn change(new: &Case, old: &Case, system: &str, figure: Figure) -> Option<Change> {
    let positive = |case: &Case| -> Vec<f64> {
        case.figures(system, figure).into_iter().filter(|value| value.is_normal() && *value > 0.0).collect()
    };
    let (new_runs, old_runs) = (positive(new), positive(old));
    Some(Change {
        case: new.label.clone(),
        system: system.to_owned(),
        figure,
        old: median(&old_runs)?,
        new: median(&new_runs)?,
        ratio: ratio(&new_runs, &old_runs)?,
        interval: ratio_interval(&new_runs, &old_runs),
    })
}

fn warnings(new: &ResultFile, old: &ResultFile) -> Vec<String> {
    let mut warnings = Vec::new();
    let differences = machine_differences(new, old);
    if !differences.is_empty() {
        warnings.push(format!("The machines differ: {}", differences.join("; ")));
    }
    if new.unit != old.unit {
        warnings.push(format!("They count different things: {} (new), {} (old)", plural(&new.unit), plural(&old.unit)));
    }
    for name in new.system_names() {
        let Some((new, old)) = system(new, name).zip(system(old, name)) else { continue };
        if let Some(difference) = load_difference(&new.commands, &old.commands) {
            warnings.push(format!("The load of {name} differs: {difference}"));
        }
        if let Some(difference) = configuration_difference(new, old) {
            warnings.push(format!("The configuration of {name} differs: {difference}"));
        }
    }
    if new.is_trial || old.is_trial {
        warnings.push("One of them is a trial, which is too short to be compared".to_owned());
    }
    if new.reduced != old.reduced {
        let named = |file: &ResultFile| file.reduced.clone().unwrap_or_else(|| "complete".to_owned());
        warnings.push(format!("They are reduced differently: {} (new), {} (old)", named(new), named(old)));
    }
    let mut alone = Vec::new();
    alone.extend(names_alone(new, old).map(|name| format!("{name} (new)")));
    alone.extend(names_alone(old, new).map(|name| format!("{name} (old)")));
    if !alone.is_empty() {
        warnings.push(format!("Only one of them has: {}", alone.join(", ")));
    }
    warnings
}

/// What differs besides the versions of the systems, which are often what is compared.
fn machine_differences(new: &ResultFile, old: &ResultFile) -> Vec<String> {
    let systems = [new.system_names(), old.system_names()].concat();
    let is_of_machine = |name: &str| {
        let expected = systems.iter().chain(&PASSING_PROPERTIES);
        !expected.into_iter().any(|expected| expected.eq_ignore_ascii_case(name))
    };
    let mut names: Vec<&str> = Vec::new();
    for Property { name, .. } in new.machine.iter().chain(&old.machine) {
        if is_of_machine(name) && !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let value = |file: &ResultFile, name: &str| {
        let property = file.machine.iter().find(|property| property.name == name);
        property.map_or_else(|| "not stated".to_owned(), |property| property.value.clone())
    };
    let both = names.into_iter().map(|name| (name, value(old, name), value(new, name)));
    let differing = both.filter(|(_, old, new)| old != new);
    differing.map(|(name, old, new)| format!("{name}: {old} (old), {new} (new)")).collect()
}

/// None if the system is not listed.
fn system<'a>(file: &'a ResultFile, name: &str) -> Option<&'a System> {
    file.systems.iter().find(|system| system.name == name)
}

/// Systems and cases that only `one` has.
fn names_alone(one: &ResultFile, other: &ResultFile) -> impl Iterator<Item = String> {
    let others = other.system_names();
    let systems = one.system_names().into_iter().filter(move |name| !others.contains(name)).map(str::to_owned);
    let is_alone = |case: &&Case| other.cases.iter().all(|other| other.label != case.label);
    let text = |case: &Case| match case_text(one, &case.label) {
        text if text.is_empty() => "a case without a label".to_owned(),
        text => text,
    };
    let cases: Vec<String> = one.cases.iter().filter(is_alone).map(text).collect();
    systems.chain(cases)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: [f64; 5] = [1000.0, 1010.0, 990.0, 1005.0, 995.0];

    /// A result whose runs take a second each.
    fn file(machine: &str, rates: &[f64]) -> ResultFile {
        let run = |rate: &f64| format!(r#"{{"a": {{"count": {rate:.0}, "seconds": 1.0, "cpu_seconds": 1.0}}}}"#);
        let rounds = rates.iter().map(run).collect::<Vec<_>>().join(",");
        serde_json::from_str(&format!(
            r#"{{"format": 1, "name": "n", "title": "t", "command": "c", "started": "s", "unit": "message",
                "machine": [{{"name": "kernel", "value": "{machine}"}}, {{"name": "A", "value": "{machine}"}}],
                "systems": [{{"name": "a", "commands": ["{machine}"]}}],
                "cases": [{{"label": "", "rounds": [{rounds}]}}]}}"#
        ))
        .unwrap()
    }

    fn verdicts(rates: &[f64]) -> Vec<ChangeVerdict> {
        let against = Against::new(&[file("x", rates)], &[file("x", &OLD)]);
        let changes = &against.results[0].as_ref().unwrap().changes;
        changes.iter().map(Change::verdict).collect()
    }

    #[test]
    fn a_change_counts_with_its_interval_beyond_one_and_by_more_than_5_percent() {
        use ChangeVerdict::{Better, NotSeen, Small, TooFewRuns, Worse};
        // The rate, then CPU for 1,000, which falls if more is done with the same CPU.
        assert_eq!(verdicts(&OLD.map(|rate| rate * 1.2)), [Better, Better]);
        assert_eq!(verdicts(&OLD.map(|rate| rate * 0.9)), [Worse, Worse]);
        assert_eq!(verdicts(&OLD.map(|rate| rate * 1.03)), [Small, Small]);
        assert_eq!(verdicts(&OLD), [NotSeen, NotSeen]);
        assert_eq!(verdicts(&[500.0, 1500.0, 900.0, 1300.0]), [NotSeen, NotSeen]);
        assert_eq!(verdicts(&[2000.0; 2]), [TooFewRuns, TooFewRuns]);
    }

    #[test]
    fn the_ratio_is_that_of_hodges_and_lehmann() {
        let against = Against::new(&[file("x", &[2000.0, 2100.0, 1900.0, 2050.0])], &[file("x", &OLD)]);
        let rate = &against.results[0].as_ref().unwrap().changes[0];
        assert_eq!((rate.old, rate.new), (1000.0, 2025.0));
        assert_eq!(rate.ratio, f64::midpoint(2000.0 / 990.0, 2050.0 / 1010.0));
        assert_eq!(rate.interval, Some((1900.0 / 1005.0, 2100.0 / 995.0)));
    }

    #[test]
    fn other_machines_and_other_loads_are_warnings_but_other_versions_are_not() {
        let against = Against::new(&[file("y", &OLD)], &[file("x", &OLD)]);
        let warnings = &against.results[0].as_ref().unwrap().warnings;
        assert_eq!(
            warnings[..],
            ["The machines differ: kernel: x (old), y (new)", "The load of a differs: x (old), y (new)"]
        );
    }

    #[test]
    fn a_scenario_that_changed_is_a_warning_that_says_what_differs() {
        let with = |threads: u32, port: u16, unit: &str| {
            let mut file = file("x", &OLD);
            file.unit = unit.to_owned();
            let configuration = format!("threads = {threads}\nurl = \"ldap://127.0.0.1:{port}\"\n");
            file.systems[0].configuration = Some(configuration);
            file
        };
        let warnings = |new: &ResultFile, old: &ResultFile| {
            let against = Against::new(std::slice::from_ref(new), std::slice::from_ref(old));
            against.results[0].as_ref().unwrap().warnings.clone()
        };
        assert_eq!(
            warnings(&with(1, 26_001, "message"), &with(1, 31_907, "message")),
            [""; 0],
            "ports are chosen anew"
        );
        assert_eq!(
            warnings(&with(2, 1, "page"), &with(1, 1, "message")),
            [
                "They count different things: pages (new), messages (old)",
                "The configuration of a differs: threads = 1 (old), threads = 2 (new)"
            ]
        );
    }

    #[test]
    fn another_version_of_mailrace_is_no_warning_whatever_its_systems_are_called() {
        let of_version = |version: &str| {
            let mut file = file("x", &OLD);
            file.machine.push(Property { name: "Mailrace".to_owned(), value: version.to_owned() });
            file
        };
        let against = Against::new(&[of_version("2")], &[of_version("1")]);
        assert_eq!(against.results[0].as_ref().unwrap().warnings, [""; 0]);
    }

    #[test]
    fn a_reduced_result_is_compared_with_a_warning_unless_the_other_one_is_reduced_too() {
        let mut reduced = file("x", &OLD);
        reduced.reduced = Some("every count divided by 2".to_owned());
        let warnings = |new: &ResultFile| {
            let against = Against::new(std::slice::from_ref(new), std::slice::from_ref(&reduced));
            against.results[0].as_ref().unwrap().warnings.clone()
        };
        assert_eq!(warnings(&reduced), [""; 0]);
        let expected = "They are reduced differently: complete (new), every count divided by 2 (old)";
        assert_eq!(warnings(&file("x", &OLD)), [expected]);
    }

    #[test]
    fn what_only_one_side_has_is_named() {
        let mut old = file("x", &OLD);
        old.cases[0].label = "10".to_owned();
        let against = Against::new(&[file("x", &OLD)], &[old.clone()]);
        let changes = against.results[0].as_ref().unwrap();
        assert!(changes.changes.is_empty());
        assert_eq!(changes.warnings, ["Only one of them has: a case without a label (new), 10 (old)"]);
        old.name = "other".to_owned();
        let against = Against::new(&[file("x", &OLD)], &[old]);
        assert!(against.is_empty());
        assert_eq!(against.only_old, ["other"]);
    }

    #[test]
    fn runs_without_anything_done_are_left_out() {
        let against = Against::new(&[file("x", &[0.0, 0.0])], &[file("x", &OLD)]);
        assert!(against.results[0].as_ref().unwrap().changes.is_empty());
    }
}
