//! The answers about reports as text: what is counted, and what became of reports.

use serde_json::Value;

use super::columns::{Align, ColumnTable};

/// `mailrace reports show`.
pub fn pending_table(rows: &[Value]) -> Vec<String> {
    let (left, right) = (Align::Left, Align::Right);
    let columns = [("DAY", left), ("KIND", left), ("ROWS", right), ("COUNT", right), ("DOMAIN", left)];
    table(&columns, &["day", "kind", "rows", "count", "domain"], rows)
}

/// `mailrace reports send`.
pub fn sent_table(rows: &[Value]) -> Vec<String> {
    let left = Align::Left;
    let columns = [("DAY", left), ("KIND", left), ("RESULT", left), ("TO", left)];
    table(&columns, &["day", "kind", "result", "to"], rows)
}

fn table(columns: &[(&'static str, Align)], keys: &[&str], rows: &[Value]) -> Vec<String> {
    let mut table = ColumnTable::new(columns);
    rows.iter().for_each(|row| table.row(keys.iter().map(|key| cell(&row[*key])).collect()));
    table.lines().collect()
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

    use super::*;

    #[test]
    fn what_is_counted_and_what_was_sent_are_tables() {
        let counted = json!({"day": "2026-11-23", "kind": "dmarc", "domain": "a.example", "rows": 2, "count": 1017});
        assert_eq!(
            pending_table(&[counted]),
            ["DAY         KIND   ROWS  COUNT  DOMAIN", "2026-11-23  dmarc     2   1017  a.example"]
        );
        let sent = json!({"day": "2026-11-23", "kind": "tls", "result": "no_destination", "to": null});
        assert_eq!(
            sent_table(&[sent]),
            ["DAY         KIND  RESULT          TO", "2026-11-23  tls   no_destination  -"]
        );
    }
}
