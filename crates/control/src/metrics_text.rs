//! Metrics in the text formats of Prometheus and OpenMetrics. The two differ in the names of counters, whose
//! samples end in `_total` while their families do not in OpenMetrics, and in the last line.

use std::fmt::Write;

use crate::metrics::{MetricFamily, MetricKind, MetricSample, MetricValue};

/// The Prometheus text format.
pub fn prometheus(families: &[MetricFamily]) -> String {
    let mut text = String::new();
    families.iter().for_each(|family| push_family(family, &family.name, &mut text));
    text
}

/// The OpenMetrics format (version 1.0.0).
pub(crate) fn openmetrics(families: &[MetricFamily]) -> String {
    let mut text = String::new();
    for family in families {
        push_family(family, family.name.strip_suffix("_total").unwrap_or(&family.name), &mut text);
    }
    text + "# EOF\n"
}

fn push_family(family: &MetricFamily, name: &str, text: &mut String) {
    let kind = match family.kind {
        MetricKind::Counter => "counter",
        MetricKind::Gauge => "gauge",
        MetricKind::Histogram => "histogram",
    };
    // Writing to a String cannot fail.
    let _ = writeln!(text, "# HELP {name} {}\n# TYPE {name} {kind}", family.help);
    for sample in &family.samples {
        let _ = match sample.value {
            MetricValue::Whole(value) => writeln!(text, "{} {value}", sample_name(sample)),
            MetricValue::Fraction(value) => writeln!(text, "{} {value}", sample_name(sample)),
        };
    }
}

/// The name of a sample with its labels.
pub(crate) fn sample_name(MetricSample { name, labels, .. }: &MetricSample) -> String {
    if labels.is_empty() {
        return name.clone();
    }
    let labels: Vec<_> = labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escape(value))).collect();
    format!("{name}{{{}}}", labels.join(","))
}

/// Escapes a label's value.
fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn family(name: &str, kind: MetricKind, labels: &[(&str, &str)], value: MetricValue) -> MetricFamily {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let samples = vec![MetricSample { name: name.to_owned(), labels, value }];
        MetricFamily { name: name.to_owned(), help: "Count of a_total".to_owned(), kind, samples }
    }

    #[test]
    fn a_family_of_counters_has_no_total_in_its_name_in_openmetrics() {
        let families = [
            family("a_total", MetricKind::Counter, &[], MetricValue::Whole(1)),
            family("b", MetricKind::Gauge, &[("x", "# TYPE \"c\"\n")], MetricValue::Fraction(2.0)),
        ];
        let expected = "# HELP a Count of a_total\n# TYPE a counter\na_total 1\n# HELP b Count of a_total\n\
                        # TYPE b gauge\nb{x=\"# TYPE \\\"c\\\"\\n\"} 2\n# EOF\n";
        assert_eq!(openmetrics(&families), expected);
        assert!(
            prometheus(&families).starts_with("# HELP a_total Count of a_total\n# TYPE a_total counter\na_total 1\n")
        );
    }

    /// Whole numbers above 2^53 keep their digits, and a fraction without a fractional part stays one.
    #[test]
    fn values_are_the_same_after_their_way_as_json() {
        for value in [MetricValue::Whole(u64::MAX), MetricValue::Fraction(2.0), MetricValue::Fraction(1.5e-6)] {
            let written = serde_json::to_string(&value).unwrap();
            assert_eq!(serde_json::from_str::<MetricValue>(&written).unwrap(), value, "{written}");
        }
    }
}
