//! A curve as text for people, as JSON, and as a file of results.

use std::collections::BTreeMap;
use std::fmt::Write;

use compare::result::{Case, Comparison, Figure, ResultFile};
use compare::statistics::{median, median_interval};
use serde_json::{Value, json};

use super::{Curve, RateAt, SearchEnd, Shape};
use crate::description::Description;

/// Columns of the longest bar.
const BAR_COLUMNS: f64 = 40.0;
/// The system of all cases.
const SYSTEM: &str = "mailrace";

/// The curve as text: a bar for each value, then the answer.
#[must_use]
pub fn render_curve(curve: &Curve, description: &Description) -> String {
    let runs: usize = curve.rates().map(|point| point.runs).sum();
    let mut text =
        format!("{} in {}: {runs} runs in {:.0} s\n\n", description.subject, description.scenario, description.seconds);
    let best = curve.best().map_or(1.0, |best| best.rate);
    let knee = curve.knee().map(|knee| knee.value);
    writeln!(text, "  {:>9} {:>12}  ({}s a second)", "VALUE", "MEDIAN", description.unit).expect(STRING);
    for point in curve.rates() {
        let bar = "#".repeat((point.rate / best * BAR_COLUMNS).round() as usize);
        let range = point.interval.map_or_else(String::new, |(low, high)| format!(" {low:.0} to {high:.0}"));
        let marks = [(knee, "enough"), (curve.plan.in_force, "in force")];
        let marks: Vec<_> =
            marks.into_iter().filter(|(value, _)| *value == Some(point.value)).map(|(_, it)| it).collect();
        let mark = if marks.is_empty() { String::new() } else { format!(" <- {}", marks.join(", ")) };
        writeln!(text, "  {:>9} {:>12.0}  {bar}{range}{mark}", point.value, point.rate).expect(STRING);
    }
    text.push('\n');
    for sentence in sentences(curve, description) {
        text.push_str(&sentence);
        text.push('\n');
    }
    text
}

const STRING: &str = "a String takes every text";

/// The knee, the rates and the file of results as one JSON object.
///
/// # Errors
///
/// None in practice: a file of results can always be written as JSON.
pub fn render_curve_json(curve: &Curve, description: &Description) -> serde_json::Result<String> {
    let object = json!({
        "shape": curve.shape().map(Shape::name),
        "complete": curve.end == SearchEnd::Complete,
        "knee": curve.knee().map(point_json),
        "best": curve.best().map(point_json),
        "in_force": curve.in_force().map(point_json),
        "best_other": curve.best_other().map(point_json),
        "recommended": curve.recommended().map(point_json),
        "values": curve.rates().map(point_json).collect::<Vec<_>>(),
        "result": serde_json::to_value(curve_file(curve, description))?,
    });
    Ok(serde_json::to_string_pretty(&object)? + "\n")
}

/// The curve as a file of results: a case for each value, a round for each pass.
#[must_use]
pub fn curve_file(curve: &Curve, description: &Description) -> ResultFile {
    let title = format!("{} in {}", description.subject, description.scenario);
    let answer = sentences(curve, description).join(". ");
    ResultFile {
        systems: vec![description.system(SYSTEM)],
        cases: curve.points.keys().map(|value| case(curve, *value)).collect(),
        comparisons: [largest_over_knee(curve), best_over_in_force(curve)].into_iter().flatten().collect(),
        ..description.file("search", title, answer)
    }
}

/// A pass that did not run the value is an empty round, so that rounds of all cases are comparable.
fn case(curve: &Curve, value: u64) -> Case {
    let runs = &curve.points[&value];
    let round = |pass| runs.get(&pass).map(|run| (SYSTEM.to_owned(), run.clone()));
    let rounds = (0..curve.passes).map(|pass| round(pass).into_iter().collect::<BTreeMap<_, _>>());
    Case { label: value.to_string(), value: Some(value as f64), rounds: rounds.collect() }
}

