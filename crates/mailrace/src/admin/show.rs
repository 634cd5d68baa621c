//! Summaries for people: tables made from the objects in the server's answer.

use std::time::Duration;

use serde_json::Value;

use super::question::By;
use super::summary::AGES;
use super::table::{Side, Table};
use super::text::brief;

/// The lines of a summary.
pub(super) fn summary(by: By, rows: &[Value], ages: bool) -> Vec<String> {
    let table = match (by, ages) {
        (By::NextHop, _) => next_hops(rows),
        (By::Destination, false) => tallies(&[("DESTINATION", "destination"), ("QUEUE", "queue")], rows),
        (By::Sender, false) => tallies(&[("SENDER", "sender")], rows),
        (By::Queue, false) => queues(rows),
        (By::Destination, true) => shape(&[("DESTINATION", "destination"), ("QUEUE", "queue")], rows),
        (By::Sender, true) => shape(&[("SENDER", "sender")], rows),
        (By::Queue, true) => shape(&[("QUEUE", "queue")], rows),
    };
    table.lines().collect()
}

const COUNTS: [(&str, &str); 5] = [
    ("RECIPIENTS", "recipients"),
    ("READY", "ready"),
    ("FLIGHT", "in_flight"),
    ("WAITING", "waiting"),
    ("HELD", "held"),
];

/// Recipients in each state, and the next attempt.
fn tallies(names: &[(&'static str, &str)], rows: &[Value]) -> Table {
    let columns = names.iter().map(|(name, _)| (*name, Side::Left));
    let counts = COUNTS.iter().map(|(name, _)| (*name, Side::Right));
    let rest = [("OLDEST", Side::Right), ("NEXT", Side::Right), ("LAST ERROR", Side::Left)];
    let mut table = Table::new(&columns.chain(counts).chain(rest).collect::<Vec<_>>());
    for row in rows {
        let named = names.iter().map(|(_, key)| word(&row[*key]));
        table.row(named.chain(tally(row)).collect());
    }
    table
}

/// The same, with the queue's attempts and limits.
fn queues(rows: &[Value]) -> Table {
    let columns = [("QUEUE", Side::Left), ("STATE", Side::Left), ("ATTEMPTS", Side::Right), ("MOST", Side::Right)];
    let counts = COUNTS.iter().map(|(name, _)| (*name, Side::Right));
    let rest = [("OLDEST", Side::Right), ("NEXT", Side::Right), ("LAST ERROR", Side::Left)];
    let mut table = Table::new(&columns.into_iter().chain(counts).chain(rest).collect::<Vec<_>>());
    for row in rows {
        let state = if row["paused"] == true { "paused" } else { "open" };
        let own = [word(&row["queue"]), state.to_owned(), word(&row["attempts"]), word(&row["concurrency"])];
        table.row(own.into_iter().chain(tally(row)).collect());
    }
    table
}

fn tally(row: &Value) -> impl Iterator<Item = String> {
    let counts = COUNTS.iter().map(|(_, key)| word(&row[*key]));
    let next = match row["next_attempt_in_seconds"].as_u64() {
        Some(0) => "now".to_owned(),
        _ => span(&row["next_attempt_in_seconds"]),
    };
    counts.chain([span(&row["oldest_age_seconds"]), next, word(&row["error"])])
}

/// Recipients by age, like qshape(1): up to each number of minutes, and beyond.
fn shape(names: &[(&'static str, &str)], rows: &[Value]) -> Table {
    const HEADINGS: [&str; AGES.len() + 1] =
        ["5m", "10m", "20m", "40m", "80m", "160m", "320m", "640m", "1280m", "MORE"];
    let columns = names.iter().map(|(name, _)| (*name, Side::Left)).chain([("TOTAL", Side::Right)]);
    let ages = HEADINGS.map(|heading| (heading, Side::Right));
    let mut table = Table::new(&columns.chain(ages).collect::<Vec<_>>());
    for row in rows {
        let named = names.iter().map(|(_, key)| word(&row[*key])).chain([word(&row["recipients"])]);
        table.row(named.chain((0..HEADINGS.len()).map(|age| word(&row["ages"][age]))).collect());
    }
    table
}

fn next_hops(rows: &[Value]) -> Table {
    let mut table = Table::new(&[
        ("NEXT HOP", Side::Left),
        ("DESTINATIONS", Side::Right),
        ("ATTEMPTS", Side::Right),
        ("MOST", Side::Right),
        ("ADOPTED BY", Side::Left),
        ("RATE FREE", Side::Right),
        ("FAILURES", Side::Right),
        ("DEAD FOR", Side::Right),
        ("LAST ERROR", Side::Left),
    ]);
    for row in rows {
        let rate_free = row["rate_free_in_ms"].as_u64().map_or("-".into(), |ms| format!("{ms}ms"));
        let (dead_for, error) = (span(&row["dead_for_seconds"]), word(&row["error"]));
        let numbers = ["next_hop", "destinations", "attempts", "concurrency", "adopted_by"].map(|key| word(&row[key]));
        table.row(numbers.into_iter().chain([rate_free, word(&row["failures"]), dead_for, error]).collect());
    }
    table
}

/// A text or a number; a missing value is a dash.
fn word(value: &Value) -> String {
    match value {
        Value::Null => "-".into(),
        Value::String(text) if text.is_empty() => "<>".into(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn span(seconds: &Value) -> String {
    seconds.as_u64().map_or("-".into(), |seconds| brief(Duration::from_secs(seconds)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::found::Place;
    use super::super::sample::{self, NOW};
    use super::super::summary::{by_destination, by_next_hop, by_queue, lanes, tally};
    use super::*;

    #[test]
    fn a_summary_is_a_table() {
        let mut sample = sample::queues();
        let error = mail::Reply::plain(451, "no route to host");
        sample.queues.ended(NOW, &mut sample.attempt, queue::Contact::Failed(error));
        let queues = &sample.queues;
        let places = || tally(queues.entries(), NOW, |entry| Place::of(queues, entry.destination));
        let tables = [
            summary(By::Destination, &by_destination(places(), NOW), false),
            summary(By::Destination, &by_destination(places(), NOW), true),
            summary(By::Queue, &by_queue(lanes(queues), places(), NOW), false),
            summary(By::NextHop, &by_next_hop(queues, NOW), false),
            summary(By::Sender, &[json!({"sender": "", "recipients": 1, "error": null})], false),
        ];
        insta::assert_snapshot!("tables", tables.map(|lines| lines.join("\n")).join("\n\n"));
    }
}
