//! A measurement as text for people, and as JSON.

use std::fmt::Write;

use compare::result::{Figure, Run};
use compare::statistics::median;
use serde_json::{Value, json};

use super::result_file::measurement_file;
use super::{Effect, EffectVerdict, MeasureEnd, MeasureRound, Measurement};
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

/// The answer: what is to be believed of each value.
pub(super) fn sentences(measurement: &Measurement, subject: &str) -> Vec<String> {
    if !measurement.is_trusted() {
        let effect = measurement.control.effect().map_or_else(String::new, |effect| effect.to_string());
        return vec![format!(
            "not to be trusted: {} against itself shows an effect, {effect}. Something else changes the figures: \
             end what else runs on this machine, or use longer runs (--run)",
            measurement.plan.before
        )];
    }
    let values = measurement.plan.values.iter().zip(&measurement.verdicts).enumerate();
    let each = |(index, (value, verdict)): (usize, (&String, &EffectVerdict))| {
        let what = format!("{subject} = {value}");
        match (verdict, measurement.failures(index).last()) {
            (EffectVerdict::Fails, failure) => {
                format!("{what} fails, {} does not: {}", measurement.plan.before, failure.unwrap_or_default())
            }
            (_, None) => sentence(measurement, &what, verdict),
            (_, Some(failure)) => format!("{}; but {failure}", sentence(measurement, &what, verdict)),
        }
    };
    values.map(each).collect()
}

fn sentence(measurement: &Measurement, what: &str, verdict: &EffectVerdict) -> String {
    let plan = &measurement.plan;
    let times = format!("times the {} of {}", if plan.figure == Figure::Rate { "rate" } else { "CPU" }, plan.before);
    match verdict {
        EffectVerdict::Better(effect) => format!("{what} is better: {} {times}", spoken(*effect)),
        EffectVerdict::Worse(effect) => format!("{what} is worse: {} {times}", spoken(*effect)),
        EffectVerdict::NoEffect(effect) => format!("{what}: no effect seen ({} {times})", range(*effect)),
        EffectVerdict::Fails => format!("{what} fails"),
        EffectVerdict::Undecided(None) => format!("{what}: nothing was measured: {}", advice(measurement.end)),
        EffectVerdict::Undecided(Some(effect)) => {
            format!("{what}: undecided ({} {times}): {}", range(*effect), advice(measurement.end))
        }
    }
}

fn advice(end: MeasureEnd) -> &'static str {
    match end {
        MeasureEnd::TimeOver => "more time (--time-max), or a larger --effect-min, can decide",
        MeasureEnd::RoundsOver => "more rounds (--rounds-max), longer runs (--run) or a larger --effect-min can decide",
        MeasureEnd::Decided | MeasureEnd::ControlFailed => "measure it alone",
    }
}

fn end_name(end: MeasureEnd) -> &'static str {
    match end {
        MeasureEnd::Decided => "decided",
        MeasureEnd::ControlFailed => "control",
        MeasureEnd::RoundsOver => "rounds",
        MeasureEnd::TimeOver => "time",
    }
}

/// `1.08 (1.05 to 1.11)`.
fn spoken(effect: Effect) -> String {
    format!("{:.2} ({})", effect.ratio, range(effect))
}

/// `0.99 to 1.01`, or the ratio without an interval.
fn range(effect: Effect) -> String {
    match effect.interval {
        Some((low, high)) => format!("{low:.2} to {high:.2}"),
        None => format!("about {:.2}", effect.ratio),
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
