//! The page of results: golden files, and whether it shows what the files have.
//!
//! `data/full.json` has everything that a file can have, `data/small.json` only what it must.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::Path;

use compare::against::Against;
use compare::page::render;
use compare::result::{Figure, ResultFile};
use compare::result_files::load;
use compare::statistics::median;
use serde_json::Value;

const HOSTILE: &str = "</style></script></svg><script>alert(1)</script>\" onload='alert(1)' <!-- ]]> &amp;";

fn sample(name: &str) -> ResultFile {
    load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)).unwrap()
}

/// A page without its style, which is long and has no figures.
fn without_style(page: &str) -> String {
    let (before, rest) = page.split_once("<style>").unwrap();
    let (_, after) = rest.split_once("</style>").unwrap();
    format!("{before}<style></style>{after}")
}

/// Figures that a page shows: exact, and as text.
fn figures(page: &str) -> Vec<(f64, String)> {
    let elements = page.split("<data value=\"").skip(1);
    elements
        .map(|element| {
            let (value, rest) = element.split_once("\">").unwrap();
            let (text, _) = rest.split_once("</data>").unwrap();
            (value.parse().unwrap(), text.to_owned())
        })
        .collect()
}

/// Fails unless the page has this figure, rounded for people to three digits, in its unit or a thousandth or millionth.
fn assert_shown(page: &str, figure: f64) {
    let found = figures(page).into_iter().find(|(exact, _)| *exact == figure);
    let (_, text) = found.unwrap_or_else(|| panic!("{figure} is not on the page"));
    let shown: f64 = text.replace(',', "").parse().unwrap();
    let agrees = |scale: f64| (shown - figure * scale).abs() <= shown.abs() * 0.006;
    assert!([1.0, 1e3, 1e-6].into_iter().any(agrees), "{figure} is shown as {text}");
}

#[test]
fn a_small_result_as_a_page() {
    insta::assert_snapshot!(without_style(&render(&[sample("small.json")], None, None)));
}

#[test]
fn a_full_result_as_a_page() {
    insta::assert_snapshot!(without_style(&render(&[sample("full.json")], None, None)));
}

#[test]
fn several_results_have_their_answers_on_top() {
    let page = render(&[sample("small.json"), sample("full.json")], Some("Two results"), None);
    let (contents, _) = page.split_once("<section").unwrap();
    insta::assert_snapshot!(contents.split_once("<body>").unwrap().1);
}

#[test]
fn a_result_beside_an_earlier_one() {
    let (mut new, old) = (sample("full.json"), sample("full.json"));
    new.machine[2].value = "Linux 7.0".to_owned();
    new.cases.truncate(1);
    for round in &mut new.cases[0].rounds {
        round.get_mut("Mailrace").unwrap().seconds *= 1.5;
    }
    let against = Against::new(std::slice::from_ref(&new), &[old]);
    let page = render(&[new.clone()], None, Some(&against));
    let (_, part) = page.split_once("<h3>Compared").unwrap();
    let (part, _) = part.split_once("<div class=\"charts\">").unwrap();
    insta::assert_snapshot!("changes_on_the_page", part);
    insta::assert_snapshot!("changes_on_the_terminal", compare::against_text(&against, &[new], 160));
}

#[test]
fn every_ratio_and_every_median_is_on_the_page() {
    let file = sample("full.json");
    let page = render(std::slice::from_ref(&file), None, None);
    for comparison in &file.comparisons {
        assert_shown(&page, comparison.ratio);
        let (low, high) = comparison.interval.unwrap();
        assert_shown(&page, low);
        assert_shown(&page, high);
    }
    for case in &file.cases {
        for system in &file.systems {
            let runs = || case.rounds.iter().filter_map(|round| round.get(&system.name));
            for figure in [
                Figure::Rate,
                Figure::CpuPerThousand,
                Figure::LoadCpuPerThousand,
                Figure::MachineCpuPerThousand,
                Figure::ResidentBytes,
            ] {
                let values: Vec<f64> = runs().filter_map(|run| run.figure(figure)).collect();
                assert_shown(&page, median(&values).unwrap());
            }
            let latencies: Vec<f64> = runs().map(|run| run.latency_seconds["99"]).collect();
            assert_shown(&page, median(&latencies).unwrap());
            runs().for_each(|run| assert_shown(&page, run.seconds));
        }
    }
}

#[test]
fn names_never_become_markup() {
    let file: ResultFile =
        serde_json::from_value(poisoned(serde_json::to_value(sample("full.json")).unwrap(), "")).unwrap();
    let against = Against::new(std::slice::from_ref(&file), std::slice::from_ref(&file));
    let page = render(&[file.clone(), file], Some(HOSTILE), Some(&against));
    assert!(page.matches("&lt;script&gt;alert(1)").count() > 200, "the names are on the page");
    assert_eq!(page.matches("<script").count(), 1);
    assert_eq!(page.matches("</script").count(), 1);
    assert_eq!(page.matches("</style").count(), 1);
    assert_eq!(page.matches("onload='").count(), 0);
    assert_eq!(page.matches("<!--").count(), 0);
}

/// The same JSON with markup at the end of every text and of every name of a system.
fn poisoned(value: Value, field: &str) -> Value {
    match value {
        Value::String(text) if !["figure", "limit"].contains(&field) => Value::String(text + HOSTILE),
        Value::Array(values) => values.into_iter().map(|value| poisoned(value, field)).collect(),
        Value::Object(fields) => {
            let end = if ["rounds", "latency_seconds"].contains(&field) { HOSTILE } else { "" };
            let poison = |(name, value): (String, Value)| (format!("{name}{end}"), poisoned(value, &name));
            fields.into_iter().map(poison).collect()
        }
        other => other,
    }
}