fn largest_over_knee(curve: &Curve) -> Option<Comparison> {
    comparison(curve, curve.largest()?.value, curve.knee()?.value)
}

fn best_over_in_force(curve: &Curve) -> Option<Comparison> {
    comparison(curve, curve.best_other()?.value, curve.plan.in_force?)
}

/// None if they are the same, or no pass ran both.
fn comparison(curve: &Curve, over: u64, under: u64) -> Option<Comparison> {
    let ratios = curve.ratios(over, under);
    Some(Comparison {
        figure: Figure::Rate,
        over: SYSTEM.to_owned(),
        under: SYSTEM.to_owned(),
        case: over.to_string(),
        under_case: Some(under.to_string()),
        ratio: median(&ratios).filter(|_| over != under)?,
        interval: median_interval(&ratios),
        aim: None,
        is_met: None,
    })
}

/// `, 1.20 times (1.10 to 1.30)`; nothing without a comparison.
fn times(comparison: Option<&Comparison>) -> String {
    comparison.map_or_else(String::new, |comparison| match comparison.interval {
        Some((low, high)) => format!(", {:.2} times ({low:.2} to {high:.2})", comparison.ratio),
        None => format!(", {:.2} times", comparison.ratio),
    })
}

/// The answer, what to do with the value in force, and whether the search is complete.
pub(super) fn sentences(curve: &Curve, description: &Description) -> Vec<String> {
    let Some(answer) = answer(curve, description) else { return vec!["nothing was measured".to_owned()] };
    let incomplete = "the search ended early: more runs (--runs-max) or more time (--time-max) make it surer";
    let incomplete = (curve.end == SearchEnd::LimitReached).then(|| incomplete.to_owned());
    [Some(answer), advice(curve), incomplete].into_iter().flatten().collect()
}

/// Whether a value beat the one in force; None if that is no number.
fn advice(curve: &Curve) -> Option<String> {
    let (in_force, recommended) = (curve.in_force()?.value, curve.recommended()?.value);
    if recommended != in_force {
        let times = times(comparison(curve, recommended, in_force).as_ref());
        return Some(format!(
            "{recommended} beat {in_force}, the value in force{times}: measure them before you change it"
        ));
    }
    let best = best_over_in_force(curve);
    let other = best.as_ref().map_or_else(String::new, |best| format!("; the best other is {}", best.case));
    Some(format!("nothing beat {in_force}, the value in force{other}{}: keep it", times(best.as_ref())))
}

fn answer(curve: &Curve, description: &Description) -> Option<String> {
    let Description { subject, unit, .. } = description;
    let (knee, best, largest) = (curve.knee()?, curve.best()?, curve.largest()?);
    let rate = |point: RateAt| format!("{:.0} {unit}s a second", point.rate);
    let ratio = times(largest_over_knee(curve).as_ref());
    Some(match curve.shape()? {
        Shape::Saturated => format!(
            "{} {subject} gave no more than {}: {} against {}{ratio}",
            largest.value,
            knee.value,
            rate(largest),
            rate(knee)
        ),
        Shape::Flat => format!(
            "{} {subject} gave no more than {}: no difference was seen, {}{ratio}",
            largest.value,
            knee.value,
            rate(knee)
        ),
        Shape::Peaked => format!(
            "{} {subject} gave less than {}: {} against {}{ratio}; {} is enough",
            largest.value,
            best.value,
            rate(largest),
            rate(best),
            knee.value
        ),
        Shape::Rising => format!(
            "the rate still rose at {} {subject}, to {}: search above it with --max",
            largest.value,
            rate(largest)
        ),
    })
}

impl Shape {
    /// The word in JSON.
    fn name(self) -> &'static str {
        match self {
            Shape::Saturated => "saturated",
            Shape::Peaked => "peaked",
            Shape::Flat => "flat",
            Shape::Rising => "rising",
        }
    }
}

fn point_json(point: RateAt) -> Value {
    json!({ "value": point.value, "rate": point.rate, "interval": point.interval, "runs": point.runs })
}
