//! The text format of Prometheus: families of samples, each with its help and type once.

use std::fmt::{Arguments, Display, Write};

use mail::Histogram;

/// A text in the making.
#[derive(Default)]
pub(super) struct Text {
    text: String,
    /// The family of the samples that follow.
    family: &'static str,
}

impl Text {
    /// Begins a family.
    pub(super) fn family(&mut self, name: &'static str, help: &str, kind: &str) {
        self.family = name;
        self.line(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}"));
    }

    /// A sample of the family that was begun last.
    pub(super) fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        let (family, labels) = (self.family, labelled(labels));
        self.line(format_args!("{family}{{{labels}}} {value}"));
    }

    /// A gauge without labels.
    pub(super) fn gauge(&mut self, name: &'static str, help: &str, value: u64) {
        self.family(name, help, "gauge");
        self.line(format_args!("{name} {value}"));
    }

    /// A counter without labels.
    pub(super) fn counter(&mut self, name: &'static str, help: &str, value: u64) {
        self.family(name, help, "counter");
        self.line(format_args!("{name} {value}"));
    }

    /// A histogram without labels. Values are stored in units of which `scale` make one of the metric's.
    pub(super) fn histogram(&mut self, name: &'static str, help: &str, histogram: &Histogram, scale: f64) {
        self.family(name, help, "histogram");
        self.distribution(&[], histogram, scale);
    }

    /// The samples of a histogram in the family that was begun last.
    pub(super) fn distribution(&mut self, labels: &[(&str, &str)], histogram: &Histogram, scale: f64) {
        let (name, own) = (self.family, labelled(labels));
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

impl From<Text> for String {
    fn from(text: Text) -> String {
        text.text
    }
}

/// Labels with their values, as they stand between the braces.
fn labelled(labels: &[(&str, &str)]) -> String {
    let labels: Vec<_> = labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
    labels.join(",")
}

/// A label's value between its quotes.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
