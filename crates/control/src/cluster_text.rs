//! The answers about the cluster as text.

use mail::Timestamp;
use serde_json::Value;

use super::columns::{Align, ColumnTable};
use super::metrics::{MetricFamily, MetricSample, MetricValue};

/// `mailrace cluster status`. What has to be mended follows the table.
pub fn lane_table(rows: &[Value]) -> Vec<String> {
    let (left, right) = (Align::Left, Align::Right);
    let columns = [
        ("LANE", left),
        ("ROLE", left),
        ("EPOCH", right),
        ("SEQUENCE", right),
        ("MESSAGES", right),
        ("WAITING", right),
        ("LEASE", right),
    ];
    let mut table = ColumnTable::new(&columns);
    let (problems, lanes): (Vec<&Value>, Vec<&Value>) = rows.iter().partition(|row| row["problem"].is_string());
    for row in lanes {
        let lease =
            row["lease_ms"].as_u64().map_or_else(|| "-".into(), |ms| format!("{}.{}s", ms / 1000, ms % 1000 / 100));
        let keys = ["lane", "role", "epoch", "sequence", "messages", "bytes_waiting"];
        table.row(keys.iter().map(|key| cell(&row[*key])).chain([lease]).collect());
    }
    table.lines().chain(problems.into_iter().map(|row| format!("problem: {}", cell(&row["problem"])))).collect()
}

/// What `mailrace cluster status` says of the next hops that nodes share, from the metrics of the node.
pub fn sharing_lines(metrics: &[MetricFamily]) -> Vec<String> {
    let counts = |name: &str| -> Vec<u64> {
        let samples = metrics.iter().filter(|family| family.name == name).flat_map(|family| &family.samples);
        let count = |sample: &MetricSample| match sample.value {
            MetricValue::Whole(count) => count,
            MetricValue::Fraction(_) => 0,
        };
        samples.map(count).collect()
    };
    // The first sample is what is shared, the second one is the own part.
    let count = |name, place: usize| counts(name).get(place).copied().unwrap_or_default();
    let by_source = |name| (count(name, 0), count(name, 1));
    let (departures, own_departures) = by_source("mailrace_cluster_departures_total");
    let (connections, own_connections) = by_source("mailrace_cluster_slots_held");
    let refused = count("mailrace_cluster_slots_refused_total", 0);
    vec![
        format!("shared rates: {departures} departures, and {own_departures} of the own part"),
        format!("shared connections: {connections} held, {own_connections} of the own part, {refused} refused"),
    ]
}

/// `mailrace cluster nodes`. A line below the table says whether configurations differ.
pub fn node_table(rows: &[Value]) -> Vec<String> {
    let (left, right) = (Align::Left, Align::Right);
    let columns = [("NODE", left), ("VERSION", left), ("STARTED", left), ("LANES", right), ("CONFIGURATION", left)];
    let mut table = ColumnTable::new(&columns);
    for row in rows {
        let here = if row["here"] == true { "*" } else { "" };
        let started = Timestamp(row["started"].as_u64().unwrap_or_default()).to_rfc3339();
        let lanes = row["lanes"].as_array().map_or(0, Vec::len);
        let name = format!("{}{here}", cell(&row["node"]));
        table.row(vec![name, cell(&row["version"]), started, lanes.to_string(), cell(&row["configuration"])]);
    }
    let mut lines: Vec<String> = table.lines().collect();
    if rows.windows(2).any(|pair| pair[0]["configuration"] != pair[1]["configuration"]) {
        lines.push("The configurations differ.".into());
    }
    lines
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::metrics::MetricKind;
    use super::*;

    #[test]
    fn lanes_and_nodes_are_tables() {
        let lane = json!({"lane": "2D-0", "role": "owner", "epoch": 3, "sequence": 1200, "messages": 7,
            "bytes_waiting": 0, "lease_ms": 2940});
        let other = json!({"lane": "2E-0", "role": "watched", "epoch": null, "sequence": null, "messages": null,
            "bytes_waiting": null, "lease_ms": null});
        let expected = [
            "LANE  ROLE     EPOCH  SEQUENCE  MESSAGES  WAITING  LEASE",
            "2D-0  owner        3      1200         7        0   2.9s",
            "2E-0  watched      -         -         -        -      -",
        ];
        let mut lines = lane_table(&[lane, other, json!({"problem": "too few servers"})]);
        assert_eq!(lines.pop().as_deref(), Some("problem: too few servers"));
        assert_eq!(lines, expected);
        let node = |name, configuration| {
            json!({"node": name, "here": name == "a", "version": "0.3.0", "started": 0, "lanes": ["2D-0"],
            "configuration": configuration})
        };
        assert_eq!(node_table(&[node("a", "1f"), node("b", "1f")]).len(), 3);
        let lines = node_table(&[node("a", "1f"), node("b", "2f")]);
        assert!(lines[1].starts_with("a*") && lines[2].starts_with("b "), "{lines:?}");
        assert_eq!(lines[3], "The configurations differ.");
    }

    #[test]
    fn what_nodes_share_is_two_lines() {
        let counts = |name: &str, samples: &[(Option<&str>, u64)]| {
            let sample = |(source, count): &(Option<&str>, u64)| MetricSample {
                name: name.to_owned(),
                labels: source.iter().map(|source| ("source".to_owned(), (*source).to_owned())).collect(),
                value: MetricValue::Whole(*count),
            };
            let samples = samples.iter().map(sample).collect();
            MetricFamily { name: name.to_owned(), help: String::new(), kind: MetricKind::Gauge, samples }
        };
        let metrics = [
            counts("mailrace_cluster_departures_total", &[(Some("shared"), 40), (Some("own part"), 5)]),
            counts("mailrace_cluster_slots_held", &[(Some("shared"), 7), (Some("own part"), 1)]),
            counts("mailrace_cluster_slots_refused_total", &[(None, 3)]),
        ];
        let expected = [
            "shared rates: 40 departures, and 5 of the own part",
            "shared connections: 7 held, 1 of the own part, 3 refused",
        ];
        assert_eq!(sharing_lines(&metrics), expected);
    }
}
