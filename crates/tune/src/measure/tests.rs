//! Measurements of simulated systems: how often they err, and how soon they decide.

use super::report::{render_measurement, render_measurement_json};
use super::result_file::measurement_file;
use super::*;
use crate::description::Description;
use crate::simulated::{Clock, Simulated, normal};

/// Simulated measurements of a kind.
const MEASUREMENTS: u64 = 2000;
/// At most 5 % of them.
const ERRORS_MAX: usize = 100;
/// At least 95 % of them.
const FOUND_MIN: usize = 1900;

fn plan(values: &[&str], rounds_max: usize) -> MeasurePlan {
    MeasurePlan {
        before: "100".to_owned(),
        values: values.iter().map(|&value| value.to_owned()).collect(),
        figure: Figure::Rate,
        effect_min: 0.03,
        gain_min: None,
        rounds_max,
        time_max: Duration::from_secs(600),
    }
}

/// The verdict about the first value.
fn verdict(plan: MeasurePlan, mut system: Simulated) -> (EffectVerdict, Measurement) {
    let measured = measure(plan, &mut system, &mut Clock::default()).unwrap();
    (measured.verdicts[0], measured)
}

fn count(verdict_of: impl Fn(u64) -> (EffectVerdict, Measurement), is_counted: fn(EffectVerdict) -> bool) -> usize {
    let counted = |seed: &u64| {
        let (verdict, measured) = verdict_of(*seed);
        measured.is_trusted() && is_counted(verdict)
    };
    (0..MEASUREMENTS).filter(counted).count()
}

fn is_effect(verdict: EffectVerdict) -> bool {
    matches!(verdict, EffectVerdict::Better(_) | EffectVerdict::Worse(_))
}

/// Without an effect that could end it, every measurement looks after each of 60 rounds.
#[test]
fn looking_after_every_round_finds_an_effect_that_is_not_there_in_at_most_one_of_twenty() {
    let endless = MeasurePlan { effect_min: 0.0, ..plan(&["200"], 60) };
    let calm = |seed| verdict(endless.clone(), Simulated::new(seed, |_| 1000.0, |random| 0.03 * normal(random)));
    assert!(count(calm, is_effect) <= ERRORS_MAX, "{}", count(calm, is_effect));
    // One run in ten takes up to twice as long, as on a machine that does something else meanwhile.
    let disturbed = |seed| {
        let noise = |random: &mut fastrand::Rng| {
            let stall = if random.u8(..10) == 0 { -random.f64() * 0.7 } else { 0.0 };
            0.03 * normal(random) + stall
        };
        verdict(endless.clone(), Simulated::new(seed, |_| 1000.0, noise))
    };
    assert!(count(disturbed, is_effect) <= ERRORS_MAX, "{}", count(disturbed, is_effect));
}

#[test]
fn three_values_together_err_as_rarely_as_one() {
    let endless = MeasurePlan { effect_min: 0.0, ..plan(&["50", "200", "400"], 40) };
    let wrong = |seed: &u64| {
        let system = Simulated::new(*seed, |_| 1000.0, |random| 0.03 * normal(random));
        let (_, measured) = verdict(endless.clone(), system);
        measured.is_trusted() && measured.verdicts.iter().any(|verdict| is_effect(*verdict))
    };
    let wrong = (0..MEASUREMENTS).filter(wrong).count();
    assert!(wrong <= ERRORS_MAX, "{wrong}");
}

#[test]
fn an_effect_of_a_tenth_is_found_within_15_rounds_through_noise_of_3_percent() {
    let faster = |seed| {
        let rate = |value| if value == 200.0 { 1100.0 } else { 1000.0 };
        verdict(plan(&["200"], 15), Simulated::new(seed, rate, |random| 0.03 * normal(random)))
    };
    let found = count(faster, |verdict| matches!(verdict, EffectVerdict::Better(_)));
    assert!(found >= FOUND_MIN, "{found}");
    let slower = |seed| {
        let rate = |value| if value == 200.0 { 1000.0 / 1.1 } else { 1000.0 };
        verdict(plan(&["200"], 15), Simulated::new(seed, rate, |random| 0.03 * normal(random)))
    };
    let found = count(slower, |verdict| matches!(verdict, EffectVerdict::Worse(_)));
    assert!(found >= FOUND_MIN, "{found}");
}

