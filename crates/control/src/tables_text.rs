//! Tables for people: a sentence for a lookup, columns for counters.

use std::time::Duration;

use serde_json::Value;

use crate::columns::{Align, ColumnTable};
use crate::tables::{LookupReport, ReportedAnswer, ReportedLayer};
use crate::text::short_duration;

/// `people: found in the cache, from 12s ago; 14 us`. `direct` says why the server was not asked.
pub fn lookup_line(table: &str, notes: &LookupReport, direct: Option<&str>) -> String {
    let verdict = match &notes.answer {
        ReportedAnswer::Found(_) => "found",
        ReportedAnswer::NotFound => "not found",
        ReportedAnswer::Unavailable(_) => "no answer",
    };
    let ago = |millis| format!("{} ago", short_duration(Duration::from_millis(millis)));
    let is_unavailable = matches!(notes.answer, ReportedAnswer::Unavailable(_));
    let source = match notes.layer {
        ReportedLayer::Memory => " in memory".into(),
        ReportedLayer::Cache(age) => format!(" in the cache, from {}", ago(age)),
        ReportedLayer::Stale(age) => format!(" in the cache, from {}, because the backend fails", ago(age)),
        ReportedLayer::Backend if is_unavailable => " from the backend".into(),
        ReportedLayer::Backend => " in the backend".into(),
        ReportedLayer::Breaker => ": the backend is down and was not queried".into(),
        ReportedLayer::Replica(0) => " in the replica, which is up to date".into(),
        ReportedLayer::Replica(age) => format!(" in the replica, as of {}", ago(age)),
    };
    let direct = direct.map_or_else(String::new, |why| format!("{why}, queried directly: "));
    format!("{table}: {direct}{verdict}{source}; {}", duration_text(notes.micros))
}

/// The lines of `table stats`.
pub fn stats_table(rows: &[Value]) -> Vec<String> {
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
    let names = [("NAME", Align::Left), ("TYPE", Align::Left)].into_iter();
    let columns: Vec<_> =
        names.chain(NUMBERS.map(|name| (name, Align::Right))).chain([("STATE", Align::Left)]).collect();
    let mut table = ColumnTable::new(&columns);
    rows.iter().for_each(|row| table.row(cells(row)));
    table.lines().collect()
}

fn cells(row: &Value) -> Vec<String> {
    let number = |key: &str| row[key].as_u64();
    let text = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
    let plain = |key| cell_or_dash(number(key));
    let asked: Option<u64> = ["found", "not_found", "unavailable"].into_iter().map(number).sum();
    let percent = asked.zip(number("hits")).filter(|(asked, _)| *asked > 0);
    let each = number("keys_asked").zip(number("requests")).filter(|(_, requests)| *requests > 0);
    vec![
        text("table"),
        text("type"),
        plain("found"),
        plain("not_found"),
        plain("unavailable"),
        cell_or_dash(percent.map(|(asked, hits)| format!("{:.1}", hits as f64 * 100.0 / asked as f64))),
        plain("stale"),
        plain("joined"),
        plain("waiting"),
        plain("requests"),
        plain("failures"),
        cell_or_dash(each.map(|(keys, requests)| format!("{:.1}", keys as f64 / requests as f64))),
        cell_or_dash(number("request_micros_p50_max").map(duration_text)),
        cell_or_dash(number("request_micros_p99_max").map(duration_text)),
        table_state(row),
    ]
}

fn cell_or_dash(cell: Option<impl ToString>) -> String {
    cell.map_or("-".into(), |cell| cell.to_string())
}

/// The state beyond the numbers. A table without counters is in memory and has no state.
fn table_state(row: &Value) -> String {
    if !row["requests"].is_u64() {
        return String::new();
    }
    let seconds = |value: &Value| value.as_u64().map(Duration::from_secs);
    let mut notes = Vec::new();
    if let Some(since) = seconds(&row["down"]["seconds"]) {
        let error = row["down"]["error"].as_str().unwrap_or_default();
        notes.push(format!("down for {}: {error}", short_duration(since)));
    }
    let replica = &row["replica"];
    if let Some(removals) = replica["held_back"].as_u64() {
        notes.push(format!("{removals} removals held back"));
    }
    if let Some(entries) = replica["entries"].as_u64() {
        let age = match (seconds(&replica["age_seconds"]), replica["live"] == true, replica["complete"] == true) {
            (_, _, false) => "not yet complete".into(),
            (_, true, _) => "live".into(),
            (Some(age), ..) => format!("as of {} ago", short_duration(age)),
            (None, ..) => "of unknown age".into(),
        };
        notes.push(format!("a replica of {entries} entries, {age}"));
    }
    if notes.is_empty() { "up".into() } else { notes.join("; ") }
}

/// A time in microseconds, for people.
fn duration_text(micros: u64) -> String {
    match micros {
        0..1_000 => format!("{micros} us"),
        1_000..1_000_000 => format!("{:.1} ms", micros as f64 / 1e3),
        _ => format!("{:.1} s", micros as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use lookup::{LookupStats, ReplicaStats};

    use super::*;
    use crate::tables::{table_status, tests};

    fn row(name: &str, kind: &str, stats: Option<&LookupStats>) -> Value {
        serde_json::to_value(table_status(name, kind, stats)).unwrap()
    }

    #[test]
    fn a_sentence_says_who_answered_and_how_fast() {
        let found = || ReportedAnswer::Found(Vec::new());
        let lines: Vec<_> = [
            (found(), ReportedLayer::Memory, 3),
            (found(), ReportedLayer::Cache(12_400), 14),
            (found(), ReportedLayer::Stale(7_200_000), 14),
            (ReportedAnswer::NotFound, ReportedLayer::Backend, 1_240),
            (ReportedAnswer::Unavailable("x".into()), ReportedLayer::Backend, 10_000_000),
            (ReportedAnswer::Unavailable("x".into()), ReportedLayer::Breaker, 2),
            (found(), ReportedLayer::Replica(0), 5),
            (ReportedAnswer::NotFound, ReportedLayer::Replica(300_000), 5),
        ]
        .into_iter()
        .map(|(answer, layer, micros)| lookup_line("people", &LookupReport { answer, layer, micros }, None))
        .chain([lookup_line(
            "people",
            &LookupReport { answer: found(), layer: ReportedLayer::Backend, micros: 3_000 },
            Some("no server runs"),
        )])
        .collect();
        insta::assert_snapshot!("table_sentences", lines.join("\n"));
    }

    #[test]
    fn counts_stand_in_columns() {
        let with = |down, replica| LookupStats { down, replica, ..tests::stats() };
        let copy = tests::replica();
        let old =
            ReplicaStats { live: false, age: Some(Duration::from_secs(300)), held_back: Some(1_300), ..copy.clone() };
        let young = ReplicaStats { complete: false, live: false, entries: 17, ..copy.clone() };
        let rows = [
            row("people", "ldap", Some(&with(None, None))),
            row("lists", "postgres", Some(&with(tests::down(), None))),
            row("staff", "ldap", Some(&with(None, Some(copy)))),
            row("guests", "ldap", Some(&with(tests::down(), Some(old)))),
            row("new", "ldap", Some(&LookupStats { replica: Some(young), ..LookupStats::default() })),
            row("aliases", "cdb", None),
        ];
        insta::assert_snapshot!("table_stats", stats_table(&rows).join("\n"));
    }
}
