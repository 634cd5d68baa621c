//! The answer of a measurement in one sentence.

use crate::numbers::{range, short};
use crate::result::{Comparison, Figure, ResultFile};
use crate::statistics::median;
use crate::words::{case_text, figure_name, plural};

/// Stands where an interval would be.
const NO_INTERVAL: &str = "too few rounds for an interval";

/// The answer that the file has, else one made from its first comparison, its checks, or its first system. None if
/// nothing was measured.
#[must_use]
pub fn answer(file: &ResultFile) -> Option<String> {
    let given = file.answer.clone().filter(|text| !text.trim().is_empty());
    let first = || file.comparisons.iter().find(|comparison| comparison.ratio.is_finite());
    given
        .or_else(|| first().map(|comparison| of_comparison(file, comparison)))
        .or_else(|| of_checks(file))
        .or_else(|| of_first_system(file))
}

fn of_comparison(file: &ResultFile, comparison: &Comparison) -> String {
    let Comparison { figure, case, under_case, .. } = comparison;
    let (over, under) = match under_case {
        None => (comparison.over.clone(), comparison.under.clone()),
        Some(other) => (at(file, &comparison.over, case), at(file, &comparison.under, other)),
    };
    let ratio = short(comparison.ratio);
    let interval = comparison.interval.map_or_else(|| NO_INTERVAL.to_owned(), range);
    let place = if case.is_empty() || under_case.is_some() { String::new() } else { at(file, ",", case) };
    if comparison.interval.is_some_and(|(low, high)| low <= 1.0 && high >= 1.0) {
        let figure = figure_name(*figure, &file.unit);
        return format!(
            "No difference between {over} and {under} was seen in {figure}{place}: {ratio} times ({interval})."
        );
    }
    format!("{}{place} ({interval}).", claim(*figure, &file.unit, &over, &under, &ratio))
}

/// The sentence without its end.
fn claim(figure: Figure, unit: &str, over: &str, under: &str, ratio: &str) -> String {
    match figure {
        Figure::Rate => format!("{over} handled {ratio} times as many {} a second as {under}", plural(unit)),
        Figure::CpuPerThousand => format!("{over} used {ratio} times as much CPU for each {unit} as {under}"),
        Figure::LoadCpuPerThousand => {
            format!("The load of {over} used {ratio} times as much CPU for each {unit} as that of {under}")
        }
        Figure::MachineCpuPerThousand => {
            format!("With {over} the machine used {ratio} times as much CPU for each {unit} as with {under}")
        }
        Figure::ResidentBytes => format!("{over} occupied {ratio} times as much memory as {under}"),
    }
}

fn at(file: &ResultFile, what: &str, case: &str) -> String {
    format!("{what} with {}", case_text(file, case))
}

fn of_checks(file: &ResultFile) -> Option<String> {
    let verdicts: Vec<bool> = file.checks.iter().filter_map(|check| check.is_met).collect();
    let met = verdicts.iter().filter(|is_met| **is_met).count();
    match (&file.checks[..], verdicts.len()) {
        ([], _) => None,
        ([check], _) => Some(format!("{}: {}.", check.aim, check.measured)),
        (_, 0) => None,
        (_, count) => Some(format!("{met} of {count} checks were met.")),
    }
}

fn of_first_system(file: &ResultFile) -> Option<String> {
    let case = file.cases.first()?;
    let names = file.system_names();
    let system = names.first()?;
    let rates = case.figures(system, Figure::Rate);
    let rate = short(median(&rates)?);
    Some(format!("{system} handled {rate} {} a second, in the median of {} runs.", plural(&file.unit), rates.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(comparison: &str) -> ResultFile {
        serde_json::from_str(&format!(
            r#"{{"format": 1, "name": "n", "title": "t", "command": "c", "started": "s", "machine": [], "unit": "message",
                "case_name": "connections", "systems": [], "cases": [], "comparisons": [{comparison}]}}"#
        ))
        .unwrap()
    }

    #[test]
    fn the_first_comparison_is_the_answer() {
        let rate =
            r#"{"figure": "rate", "over": "Mailrace", "under": "Postfix", "ratio": 16.09, "interval": [15.4, 17.0]}"#;
        let sentence = "Mailrace handled 16.1 times as many messages a second as Postfix (15.4 to 17.0).";
        assert_eq!(answer(&file(rate)).unwrap(), sentence);
        let cpu = r#"{"figure": "cpu_per_thousand", "over": "A", "under": "B", "case": "400", "ratio": 0.5}"#;
        let sentence = "A used 0.500 times as much CPU for each message as B, with connections 400 (too few rounds for an interval).";
        assert_eq!(answer(&file(cpu)).unwrap(), sentence);
        let cases =
            r#"{"figure": "rate", "over": "A", "under": "A", "case": "400", "under_case": "100", "ratio": 2.0}"#;
        let sentence = "A with connections 400 handled 2.00 times as many messages a second as A with connections 100 \
                        (too few rounds for an interval).";
        assert_eq!(answer(&file(cases)).unwrap(), sentence);
    }

    #[test]
    fn an_interval_around_one_shows_no_difference() {
        let rate = r#"{"figure": "rate", "over": "A", "under": "B", "ratio": 1.02, "interval": [0.97, 1.05]}"#;
        let sentence = "No difference between A and B was seen in messages a second: 1.02 times (0.970 to 1.05).";
        assert_eq!(answer(&file(rate)).unwrap(), sentence);
    }

    #[test]
    fn a_given_answer_comes_first_and_nothing_measured_is_no_answer() {
        let mut file = file("");
        assert_eq!(answer(&file), None);
        file.answer = Some("Yes.".to_owned());
        assert_eq!(answer(&file).unwrap(), "Yes.");
    }
}
