//! The values that the server adapts itself, for people and for programs.

use serde_json::{Map, Value, json};

use crate::columns::{Align, ColumnTable};
use crate::metrics::MetricFamily;
use crate::metrics_text;

/// The lines of a table of adaptive values.
pub fn adaptive_table(rows: &[Value]) -> Vec<String> {
    const COLUMNS: [(&str, Align, &str); 7] = [
        ("ADAPTS", Align::Left, "name"),
        ("OF", Align::Left, "subject"),
        ("NOW", Align::Right, "value"),
        ("LOWEST", Align::Right, "lowest"),
        ("HIGHEST", Align::Right, "highest"),
        ("START", Align::Right, "start"),
        ("WHY", Align::Left, "why"),
    ];
    let mut table = ColumnTable::new(&COLUMNS.map(|(heading, align, _)| (heading, align)));
    rows.iter().for_each(|row| table.row(COLUMNS.map(|(_, _, key)| cell(&row[key])).into()));
    table.lines().collect()
}

/// What `status` prints: the table as comments of the Prometheus text format, and the metrics.
pub fn status_text(rows: &[Value], metrics: &[MetricFamily]) -> Vec<String> {
    let comments = adaptive_table(rows).into_iter().map(|line| format!("# {line}"));
    comments.chain(metrics_text::prometheus(metrics).lines().map(str::to_owned)).collect()
}

/// What `status --json` prints: an object with the adaptive values, and with each sample of the metrics by its name and
/// labels.
pub fn status_json(rows: &[Value], metrics: &[MetricFamily]) -> Value {
    json!({ "adapts": rows, "metrics": metrics_json(metrics) })
}

/// An object with each sample of the metrics by its name and labels.
pub(crate) fn metrics_json(metrics: &[MetricFamily]) -> Value {
    let samples = metrics.iter().flat_map(|family| &family.samples);
    samples
        .map(|sample| (metrics_text::sample_name(sample), json!(sample.value.as_f64())))
        .collect::<Map<_, _>>()
        .into()
}

fn cell(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{MetricKind, MetricSample, MetricValue};

    #[test]
    fn a_status_stays_readable_for_prometheus() {
        let rows = [json!({"name": "a", "subject": "x\n# HELP y", "value": 1, "lowest": null, "why": "b"})];
        let labels = vec![("a".to_owned(), "b c".to_owned())];
        let samples = vec![MetricSample { name: "m".into(), labels, value: MetricValue::Fraction(1.5) }];
        let metrics = [MetricFamily { name: "m".into(), help: "help".into(), kind: MetricKind::Gauge, samples }];
        let text = status_text(&rows, &metrics);
        assert_eq!(text.len(), 5);
        assert!(text[1].starts_with("# a") && text[1].contains(r"x\u000a# HELP y"), "{text:?}");
        let json = status_json(&rows, &metrics);
        assert_eq!((&json["adapts"][0]["value"], &json["metrics"]["m{a=\"b c\"}"]), (&json!(1), &json!(1.5)));
    }
}
