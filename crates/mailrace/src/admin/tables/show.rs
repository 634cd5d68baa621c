//! Tables for people: a sentence for a lookup, columns for counters.

use std::time::Duration;

use serde_json::Value;

use super::super::table::{Side, Table};
use super::super::text::brief;
use super::{Said, Source, Told};

/// `people: found in the cache, from 12s ago; 14 us`. `direct` says why the server was not asked.
pub(super) fn sentence(table: &str, told: &Told, direct: Option<&str>) -> String {
    let verdict = match &told.answer {
        Said::Found(_) => "found",
        Said::NotFound => "not found",
        Said::Unavailable(_) => "no answer",
    };
    let ago = |millis| format!("{} ago", brief(Duration::from_millis(millis)));
    let is_unavailable = matches!(told.answer, Said::Unavailable(_));
    let source = match told.layer {
        Source::Memory => " in memory".into(),
        Source::Cache(age) => format!(" in the cache, from {}", ago(age)),
        Source::Stale(age) => format!(" in the cache, from {}, because the backend fails", ago(age)),
        Source::Backend if is_unavailable => " from the backend".into(),
        Source::Backend => " in the backend".into(),
        Source::Breaker => ": the backend is down and was not queried".into(),
        Source::Replica(0) => " in the replica, which is up to date".into(),
        Source::Replica(age) => format!(" in the replica, as of {}", ago(age)),
    };
    let direct = direct.map_or_else(String::new, |why| format!("{why}, queried directly: "));
    format!("{table}: {direct}{verdict}{source}; {}", time(told.micros))
}

/// The lines of `table stats`.
pub(super) fn stats(rows: &[Value]) -> Vec<String> {
    const NUMBERS: [&str; 12] = [
        "FOUND",
        "MISSING",
        "UNAVAILABLE",
        "HITS%",
        "STALE",
        "JOINED",
        "WAITING",
        "REQUESTS",
        "FAILED",
        "KEYS/REQUEST",
        "P50",
        "P99",
    ];
    let names = [("NAME", Side::Left), ("TYPE", Side::Left)].into_iter();
    let columns: Vec<_> = names.chain(NUMBERS.map(|name| (name, Side::Right))).chain([("STATE", Side::Left)]).collect();
    let mut table = Table::new(&columns);
    rows.iter().for_each(|row| table.row(cells(row)));
    table.lines().collect()
}

fn cells(row: &Value) -> Vec<String> {
    let number = |key: &str| row[key].as_u64();
    let text = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
    let plain = |key| dashed(number(key));
    let asked: Option<u64> = ["found", "not_found", "unavailable"].into_iter().map(number).sum();
    let percent = asked.zip(number("hits")).filter(|(asked, _)| *asked > 0);
    let each = number("keys_asked").zip(number("requests")).filter(|(_, requests)| *requests > 0);
    vec![
        text("table"),
        text("type"),
        plain("found"),
        plain("not_found"),
        plain("unavailable"),
        dashed(percent.map(|(asked, hits)| format!("{:.1}", hits as f64 * 100.0 / asked as f64))),
        plain("stale"),
        plain("joined"),
        plain("waiting"),
        plain("requests"),
        plain("failures"),
        dashed(each.map(|(keys, requests)| format!("{:.1}", keys as f64 / requests as f64))),
        dashed(number("request_micros_p50_max").map(time)),
        dashed(number("request_micros_p99_max").map(time)),
        state(row),
    ]
}

fn dashed(cell: Option<impl ToString>) -> String {
    cell.map_or("-".into(), |cell| cell.to_string())
}

/// The state beyond the numbers. A table without counters is in memory and has no state.
fn state(row: &Value) -> String {
    if !row["requests"].is_u64() {
        return String::new();
    }
    let seconds = |value: &Value| value.as_u64().map(Duration::from_secs);
    let mut told = Vec::new();
    if let Some(since) = seconds(&row["down"]["seconds"]) {
        let error = row["down"]["error"].as_str().unwrap_or_default();
        told.push(format!("down for {}: {error}", brief(since)));
    }
    let replica = &row["replica"];
    if let Some(removals) = replica["held_back"].as_u64() {
        told.push(format!("{removals} removals held back"));
    }
    if let Some(entries) = replica["entries"].as_u64() {
        let age = match (seconds(&replica["age_seconds"]), replica["live"] == true, replica["complete"] == true) {
            (_, _, false) => "not yet complete".into(),
            (_, true, _) => "live".into(),
            (Some(age), ..) => format!("as of {} ago", brief(age)),
            (None, ..) => "of unknown age".into(),
        };
        told.push(format!("a replica of {entries} entries, {age}"));
    }
    if told.is_empty() { "up".into() } else { told.join("; ") }
}

/// A time in microseconds, for people.
fn time(micros: u64) -> String {
    match micros {
        0..1_000 => format!("{micros} us"),
        1_000..1_000_000 => format!("{:.1} ms", micros as f64 / 1e3),
        _ => format!("{:.1} s", micros as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use lookup::{ReplicaStats, Stats};

    use super::super::{row, tests};
    use super::*;

    #[test]
    fn a_sentence_says_who_answered_and_how_fast() {
        let found = || Said::Found(Vec::new());
        let lines: Vec<_> = [
            (found(), Source::Memory, 3),
            (found(), Source::Cache(12_400), 14),
            (found(), Source::Stale(7_200_000), 14),
            (Said::NotFound, Source::Backend, 1_240),
            (Said::Unavailable("x".into()), Source::Backend, 10_000_000),
            (Said::Unavailable("x".into()), Source::Breaker, 2),
            (found(), Source::Replica(0), 5),
            (Said::NotFound, Source::Replica(300_000), 5),
        ]
        .into_iter()
        .map(|(answer, layer, micros)| sentence("people", &Told { answer, layer, micros }, None))
        .chain([sentence(
            "people",
            &Told { answer: found(), layer: Source::Backend, micros: 3_000 },
            Some("no server runs"),
        )])
        .collect();
        insta::assert_snapshot!("table_sentences", lines.join("\n"));
    }

    #[test]
    fn counts_stand_in_columns() {
        let with = |down, replica| Stats { down, replica, ..tests::stats() };
        let copy = tests::replica();
        let old =
            ReplicaStats { live: false, age: Some(Duration::from_secs(300)), held_back: Some(1_300), ..copy.clone() };
        let young = ReplicaStats { complete: false, live: false, entries: 17, ..copy.clone() };
        let rows = [
            row("people", "ldap", Some(&with(None, None))),
            row("lists", "postgres", Some(&with(tests::down(), None))),
            row("staff", "ldap", Some(&with(None, Some(copy)))),
            row("guests", "ldap", Some(&with(tests::down(), Some(old)))),
            row("new", "ldap", Some(&Stats { replica: Some(young), ..Stats::default() })),
            row("aliases", "cdb", None),
        ];
        insta::assert_snapshot!("table_stats", stats(&rows).join("\n"));
    }
}
