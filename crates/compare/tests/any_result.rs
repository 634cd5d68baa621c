//! Whatever a file of results has, its page is well-formed HTML, and nothing panics: figures that are not finite, no
//! rounds, systems that are not listed, markup in names.

use std::collections::BTreeSet;

use compare::against::Against;
use compare::result::{
    Case, Chart, Check, Comparison, FORMAT, Figure, Limit, Property, ResultFile, Run, Series, System, Table,
};
use compare::{against_text, page};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

fn text() -> impl Strategy<Value = String> {
    let hostile = vec!["", "</svg>", "<b", "&lt;", "\"><script>", "\u{0}\u{7f}\r\n", "a-->", "長い名前", "Ünïcode …"];
    prop_oneof![select(hostile).prop_map(str::to_owned), any::<String>(), "[a-z ]{0,80}"]
}

/// Few names, so that the parts of a file refer to one another.
fn name() -> impl Strategy<Value = String> {
    prop_oneof![4 => select(vec!["a", "b", "<c>"]).prop_map(str::to_owned), 1 => text()]
}

fn figure() -> impl Strategy<Value = f64> {
    prop_oneof![
        proptest::num::f64::ANY,
        0.0..1e6,
        select(vec![0.0, -0.0, 1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX, f64::MIN_POSITIVE, 5e-324]),
    ]
}

fn run() -> impl Strategy<Value = Run> {
    let count = prop_oneof![Just(0), Just(u64::MAX), 0..100_000_u64];
    let latency =
        btree_map(prop_oneof![select(vec!["50", "99", "100"]).prop_map(str::to_owned), text()], figure(), 0..3);
    let figures = (figure(), option::of(figure()), option::of(figure()), option::of(figure()));
    (count, figures, option::of(any::<u64>()), option::of(select(Limit::ALL.to_vec())), latency).prop_map(
        |(
            count,
            (seconds, cpu_seconds, load_cpu_seconds, machine_cpu_seconds),
            resident_bytes,
            limit,
            latency_seconds,
        )| Run {
            count,
            seconds,
            cpu_seconds,
            load_cpu_seconds,
            machine_cpu_seconds,
            resident_bytes,
            limit,
            latency_seconds,
        },
    )
}

fn case() -> impl Strategy<Value = Case> {
    let value = option::weighted(0.8, prop_oneof![figure(), select(vec![10.0, 100.0, 1000.0])]);
    let rounds = prop_oneof![vec(btree_map(name(), run(), 0..3), 0..3), vec(btree_map(name(), run(), 2..4), 6..8)];
    (name(), value, rounds).prop_map(|(label, value, rounds)| Case { label, value, rounds })
}

fn comparison() -> impl Strategy<Value = Comparison> {
    let aim = (option::of(text()), option::of(any::<bool>()));
    (
        select(Figure::ALL.to_vec()),
        name(),
        name(),
        name(),
        option::of(name()),
        figure(),
        option::of((figure(), figure())),
        aim,
    )
        .prop_map(|(figure, over, under, case, under_case, ratio, interval, (aim, is_met))| Comparison {
            figure,
            over,
            under,
            case,
            under_case,
            ratio,
            interval,
            aim,
            is_met,
        })
}

fn chart() -> impl Strategy<Value = Chart> {
    let points = vec((figure(), figure()), 0..60);
    let series = (text(), points).prop_map(|(name, points)| Series { name, points });
    (text(), text(), text(), vec(series, 0..8)).prop_map(|(title, x_name, y_name, series)| Chart {
        title,
        x_name,
        y_name,
        series,
    })
}

fn system() -> impl Strategy<Value = System> {
    (name(), option::of(text()), vec(text(), 0..2), option::of(text()))
        .prop_map(|(name, version, commands, configuration)| System { name, version, commands, configuration })
}

