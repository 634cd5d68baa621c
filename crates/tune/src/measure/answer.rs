//! The answer of a measurement in words: what is to be believed of each value.

use compare::result::Figure;

use super::{Effect, EffectVerdict, MeasureEnd, Measurement};

/// A sentence for each value; if the control shows an effect, only one, which says that nothing is to be trusted.
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
        let failure = measurement.failures(index).last().unwrap_or_default();
        let text = sentence(measurement, &format!("{subject} = {value}"), verdict, failure);
        match failure.is_empty() || *verdict == EffectVerdict::Fails {
            true => text,
            false => format!("{text}; but {failure}"),
        }
    };
    values.map(each).collect()
}

fn sentence(measurement: &Measurement, what: &str, verdict: &EffectVerdict, failure: &str) -> String {
    let plan = &measurement.plan;
    let times = format!("times the {} of {}", if plan.figure == Figure::Rate { "rate" } else { "CPU" }, plan.before);
    match verdict {
        EffectVerdict::Better(effect) => format!("{what} is better: {} {times}", spoken(*effect)),
        EffectVerdict::Worse(effect) => format!("{what} is worse: {} {times}", spoken(*effect)),
        EffectVerdict::NoEffect(effect) => format!("{what}: no effect seen ({} {times})", range(*effect)),
        EffectVerdict::NoGain(effect) => {
            let percent = (plan.gain_min.unwrap_or_default() * 1000.0).round() / 10.0;
            format!("{what} gains less than {percent} %: {} {times}", spoken(*effect))
        }
        EffectVerdict::Fails => format!("{what} fails, {} does not: {failure}", plan.before),
        EffectVerdict::Undecided(None) => format!("{what}: nothing was measured: {}", advice(measurement)),
        EffectVerdict::Undecided(Some(effect)) => {
            format!("{what}: undecided ({} {times}): {}", range(*effect), advice(measurement))
        }
    }
}

fn advice(measurement: &Measurement) -> String {
    let bound = if measurement.plan.gain_min.is_some() { "--gain-min" } else { "--effect-min" };
    match measurement.end {
        MeasureEnd::TimeOver => format!("more time (--time-max), or a larger {bound}, can decide"),
        MeasureEnd::RoundsOver => {
            format!("more rounds (--rounds-max), longer runs (--run) or a larger {bound} can decide")
        }
        MeasureEnd::Decided | MeasureEnd::ControlFailed => "measure it alone".to_owned(),
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
