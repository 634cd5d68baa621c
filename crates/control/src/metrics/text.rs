//! The Prometheus text format: metrics with their help, type and samples.

use std::fmt::{Arguments, Display, Write};

use mail::Histogram;

/// The text being written.
#[derive(Default)]
pub(super) struct MetricsText {
    text: String,
    /// The metric of the samples that follow.
    family: &'static str,
}

impl MetricsText {
    /// Begins a metric.
    pub(super) fn family(&mut self, name: &'static str, help: &str, kind: &str) {
        self.family = name;
        self.line(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}"));
    }

    /// Writes a sample of the current metric.
    pub(super) fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        let (family, set) = (self.family, labels_text(labels));
        match labels {
            [] => self.line(format_args!("{family} {value}")),
            _ => self.line(format_args!("{family}{{{set}}} {value}")),
        }
    }

    /// Writes a gauge without labels.
    pub(super) fn gauge(&mut self, name: &'static str, help: &str, value: u64) {
        self.family(name, help, "gauge");
        self.line(format_args!("{name} {value}"));
    }

    /// Writes a counter without labels.
    pub(super) fn counter(&mut self, name: &'static str, help: &str, value: u64) {
        self.family(name, help, "counter");
        self.line(format_args!("{name} {value}"));
    }

    /// Writes a histogram without labels. `scale` stored units are one unit of the metric.
    pub(super) fn histogram(&mut self, name: &'static str, help: &str, histogram: &Histogram, scale: f64) {
        self.family(name, help, "histogram");
        self.distribution(&[], histogram, scale);
    }

    /// Writes the samples of a histogram for the current metric.
    pub(super) fn distribution(&mut self, labels: &[(&str, &str)], histogram: &Histogram, scale: f64) {
        let (name, own) = (self.family, labels_text(labels));
        let (before, set) = match &*own {
            "" => (String::new(), String::new()),
            own => (format!("{own},"), format!("{{{own}}}")),
        };
        let mut below = 0;
        for (power, count) in histogram.buckets[..Histogram::BUCKETS - 1].iter().enumerate() {
            below += count;
            let bound = (1u64 << power) as f64 / scale;
            self.line(format_args!("{name}_bucket{{{before}le=\"{bound}\"}} {below}"));
        }
        let (count, sum) = (histogram.count(), histogram.sum as f64 / scale);
        self.line(format_args!("{name}_bucket{{{before}le=\"+Inf\"}} {count}"));
        self.line(format_args!("{name}_sum{set} {sum}\n{name}_count{set} {count}"));
    }

    fn line(&mut self, line: Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.text, "{line}");
    }
}

impl From<MetricsText> for String {
    fn from(text: MetricsText) -> String {
        text.text
    }
}

/// The labels with their values, as written between the braces.
fn labels_text(labels: &[(&str, &str)]) -> String {
    let labels: Vec<_> = labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escape(value))).collect();
    labels.join(",")
}

/// Escapes a label's value.
fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
