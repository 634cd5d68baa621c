//! `docs/result.schema.json` says the same as the types of `compare::result`: each accepts and refuses
//! what the other does.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use compare::result::ResultFile;
use serde_json::{Value, json};

const SCHEMA: &str = include_str!("../../../docs/result.schema.json");

const FIGURES: [&str; 5] =
    ["rate", "cpu_per_thousand", "load_cpu_per_thousand", "machine_cpu_per_thousand", "resident_bytes"];

/// A result with every field.
fn sample() -> Value {
    let run = json!({
        "count": 100, "seconds": 1.5, "cpu_seconds": 0.5, "load_cpu_seconds": 0.25, "machine_cpu_seconds": 1.0,
        "resident_bytes": 4096, "limit": "processor", "latency_seconds": {"50": 0.001, "100": 0.01},
    });
    let other = |limit: &str| json!({"count": 1, "seconds": 1.0, "cpu_seconds": 1.0, "limit": limit});
    let comparisons = FIGURES.map(|figure| {
        json!({
            "figure": figure, "over": "a", "under": "b", "case": "10", "under_case": "20", "ratio": 2.0,
            "interval": [1.5, 2.5], "aim": "at least 2", "is_met": true,
        })
    });
    json!({
        "format": 1, "name": "x", "title": "X", "question": "What?", "answer": "That.", "command": "c",
        "started": "2026-11-23T12:00:00.000Z", "seconds": 60.0, "is_trial": true, "reduced": "half",
        "machine": [{"name": "kernel", "value": "6"}],
        "unit": "message", "case_name": "connections",
        "systems": [{"name": "a", "version": "1", "commands": ["load"], "configuration": "port 25"}],
        "cases": [{"label": "10", "value": 10.0, "rounds": [
            {"a": run, "b": other("disk")}, {"a": other("network"), "b": other("load")}, {"a": other("waiting"), "b": other("thread")},
        ]}],
        "comparisons": comparisons,
        "checks": [{"aim": "none lost", "measured": "none", "is_met": true}],
        "charts": [{"title": "t", "x_name": "s", "y_name": "n", "series": [{"name": "a", "points": [[0.0, 1.0]]}]}],
        "tables": [{"title": "t", "columns": ["a"], "rows": [["1"]]}],
        "notes": ["n"],
    })
}

#[test]
fn the_sample_has_every_field_and_both_accept_it() {
    let sample = sample();
    let file: ResultFile = serde_json::from_value(sample.clone()).unwrap();
    assert_eq!(serde_json::to_value(&file).unwrap(), sample, "every field of the types comes back");
    let schema: Value = serde_json::from_str(SCHEMA).unwrap();
    assert_eq!(fault(&schema, &schema, &sample), None);
    let mut unused = Vec::new();
    let definitions = schema["$defs"].as_object().unwrap();
    for (name, definition) in definitions.iter().map(|(name, it)| (name.as_str(), it)).chain([("", &schema)]) {
        let properties = definition["properties"].as_object().unwrap().keys();
        unused.extend(properties.filter(|key| !has_key(&sample, key)).map(|key| format!("{name}.{key}")));
    }
    assert_eq!(unused, [""; 0], "fields that only the schema has");
}

/// Whatever one key less, one key more or another kind of value does, both agree.
#[test]
fn both_accept_and_refuse_the_same() {
    let schema: Value = serde_json::from_str(SCHEMA).unwrap();
    let mut compared = 0;
    for place in places(&sample(), "") {
        for (change, changed) in changes(&place) {
            let is_taken = serde_json::from_value::<ResultFile>(changed.clone()).is_ok();
            let fault = fault(&schema, &schema, &changed);
            // That the version is the right one is checked by the reader, not by the types.
            if place == "/format" {
                continue;
            }
            assert_eq!(is_taken, fault.is_none(), "{place}: {change}: the schema says {fault:?}");
            compared += 1;
        }
    }
    assert!(compared > 300, "{compared}");
}

