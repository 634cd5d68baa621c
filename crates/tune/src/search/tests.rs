//! Searches on simulated curves.

use super::report::{curve_file, render_curve, render_curve_json};
use super::*;
use crate::description::Description;
use crate::simulated::{Clock, Simulated, normal};

fn plan(low: u64, high: u64) -> SearchPlan {
    let time_max = Duration::from_secs(600);
    SearchPlan { low, high, in_force: None, step: 2.0, tolerance: 0.05, runs_max: 100, time_max }
}

fn found(plan: SearchPlan, rate: fn(f64) -> f64) -> Curve {
    search(plan, &mut Simulated::new(1, rate, |_| 0.0), &mut Clock::default()).unwrap()
}

fn knee(curve: &Curve) -> u64 {
    curve.knee().unwrap().value
}

fn answer(curve: &Curve, subject: &str) -> String {
    report::sentences(curve, &Description::for_tests(subject, "accept-many")).join("\n")
}

#[test]
fn a_saturating_curve_has_its_knee_where_it_stops_rising() {
    let curve = found(plan(1, 4096), |value| 100.0 * value.min(400.0));
    assert!((380..=440).contains(&knee(&curve)), "{}", knee(&curve));
    assert_eq!((curve.shape(), curve.end), (Some(Shape::Saturated), SearchEnd::Complete));
    assert!(curve.points.contains_key(&4096) && curve.rate_at(knee(&curve)).unwrap().interval.is_some());
    let sentence = answer(&curve, "sessions");
    let expected = format!("4096 sessions gave no more than {}: 40000 messages a second against ", knee(&curve));
    assert!(sentence.starts_with(&expected), "{sentence}");
}

#[test]
fn the_climb_stops_when_several_steps_gain_nothing() {
    let curve = found(plan(1, 1 << 20), |value| 100.0 * value.min(16.0));
    assert_eq!(curve.largest().unwrap().value, 128, "16, then three steps without a gain");
    let flat = found(plan(1, 1 << 20), |_| 100.0);
    assert_eq!((flat.largest().unwrap().value, knee(&flat), flat.shape()), (8, 1, Some(Shape::Flat)));
    assert!(answer(&flat, "threads").starts_with("8 threads gave no more than 1: no difference was seen"));
}

#[test]
fn a_peaked_curve_says_that_more_is_less() {
    let curve = found(plan(1, 1024), |value| 1000.0 * value / (1.0 + (value / 32.0).powi(2)));
    let largest = curve.largest().unwrap().value;
    assert!(largest < 1024, "it falls for three steps: {largest}");
    assert!((22..=32).contains(&knee(&curve)), "{}", knee(&curve));
    assert_eq!(curve.shape(), Some(Shape::Peaked));
    let sentence = answer(&curve, "sessions");
    assert!(sentence.starts_with(&format!("{largest} sessions gave less than 32: ")), "{sentence}");
}

#[test]
fn a_curve_that_rises_to_the_bound_has_no_knee_below_it() {
    let curve = found(plan(1, 100), |value| value);
    assert_eq!((knee(&curve), curve.shape()), (100, Some(Shape::Rising)));
    assert_eq!(
        answer(&curve, "sessions"),
        "the rate still rose at 100 sessions, to 100 messages a second: search above it with --max"
    );
}

/// The search stopped on a plateau at 8, and called it enough, although the value in force gave more.
#[test]
fn a_plateau_below_the_value_in_force_ends_no_search() {
    let rate = |value: f64| if value < 500.0 { 100.0 * value.min(2.0) } else { 240.0 };
    let curve = found(SearchPlan { in_force: Some(2000), ..plan(1, 1024) }, rate);
    assert_eq!(curve.points.keys().rev().take(2).collect::<Vec<_>>(), [&2000, &1024], "{:?}", curve.points.keys());
    assert_eq!((curve.recommended().unwrap().value, knee(&curve)), (2000, 512));
    let sentence = answer(&curve, "concurrency");
    assert!(sentence.contains("nothing beat 2000, the value in force; the best other is "), "{sentence}");
    assert!(sentence.ends_with(", 1.00 times (1.00 to 1.00): keep it"), "{sentence}");
}

