//! Summaries for people: tables made from the objects in the server's answer.

use std::time::Duration;

use serde_json::Value;

use crate::columns::{Align, ColumnTable};
use crate::request::SummaryKey;
use crate::summary::AGES;
use crate::text::short_duration;

/// The lines of a summary.
pub fn summary(by: SummaryKey, rows: &[Value], ages: bool) -> Vec<String> {
    let table = match (by, ages) {
        (SummaryKey::NextHop, _) => next_hop_table(rows),
        (SummaryKey::Destination, false) => tally_table(&[("DESTINATION", "destination"), ("QUEUE", "queue")], rows),
        (SummaryKey::Sender, false) => tally_table(&[("SENDER", "sender")], rows),
        (SummaryKey::Queue, false) => queue_table(rows),
        (SummaryKey::Destination, true) => age_table(&[("DESTINATION", "destination"), ("QUEUE", "queue")], rows),
        (SummaryKey::Sender, true) => age_table(&[("SENDER", "sender")], rows),
        (SummaryKey::Queue, true) => age_table(&[("QUEUE", "queue")], rows),
    };
    table.lines().collect()
}

const COUNTS: [(&str, &str); 5] = [
    ("RECIPIENTS", "recipients"),
    ("READY", "ready"),
    ("IN-FLIGHT", "in_flight"),
    ("WAITING", "waiting"),
    ("HELD", "held"),
];

/// Recipients in each state, and the next attempt.
fn tally_table(names: &[(&'static str, &str)], rows: &[Value]) -> ColumnTable {
    let columns = names.iter().map(|(name, _)| (*name, Align::Left));
    let counts = COUNTS.iter().map(|(name, _)| (*name, Align::Right));
    let rest = [("OLDEST", Align::Right), ("NEXT", Align::Right), ("LAST ERROR", Align::Left)];
    let mut table = ColumnTable::new(&columns.chain(counts).chain(rest).collect::<Vec<_>>());
    for row in rows {
        let named = names.iter().map(|(_, key)| cell_text(&row[*key]));
        table.row(named.chain(state_cells(row)).collect());
    }
    table
}

/// The same, with the queue's attempts and limits.
fn queue_table(rows: &[Value]) -> ColumnTable {
    let columns = [("QUEUE", Align::Left), ("STATE", Align::Left), ("ATTEMPTS", Align::Right), ("MOST", Align::Right)];
    let counts = COUNTS.iter().map(|(name, _)| (*name, Align::Right));
    let rest = [("OLDEST", Align::Right), ("NEXT", Align::Right), ("LAST ERROR", Align::Left)];
    let mut table = ColumnTable::new(&columns.into_iter().chain(counts).chain(rest).collect::<Vec<_>>());
    for row in rows {
        let state = if row["paused"] == true { "paused" } else { "open" };
        let own =
            [cell_text(&row["queue"]), state.to_owned(), cell_text(&row["attempts"]), cell_text(&row["concurrency"])];
        table.row(own.into_iter().chain(state_cells(row)).collect());
    }
    table
}

fn state_cells(row: &Value) -> impl Iterator<Item = String> {
    let counts = COUNTS.iter().map(|(_, key)| cell_text(&row[*key]));
    let next = match row["next_attempt_in_seconds"].as_u64() {
        Some(0) => "now".to_owned(),
        _ => duration_text(&row["next_attempt_in_seconds"]),
    };
    counts.chain([duration_text(&row["oldest_age_seconds"]), next, cell_text(&row["error"])])
}

/// Recipients by age, like qshape(1): up to each number of minutes, and beyond.
fn age_table(names: &[(&'static str, &str)], rows: &[Value]) -> ColumnTable {
    const HEADINGS: [&str; AGES.len() + 1] =
        ["5m", "10m", "20m", "40m", "80m", "160m", "320m", "640m", "1280m", "MORE"];
    let columns = names.iter().map(|(name, _)| (*name, Align::Left)).chain([("TOTAL", Align::Right)]);
    let ages = HEADINGS.map(|heading| (heading, Align::Right));
    let mut table = ColumnTable::new(&columns.chain(ages).collect::<Vec<_>>());
    for row in rows {
        let named = names.iter().map(|(_, key)| cell_text(&row[*key])).chain([cell_text(&row["recipients"])]);
        table.row(named.chain((0..HEADINGS.len()).map(|age| cell_text(&row["ages"][age]))).collect());
    }
    table
}

fn next_hop_table(rows: &[Value]) -> ColumnTable {
    let mut table = ColumnTable::new(&[
        ("NEXT HOP", Align::Left),
        ("DESTINATIONS", Align::Right),
        ("ATTEMPTS", Align::Right),
        ("MOST", Align::Right),
        ("ADOPTED BY", Align::Left),
        ("RATE FREE", Align::Right),
        ("FAILURES", Align::Right),
        ("DEAD FOR", Align::Right),
        ("LAST ERROR", Align::Left),
    ]);
    for row in rows {
        let rate_free = row["rate_free_in_ms"].as_u64().map_or("-".into(), |ms| format!("{ms}ms"));
        let (dead_for, error) = (duration_text(&row["dead_for_seconds"]), cell_text(&row["error"]));
        let numbers =
            ["next_hop", "destinations", "attempts", "concurrency", "adopted_by"].map(|key| cell_text(&row[key]));
        table.row(numbers.into_iter().chain([rate_free, cell_text(&row["failures"]), dead_for, error]).collect());
    }
    table
}

/// A text or a number; a missing value is a dash.
fn cell_text(value: &Value) -> String {
    match value {
        Value::Null => "-".into(),
        Value::String(text) if text.is_empty() => "<>".into(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn duration_text(seconds: &Value) -> String {
    seconds.as_u64().map_or("-".into(), |seconds| short_duration(Duration::from_secs(seconds)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::sample::{self, NOW};
    use crate::selection::DestinationName;
    use crate::summary::{by_destination, by_next_hop, by_queue, queue_summaries, tally};

    #[test]
    fn a_summary_is_a_table() {
        let mut sample = sample::queues();
        let error = mail::Reply::without_enhanced_code(451, "no route to host");
        sample.queues.finish_contact(NOW, &mut sample.attempt, queue::ContactResult::Failed(error));
        let queues = &sample.queues;
        let places = || tally(queues.recipient_views(), NOW, |entry| DestinationName::of(queues, entry.destination));
        let next_hops: Vec<Value> =
            by_next_hop(queues, NOW).iter().map(|hop| serde_json::to_value(hop).unwrap()).collect();
        let tables = [
            summary(SummaryKey::Destination, &by_destination(places(), NOW), false),
            summary(SummaryKey::Destination, &by_destination(places(), NOW), true),
            summary(SummaryKey::Queue, &by_queue(queue_summaries(queues), places(), NOW), false),
            summary(SummaryKey::NextHop, &next_hops, false),
            summary(SummaryKey::Sender, &[json!({"sender": "", "recipients": 1, "error": null})], false),
        ];
        insta::assert_snapshot!("tables", tables.map(|lines| lines.join("\n")).join("\n\n"));
    }
}