/// The JSON pointers of all values below this one, with its own.
fn places(value: &Value, place: &str) -> Vec<String> {
    let children: Vec<(String, &Value)> = match value {
        Value::Object(map) => map.iter().map(|(key, child)| (key.clone(), child)).collect(),
        Value::Array(list) => list.iter().enumerate().map(|(index, child)| (index.to_string(), child)).collect(),
        _ => Vec::new(),
    };
    let below = children.into_iter().flat_map(|(key, child)| places(child, &format!("{place}/{key}")));
    [place.to_owned()].into_iter().chain(below).collect()
}

/// The sample with one thing changed at a place.
fn changes(place: &str) -> Vec<(&'static str, Value)> {
    let with = |change: &dyn Fn(&mut Value)| {
        let mut changed = sample();
        change(changed.pointer_mut(place).unwrap());
        changed
    };
    let mut found = vec![
        ("a list", with(&|value| *value = json!([[["a list"]]]))),
        ("a flag", with(&|value| *value = json!(true))),
        ("a word", with(&|value| *value = json!("no such word"))),
        ("a number", with(&|value| *value = json!(1.25))),
        ("a negative number", with(&|value| *value = json!(-1))),
    ];
    if sample().pointer(place).unwrap().is_object() {
        found.push(("a key more", with(&|value| value["no such key"] = json!(["x"]))));
    }
    if let Some((parent, key)) = place.rsplit_once('/') {
        let mut changed = sample();
        if let Some(map) = changed.pointer_mut(parent).unwrap().as_object_mut() {
            map.remove(key);
            found.push(("a key less", changed));
        }
    }
    found
}

fn has_key(value: &Value, key: &str) -> bool {
    match value {
        Value::Object(map) => map.contains_key(key) || map.values().any(|child| has_key(child, key)),
        Value::Array(list) => list.iter().any(|child| has_key(child, key)),
        _ => false,
    }
}

/// Why a value does not agree with a schema; the words of JSON Schema that ours uses are understood,
/// and any other one is an error of the test.
fn fault(root: &Value, schema: &Value, value: &Value) -> Option<String> {
    schema.as_object().unwrap().iter().find_map(|(word, rule)| match word.as_str() {
        "$schema" | "$defs" | "title" | "description" => None,
        "$ref" => {
            let target = root.pointer(rule.as_str().unwrap().strip_prefix('#').unwrap()).unwrap();
            fault(root, target, value)
        }
        "type" => (!has_type(rule.as_str().unwrap(), value)).then(|| format!("{value} is no {rule}")),
        "const" => (value != rule).then(|| format!("{value} is not {rule}")),
        "enum" => (!rule.as_array().unwrap().contains(value)).then(|| format!("{value} is none of {rule}")),
        "minimum" => value
            .as_f64()
            .filter(|number| *number < rule.as_f64().unwrap())
            .map(|number| format!("{number} is too low")),
        "minItems" => {
            value.as_array().filter(|list| (list.len() as u64) < rule.as_u64().unwrap()).map(|_| "too short".to_owned())
        }
        "maxItems" => {
            value.as_array().filter(|list| list.len() as u64 > rule.as_u64().unwrap()).map(|_| "too long".to_owned())
        }
        "items" => value.as_array().into_iter().flatten().find_map(|item| fault(root, rule, item)),
        "required" => {
            let map = value.as_object()?;
            let lacking = rule.as_array().unwrap().iter().find(|key| !map.contains_key(key.as_str().unwrap()));
            lacking.map(|key| format!("{key} is missing"))
        }
        "properties" => {
            let rules = rule.as_object().unwrap();
            value.as_object()?.iter().find_map(|(key, child)| fault(root, rules.get(key)?, child))
        }
        "additionalProperties" => {
            let known = |key: &String| schema.get("properties").is_some_and(|rules| rules.get(key).is_some());
            let mut others = value.as_object()?.iter().filter(|(key, _)| !known(key));
            match rule.as_bool() {
                Some(false) => others.next().map(|(key, _)| format!("{key} is unknown")),
                _ => others.find_map(|(_, child)| fault(root, rule, child)),
            }
        }
        _ => panic!("the test does not know {word}"),
    })
}

fn has_type(name: &str, value: &Value) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => value.is_u64() || value.is_i64(),
        "boolean" => value.is_boolean(),
        _ => panic!("the test does not know the type {name}"),
    }
}