#[test]
fn where_nothing_differs_no_effect_is_seen() {
    let (verdict, measured) =
        verdict(plan(&["200"], 40), Simulated::new(1, |_| 1000.0, |random| 0.01 * normal(random)));
    assert!(matches!(verdict, EffectVerdict::NoEffect(_)), "{verdict:?}");
    assert_eq!(measured.end, MeasureEnd::Decided);
    let sentence = &answer::sentences(&measured, "limits.sessions")[0];
    assert!(sentence.starts_with("limits.sessions = 200: no effect seen (0.9"), "{sentence}");
}

#[test]
fn whether_a_value_gains_enough_is_decided_without_knowing_whether_it_differs() {
    let gain = |figure| MeasurePlan { figure, gain_min: Some(0.05), ..plan(&["200"], 200) };
    let decided = |figure, rate| verdict(gain(figure), Simulated::new(1, rate, |random| 0.1 * normal(random)));
    let (slower, measured) = decided(Figure::Rate, |value| if value == 200.0 { 950.0 } else { 1000.0 });
    assert!(matches!(slower, EffectVerdict::NoGain(_)), "{slower:?}");
    let sentence = &answer::sentences(&measured, "threads")[0];
    assert!(sentence.starts_with("threads = 200 gains less than 5 %: 0.9"), "{sentence}");
    let faster = |value| if value == 200.0 { 1300.0 } else { 1000.0 };
    for figure in [Figure::Rate, Figure::CpuPerThousand] {
        let (better, _) = decided(figure, faster);
        assert!(matches!(better, EffectVerdict::Better(_)), "{better:?}");
    }
}

#[test]
fn a_gain_of_less_than_asked_is_taken_for_more_in_at_most_one_of_twenty() {
    let asked = MeasurePlan { gain_min: Some(0.05), ..plan(&["200"], 60) };
    let rate = |value| if value == 200.0 { 1050.0 } else { 1000.0 };
    let at_the_bound = |seed| verdict(asked.clone(), Simulated::new(seed, rate, |random| 0.1 * normal(random)));
    let wrong = count(at_the_bound, |verdict| matches!(verdict, EffectVerdict::Better(_) | EffectVerdict::NoGain(_)));
    assert!(wrong <= ERRORS_MAX, "{wrong}");
}

#[test]
fn less_cpu_is_better() {
    let cpu = MeasurePlan { figure: Figure::CpuPerThousand, ..plan(&["200"], 15) };
    let rate = |value| if value == 200.0 { 1200.0 } else { 1000.0 };
    let (verdict, _) = verdict(cpu, Simulated::new(1, rate, |_| 0.0));
    assert!(matches!(verdict, EffectVerdict::Better(Effect { ratio, .. }) if ratio < 0.9), "{verdict:?}");
}

#[test]
fn if_the_control_shows_an_effect_nothing_is_to_be_trusted() {
    let mut system = Simulated::new(1, |value| if value == 200.0 { 2000.0 } else { 1000.0 }, |_| 0.0);
    // Of the three runs of a round, the control is the last, then the first.
    system.is_slower = |run| matches!(run % 6, 2 | 3);
    let (_, measured) = verdict(plan(&["200"], 40), system);
    assert_eq!((measured.end, measured.is_trusted()), (MeasureEnd::ControlFailed, false));
    assert!(answer::sentences(&measured, "threads")[0].starts_with("not to be trusted: 100 against itself"));
}

#[test]
fn the_order_is_reversed_in_every_other_round_and_a_decided_value_is_not_run_again() {
    let rate = |value| if value == 200.0 { 5000.0 } else { 1000.0 };
    let mut system = Simulated::new(1, rate, |random| 0.05 * normal(random));
    let measured = measure(plan(&["200", "300"], 12), &mut system, &mut Clock::default()).unwrap();
    assert_eq!(system.values[..8], ["100", "200", "300", "100", "100", "300", "200", "100"]);
    let runs = |value| system.values.iter().filter(|other| *other == value).count();
    assert_eq!((runs("200"), runs("300"), measured.rounds.len()), (9, 12, 12), "two values need a ninth round");
    assert_eq!(measured.end, MeasureEnd::RoundsOver);
}

