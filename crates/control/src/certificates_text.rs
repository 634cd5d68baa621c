//! The answer about certificates that the server obtains, as text.

use serde_json::Value;

use super::columns::{Align, ColumnTable};

/// `mailrace acme status`.
pub fn acme_table(rows: &[Value]) -> Vec<String> {
    let columns = ["NAMES", "ISSUER", "EXPIRES", "NEXT ATTEMPT", "FAILURES", "LAST ERROR"];
    let align = |name| if name == "FAILURES" { Align::Right } else { Align::Left };
    let mut table = ColumnTable::new(&columns.map(|name| (name, align(name))));
    for row in rows {
        let names = row["names"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let names = names.collect::<Vec<_>>().join(",");
        let keys = ["issuer", "expires", "next_attempt", "failures", "error"];
        table.row([names].into_iter().chain(keys.map(|key| cell(&row[key]))).collect());
    }
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
    fn certificates_are_a_table() {
        let issued = json!({"names": ["mx.example.org", "mail.example.org"], "issuer": "CN=E7",
            "expires": "2027-02-22T03:00:00Z", "next_attempt": "2027-01-23T03:00:00Z", "failures": 0, "error": null});
        let missing = json!({"names": ["b.example"], "issuer": null, "expires": null,
            "next_attempt": "2026-11-24T04:00:00Z", "failures": 2, "error": "timed out"});
        let expected = [
            "NAMES                            ISSUER  EXPIRES               NEXT ATTEMPT          FAILURES  LAST ERROR",
            "mx.example.org,mail.example.org  CN=E7   2027-02-22T03:00:00Z  2027-01-23T03:00:00Z         0  -",
            "b.example                        -       -                     2026-11-24T04:00:00Z         2  timed out",
        ];
        assert_eq!(acme_table(&[issued, missing]), expected);
    }
}
