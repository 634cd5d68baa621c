//! A measurement as text for people, and as JSON.

use std::fmt::Write;

use compare::result::{Figure, Run};
use compare::statistics::median;
use serde_json::{Value, json};

use super::answer::sentences;
use super::result_file::measurement_file;
use super::{EffectVerdict, MeasureEnd, MeasureRound, Measurement};
use crate::description::Description;

/// The verdicts as text: a line for each value with its figures, then the answer.
#[must_use]
pub fn render_measurement(measurement: &Measurement, description: &Description) -> String {
    let plan = &measurement.plan;
    let mut text = format!(
        "{} in {}: {} round{} in {:.0} s\n\n",
        description.subject,
        description.scenario,
        measurement.rounds.len(),
        if measurement.rounds.len() == 1 { "" } else { "s" },
        description.seconds
    );
    let figure = figure_name(plan.figure, &description.unit);
    let mut row = |value: &str, figure: &str, rest: &str| {
        writeln!(text, "  {value:<20} {figure:>12}  {rest}").expect("a String takes every text");
    };
    row("VALUE", "MEDIAN", &format!("of the {figure}; ratio to before, with its interval"));
    row(&plan.before, &typical(measurement, |round| Some(&round.before)), "before");
    let control = cell("control", &measurement.control);
    row(&plan.before, &typical(measurement, |round| Some(&round.before_again)), &control);
    for (index, (value, verdict)) in plan.values.iter().zip(&measurement.verdicts).enumerate() {
        let name = if measurement.is_trusted() { verdict.name() } else { "not to be trusted" };
        row(value, &typical(measurement, |round| round.after[index].as_ref()), &cell(name, verdict));
    }
    text.push('\n');
    for sentence in sentences(measurement, &description.subject) {
        text.push_str(&sentence);
        text.push('\n');
    }
    text
}

/// The verdicts and the file of results as one JSON object.
///
/// # Errors
///
/// None in practice: a file of results can always be written as JSON.
pub fn render_measurement_json(measurement: &Measurement, description: &Description) -> serde_json::Result<String> {
    let values = measurement.plan.values.iter().zip(&measurement.verdicts).enumerate();
    let object = json!({
        "trusted": measurement.is_trusted(),
        "ended_by": end_name(measurement.end),
        "rounds": measurement.rounds.len(),
        "before": measurement.plan.before,
        "control": verdict_json(&measurement.control),
        "values": values.map(|(index, (value, verdict))| {
            let mut object = verdict_json(verdict);
            object["value"] = json!(value);
            object["failures"] = json!(measurement.failures(index).collect::<Vec<_>>());
            object
        }).collect::<Vec<_>>(),
        "result": serde_json::to_value(measurement_file(measurement, description))?,
    });
    Ok(serde_json::to_string_pretty(&object)? + "\n")
}

fn end_name(end: MeasureEnd) -> &'static str {
    match end {
        MeasureEnd::Decided => "decided",
        MeasureEnd::ControlFailed => "control",
        MeasureEnd::RoundsOver => "rounds",
        MeasureEnd::TimeOver => "time",
    }
}

fn cell(name: &str, verdict: &EffectVerdict) -> String {
    verdict.effect().map_or_else(|| name.to_owned(), |effect| format!("{name}: {effect}"))
}

/// The median of the figure over the rounds.
fn typical<'a>(measurement: &'a Measurement, run: impl Fn(&'a MeasureRound) -> Option<&'a Run>) -> String {
    let figure = |round| run(round)?.figure(measurement.plan.figure);
    let figures: Vec<f64> = measurement.rounds.iter().filter_map(figure).collect();
    median(&figures).map_or_else(|| "-".to_owned(), display_figure)
}

fn figure_name(figure: Figure, unit: &str) -> String {
    match figure {
        Figure::Rate => format!("{unit}s a second"),
        _ => format!("CPU seconds of the server for 1,000 {unit}s"),
    }
}

fn display_figure(figure: f64) -> String {
    if figure >= 100.0 { format!("{figure:.0}") } else { format!("{figure:.3}") }
}

fn verdict_json(verdict: &EffectVerdict) -> Value {
    let effect = verdict.effect();
    json!({
        "verdict": verdict.name(),
        "ratio": effect.map(|effect| effect.ratio),
        "interval": effect.and_then(|effect| effect.interval),
    })
}
