//! A measurement as a file of results: a case for each value, with the systems "before", "after" and "before again".

use std::collections::BTreeMap;

use compare::result::{Case, Check, Comparison, ResultFile, Run};

use super::answer::sentences;
use super::{EffectVerdict, MeasureRound, Measurement};
use crate::description::Description;

const BEFORE: &str = "before";
const AFTER: &str = "after";
const BEFORE_AGAIN: &str = "before again";

/// The file of results.
#[must_use]
pub fn measurement_file(measurement: &Measurement, description: &Description) -> ResultFile {
    let plan = &measurement.plan;
    let title = format!("{} instead of {} in {}", description.subject, plan.before, description.scenario);
    let answer = sentences(measurement, &description.subject).join(". ");
    let ends = |over: &str, label: &str, verdict| comparison(measurement, over, label, verdict);
    let compared = plan.values.iter().zip(&measurement.verdicts);
    let control = plan.values.first().and_then(|label| ends(BEFORE_AGAIN, label, &measurement.control));
    ResultFile {
        systems: [BEFORE, AFTER, BEFORE_AGAIN].map(|name| description.system(name)).into(),
        cases: plan.values.iter().enumerate().map(|(index, value)| case(measurement, index, value)).collect(),
        comparisons: compared.filter_map(|(label, verdict)| ends(AFTER, label, verdict)).chain(control).collect(),
        checks: vec![Check {
            aim: format!("{} against itself shows no effect", plan.before),
            measured: measurement.control.effect().map_or_else(|| "nothing".to_owned(), |effect| effect.to_string()),
            is_met: Some(measurement.is_trusted()),
        }],
        ..description.file("measure", title, answer)
    }
}

fn case(measurement: &Measurement, index: usize, value: &str) -> Case {
    let rounds = measurement.rounds.iter().filter_map(|round| systems(round, index));
    Case { label: value.to_owned(), value: value.parse().ok(), rounds: rounds.collect() }
}

/// The runs of a round; None if the value was decided before.
fn systems(round: &MeasureRound, index: usize) -> Option<BTreeMap<String, Run>> {
    let after = round.after[index].as_ref()?;
    let runs = [(BEFORE, &round.before), (AFTER, after), (BEFORE_AGAIN, &round.before_again)];
    Some(runs.into_iter().map(|(name, run)| (name.to_owned(), run.clone())).collect())
}

/// None before the first round.
fn comparison(measurement: &Measurement, over: &str, label: &str, verdict: &EffectVerdict) -> Option<Comparison> {
    let effect = verdict.effect()?;
    Some(Comparison {
        figure: measurement.plan.figure,
        over: over.to_owned(),
        under: BEFORE.to_owned(),
        case: label.to_owned(),
        under_case: None,
        ratio: effect.ratio,
        interval: effect.interval,
        aim: None,
        is_met: None,
    })
}