fn result() -> impl Strategy<Value = ResultFile> {
    let texts = (name(), text(), option::of(text()), option::of(text()), text(), text(), text(), option::of(text()));
    let table = (text(), vec(text(), 0..3), vec(vec(text(), 0..4), 0..3));
    let table = table.prop_map(|(title, columns, rows)| Table { title, columns, rows });
    let check =
        (text(), text(), any::<Option<bool>>()).prop_map(|(aim, measured, is_met)| Check { aim, measured, is_met });
    let property = (name(), text()).prop_map(|(name, value)| Property { name, value });
    let parts = (vec(case(), 0..4), vec(comparison(), 0..6), vec(chart(), 0..2), vec(table, 0..2), vec(check, 0..2));
    let rest = (
        vec(system(), 0..3),
        vec(property, 0..3),
        vec(text(), 0..2),
        option::of(figure()),
        any::<bool>(),
        option::of(text()),
    );
    (texts, parts, rest).prop_map(
        |(
            (name, title, question, answer, command, started, unit, case_name),
            (cases, comparisons, charts, tables, checks),
            (systems, machine, notes, seconds, is_trial, reduced),
        )| ResultFile {
            format: FORMAT,
            name,
            title,
            question,
            answer,
            command,
            started,
            seconds,
            is_trial,
            reduced,
            machine,
            unit,
            case_name,
            systems,
            cases,
            comparisons,
            checks,
            charts,
            tables,
            notes,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 300 } else { 3000 }))]

    #[test]
    fn any_result_is_a_well_formed_page(results in vec(result(), 0..3), old in vec(result(), 0..2), title in option::of(text())) {
        let against = Against::new(&results, &old);
        let compared = (!old.is_empty()).then_some(&against);
        let page = page::render(&results, title.as_deref(), compared);
        prop_assert_eq!(fault(&page), None, "{}", page);
        let _ = against_text(&against, &results, 80);
    }
}

#[test]
fn the_check_finds_faults() {
    let page = |body: &str| format!("<!DOCTYPE html>\n<html><body>{body}</body></html>");
    assert_eq!(fault(&page("<p class=\"a\">x &amp; y<b>z</b></p><rect x=\"1\"/>")), None);
    for broken in [
        "<p>",
        "</p>",
        "<p><b></p></b>",
        "a < b",
        "a & b",
        "&nbsp;",
        "<p class=a></p>",
        "<p a=\"\" a=\"\"></p>",
        "a > b",
    ] {
        assert!(fault(&page(broken)).is_some(), "{broken}");
    }
    assert!(fault(&page("<rect x=\"NaN\"/>")).is_some());
    assert!(fault(&page("<p id=\"a\"></p><p id=\"a\"></p>")).is_some());
}

/// What is wrong with a page: elements that are not closed in their order, letters that must be escaped, attributes
/// or ids that occur twice, and lengths that are no numbers.
fn fault(page: &str) -> Option<String> {
    let Some(mut rest) = page.strip_prefix("<!DOCTYPE html>\n").map(str::trim_end) else {
        return Some("no page of HTML".to_owned());
    };
    let (mut open, mut ids): (Vec<&str>, BTreeSet<&str>) = (Vec::new(), BTreeSet::new());
    while let Some(start) = rest.find('<') {
        let is_verbatim = open.last().is_some_and(|name| ["style", "script"].contains(name));
        if let Some(fault) = (!is_verbatim).then(|| text_fault(&rest[..start])).flatten() {
            return Some(fault);
        }
        let Some(end) = rest[start..].find('>').map(|length| start + length) else {
            return Some("a tag without an end".to_owned());
        };
        let tag = &rest[start + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            if open.pop() != Some(name) {
                return Some(format!("</{name}> closes another element"));
            }
            continue;
        }
        let (name, attributes) = tag.trim_end_matches('/').split_once(' ').unwrap_or((tag.trim_end_matches('/'), ""));
        if let Some(fault) = attributes_fault(attributes, &mut ids) {
            return Some(format!("<{tag}>: {fault}"));
        }
        if !tag.ends_with('/') {
            open.push(name);
        }
    }
    text_fault(rest).or_else(|| open.last().map(|name| format!("<{name}> is not closed")))
}

fn text_fault(text: &str) -> Option<String> {
    let known = ["&amp;", "&lt;", "&gt;", "&quot;", "&#39;"];
    let is_unknown = |place: usize| !known.iter().any(|entity| text[place..].starts_with(entity));
    let has_control = text.chars().any(|letter| letter.is_control() && letter != '\n' && letter != '\t');
    (text.contains('>') || has_control || text.match_indices('&').any(|(place, _)| is_unknown(place)))
        .then(|| format!("not escaped: {text:?}"))
}

fn attributes_fault<'a>(attributes: &'a str, ids: &mut BTreeSet<&'a str>) -> Option<String> {
    let lengths = ["x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "width", "height", "r"];
    let mut names = Vec::new();
    let mut rest = attributes;
    while !rest.is_empty() {
        let Some((name, (value, after))) =
            rest.split_once("=\"").and_then(|(name, after)| Some((name, after.split_once('"')?)))
        else {
            return Some("an attribute without quotes".to_owned());
        };
        if names.contains(&name) || (name == "id" && !ids.insert(value)) {
            return Some(format!("{name} occurs twice"));
        }
        let is_number = value.parse().is_ok_and(|number: f64| number.is_finite() && number.abs() < 1e6);
        if lengths.contains(&name) && !is_number {
            return Some(format!("{name} is no length"));
        }
        if let Some(fault) = text_fault(value) {
            return Some(fault);
        }
        names.push(name);
        rest = after.trim_start();
    }
    None
}