#[test]
fn it_ends_before_a_round_that_would_take_too_long_and_with_the_first_run_of_before_that_fails() {
    let short = MeasurePlan { time_max: Duration::from_secs(10), ..plan(&["200"], 40) };
    let mut clock = Clock { second_per_look: 2, lines: Some(Vec::new()), ..Clock::default() };
    let mut system = Simulated::new(1, |_| 1000.0, |_| 0.0);
    let measured = measure(short, &mut system, &mut clock).unwrap();
    assert_eq!((measured.end, measured.rounds.len()), (MeasureEnd::TimeOver, 2));
    assert!(
        clock.lines.as_ref().unwrap()[0].starts_with("round 1 of at most 40, with 100 (before)"),
        "{:?}",
        clock.lines
    );
    let mut broken = Simulated::new(1, |_| 1000.0, |_| 0.0);
    broken.fails_with = Some("100");
    let failed = measure(plan(&["200"], 40), &mut broken, &mut Clock::default()).unwrap_err();
    assert_eq!(failed, TrialError::Failed("no run with 100".to_owned()));
}

#[test]
fn a_value_with_which_two_runs_fail_is_decided_and_the_others_go_on() {
    let mut system = Simulated::new(1, |value| value * 10.0, |random| 0.01 * normal(random));
    system.fails_with = Some("200");
    let measured = measure(plan(&["200", "300"], 40), &mut system, &mut Clock::default()).unwrap();
    assert_eq!(measured.verdicts[0], EffectVerdict::Fails);
    assert!(matches!(measured.verdicts[1], EffectVerdict::Better(_)), "{:?}", measured.verdicts);
    assert_eq!(measured.rounds.iter().filter(|round| round.failures[0].is_some()).count(), 2);
    let sentences = answer::sentences(&measured, "limits.sessions");
    assert_eq!(sentences[0], "limits.sessions = 200 fails, 100 does not: no run with 200");
    let description = Description::for_tests("limits.sessions", "accept-many");
    let json: serde_json::Value =
        serde_json::from_str(&render_measurement_json(&measured, &description).unwrap()).unwrap();
    assert_eq!(
        (&json["values"][0]["verdict"], &json["values"][0]["ratio"]),
        (&"fails".into(), &serde_json::Value::Null)
    );
    assert_eq!(json["values"][0]["failures"][1], "no run with 200");
    assert_eq!(measurement_file(&measured, &description).cases[0].rounds.len(), 0);
}

#[test]
fn one_failure_decides_nothing_and_is_told() {
    let mut system = Simulated::new(1, |value| value * 10.0, |random| 0.01 * normal(random));
    system.fails_once_with = Some("200");
    let measured = measure(plan(&["200"], 40), &mut system, &mut Clock::default()).unwrap();
    assert!(matches!(measured.verdicts[0], EffectVerdict::Better(_)), "{:?}", measured.verdicts);
    assert!(answer::sentences(&measured, "limits.sessions")[0].ends_with("; but no run with 200"));
}

#[test]
fn the_text_the_json_and_the_file_agree() {
    let rate = |value| if value == 200.0 { 500.0 } else { 1000.0 };
    let mut system = Simulated::new(3, rate, |random| 0.005 * normal(random));
    let measured = measure(plan(&["200", "300"], 40), &mut system, &mut Clock::default()).unwrap();
    let description = Description::for_tests("limits.sessions", "accept-many");
    insta::assert_snapshot!(render_measurement(&measured, &description));
    let json: serde_json::Value =
        serde_json::from_str(&render_measurement_json(&measured, &description).unwrap()).unwrap();
    assert_eq!((&json["values"][0]["verdict"], &json["values"][1]["verdict"]), (&"worse".into(), &"no effect".into()));
    let file = measurement_file(&measured, &description);
    assert_eq!(
        json["result"],
        serde_json::from_str::<serde_json::Value>(&serde_json::to_string(&file).unwrap()).unwrap()
    );
    assert_eq!(file.cases[1].rounds.len(), measured.rounds.len());
    assert_eq!(file.cases[0].rounds.len(), 9);
    assert_eq!(file.cases[0].rounds[0].keys().collect::<Vec<_>>(), ["after", "before", "before again"]);
    assert_eq!(file.comparisons.len(), 3);
}