#[test]
fn a_value_is_recommended_if_it_beat_the_one_in_force() {
    let curve = found(SearchPlan { in_force: Some(3), ..plan(1, 64) }, |value| 100.0 * value.min(16.0));
    assert_eq!((curve.recommended(), curve.in_force().unwrap().rate), (curve.knee(), 300.0));
    let sentence = answer(&curve, "concurrency");
    assert!(sentence.contains(&format!("{} beat 3, the value in force, 5.", knee(&curve))), "{sentence}");
    let flat = found(SearchPlan { in_force: Some(3), ..plan(1, 64) }, |_| 100.0);
    assert_eq!((flat.recommended().unwrap().value, knee(&flat)), (3, 1));
}

#[test]
fn through_noise_of_3_percent_a_value_that_is_no_better_is_rarely_recommended() {
    let is_kept = |seed: &u64| {
        let mut system = Simulated::new(*seed, |_| 1000.0, |random| 0.03 * normal(random));
        let plan = SearchPlan { in_force: Some(4), ..plan(1, 16) };
        search(plan, &mut system, &mut Clock::default()).unwrap().recommended().unwrap().value == 4
    };
    let kept = (0..1000).filter(is_kept).count();
    assert!(kept >= 900, "{kept}");
}

#[test]
fn through_noise_of_3_percent_the_knee_is_at_most_one_step_off() {
    let is_near = |seed: &u64| {
        let mut system = Simulated::new(*seed, |value| 100.0 * value.min(64.0), |random| 0.03 * normal(random));
        let curve = search(plan(1, 1024), &mut system, &mut Clock::default()).unwrap();
        (32..=128).contains(&knee(&curve)) && curve.shape() != Some(Shape::Rising)
    };
    let near = (0..1000).filter(is_near).count();
    assert!(near >= 990, "{near}");
}

#[test]
fn the_values_of_the_climb_keep_to_the_bounds() {
    assert_eq!(plan(1, 10).values(), [1, 2, 4, 8, 10]);
    assert_eq!(SearchPlan { step: 1.1, ..plan(1, 4) }.values(), [1, 2, 3, 4]);
    assert_eq!(plan(7, 7).values(), [7]);
    assert_eq!((knee(&found(plan(7, 7), |_| 1.0)), found(plan(7, 7), |_| 1.0).shape()), (7, Some(Shape::Rising)));
}

#[test]
fn the_limits_end_it_with_what_is_known() {
    let curve = found(SearchPlan { runs_max: 12, ..plan(1, 256) }, |value| value.min(16.0));
    assert_eq!((curve.end, curve.rates().map(|point| point.runs).sum::<usize>()), (SearchEnd::LimitReached, 12));
    assert_eq!(knee(&curve), 16);
    assert!(answer(&curve, "sessions").contains("ended early: more runs (--runs-max)"));
    let mut clock = Clock { second_per_look: 1, lines: Some(Vec::new()), ..Clock::default() };
    let short = SearchPlan { time_max: Duration::from_secs(10), ..plan(1, 256) };
    let curve = search(short, &mut Simulated::new(1, |value| value, |_| 0.0), &mut clock).unwrap();
    assert_eq!((curve.end, curve.points.len()), (SearchEnd::LimitReached, 5));
    assert_eq!(clock.lines.unwrap()[1], "run 2 of at most 100, with 2; so far 1 gave 1 a second");
}

#[test]
fn the_text_the_json_and_the_file_agree() {
    let plan = SearchPlan { in_force: Some(32), ..plan(1, 64) };
    let curve = found(plan, |value| 100.0 * value.min(10.0));
    let description = Description::for_tests("sessions", "accept-many");
    insta::assert_snapshot!(render_curve(&curve, &description));
    let json: serde_json::Value = serde_json::from_str(&render_curve_json(&curve, &description).unwrap()).unwrap();
    assert_eq!((&json["shape"], &json["knee"]["value"]), (&"saturated".into(), &knee(&curve).into()));
    assert_eq!((&json["in_force"]["value"], &json["recommended"]["value"]), (&32.into(), &32.into()));
    let file = curve_file(&curve, &description);
    assert_eq!(json["result"], serde_json::to_value(&file).unwrap());
    assert!(file.cases.iter().all(|case| case.rounds.len() == curve.passes));
    assert_eq!(file.comparisons[0].under_case, Some(knee(&curve).to_string()));
}
